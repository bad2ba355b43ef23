/* x86/crc32c_vpclmul_avx2.c - CRC-32C by carry-less multiplication and by the crc32 instruction, side by side (AVX2)
 *
 * Processors with VPCLMULQDQ but without AVX-512: AMD's Zen 3, Intel's since Alder Lake. Zen 3 starts a multiplication of
 * 256 bits every two cycles, so folding 32 bytes, which takes two, keeps that unit busy for four; meanwhile the crc32
 * instruction takes 32 bytes in four streams. Either is bound to 8 bytes per cycle, both together to 16.
 *
 * A part of r rounds is laid out, folded and joined as in crc32c_vpclmul.c, with blocks of 32 bytes:
 *
 *      |<- 64 r ->|<- 64 r ->|<- 64 r ->|<- 64 r ->|<------------ 256 r ------------>|
 *      | stream 0 | stream 1 | stream 2 | stream 3 | r rounds of eight accumulators  |
 *
 * What is left behind the last part, less than one, goes to three streams of the crc32 instruction, as do short messages.
 *
 *      32 KiB on Zen 3, GB/s at 2.8 GHz (and bound)      three streams 20 (22)      both 36 (45)
 *
 * SPDX-License-Identifier: MIT */
#include "sc_crc32c_impl.h"

#if defined(SC_ARCH_X86_64)

#include "sc_crc32c_tables.h"

#include <immintrin.h>

/* "crc32" is part of sse4.2, but clang counts it apart and some of its drivers switch it off. */
#define TARGET SC_TARGET("sse4.2,crc32,pclmul,avx2,vpclmulqdq")
#define INLINE static inline __attribute__((always_inline)) TARGET

enum {
    BLOCK = 32,
    ROUND = 8 * BLOCK,
    STREAMS = 4,
    FROM = 2048, /* shorter messages gain nothing */
};

/* The product of the low (0x00) or the high halves (0x11) of every lane. Asm, since some compilers ask AVX-512 for it. */
#define MULTIPLY(v, k, halves)                                                            \
    __extension__({                                                                       \
        __m256i product_;                                                                 \
        __asm__("vpclmulqdq $" #halves ", %2, %1, %0" : "=x"(product_) : "x"(v), "x"(k)); \
        product_;                                                                         \
    })

/* Nothing of the next step may be moved before here: compilers put together what is alike, and either unit waits then. */
#define IN_STEP(a, c) __asm__("" : "+x"(a), "+r"((c)[0]), "+r"((c)[1]), "+r"((c)[2]), "+r"((c)[3]))

/* v * k + w in every lane: both halves of v by their halves of k. */
INLINE __m256i
multiply_add(__m256i v, __m256i k, __m256i w)
{
    __m256i low = MULTIPLY(v, k, 0x00), high = MULTIPLY(v, k, 0x11);

    return _mm256_xor_si256(_mm256_xor_si256(low, w), high);
}

INLINE __m256i
load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m256i
fold_constants(const uint64_t pair[2])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)pair));
}

/* Two words, each in the low half of a lane. */
INLINE __m256i
in_lanes(const uint64_t c[2])
{
    return _mm256_set_epi64x(0, (long long)c[1], 0, (long long)c[0]);
}

/* Fold on from `at` with streams beside, in parts of so many rounds while they last; returns where that ends. The number
 * is a constant to the compiler. */
INLINE size_t
fold_mixed(__m256i a[8], const uint8_t *src, size_t at, size_t n, const size_t rounds, const uint64_t *constants)
{
    const size_t length = rounds * 64, nbytes = STREAMS * length + rounds * ROUND;
    const __m256i past_round = fold_constants(crc32c_fold_avx2), past_streams = fold_constants(constants + 2 * STREAMS);

    for (; n - at >= nbytes; at += nbytes) {
        const uint8_t *words = src + at, *blocks = words + STREAMS * length;
        uint64_t c[STREAMS] = { 0 };
        __m256i k = past_streams;

        for (size_t r = 0; r < rounds; r++, words += 64, blocks += ROUND) {
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++) {
#pragma GCC unroll 4
                for (size_t s = 0; s < STREAMS; s++)
                    c[s] = _mm_crc32_u64(c[s], load_le64(words + 8 * i + s * length));
                a[i] = multiply_add(a[i], k, load(blocks + i * BLOCK));
                IN_STEP(a[i], c);
            }
            k = past_round;
        }
#pragma GCC unroll 2
        for (size_t s = 0; s < STREAMS; s += 2)
            a[7] = _mm256_xor_si256(a[7], MULTIPLY(in_lanes(c + s), load(constants + 2 * s), 0x00));
    }
    return at;
}

/* Register of the message that ends with the accumulators. */
INLINE uint32_t
reduce(const __m256i a[8])
{
    const uint64_t *k = crc32c_finish + 8 * CRC32C_FINISH_BLOCKS - 8 * 4;
    __m256i acc = _mm256_setzero_si256();
    __m128i lane;
    uint64_t crc;

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        acc = multiply_add(a[i], load(k + 4 * i), acc);
    lane = _mm_xor_si128(_mm256_castsi256_si128(acc), _mm256_extracti128_si256(acc, 1));
    crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(lane));
    return (uint32_t)_mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(lane, 1));
}

/* The register so far is added to the first four bytes. The loops over a[] are unrolled so that it lives in registers. */
static TARGET __attribute__((noinline)) uint32_t
extend_long(uint32_t crc, const uint8_t *p, size_t n)
{
    __m256i a[8];
    size_t at = ROUND;

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        a[i] = load(p + i * BLOCK);
    a[0] = _mm256_xor_si256(a[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)~crc)));
    at = fold_mixed(a, p, at, n, CRC32C_MIX_LONG_ROUNDS, crc32c_mix4_avx2_long);
    at = fold_mixed(a, p, at, n, CRC32C_MIX_SHORT_ROUNDS, crc32c_mix4_avx2_short);
    return sc_crc32c_extend_sse42(~reduce(a), p + at, n - at);
}

uint32_t
sc_crc32c_extend_vpclmul_avx2(uint32_t crc, const uint8_t *p, size_t n)
{
    return n < FROM ? sc_crc32c_extend_sse42(crc, p, n) : extend_long(crc, p, n);
}

#else
typedef int sc_crc32c_vpclmul_avx2_is_for_x86; /* ISO C wants a declaration in every file */
#endif
