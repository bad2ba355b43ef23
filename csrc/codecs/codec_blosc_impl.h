/* codec_blosc_impl.h - the container of Blosc1, as codec_blosc.c reads it and codec_blosc_encode.c writes it
 *
 * All numbers are little-endian.
 *
 *     0        1          2      3         4       8          12      16
 *     +--------+----------+------+---------+-------+----------+-------+-----------+-- ... --+---------+-- ... --+
 *     | format | lz       | flags| typesize| nbytes| blocksize| cbytes| start[0]  |         | block 0 |         |
 *     | = 2    | format 1 |      |         |       |          |       |           |         |         |         |
 *     +--------+----------+------+---------+-------+----------+-------+-----------+-- ... --+---------+-- ... --+
 *
 *     flags    0x01 shuffle  0x02 stored: the nbytes follow the header, nothing else  0x04 bitshuffle  0x08 never
 *              0x10 blocks are not split  0xe0 compressor: 0 blosclz, 1 lz4 or lz4hc, 2 snappy, 3 zlib, 4 zstd
 *     start    one u4 for each block, counted from the start of the container, in any order
 *     block    blocksize bytes of the chunk (the last one: what is left), shuffled; as one part, or, split, in typesize
 *              parts of equal size: one for each byte of an element. The last block, if shorter, is never split.
 *     part     u4 encoded size, then a stream of the compressor; the part itself when the size is that of the part
 * SPDX-License-Identifier: MIT */
#ifndef SC_CODEC_BLOSC_IMPL_H
#define SC_CODEC_BLOSC_IMPL_H

#include "base/sc_alloc.h"
#include "codecs/codec_impl.h"

#include <limits.h>

#define HEADER_NBYTES 16
#define FORMAT 2
#define LZ_FORMAT 1
#define MAX_NBYTES (INT32_MAX - HEADER_NBYTES)
#define MIN_PART_NBYTES 128 /* smaller parts and smaller chunks are not compressed */
#define MAX_PARTS 16

enum {
    FLAG_SHUFFLE = 0x01,
    FLAG_STORED = 0x02,
    FLAG_BITSHUFFLE = 0x04,
    FLAG_UNKNOWN = 0x08,
    FLAG_NO_SPLIT = 0x10,
};

enum sc_blosc_wire { WIRE_BLOSCLZ = 0, WIRE_LZ4 = 1, WIRE_SNAPPY = 2, WIRE_ZLIB = 3, WIRE_ZSTD = 4 };

/* The values of a header, checked. */
struct sc_blosc_container {
    unsigned flags;
    uint32_t typesize;
    uint32_t nbytes;
    uint32_t blocksize;
    uint32_t n_blocks;
    enum sc_blosc_wire compressor;
};

static inline bool
is_splittable(uint32_t typesize, uint32_t blocksize)
{
    return typesize <= MAX_PARTS && blocksize / typesize >= MIN_PART_NBYTES;
}

/* Into how many parts the block with this number is cut. Old containers have no flag against splitting, so the sizes
 * count as well. */
static inline uint32_t
count_parts(const struct sc_blosc_container *c, uint32_t block)
{
    bool is_short = block == c->n_blocks - 1 && c->nbytes % c->blocksize != 0;

    return !(c->flags & FLAG_NO_SPLIT) && !is_short && is_splittable(c->typesize, c->blocksize) ? c->typesize : 1;
}

static inline uint32_t
block_nbytes(const struct sc_blosc_container *c, uint32_t block)
{
    return (uint32_t)min_u64(c->blocksize, c->nbytes - (uint64_t)block * c->blocksize);
}

/* A byte shuffle of single bytes changes nothing; a bit shuffle needs an element. */
static inline bool
is_shuffled(const struct sc_blosc_container *c, uint32_t nbytes)
{
    return (c->flags & FLAG_SHUFFLE && c->typesize > 1) || (c->flags & FLAG_BITSHUFFLE && nbytes >= c->typesize);
}

/* At least n bytes that live until the state is freed. NULL: no memory. */
static inline uint8_t *
sc_blosc_scratch(struct sc_codec_state *state, size_t n)
{
    if (state->scratch_nbytes < n) {
        sc_free(state->scratch);
        state->scratch_nbytes = 0;
        state->scratch = sc_malloc(n);
        if (state->scratch)
            state->scratch_nbytes = n;
    }
    return state->scratch;
}

/* As `bound` and `encode` of struct sc_codec. */
size_t sc_blosc_bound(const struct sc_op *op, size_t nbytes);
enum sc_status sc_blosc_encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src,
                               size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes,
                               struct sc_where *where);

#endif
