/* sc_crc32c_impl.h - shared by the variants of CRC-32C (see the head of sc_crc32c.c)
 *
 * Inside this family of files a *register* is the running value without its inversions: (message * x^32) mod P,
 * mirrored. Functions named sc_crc32c_extend_* and sc_crc32c_copy_* take and return finished values, like the public
 * ones.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_CRC32C_IMPL_H
#define SC_CRC32C_IMPL_H

#include "kernels/sc_crc32c.h"

typedef uint32_t sc_crc32c_extend_fn(uint32_t crc, const uint8_t *p, size_t n);
typedef uint32_t sc_crc32c_copy_fn(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n);

sc_crc32c_extend_fn sc_crc32c_extend_portable;
sc_crc32c_copy_fn sc_crc32c_copy_portable;

#if defined(SC_ARCH_X86_64)
/* Needs SC_CPU_SSE42. Streams are joined by pclmul once sc_crc32c_sse42_init() was told that it may be used. */
sc_crc32c_extend_fn sc_crc32c_extend_sse42;
sc_crc32c_copy_fn sc_crc32c_copy_sse42;
void sc_crc32c_sse42_init(uint32_t features);

/* Needs SC_CPU_SSE42, SC_CPU_PCLMUL, SC_CPU_AVX512 and SC_CPU_VPCLMULQDQ. */
sc_crc32c_extend_fn sc_crc32c_extend_vpclmul;
sc_crc32c_copy_fn sc_crc32c_copy_vpclmul;

/* They need the same. One is faster on Zen 4, the other on Zen 5. */
sc_crc32c_extend_fn sc_crc32c_extend_vpclmul_crc32x4;
sc_crc32c_extend_fn sc_crc32c_extend_vpclmul_crc32x8;

/* Needs SC_CPU_SSE42, SC_CPU_PCLMUL, SC_CPU_AVX2 and SC_CPU_VPCLMULQDQ. */
sc_crc32c_extend_fn sc_crc32c_extend_vpclmul_avx2;

/* Needs SC_CPU_SSE42, SC_CPU_PCLMUL and SC_CPU_AVX2. */
sc_crc32c_extend_fn sc_crc32c_extend_pclmul;
#endif

#if defined(SC_ARCH_ARM64)
/* Needs SC_CPU_ARMV8_CRC. Streams are joined by pmull once sc_crc32c_armv8_init() was told that it may be used. */
sc_crc32c_extend_fn sc_crc32c_extend_armv8;
sc_crc32c_copy_fn sc_crc32c_copy_armv8;
void sc_crc32c_armv8_init(uint32_t features);
#endif

/* Carry-less product of two 32-bit words, for machines without an instruction for it. No table and no branch: the 32
 * steps do not depend on one another, so they run several at a time. */
static inline uint64_t
crc32c_multiply(uint32_t a, uint32_t b)
{
    uint64_t product = 0;

    for (unsigned i = 0; i < 32; i++)
        product ^= ((uint64_t)b << i) & (0 - (uint64_t)(a >> i & 1));
    return product;
}

#endif
