/* sc_chain.c - prepare a chain: everything that does not depend on the data (see sc_chain.h)
 * SPDX-License-Identifier: MIT */
#include <stdatomic.h>

#include "chain/sc_chain_impl.h"

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
        uint64_t extent = chain->inner->shape[a], rest = chain->stored_shape[a] % extent;

        if (rest && !chain->inner->opaque) /* the last inner chunks are clipped only if another program decodes them */
            return false;
        chain->grid[a] = chain->stored_shape[a] / extent + (rest > 0);
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

void
sc_chain_bounds(struct sc_chain *chain)
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
        else
            chain->bounds[i + 1] = sc_codec_get(op->codec)->bound(op, before);
    }
}

/* True if there are numbers of at most 8 bytes before ops[i]. */
static bool
has_numbers(const struct sc_chain *chain, size_t i)
{
    return chain->bounds[i] && chain->bounds[i] % chain->n_items == 0 && chain->bounds[i] / chain->n_items <= 8;
}

/* Filters of single elements run on blocks that stay in the cache between them. */
static void
prepare_blockwise(struct sc_chain *chain)
{
    size_t n = 0;

    while (n < chain->n_ops && has_numbers(chain, n) && has_numbers(chain, n + 1) &&
           sc_codec_get(chain->ops[n].codec)->elementwise)
        n++;
    chain->n_blockwise = n > 1 && !chain->inner ? n : 0;
}

enum sc_status
sc_chain_too_large(const struct sc_chain *chain, struct sc_where *where)
{
    for (; chain; chain = chain->inner)
        for (size_t i = 0; i < chain->n_ops; i++) {
            const struct sc_codec *codec = sc_codec_get(chain->ops[i].codec);

            if (chain->bounds[i] > codec->max_nbytes) {
                where->limit = codec->max_nbytes;
                return sc_codec_failed(SC_CODEC_ENCODE, where, codec->name, "more than it takes", 0, chain->bounds[i]);
            }
        }
    return SC_NO_MEMORY;
}

enum sc_status
sc_chain_prepare(struct sc_chain *chain)
{
    static _Atomic uint64_t n_chains;

    chain->number = atomic_fetch_add_explicit(&n_chains, 1, memory_order_relaxed);
    if (!prepare_shape(chain) || chain->n_ops > SC_MAX_OPS)
        return SC_BAD_ARGUMENT;
    for (size_t i = 0; i < chain->n_ops; i++)
        if (!sc_codec_get(chain->ops[i].codec))
            return SC_BAD_ARGUMENT;
    chain->depth = 0;
    if (chain->inner) {
        if (chain->inner->ndim != chain->ndim || chain->inner->itemsize != chain->itemsize || !prepare_grid(chain))
            return SC_BAD_ARGUMENT;
        chain->depth = chain->inner->depth + 1;
        if (chain->depth >= SC_MAX_DEPTH)
            return SC_BAD_ARGUMENT;
    }
    sc_chain_bounds(chain);
    prepare_blockwise(chain);
    return SC_OK;
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

/* ---- filters of single elements */

#define BLOCK_ITEMS 2048 /* two blocks of 8-byte elements in the first cache */

/* The bytes of an element before ops[i], which is one of the first n_blockwise or the one behind them. */
static size_t
item_nbytes(const struct sc_chain *chain, size_t i)
{
    return chain->bounds[i] / (size_t)chain->n_items;
}

static enum sc_status
run_block(const struct sc_chain *chain, struct sc_worker *worker, bool encode, const uint8_t *src, size_t count,
          uint8_t *dst, struct sc_where *where)
{
    uint8_t blocks[2][8 * BLOCK_ITEMS];
    const size_t last = chain->n_blockwise - 1;

    for (size_t turn = 0; turn <= last; turn++) {
        const size_t i = encode ? turn : last - turn;
        const struct sc_codec *codec = sc_codec_get(chain->ops[i].codec);
        const size_t n = count * item_nbytes(chain, encode ? i : i + 1);
        const size_t room = count * item_nbytes(chain, encode ? i + 1 : i);
        uint8_t *out = turn == last ? dst : blocks[turn & 1];
        enum sc_status status;
        size_t n_out;

        status =
            (encode ? codec->encode : codec->decode)(&chain->ops[i], worker->codecs, src, n, out, room, &n_out, where);
        if (status)
            return status;
        src = out;
    }
    return SC_OK;
}

enum sc_status
sc_chain_run_blockwise(const struct sc_chain *chain, struct sc_worker *worker, bool encode, const uint8_t *src,
                       size_t n, uint8_t *dst, struct sc_where *where)
{
    const size_t before = item_nbytes(chain, encode ? 0 : chain->n_blockwise);
    const size_t after = item_nbytes(chain, encode ? chain->n_blockwise : 0);

    for (size_t begin = 0; begin < n / before; begin += BLOCK_ITEMS) {
        const size_t count = (size_t)min_u64(n / before - begin, BLOCK_ITEMS);
        enum sc_status status =
            run_block(chain, worker, encode, src + begin * before, count, dst + begin * after, where);

        if (status && where->element != SC_NOWHERE)
            where->element += begin;
        if (status)
            return status;
    }
    return SC_OK;
}
