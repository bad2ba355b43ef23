/* sc_chain_encode.c - elements to one encoded chunk, nested shards included (see sc_chain.h)
 *
 * A gather brings the elements into stored layout, if they do not have it. If all elements are the fill value, encoding
 * ends there. Each codec but checksums writes to a stage buffer, the last one to the destination. A checksum is added in
 * place, or computed during a copy if one is needed anyway.
 *
 * SPDX-License-Identifier: MIT */
#include "chain/sc_chain_impl.h"

/* Add a checksum to n bytes in memory that has room for it. */
static void
add_checksum(const struct sc_op *op, uint8_t *bytes, size_t n)
{
    uint32_t sum = sc_codec_get(op->codec)->checksum(bytes, n);

    if (op->at_start)
        memmove(bytes + 4, bytes, n);
    store_le32(op->at_start ? bytes : bytes + n, sum);
}

enum sc_status
sc_chain_apply_ops(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level, const uint8_t *bytes,
                   size_t n, uint8_t *dst, size_t dst_capacity, uint64_t *n_out, struct sc_where *where)
{
    unsigned stage = 0;

    for (size_t i = 0; i < chain->n_ops; i++) {
        const bool is_blockwise = !i && chain->n_blockwise;
        const size_t last = is_blockwise ? chain->n_blockwise - 1 : i;
        const struct sc_op *op = &chain->ops[i];
        size_t bound = chain->bounds[last + 1];
        bool to_dst = true;
        enum sc_status status;
        uint8_t *out;

        for (size_t k = last + 1; k < chain->n_ops; k++)
            to_dst = to_dst && is_checksum(&chain->ops[k]);
        if (is_checksum(op) && bytes == dst) {
            add_checksum(op, dst, n);
            n += 4;
            continue;
        }
        if (!to_dst && (status = sc_buffer_reserve(&level->stage[stage], bound)))
            return status;
        out = to_dst ? dst : level->stage[stage].data;
        stage ^= !to_dst;
        if (is_blockwise) {
            if (to_dst && dst_capacity < bound)
                return SC_DST_TOO_SMALL;
            status = sc_chain_run_blockwise(chain, worker, true, bytes, n, out, where);
            n = bound;
            i = last;
        } else {
            status = sc_codec_get(op->codec)->encode(op, worker->codecs, bytes, n, out, to_dst ? dst_capacity : bound,
                                                     &n, where);
        }
        if (status)
            return status;
        bytes = out;
    }
    *n_out = n;
    return SC_OK;
}

static bool
is_fill(const struct sc_chain *chain, const uint8_t *elements)
{
    size_t n = (size_t)chain->n_items;

    if (chain->nan_fills)
        return sc_all_nan(elements, n, chain->itemsize, chain->nan_big_endian);
    return sc_all_equal(elements, n, chain->fill_stored, chain->itemsize);
}

static enum sc_status
encode_leaf(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level, const uint8_t *src,
            const int64_t *src_strides, const struct sc_write_rules *rules, uint8_t *dst, size_t dst_capacity,
            uint64_t *n, struct sc_where *where)
{
    static const int64_t ones[SC_MAX_NDIM] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    bool transforms = !adds_only_checksums(chain);
    const uint8_t *elements = src;
    enum sc_status status;

    if (!transforms || chain->swap.n_fields || !sc_chain_has_layout(chain, src_strides)) {
        uint8_t *room = dst;

        if (transforms) {
            status = sc_buffer_reserve(&level->chunk, (size_t)chain->nbytes);
            if (status)
                return status;
            room = level->chunk.data;
        }
        sc_copy_run(sc_chain_copy(&level->cache, chain, true, chain->shape, ones, src_strides), room, src);
        elements = room;
    }
    if (!rules->write_empty && is_fill(chain, elements)) {
        *n = SC_ABSENT;
        return SC_OK;
    }
    return sc_chain_apply_ops(chain, worker, level, elements, (size_t)chain->nbytes, dst, dst_capacity, n, where);
}

/* Write the inner chunks of a shard and its index to `out`. *n = SC_ABSENT if no inner chunk is present. */
static enum sc_status
encode_shard_bytes(const struct sc_chain *chain, struct sc_worker *worker, unsigned depth, const uint8_t *src,
                   const int64_t *src_strides, const struct sc_write_rules *rules, uint8_t *out, uint64_t *n,
                   struct sc_where *where)
{
    const struct sc_chain *inner = chain->inner;
    struct sc_level *level = &worker->levels[depth];
    uint64_t at = chain->index.at_start ? chain->index.nbytes : 0, n_present = 0;
    uint64_t zeros[SC_MAX_NDIM] = { 0 }, last[SC_MAX_NDIM] = { 0 }, positions[64];
    int64_t strides[SC_MAX_NDIM];
    struct sc_entry *entries;
    struct sc_order_iter order;
    enum sc_status status = sc_buffer_reserve(&level->entries, chain->index.pairs_nbytes);
    size_t got;

    if (status)
        return status;
    entries = (struct sc_entry *)(void *)level->entries.data;
    for (int a = 0; a < chain->ndim; a++) {
        last[a] = chain->grid[a] - 1;
        strides[a] = src_strides[chain->perm[a]];
    }
    status = sc_order_begin(&order, rules->order, chain->ndim, chain->grid, zeros, last);
    while (!status && (got = sc_order_next(&order, positions, SC_ARRAY_SIZE(positions)))) {
        for (size_t i = 0; i < got; i++) {
            uint64_t rest = positions[i], nbytes;
            int64_t offset = 0;

            for (int a = 0; a < chain->ndim; a++) {
                offset += (int64_t)(rest / chain->grid_strides[a] * inner->shape[a]) * strides[a];
                rest %= chain->grid_strides[a];
            }
            status = sc_chain_encode(inner, worker, depth + 1, src + offset, strides, rules, out + at,
                                     sc_chain_bound(inner), &nbytes, where);
            if (status)
                return status;
            if (nbytes == SC_ABSENT) {
                entries[positions[i]] = (struct sc_entry){ SC_ABSENT, SC_ABSENT };
                continue;
            }
            entries[positions[i]] = (struct sc_entry){ at, nbytes };
            at += nbytes;
            n_present++;
        }
    }
    if (status)
        return status;
    sc_index_store(chain, entries, chain->index.at_start ? out : out + at);
    *n = n_present || (rules->keep_empty && !depth) ? (chain->index.at_start ? at : at + chain->index.nbytes)
                                                    : SC_ABSENT;
    return SC_OK;
}

static enum sc_status
encode_shard(const struct sc_chain *chain, struct sc_worker *worker, unsigned depth, const uint8_t *src,
             const int64_t *src_strides, const struct sc_write_rules *rules, uint8_t *dst, size_t dst_capacity,
             uint64_t *n, struct sc_where *where)
{
    struct sc_level *level = &worker->levels[depth];
    uint8_t *out = dst;
    enum sc_status status;

    if (!sc_chain_bound(chain))
        return sc_chain_too_large(chain, where);
    if (!adds_only_checksums(chain)) {
        status = sc_buffer_reserve(&level->chunk, chain->bounds[0]);
        if (status)
            return status;
        out = level->chunk.data;
    }
    status = encode_shard_bytes(chain, worker, depth, src, src_strides, rules, out, n, where);
    if (status || *n == SC_ABSENT)
        return status;
    return sc_chain_apply_ops(chain, worker, level, out, (size_t)*n, dst, dst_capacity, n, where);
}

enum sc_status
sc_chain_encode(const struct sc_chain *chain, struct sc_worker *worker, unsigned level, const uint8_t *src,
                const int64_t *src_strides, const struct sc_write_rules *rules, uint8_t *dst, size_t dst_capacity,
                uint64_t *n, struct sc_where *where)
{
    struct sc_write_rules leaf_rules = *rules;

    if (chain->inner)
        return encode_shard(chain, worker, level, src, src_strides, rules, dst, dst_capacity, n, where);
    leaf_rules.write_empty = rules->write_empty || (rules->keep_empty && !level);
    rules = &leaf_rules;
    return encode_leaf(chain, worker, &worker->levels[level], src, src_strides, rules, dst, dst_capacity, n, where);
}
