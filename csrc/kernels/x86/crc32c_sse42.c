/* x86/crc32c_sse42.c - CRC-32C with the crc32 instruction of SSE 4.2, three streams at a time
 *
 * The loop is in sc_crc32c_streams.h. It is compiled twice: with pclmul to join the streams, and without, for the few
 * machines that have the one but not the other, and for SHARDCODEC_CPU=sse42.
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_crc32c_impl.h"

#if defined(SC_ARCH_X86_64)

#include "base/sc_cpu.h"
#include "kernels/sc_crc32c_tables.h"

#include <immintrin.h>

/* "crc32" is part of sse4.2, but clang counts it apart and some of its drivers switch it off. */
#define TARGET_SSE42 SC_TARGET("sse4.2,crc32")
#define TARGET_PCLMUL SC_TARGET("sse4.2,crc32,pclmul")

static inline TARGET_SSE42 uint32_t
step8(uint32_t crc, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(crc, word);
}

static inline TARGET_SSE42 uint32_t
step4(uint32_t crc, uint32_t word)
{
    return _mm_crc32_u32(crc, word);
}

static inline TARGET_SSE42 uint32_t
step1(uint32_t crc, uint8_t byte)
{
    return _mm_crc32_u8(crc, byte);
}

static inline TARGET_PCLMUL uint64_t
multiply_pclmul(uint32_t a, uint32_t b)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0x00);

    return (uint64_t)_mm_cvtsi128_si64(product);
}

#define STREAMS(name) plain_##name
#define STREAMS_TARGET TARGET_SSE42
#define STREAMS_MULTIPLY crc32c_multiply
#define STREAMS_MIN 768
#include "kernels/sc_crc32c_streams.h"

#define STREAMS(name) pclmul_##name
#define STREAMS_TARGET TARGET_PCLMUL
#define STREAMS_MULTIPLY multiply_pclmul
#define STREAMS_MIN 96
#include "kernels/sc_crc32c_streams.h"

static sc_crc32c_extend_fn *chosen_extend = plain_extend;
static sc_crc32c_copy_fn *chosen_copy = plain_copy;

void
sc_crc32c_sse42_init(uint32_t features)
{
    const bool pclmul = features & SC_CPU_PCLMUL;

    chosen_extend = pclmul ? pclmul_extend : plain_extend;
    chosen_copy = pclmul ? pclmul_copy : plain_copy;
}

uint32_t
sc_crc32c_extend_sse42(uint32_t crc, const uint8_t *p, size_t n)
{
    return chosen_extend(crc, p, n);
}

uint32_t
sc_crc32c_copy_sse42(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
    return chosen_copy(crc, dst, src, n);
}

#else
typedef int sc_crc32c_sse42_is_for_x86; /* ISO C wants a declaration in every file */
#endif
