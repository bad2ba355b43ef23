/* sc_libs.h - the few functions of other people's libraries that csrc calls
 *
 * The archive inside the blosc2 wheel brings the compiled libraries but not their headers. What is declared here was
 * written down from their documentation; sc_codec_selftest() holds it against the linked code when the extension is
 * imported. Compare these four lists again when the pin blosc2==4.14.1 in pyproject.toml changes.
 *
 * With SHARDCODEC_SYSTEM_LIBS the system's own headers are used, and zlib under the names of zlib-ng.
 * SPDX-License-Identifier: MIT */
#ifndef SC_LIBS_H
#define SC_LIBS_H

#include <stddef.h>
#include <stdint.h>

#ifdef SHARDCODEC_SYSTEM_LIBS

#define ZLIB_CONST 1
#include <lz4.h>
#include <lz4hc.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

typedef z_stream zng_stream;
#define zng_deflateInit2 deflateInit2
#define zng_deflateReset deflateReset
#define zng_deflate deflate
#define zng_deflateEnd deflateEnd
#define zng_crc32_z crc32_z
#define zng_adler32_z adler32_z
#define zlibng_version zlibVersion

#else

/* ---- zstd 1.5.7: all of it belongs to the stable API of libzstd 1 */

typedef struct ZSTD_CCtx_s ZSTD_CCtx;
typedef struct ZSTD_DCtx_s ZSTD_DCtx;
typedef enum {
    ZSTD_c_compressionLevel = 100,
    ZSTD_c_minMatch = 105,
    ZSTD_c_targetLength = 106,
    ZSTD_c_checksumFlag = 201
} ZSTD_cParameter;
typedef enum { ZSTD_error_memory_allocation = 64, ZSTD_error_dstSize_tooSmall = 70 } ZSTD_ErrorCode;

ZSTD_CCtx *ZSTD_createCCtx(void);
size_t ZSTD_freeCCtx(ZSTD_CCtx *cctx);
size_t ZSTD_CCtx_setParameter(ZSTD_CCtx *cctx, ZSTD_cParameter parameter, int value);
size_t ZSTD_compress2(ZSTD_CCtx *cctx, void *dst, size_t dst_capacity, const void *src, size_t src_nbytes);
size_t ZSTD_compressBound(size_t src_nbytes);
ZSTD_DCtx *ZSTD_createDCtx(void);
size_t ZSTD_freeDCtx(ZSTD_DCtx *dctx);
unsigned long long ZSTD_getFrameContentSize(const void *src, size_t src_nbytes);
size_t ZSTD_decompressDCtx(ZSTD_DCtx *dctx, void *dst, size_t dst_capacity, const void *src, size_t src_nbytes);
unsigned ZSTD_isError(size_t code);
ZSTD_ErrorCode ZSTD_getErrorCode(size_t code);
const char *ZSTD_getErrorName(size_t code);
const char *ZSTD_versionString(void);

#define ZSTD_CONTENTSIZE_ERROR (0ULL - 2)

/* ---- lz4 1.10: stable API, but for the two _fastReset functions, which lz4 keeps for static linking */

typedef union LZ4_stream_u LZ4_stream_t;
typedef union LZ4_streamHC_u LZ4_streamHC_t;

int LZ4_sizeofState(void);
LZ4_stream_t *LZ4_initStream(void *state, size_t state_nbytes);
int LZ4_compress_fast_extState_fastReset(void *state, const char *src, char *dst, int src_nbytes, int dst_capacity,
                                         int acceleration);
int LZ4_sizeofStateHC(void);
LZ4_streamHC_t *LZ4_initStreamHC(void *state, size_t state_nbytes);
int LZ4_compress_HC_extStateHC_fastReset(void *state, const char *src, char *dst, int src_nbytes, int dst_capacity,
                                         int level);
int LZ4_decompress_safe(const char *src, char *dst, int src_nbytes, int dst_capacity);
const char *LZ4_versionString(void);

/* ---- zlib-ng 2.3.3, native names. The library compares the size of zng_stream in deflateInit2_. */

typedef struct zng_stream_s {
    const uint8_t *next_in;
    uint32_t avail_in;
    size_t total_in;
    uint8_t *next_out;
    uint32_t avail_out;
    size_t total_out;
    const char *msg;
    struct internal_state *state;
    void *(*zalloc)(void *opaque, unsigned items, unsigned size);
    void (*zfree)(void *opaque, void *address);
    void *opaque;
    int data_type;
    uint32_t adler;
    unsigned long reserved;
} zng_stream;

enum { Z_NO_FLUSH = 0, Z_FINISH = 4 };
enum {
    Z_OK = 0,
    Z_STREAM_END = 1,
    Z_STREAM_ERROR = -2,
    Z_MEM_ERROR = -4,
    Z_BUF_ERROR = -5,
};
enum { Z_DEFAULT_STRATEGY = 0, Z_DEFLATED = 8 };

int32_t zng_deflateInit2_(zng_stream *stream, int32_t level, int32_t method, int32_t window_bits, int32_t mem_level,
                          int32_t strategy, const char *version, int32_t stream_size);
int32_t zng_deflateReset(zng_stream *stream);
int32_t zng_deflate(zng_stream *stream, int32_t flush);
int32_t zng_deflateEnd(zng_stream *stream);
uint32_t zng_crc32_z(uint32_t crc, const uint8_t *buf, size_t nbytes);
uint32_t zng_adler32_z(uint32_t adler, const uint8_t *buf, size_t nbytes);
const char *zlibng_version(void);

#define zng_deflateInit2(stream, level, method, window_bits, mem_level, strategy)                   \
    zng_deflateInit2_((stream), (level), (method), (window_bits), (mem_level), (strategy), "2.3.3", \
                      (int32_t)sizeof(zng_stream))

/* ---- C-Blosc2 3.3.5: shuffles and blosclz; nothing that knows of contexts, so blosc2.c is not linked.
 * blosclz_compress() is internal to C-Blosc2; its last argument, a context, is not used (checked in 3.3.5). */

int32_t blosc2_shuffle(int32_t typesize, int32_t nbytes, const void *src, void *dst);
int32_t blosc2_unshuffle(int32_t typesize, int32_t nbytes, const void *src, void *dst);
int32_t blosc2_bitshuffle(int32_t typesize, int32_t nbytes, const void *src, void *dst);
int32_t blosc2_bitunshuffle(int32_t typesize, int32_t nbytes, const void *src, void *dst);
int blosclz_compress(int level, const void *src, int src_nbytes, void *dst, int dst_capacity, void *context);

#define SC_BLOSC2_VERSION "3.3.5"

#endif
#endif
