/* codec_lz4.c - Zarr codec "lz4" as numcodecs has it: the decoded size (u4, little-endian), then one raw block
 *
 * The block has no size and no checksum of its own. So the size in front is compared with the output before decoding,
 * and with the decoded size after it.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"

#include <limits.h>

#include "base/sc_alloc.h"

#define PREFIX_NBYTES 4
#define MAX_INPUT_NBYTES 0x7E000000u /* LZ4_MAX_INPUT_SIZE */

#ifdef SHARDCODEC_SYSTEM_LIBS
/* A shared liblz4 keeps the _fastReset functions to itself. */
#define compress_fast LZ4_compress_fast_extState
#define compress_hc LZ4_compress_HC_extStateHC
#else
/* They spare the clearing of 16 KiB (lz4: 68 instead of 142 ns for a 64-byte chunk) or 256 KiB (lz4hc: 0.2 instead of
 * 4.8 us) and produce the same bytes. */
#define compress_fast LZ4_compress_fast_extState_fastReset
#define compress_hc LZ4_compress_HC_extStateHC_fastReset
#endif

enum sc_status
sc_lz4_encode(struct sc_codec_state *state, int acceleration, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
              size_t dst_capacity, size_t *dst_nbytes)
{
    const size_t state_nbytes = (size_t)LZ4_sizeofState();
    int n;

    *dst_nbytes = 0;
    if (src_nbytes > MAX_INPUT_NBYTES)
        return SC_BAD_ARGUMENT;
    if (!state->lz4_encoder) {
        if (!(state->lz4_encoder = sc_malloc(state_nbytes)))
            return SC_NO_MEMORY;
        LZ4_initStream(state->lz4_encoder, state_nbytes);
    }
    n = compress_fast(state->lz4_encoder, (const char *)src, (char *)dst, (int)src_nbytes,
                      (int)min_u64(dst_capacity, INT_MAX), acceleration);
    if (n > 0)
        *dst_nbytes = (size_t)n;
    else
        LZ4_initStream(state->lz4_encoder, state_nbytes); /* undefined after a block that did not fit */
    return SC_OK;
}

enum sc_status
sc_lz4hc_encode(struct sc_codec_state *state, int level, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
                size_t dst_capacity, size_t *dst_nbytes)
{
    const size_t state_nbytes = (size_t)LZ4_sizeofStateHC();
    int n;

    *dst_nbytes = 0;
    if (src_nbytes > MAX_INPUT_NBYTES)
        return SC_BAD_ARGUMENT;
    if (!state->lz4hc_encoder) {
        if (!(state->lz4hc_encoder = sc_malloc(state_nbytes)))
            return SC_NO_MEMORY;
        LZ4_initStreamHC(state->lz4hc_encoder, state_nbytes);
    }
    n = compress_hc(state->lz4hc_encoder, (const char *)src, (char *)dst, (int)src_nbytes,
                    (int)min_u64(dst_capacity, INT_MAX), level);
    if (n > 0)
        *dst_nbytes = (size_t)n;
    else
        LZ4_initStreamHC(state->lz4hc_encoder, state_nbytes);
    return SC_OK;
}

enum sc_status
sc_lz4_decode(const uint8_t *src, size_t src_nbytes, uint8_t *dst, size_t dst_nbytes, struct sc_where *where)
{
    uint8_t nothing;
    int n;

    if (src_nbytes > INT_MAX || dst_nbytes > INT_MAX)
        return sc_codec_failed(SC_CODEC_DATA, where, "lz4", "block is too large for lz4", 0, src_nbytes);
    n = LZ4_decompress_safe((const char *)src, (char *)(dst ? dst : &nothing), (int)src_nbytes, (int)dst_nbytes);
    if (n < 0)
        return sc_codec_failed(SC_CODEC_DATA, where, "lz4", "malformed or cut block", n, src_nbytes);
    if ((size_t)n != dst_nbytes)
        return sc_codec_failed(SC_CODEC_DATA, where, "lz4", "block holds less than it should", n, src_nbytes);
    return SC_OK;
}

void
sc_lz4_release(struct sc_codec_state *state)
{
    sc_free(state->lz4_encoder);
    sc_free(state->lz4hc_encoder);
}

static size_t
bound(const struct sc_op *op, size_t nbytes)
{
    (void)op;
    return nbytes > MAX_INPUT_NBYTES ? 0 : PREFIX_NBYTES + nbytes + nbytes / 255 + 16;
}

static enum sc_status
encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    enum sc_status status;
    size_t n;

    if (dst_capacity <= PREFIX_NBYTES)
        return SC_DST_TOO_SMALL;
    status = sc_lz4_encode(state, op->level, src, src_nbytes, dst + PREFIX_NBYTES, dst_capacity - PREFIX_NBYTES, &n);
    if (status != SC_OK)
        return status;
    if (n == 0)
        return sc_codec_failed(SC_DST_TOO_SMALL, where, "lz4", "output full", 0, src_nbytes);
    store_le32(dst, (uint32_t)src_nbytes);
    *dst_nbytes = PREFIX_NBYTES + n;
    return SC_OK;
}

static enum sc_status
decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    enum sc_status status;
    uint32_t n;

    (void)op;
    (void)state;
    if (src_nbytes <= PREFIX_NBYTES)
        return sc_codec_failed(SC_CODEC_DATA, where, "lz4", "no block behind the size", 0, src_nbytes);
    n = load_le32(src);
    if (n > MAX_INPUT_NBYTES)
        return sc_codec_failed(SC_CODEC_DATA, where, "lz4", "claims more than a block can hold", 0, src_nbytes);
    if (n > dst_capacity)
        return sc_codec_failed(SC_DST_TOO_SMALL, where, "lz4", "output full", 0, src_nbytes);
    status = sc_lz4_decode(src + PREFIX_NBYTES, src_nbytes - PREFIX_NBYTES, dst, n, where);
    if (status == SC_OK)
        *dst_nbytes = n;
    return status;
}

static uint64_t
claimed_nbytes(const uint8_t *src, size_t src_nbytes)
{
    return src_nbytes < 4 ? 0 : load_le32(src);
}

const struct sc_codec sc_codec_lz4 = {
    .name = "lz4",
    .max_nbytes = MAX_INPUT_NBYTES,
    .bound = bound,
    .encode = encode,
    .decode = decode,
    .claimed_nbytes = claimed_nbytes,
};
