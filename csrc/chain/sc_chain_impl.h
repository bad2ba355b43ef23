/* sc_chain_impl.h - what decoding and encoding of a chain share; for sc_chain_*.c only
 * SPDX-License-Identifier: MIT */
#ifndef SC_CHAIN_IMPL_H
#define SC_CHAIN_IMPL_H

#include "chain/sc_chain.h"
#include "chain/sc_worker.h"

static inline bool
is_checksum(const struct sc_op *op)
{
    return sc_codec_get(op->codec)->checksum != NULL;
}

/* True if the codecs after the elements only add checksums. */
static inline bool
adds_only_checksums(const struct sc_chain *chain)
{
    for (size_t i = 0; i < chain->n_ops; i++)
        if (!is_checksum(&chain->ops[i]))
            return false;
    return true;
}

/* Run the first n_blockwise ops, forwards or backwards, on blocks of elements. n: the bytes at src, which must be those of all
 * elements. */
enum sc_status sc_chain_run_blockwise(const struct sc_chain *chain, struct sc_worker *worker, bool encode,
                                      const uint8_t *src, size_t n, uint8_t *dst, struct sc_where *where);

/* Set the bounds of a chain from the size of its decoded chunk. bounds[0] is 0 when a shard is too large to be held in
 * memory whole; only nested shards need to be. */
void sc_chain_bounds(struct sc_chain *chain);

/* Decode one codec into a buffer, which grows from `capacity` up to `limit` bytes. SC_DST_TOO_SMALL: there are more. */
enum sc_status sc_decode_stage(const struct sc_op *op, struct sc_worker *worker, const uint8_t *src, size_t n,
                               size_t capacity, size_t limit, struct sc_buffer *buffer, size_t *n_out,
                               struct sc_where *where);

/* Apply ops to the n bytes at `bytes`, which are in the memory of the caller or in dst. The result is in dst, which has
 * room for the bound of the chain. */
enum sc_status sc_chain_apply_ops(const struct sc_chain *chain, struct sc_worker *worker, struct sc_level *level,
                                  const uint8_t *bytes, size_t n, uint8_t *dst, size_t dst_capacity, uint64_t *n_out,
                                  struct sc_where *where);

/* Return the prepared copy of a box between the layout of the chunk and `strides` of the array: out of the array
 * with `gather`, else into it. It is prepared again only if the shape of the box differs from the last one. */
const struct sc_copy *sc_chain_copy(struct sc_copy_cache *cache, const struct sc_chain *chain, bool gather,
                                    const uint64_t *count, const int64_t *step, const int64_t *strides);

#endif
