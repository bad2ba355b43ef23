/* sc_items.c - conversions of blocks of numbers (see sc_items.h)
 * SPDX-License-Identifier: MIT */
#include "codecs/sc_items.h"

size_t
sc_item_nbytes(int type)
{
    static const uint8_t nbytes[SC_N_ITEM_TYPES] = { 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8 };

    return type >= 0 && type < SC_N_ITEM_TYPES ? nbytes[type] : 0;
}

enum sc_status
sc_item_failed(enum sc_status status, struct sc_where *where, const char *codec, const char *detail,
               const uint8_t *item, uint64_t number, int type, int other_type, uint64_t nbytes)
{
    memcpy(where->value, item, sc_item_nbytes(type));
    where->element = number;
    where->type = type;
    where->other_type = other_type;
    return sc_codec_failed(status, where, codec, detail, 0, nbytes);
}

/* ---- floats to integers: what numpy gives on x86-64, where conversions outside of the range are INT_MIN
 *
 * For uint32, numpy's result depends on the number of elements: single elements become an int64 modulo 2^32, groups of
 * four lose what is out of range. Here all elements are modulo 2^32, so filters that wrap can be undone. */

static inline int32_t
to_int32(double x)
{
    return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}

static inline int32_t
single_to_int32(float x)
{
    return x >= -0x1p31f && x < 0x1p31f ? (int32_t)x : INT32_MIN;
}

static inline int64_t
to_int64(double x)
{
    return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}

/* For a number in range; the compiler uses vectors. */
static inline uint32_t
to_uint32(double x)
{
    return x >= 2147483648.0 ? (uint32_t)to_int32(x - 2147483648.0) ^ 1u << 31 : (uint32_t)to_int32(x);
}

static bool
are_uint32(const uint8_t *src, size_t n)
{
    unsigned bad = 0;

    for (size_t i = 0; i < n; i++) {
        double item;

        memcpy(&item, src + i * sizeof item, sizeof item);
        bad |= item > -1.0 && item < 4294967296.0 ? 0 : 1;
    }
    return !bad;
}

static inline uint64_t
to_uint64(double x)
{
    return x >= 0x1p63 ? (uint64_t)to_int64(x - 0x1p63) ^ (uint64_t)1 << 63 : (uint64_t)to_int64(x);
}

/* ---- one loop for each pair of types that has one; the others pass through doubles, which hold them exactly */

typedef void convert_items(const uint8_t *restrict src, size_t n, uint8_t *restrict dst);

/* A function that converts n items by `convert`; nothing for it: by the rules of C. */
#define DEFINE_CONVERT(name, From, To, convert)                                    \
    static void name(const uint8_t *restrict src, size_t n, uint8_t *restrict dst) \
    {                                                                              \
        for (size_t i = 0; i < n; i++) {                                           \
            From item;                                                             \
            To result;                                                             \
                                                                                   \
            memcpy(&item, src + i * sizeof item, sizeof item);                     \
            result = (To)convert(item);                                            \
            memcpy(dst + i * sizeof result, &result, sizeof result);               \
        }                                                                          \
    }

/* Integers become floats and integers of every size. */
#define DEFINE_FROM_INTEGER(ID, Item)                   \
    DEFINE_CONVERT(Item##_to_float, Item, float, )      \
    DEFINE_CONVERT(Item##_to_double, Item, double, )    \
    DEFINE_CONVERT(Item##_to_8_bits, Item, uint8_t, )   \
    DEFINE_CONVERT(Item##_to_16_bits, Item, uint16_t, ) \
    DEFINE_CONVERT(Item##_to_32_bits, Item, uint32_t, ) \
    DEFINE_CONVERT(Item##_to_64_bits, Item, uint64_t, )

SC_INTEGERS(DEFINE_FROM_INTEGER)

DEFINE_CONVERT(double_to_8_bits, double, uint8_t, to_int32)
DEFINE_CONVERT(double_to_16_bits, double, uint16_t, to_int32)
DEFINE_CONVERT(double_to_int32, double, int32_t, to_int32)
DEFINE_CONVERT(double_to_uint32, double, uint32_t, to_uint32)
DEFINE_CONVERT(double_to_uint32_modulo, double, uint32_t, to_int64)
DEFINE_CONVERT(double_to_int64, double, int64_t, to_int64)
DEFINE_CONVERT(double_to_uint64, double, uint64_t, to_uint64)
DEFINE_CONVERT(double_to_half, double, uint16_t, sc_half_of_double)
DEFINE_CONVERT(double_to_float, double, float, )
DEFINE_CONVERT(float_to_double, float, double, )
DEFINE_CONVERT(float_to_int32, float, int32_t, single_to_int32)
DEFINE_CONVERT(float_to_16_bits, float, uint16_t, single_to_int32)
DEFINE_CONVERT(float_to_8_bits, float, uint8_t, single_to_int32)
DEFINE_CONVERT(half_to_float, uint16_t, float, sc_float_of_half)
DEFINE_CONVERT(half_to_double, uint16_t, double, sc_float_of_half)

/* By the item type of the integer; then float32, float64, and integers of 1, 2, 4 and 8 bytes. */
static convert_items *const from_integer[][6] = {
#define FROM_INTEGER(ID, Item)                                       \
    [ID] = { Item##_to_float,   Item##_to_double,  Item##_to_8_bits, \
             Item##_to_16_bits, Item##_to_32_bits, Item##_to_64_bits },
    SC_INTEGERS(FROM_INTEGER)
#undef FROM_INTEGER
};

static void
from_integers(int from, int to, const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    const size_t column = sc_item_is_float(to) ? to == SC_FLOAT64 : 2 + (size_t)__builtin_ctzll(sc_item_nbytes(to));

    from_integer[from][column](src, n, dst);
}

static void
from_doubles(int to, const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    static convert_items *const convert[] = {
        [SC_INT8] = double_to_8_bits,    [SC_UINT8] = double_to_8_bits,  [SC_INT16] = double_to_16_bits,
        [SC_UINT16] = double_to_16_bits, [SC_INT32] = double_to_int32,   [SC_UINT32] = double_to_uint32,
        [SC_INT64] = double_to_int64,    [SC_UINT64] = double_to_uint64, [SC_FLOAT16] = double_to_half,
        [SC_FLOAT32] = double_to_float,
    };

    if (to == SC_UINT32 && !are_uint32(src, n))
        double_to_uint32_modulo(src, n, dst);
    else
        convert[to](src, n, dst);
}

/* False: the type has no loop of floats. */
static bool
from_floats(int to, const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    if (to == SC_FLOAT64)
        float_to_double(src, n, dst);
    else if (to == SC_INT32)
        float_to_int32(src, n, dst);
    else if (sc_item_is_integer(to) && sc_item_nbytes(to) == 2)
        float_to_16_bits(src, n, dst);
    else if (sc_item_is_integer(to) && sc_item_nbytes(to) == 1)
        float_to_8_bits(src, n, dst);
    else
        return false;
    return true;
}

/* Return false if this pair of types has no loop. */
static bool
convert_directly(int from, int to, const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    if (sc_item_is_integer(from) && to != SC_FLOAT16)
        from_integers(from, to, src, n, dst);
    else if (from == SC_FLOAT64)
        from_doubles(to, src, n, dst);
    else if (from == SC_FLOAT32)
        return from_floats(to, src, n, dst);
    else if (from == SC_FLOAT16 && to == SC_FLOAT32)
        half_to_float(src, n, dst);
    else if (from == SC_FLOAT16 && to == SC_FLOAT64)
        half_to_double(src, n, dst);
    else
        return false;
    return true;
}

void
sc_items_convert(int from, int to, const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    const size_t from_nbytes = sc_item_nbytes(from), to_nbytes = sc_item_nbytes(to);

    if (from == to) {
        if (n)
            memcpy(dst, src, n * from_nbytes);
        return;
    }
    if (convert_directly(from, to, src, n, dst))
        return;
    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);
        double work[SC_BLOCK_ITEMS];

        (void)convert_directly(from, SC_FLOAT64, src + begin * from_nbytes, count, (uint8_t *)work);
        from_doubles(to, (const uint8_t *)work, count, dst + begin * to_nbytes);
    }
}
