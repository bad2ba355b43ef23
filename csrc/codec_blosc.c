/* codec_blosc.c - Zarr codec "blosc": containers of Blosc1, read and written without a Blosc library
 *
 * Blosc2 cannot do it: it writes containers that Blosc1 (that is: zarr) refuses, and reads some bit-shuffled ones
 * wrongly without saying so. The container, all numbers little-endian:
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
 *
 * The encoder decides as C-Blosc 1.21 does (block sizes, splits, what is stored), so its containers are those that zarr
 * writes: the same bytes with the same version of the compressor. The decoder takes what a Blosc1 encoder can make and
 * nothing else; formats 1 (older than the first release) and 3 on (Blosc2) are refused, as C-Blosc 1.21 refuses them.
 * SPDX-License-Identifier: MIT */
#include "codec_impl.h"

#include <limits.h>

#include "sc_alloc.h"

#define HEADER_NBYTES 16
#define FORMAT 2
#define LZ_FORMAT 1
#define MAX_NBYTES (INT32_MAX - HEADER_NBYTES)
#define MAX_TYPESIZE 255
#define MAX_BLOCKSIZE ((INT32_MAX - MAX_TYPESIZE * 4) / 3)
#define MIN_PART_NBYTES 128 /* smaller parts are not worth a compressor; nor are smaller chunks */
#define MAX_PARTS 16
#define L1_NBYTES (32u << 10)

enum {
    FLAG_SHUFFLE = 0x01,
    FLAG_STORED = 0x02,
    FLAG_BITSHUFFLE = 0x04,
    FLAG_UNKNOWN = 0x08,
    FLAG_NO_SPLIT = 0x10,
};

enum wire_compressor { WIRE_BLOSCLZ = 0, WIRE_LZ4 = 1, WIRE_SNAPPY = 2, WIRE_ZLIB = 3, WIRE_ZSTD = 4 };

/* What a header says, checked. */
struct container {
    unsigned flags;
    uint32_t typesize;
    uint32_t nbytes;
    uint32_t blocksize;
    uint32_t n_blocks;
    enum wire_compressor compressor;
};

static enum sc_status
malformed(struct sc_where *where, const char *detail, size_t nbytes)
{
    sc_codec_failed(SC_CODEC_DATA, where, "blosc", detail, 0, nbytes);
    return SC_CODEC_DATA; /* said again for the compiler, which warns of unset variables otherwise */
}

static bool
is_splittable(uint32_t typesize, uint32_t blocksize)
{
    return typesize <= MAX_PARTS && blocksize / typesize >= MIN_PART_NBYTES;
}

/* Into how many parts the block with this number is cut. Old containers have no flag against splitting, so the sizes
 * count as well. */
static uint32_t
count_parts(const struct container *c, uint32_t block)
{
    bool is_short = block == c->n_blocks - 1 && c->nbytes % c->blocksize != 0;

    return !(c->flags & FLAG_NO_SPLIT) && !is_short && is_splittable(c->typesize, c->blocksize) ? c->typesize : 1;
}

static uint32_t
block_nbytes(const struct container *c, uint32_t block)
{
    return (uint32_t)min_u64(c->blocksize, c->nbytes - (uint64_t)block * c->blocksize);
}

/* A byte shuffle of single bytes is none; a bit shuffle needs an element. */
static bool
is_shuffled(const struct container *c, uint32_t nbytes)
{
    return (c->flags & FLAG_SHUFFLE && c->typesize > 1) || (c->flags & FLAG_BITSHUFFLE && nbytes >= c->typesize);
}

/* At least n bytes that live until the state is freed. */
static uint8_t *
scratch(struct sc_codec_state *state, size_t n)
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

/* ---- decode */

/* Check all that can be checked before a block is read.
 *
 * The container has to be the whole chunk, as TensorStore demands too. C-Blosc itself looks at the size in the header
 * alone and would read behind a chunk that was cut. */
static enum sc_status
read_header(const uint8_t *src, size_t n, struct container *c, struct sc_where *where)
{
    if (n < HEADER_NBYTES)
        return malformed(where, "shorter than a header", n);
    if (src[0] != FORMAT)
        return malformed(where, src[0] > FORMAT ? "a container of Blosc2, not of Blosc1" : "unknown format", n);
    *c = (struct container){ .flags = src[2],
                             .typesize = src[3],
                             .nbytes = load_le32(src + 4),
                             .blocksize = load_le32(src + 8),
                             .compressor = (enum wire_compressor)(src[2] >> 5) };
    if (load_le32(src + 12) != n)
        return malformed(where, "is not as long as its header says", n);
    if (c->flags & FLAG_UNKNOWN || (c->flags & FLAG_SHUFFLE && c->flags & FLAG_BITSHUFFLE))
        return malformed(where, "unknown flags", n);
    if (c->nbytes > MAX_NBYTES || c->typesize == 0)
        return malformed(where, "impossible size or typesize", n);
    if (c->blocksize == 0 || c->blocksize > max_u64(c->nbytes, 1))
        return malformed(where, "impossible block size", n);
    c->n_blocks = c->nbytes / c->blocksize + (c->nbytes % c->blocksize != 0);
    if (c->flags & FLAG_STORED)
        return n - HEADER_NBYTES == c->nbytes ? SC_OK : malformed(where, "stored, but of another size", n);
    if (c->compressor == WIRE_SNAPPY)
        return malformed(where, "snappy is not supported", n);
    if (c->compressor > WIRE_ZSTD || src[1] != LZ_FORMAT)
        return malformed(where, "unknown compressor", n);
    if (c->n_blocks > (n - HEADER_NBYTES) / 4)
        return malformed(where, "too short for its blocks", n);
    return SC_OK;
}

/* Decode one part, which holds exactly dst_nbytes. */
static enum sc_status
decode_part(const struct container *c, struct sc_codec_state *state, const uint8_t *src, size_t n, uint8_t *dst,
            size_t dst_nbytes, struct sc_where *where)
{
    enum sc_status status;
    size_t got = dst_nbytes;

    switch (c->compressor) {
    case WIRE_BLOSCLZ:
        status = sc_blosclz_decode(src, n, dst, dst_nbytes) ? SC_OK : malformed(where, "malformed blosclz stream", n);
        break;
    case WIRE_LZ4:
        status = sc_lz4_decode(src, n, dst, dst_nbytes, where);
        break;
    case WIRE_ZLIB:
        status = sc_inflate(state, SC_WRAP_ZLIB, src, n, dst, dst_nbytes, &got, where);
        break;
    default:
        status = sc_zstd_decode(state, src, n, dst, dst_nbytes, &got, where);
    }
    if (status == SC_OK && got != dst_nbytes)
        status = malformed(where, "a block holds less than it should", n);
    return status;
}

/* Decode the block with this number to dst, still shuffled; or, where dst is NULL, look at its framing alone. */
static enum sc_status
decode_block(const struct container *c, struct sc_codec_state *state, const uint8_t *src, size_t n, uint32_t block,
             uint8_t *dst, struct sc_where *where)
{
    const uint32_t nbytes = block_nbytes(c, block), n_parts = count_parts(c, block), part = nbytes / n_parts;
    size_t at = load_le32(src + HEADER_NBYTES + (size_t)block * 4);

    if (nbytes % n_parts)
        return malformed(where, "block size is no multiple of the typesize", n);
    if (at < HEADER_NBYTES + (size_t)c->n_blocks * 4 || at > n)
        return malformed(where, "a block starts outside", n);
    for (uint32_t i = 0; i < n_parts; i++) {
        enum sc_status status = SC_OK;
        uint32_t encoded;

        if (n - at < 4)
            return malformed(where, "a block goes beyond the end", n);
        encoded = load_le32(src + at);
        at += 4;
        /* a part that grows is stored, so none is larger than what it decodes to */
        if (encoded > part || encoded > n - at)
            return malformed(where, "a block goes beyond the end, or is larger than its content", n);
        if (dst && encoded == part)
            memcpy(dst + (size_t)i * part, src + at, part);
        else if (dst)
            status = decode_part(c, state, src + at, encoded, dst + (size_t)i * part, part, where);
        if (status != SC_OK)
            return status;
        at += encoded;
    }
    return SC_OK;
}

/* Decode the blocks that the comb touches, or all (NULL). */
static enum sc_status
decode_blocks(const struct container *c, struct sc_codec_state *state, const uint8_t *src, size_t n,
              const struct sc_comb *wanted, uint8_t *dst, struct sc_where *where)
{
    for (uint32_t block = 0; block < c->n_blocks; block++) {
        const uint32_t nbytes = block_nbytes(c, block);
        const uint64_t at = (uint64_t)block * c->blocksize;
        uint8_t *home = dst + at, *to = home;
        enum sc_status status;

        if (wanted && !sc_comb_touches(wanted, at, at + nbytes)) {
            status = decode_block(c, state, src, n, block, NULL, where);
            if (status != SC_OK)
                return status;
            continue;
        }
        if (is_shuffled(c, nbytes) && !(to = scratch(state, c->blocksize)))
            return SC_NO_MEMORY;
        status = decode_block(c, state, src, n, block, to, where);
        if (status != SC_OK)
            return status;
        if (to == home)
            continue;
        if (c->flags & FLAG_SHUFFLE)
            sc_unshuffle(c->typesize, nbytes, to, home);
        else
            sc_bitunshuffle(c->typesize, nbytes, to, home);
    }
    return SC_OK;
}

static enum sc_status
decode_some(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes,
            const struct sc_comb *wanted, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    struct container c;
    enum sc_status status = read_header(src, src_nbytes, &c, where);

    (void)op;
    if (status != SC_OK)
        return status;
    if (c.nbytes > dst_capacity)
        return sc_codec_failed(SC_DST_TOO_SMALL, where, "blosc", "output full", 0, src_nbytes);
    if (c.flags & FLAG_STORED) {
        if (c.nbytes > 0)
            memcpy(dst, src + HEADER_NBYTES, c.nbytes);
    } else {
        status = decode_blocks(&c, state, src, src_nbytes, wanted, dst, where);
    }
    if (status == SC_OK) {
        *dst_nbytes = c.nbytes;
    } else if (status != SC_NO_MEMORY) {
        /* a stream inside that is too long, or of another codec, is a malformed container */
        status = sc_codec_failed(SC_CODEC_DATA, where, "blosc", where->detail, where->library_code, src_nbytes);
    }
    return status;
}

static enum sc_status
decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    return decode_some(op, state, src, src_nbytes, NULL, dst, dst_capacity, dst_nbytes, where);
}

/* ---- encode */

static enum wire_compressor
wire_compressor(int compressor)
{
    static const enum wire_compressor codes[] = { [SC_BLOSC_BLOSCLZ] = WIRE_BLOSCLZ,
                                                  [SC_BLOSC_LZ4] = WIRE_LZ4,
                                                  [SC_BLOSC_LZ4HC] = WIRE_LZ4,
                                                  [SC_BLOSC_ZLIB] = WIRE_ZLIB,
                                                  [SC_BLOSC_ZSTD] = WIRE_ZSTD };

    return codes[compressor];
}

/* C-Blosc's default since 1.14: split as versions did that know no flag against it; they know no zstd either. */
static bool
does_split(const struct sc_op *op, uint32_t blocksize)
{
    return op->compressor != SC_BLOSC_ZSTD && is_splittable(op->typesize, blocksize);
}

/* Block size of level 1..9 for compressors made for ratio (lz4hc, zlib, zstd) and for the others, in units of the L1
 * cache, times 4; level 0 only stores. */
static uint32_t
level_blocksize(const struct sc_op *op)
{
    static const uint8_t quarters[10] = { 1, 2, 4, 8, 16, 16, 32, 32, 32, 32 };
    bool for_ratio =
        op->compressor == SC_BLOSC_LZ4HC || op->compressor == SC_BLOSC_ZLIB || op->compressor == SC_BLOSC_ZSTD;
    uint32_t n = L1_NBYTES / 4 * quarters[op->level];

    if (for_ratio)
        n *= op->level == 9 ? 4 : 2;
    return n;
}

/* The block size that C-Blosc 1.21 takes for a chunk of nbytes. */
static uint32_t
choose_blocksize(const struct sc_op *op, uint32_t nbytes)
{
    uint64_t n = nbytes;

    if (nbytes < op->typesize)
        return 1;
    if (op->blocksize)
        n = min_u64(max_u64(op->blocksize, MIN_PART_NBYTES), MAX_BLOCKSIZE);
    else if (nbytes >= L1_NBYTES)
        n = level_blocksize(op);
    if (op->level > 0 && does_split(op, (uint32_t)n)) {
        /* parts of at most 256 KiB; blocks of 64 KiB to 1 MiB */
        n = min_u64(n, 1u << 18) * op->typesize;
        n = min_u64(max_u64(n, 1u << 16), 1u << 20);
    }
    n = min_u64(n, nbytes);
    return (uint32_t)(n > op->typesize ? n - n % op->typesize : n);
}

/* Encode one part. *got is 0 when it does not fit into dst. */
static enum sc_status
encode_part(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t n, uint8_t *dst,
            size_t capacity, size_t *got, struct sc_where *where)
{
    enum sc_status status;

    *got = 0;
    switch (op->compressor) {
    case SC_BLOSC_BLOSCLZ:
        *got = sc_blosclz_encode(op->level, src, n, dst, capacity);
        return SC_OK;
    case SC_BLOSC_LZ4:
        return sc_lz4_encode(state, 10 - op->level, src, n, dst, capacity, got);
    case SC_BLOSC_LZ4HC:
        return sc_lz4hc_encode(state, op->level, src, n, dst, capacity, got);
    case SC_BLOSC_ZLIB:
        status = sc_deflate(state, SC_WRAP_ZLIB, op->level, src, n, dst, capacity, got, where);
        break;
    default:
        status =
            sc_zstd_encode(state, op->level < 9 ? op->level * 2 - 1 : 22, false, src, n, dst, capacity, got, where);
    }
    return status == SC_DST_TOO_SMALL ? SC_OK : status;
}

/* Write the (shuffled) block to dst[*at], *at moves on. *at = 0: the container would grow beyond `limit`. */
static enum sc_status
encode_block(const struct sc_op *op, const struct container *c, struct sc_codec_state *state, uint32_t block,
             const uint8_t *src, uint8_t *dst, size_t limit, size_t *at, struct sc_where *where)
{
    const uint32_t n_parts = count_parts(c, block), part = block_nbytes(c, block) / n_parts;
    size_t n = *at;

    *at = 0;
    for (uint32_t i = 0; i < n_parts; i++, src += part) {
        enum sc_status status;
        size_t got;

        if (limit - n <= 4)
            return SC_OK;
        n += 4;
        status = encode_part(op, state, src, part, dst + n, min_u64(part, limit - n), &got, where);
        if (status != SC_OK)
            return status;
        if (got == 0 || got == part) {
            if (part > limit - n)
                return SC_OK;
            memcpy(dst + n, src, part);
            got = part;
        }
        store_le32(dst + n - 4, (uint32_t)got);
        n += got;
    }
    *at = n;
    return SC_OK;
}

/* Write offsets and blocks behind the header. *total = 0: they do not fit `limit`. */
static enum sc_status
encode_blocks(const struct sc_op *op, const struct container *c, struct sc_codec_state *state, const uint8_t *src,
              uint8_t *dst, size_t limit, size_t *total, struct sc_where *where)
{
    size_t at = HEADER_NBYTES + (size_t)c->n_blocks * 4;

    *total = 0;
    if (at > limit)
        return SC_OK;
    for (uint32_t block = 0; block < c->n_blocks; block++) {
        const uint32_t nbytes = block_nbytes(c, block);
        const uint8_t *from = src + (size_t)block * c->blocksize;
        enum sc_status status;

        if (is_shuffled(c, nbytes)) {
            uint8_t *shuffled = scratch(state, c->blocksize);

            if (!shuffled)
                return SC_NO_MEMORY;
            if (c->flags & FLAG_SHUFFLE)
                sc_shuffle(c->typesize, nbytes, from, shuffled);
            else
                sc_bitshuffle(c->typesize, nbytes, from, shuffled);
            from = shuffled;
        }
        store_le32(dst + HEADER_NBYTES + (size_t)block * 4, (uint32_t)at);
        status = encode_block(op, c, state, block, from, dst, limit, &at, where);
        if (status != SC_OK || at == 0)
            return status;
    }
    *total = at;
    return SC_OK;
}

static void
write_header(const struct container *c, size_t cbytes, uint8_t *dst)
{
    dst[0] = FORMAT;
    dst[1] = LZ_FORMAT;
    dst[2] = (uint8_t)c->flags;
    dst[3] = (uint8_t)c->typesize;
    store_le32(dst + 4, c->nbytes);
    store_le32(dst + 8, c->blocksize);
    store_le32(dst + 12, (uint32_t)cbytes);
}

static struct container
plan_container(const struct sc_op *op, size_t nbytes)
{
    struct container c = { .typesize = op->typesize,
                           .nbytes = (uint32_t)nbytes,
                           .compressor = wire_compressor(op->compressor) };

    c.blocksize = choose_blocksize(op, c.nbytes);
    c.n_blocks = c.nbytes / c.blocksize + (c.nbytes % c.blocksize != 0);
    c.flags = (unsigned)c.compressor << 5;
    if (!does_split(op, c.blocksize))
        c.flags |= FLAG_NO_SPLIT;
    if (op->shuffle == SC_BLOSC_SHUFFLE)
        c.flags |= FLAG_SHUFFLE;
    else if (op->shuffle == SC_BLOSC_BITSHUFFLE)
        c.flags |= FLAG_BITSHUFFLE;
    if (op->level == 0 || nbytes < MIN_PART_NBYTES)
        c.flags |= FLAG_STORED;
    return c;
}

static bool
is_valid(const struct sc_op *op)
{
    return op->level >= 0 && op->level <= 9 && op->typesize >= 1 && op->typesize <= MAX_TYPESIZE &&
           op->compressor >= SC_BLOSC_BLOSCLZ && op->compressor <= SC_BLOSC_ZSTD && op->shuffle >= SC_BLOSC_NOSHUFFLE &&
           op->shuffle <= SC_BLOSC_BITSHUFFLE;
}

static size_t
bound(const struct sc_op *op, size_t nbytes)
{
    (void)op;
    return nbytes > MAX_NBYTES ? 0 : nbytes + HEADER_NBYTES;
}

static enum sc_status
encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const size_t limit = min_u64(dst_capacity, src_nbytes + HEADER_NBYTES);
    enum sc_status status = SC_OK;
    struct container c;
    size_t total = 0;

    if (!is_valid(op) || src_nbytes > MAX_NBYTES)
        return SC_BAD_ARGUMENT;
    if (op->compressor == SC_BLOSC_BLOSCLZ && !SC_HAS_BLOSCLZ_ENCODER)
        return sc_codec_failed(SC_CODEC_ENCODE, where, "blosc", "this build has no blosclz encoder", 0, src_nbytes);
    c = plan_container(op, src_nbytes);
    if (!(c.flags & FLAG_STORED))
        status = encode_blocks(op, &c, state, src, dst, limit, &total, where);
    if (status != SC_OK) {
        where->codec = "blosc";
        return status;
    }
    if (total == 0) {
        total = src_nbytes + HEADER_NBYTES;
        if (total > dst_capacity)
            return sc_codec_failed(SC_DST_TOO_SMALL, where, "blosc", "output full", 0, src_nbytes);
        if (src_nbytes > 0)
            memcpy(dst + HEADER_NBYTES, src, src_nbytes);
        c.flags |= FLAG_STORED;
    }
    write_header(&c, total, dst);
    *dst_nbytes = total;
    return SC_OK;
}

const struct sc_codec sc_codec_blosc = { "blosc", bound, encode, decode, decode_some };
