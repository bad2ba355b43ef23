/* sc_chain.c - one encoded chunk to elements and back, nested shards included (see sc_chain.h)
 *
 * Decoding walks the codecs from the last to the first. crc32c is checked where the bytes lie and costs no copy; each
 * compressor writes into a stage buffer, the first one (the last to be undone) into the destination itself when the box is
 * the whole chunk and the memory there has the layout of the decoded chunk. What remains is one strided copy:
 *
 *     src --[crc32c: check, drop 4]--[zstd: stage]--...--[blosc: chunk buffer or dst]-- scatter --> dst
 *
 * SPDX-License-Identifier: MIT */
#include "sc_chain.h"

#include "sc_crc32c.h"
#include "sc_walk.h"
#include "sc_worker.h"

/* Encoded bytes come from another writer, whose encoder may be more wasteful than ours: this much more than our own bound
 * is believed before the stream is refused. */
#define SLACK_NBYTES ((size_t)1 << 20)
#define SLACK_FACTOR 4u

/* ---- preparation ---- */

static bool
prepare_shape(struct sc_chain *chain)
{
    uint64_t n = 1, nbytes;
    int64_t stride;
    bool seen[SC_MAX_NDIM] = { false };

    if (chain->ndim < 0 || chain->ndim > SC_MAX_NDIM || !chain->itemsize || chain->itemsize > SC_MAX_ITEMSIZE)
        return false;
    for (int a = 0; a < chain->ndim; a++) {
        int p = chain->perm[a];

        if (p < 0 || p >= chain->ndim || seen[p] || !chain->shape[a] || !mul_fits(n, chain->shape[a], &n))
            return false;
        seen[p] = true;
    }
    if (!mul_fits(n, chain->itemsize, &nbytes) || nbytes > PTRDIFF_MAX)
        return false;
    chain->n_items = n;
    chain->nbytes = nbytes;

    stride = (int64_t)chain->itemsize;
    for (int a = chain->ndim - 1; a >= 0; a--) {
        chain->stored_shape[a] = chain->shape[chain->perm[a]];
        chain->strides[chain->perm[a]] = stride;
        stride *= (int64_t)chain->stored_shape[a];
    }
    return true;
}

static bool
prepare_grid(struct sc_chain *chain)
{
    uint64_t n = 1, stride = 1;

    for (int a = chain->ndim - 1; a >= 0; a--) {
        uint64_t extent = chain->inner->shape[a];

        if (chain->stored_shape[a] % extent)
            return false;
        chain->grid[a] = chain->stored_shape[a] / extent;
        chain->grid_strides[a] = n;
        n *= chain->grid[a]; /* at most n_items */
    }
    chain->n_chunks = n;
    if (!mul_fits(n, sizeof(struct sc_entry), &chain->index.pairs_nbytes) ||
        !add_fits(chain->index.pairs_nbytes, 4ull * chain->index.n_checksums, &chain->index.nbytes) ||
        chain->index.nbytes > PTRDIFF_MAX)
        return false;
    if (chain->index.in_c_order) {
        chain->index.half_stride = 1;
        for (int a = chain->ndim - 1; a >= 0; a--, stride *= chain->grid[a + 1])
            chain->index.strides[a] = 2 * stride;
    }
    return true;
}

/* bounds[0] is 0 when a shard is too large to be held in memory whole; only nested shards need to be. */
static void
prepare_bounds(struct sc_chain *chain)
{
    uint64_t bound = chain->nbytes;

    if (chain->inner) {
        size_t inner = sc_chain_bound(chain->inner);

        if (!inner || !mul_fits(chain->n_chunks, inner, &bound) || !add_fits(bound, chain->index.nbytes, &bound) ||
            bound > PTRDIFF_MAX)
            bound = 0;
    }
    chain->bounds[0] = (size_t)bound;
    for (size_t i = 0; i < chain->n_ops; i++) {
        const struct sc_op *op = &chain->ops[i];
        size_t before = chain->bounds[i];

        if (!before || before > PTRDIFF_MAX / 2)
            chain->bounds[i + 1] = 0;
        else if (op->codec == SC_CODEC_CRC32C)
            chain->bounds[i + 1] = before + 4;
        else
            chain->bounds[i + 1] = sc_codec_get(op->codec)->bound(op, before);
    }
}

enum sc_status
sc_chain_prepare(struct sc_chain *chain)
{
    if (!prepare_shape(chain) || chain->n_ops > SC_MAX_OPS)
        return SC_BAD_ARGUMENT;
    for (size_t i = 0; i < chain->n_ops; i++)
        if (chain->ops[i].codec != SC_CODEC_CRC32C && !sc_codec_get(chain->ops[i].codec))
            return SC_BAD_ARGUMENT;
    chain->depth = 0;
    if (chain->inner) {
        if (chain->inner->ndim != chain->ndim || chain->inner->itemsize != chain->itemsize || !prepare_grid(chain))
            return SC_BAD_ARGUMENT;
        chain->depth = chain->inner->depth + 1;
        if (chain->depth >= SC_MAX_DEPTH)
            return SC_BAD_ARGUMENT;
    }
    prepare_bounds(chain);
    return SC_OK;
}

/* ---- the index of a shard ---- */

enum sc_status
sc_index_verify(const struct sc_index_layout *index, const uint8_t *stored, struct sc_where *where)
{
    uint64_t n = index->nbytes;

    for (unsigned i = 0; i < index->n_checksums; i++) {
        uint32_t actual, expected;

        n -= 4;
        expected = load_le32(stored + n);
        actual = sc_crc32c_extend(0, stored, n);
        if (expected != actual) {
            where->expected = expected;
            where->actual = actual;
            where->nbytes = n;
            where->in_index = true;
            return SC_INDEX_CHECKSUM;
        }
    }
    return SC_OK;
}

static uint64_t
load_word(const struct sc_index_layout *index, const uint8_t *pairs, uint64_t word)
{
    return index->big_endian ? load_be64(pairs + 8 * word) : load_le64(pairs + 8 * word);
}

struct sc_entry
sc_index_get(const struct sc_chain *shard, const uint8_t *pairs, uint64_t first_word, const uint64_t *c)
{
    const struct sc_index_layout *index = &shard->index;
    uint64_t word = 0 - first_word;

    for (int a = 0; a < shard->ndim; a++)
        word += c[a] * index->strides[a];
    return (struct sc_entry){ load_word(index, pairs, word), load_word(index, pairs, word + index->half_stride) };
}

/* Step C-order coordinates; false after the last. */
static bool
next_coordinates(uint64_t *c, const uint64_t *shape, int ndim)
{
    for (int a = ndim - 1; a >= 0; a--) {
        if (++c[a] < shape[a])
            return true;
        c[a] = 0;
    }
    return false;
}

void
sc_index_load(const struct sc_chain *shard, const uint8_t *pairs, struct sc_entry *entries)
{
    uint64_t c[SC_MAX_NDIM] = { 0 }, i = 0;

    if (shard->index.in_c_order) {
        sc_index_decode(pairs, entries, shard->n_chunks, shard->index.big_endian);
        return;
    }
    do
        entries[i++] = sc_index_get(shard, pairs, 0, c);
    while (next_coordinates(c, shard->grid, shard->ndim));
}

static void
store_word(const struct sc_index_layout *index, uint8_t *pairs, uint64_t word, uint64_t value)
{
    if (index->big_endian)
        store_be64(pairs + 8 * word, value);
    else
        store_le64(pairs + 8 * word, value);
}

void
sc_index_store(const struct sc_chain *shard, const struct sc_entry *entries, uint8_t *stored)
{
    const struct sc_index_layout *index = &shard->index;
    uint64_t c[SC_MAX_NDIM] = { 0 }, n = index->pairs_nbytes, i = 0;

    if (index->in_c_order) {
        sc_index_encode(entries, stored, shard->n_chunks, index->big_endian);
    } else {
        do {
            uint64_t word = 0;

            for (int a = 0; a < shard->ndim; a++)
                word += c[a] * index->strides[a];
            store_word(index, stored, word, entries[i].offset);
            store_word(index, stored, word + index->half_stride, entries[i].nbytes);
            i++;
        } while (next_coordinates(c, shard->grid, shard->ndim));
    }
    for (unsigned k = 0; k < index->n_checksums; k++, n += 4)
        store_le32(stored + n, sc_crc32c_extend(0, stored, n));
}

enum sc_status
sc_index_locate(const struct sc_index_layout *index, uint64_t shard_nbytes, struct sc_index_extent *extent,
                struct sc_where *where)
{
    if (shard_nbytes < index->nbytes) {
        where->nbytes = shard_nbytes;
        where->limit = index->nbytes;
        where->in_index = true;
        return SC_TOO_SHORT;
    }
    extent->nbytes = index->nbytes;
    extent->shard_nbytes = shard_nbytes;
    extent->offset = index->at_start ? 0 : shard_nbytes - index->nbytes;
    return SC_OK;
}

/* ---- copies between a chunk and the caller's array ---- */

static bool
cache_fits(const struct sc_copy_cache *cache, const struct sc_chain *chain, bool gather, const uint64_t *count,
           const int64_t *step, const int64_t *strides)
{
    size_t n = (size_t)chain->ndim * sizeof *count;

    return cache->chain == chain && cache->gather == gather && !memcmp(cache->count, count, n) &&
           !memcmp(cache->step, step, n) && !memcmp(cache->strides, strides, n);
}

/* The copy of a box between the chunk's layout and `strides`; prepared anew only when the box has another shape. */
static const struct sc_copy *
prepared_copy(struct sc_copy_cache *cache, const struct sc_chain *chain, bool gather, const uint64_t *count,
              const int64_t *step, const int64_t *strides)
{
    int64_t chunk_strides[SC_MAX_NDIM];
    size_t n = (size_t)chain->ndim * sizeof *count;

    if (SC_LIKELY(cache_fits(cache, chain, gather, count, step, strides)))
        return &cache->copy;
    for (int a = 0; a < chain->ndim; a++)
        chunk_strides[a] = chain->strides[a] * step[a];
    sc_copy_prepare(&cache->copy, chain->ndim, count, gather ? chunk_strides : strides,
                    gather ? strides : chunk_strides, chain->itemsize, &chain->swap);
    cache->chain = chain;
    cache->gather = gather;
    memcpy(cache->count, count, n);
    memcpy(cache->step, step, n);
    memcpy(cache->strides, strides, n);
    return &cache->copy;
}

static void
scatter(const struct sc_chain *chain, struct sc_level *level, const uint8_t *elements, const struct sc_box *box,
        uint8_t *dst, const int64_t *dst_strides)
{
    int64_t first = 0;

    for (int a = 0; a < chain->ndim; a++)
        first += (int64_t)box->start[a] * chain->strides[a];
    sc_copy_run(prepared_copy(&level->cache, chain, false, box->count, box->step, dst_strides), dst, elements + first);
}

bool
sc_chain_has_layout(const struct sc_chain *chain, const int64_t *strides)
{
    for (int a = 0; a < chain->ndim; a++)
        if (chain->shape[a] > 1 && strides[a] != chain->strides[a])
            return false;
    return true;
}

void
sc_chain_fill(const struct sc_chain *chain, const uint64_t *count, uint8_t *dst, const int64_t *dst_strides)
{
    sc_fill(dst, chain->ndim, count, dst_strides, chain->fill, chain->itemsize);
}

/* ---- bytes -> bytes codecs ---- */

static bool
is_compressor(const struct sc_op *op)
{
    return op->codec != SC_CODEC_CRC32C;
}

static bool
has_compressor(const struct sc_chain *chain)
{
    for (size_t i = 0; i < chain->n_ops; i++)
        if (is_compressor(&chain->ops[i]))
            return true;
    return false;
}

static enum sc_status
bad_length(struct sc_where *where, uint64_t expected, uint64_t actual)
{
    where->expected = expected;
    where->actual = actual;
    return SC_BAD_LENGTH;
}

static size_t
plausible_nbytes(size_t bound)
{
    return !bound || bound > (PTRDIFF_MAX - SLACK_NBYTES) / SLACK_FACTOR ? PTRDIFF_MAX
                                                                        : bound * SLACK_FACTOR + SLACK_NBYTES;
}

enum sc_status
sc_chain_check_nbytes(const struct sc_chain *chain, uint64_t nbytes, struct sc_where *where)
{
    size_t bound = sc_chain_bound(chain);
    bool exact = !chain->inner && !has_compressor(chain);

    if (exact ? nbytes == bound : nbytes <= plausible_nbytes(bound))
        return SC_OK;
    return bad_length(where, bound, nbytes);
}

static enum sc_status
check_crc32c(const uint8_t *src, size_t *n, struct sc_where *where)
{
    uint32_t expected, actual;

    if (*n < 4)
        return sc_codec_failed(SC_CODEC_DATA, where, "crc32c", "fewer than the 4 bytes of a checksum", 0, *n);
    *n -= 4;
    expected = load_le32(src + *n);
    actual = sc_crc32c_extend(0, src, *n);
    if (expected == actual)
        return SC_OK;
    where->codec = "crc32c";
    where->expected = expected;
    where->actual = actual;
    return SC_CHUNK_CHECKSUM;
}

/* Undo one compressor into a buffer whose final size is not known, only that it should be near `bound`. */
static enum sc_status
decode_stage(const struct sc_op *op, struct sc_worker *worker, const uint8_t *src, size_t n, size_t bound,
             struct sc_buffer *buffer, size_t *n_out, struct sc_where *where)
{
    size_t limit = plausible_nbytes(bound), capacity = bound ? bound : SLACK_NBYTES;

    for (;;) {
        enum sc_status status = sc_buffer_reserve(buffer, capacity);

        if (status)
            return status;
        status = sc_codec_get(op->codec)->decode(op, worker->codecs, src, n, buffer->data, capacity, n_out, where);
        if (status != SC_DST_TOO_SMALL)
            return status;
        if (capacity >= limit)
            return bad_length(where, bound, SC_NOWHERE);
        capacity = capacity > limit / 2 ? limit : capacity * 2;
    }
}

/* Undo ops[first..n_ops-1]. On success *bytes, *n are what ops[first] was given when it was encoded. */
static enum sc_status
undo_ops(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level, size_t first,
         const uint8_t **bytes, size_t *n, struct sc_where *where)
{
    unsigned stage = 0;

    for (size_t i = chain->n_ops; i-- > first;) {
        const struct sc_op *op = &chain->ops[i];
        enum sc_status status;

        if (op->codec == SC_CODEC_CRC32C) {
            status = check_crc32c(*bytes, n, where);
        } else {
            struct sc_buffer *buffer = &level->stage[stage];

            status = decode_stage(op, worker, *bytes, *n, chain->bounds[i], buffer, n, where);
            *bytes = buffer->data;
            stage ^= 1;
        }
        if (status)
            return status;
    }
    return SC_OK;
}

/* ---- decoding ---- */

static enum sc_status
decode_leaf(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level, const uint8_t *src,
            size_t n, const struct sc_box *box, uint8_t *dst, const int64_t *dst_strides, struct sc_where *where)
{
    bool last_is_exact = chain->n_ops && is_compressor(&chain->ops[0]);
    enum sc_status status = undo_ops(chain, worker, level, last_is_exact, &src, &n, where);
    size_t nbytes = (size_t)chain->nbytes, n_out;
    bool direct;
    uint8_t *out;

    if (status)
        return status;
    if (!last_is_exact) {
        if (n != nbytes)
            return bad_length(where, nbytes, n);
        scatter(chain, level, src, box, dst, dst_strides);
        return SC_OK;
    }

    direct = !chain->swap.n_fields && sc_box_is_whole(chain, box->count) && sc_chain_has_layout(chain, dst_strides);
    if (!direct && (status = sc_buffer_reserve(&level->chunk, nbytes)))
        return status;
    out = direct ? dst : level->chunk.data;
    status = sc_codec_get(chain->ops[0].codec)->decode(&chain->ops[0], worker->codecs, src, n, out, nbytes, &n_out, where);
    if (status == SC_DST_TOO_SMALL)
        return bad_length(where, nbytes, SC_NOWHERE);
    if (status)
        return status;
    if (n_out != nbytes)
        return bad_length(where, nbytes, n_out);
    if (!direct)
        scatter(chain, level, out, box, dst, dst_strides);
    return SC_OK;
}

/* A shard whose bytes are all in memory: one nested in an inner chunk, or one behind further bytes -> bytes codecs. */
static enum sc_status
decode_shard(const struct sc_chain *chain, struct sc_worker *worker, unsigned depth, const uint8_t *src, size_t n,
             const struct sc_box *box, uint8_t *dst, const int64_t *dst_strides, struct sc_where *where)
{
    const struct sc_chain *inner = chain->inner;
    struct sc_index_extent extent;
    struct sc_walk walk;
    enum sc_status status = sc_index_locate(&chain->index, n, &extent, where);

    if (!status)
        status = sc_index_verify(&chain->index, src + extent.offset, where);
    if (status) {
        where->level = depth;
        return status;
    }
    sc_walk_begin(&walk, chain, box, dst_strides);
    do {
        struct sc_box part;
        int64_t offset;
        struct sc_entry e;

        if (!sc_walk_cut(&walk, inner, walk.c, &part, &offset))
            continue;
        e = sc_index_get(chain, src + extent.offset, 0, walk.c);
        if (sc_entry_is_absent(e)) {
            sc_chain_fill(inner, part.count, dst + offset, walk.strides);
            continue;
        }
        status = sc_entry_check(e, &extent, false, where);
        if (!status)
            status = sc_chain_decode(inner, worker, depth + 1, src + e.offset, (size_t)e.nbytes, &part, dst + offset,
                                     walk.strides, where);
        if (status) {
            where->entry = sc_walk_entry(chain, walk.c); /* the outermost shard writes this last, */
            if (depth > where->level) {           /* the innermost this first */
                where->level = depth;
                where->nested_entry = where->entry;
            }
            return status;
        }
    } while (sc_walk_next(&walk, chain->ndim));
    return SC_OK;
}

enum sc_status
sc_chain_decode(const struct sc_chain *chain, struct sc_worker *worker, unsigned level, const uint8_t *src, size_t n,
                const struct sc_box *box, uint8_t *dst, const int64_t *dst_strides, struct sc_where *where)
{
    enum sc_status status;

    if (!chain->inner)
        return decode_leaf(chain, worker, &worker->levels[level], src, n, box, dst, dst_strides, where);
    status = undo_ops(chain, worker, &worker->levels[level], 0, &src, &n, where);
    if (status)
        return status;
    return decode_shard(chain, worker, level, src, n, box, dst, dst_strides, where);
}

/* ---- encoding ---- */

/* Apply ops to the n bytes at `bytes`, which lie in `owner` (grow-able) or, when owner is NULL, in the caller's memory or
 * in dst. The result ends in dst. */
static enum sc_status
apply_ops(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level, const uint8_t *bytes, size_t n,
          uint8_t *dst, size_t dst_capacity, uint64_t *n_out, struct sc_where *where)
{
    unsigned stage = 0;

    for (size_t i = 0; i < chain->n_ops; i++) {
        const struct sc_op *op = &chain->ops[i];
        size_t bound = chain->bounds[i + 1];
        bool to_dst = true;
        enum sc_status status;
        uint8_t *out;

        for (size_t k = i + 1; k < chain->n_ops; k++)
            to_dst = to_dst && !is_compressor(&chain->ops[k]);
        if (!is_compressor(op) && bytes == dst) {
            store_le32(dst + n, sc_crc32c_extend(0, dst, n));
            n += 4;
            continue;
        }
        if (!to_dst && (status = sc_buffer_reserve(&level->stage[stage], bound)))
            return status;
        out = to_dst ? dst : level->stage[stage].data;
        stage ^= !to_dst;
        if (is_compressor(op)) {
            status = sc_codec_get(op->codec)->encode(op, worker->codecs, bytes, n, out, to_dst ? dst_capacity : bound,
                                                     &n, where);
            if (status)
                return status;
        } else {
            store_le32(out + n, sc_crc32c_copy(0, out, bytes, n));
            n += 4;
        }
        bytes = out;
    }
    *n_out = n;
    return SC_OK;
}

static enum sc_status
encode_leaf(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level, const uint8_t *src,
            const int64_t *src_strides, const struct sc_write_rules *rules, uint8_t *dst, size_t dst_capacity,
            uint64_t *n, struct sc_where *where)
{
    static const int64_t ones[SC_MAX_NDIM] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    bool compress = has_compressor(chain);
    const uint8_t *elements = src;
    enum sc_status status;

    if (!compress || chain->swap.n_fields || !sc_chain_has_layout(chain, src_strides)) {
        uint8_t *room = dst;

        if (compress) {
            status = sc_buffer_reserve(&level->chunk, (size_t)chain->nbytes);
            if (status)
                return status;
            room = level->chunk.data;
        }
        sc_copy_run(prepared_copy(&level->cache, chain, true, chain->shape, ones, src_strides), room, src);
        elements = room;
    }
    if (!rules->write_empty && sc_all_equal(elements, (size_t)chain->n_items, chain->fill_stored, chain->itemsize)) {
        *n = SC_ABSENT;
        return SC_OK;
    }
    return apply_ops(chain, worker, level, elements, (size_t)chain->nbytes, dst, dst_capacity, n, where);
}

/* Lay the inner chunks of a shard into `out` and its index with them. *n = SC_ABSENT when none is present. */
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
    *n = n_present || (rules->keep_empty && !depth) ? (chain->index.at_start ? at : at + chain->index.nbytes) : SC_ABSENT;
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
        return SC_NO_MEMORY;
    if (has_compressor(chain)) {
        status = sc_buffer_reserve(&level->chunk, chain->bounds[0]);
        if (status)
            return status;
        out = level->chunk.data;
    }
    status = encode_shard_bytes(chain, worker, depth, src, src_strides, rules, out, n, where);
    if (status || *n == SC_ABSENT)
        return status;
    return apply_ops(chain, worker, level, out, (size_t)*n, dst, dst_capacity, n, where);
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
