/* codec_filters.c - the filters of numcodecs that change numbers: "delta", "fixedscaleoffset", "quantize", "astype" and
 * "bitround"
 * (see sc_filter.h)
 *
 * Results equal numcodecs' bit by bit.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"
#include "codecs/sc_filter.h"
#include "codecs/sc_reals.h"

/* The Python layer gives no other types to a filter. */
static bool
takes_types(const struct sc_op *op)
{
    const bool are_integers = sc_item_is_integer(op->item) && sc_item_is_integer(op->encoded_item);
    const bool are_floats = sc_item_is_float(op->item) && sc_item_is_float(op->encoded_item);

    if (!sc_item_nbytes(op->item) || !sc_item_nbytes(op->encoded_item))
        return false;
    if (op->codec == SC_CODEC_DELTA)
        return are_integers || (are_floats && op->item == op->encoded_item);
    if (op->codec == SC_CODEC_QUANTIZE)
        return are_floats;
    if (op->codec == SC_CODEC_BITROUND)
        return op->item == op->encoded_item && !sc_item_is_integer(op->item);
    return true;
}

/* ---- astype */

static bool
cast(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    sc_items_convert(op->item, op->encoded_item, src, n, dst);
    return true;
}

static bool
uncast(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    sc_items_convert(op->encoded_item, op->item, src, n, dst);
    return true;
}

static const struct sc_filter sc_filter_astype = {
    .takes = takes_types,
    .encode = cast,
    .decode = uncast,
    .at_once = true,
};

SC_FILTER_ROW(astype, true);

/* ---- fixedscaleoffset: encoded = round((x - offset) * scale), decoded = encoded / scale + offset
 *
 * numpy computes floats in their own type. An integer minus an integer stays one, modulo its size; an integer times or
 * minus a float is a double, and a quotient is one. */

static bool
scale_singles(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    float work[SC_BLOCK_ITEMS];

    scale_floats(src, n, (float)op->offset, (float)op->scale, (uint8_t *)work);
    round_floats(SC_NEAREST_EVEN, work, n);
    sc_items_convert(SC_FLOAT32, op->encoded_item, (const uint8_t *)work, n, dst);
    return true;
}

/* Integers of which an integer is subtracted: modulo the size of their type, so the result passes through memory. */
static void
subtract_integers(const struct sc_op *op, const uint8_t *src, size_t count, uint8_t *integers)
{
    const uint64_t offset = (uint64_t)(int64_t)op->offset;
    const uint64_t scale = op->scale_is_integer ? (uint64_t)(int64_t)op->scale : 1;
    uint64_t words[SC_BLOCK_ITEMS];

    sc_items_to_words(op->item, src, count, words);
    for (size_t i = 0; i < count; i++)
        words[i] = (words[i] - offset) * scale;
    sc_items_from_words(op->item, words, count, integers);
}

static bool
scale_block(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const bool subtracts_integers = sc_item_is_integer(op->item) && op->offset_is_integer;
    uint8_t integers[8 * SC_BLOCK_ITEMS];
    double numbers[SC_BLOCK_ITEMS], work[SC_BLOCK_ITEMS];

    if (subtracts_integers) {
        subtract_integers(op, src, n, integers);
        src = integers;
        if (op->scale_is_integer) {
            sc_items_convert(op->item, op->encoded_item, integers, n, dst);
            return true;
        }
    }
    if (op->item == SC_FLOAT16) {
        scale_halves(src, n, op->offset, op->scale, work);
    } else {
        sc_items_to_doubles(op->item, src, n, numbers);
        scale_doubles((const uint8_t *)numbers, n, subtracts_integers ? 0 : op->offset, op->scale, (uint8_t *)work);
    }
    round_doubles(SC_NEAREST_EVEN, work, n);
    sc_items_from_doubles(op->encoded_item, work, n, dst);
    return true;
}

static bool
scale(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    return op->item == SC_FLOAT32 ? scale_singles(op, src, n, dst) : scale_block(op, src, n, dst);
}

static bool
unscale_block(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    double numbers[SC_BLOCK_ITEMS], work[SC_BLOCK_ITEMS];

    if (op->encoded_item == SC_FLOAT16) {
        unscale_halves(src, n, op->offset, op->scale, work);
    } else {
        sc_items_to_doubles(op->encoded_item, src, n, numbers);
        unscale_doubles((const uint8_t *)numbers, n, op->offset, op->scale, (uint8_t *)work);
    }
    sc_items_from_doubles(op->item, work, n, dst);
    return true;
}

static bool
unscale_singles(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    float work[SC_BLOCK_ITEMS];

    unscale_floats(src, n, (float)op->offset, (float)op->scale, (uint8_t *)work);
    sc_items_convert(SC_FLOAT32, op->item, (const uint8_t *)work, n, dst);
    return true;
}

static bool
unscale(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    return op->encoded_item == SC_FLOAT32 ? unscale_singles(op, src, n, dst) : unscale_block(op, src, n, dst);
}

static const struct sc_filter sc_filter_fixedscaleoffset = {
    .takes = takes_types,
    .encode = scale,
    .decode = unscale,
};

SC_FILTER_ROW(fixedscaleoffset, true);

/* ---- quantize: encoded = round(scale * x) / scale, in the type of the elements */

static bool
quantize_doubles(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const bool is_half = op->item == SC_FLOAT16;
    const double scale = is_half ? sc_nearest_half(op->scale) : op->scale;
    double work[SC_BLOCK_ITEMS];

    sc_items_to_doubles(op->item, src, n, work);
    for (size_t i = 0; i < n; i++)
        work[i] *= scale;
    if (is_half)
        round_to_halves(work, n);
    for (size_t i = 0; i < n; i++)
        work[i] = sc_round(work[i]) / scale;
    if (is_half)
        round_to_halves(work, n);
    sc_items_from_doubles(op->encoded_item, work, n, dst);
    return true;
}

static bool
quantize_floats(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const float scale = (float)op->scale;
    float work[SC_BLOCK_ITEMS];

    memcpy(work, src, n * sizeof *work);
    for (size_t i = 0; i < n; i++)
        work[i] = sc_roundf(scale * work[i]) / scale;
    sc_items_convert(SC_FLOAT32, op->encoded_item, (const uint8_t *)work, n, dst);
    return true;
}

static bool
quantize(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    return op->item == SC_FLOAT32 ? quantize_floats(op, src, n, dst) : quantize_doubles(op, src, n, dst);
}

static const struct sc_filter sc_filter_quantize = {
    .takes = takes_types,
    .encode = quantize,
    .decode = uncast,
};

SC_FILTER_ROW(quantize, true);

/* ---- bitround: round the mantissa to `level` bits, in the bits of the float. Decoding changes nothing. */

#define DEFINE_ROUND(Bits)                                                                       \
    static void round_##Bits(const uint8_t *src, size_t n, const unsigned dropped, uint8_t *dst) \
    {                                                                                            \
        const Bits half = (Bits)(((Bits)1 << (dropped - 1)) - 1);                                \
        const Bits mask = (Bits)(UINT64_MAX << dropped);                                         \
                                                                                                 \
        for (size_t i = 0; i < n; i++) {                                                         \
            Bits item;                                                                           \
                                                                                                 \
            memcpy(&item, src + i * sizeof item, sizeof item);                                   \
            item = (Bits)((Bits)(item + (item >> dropped & 1) + half) & mask);                   \
            memcpy(dst + i * sizeof item, &item, sizeof item);                                   \
        }                                                                                        \
    }

DEFINE_ROUND(uint16_t)
DEFINE_ROUND(uint32_t)
DEFINE_ROUND(uint64_t)

static bool
copy_items(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    if (n)
        memcpy(dst, src, n * sc_item_nbytes(op->item));
    return true;
}

static bool
round_bits(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const int mantissa = op->item == SC_FLOAT16 ? 10 : op->item == SC_FLOAT32 ? 23 : 52;
    const unsigned dropped = (unsigned)mantissa - (unsigned)op->level;

    if (op->level < 0 || op->level >= mantissa)
        return copy_items(op, src, n, dst);
    if (op->item == SC_FLOAT16)
        round_uint16_t(src, n, dropped, dst);
    else if (op->item == SC_FLOAT32)
        round_uint32_t(src, n, dropped, dst);
    else
        round_uint64_t(src, n, dropped, dst);
    return true;
}

static const struct sc_filter sc_filter_bitround = {
    .takes = takes_types,
    .encode = round_bits,
    .decode = copy_items,
    .at_once = true,
};

SC_FILTER_ROW(bitround, true);

/* ---- delta: the first element, then the differences of neighbours, modulo the size of the elements */

/* float16: the exact difference or sum of two is rounded once. */
static void
difference_halves(const uint8_t *src, size_t n, uint8_t *dst)
{
    uint16_t last = 0, item, result;

    for (size_t i = 0; i < n; i++) {
        memcpy(&item, src + i * sizeof item, sizeof item);
        result = i ? sc_half_of_double((double)sc_float_of_half(item) - (double)sc_float_of_half(last)) : item;
        memcpy(dst + i * sizeof result, &result, sizeof result);
        last = item;
    }
}

static void
sum_halves(const uint8_t *src, size_t n, uint8_t *dst)
{
    uint16_t sum = 0, item;

    for (size_t i = 0; i < n; i++) {
        memcpy(&item, src + i * sizeof item, sizeof item);
        sum = i ? sc_half_of_double((double)sc_float_of_half(sum) + (double)sc_float_of_half(item)) : item;
        memcpy(dst + i * sizeof sum, &sum, sizeof sum);
    }
}

static void
difference_reals(int type, const uint8_t *src, size_t n, uint8_t *dst)
{
    if (type == SC_FLOAT16)
        difference_halves(src, n, dst);
    else if (type == SC_FLOAT32)
        difference_floats(src, n, dst);
    else
        difference_doubles(src, n, dst);
}

static void
sum_reals(int type, const uint8_t *src, size_t n, uint8_t *dst)
{
    if (type == SC_FLOAT16)
        sum_halves(src, n, dst);
    else if (type == SC_FLOAT32)
        sum_floats(src, n, dst);
    else
        sum_doubles(src, n, dst);
}

/* Integers that stay in their type, modulo its size. */
#define DEFINE_DELTA(Bits)                                                                      \
    static void difference_##Bits(const uint8_t *restrict src, size_t n, uint8_t *restrict dst) \
    {                                                                                           \
        memcpy(dst, src, n ? sizeof(Bits) : 0);                                                 \
        for (size_t i = 1; i < n; i++) {                                                        \
            Bits item, last;                                                                    \
                                                                                                \
            memcpy(&item, src + i * sizeof item, sizeof item);                                  \
            memcpy(&last, src + (i - 1) * sizeof last, sizeof last);                            \
            item = (Bits)(item - last);                                                         \
            memcpy(dst + i * sizeof item, &item, sizeof item);                                  \
        }                                                                                       \
    }                                                                                           \
                                                                                                \
    static void sum_##Bits(const uint8_t *restrict src, size_t n, uint8_t *restrict dst)        \
    {                                                                                           \
        Bits total = 0, item;                                                                   \
                                                                                                \
        for (size_t i = 0; i < n; i++) {                                                        \
            memcpy(&item, src + i * sizeof item, sizeof item);                                  \
            total = (Bits)(total + item);                                                       \
            memcpy(dst + i * sizeof total, &total, sizeof total);                               \
        }                                                                                       \
    }

DEFINE_DELTA(uint8_t)
DEFINE_DELTA(uint16_t)
DEFINE_DELTA(uint32_t)
DEFINE_DELTA(uint64_t)

typedef void move_in_type(const uint8_t *restrict src, size_t n, uint8_t *restrict dst);

/* By the number of bits of the size of an element. */
static move_in_type *const differences_in_type[] = { difference_uint8_t, difference_uint16_t, difference_uint32_t,
                                                     difference_uint64_t };
static move_in_type *const sums_in_type[] = { sum_uint8_t, sum_uint16_t, sum_uint32_t, sum_uint64_t };

/* False: the first element is an integer outside of the encoded type. numpy refuses most of these and loses the others, but
 * negative numbers come back from an unsigned type of at least their size. (Differences wrap, and decoding wraps back if the
 * sums fit.) */
static bool
first_fits(const struct sc_op *op, const uint8_t *src)
{
    const bool was_signed = sc_item_is_signed(op->item), is_signed = sc_item_is_signed(op->encoded_item);
    uint64_t word, stored;
    uint8_t encoded[8];

    if (sc_item_is_float(op->item))
        return true;
    if (was_signed && !is_signed && sc_item_nbytes(op->encoded_item) >= sc_item_nbytes(op->item))
        return true;
    sc_items_to_words(op->item, src, 1, &word);
    sc_items_from_words(op->encoded_item, &word, 1, encoded);
    sc_items_to_words(op->encoded_item, encoded, 1, &stored);
    return word == stored && (was_signed == is_signed || (int64_t)word >= 0);
}

static bool
difference(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t from = sc_item_nbytes(op->item), to = sc_item_nbytes(op->encoded_item);
    uint64_t last = 0;

    if (n && !first_fits(op, src))
        return false;
    if (sc_item_is_float(op->item)) {
        difference_reals(op->item, src, n, dst);
        return true;
    }
    if (from == to) {
        differences_in_type[__builtin_ctzll(from)](src, n, dst);
        return true;
    }
    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);
        uint64_t words[SC_BLOCK_ITEMS + 1], differences[SC_BLOCK_ITEMS];
        uint8_t integers[8 * SC_BLOCK_ITEMS];

        words[0] = last;
        sc_items_to_words(op->item, src + begin * from, count, words + 1);
        for (size_t i = 0; i < count; i++)
            differences[i] = words[i + 1] - words[i];
        last = words[count];
        /* a difference has the type of the elements before it becomes one of another type */
        sc_items_from_words(op->item, differences, count, integers);
        sc_items_convert(op->item, op->encoded_item, integers, count, dst + begin * to);
    }
    return true;
}

static bool
sum(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t from = sc_item_nbytes(op->encoded_item), to = sc_item_nbytes(op->item);
    uint64_t total = 0;

    if (sc_item_is_float(op->item)) {
        sum_reals(op->item, src, n, dst);
        return true;
    }
    if (from == to) {
        sums_in_type[__builtin_ctzll(from)](src, n, dst);
        return true;
    }
    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);
        uint64_t words[SC_BLOCK_ITEMS];

        sc_items_to_words(op->encoded_item, src + begin * from, count, words);
        for (size_t i = 0; i < count; i++)
            words[i] = total += words[i];
        sc_items_from_words(op->item, words, count, dst + begin * to);
    }
    return true;
}

static const struct sc_filter sc_filter_delta = {
    .takes = takes_types,
    .encode = difference,
    .decode = sum,
    .not_encoded = "does not fit",
    .at_once = true,
};

SC_FILTER_ROW(delta, false);
