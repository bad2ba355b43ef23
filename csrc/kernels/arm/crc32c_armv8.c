/* arm/crc32c_armv8.c - CRC-32C with the crc32c instructions of ARMv8, three streams at a time
 *
 * The loop is in sc_crc32c_streams.h, the same text as for x86. It is compiled twice: with pmull to join the streams,
 * and without, since the two are separate options of the architecture.
 *
 * The compilers' built-ins are named here because <arm_acle.h> and <arm_neon.h> of clang before 16 hide the functions
 * unless the whole file is compiled for them.
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_crc32c_impl.h"

#if defined(SC_ARCH_ARM64)

#include "base/sc_cpu.h"
#include "kernels/sc_crc32c_tables.h"

#if defined(__clang__)
#define TARGET_CRC SC_TARGET("crc")
#define TARGET_CRC_PMULL SC_TARGET("crc,aes")
#define crc32cb __builtin_arm_crc32cb
#define crc32cw __builtin_arm_crc32cw
#define crc32cx __builtin_arm_crc32cd
#else
#define TARGET_CRC SC_TARGET("+crc")
#define TARGET_CRC_PMULL SC_TARGET("+crc+crypto")
#define crc32cb __builtin_aarch64_crc32cb
#define crc32cw __builtin_aarch64_crc32cw
#define crc32cx __builtin_aarch64_crc32cx
#endif

static inline TARGET_CRC uint32_t
step8(uint32_t crc, uint64_t word)
{
    return crc32cx(crc, word);
}

static inline TARGET_CRC uint32_t
step4(uint32_t crc, uint32_t word)
{
    return crc32cw(crc, word);
}

static inline TARGET_CRC uint32_t
step1(uint32_t crc, uint8_t byte)
{
    return crc32cb(crc, byte);
}

static inline TARGET_CRC_PMULL uint64_t
multiply_pmull(uint32_t a, uint32_t b)
{
#if defined(__clang__)
    return (uint64_t)__builtin_neon_vmull_p64(a, b);
#else
    return (uint64_t)__builtin_aarch64_crypto_pmulldi_ppp(a, b);
#endif
}

#define STREAMS(name) plain_##name
#define STREAMS_TARGET TARGET_CRC
#define STREAMS_MULTIPLY crc32c_multiply
#define STREAMS_MIN 768
#include "kernels/sc_crc32c_streams.h"

#define STREAMS(name) pmull_##name
#define STREAMS_TARGET TARGET_CRC_PMULL
#define STREAMS_MULTIPLY multiply_pmull
#define STREAMS_MIN 96
#include "kernels/sc_crc32c_streams.h"

static sc_crc32c_extend_fn *chosen_extend = plain_extend;
static sc_crc32c_copy_fn *chosen_copy = plain_copy;

void
sc_crc32c_armv8_init(uint32_t features)
{
    const bool pmull = features & SC_CPU_ARMV8_PMULL;

    chosen_extend = pmull ? pmull_extend : plain_extend;
    chosen_copy = pmull ? pmull_copy : plain_copy;
}

uint32_t
sc_crc32c_extend_armv8(uint32_t crc, const uint8_t *p, size_t n)
{
    return chosen_extend(crc, p, n);
}

uint32_t
sc_crc32c_copy_armv8(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
    return chosen_copy(crc, dst, src, n);
}

#else
typedef int sc_crc32c_armv8_is_for_arm; /* ISO C wants a declaration in every file */
#endif
