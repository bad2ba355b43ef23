/* sc_crc32c_streams.h - a CRC from three independent streams of crc32 instructions; text for the variants to include
 *
 * The instruction takes 8 bytes, has a latency of three cycles and can start in every cycle: a single chain of it idles
 * for two thirds of the time. So a message is cut in three, the parts are advanced side by side, and joined:
 *
 *      |<-- words -->|<-- words -->|<-- words -->|
 *      | c0 ->       | c1 ->       | c2 ->     |W|      c = step8(c2, W + c0 * K(2 words) + c1 * K(words))
 *
 * c0 and c1 must move past the bits that follow them; K(w) is x^(64 w - 33), see gen_crc32c_tables.py. The product is a
 * 64-bit word that counts as a message word, so it is added to the last word W of the third stream, which is held back
 * for it: joining costs two multiplications, and no extra step.
 *
 * x86 and ARM have the same instruction under two names; this text is compiled for both, and what is tested on the one
 * is what runs on the other. A variant defines before including it (twice, if it has two ways to multiply):
 *
 *      STREAMS(name)            name of a function made here
 *      STREAMS_TARGET           attribute of these functions
 *      STREAMS_MULTIPLY(a, b)   carry-less product of two 32-bit words, 64 bits
 *      STREAMS_MIN              bytes from which three streams beat one, joining included
 *      step1, step4, step8(register, value)
 *
 * SPDX-License-Identifier: MIT */

/* Load 8 bytes and, when copying, store them. The empty asm keeps the compiler from loading a second time for the one
 * use or the other, so that what is summed is what is stored. */
static inline __attribute__((always_inline)) STREAMS_TARGET uint64_t
STREAMS(take8)(uint8_t *dst, const uint8_t *src, size_t at, const bool copying)
{
    uint64_t word = load_le64(src + at);

    if (copying) {
        __asm__("" : "+r"(word));
        store_le64(dst + at, word);
    }
    return word;
}

/* Three streams of `words` words each, at least one; k1 and k2 shift past one and past two streams. */
static inline __attribute__((always_inline)) STREAMS_TARGET uint32_t
STREAMS(round)(uint32_t c0, uint8_t *dst, const uint8_t *src, size_t words, uint32_t k1, uint32_t k2,
               const bool copying)
{
    const size_t length = 8 * words, last = length - 8;
    uint32_t c1 = 0, c2 = 0;
    uint64_t word;

    for (size_t i = 0; i < last; i += 8) {
        c0 = step8(c0, STREAMS(take8)(dst, src, i, copying));
        c1 = step8(c1, STREAMS(take8)(dst, src, i + length, copying));
        c2 = step8(c2, STREAMS(take8)(dst, src, i + 2 * length, copying));
    }
    c0 = step8(c0, STREAMS(take8)(dst, src, last, copying));
    c1 = step8(c1, STREAMS(take8)(dst, src, last + length, copying));
    word = STREAMS(take8)(dst, src, last + 2 * length, copying);
    return step8(c2, word ^ STREAMS_MULTIPLY(c0, k2) ^ STREAMS_MULTIPLY(c1, k1));
}

/* One stream, for a rest that is too short for three. */
static inline __attribute__((always_inline)) STREAMS_TARGET uint32_t
STREAMS(single)(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, const bool copying)
{
    size_t at = 0;

    for (; n - at >= 8; at += 8)
        crc = step8(crc, STREAMS(take8)(dst, src, at, copying));
    if (n & 4) {
        uint32_t word = load_le32(src + at);

        if (copying) {
            __asm__("" : "+r"(word));
            store_le32(dst + at, word);
        }
        crc = step4(crc, word);
        at += 4;
    }
    for (; at < n; at++) {
        uint8_t byte = src[at];

        if (copying) {
            __asm__("" : "+r"(byte));
            dst[at] = byte;
        }
        crc = step1(crc, byte);
    }
    return crc;
}

/* Takes and returns a register. Long rounds come first, then at most a few short ones. A short round takes as much
 * as three equal streams can; if the table of shifts does not limit it, fewer than 24 bytes are left. */
static inline __attribute__((always_inline)) STREAMS_TARGET uint32_t
STREAMS(any)(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, const bool copying)
{
    while (n >= STREAMS_MIN) {
        size_t words = CRC32C_LONG_WORDS, taken;
        uint32_t k1 = CRC32C_SHIFT_LONG, k2 = CRC32C_SHIFT_LONG_TWICE;

        if (n < 24 * CRC32C_LONG_WORDS) {
            words = n / 24 < CRC32C_SHORT_WORDS ? n / 24 : CRC32C_SHORT_WORDS;
            k1 = crc32c_shift_words[words];
            k2 = crc32c_shift_words[2 * words];
        }
        crc = STREAMS(round)(crc, dst, src, words, k1, k2, copying);
        taken = 24 * words;
        src += taken;
        n -= taken;
        if (copying)
            dst += taken;
    }
    return STREAMS(single)(crc, dst, src, n, copying);
}

static STREAMS_TARGET uint32_t
STREAMS(extend)(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~STREAMS(any)(~crc, NULL, p, n, false);
}

static STREAMS_TARGET uint32_t
STREAMS(copy)(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
    return ~STREAMS(any)(~crc, dst, src, n, true);
}

#undef STREAMS
#undef STREAMS_TARGET
#undef STREAMS_MULTIPLY
#undef STREAMS_MIN
