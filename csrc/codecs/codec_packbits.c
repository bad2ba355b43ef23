/* codec_packbits.c - the filter "packbits" of numcodecs, for truth values
 *
 * encoded = the number of unused bits of the last byte, then 8 elements to a byte, the first one the highest bit
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"

static size_t
bound(const struct sc_op *op, size_t nbytes)
{
    (void)op;
    return 1 + nbytes / 8 + (nbytes % 8 > 0);
}

static enum sc_status
encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const size_t n_packed = bound(op, src_nbytes), n_whole = src_nbytes / 8;

    (void)state;
    (void)where;
    if (dst_capacity < n_packed)
        return SC_DST_TOO_SMALL;
    *dst++ = (uint8_t)((8 - src_nbytes % 8) % 8);
    for (size_t i = 0; i < n_whole; i++) {
        const uint64_t flags = load_le64(src + 8 * i), low = 0x7f7f7f7f7f7f7f7f;
        const uint64_t ones = (((flags & low) + low) | flags) >> 7 & 0x0101010101010101;

        dst[i] = (uint8_t)(ones * 0x8040201008040201 >> 56); /* the 1 of byte k becomes bit 7 - k */
    }
    if (src_nbytes % 8) {
        unsigned byte = 0;

        for (size_t k = 0; k < src_nbytes % 8; k++)
            byte |= (unsigned)(src[8 * n_whole + k] != 0) << (7 - k);
        dst[n_whole] = (uint8_t)byte;
    }
    *dst_nbytes = n_packed;
    return SC_OK;
}

static enum sc_status
decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    size_t n;

    (void)op;
    (void)state;
    if (!src_nbytes)
        return sc_codec_failed(SC_CODEC_DATA, where, "packbits", "no number of unused bits", 0, src_nbytes);
    if (src_nbytes - 1 > SIZE_MAX / 8 || src[0] > 8 * (src_nbytes - 1))
        return sc_codec_failed(SC_CODEC_DATA, where, "packbits", "more unused bits than bits", src[0], src_nbytes);
    n = 8 * (src_nbytes - 1) - src[0];
    if (n > dst_capacity)
        return SC_DST_TOO_SMALL;
    for (size_t i = 0; i < n / 8; i++) {
        const uint64_t bits = src[1 + i] * UINT64_C(0x0101010101010101) & 0x0102040810204080; /* one of each byte */

        store_le64(dst + 8 * i, (bits + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101);
    }
    for (size_t i = n / 8 * 8; i < n; i++)
        dst[i] = src[1 + i / 8] >> (7 - i % 8) & 1;
    *dst_nbytes = n;
    return SC_OK;
}

const struct sc_codec sc_codec_packbits = {
    .name = "packbits",
    .max_nbytes = SIZE_MAX,
    .fixed_size = true,
    .bound = bound,
    .encode = encode,
    .decode = decode,
};
