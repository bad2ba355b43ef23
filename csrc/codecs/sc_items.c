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

#define LOOP(From, To, value)                                    \
    for (size_t i = 0; i < n; i++) {                             \
        From item;                                               \
        To result;                                               \
                                                                 \
        memcpy(&item, src + i * sizeof item, sizeof item);       \
        result = (To)(value);                                    \
        memcpy(dst + i * sizeof result, &result, sizeof result); \
    }

#define FROM_INTEGER(ID, Item)            \
    case ID:                              \
        if (to == SC_FLOAT32)             \
            LOOP(Item, float, item)       \
        else if (to == SC_FLOAT64)        \
            LOOP(Item, double, item)      \
        else if (sc_item_nbytes(to) == 1) \
            LOOP(Item, uint8_t, item)     \
        else if (sc_item_nbytes(to) == 2) \
            LOOP(Item, uint16_t, item)    \
        else if (sc_item_nbytes(to) == 4) \
            LOOP(Item, uint32_t, item)    \
        else                              \
            LOOP(Item, uint64_t, item)    \
        break;

static void
from_integers(int from, int to, const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    switch (from) {
        SC_INTEGERS(FROM_INTEGER)
    }
}

static void
from_doubles(int to, const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    switch (to) {
    case SC_INT8:
    case SC_UINT8:
        LOOP(double, uint8_t, to_int32(item))
        break;
    case SC_INT16:
    case SC_UINT16:
        LOOP(double, uint16_t, to_int32(item))
        break;
    case SC_INT32:
        LOOP(double, int32_t, to_int32(item))
        break;
    case SC_UINT32:
        if (are_uint32(src, n))
            LOOP(double, uint32_t, to_uint32(item))
        else
            LOOP(double, uint32_t, to_int64(item))
        break;
    case SC_INT64:
        LOOP(double, int64_t, to_int64(item))
        break;
    case SC_UINT64:
        LOOP(double, uint64_t, to_uint64(item))
        break;
    case SC_FLOAT16:
        LOOP(double, uint16_t, sc_half_of_double(item))
        break;
    case SC_FLOAT32:
        LOOP(double, float, item)
        break;
    }
}

/* False: the type has no loop of floats. */
static bool
from_floats(int to, const uint8_t *restrict src, size_t n, uint8_t *restrict dst)
{
    if (to == SC_FLOAT64)
        LOOP(float, double, item)
    else if (to == SC_INT32)
        LOOP(float, int32_t, single_to_int32(item))
    else if (sc_item_is_integer(to) && sc_item_nbytes(to) == 2)
        LOOP(float, uint16_t, single_to_int32(item))
    else if (sc_item_is_integer(to) && sc_item_nbytes(to) == 1)
        LOOP(float, uint8_t, single_to_int32(item))
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
        LOOP(uint16_t, float, sc_float_of_half(item))
    else if (from == SC_FLOAT16 && to == SC_FLOAT64)
        LOOP(uint16_t, double, sc_float_of_half(item))
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
