/* codec_gzip.c - Zarr codec "gzip", and "zlib" as numcodecs has it: deflate in two wrappings
 *
 * It reads as Python's gzip module does: members one after another, each followed by any number of zero bytes; no
 * member at all is an empty file. Checksum and length of every member are compared.
 *
 * zlib-ng encodes and computes checksums. Decoding is our own (sc_inflate.c): a chunk is whole in memory, so the
 * decoder need not be able to stop after any byte. It takes 0.7 to 0.85 of the time of zlib-ng.
 *
 * Levels. zlib-ng's level 1 is a one-pass encoder with fixed codes, whose files are 13 to 64 % larger than those of
 * zlib at level 1. So our level 1 is its level 2. Over 19 arrays of many kinds in 64 KiB chunks, our files at level 1
 * are then between 23 % smaller and 6 % larger than zlib's (median 2 % smaller), and encoding is 1.3 to 1.7 times as
 * fast. The other levels are unchanged and give about the same. No mapping helps against this: below level 9 zlib-ng
 * does not search matches of 3 bytes. Noisy 16-bit integers lose 3 to 6 % by that, and a plain ramp of uint32, which
 * consists of them, needs 1.8 times the bytes.
 * SPDX-License-Identifier: MIT */
#include "base/sc_alloc.h"
#include "kernels/sc_inflate.h"
#include "codecs/codec_impl.h"

#define WINDOW_BITS 15
#define GZIP_WINDOW_BITS (WINDOW_BITS + 16) /* zlib's way to ask for the gzip wrapping */
#define MEM_LEVEL 8

static const char *const names[] = { "gzip", "zlib" };
static const int window_bits[] = { GZIP_WINDOW_BITS, WINDOW_BITS };

/* Hand the rest of both buffers to the library, as much as its 32-bit counters take. */
static void
offer(zng_stream *s, const uint8_t *src, size_t src_nbytes, uint8_t *dst, size_t dst_capacity)
{
    s->next_in = src;
    s->avail_in = (uint32_t)min_u64(src_nbytes, UINT32_MAX);
    s->next_out = dst;
    s->avail_out = (uint32_t)min_u64(dst_capacity, UINT32_MAX);
}

/* Deflate until the stream ends, fails, or makes no progress. Almost always that is one call. The four cursors move. */
static int
run(zng_stream *s, const uint8_t **src, size_t *src_nbytes, uint8_t **dst, size_t *dst_capacity)
{
    size_t taken, given;
    int code;

    do {
        offer(s, *src, *src_nbytes, *dst, *dst_capacity);
        code = zng_deflate(s, *src_nbytes <= UINT32_MAX ? Z_FINISH : Z_NO_FLUSH);
        taken = (size_t)(s->next_in - *src);
        given = (size_t)(s->next_out - *dst);
        *src += taken;
        *src_nbytes -= taken;
        *dst += given;
        *dst_capacity -= given;
    } while ((code == Z_OK || code == Z_BUF_ERROR) && (taken || given));
    return code;
}

static void *
take_memory(void *opaque, unsigned n, unsigned size)
{
    (void)opaque;
    return sc_calloc(n, size);
}

static void
give_memory(void *opaque, void *memory)
{
    (void)opaque;
    sc_free(memory);
}

/* A stream of this wrapping and level, at its start. */
static int
open_deflater(struct sc_deflater *d, enum sc_wrap wrap, int level)
{
    int code;

    if (d->is_open && d->level == level)
        return zng_deflateReset(&d->stream);
    if (d->is_open)
        zng_deflateEnd(&d->stream);
    memset(&d->stream, 0, sizeof d->stream);
    d->stream.zalloc = take_memory;
    d->stream.zfree = give_memory;
    code = zng_deflateInit2(&d->stream, level, Z_DEFLATED, window_bits[wrap], MEM_LEVEL, Z_DEFAULT_STRATEGY);
    d->is_open = code == Z_OK;
    d->level = level;
    return code;
}

static int
library_level(int level)
{
#ifdef SHARDCODEC_SYSTEM_LIBS
    return level;
#else
    return level == 1 ? 2 : level;
#endif
}

enum sc_status
sc_deflate(struct sc_codec_state *state, enum sc_wrap wrap, int level, const uint8_t *src, size_t src_nbytes,
           uint8_t *dst, size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    struct sc_deflater *d = &state->deflaters[wrap];
    const size_t capacity = dst_capacity, nbytes = src_nbytes;
    int code;

    if (level < 0 || level > 9)
        return SC_BAD_ARGUMENT;
    code = open_deflater(d, wrap, library_level(level));
    if (code == Z_OK)
        code = run(&d->stream, &src, &src_nbytes, &dst, &dst_capacity);
    if (code == Z_STREAM_END) {
        *dst_nbytes = capacity - dst_capacity;
        return SC_OK;
    }
    if (code == Z_MEM_ERROR)
        return SC_NO_MEMORY;
    return sc_codec_failed(dst_capacity == 0 ? SC_DST_TOO_SMALL : SC_CODEC_ENCODE, where, names[wrap], d->stream.msg,
                           code, nbytes);
}

/* ---- headers and trailers. Each returns NULL, or what is wrong. */

enum { ZLIB_HEADER = 2, ZLIB_TRAILER = 4, GZIP_HEADER = 10, GZIP_TRAILER = 8 };
enum { METHOD_DEFLATE = 8 };
enum { HAS_CRC = 2, HAS_EXTRA = 4, HAS_NAME = 8, HAS_COMMENT = 16, RESERVED = 0xE0 }; /* flags of gzip */

#define PRESET_DICTIONARY 0x20u

static const char cut[] = "stream is cut";

/* RFC 1950: method and window, flags; together a multiple of 31. The window says how much memory a decoder needs. */
static const char *
zlib_header(const uint8_t *src, size_t n, size_t *header_nbytes)
{
    if (n < ZLIB_HEADER)
        return cut;
    if ((src[0] << 8 | src[1]) % 31 != 0)
        return "no zlib header";
    if ((src[0] & 15) != METHOD_DEFLATE || src[0] >> 4 > WINDOW_BITS - 8)
        return "unknown method";
    if (src[1] & PRESET_DICTIONARY)
        return "needs a preset dictionary";
    *header_nbytes = ZLIB_HEADER;
    return NULL;
}

/* Move *at behind a text that a zero byte ends. */
static bool
skip_text(const uint8_t *src, size_t n, size_t *at)
{
    const uint8_t *end = *at < n ? memchr(src + *at, 0, n - *at) : NULL;

    if (!end)
        return false;
    *at = (size_t)(end - src) + 1;
    return true;
}

/* The optional fields of a gzip header, from *at on. */
static const char *
gzip_fields(const uint8_t *src, size_t n, size_t *at)
{
    const uint8_t flags = src[3];

    if (flags & HAS_EXTRA) {
        if (n - *at < 2)
            return cut;
        *at += 2 + ((size_t)src[*at] | (size_t)src[*at + 1] << 8);
        if (*at > n)
            return cut;
    }
    if (flags & HAS_NAME && !skip_text(src, n, at))
        return cut;
    if (flags & HAS_COMMENT && !skip_text(src, n, at))
        return cut;
    if (flags & HAS_CRC) {
        if (n - *at < 2)
            return cut;
        if ((zng_crc32_z(0, src, *at) & 0xFFFF) != ((uint32_t)src[*at] | (uint32_t)src[*at + 1] << 8))
            return "checksum of the header differs";
        *at += 2;
    }
    return NULL;
}

/* RFC 1952: magic, method, flags, time, hint, system, and the fields that the flags announce. */
static const char *
gzip_header(const uint8_t *src, size_t n, size_t *header_nbytes)
{
    if (n >= 2 && (src[0] != 0x1F || src[1] != 0x8B))
        return "no gzip header";
    if (n < GZIP_HEADER)
        return cut;
    if (src[2] != METHOD_DEFLATE)
        return "unknown method";
    if (src[3] & RESERVED)
        return "unknown flags";
    *header_nbytes = GZIP_HEADER;
    return gzip_fields(src, n, header_nbytes);
}

static const char *
zlib_trailer(const uint8_t *src, const uint8_t *content, size_t content_nbytes)
{
    return __builtin_bswap32(load_le32(src)) == zng_adler32_z(1, content, content_nbytes) ? NULL : "checksum differs";
}

static const char *
gzip_trailer(const uint8_t *src, const uint8_t *content, size_t content_nbytes)
{
    if (load_le32(src) != zng_crc32_z(0, content, content_nbytes))
        return "checksum differs";
    return load_le32(src + 4) == (uint32_t)content_nbytes ? NULL : "length differs";
}

static const struct {
    const char *(*header)(const uint8_t *src, size_t n, size_t *header_nbytes);
    const char *(*trailer)(const uint8_t *src, const uint8_t *content, size_t content_nbytes);
    size_t trailer_nbytes;
} wraps[] = {
    [SC_WRAP_GZIP] = { gzip_header, gzip_trailer, GZIP_TRAILER },
    [SC_WRAP_ZLIB] = { zlib_header, zlib_trailer, ZLIB_TRAILER },
};

/* ---- decoding */

/* One stream with header and trailer; the cursors move behind it. */
static enum sc_status
read_member(struct sc_inflate_tables *tables, enum sc_wrap wrap, const uint8_t **src, size_t *src_nbytes, uint8_t **dst,
            size_t *dst_capacity, const char **detail)
{
    size_t header = 0, consumed, produced;
    enum sc_status status;

    *detail = wraps[wrap].header(*src, *src_nbytes, &header);
    if (*detail)
        return SC_CODEC_DATA;
    *src += header;
    *src_nbytes -= header;
    status = sc_inflate_raw(tables, *src, *src_nbytes, &consumed, *dst, *dst_capacity, &produced, detail);
    if (status != SC_OK)
        return status;
    *src += consumed;
    *src_nbytes -= consumed;
    *detail = *src_nbytes < wraps[wrap].trailer_nbytes ? cut : wraps[wrap].trailer(*src, *dst, produced);
    if (*detail)
        return SC_CODEC_DATA;
    *src += wraps[wrap].trailer_nbytes;
    *src_nbytes -= wraps[wrap].trailer_nbytes;
    *dst += produced;
    *dst_capacity -= produced;
    return SC_OK;
}

enum sc_status
sc_inflate(struct sc_codec_state *state, enum sc_wrap wrap, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
           size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const size_t nbytes = src_nbytes;
    uint8_t nothing, *start;
    const char *detail;
    enum sc_status status;

    if (!state->inflate_tables)
        state->inflate_tables = sc_calloc(1, sizeof *state->inflate_tables);
    if (!state->inflate_tables)
        return SC_NO_MEMORY;
    if (!dst) {
        dst = &nothing; /* cursors may be compared and checksums taken, of no bytes */
        dst_capacity = 0;
    }
    start = dst;
    while (src_nbytes > 0 || wrap == SC_WRAP_ZLIB) {
        status = read_member(state->inflate_tables, wrap, &src, &src_nbytes, &dst, &dst_capacity, &detail);
        if (status != SC_OK)
            return sc_codec_failed(status, where, names[wrap], detail, 0, nbytes);
        if (wrap == SC_WRAP_ZLIB)
            break;
        for (; src_nbytes > 0 && *src == 0; src_nbytes--)
            src++;
    }
    if (src_nbytes > 0)
        return sc_codec_failed(SC_CODEC_DATA, where, names[wrap], "bytes behind the end", 0, nbytes);
    *dst_nbytes = (size_t)(dst - start);
    return SC_OK;
}

void
sc_deflate_release(struct sc_codec_state *state)
{
    for (size_t i = 0; i < SC_ARRAY_SIZE(state->deflaters); i++)
        if (state->deflaters[i].is_open)
            zng_deflateEnd(&state->deflaters[i].stream);
    sc_free(state->inflate_tables);
}

/* Nine bits per byte, five bytes per stored block, the wrapping: more than zlib and zlib-ng give for themselves. */
static size_t
bound(const struct sc_op *op, size_t nbytes)
{
    uint64_t n;

    (void)op;
    return add_fits(nbytes, nbytes / 8 + nbytes / 64 + 64, &n) && n <= SIZE_MAX ? (size_t)n : 0;
}

static enum sc_wrap
wrap_of(const struct sc_op *op)
{
    return op->codec == SC_CODEC_ZLIB ? SC_WRAP_ZLIB : SC_WRAP_GZIP;
}

static enum sc_status
encode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    return sc_deflate(state, wrap_of(op), op->level, src, src_nbytes, dst, dst_capacity, dst_nbytes, where);
}

static enum sc_status
decode(const struct sc_op *op, struct sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
       size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    return sc_inflate(state, wrap_of(op), src, src_nbytes, dst, dst_capacity, dst_nbytes, where);
}

/* That of the last member, modulo 2^32. */
static uint64_t
claimed_by_gzip(const uint8_t *src, size_t src_nbytes)
{
    return src_nbytes < GZIP_TRAILER ? 0 : load_le32(src + src_nbytes - 4);
}

const struct sc_codec sc_codec_gzip = {
    .name = "gzip",
    .claimed_nbytes = claimed_by_gzip,
    .max_nbytes = SIZE_MAX,
    .bound = bound,
    .encode = encode,
    .decode = decode,
};
const struct sc_codec sc_codec_zlib = {
    .name = "zlib",
    .max_nbytes = SIZE_MAX,
    .bound = bound,
    .encode = encode,
    .decode = decode,
};
