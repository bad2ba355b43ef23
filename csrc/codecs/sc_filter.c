/* sc_filter.c - the frame of the codecs that change numbers (see sc_filter.h)
 * SPDX-License-Identifier: MIT */
#include "codecs/sc_filter.h"

/* One direction of a filter. */
struct direction {
    sc_change_items *change;
    enum sc_status failure;
    const char *not_changed;
    int from, to;
};

size_t
sc_filter_bound(const struct sc_op *op, size_t nbytes)
{
    size_t from = sc_item_nbytes(op->item), to = sc_item_nbytes(op->encoded_item);

    if (!sc_codec_get(op->codec)->filter->takes(op) || nbytes % from || nbytes / from > PTRDIFF_MAX / to)
        return 0;
    return nbytes / from * to;
}

/* Name the first of n elements that has no result; the others of its block have one. */
static enum sc_status
refuse(const struct sc_op *op, const struct direction *way, const uint8_t *src, size_t begin, size_t n, size_t nbytes,
       struct sc_where *where)
{
    const size_t from = sc_item_nbytes(way->from);
    uint8_t result[8];
    size_t i = begin;

    while (i + 1 < begin + n && way->change(op, src + i * from, 1, result))
        i++;
    return sc_item_failed(way->failure, where, sc_codec_get(op->codec)->name, way->not_changed, src + i * from, i,
                          way->from, way->to, nbytes);
}

static enum sc_status
run(const struct sc_op *op, struct direction way, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
    size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const struct sc_codec *codec = sc_codec_get(op->codec);
    size_t from, to, n, step;

    if (!codec->filter->takes(op))
        return SC_BAD_ARGUMENT;
    from = sc_item_nbytes(way.from);
    to = sc_item_nbytes(way.to);
    n = src_nbytes / from;
    if (src_nbytes % from)
        return sc_codec_failed(way.failure, where, codec->name, "no whole number of elements", (int64_t)from,
                               src_nbytes);
    if (n > dst_capacity / to)
        return SC_DST_TOO_SMALL;
    step = codec->filter->at_once ? n : SC_BLOCK_ITEMS;
    for (size_t begin = 0; begin < n; begin += step) {
        const size_t count = (size_t)min_u64(n - begin, step);

        if (!way.change(op, src + begin * from, count, dst + begin * to))
            return refuse(op, &way, src, begin, count, src_nbytes, where);
    }
    *dst_nbytes = n * to;
    return SC_OK;
}

enum sc_status
sc_filter_encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes,
                 uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const struct sc_filter *filter = sc_codec_get(op->codec)->filter;
    struct direction way = { filter->encode, SC_CODEC_ENCODE, filter->not_encoded, op->item, op->encoded_item };

    (void)state;
    return run(op, way, src, src_nbytes, dst, dst_capacity, dst_nbytes, where);
}

enum sc_status
sc_filter_decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes,
                 uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const struct sc_filter *filter = sc_codec_get(op->codec)->filter;
    struct direction way = { filter->decode, SC_CODEC_DATA, filter->not_decoded, op->encoded_item, op->item };

    (void)state;
    return run(op, way, src, src_nbytes, dst, dst_capacity, dst_nbytes, where);
}
