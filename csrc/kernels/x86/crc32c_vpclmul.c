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
 * The same beside streams of the crc32 instruction
 * ------------------------------------------------
 * AMD's processors multiply 512 bits at half the rate: one instruction in two cycles, 64 bytes in four. In four cycles
 * the crc32 instruction takes 32 bytes on another unit of Zen 4, and 64 on Zen 5, which has two of it; nothing else is
 * short. So a part of r rounds is laid out as (with four streams; on Zen 5 there are eight)
 *
 *      |<- 64 r ->|<- 64 r ->|<- 64 r ->|<- 64 r ->|<------------ 512 r ------------>|
 *      | stream 0 | stream 1 | stream 2 | stream 3 | r rounds of eight accumulators  |
 *
 * and one step folds one accumulator and takes one word of each stream. The first round folds past the streams too. At
 * the end the registers are put in the lanes of vectors, four each, and one multiplication takes each of the four to
 * the same lane of the last accumulator, which is not wanted before the next round ends.
 *
 *      32 KiB, GB/s (and bound)    folding      three streams    both
 *      Zen 4, 3.7 GHz              58 (59)      28 (29)           79 (88)
 *      Zen 5, 3.6 GHz              58 (58)      29 (29)          102 (116)
 *
 * On Zen 5 these figures hold while nothing else runs on the core: a second thread there that uses vectors reduces all
 * but the streams by up to a third.
 *
 * Processors that multiply at full rate (Intel) take 64 bytes in two cycles; at one word per cycle, these streams would
 * make them wait. They would not gain much either, as they are faster than their caches. They use folding alone, as
 * does every processor that is not known to multiply at half rate.
 *
 * Four rounds per part: with fewer, joining takes a noticeable time. With eight, the streams are so far apart that
 * prefetching from memory fails (10 GB/s at 64 MiB instead of 30).
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_crc32c_impl.h"

#if defined(SC_ARCH_X86_64)

#include "kernels/sc_crc32c_tables.h"

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
    MIX_FROM = 4096, /* one long part, at any alignment; for less it is not faster */
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

/* Hide from the compiler where v came from. The stored and the summed value must come from one load: a second load
 * could see another value. gcc would also turn the short copy loop into a slow `rep movs`. */
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

INLINE __m512i
fold_constants(uint64_t low, uint64_t high)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)high, (long long)low));
}

/* The steps below are asm, because their order matters. Every operand in memory is an address. Only an optimiser
 * finds that the addresses differ by constants; without one, or with ASan, which needs registers too, there are not
 * enough registers. In these builds plain code does the same, and ASan then also checks the loads. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PLAIN_STEPS
#endif
#endif
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(PLAIN_STEPS)

INLINE __m512i
mixed_step(__m512i a, __m512i k, const uint8_t *block, uint64_t c[8], const uint8_t *words, size_t length,
           const size_t streams)
{
    for (size_t i = 0; i < streams; i++)
        c[i] = _mm_crc32_u64(c[i], load_le64(words + i * length));
    return multiply_add(a, k, _mm512_loadu_si512(block));
}

#else

/* The bytes at p, as an operand of asm. */
#define MEMORY(p, nbytes) (*(const uint8_t (*)[nbytes])(p))

/* UBSan's check of a pointer costs a register each. */
#define UNCHECKED INLINE __attribute__((no_sanitize("undefined")))

/* Fold one accumulator and add the next block; add one word of each of four streams, `length` bytes apart.
 *
 * The order matters, so it is not left to the compiler, which would group equal instructions: 79 GB/s become 60. Zen
 * 4 dispatches a multiplication in a cycle of its own and up to six other instructions in one cycle between two of
 * them. With the two multiplications side by side a step takes three such cycles of the four that the units need. */
UNCHECKED __m512i
mixed_step4(__m512i a, __m512i k, const uint8_t *block, uint64_t c[4], const uint8_t *words, size_t length)
{
    __m512i low;

    __asm__(
        "crc32q %[w0], %[c0]\n\t"
        "crc32q %[w1], %[c1]\n\t"
        "vpclmulqdq $0x00, %[k], %[a], %[low]\n\t"
        "vpclmulqdq $0x11, %[k], %[a], %[a]\n\t"
        "crc32q %[w2], %[c2]\n\t"
        "vpternlogq $0x96, %[block], %[low], %[a]\n\t"
        "crc32q %[w3], %[c3]"
        : [a] "+&v"(a), [low] "=&v"(low), [c0] "+&r"(c[0]), [c1] "+&r"(c[1]), [c2] "+&r"(c[2]), [c3] "+&r"(c[3])
        : [k] "v"(k), [block] "m"(MEMORY(block, 64)), [w0] "m"(MEMORY(words, 8)), [w1] "m"(MEMORY(words + length, 8)),
          [w2] "m"(MEMORY(words + 2 * length, 8)), [w3] "m"(MEMORY(words + 3 * length, 8)));
    return a;
}

/* The same with eight streams. */
UNCHECKED __m512i
mixed_step8(__m512i a, __m512i k, const uint8_t *block, uint64_t c[8], const uint8_t *words, size_t length)
{
    __m512i low;

    __asm__(
        "crc32q %[w0], %[c0]\n\t"
        "crc32q %[w1], %[c1]\n\t"
        "vpclmulqdq $0x00, %[k], %[a], %[low]\n\t"
        "crc32q %[w2], %[c2]\n\t"
        "crc32q %[w3], %[c3]\n\t"
        "vpclmulqdq $0x11, %[k], %[a], %[a]\n\t"
        "crc32q %[w4], %[c4]\n\t"
        "crc32q %[w5], %[c5]\n\t"
        "vpternlogq $0x96, %[block], %[low], %[a]\n\t"
        "crc32q %[w6], %[c6]\n\t"
        "crc32q %[w7], %[c7]"
        : [a] "+&v"(a), [low] "=&v"(low), [c0] "+&r"(c[0]), [c1] "+&r"(c[1]), [c2] "+&r"(c[2]), [c3] "+&r"(c[3]),
          [c4] "+&r"(c[4]), [c5] "+&r"(c[5]), [c6] "+&r"(c[6]), [c7] "+&r"(c[7])
        : [k] "v"(k), [block] "m"(MEMORY(block, 64)), [w0] "m"(MEMORY(words, 8)), [w1] "m"(MEMORY(words + length, 8)),
          [w2] "m"(MEMORY(words + 2 * length, 8)), [w3] "m"(MEMORY(words + 3 * length, 8)),
          [w4] "m"(MEMORY(words + 4 * length, 8)), [w5] "m"(MEMORY(words + 5 * length, 8)),
          [w6] "m"(MEMORY(words + 6 * length, 8)), [w7] "m"(MEMORY(words + 7 * length, 8)));
    return a;
}

INLINE __m512i
mixed_step(__m512i a, __m512i k, const uint8_t *block, uint64_t c[8], const uint8_t *words, size_t length,
           const size_t streams)
{
    return streams == 4 ? mixed_step4(a, k, block, c, words, length) : mixed_step8(a, k, block, c, words, length);
}

#endif

/* Four words, each in the low half of a lane. */
INLINE __m512i
in_lanes(const uint64_t c[4])
{
    return _mm512_set_epi64(0, (long long)c[3], 0, (long long)c[2], 0, (long long)c[1], 0, (long long)c[0]);
}

/* Fold on from `at` with streams beside, in parts of so many rounds while they last; returns where that ends. The
 * numbers are constants to the compiler: computed addresses would cost eight cycles per part. */
INLINE size_t
fold_mixed(__m512i a[8], const uint8_t *src, size_t at, size_t n, const size_t streams, const size_t rounds,
           const uint64_t *constants)
{
    const size_t length = rounds * 64, nbytes = streams * length + rounds * ROUND;
    const uint64_t *past_streams = constants + 2 * streams;

    for (; n - at >= nbytes; at += nbytes) {
        const uint8_t *words = src + at, *blocks = words + streams * length;
        __m512i k = fold_constants(past_streams[0], past_streams[1]);
        uint64_t c[8] = { 0 };

        for (size_t r = 0; r < rounds; r++, words += 64, blocks += ROUND) {
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++)
                a[i] = mixed_step(a[i], k, blocks + i * BLOCK, c, words + 8 * i, length, streams);
            k = fold_constants(CRC32C_FOLD_LOW, CRC32C_FOLD_HIGH);
        }
#pragma GCC unroll 2
        for (size_t i = 0; i < streams; i += 4) {
            const __m512i join = _mm512_load_si512(constants + 2 * i);

            a[7] = _mm512_xor_si512(a[7], _mm512_clmulepi64_epi128(in_lanes(c + i), join, 0x00));
        }
    }
    return at;
}

/* Registers in and out; n >= LONG. The loops over a[] are unrolled so that it lives in vector registers. */
INLINE uint32_t
fold_long(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n, const bool copying, const size_t streams)
{
    const __m512i past_round = fold_constants(CRC32C_FOLD_LOW, CRC32C_FOLD_HIGH);
    __m512i a[8], acc = _mm512_setzero_si512();
    const uint64_t *k;
    size_t at = ROUND;

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        a[i] = take(dst, src, i * BLOCK, copying);
    a[0] = _mm512_xor_si512(a[0], from_register(crc));

    if (streams == 4) {
        at = fold_mixed(a, src, at, n, 4, CRC32C_MIX_LONG_ROUNDS, crc32c_mix4_long);
        at = fold_mixed(a, src, at, n, 4, CRC32C_MIX_SHORT_ROUNDS, crc32c_mix4_short);
    } else if (streams == 8) {
        at = fold_mixed(a, src, at, n, 8, CRC32C_MIX_LONG_ROUNDS, crc32c_mix8_long);
        at = fold_mixed(a, src, at, n, 8, CRC32C_MIX_SHORT_ROUNDS, crc32c_mix8_short);
    }
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
INLINE uint32_t
extend_aligned(uint32_t crc, const uint8_t *p, size_t n, const size_t streams)
{
    const size_t head = to_cache_line(p, n);

    if (head > 0)
        crc = sc_crc32c_extend_sse42(crc, p, head);
    return ~fold_long(~crc, NULL, p + head, n - head, false, streams);
}

static TARGET __attribute__((noinline)) uint32_t
extend_long(uint32_t crc, const uint8_t *p, size_t n)
{
    return extend_aligned(crc, p, n, 0);
}

static TARGET __attribute__((noinline)) uint32_t
extend_long_x4(uint32_t crc, const uint8_t *p, size_t n)
{
    return extend_aligned(crc, p, n, 4);
}

static TARGET __attribute__((noinline)) uint32_t
extend_long_x8(uint32_t crc, const uint8_t *p, size_t n)
{
    return extend_aligned(crc, p, n, 8);
}

/* If dst and src cannot both be aligned, align dst: stores gain more. */
static TARGET __attribute__((noinline)) uint32_t
copy_long(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
    const size_t head = to_cache_line(dst, n);

    if (head > 0)
        crc = sc_crc32c_copy_sse42(crc, dst, src, head);
    return ~fold_long(~crc, dst + head, src + head, n - head, true, 0);
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
sc_crc32c_extend_vpclmul_crc32x4(uint32_t crc, const uint8_t *p, size_t n)
{
    return n >= MIX_FROM ? extend_long_x4(crc, p, n) : sc_crc32c_extend_vpclmul(crc, p, n);
}

TARGET uint32_t
sc_crc32c_extend_vpclmul_crc32x8(uint32_t crc, const uint8_t *p, size_t n)
{
    return n >= MIX_FROM ? extend_long_x8(crc, p, n) : sc_crc32c_extend_vpclmul(crc, p, n);
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
