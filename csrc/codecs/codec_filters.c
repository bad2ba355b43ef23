/* codec_filters.c - the filters of numcodecs that change numbers: "delta", "fixedscaleoffset", "quantize", "astype",
 * "bitround", and "packbits"
 *
 * A filter takes the elements of a chunk in native byte order, in the order in which they are stored. It has no framing:
 * the encoded size follows from the decoded one, and is compared with it. Results equal numcodecs' bit by bit.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"
#include "codecs/sc_items.h"

typedef void convert_items(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst);

/* ---- sizes, for all filters but packbits */

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
    return op->item != SC_FLOAT16 && op->encoded_item != SC_FLOAT16;
}

static size_t
bound(const struct sc_op *op, size_t nbytes)
{
    size_t from = sc_item_nbytes(op->item), to = sc_item_nbytes(op->encoded_item);

    if (!takes_types(op) || nbytes % from || nbytes / from > PTRDIFF_MAX / to)
        return 0;
    return nbytes / from * to;
}

/* False: the first element is an integer outside of the encoded type. numpy refuses most of these and loses the others.
 * (Differences wrap, and decoding wraps back if the sums fit.) */
static bool
first_fits(const struct sc_op *op, const uint8_t *src)
{
    const bool was_signed = op->item <= SC_INT64, is_signed = op->encoded_item <= SC_INT64;
    uint64_t word, stored;
    uint8_t encoded[8];

    if (sc_item_is_float(op->item))
        return true;
    sc_items_to_words(op->item, src, 1, &word);
    sc_items_from_words(op->encoded_item, false, &word, 1, encoded);
    sc_items_to_words(op->encoded_item, encoded, 1, &stored);
    return word == stored && (was_signed == is_signed || (int64_t)word >= 0);
}

/* Convert all items of src, from items of `from` bytes to items of `to` bytes. */
static enum sc_status
run(const struct sc_op *op, convert_items *convert, enum sc_status status, size_t from, size_t to, const uint8_t *src,
    size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    size_t n;

    if (!takes_types(op))
        return SC_BAD_ARGUMENT;
    if (src_nbytes % from)
        return sc_codec_failed(status, where, sc_codec_get(op->codec)->name, "no whole number of elements",
                               (int64_t)from, src_nbytes);
    n = src_nbytes / from;
    if (n > dst_capacity / to)
        return SC_DST_TOO_SMALL;
    if (op->codec == SC_CODEC_DELTA && status == SC_CODEC_ENCODE && n && !first_fits(op, src))
        return sc_codec_failed(status, where, "delta", "the first element does not fit the encoded data type", 0,
                               src_nbytes);
    convert(op, src, n, dst);
    *dst_nbytes = n * to;
    return SC_OK;
}

#define DEFINE(name, encode_items, decode_items)                                                                       \
    static enum sc_status encode_##name(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src,      \
                                        size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes,      \
                                        struct sc_where *where)                                                        \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        return run(op, encode_items, SC_CODEC_ENCODE, sc_item_nbytes(op->item), sc_item_nbytes(op->encoded_item), src, \
                   src_nbytes, dst, dst_capacity, dst_nbytes, where);                                                  \
    }                                                                                                                  \
    static enum sc_status decode_##name(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src,      \
                                        size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes,      \
                                        struct sc_where *where)                                                        \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        return run(op, decode_items, SC_CODEC_DATA, sc_item_nbytes(op->encoded_item), sc_item_nbytes(op->item), src,   \
                   src_nbytes, dst, dst_capacity, dst_nbytes, where);                                                  \
    }                                                                                                                  \
    const struct sc_codec sc_codec_##name = {                                                                          \
        #name, SIZE_MAX, true, NULL, NULL, bound, encode_##name, decode_##name, NULL,                                  \
    }

/* ---- astype */

static void
cast(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    sc_items_convert(op->item, op->encoded_item, src, n, dst);
}

static void
uncast(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    sc_items_convert(op->encoded_item, op->item, src, n, dst);
}

DEFINE(astype, cast, uncast);

/* ---- fixedscaleoffset: encoded = round((x - offset) * scale), decoded = encoded / scale + offset
 *
 * numpy computes floats in their own type. An integer minus an integer stays one, modulo its size; an integer times or
 * minus a float is a double, and a quotient is one. */

static void
scale_floats(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const float offset = (float)op->offset, scale = (float)op->scale;

    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);
        float work[SC_BLOCK_ITEMS];

        memcpy(work, src + begin * sizeof *work, count * sizeof *work);
        for (size_t i = 0; i < count; i++)
            work[i] = sc_roundf((work[i] - offset) * scale);
        sc_items_convert(SC_FLOAT32, op->encoded_item, (const uint8_t *)work, count,
                         dst + begin * sc_item_nbytes(op->encoded_item));
    }
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
    sc_items_from_words(op->item, false, words, count, integers);
}

static void
scale(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const bool subtracts_integers = sc_item_is_integer(op->item) && op->offset_is_integer;
    const double offset = subtracts_integers ? 0 : op->offset;
    const size_t from = sc_item_nbytes(op->item), to = sc_item_nbytes(op->encoded_item);

    if (op->item == SC_FLOAT32) {
        scale_floats(op, src, n, dst);
        return;
    }
    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);
        const uint8_t *items = src + begin * from;
        uint8_t integers[8 * SC_BLOCK_ITEMS];
        double work[SC_BLOCK_ITEMS];

        if (subtracts_integers) {
            subtract_integers(op, items, count, integers);
            items = integers;
            if (op->scale_is_integer) {
                sc_items_convert(op->item, op->encoded_item, integers, count, dst + begin * to);
                continue;
            }
        }
        sc_items_to_doubles(op->item, items, count, work);
        for (size_t i = 0; i < count; i++)
            work[i] = sc_round((subtracts_integers ? work[i] : work[i] - offset) * op->scale);
        sc_items_from_doubles(op->encoded_item, work, count, dst + begin * to);
    }
}

static void
unscale_floats(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const float offset = (float)op->offset, scale = (float)op->scale;

    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);
        float work[SC_BLOCK_ITEMS];

        memcpy(work, src + begin * sizeof *work, count * sizeof *work);
        for (size_t i = 0; i < count; i++)
            work[i] = work[i] / scale + offset;
        sc_items_convert(SC_FLOAT32, op->item, (const uint8_t *)work, count, dst + begin * sc_item_nbytes(op->item));
    }
}

static void
unscale(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t from = sc_item_nbytes(op->encoded_item), to = sc_item_nbytes(op->item);

    if (op->encoded_item == SC_FLOAT32) {
        unscale_floats(op, src, n, dst);
        return;
    }
    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);
        double work[SC_BLOCK_ITEMS];

        sc_items_to_doubles(op->encoded_item, src + begin * from, count, work);
        for (size_t i = 0; i < count; i++)
            work[i] = work[i] / op->scale + op->offset;
        sc_items_from_doubles(op->item, work, count, dst + begin * to);
    }
}

DEFINE(fixedscaleoffset, scale, unscale);

/* ---- quantize: encoded = round(scale * x) / scale, in the type of the elements */

static void
quantize(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const float single = (float)op->scale;
    const size_t from = sc_item_nbytes(op->item), to = sc_item_nbytes(op->encoded_item);

    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);
        union {
            float floats[SC_BLOCK_ITEMS];
            double doubles[SC_BLOCK_ITEMS];
        } work;

        memcpy(&work, src + begin * from, count * from);
        if (op->item == SC_FLOAT32)
            for (size_t i = 0; i < count; i++)
                work.floats[i] = sc_roundf(single * work.floats[i]) / single;
        else
            for (size_t i = 0; i < count; i++)
                work.doubles[i] = sc_round(op->scale * work.doubles[i]) / op->scale;
        sc_items_convert(op->item, op->encoded_item, (const uint8_t *)&work, count, dst + begin * to);
    }
}

DEFINE(quantize, quantize, uncast);

/* ---- bitround: round the mantissa to `level` bits, in the bits of the float. Decoding changes nothing. */

#define ROUND_BITS(Bits, mantissa)                                             \
    {                                                                          \
        const unsigned dropped = (mantissa) - (unsigned)op->level;             \
        const Bits half = (Bits)(((Bits)1 << (dropped - 1)) - 1);              \
        const Bits mask = (Bits)(UINT64_MAX << dropped);                       \
                                                                               \
        for (size_t i = 0; i < n; i++) {                                       \
            Bits item;                                                         \
                                                                               \
            memcpy(&item, src + i * sizeof item, sizeof item);                 \
            item = (Bits)((Bits)(item + (item >> dropped & 1) + half) & mask); \
            memcpy(dst + i * sizeof item, &item, sizeof item);                 \
        }                                                                      \
    }

static void
copy_items(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    if (n)
        memcpy(dst, src, n * sc_item_nbytes(op->item));
}

static void
round_bits(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const int mantissa = op->item == SC_FLOAT16 ? 10 : op->item == SC_FLOAT32 ? 23 : 52;

    if (op->level < 0 || op->level >= mantissa)
        copy_items(op, src, n, dst);
    else if (op->item == SC_FLOAT16)
        ROUND_BITS(uint16_t, 10u)
    else if (op->item == SC_FLOAT32)
        ROUND_BITS(uint32_t, 23u)
    else
        ROUND_BITS(uint64_t, 52u)
}

DEFINE(bitround, round_bits, copy_items);

/* ---- delta: the first element, then the differences of neighbours, modulo the size of the elements */

static void
difference_floats(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    double last = 0, item;
    float last_single = 0, single;

    for (size_t i = 0; i < n; i++)
        if (op->item == SC_FLOAT32) {
            memcpy(&single, src + i * sizeof single, sizeof single);
            last_single = i ? single - last_single : single;
            memcpy(dst + i * sizeof single, &last_single, sizeof single);
            last_single = single;
        } else {
            memcpy(&item, src + i * sizeof item, sizeof item);
            last = i ? item - last : item;
            memcpy(dst + i * sizeof item, &last, sizeof item);
            last = item;
        }
}

static void
sum_floats(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    double sum = 0, item;
    float sum_single = 0, single;

    for (size_t i = 0; i < n; i++)
        if (op->item == SC_FLOAT32) {
            memcpy(&single, src + i * sizeof single, sizeof single);
            sum_single = i ? sum_single + single : single;
            memcpy(dst + i * sizeof single, &sum_single, sizeof single);
        } else {
            memcpy(&item, src + i * sizeof item, sizeof item);
            sum = i ? sum + item : item;
            memcpy(dst + i * sizeof item, &sum, sizeof item);
        }
}

static void
difference(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t from = sc_item_nbytes(op->item), to = sc_item_nbytes(op->encoded_item);
    uint64_t last = 0;

    if (sc_item_is_float(op->item)) {
        difference_floats(op, src, n, dst);
        return;
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
        sc_items_from_words(op->item, false, differences, count, integers);
        sc_items_convert(op->item, op->encoded_item, integers, count, dst + begin * to);
    }
}

static void
sum(const struct sc_op *op, const uint8_t *src, size_t n, uint8_t *dst)
{
    const size_t from = sc_item_nbytes(op->encoded_item), to = sc_item_nbytes(op->item);
    uint64_t total = 0;

    if (sc_item_is_float(op->item)) {
        sum_floats(op, src, n, dst);
        return;
    }
    for (size_t begin = 0; begin < n; begin += SC_BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n - begin, SC_BLOCK_ITEMS);
        uint64_t words[SC_BLOCK_ITEMS];

        sc_items_to_words(op->encoded_item, src + begin * from, count, words);
        for (size_t i = 0; i < count; i++)
            words[i] = total += words[i];
        sc_items_from_words(op->item, false, words, count, dst + begin * to);
    }
}

DEFINE(delta, difference, sum);

/* ---- packbits: the number of unused bits of the last byte, then 8 elements to a byte, the first one the highest bit */

static size_t
packed_bound(const struct sc_op *op, size_t nbytes)
{
    (void)op;
    return 1 + nbytes / 8 + (nbytes % 8 > 0);
}

static enum sc_status
pack(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
     size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const size_t n_packed = packed_bound(op, src_nbytes), n_whole = src_nbytes / 8;

    (void)state;
    (void)where;
    if (dst_capacity < n_packed)
        return SC_DST_TOO_SMALL;
    *dst++ = (uint8_t)((8 - src_nbytes % 8) % 8);
    for (size_t i = 0; i < n_whole; i++) {
        unsigned byte = 0;

        for (unsigned k = 0; k < 8; k++)
            byte |= (unsigned)(src[8 * i + k] != 0) << (7 - k);
        dst[i] = (uint8_t)byte;
    }
    if (src_nbytes % 8) {
        unsigned byte = 0;

        for (size_t k = 0; k < src_nbytes % 8; k++)
            byte |= (unsigned)(src[8 * n_whole + k] != 0) << (7 - k);
        dst[n_whole] = (uint8_t)byte;
    }
    *dst_nbytes = n_packed;
    return SC_OK;
}

static enum sc_status
unpack(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    size_t n;

    (void)op;
    (void)state;
    if (!src_nbytes)
        return sc_codec_failed(SC_CODEC_DATA, where, "packbits", "no number of unused bits", 0, src_nbytes);
    if (src_nbytes - 1 > SIZE_MAX / 8 || src[0] > 8 * (src_nbytes - 1))
        return sc_codec_failed(SC_CODEC_DATA, where, "packbits", "more unused bits than bits", src[0], src_nbytes);
    n = 8 * (src_nbytes - 1) - src[0];
    if (n > dst_capacity)
        return SC_DST_TOO_SMALL;
    for (size_t i = 0; i < n / 8; i++)
        for (unsigned k = 0; k < 8; k++)
            dst[8 * i + k] = src[1 + i] >> (7 - k) & 1;
    for (size_t i = n / 8 * 8; i < n; i++)
        dst[i] = src[1 + i / 8] >> (7 - i % 8) & 1;
    *dst_nbytes = n;
    return SC_OK;
}

const struct sc_codec sc_codec_packbits = {
    .name = "packbits",
    .max_nbytes = SIZE_MAX,
    .fixed_size = true,
    .bound = packed_bound,
    .encode = pack,
    .decode = unpack,
};
