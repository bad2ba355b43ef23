/* sc_chain_decode.c - one encoded chunk to elements, nested shards included (see sc_chain.h)
 *
 * Decoding runs the codecs from the last to the first. Checksums are checked in place, without a copy. Each other codec
 * writes to a stage buffer. The first one (the last to be decoded) writes to the destination itself if the box is the
 * whole chunk and the destination has the layout of the decoded chunk. The rest is one strided copy:
 *
 *     src --[crc32c: check, drop 4]--[zstd: stage]--...--[blosc: chunk buffer or dst]-- scatter --> dst
 *
 * SPDX-License-Identifier: MIT */
#include "chain/sc_chain_impl.h"
#include "chain/sc_walk.h"

/* Encoded bytes may come from a writer whose encoder needs more bytes than ours. So this many times our own bound is
 * accepted before the stream is refused. */
#define SLACK_NBYTES ((size_t)1 << 20)
#define SLACK_FACTOR 4u

/* ---- copies between a chunk and the caller's array ---- */

static bool
cache_fits(const struct sc_copy_cache *cache, const struct sc_chain *chain, bool gather, const uint64_t *count,
           const int64_t *step, const int64_t *strides)
{
    size_t n = (size_t)chain->ndim * sizeof *count;

    return cache->chain == chain && cache->gather == gather && !memcmp(cache->count, count, n) &&
           !memcmp(cache->step, step, n) && !memcmp(cache->strides, strides, n);
}

const struct sc_copy *
sc_chain_copy(struct sc_copy_cache *cache, const struct sc_chain *chain, bool gather, const uint64_t *count,
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
    sc_copy_run(sc_chain_copy(&level->cache, chain, false, box->count, box->step, dst_strides), dst, elements + first);
}

/* ---- bytes -> bytes codecs ---- */

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

bool
sc_chain_has_fixed_size(const struct sc_chain *chain)
{
    for (size_t i = 0; i < chain->n_ops; i++)
        if (!sc_codec_get(chain->ops[i].codec)->fixed_size)
            return false;
    return !chain->opaque && !chain->inner;
}

void
sc_chain_nbytes_limits(const struct sc_chain *chain, uint64_t *least, uint64_t *most)
{
    size_t bound = sc_chain_bound(chain);
    bool exact = sc_chain_has_fixed_size(chain);

    *least = exact ? bound : 0;
    *most = chain->opaque ? UINT64_MAX : exact ? bound : plausible_nbytes(bound);
}

enum sc_status
sc_chain_check_nbytes(const struct sc_chain *chain, uint64_t nbytes, struct sc_where *where)
{
    uint64_t least, most;

    sc_chain_nbytes_limits(chain, &least, &most);
    return least <= nbytes && nbytes <= most ? SC_OK : bad_length(where, sc_chain_bound(chain), nbytes);
}

enum sc_status
sc_decode_stage(const struct sc_op *op, struct sc_worker *worker, const uint8_t *src, size_t n, size_t capacity,
                size_t limit, struct sc_buffer *buffer, size_t *n_out, struct sc_where *where)
{
    capacity = capacity < limit ? capacity : limit;
    for (;;) {
        enum sc_status status = sc_buffer_reserve(buffer, capacity);

        if (status)
            return status;
        status = sc_codec_get(op->codec)->decode(op, worker->codecs, src, n, buffer->data, capacity, n_out, where);
        if (status != SC_DST_TOO_SMALL || capacity >= limit)
            return status;
        capacity = capacity > limit / 2 ? limit : capacity * 2;
    }
}

/* Decode ops[n_ops-1] down to ops[first]. On success *bytes, *n are the input of ops[first] when it encoded. */
static enum sc_status
undo_ops(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level, size_t first,
         const uint8_t **bytes, size_t *n, struct sc_where *where)
{
    unsigned stage = 0;

    for (size_t i = chain->n_ops; i-- > first;) {
        const struct sc_op *op = &chain->ops[i];
        enum sc_status status;

        if (is_checksum(op)) {
            status = sc_checksum_check(op, bytes, n, where);
        } else {
            struct sc_buffer *buffer = &level->stage[stage];
            size_t bound = chain->bounds[i]; /* the decoded size is not known; it should be near */

            status = sc_decode_stage(op, worker, *bytes, *n, bound ? bound : SLACK_NBYTES, plausible_nbytes(bound),
                                     buffer, n, where);
            if (status == SC_DST_TOO_SMALL)
                return bad_length(where, bound, SC_NOWHERE);
            *bytes = buffer->data;
            stage ^= 1;
        }
        if (status)
            return status;
    }
    return SC_OK;
}

/* ---- parts of a decoded chunk ---- */

/* The bytes of a box in stored layout, in one run for each element of the slowest axis along which it extends. This
 * is exact enough to choose blocks, and needs no memory. */
static struct sc_comb
comb_of(const struct sc_chain *chain, const struct sc_box *box)
{
    struct sc_comb comb = { 0, chain->itemsize, 1, 1 };
    int slowest = -1;

    for (int a = 0; a < chain->ndim; a++) {
        comb.first += box->start[a] * (uint64_t)chain->strides[a];
        if (box->count[a] > 1 && (slowest < 0 || chain->strides[a] > chain->strides[slowest]))
            slowest = a;
    }
    for (int a = 0; a < chain->ndim; a++)
        if (a != slowest)
            comb.nbytes += (box->count[a] - 1) * (uint64_t)box->step[a] * (uint64_t)chain->strides[a];
    if (slowest >= 0) {
        comb.distance = (uint64_t)box->step[slowest] * (uint64_t)chain->strides[slowest];
        comb.count = box->count[slowest];
    }
    return comb;
}

bool
sc_chain_is_plain(const struct sc_chain *chain)
{
    return !chain->n_ops && !chain->inner && !chain->opaque;
}

bool
sc_chain_hull(const struct sc_chain *chain, const struct sc_box *box, uint64_t *low, uint64_t *high)
{
    struct sc_comb comb = comb_of(chain, box);

    *low = comb.first;
    *high = comb.first + (comb.count - 1) * comb.distance + comb.nbytes;
    return sc_chain_is_plain(chain);
}

void
sc_chain_scatter_hull(const struct sc_chain *chain, struct sc_worker *worker, unsigned level, const uint8_t *src,
                      const struct sc_box *box, uint8_t *dst, const int64_t *dst_strides)
{
    sc_copy_run(sc_chain_copy(&worker->levels[level].cache, chain, false, box->count, box->step, dst_strides), dst,
                src);
}

/* A chunk that ends with a checksum is decoded whole. */
static bool
may_skip_blocks(const struct sc_chain *chain)
{
    for (size_t i = 0; i < chain->n_ops; i++)
        if (is_checksum(&chain->ops[i]))
            return false;
    return chain->n_ops && sc_codec_get(chain->ops[0].codec)->decode_some;
}

bool
sc_chain_has_parts(const struct sc_chain *chain)
{
    return chain->inner || may_skip_blocks(chain);
}

static enum sc_status
undo_first_op(const struct sc_chain *chain, struct sc_worker *worker, const uint8_t *src, size_t n,
              const struct sc_box *box, uint8_t *out, size_t *n_out, struct sc_where *where)
{
    const struct sc_op *op = &chain->ops[0];
    const struct sc_codec *codec = sc_codec_get(op->codec);

    if (may_skip_blocks(chain) && !sc_box_is_whole(chain, box->count)) {
        struct sc_comb comb = comb_of(chain, box);

        return codec->decode_some(op, worker->codecs, src, n, &comb, out, (size_t)chain->nbytes, n_out, where);
    }
    return codec->decode(op, worker->codecs, src, n, out, (size_t)chain->nbytes, n_out, where);
}

/* ---- decoding ---- */

/* Return the elements of a leaf in stored layout, at least those of the box: in place among the encoded bytes, or
 * decoded to `direct`, or, if that is NULL, to the memory of the worker. */
static enum sc_status
leaf_elements(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level, const uint8_t *src,
              size_t n, const struct sc_box *box, uint8_t *direct, const uint8_t **elements, struct sc_where *where)
{
    bool last_is_exact = chain->n_ops && !is_checksum(&chain->ops[0]);
    size_t first = chain->n_blockwise ? chain->n_blockwise : last_is_exact;
    enum sc_status status = undo_ops(chain, worker, level, first, &src, &n, where);
    size_t nbytes = (size_t)chain->nbytes, n_out;
    uint8_t *out;

    if (status)
        return status;
    if (!last_is_exact) {
        *elements = src;
        return n == nbytes ? SC_OK : bad_length(where, nbytes, n);
    }
    if (!direct && (status = sc_buffer_reserve(&level->chunk, nbytes)))
        return status;
    out = direct ? direct : level->chunk.data;
    *elements = out;
    if (chain->n_blockwise)
        return n == chain->bounds[first] ? sc_chain_run_blockwise(chain, worker, false, src, n, out, where)
                                         : bad_length(where, chain->bounds[first], n);
    status = undo_first_op(chain, worker, src, n, box, out, &n_out, where);
    if (status == SC_DST_TOO_SMALL)
        return bad_length(where, nbytes, SC_NOWHERE);
    if (status)
        return status;
    return n_out == nbytes ? SC_OK : bad_length(where, nbytes, n_out);
}

enum sc_status
sc_chain_decode_all(const struct sc_chain *chain, struct sc_worker *worker, unsigned level, const uint8_t *src,
                    size_t n, uint8_t *elements, struct sc_where *where)
{
    struct sc_box whole = { .count = { 0 } };
    const uint8_t *at;
    enum sc_status status;

    memcpy(whole.count, chain->shape, sizeof whole.count);
    status = leaf_elements(chain, worker, &worker->levels[level], src, n, &whole, elements, &at, where);
    if (!status && at != elements)
        memcpy(elements, at, (size_t)chain->nbytes);
    return status;
}

static enum sc_status
decode_leaf(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level, const uint8_t *src,
            size_t n, const struct sc_box *box, uint8_t *dst, const int64_t *dst_strides, struct sc_where *where)
{
    bool direct = chain->n_ops && !chain->swap.n_fields && sc_box_is_whole(chain, box->count) &&
                  sc_chain_has_layout(chain, dst_strides);
    const uint8_t *elements;
    enum sc_status status = leaf_elements(chain, worker, level, src, n, box, direct ? dst : NULL, &elements, where);

    if (!status && elements != dst)
        scatter(chain, level, elements, box, dst, dst_strides);
    return status;
}

/* Note where a failure is. The innermost shard sets the nested entry first, the outermost one the entry last. */
static enum sc_status
failed_at(uint64_t entry, unsigned depth, enum sc_status status, struct sc_where *where)
{
    where->entry = entry;
    if (depth > where->level) {
        where->level = depth;
        where->nested_entry = entry;
    }
    return status;
}

/* Decode a shard whose bytes are all in memory: one nested in an inner chunk, or one behind further bytes -> bytes
 * codecs. */
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
    if (!worker->allow_in_index && sc_index_must_be_sound(chain))
        status = sc_index_check_stored(chain, src + extent.offset, &extent, where);
    if (status)
        return failed_at(where->entry, depth, status, where);
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
        status = sc_entry_check(e, &extent, worker->allow_in_index, where);
        if (!status)
            status = sc_chain_decode(inner, worker, depth + 1, src + e.offset, (size_t)e.nbytes, &part, dst + offset,
                                     walk.strides, where);
        if (status)
            return failed_at(sc_walk_entry(chain, walk.c), depth, status, where);
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

enum sc_status
sc_chain_view(const struct sc_chain *chain, struct sc_worker *worker, unsigned level, const uint8_t *src, size_t n,
              const struct sc_box *hull, struct sc_view *view, struct sc_where *where)
{
    struct sc_buffer *merge = &worker->merge;
    enum sc_status status;

    view->offset = 0;
    view->swap = NULL;
    if (!chain->inner) {
        const uint8_t *elements;

        status = leaf_elements(chain, worker, &worker->levels[level], src, n, hull, NULL, &elements, where);
        view->data = (uint8_t *)(uintptr_t)elements;
        view->swap = &chain->swap;
        memcpy(view->strides, chain->strides, sizeof view->strides);
        return status;
    }
    status = sc_buffer_reserve(merge, (size_t)sc_chain_c_strides(chain, hull->count, view->strides));
    if (status)
        return status;
    for (int a = 0; a < chain->ndim; a++)
        view->offset -= (int64_t)hull->start[a] * view->strides[a];
    view->data = merge->data;
    return sc_chain_decode(chain, worker, level, src, n, hull, merge->data, view->strides, where);
}
