/* codec_blosclz_encode.c - encoder of blosclz; codec_blosclz.c describes the format
 *
 * A build with the bundled libraries calls C-Blosc2. The system has no library with such an encoder, so a build with its libraries
 * has the short one below. It looks for a match only at the last place where four bytes had the same hash. Its sizes differ from
 * those of C-Blosc2 by a few percent.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"

/* A fuzz target defines it to get the short encoder without the headers of the system's libraries. */
#ifdef SHARDCODEC_SYSTEM_LIBS
#define SC_OWN_BLOSCLZ_ENCODER
#endif

#ifndef SC_OWN_BLOSCLZ_ENCODER

size_t
sc_blosclz_encode(int level, const uint8_t *src, size_t src_nbytes, uint8_t *dst, size_t dst_capacity)
{
    /* its own rule, but it looks at the bytes before it asks for their number */
    if (src_nbytes >= 16 && dst_capacity >= 66)
        return (size_t)blosclz_compress(level, src, (int)src_nbytes, dst, (int)dst_capacity, NULL);
    return 0;
}

#else

#define HASH_BITS 12
#define MIN_MATCH 4
#define MIN_FAR_MATCH 6 /* a far match takes up to five bytes */
#define MAX_DISTANCE (SC_BLOSCLZ_FAR + 65535)
#define MAX_RUN 32
/* C-Blosc's decoder ignores a match at the end of a stream, so the last bytes are literals. */
#define END_LITERALS 8
/* Every 64 bytes without a match, the step grows by one byte, so noise takes little time. */
#define STEP_SHIFT 6

/* The output; nothing moves `at` beyond `end` without a comparison. */
struct output {
    uint8_t *at, *end;
};

static bool
put_literals(struct output *out, const uint8_t *src, size_t n)
{
    while (n > 0) {
        size_t run = n < MAX_RUN ? n : MAX_RUN;

        if ((size_t)(out->end - out->at) < run + 1)
            return false;
        *out->at++ = (uint8_t)(run - 1);
        memcpy(out->at, src, run);
        out->at += run;
        src += run;
        n -= run;
    }
    return true;
}

static bool
put_match(struct output *out, size_t n, size_t distance)
{
    bool is_far = distance >= SC_BLOSCLZ_FAR;
    size_t low = is_far ? SC_BLOSCLZ_FAR - 1 : distance - 1, rest = n < 9 ? 0 : n - 9;

    if ((size_t)(out->end - out->at) < rest / 255 + 5)
        return false;
    *out->at++ = (uint8_t)((n < 9 ? n - 2 : 7) << 5 | low >> 8);
    if (n >= 9) {
        for (; rest >= 255; rest -= 255)
            *out->at++ = 255;
        *out->at++ = (uint8_t)rest;
    }
    *out->at++ = (uint8_t)low;
    if (is_far) {
        *out->at++ = (uint8_t)((distance - SC_BLOSCLZ_FAR) >> 8);
        *out->at++ = (uint8_t)(distance - SC_BLOSCLZ_FAR);
    }
    return true;
}

/* Return how many bytes from `at` equal those from `before`, up to the last literals. */
static size_t
match_length(const uint8_t *src, size_t src_nbytes, size_t before, size_t at)
{
    size_t n = 0;

    while (at + n < src_nbytes - END_LITERALS && src[before + n] == src[at + n])
        n++;
    return n;
}

size_t
sc_blosclz_encode(int level, const uint8_t *src, size_t src_nbytes, uint8_t *dst, size_t dst_capacity)
{
    struct output out = { dst, dst + dst_capacity };
    uint32_t places[1 << HASH_BITS] = { 0 }; /* the last place with this hash, plus 1 */
    size_t at = 0, literals = 0;

    (void)level; /* one effort for all levels */
    while (at + MIN_MATCH + END_LITERALS <= src_nbytes) {
        uint32_t *place = &places[load_le32(src + at) * 2654435761u >> (32 - HASH_BITS)];
        size_t before = *place, distance = at + 1 - before, n = 0;

        *place = (uint32_t)at + 1;
        if (before > 0 && distance <= MAX_DISTANCE)
            n = match_length(src, src_nbytes, before - 1, at);
        if (n < (distance < SC_BLOSCLZ_FAR ? MIN_MATCH : MIN_FAR_MATCH)) {
            at += 1 + ((at - literals) >> STEP_SHIFT);
            continue;
        }
        if (!put_literals(&out, src + literals, at - literals) || !put_match(&out, n, distance))
            return 0;
        literals = at += n;
    }
    if (src_nbytes == 0 || !put_literals(&out, src + literals, src_nbytes - literals))
        return 0;
    dst[0] |= 1 << 5; /* the mark of the first byte */
    return (size_t)(out.at - dst);
}

#endif
