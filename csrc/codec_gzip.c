/* codec_gzip.c - Zarr codec "gzip", and "zlib" as numcodecs has it: deflate in two wrappings
 *
 * Read as Python's gzip module reads: members one after another, zero bytes allowed behind each, no member at all is an
 * empty file. Checksum and length of every member are compared by the library.
 *
 * Levels. zlib-ng's level 1 is a one-pass encoder with fixed codes, whose files are 13 to 64 % larger than those of
 * zlib at level 1; so our level 1 is its 2. Over 19 arrays of many kinds in 64 KiB chunks, our files at level 1 are
 * then between 23 % smaller and 6 % larger than zlib's (median 2 % smaller), and made 1.3 to 1.7 times as fast; at the
 * other levels, taken as they are, about the same holds. What no mapping mends: below level 9 zlib-ng looks for no
 * matches of 3 bytes. Noisy 16-bit integers lose the 3 to 6 % by that, and a plain ramp of uint32, which lives on them,
 * takes 1.8 times as much.
 * SPDX-License-Identifier: MIT */
#include "codec_impl.h"

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

/* Run `step` (inflate or deflate) until the stream ends, fails, or neither takes nor gives a byte any more. Almost
 * always that is one call: Z_FINISH says that no input will follow, which spares inflate its window. The four cursors
 * move. */
static int
run(zng_stream *s, int32_t (*step)(zng_stream *, int32_t), const uint8_t **src, size_t *src_nbytes, uint8_t **dst,
    size_t *dst_capacity)
{
    size_t taken, given;
    int code;

    do {
        offer(s, *src, *src_nbytes, *dst, *dst_capacity);
        code = step(s, *src_nbytes <= UINT32_MAX ? Z_FINISH : Z_NO_FLUSH);
        taken = (size_t)(s->next_in - *src);
        given = (size_t)(s->next_out - *dst);
        *src += taken;
        *src_nbytes -= taken;
        *dst += given;
        *dst_capacity -= given;
    } while ((code == Z_OK || code == Z_BUF_ERROR) && (taken || given));
    return code;
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
        code = run(&d->stream, zng_deflate, &src, &src_nbytes, &dst, &dst_capacity);
    if (code == Z_STREAM_END) {
        *dst_nbytes = capacity - dst_capacity;
        return SC_OK;
    }
    if (code == Z_MEM_ERROR)
        return SC_NO_MEMORY;
    return sc_codec_failed(dst_capacity == 0 ? SC_DST_TOO_SMALL : SC_CODEC_ENCODE, where, names[wrap], d->stream.msg,
                           code, nbytes);
}

static int
open_inflater(struct sc_codec_state *state, enum sc_wrap wrap)
{
    int code;

    if (state->inflater_is_open)
        return zng_inflateReset2(&state->inflater, window_bits[wrap]);
    memset(&state->inflater, 0, sizeof state->inflater);
    code = zng_inflateInit2(&state->inflater, window_bits[wrap]);
    state->inflater_is_open = code == Z_OK;
    return code;
}

/* What a stream is that did not end: out of output with input left, it holds more than fits; else it is cut. */
static enum sc_status
inflate_failed(const zng_stream *s, enum sc_wrap wrap, int code, size_t src_left, size_t dst_left, size_t nbytes,
               struct sc_where *where)
{
    if (code == Z_MEM_ERROR)
        return SC_NO_MEMORY;
    if (code == Z_BUF_ERROR && dst_left == 0 && src_left > 0)
        return sc_codec_failed(SC_DST_TOO_SMALL, where, names[wrap], "output full", code, nbytes);
    if (code == Z_BUF_ERROR)
        return sc_codec_failed(SC_CODEC_DATA, where, names[wrap], "stream is cut", code, nbytes);
    if (code == Z_NEED_DICT)
        return sc_codec_failed(SC_CODEC_DATA, where, names[wrap], "needs a preset dictionary", code, nbytes);
    return sc_codec_failed(SC_CODEC_DATA, where, names[wrap], s->msg, code, nbytes);
}

enum sc_status
sc_inflate(struct sc_codec_state *state, enum sc_wrap wrap, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
           size_t dst_capacity, size_t *dst_nbytes, struct sc_where *where)
{
    const size_t nbytes = src_nbytes;
    uint8_t nothing, *start;
    int code;

    if (!dst) {
        dst = &nothing; /* the library takes a null pointer for an error even where no byte comes out */
        dst_capacity = 0;
    }
    start = dst;
    while (src_nbytes > 0 || wrap == SC_WRAP_ZLIB) {
        code = open_inflater(state, wrap);
        if (code == Z_OK)
            code = run(&state->inflater, zng_inflate, &src, &src_nbytes, &dst, &dst_capacity);
        if (code != Z_STREAM_END)
            return inflate_failed(&state->inflater, wrap, code, src_nbytes, dst_capacity, nbytes, where);
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
    if (state->inflater_is_open)
        zng_inflateEnd(&state->inflater);
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

const struct sc_codec sc_codec_gzip = { "gzip", bound, encode, decode };
const struct sc_codec sc_codec_zlib = { "zlib", bound, encode, decode };
