/* codec_blosclz.c - decoder of blosclz, the LZ77 format of Blosc's own compressor
 *
 * The decoder of C-Blosc has a history of writing past its output, and a build with the libraries of the system has none. The
 * format is small:
 *
 *     000LLLLL                                  L + 1 literal bytes follow (1..32)
 *     LLLDDDDD                    dddddddd      match of L + 2 bytes (L = 1..6) at distance 256 D + d + 1
 *     111DDDDD  ext.. ext         dddddddd      match of 9 + sum of ext bytes; ext goes on while it is 255
 *     LLL11111  [ext]  11111111   hhhhhhhh llllllll      far match: distance 8192 + 256 h + l
 *
 * In the first byte of a stream the top three bits are a mark, not a length: it always starts a run of literals.
 * SPDX-License-Identifier: MIT */
#include "codecs/codec_impl.h"

/* Cursors; nothing moves one beyond its end without a comparison. */
struct cursors {
    const uint8_t *src, *src_end;
    uint8_t *dst, *dst_end;
    const uint8_t *start;
};

static bool
copy_literals(struct cursors *c, size_t n)
{
    if (n > (size_t)(c->src_end - c->src) || n > (size_t)(c->dst_end - c->dst))
        return false;
    if (SC_LIKELY(c->src_end - c->src >= 32 && c->dst_end - c->dst >= 32))
        memcpy(c->dst, c->src, 32); /* n <= 32: one fixed copy is faster than an exact one */
    else
        memcpy(c->dst, c->src, n);
    c->src += n;
    c->dst += n;
    return true;
}

/* Copy n bytes from `distance` behind; the two ranges may overlap, then the bytes repeat. */
static bool
copy_match(struct cursors *c, size_t distance, size_t n)
{
    uint8_t *dst = c->dst;
    const uint8_t *from;
    size_t room = (size_t)(c->dst_end - dst);

    if (distance > (size_t)(dst - c->start) || n > room)
        return false;
    from = dst - distance;
    c->dst += n;
    if (distance >= 16 && room - n >= 16) {
        /* steps of 16 never read what they have not written yet; the last may write up to 15 bytes too many */
        for (size_t i = 0; i < n; i += 16)
            memcpy(dst + i, from + i, 16);
    } else if (distance == 1) {
        memset(dst, *from, n);
    } else {
        for (size_t i = 0; i < n; i++)
            dst[i] = from[i];
    }
    return true;
}

/* The match that `control` opens. */
static bool
read_match(struct cursors *c, unsigned control)
{
    size_t n = (control >> 5) + 2, distance = (size_t)(control & 31) << 8;
    unsigned byte;

    if (control >> 5 == 7) {
        do {
            if (c->src == c->src_end)
                return false;
            byte = *c->src++;
            n += byte;
        } while (byte == 255);
    }
    if (c->src == c->src_end)
        return false;
    byte = *c->src++;
    distance += byte + 1;
    if (byte == 255 && (control & 31) == 31) {
        if (c->src_end - c->src < 2)
            return false;
        distance = SC_BLOSCLZ_FAR + ((size_t)c->src[0] << 8) + c->src[1];
        c->src += 2;
    }
    return copy_match(c, distance, n);
}

bool
sc_blosclz_decode(const uint8_t *src, size_t src_nbytes, uint8_t *dst, size_t dst_nbytes)
{
    struct cursors c = { src, src + src_nbytes, dst, dst + dst_nbytes, dst };
    unsigned control;

    if (src_nbytes == 0)
        return false;
    control = *c.src++ & 31;
    for (;;) {
        if (!(control < 32 ? copy_literals(&c, control + 1) : read_match(&c, control)))
            return false;
        if (c.src == c.src_end)
            return c.dst == c.dst_end;
        control = *c.src++;
    }
}
