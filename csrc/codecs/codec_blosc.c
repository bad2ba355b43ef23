/* codec_blosc.c - Zarr codec "blosc": containers of Blosc1, read without a Blosc library
 *
 * Blosc2 cannot be used: it writes containers that Blosc1, and so zarr, refuses, and reads some bit-shuffled ones
 * wrongly without an error. The decoder accepts only what a Blosc1 encoder can write. Formats 1 (older than the first
 * release) and 3 and later (Blosc2) are refused, as C-Blosc 1.21 refuses them.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_blosc_impl.h"

static enum sc_status
malformed(struct sc_where *where, const char *detail, size_t nbytes)
{
    sc_codec_failed(SC_CODEC_DATA, where, "blosc", detail, 0, nbytes);
    return SC_CODEC_DATA; /* repeated for the compiler, which otherwise warns of unset variables */
}

/* Check all that can be checked before a block is read.
 *
 * The container has to be the whole chunk, as in TensorStore. C-Blosc looks only at the size in the header, and
 * would read past a chunk that was cut. */
static enum sc_status
read_header(const uint8_t *src, size_t n, struct sc_blosc_container *c, struct sc_where *where)
{
    if (n < HEADER_NBYTES)
        return malformed(where, "shorter than a header", n);
    if (src[0] != FORMAT)
        return malformed(where, src[0] > FORMAT ? "a container of Blosc2, not of Blosc1" : "unknown format", n);
    *c = (struct sc_blosc_container){ .flags = src[2],
                                      .typesize = src[3],
                                      .nbytes = load_le32(src + 4),
                                      .blocksize = load_le32(src + 8),
                                      .compressor = (enum sc_blosc_wire)(src[2] >> 5) };
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
decode_part(const struct sc_blosc_container *c, struct sc_codec_state *state, const uint8_t *src, size_t n,
            uint8_t *dst, size_t dst_nbytes, struct sc_where *where)
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

/* Decode the block with this number to dst, still shuffled; if dst is NULL, check its framing only. */
static enum sc_status
decode_block(const struct sc_blosc_container *c, struct sc_codec_state *state, const uint8_t *src, size_t n,
             uint32_t block, uint8_t *dst, struct sc_where *where)
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
decode_blocks(const struct sc_blosc_container *c, struct sc_codec_state *state, const uint8_t *src, size_t n,
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
        if (is_shuffled(c, nbytes) && !(to = sc_blosc_scratch(state, c->blocksize)))
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
    struct sc_blosc_container c;
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

static uint64_t
claimed_nbytes(const uint8_t *src, size_t src_nbytes)
{
    return src_nbytes < HEADER_NBYTES ? 0 : load_le32(src + 4);
}

const struct sc_codec sc_codec_blosc = {
    .name = "blosc",
    .max_nbytes = MAX_NBYTES,
    .bound = sc_blosc_bound,
    .encode = sc_blosc_encode,
    .decode = decode,
    .claimed_nbytes = claimed_nbytes,
    .decode_some = decode_some,
};
