/* x86/crc32c_pclmul.c - CRC-32C by carry-less multiplication of 128 bits beside the crc32 instruction
 *
 * Processors without VPCLMULQDQ: Intel's from Haswell to Cascade Lake (whose AVX-512 lacks it) and AMD's to Zen 2. Since
 * Broadwell Intel starts a multiplication per cycle, so folding 16 bytes takes two; the others take four. The streams are
 * three, with which a step lasts three cycles or four: 40 bytes in either. AVX is asked for its instructions of three
 * operands, which save a copy per multiplication; exclusive or of three by AVX-512 gains nothing beside them, and with
 * two streams or four a step is either bound by the multiplications or longer than they are.
 *
 *      32 KiB on Skylake-SP, GB/s at 3.1 GHz (and bound)      three streams 25 (25)      both 35 (41)
 *      in slower stretches of that virtual machine            three streams 13           both 24
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_crc32c_impl.h"

#if defined(SC_ARCH_X86_64)

#include "kernels/sc_crc32c_tables.h"

#include <immintrin.h>

/* "crc32" is part of sse4.2, but clang counts it apart and some of its drivers switch it off. */
#define TARGET SC_TARGET("sse4.2,crc32,pclmul,avx")
#define INLINE static inline __attribute__((always_inline)) TARGET

#define VECTOR __m128i
#define LANES 1
#define STREAMS 3
#define FROM 448 /* shorter messages gain nothing */
#define ADD _mm_xor_si128
#define MULTIPLY _mm_clmulepi64_si128
#define FOLD crc32c_fold_lanes1
#define MIX_LONG crc32c_mix3_lanes1_long
#define MIX_SHORT crc32c_mix3_lanes1_short

#define IN_STEP(a, c) __asm__("" : "+x"(a), "+r"((c)[0]), "+r"((c)[1]), "+r"((c)[2]))

INLINE __m128i
load(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE __m128i
zero(void)
{
    return _mm_setzero_si128();
}

INLINE __m128i
every_lane(const uint64_t pair[2])
{
    return load(pair);
}

INLINE __m128i
from_register(uint32_t crc)
{
    return _mm_cvtsi32_si128((int)crc);
}

INLINE __m128i
in_lanes(const uint64_t c[1])
{
    return _mm_cvtsi64_si128((long long)c[0]);
}

INLINE __m128i
sum_of_lanes(__m128i v)
{
    return v;
}

#include "kernels/x86/crc32c_mixed.h"

uint32_t
sc_crc32c_extend_pclmul(uint32_t crc, const uint8_t *p, size_t n)
{
    return n < FROM ? sc_crc32c_extend_sse42(crc, p, n) : extend_long(crc, p, n);
}

#else
typedef int sc_crc32c_pclmul_is_for_x86; /* ISO C wants a declaration in every file */
#endif
