/* fuzz_inflate.c - hostile deflate streams, and checks of the streams that are accepted
 *
 * The first bytes choose the capacity for the result and whether the rest is a stream, or data to encode. The stream of
 * encoded data is decoded unchanged and with a few changed bits. An accepted stream must decode to the same content
 * with an output of exactly its size and an input of exactly its bytes, and must be refused with one byte less of
 * either. zlib-ng's own decoder gets every stream too: it must accept the same streams, with the same content and the
 * same end.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "codecs/sc_codec.h"
#include "base/sc_cpu.h"
#include "kernels/sc_inflate.h"
#include "codecs/sc_libs.h"

int32_t zng_inflateInit2_(zng_stream *stream, int32_t window_bits, const char *version, int32_t stream_size);
int32_t zng_inflate(zng_stream *stream, int32_t flush);
int32_t zng_inflateEnd(zng_stream *stream);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_NBYTES 12
#define ZLIB_HEADER_NBYTES 2
#define MAX_ROOM (1u << 18)

static struct sc_inflate_tables tables;

static void
require(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static uint8_t *
allocate(size_t n)
{
    uint8_t *p = malloc(n ? n : 1);

    require(p != NULL);
    return p;
}

/* Decode with the library; return true if it accepts the stream. */
static bool
inflate_by_library(const uint8_t *src, size_t n, size_t room, uint8_t *dst, size_t *consumed, size_t *produced)
{
    zng_stream s = { .next_in = src, .avail_in = (uint32_t)n, .next_out = dst, .avail_out = (uint32_t)room };
    int32_t code;

    require(zng_inflateInit2_(&s, -15, "2.3.3", (int32_t)sizeof s) == Z_OK);
    code = zng_inflate(&s, Z_FINISH);
    *consumed = s.total_in;
    *produced = s.total_out;
    require(zng_inflateEnd(&s) == Z_OK);
    return code == Z_STREAM_END;
}

static void
compare_with_library(const uint8_t *src, size_t n, size_t room, bool is_ok, const uint8_t *dst, size_t consumed,
                     size_t produced)
{
    uint8_t *theirs = allocate(room);
    size_t their_consumed, their_produced;

    require(inflate_by_library(src, n, room, theirs, &their_consumed, &their_produced) == is_ok);
    if (is_ok) {
        require(their_consumed == consumed && their_produced == produced);
        require(produced == 0 || memcmp(theirs, dst, produced) == 0);
    }
    free(theirs);
}

/* Decode from and into blocks of exact size, so that a sanitizer finds an access outside. */
static enum sc_status
inflate_exactly(const uint8_t *src, size_t n, size_t room, uint8_t **dst, size_t *consumed, size_t *produced)
{
    uint8_t *copy = allocate(n);
    const char *detail = NULL;
    enum sc_status status;

    memcpy(copy, src, n);
    *dst = allocate(room);
    status = sc_inflate_raw(&tables, copy, n, consumed, *dst, room, produced, &detail);
    require(status == SC_OK || (detail && (status == SC_CODEC_DATA || status == SC_DST_TOO_SMALL)));
    require(status != SC_OK || (*consumed <= n && *produced <= room));
    free(copy);
    return status;
}

static enum sc_status
status_of(const uint8_t *src, size_t n, size_t room)
{
    size_t consumed, produced;
    uint8_t *dst;
    enum sc_status status = inflate_exactly(src, n, room, &dst, &consumed, &produced);

    free(dst);
    return status;
}

/* Return true if the stream was accepted. */
static bool
decode(const uint8_t *src, size_t n, size_t room)
{
    size_t consumed = 0, produced = 0, consumed_again, produced_again;
    uint8_t *dst, *again;
    bool is_ok = inflate_exactly(src, n, room, &dst, &consumed, &produced) == SC_OK;

    compare_with_library(src, n, room, is_ok, dst, consumed, produced);
    if (is_ok) {
        require(inflate_exactly(src, consumed, produced, &again, &consumed_again, &produced_again) == SC_OK);
        require(consumed_again == consumed && produced_again == produced);
        require(produced == 0 || memcmp(dst, again, produced) == 0);
        free(again);
        require(status_of(src, consumed - 1, room) == SC_CODEC_DATA);
        require(produced == 0 || status_of(src, consumed, produced - 1) == SC_DST_TOO_SMALL);
    }
    free(dst);
    return is_ok;
}

static void
encode_and_decode(const uint8_t *data, size_t n, const uint8_t *head)
{
    static struct sc_codec_state *state;
    const struct sc_op op = { .codec = SC_CODEC_ZLIB, .level = head[1] % 10 };
    const struct sc_codec *codec = sc_codec_get(op.codec);
    size_t bound = codec->bound(&op, n), n_encoded = 0;
    uint8_t *encoded = allocate(bound);
    struct sc_where where;

    if (!state)
        state = sc_codec_state_new();
    require(state != NULL);
    sc_where_clear(&where);
    require(codec->encode(&op, state, data, n, encoded, bound, &n_encoded, &where) == SC_OK);
    require(decode(encoded + ZLIB_HEADER_NBYTES, n_encoded - ZLIB_HEADER_NBYTES, n));
    for (size_t i = 0; i <= head[2] % 4u; i++)
        encoded[ZLIB_HEADER_NBYTES + (head[3 + i] * 257u + head[4 + i]) % (n_encoded - ZLIB_HEADER_NBYTES)] ^=
            (uint8_t)(1u << head[8 + i] % 8);
    decode(encoded + ZLIB_HEADER_NBYTES, n_encoded - ZLIB_HEADER_NBYTES, n + head[3]);
    free(encoded);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD_NBYTES)
        return 0;
    sc_cpu_init();
    if (data[0] & 1)
        encode_and_decode(data + HEAD_NBYTES, size - HEAD_NBYTES, data);
    else
        decode(data + HEAD_NBYTES, size - HEAD_NBYTES, ((size_t)data[1] << data[2] % 12) % MAX_ROOM);
    return 0;
}
