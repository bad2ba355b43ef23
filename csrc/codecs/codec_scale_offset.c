/* codec_scale_offset.c - the codec "scale_offset" (see sc_filter.h)
 *
 * encoded = (x - offset) * scale, decoded = encoded / scale + offset, in the data type of the elements. For integers, a
 * result that the type cannot hold is an error at each step, and so is a division with a remainder. Floats become infinite.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"
#include "codecs/sc_filter.h"
#include "codecs/sc_reals.h"

/* ---- floats */

static bool
scale_reals(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    double work[SC_BLOCK_ITEMS];

    if (op->item == SC_FLOAT32) {
        scale_floats(src, n, (float)op->offset, (float)op->scale, dst);
    } else if (op->item == SC_FLOAT64) {
        scale_doubles(src, n, op->offset, op->scale, dst);
    } else {
        scale_halves(src, n, op->offset, op->scale, work);
        sc_items_from_doubles(SC_FLOAT16, work, n, dst);
    }
    return true;
}

static bool
unscale_reals(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    double work[SC_BLOCK_ITEMS];

    if (op->item == SC_FLOAT32) {
        unscale_floats(src, n, (float)op->offset, (float)op->scale, dst);
    } else if (op->item == SC_FLOAT64) {
        unscale_doubles(src, n, op->offset, op->scale, dst);
    } else {
        unscale_halves(src, n, op->offset, op->scale, work);
        sc_items_from_doubles(SC_FLOAT16, work, n, dst);
    }
    return true;
}

/* ---- integers of up to 32 bits, as doubles. A product that is not exact is far out of range. */

static bool
scale_integers(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const double least = (double)sc_item_least(op->item), most = (double)sc_item_most(op->item);
    double work[SC_BLOCK_ITEMS];
    int64_t bad = 0;

    sc_items_to_doubles(op->item, src, n, work);
    for (size_t i = 0; i < n; i++) {
        const double difference = work[i] - op->offset, product = difference * op->scale;

        bad |= difference >= least && difference <= most ? 0 : 1;
        bad |= product >= least && product <= most ? 0 : 1;
        work[i] = product;
    }
    if (!bad)
        sc_items_from_doubles(op->item, work, n, dst);
    return !bad;
}

static bool
unscale_integers(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const double least = (double)sc_item_least(op->item), most = (double)sc_item_most(op->item);
    double work[SC_BLOCK_ITEMS];
    int64_t bad = 0;

    sc_items_to_doubles(op->item, src, n, work);
    for (size_t i = 0; i < n; i++) {
        const double quotient = sc_round(work[i] / op->scale), sum = quotient + op->offset;

        bad |= quotient * op->scale == work[i] && quotient <= most ? 0 : 1;
        bad |= sum >= least && sum <= most ? 0 : 1;
        work[i] = sum;
    }
    if (!bad)
        sc_items_from_doubles(op->item, work, n, dst);
    return !bad;
}

/* ---- integers of 64 bits */

/* The one quotient of int64 that is none becomes 0, which the product shows. */
static inline int64_t
divide_int64_t(int64_t a, int64_t b)
{
    return b == 1 ? a : b == -1 && a == INT64_MIN ? 0 : a / b;
}

static inline uint64_t
divide_uint64_t(uint64_t a, uint64_t b)
{
    return b == 1 ? a : a / b;
}

/* scale_<Word>() and unscale_<Word>() are false if an item has no result. */
#define DEFINE_SCALE(Word)                                                                          \
    static bool scale_##Word(const uint8_t *src, size_t n, Word offset, Word scale, uint8_t *dst)   \
    {                                                                                               \
        bool bad = false;                                                                           \
                                                                                                    \
        for (size_t i = 0; i < n; i++) {                                                            \
            Word item;                                                                              \
                                                                                                    \
            memcpy(&item, src + i * sizeof item, sizeof item);                                      \
            bad |= __builtin_sub_overflow(item, offset, &item);                                     \
            bad |= __builtin_mul_overflow(item, scale, &item);                                      \
            memcpy(dst + i * sizeof item, &item, sizeof item);                                      \
        }                                                                                           \
        return !bad;                                                                                \
    }                                                                                               \
                                                                                                    \
    static bool unscale_##Word(const uint8_t *src, size_t n, Word offset, Word scale, uint8_t *dst) \
    {                                                                                               \
        bool bad = false;                                                                           \
                                                                                                    \
        for (size_t i = 0; i < n; i++) {                                                            \
            Word item, quotient, product;                                                           \
                                                                                                    \
            memcpy(&item, src + i * sizeof item, sizeof item);                                      \
            quotient = divide_##Word(item, scale);                                                  \
            bad |= __builtin_mul_overflow(quotient, scale, &product) || product != item;            \
            bad |= __builtin_add_overflow(quotient, offset, &item);                                 \
            memcpy(dst + i * sizeof item, &item, sizeof item);                                      \
        }                                                                                           \
        return !bad;                                                                                \
    }

DEFINE_SCALE(int64_t)
DEFINE_SCALE(uint64_t)

static bool
scale_words(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    return op->item == SC_INT64 ? scale_int64_t(src, n, (int64_t)op->offset_word, (int64_t)op->scale_word, dst)
                                : scale_uint64_t(src, n, op->offset_word, op->scale_word, dst);
}

static bool
unscale_words(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    return op->item == SC_INT64 ? unscale_int64_t(src, n, (int64_t)op->offset_word, (int64_t)op->scale_word, dst)
                                : unscale_uint64_t(src, n, op->offset_word, op->scale_word, dst);
}

/* ---- all blocks */

/* The Python layer gives no other op: an integer scale is not 0. */
static bool
is_valid(const struct sc_op *op)
{
    return sc_item_nbytes(op->item) && op->item == op->encoded_item &&
           (sc_item_is_float(op->item) || (op->scale_word && op->scale != 0));
}

static bool
scale(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    if (sc_item_is_float(op->item))
        return scale_reals(op, src, n, dst);
    return sc_item_nbytes(op->item) == 8 ? scale_words(op, src, n, dst) : scale_integers(op, src, n, dst);
}

static bool
unscale(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    if (sc_item_is_float(op->item))
        return unscale_reals(op, src, n, dst);
    return sc_item_nbytes(op->item) == 8 ? unscale_words(op, src, n, dst) : unscale_integers(op, src, n, dst);
}

static const struct sc_filter sc_filter_scale_offset = {
    .takes = is_valid,
    .encode = scale,
    .decode = unscale,
    .not_encoded = "minus offset, times scale, does not fit",
    .not_decoded = "cannot be divided by scale without remainder, or its sum with offset does not fit",
};

SC_FILTER_ROW(scale_offset, true);
