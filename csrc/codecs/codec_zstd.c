/* codec_zstd.c - Zarr codec "zstd"
 *
 * A chunk is written as one frame with its content size: the bytes that numcodecs writes with the same zstd. Only
 * chunks of at most TINY_NBYTES at level 1 differ, see there.
 *
 * It reads everything that zstd reads: frames without a size, several frames, skippable frames. All is in memory, so
 * the window that a hostile frame asks for is never allocated.
 *
 * A context takes 15 us to make; a 64-byte chunk takes 1 us to encode and 20 ns to decode (if it is stored). So
 * contexts are kept. Parameters stay set in a context, so they are set only when they change.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"

#include "base/sc_alloc.h"

static enum sc_status
fail(enum sc_status otherwise, struct sc_where *where, size_t result, size_t nbytes)
{
    ZSTD_ErrorCode code = ZSTD_getErrorCode(result);

    if (code == ZSTD_error_memory_allocation)
        return SC_NO_MEMORY;
    if (code == ZSTD_error_dstSize_tooSmall)
        otherwise = SC_DST_TOO_SMALL;
    return sc_codec_failed(otherwise, where, "zstd", ZSTD_getErrorName(result), (int64_t)code, nbytes);
}

/* Level 1 searches matches of 5 bytes or more. In a chunk this small most of these are random, and storing one takes
 * more bytes than it saves. With a minimum of 7 (the largest that zstd has) 512-byte chunks of 3-d uint8 were encoded
 * 11 % faster to 2.7 % fewer bytes; text took 1.4 % more, pixels of three equal bytes 3.9 %.
 *
 * If a chunk has hardly any matches, it is better not to search: the few matches need three tables. A short test of
 * the chunk decides. The same chunks: another 25 % faster, 0.9 % fewer bytes; counts 20 and 0.2 %; MRI, float32,
 * int64, labels and masks the same within 3 %; text of 512 bytes 0.3 % more bytes. */
#define TINY_NBYTES 1024
#define TINY_MIN_MATCH 7
#define TINY_NBYTES_PER_REPEAT 128
#define SEARCH_ALL 0
#define SEARCH_NEXT_TO_NOTHING 256 /* bytes between the places where zstd looks */

/* With such steps zstd does not compress literals by default. The parameter has had its number and these values
 * since 1.3.8, but only the static library promises it. If it is refused, all chunks are searched. */
#define LITERAL_COMPRESSION ((ZSTD_cParameter)1002)
#define LITERALS_AUTO 0
#define LITERALS_HUFFMAN 1

/* Return the next 7 bytes, the length of a match. */
static uint64_t
seven(const uint8_t *p)
{
    return load_le64(p) << 8;
}

static unsigned
slot_of(uint64_t bytes)
{
    return (unsigned)(bytes * UINT64_C(0xCF1BBCDCBFA56300) >> 55); /* the multiplier is that of zstd's own hashes */
}

/* True if hardly any 7 bytes occur twice. Of 8 places 3 are stored (at 0, 1 and 2) and 3 are looked up (at 0, 3 and
 * 6). Their differences cover all values modulo 8, so every distance is found. */
static bool
hardly_repeats(const uint8_t *src, size_t nbytes)
{
    uint16_t seen[512] = { 0 }; /* position; 0 at first, so the first bytes count as seen */
    unsigned n_repeats = 0, most = (unsigned)(nbytes / TINY_NBYTES_PER_REPEAT);

    for (size_t i = 1; i + 6 + 8 <= nbytes && n_repeats <= most; i += 8) {
        uint64_t at_0 = seven(src + i), at_3 = seven(src + i + 3), at_6 = seven(src + i + 6);
        unsigned slot = slot_of(at_0);

        n_repeats += seven(src + seen[slot]) == at_0;
        n_repeats += seven(src + seen[slot_of(at_3)]) == at_3;
        n_repeats += seven(src + seen[slot_of(at_6)]) == at_6;
        seen[slot] = (uint16_t)i;
        seen[slot_of(seven(src + i + 1))] = (uint16_t)(i + 1);
        seen[slot_of(seven(src + i + 2))] = (uint16_t)(i + 2);
    }
    return n_repeats <= most;
}

/* zstd clamps levels beyond its limits. 0 selects the default of the level, of the shortest match and of the search. */
static void
set_up(struct sc_codec_state *state, int level, bool checksum, bool tiny)
{
    ZSTD_CCtx *c = state->zstd_encoder;

    ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, checksum);
    ZSTD_CCtx_setParameter(c, ZSTD_c_minMatch, tiny ? TINY_MIN_MATCH : 0);
    ZSTD_CCtx_setParameter(c, ZSTD_c_targetLength, SEARCH_ALL);
    state->zstd_may_skip =
        !ZSTD_isError(ZSTD_CCtx_setParameter(c, LITERAL_COMPRESSION, tiny ? LITERALS_HUFFMAN : LITERALS_AUTO));
    state->zstd_level = level;
    state->zstd_checksum = checksum;
    state->zstd_tiny = tiny;
    state->zstd_search = SEARCH_ALL;
}

/* A context ready for a frame of this level and checksum; NULL: no memory. */
static ZSTD_CCtx *
encoder(struct sc_codec_state *state, int level, bool checksum, const uint8_t *src, size_t src_nbytes)
{
    bool tiny = level == 1 && src_nbytes <= TINY_NBYTES, is_new = !state->zstd_encoder;
    int search;

    if (is_new && !(state->zstd_encoder = sc_alloc_allows(0) ? ZSTD_createCCtx() : NULL))
        return NULL;
    if (is_new || state->zstd_level != level || state->zstd_checksum != checksum || state->zstd_tiny != tiny)
        set_up(state, level, checksum, tiny);
    search = tiny && state->zstd_may_skip && hardly_repeats(src, src_nbytes) ? SEARCH_NEXT_TO_NOTHING : SEARCH_ALL;
    if (search != state->zstd_search)
        ZSTD_CCtx_setParameter(state->zstd_encoder, ZSTD_c_targetLength, state->zstd_search = search);
    return state->zstd_encoder;
}

enum sc_status
sc_zstd_encode(struct sc_codec_state *state, int level, bool checksum, const uint8_t *src, size_t src_nbytes,
               uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    ZSTD_CCtx *c = encoder(state, level, checksum, src, src_nbytes);
    size_t n;

    if (!c)
        return SC_NO_MEMORY;
    n = ZSTD_compress2(c, dst, dst_capacity, src, src_nbytes);
    if (ZSTD_isError(n))
        return fail(SC_CODEC_ENCODE, where, n, src_nbytes);
    *dst_nbytes = n;
    return SC_OK;
}

enum sc_status
sc_zstd_decode(struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst, size_t dst_capacity,
               size_t *dst_nbytes, struct sc_where *where)
{
    uint8_t nothing;
    size_t n;

    /* zstd takes no bytes for no frames, decoded without error */
    if (src_nbytes == 0)
        return sc_codec_failed(SC_CODEC_DATA, where, "zstd", "no frame", 0, 0);
    if (!state->zstd_decoder && !(state->zstd_decoder = sc_alloc_allows(0) ? ZSTD_createDCtx() : NULL))
        return SC_NO_MEMORY;
    n = ZSTD_decompressDCtx(state->zstd_decoder, dst ? dst : &nothing, dst ? dst_capacity : 0, src, src_nbytes);
    if (ZSTD_isError(n))
        return fail(SC_CODEC_DATA, where, n, src_nbytes);
    *dst_nbytes = n;
    return SC_OK;
}

void
sc_zstd_release(struct sc_codec_state *state)
{
    ZSTD_freeCCtx(state->zstd_encoder);
    ZSTD_freeDCtx(state->zstd_decoder);
}

static size_t
bound(const struct sc_op *op, size_t nbytes)
{
    size_t n = ZSTD_compressBound(nbytes);

    (void)op;
    return ZSTD_isError(n) ? 0 : n;
}

static enum sc_status
encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    return sc_zstd_encode(state, op->level, op->checksum, src, src_nbytes, dst, dst_capacity, dst_nbytes, where);
}

static enum sc_status
decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    (void)op;
    return sc_zstd_decode(state, src, src_nbytes, dst, dst_capacity, dst_nbytes, where);
}

/* That of the first frame. */
static uint64_t
claimed_nbytes(const uint8_t *src, size_t src_nbytes)
{
    unsigned long long n = ZSTD_getFrameContentSize(src, src_nbytes);

    return n >= ZSTD_CONTENTSIZE_ERROR ? 0 : n;
}

const struct sc_codec sc_codec_zstd = {
    .name = "zstd",
    .max_nbytes = SIZE_MAX,
    .bound = bound,
    .encode = encode,
    .decode = decode,
    .claimed_nbytes = claimed_nbytes,
};
