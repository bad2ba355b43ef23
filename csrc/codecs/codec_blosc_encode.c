/* codec_blosc_encode.c - containers of Blosc1, written without a Blosc library
 *
 * The encoder decides as C-Blosc 1.21 does (block sizes, splits, which blocks are stored). So its containers are those
 * that zarr writes: the same bytes with the same version of the compressor.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_blosc_impl.h"

#define MAX_TYPESIZE 255
#define MAX_BLOCKSIZE ((INT32_MAX - MAX_TYPESIZE * 4) / 3)
#define L1_NBYTES (32u << 10)

static enum sc_blosc_wire
wire_compressor(int compressor)
{
    static const enum sc_blosc_wire codes[] = { [SC_BLOSC_BLOSCLZ] = WIRE_BLOSCLZ,
                                                [SC_BLOSC_LZ4] = WIRE_LZ4,
                                                [SC_BLOSC_LZ4HC] = WIRE_LZ4,
                                                [SC_BLOSC_ZLIB] = WIRE_ZLIB,
                                                [SC_BLOSC_ZSTD] = WIRE_ZSTD };

    return codes[compressor];
}

/* The default of C-Blosc since 1.14: split as the versions did that do not know the flag. They do not know zstd
 * either. */
static bool
does_split(const struct sc_op *op, uint32_t blocksize)
{
    return op->compressor != SC_BLOSC_ZSTD && is_splittable(op->typesize, blocksize);
}

/* Block size by level 1..9, in units of the L1 cache, times 4: for compressors made for ratio (lz4hc, zlib, zstd)
 * and for the others. Level 0 only stores. */
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

/* Return the block size of C-Blosc 1.21 for a chunk of nbytes. */
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

/* Write the (shuffled) block to dst[*at] and advance *at. *at = 0: the container would grow beyond `limit`. */
static enum sc_status
encode_block(const struct sc_op *op, const struct sc_blosc_container *c, struct sc_codec_state *state, uint32_t block,
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
encode_blocks(const struct sc_op *op, const struct sc_blosc_container *c, struct sc_codec_state *state,
              const uint8_t *src, uint8_t *dst, size_t limit, size_t *total, struct sc_where *where)
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
            uint8_t *shuffled = sc_blosc_scratch(state, c->blocksize);

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
write_header(const struct sc_blosc_container *c, size_t cbytes, uint8_t *dst)
{
    dst[0] = FORMAT;
    dst[1] = LZ_FORMAT;
    dst[2] = (uint8_t)c->flags;
    dst[3] = (uint8_t)c->typesize;
    store_le32(dst + 4, c->nbytes);
    store_le32(dst + 8, c->blocksize);
    store_le32(dst + 12, (uint32_t)cbytes);
}

static struct sc_blosc_container
plan_container(const struct sc_op *op, size_t nbytes)
{
    struct sc_blosc_container c = { .typesize = op->typesize,
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

size_t
sc_blosc_bound(const struct sc_op *op, size_t nbytes)
{
    (void)op;
    return nbytes > MAX_NBYTES ? 0 : nbytes + HEADER_NBYTES;
}

enum sc_status
sc_blosc_encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes,
                uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const size_t limit = min_u64(dst_capacity, src_nbytes + HEADER_NBYTES);
    enum sc_status status = SC_OK;
    struct sc_blosc_container c;
    size_t total = 0;

    if (!is_valid(op) || src_nbytes > MAX_NBYTES)
        return SC_BAD_ARGUMENT;
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
