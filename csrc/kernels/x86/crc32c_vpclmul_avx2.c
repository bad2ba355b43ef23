/* x86/crc32c_vpclmul_avx2.c - CRC-32C by carry-less multiplication of 256 bits beside the crc32 instruction
 *
 * Processors with VPCLMULQDQ but without AVX-512: AMD's Zen 3, Intel's since Alder Lake. Zen 3 starts a multiplication of
 * 256 bits every two cycles, so folding 32 bytes, which takes two, keeps that unit busy for four; meanwhile the crc32
 * instruction takes 32 bytes in four streams. Either is bound to 8 bytes per cycle, both together to 16. The loop is in
 * crc32c_mixed.h.
 *
 *      32 KiB on Zen 3, GB/s at 2.8 GHz (and bound)      three streams 20 (22)      both 36 (45)
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_crc32c_impl.h"

#if defined(SC_ARCH_X86_64)

#include "kernels/sc_crc32c_tables.h"

#include <immintrin.h>

/* "crc32" is part of sse4.2, but clang counts it apart and some of its drivers switch it off. */
#define TARGET SC_TARGET("sse4.2,crc32,pclmul,avx2,vpclmulqdq")
#define INLINE static inline __attribute__((always_inline)) TARGET

#define VECTOR __m256i
#define LANES 2
#define STREAMS 4
#define FROM 2048 /* shorter messages gain nothing */
#define ADD _mm256_xor_si256
#define FOLD crc32c_fold_lanes2
#define MIX_LONG crc32c_mix4_lanes2_long
#define MIX_SHORT crc32c_mix4_lanes2_short

/* Asm, since some compilers ask AVX-512 for it. */
#define MULTIPLY(v, k, halves)                                                            \
    __extension__({                                                                       \
        __m256i product_;                                                                 \
        __asm__("vpclmulqdq $" #halves ", %2, %1, %0" : "=x"(product_) : "x"(v), "x"(k)); \
        product_;                                                                         \
    })

#define IN_STEP(a, c) __asm__("" : "+x"(a), "+r"((c)[0]), "+r"((c)[1]), "+r"((c)[2]), "+r"((c)[3]))

INLINE __m256i
load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m256i
zero(void)
{
    return _mm256_setzero_si256();
}

INLINE __m256i
every_lane(const uint64_t pair[2])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)pair));
}

INLINE __m256i
from_register(uint32_t crc)
{
    return _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)crc));
}

/* Two words, each in the low half of a lane. */
INLINE __m256i
in_lanes(const uint64_t c[2])
{
    return _mm256_set_epi64x(0, (long long)c[1], 0, (long long)c[0]);
}

INLINE __m128i
sum_of_lanes(__m256i v)
{
    return _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

#include "kernels/x86/crc32c_mixed.h"

uint32_t
sc_crc32c_extend_vpclmul_avx2(uint32_t crc, const uint8_t *p, size_t n)
{
    return n < FROM ? sc_crc32c_extend_sse42(crc, p, n) : extend_long(crc, p, n);
}

#else
typedef int sc_crc32c_vpclmul_avx2_is_for_x86; /* ISO C wants a declaration in every file */
#endif
