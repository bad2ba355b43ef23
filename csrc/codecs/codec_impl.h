/* codec_impl.h - what the codec_*.c files share: the state behind sc_codec.h, and the bare compressors
 *
 * The compressors here have no framing of a Zarr codec, because Blosc containers use the same ones. On failure they
 * fill *where with their own name; codec_blosc*.c replace it.
 * SPDX-License-Identifier: MIT */
#ifndef SC_CODEC_IMPL_H
#define SC_CODEC_IMPL_H

#include "codecs/sc_codec.h"
#include "codecs/sc_libs.h"

enum sc_wrap { SC_WRAP_GZIP = 0, SC_WRAP_ZLIB = 1 };

struct sc_deflater {
    zng_stream stream;
    int level; /* that the stream was opened with */
    bool is_open;
};

/* Each member is made at its first use, so an array that is only read has no encoder. */
struct sc_codec_state {
    ZSTD_CCtx *zstd_encoder;
    int zstd_level; /* what the encoder is set to */
    bool zstd_checksum;
    bool zstd_tiny;
    bool zstd_may_skip; /* the library accepts the parameter for a search with steps */
    int zstd_search;
    ZSTD_DCtx *zstd_decoder;
    struct sc_deflater deflaters[2]; /* by enum sc_wrap */
    struct sc_inflate_tables *inflate_tables;
    void *lz4_encoder;
    void *lz4hc_encoder;
    uint8_t *scratch; /* one Blosc block between compressor and shuffle */
    size_t scratch_nbytes;
};

#define SC_CODEC_EXTERN(ID, name) extern const struct sc_codec sc_codec_##name;
SC_CODECS(SC_CODEC_EXTERN)

/* One frame with its content size. */
enum sc_status sc_zstd_encode(struct sc_codec_state *state, int level, bool checksum, const uint8_t *src,
                              size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes,
                              struct sc_where *where);
enum sc_status sc_zstd_decode(struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
                              size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where);
void sc_zstd_release(struct sc_codec_state *state);

/* level: 0..9 as in zlib, where equal levels give files of about equal size. */
enum sc_status sc_deflate(struct sc_codec_state *state, enum sc_wrap wrap, int level, const uint8_t *src,
                          size_t src_nbytes, uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes,
                          struct sc_where *where);
/* Exactly one zlib stream, or gzip members up to the end. */
enum sc_status sc_inflate(struct sc_codec_state *state, enum sc_wrap wrap, const uint8_t *src, size_t src_nbytes,
                          uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where);
void sc_deflate_release(struct sc_codec_state *state);

/* One raw block. *dst_nbytes is 0 when it does not fit; that is no failure. */
enum sc_status sc_lz4_encode(struct sc_codec_state *state, int acceleration, const uint8_t *src, size_t src_nbytes,
                             uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes);
enum sc_status sc_lz4hc_encode(struct sc_codec_state *state, int level, const uint8_t *src, size_t src_nbytes,
                               uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes);
/* One raw block that holds exactly dst_nbytes. */
enum sc_status sc_lz4_decode(const uint8_t *src, size_t src_nbytes, uint8_t *dst, size_t dst_nbytes,
                             struct sc_where *where);
void sc_lz4_release(struct sc_codec_state *state);

#define SC_BLOSCLZ_FAR 8192 /* the least distance of a far match */

/* Encode one blosclz stream of level 1..9; 0: it does not fit. */
size_t sc_blosclz_encode(int level, const uint8_t *src, size_t src_nbytes, uint8_t *dst, size_t dst_capacity);
/* Decode one blosclz stream; false unless it holds exactly dst_nbytes. */
bool sc_blosclz_decode(const uint8_t *src, size_t src_nbytes, uint8_t *dst, size_t dst_nbytes);

/* The shuffles of Blosc1 (codec_shuffle.c). typesize 1..255; src and dst do not overlap. */
void sc_shuffle(size_t typesize, size_t nbytes, const uint8_t *src, uint8_t *dst);
void sc_unshuffle(size_t typesize, size_t nbytes, const uint8_t *src, uint8_t *dst);
void sc_bitshuffle(size_t typesize, size_t nbytes, const uint8_t *src, uint8_t *dst);
void sc_bitunshuffle(size_t typesize, size_t nbytes, const uint8_t *src, uint8_t *dst);

/* For the self-test: true if the linked shuffles give the bytes of our own. */
bool sc_shuffle_selftest(void);

#endif
