/* x86/crc32c_vpclmul.c - CRC-32C by carry-less multiplication, 64 bytes per instruction (AVX-512 and VPCLMULQDQ)
 *
 * Folding (see sc_crc32c.c) with eight accumulators, each past eight blocks of 64 bytes per round, because a
 * multiplication takes about eight cycles and one can start every cycle:
 *
 *      block        0  1  2  3  4  5  6  7 | 8  9 ...
 *      accumulator  a0 a1 a2 a3 a4 a5 a6 a7 | a0 = a0 * x^4096 + block 8, ...
 *
 * The end is not folded step by step. Each of the last blocks (accumulators, then blocks still in memory, 16 at most)
 * has its own constants in crc32c_finish, which take each 128-bit lane straight to the place of the last lane:
 *
 *      a0 .. a7, block, block, block | rest, zeros |      acc = sum of lane * x^(distance to the last lane)
 *
 * These products do not wait for one another, so a message shorter than 1 KiB is only this sum, without any folding.
 * The rest is loaded under a mask, as if zeros followed; they multiply the result by a power of x, which is divided out
 * at the end. So there is no loop over left-over bytes, and no byte outside the message is read or written.
 *
 * SPDX-License-Identifier: MIT */
#include "sc_crc32c_impl.h"

#if defined(SC_ARCH_X86_64)

#include "sc_crc32c_tables.h"

#include <immintrin.h>

/* "crc32" is part of sse4.2, but clang counts it apart and some of its drivers switch it off. */
#define TARGET SC_TARGET("sse4.2,crc32,pclmul,avx512f,avx512bw,avx512dq,avx512vl,vpclmulqdq")
#define INLINE static inline __attribute__((always_inline)) TARGET

enum {
    BLOCK = 64, /* shorter messages go to the crc32 instruction */
    ROUND = 8 * BLOCK,
    LONG = CRC32C_FINISH_BLOCKS * BLOCK, /* more than one finish can take */
    /* From here on aligned vectors repay a step to the next cache line: 80 -> 108 GB/s at 64 KiB, nothing below. */
    ALIGN_FROM = 4096,
};

INLINE __m512i
from_register(uint32_t crc)
{
    return _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc));
}

/* v * k + w in every lane: both halves of v by their halves of k. */
INLINE __m512i
multiply_add(__m512i v, __m512i k, __m512i w)
{
    __m512i low = _mm512_clmulepi64_epi128(v, k, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(v, k, 0x11);

    return _mm512_ternarylogic_epi64(low, high, w, 0x96);
}

/* Make the compiler forget where v came from. What is stored and what is summed must be one load: a second one could
 * see another value, and gcc makes the short loop that copies into a slow `rep movs` besides. */
INLINE __m512i
loaded_once(__m512i v)
{
    __asm__("" : "+v"(v));
    return v;
}

INLINE __m512i
take(uint8_t *dst, const uint8_t *src, size_t at, const bool copying)
{
    __m512i v = _mm512_loadu_si512(src + at);

    if (copying) {
        v = loaded_once(v);
        _mm512_storeu_si512(dst + at, v);
    }
    return v;
}

/* The first n bytes of a block, n < 64, zeros behind them. */
INLINE __m512i
take_part(uint8_t *dst, const uint8_t *src, size_t at, size_t n, const bool copying)
{
    const __mmask64 mask = ((uint64_t)1 << n) - 1;
    __m512i v = _mm512_maskz_loadu_epi8(mask, src + at);

    if (copying) {
        v = loaded_once(v);
        _mm512_mask_storeu_epi8(dst + at, mask, v);
    }
    return v;
}

/* Register of the message that the four lanes sum up to. */
INLINE uint32_t
reduce(__m512i acc)
{
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(acc), _mm512_extracti64x4_epi64(acc, 1));
    __m128i lane = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    uint64_t crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(lane));

    return (uint32_t)_mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(lane, 1));
}

/* Divide by x^(8 n): forget n zero bytes at the end. */
INLINE uint32_t
unshift(uint32_t crc, size_t n)
{
    __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)crc), _mm_cvtsi32_si128((int)crc32c_unshift_bytes[n]), 0x00);

    return (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* Constants of the last n_blocks blocks of a message. */
INLINE const uint64_t *
finish_constants(size_t n_blocks)
{
    return crc32c_finish + 8 * (CRC32C_FINISH_BLOCKS - n_blocks);
}

INLINE size_t
blocks_in(size_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

/* Add the blocks from `at` to the end, n, to acc; k are the constants of the first of them. Returns the register. */
INLINE uint32_t
finish(__m512i acc, const uint64_t *k, uint8_t *dst, const uint8_t *src, size_t at, size_t n, const bool copying)
{
    const size_t rest = n % BLOCK;

    for (; n - at >= BLOCK; at += BLOCK, k += 8)
        acc = multiply_add(take(dst, src, at, copying), _mm512_load_si512(k), acc);
    if (rest == 0)
        return reduce(acc);
    acc = multiply_add(take_part(dst, src, at, rest, copying), _mm512_load_si512(k), acc);
    return unshift(reduce(acc), BLOCK - rest);
}

/* Registers in and out; BLOCK <= n < LONG. The register so far is added to the first four bytes. */
INLINE uint32_t
fold_short(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, const bool copying)
{
    const uint64_t *k = finish_constants(blocks_in(n));
    __m512i first = _mm512_xor_si512(take(dst, src, 0, copying), from_register(crc));
    __m512i acc = multiply_add(first, _mm512_load_si512(k), _mm512_setzero_si512());

    return finish(acc, k + 8, dst, src, BLOCK, n, copying);
}

/* Registers in and out; n >= LONG. The loops over a[] are unrolled so that it lives in vector registers. */
INLINE uint32_t
fold_long(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, const bool copying)
{
    const __m512i past_round = _mm512_broadcast_i32x4(_mm_set_epi64x(CRC32C_FOLD_HIGH, CRC32C_FOLD_LOW));
    __m512i a[8], acc = _mm512_setzero_si512();
    const uint64_t *k;
    size_t at = ROUND;

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        a[i] = take(dst, src, i * BLOCK, copying);
    a[0] = _mm512_xor_si512(a[0], from_register(crc));

    for (; n - at >= ROUND; at += ROUND) {
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++)
            a[i] = multiply_add(a[i], past_round, take(dst, src, at + i * BLOCK, copying));
    }

    k = finish_constants(8 + blocks_in(n - at));
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        acc = multiply_add(a[i], _mm512_load_si512(k + 8 * i), acc);
    return finish(acc, k + 8 * 8, dst, src, at, n, copying);
}

/* Bytes from p to the next cache line, when going there pays for a message of n bytes. */
INLINE size_t
to_cache_line(const uint8_t *p, size_t n)
{
    return n < ALIGN_FROM ? 0 : -(uintptr_t)p % BLOCK;
}

/* Long messages apart: their registers and their calls must not cost the short ones a stack frame. */
static TARGET __attribute__((noinline)) uint32_t
extend_long(uint32_t crc, const uint8_t *p, size_t n)
{
    const size_t head = to_cache_line(p, n);

    if (head > 0)
        crc = sc_crc32c_extend_sse42(crc, p, head);
    return ~fold_long(~crc, NULL, p + head, n - head, false);
}

/* Where dst and src cannot both be aligned, it is the stores that gain. */
static TARGET __attribute__((noinline)) uint32_t
copy_long(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
    const size_t head = to_cache_line(dst, n);

    if (head > 0)
        crc = sc_crc32c_copy_sse42(crc, dst, src, head);
    return ~fold_long(~crc, dst + head, src + head, n - head, true);
}

TARGET uint32_t
sc_crc32c_extend_vpclmul(uint32_t crc, const uint8_t *p, size_t n)
{
    if (n < BLOCK)
        return sc_crc32c_extend_sse42(crc, p, n);
    if (n >= LONG)
        return extend_long(crc, p, n);
    return ~fold_short(~crc, NULL, p, n, false);
}

TARGET uint32_t
sc_crc32c_copy_vpclmul(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
    if (n < BLOCK)
        return sc_crc32c_copy_sse42(crc, dst, src, n);
    if (n >= LONG)
        return copy_long(crc, dst, src, n);
    return ~fold_short(~crc, dst, src, n, true);
}

#else
typedef int sc_crc32c_vpclmul_is_for_x86; /* ISO C wants a declaration in every file */
#endif
