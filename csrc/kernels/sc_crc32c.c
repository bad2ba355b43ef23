/* sc_crc32c.c - CRC-32C: what it is, how it is made fast, and the choice of a variant
 *
 * Definition
 * ----------
 * A message is a polynomial over GF(2): its bits, the lowest bit of each byte first, are the coefficients from the
 * highest power of x down. Addition is exclusive or, so there is no carry and no sign. The checksum is the remainder
 *
 *      register = (message * x^32) mod P,     P = x^32 + 0x1EDC6F41 (Castagnoli)
 *
 * with two conventions on top: the first 32 bits of the message are inverted (so that leading zeros count), and so is
 * the result. Since the low bit comes first, everything is kept mirrored: bit 31 - i of the register is the coefficient
 * of x^i, and P without its x^32 reads 0x82F63B78. The code that follows from this, one bit at a time:
 *
 *      crc = ~crc;
 *      while (n--) {
 *          crc ^= *p++;
 *          for (int i = 0; i < 8; i++)
 *              crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
 *      }
 *      return ~crc;
 *
 * A shift to the right multiplies by x, since it moves each coefficient one place up; the bit that drops out is x^32,
 * which equals the rest of P. Eight steps per byte, each waiting for the one before it: 0.2 GB/s or less. All that
 * follows computes the same remainder, rem(), and rests on two facts about it:
 *
 *      linear      rem(A + B)   = rem(A) + rem(B)
 *      shiftable   rem(A * x^n) = rem(rem(A) * rem(x^n)),   where rem(x^n) is a constant to be prepared
 *
 * 1. Tables ("portable")
 * ----------------------
 * By linearity the eight steps of one byte are one look-up in a table of 256 words. When 16 bytes are taken at once,
 * byte i is followed by 15 - i more, so its share stands in a table of "this byte, then 15 - i zeros"; the 16 look-ups
 * do not wait for one another and are only added. 16 tables of 1 KiB give 2.9 GB/s, 8 tables 1.9; more would begin to
 * push the data out of the first-level cache.
 *
 * 2. One instruction ("sse42", "armv8")
 * -------------------------------------
 * x86 and ARM have the step of 8 bytes as an instruction, which takes three cycles and can start in every one. A chain
 * of them advances 8 bytes in three cycles; three independent chains advance 8 bytes in each. The three parts are
 * joined by shifting: sc_crc32c_streams.h. 28 GB/s at 3.5 GHz, and no way to go beyond.
 *
 * 3. Folding ("vpclmulqdq")
 * -------------------------
 * One need not reduce to 32 bits at each step. A 128-bit piece of the message may be replaced by anything with the same
 * remainder, added to the piece that stands D bits later:
 *
 *      ... [ H | L ] ..... [ next ] ...      next += H * rem(x^(D + 64)) + L * rem(x^D)
 *          |<----- D ----->|
 *
 * H and L are 64 bits wide, the constants 32, so the sum fits in 128 bits. Two carry-less multiplications take 16 bytes
 * (64 with VPCLMULQDQ) past any distance; only the last 128 bits are ever reduced, by two crc32 instructions. 110 GB/s.
 * How the products are arranged is told in x86/crc32c_vpclmul.c; why the exponents are D + 31 and D - 33 in place of
 * D + 64 and D (mirrored words multiply to one power of x too many), in gen_crc32c_tables.py.
 *
 * 4. Both at once ("vpclmulqdq_crc32x4", "vpclmulqdq_crc32x8", "vpclmulqdq_avx2", "pclmulqdq")
 * -------------------------------------------------------------------------------------------
 * The two instructions are carried out by different units. Where a multiplication of 512 bits takes two cycles, as on
 * AMD's processors, folding is bound to 16 bytes per cycle (59 GB/s), and the crc32 instruction to 8 (Zen 4) or 16
 * (Zen 5, where eight streams keep it busy); side by side they take 24 or 32. x86/crc32c_vpclmul.c tells how a message
 * is divided among them, and why this is done on such processors only. Where the multiplications are of 256 bits or of
 * 128, folding alone is no faster than the instruction: x86/crc32c_mixed.h.
 *
 * Copying
 * -------
 * sc_crc32c_copy() sums what it stores, not what it might load a second time: the checksum is that of the bytes
 * written, even when another thread changes the source meanwhile. And memory is read once.
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_crc32c.h"

#include "base/sc_cpu.h"
#include "kernels/sc_crc32c_impl.h"
#include "kernels/sc_crc32c_tables.h"

struct impl {
    const char *name;
    sc_crc32c_extend_fn *extend;
    sc_crc32c_copy_fn *copy;
    uint32_t needs; /* every one of these features */
    uint32_t suits; /* chosen only where these are found too */
};

#if defined(SC_ARCH_X86_64)
#define NEEDS_PCLMUL (SC_CPU_AVX2 | SC_CPU_PCLMUL | SC_CPU_SSE42)
#define NEEDS_VPCLMUL_AVX2 (SC_CPU_VPCLMULQDQ | SC_CPU_AVX2 | SC_CPU_PCLMUL | SC_CPU_SSE42)
#define NEEDS_VPCLMUL (SC_CPU_VPCLMULQDQ | SC_CPU_AVX512 | SC_CPU_PCLMUL | SC_CPU_SSE42)
#endif

/* The first row that runs and suits is chosen; the last one needs no feature. */
static const struct impl impls[] = {
#if defined(SC_ARCH_X86_64)
    { "vpclmulqdq_crc32x8", sc_crc32c_extend_vpclmul_crc32x8, sc_crc32c_copy_vpclmul, NEEDS_VPCLMUL, SC_CPU_ZEN5 },
    { "vpclmulqdq_crc32x4", sc_crc32c_extend_vpclmul_crc32x4, sc_crc32c_copy_vpclmul, NEEDS_VPCLMUL, SC_CPU_ZEN4 },
    { "vpclmulqdq", sc_crc32c_extend_vpclmul, sc_crc32c_copy_vpclmul, NEEDS_VPCLMUL, 0 },
    { "vpclmulqdq_avx2", sc_crc32c_extend_vpclmul_avx2, sc_crc32c_copy_sse42, NEEDS_VPCLMUL_AVX2, 0 },
    { "pclmulqdq", sc_crc32c_extend_pclmul, sc_crc32c_copy_sse42, NEEDS_PCLMUL, 0 },
    { "sse42", sc_crc32c_extend_sse42, sc_crc32c_copy_sse42, SC_CPU_SSE42, 0 },
#endif
#if defined(SC_ARCH_ARM64)
    { "armv8", sc_crc32c_extend_armv8, sc_crc32c_copy_armv8, SC_CPU_ARMV8_CRC, 0 },
#endif
    { "portable", sc_crc32c_extend_portable, sc_crc32c_copy_portable, 0, 0 },
};

#define PORTABLE (SC_ARRAY_SIZE(impls) - 1)

/* Portable until sc_crc32c_init(). The functions stand beside the row's number to save a load in every call. */
static size_t chosen = PORTABLE;
static sc_crc32c_extend_fn *chosen_extend = sc_crc32c_extend_portable;
static sc_crc32c_copy_fn *chosen_copy = sc_crc32c_copy_portable;

/* Combine the look-ups of eight bytes that lie `behind` bytes before the end of their step. */
static inline uint32_t
look_up8(uint64_t word, unsigned behind)
{
    uint32_t sum = 0;

#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++)
        sum ^= crc32c_slices[behind + 7 - i][word >> 8 * i & 0xFF];
    return sum;
}

uint32_t
sc_crc32c_extend_portable(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    for (; n >= 16; p += 16, n -= 16)
        crc = look_up8(load_le64(p) ^ crc, 8) ^ look_up8(load_le64(p + 8), 0);
    if (n >= 8) {
        crc = look_up8(load_le64(p) ^ crc, 0);
        p += 8;
        n -= 8;
    }
    for (; n > 0; p++, n--)
        crc = crc >> 8 ^ crc32c_slices[0][(crc ^ *p) & 0xFF];
    return ~crc;
}

/* The checksum is that of the bytes that arrived in dst, so a source that changes meanwhile does no harm. */
uint32_t
sc_crc32c_copy_portable(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
    while (n > 0) {
        const size_t piece = n < 4096 ? n : 4096; /* stays in the first-level cache between the two passes */

        memcpy(dst, src, piece);
        crc = sc_crc32c_extend_portable(crc, dst, piece);
        dst += piece;
        src += piece;
        n -= piece;
    }
    return crc;
}

/* Multiply crc_a by x^(8 nbytes_b): one shift per bit set in the exponent. The powers of x repeat with period 2^31 - 1,
 * so the exponent is taken modulo that, which also keeps 8 nbytes_b from overflowing. */
uint32_t
sc_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t nbytes_b)
{
    const uint64_t period = 0x7FFFFFFF;
    uint64_t exponent = nbytes_b % period * 8 % period;

    for (unsigned k = 0; exponent > 0; k++, exponent >>= 1) {
        if (exponent & 1)
            crc_a = look_up8(crc32c_multiply(crc_a, crc32c_shift_pow2[k]), 0);
    }
    return crc_a ^ crc_b;
}

static bool
has_all(uint32_t features)
{
    return (sc_cpu_features() & features) == features;
}

void
sc_crc32c_init(void)
{
#if defined(SC_ARCH_X86_64)
    sc_crc32c_sse42_init(sc_cpu_features());
#endif
#if defined(SC_ARCH_ARM64)
    sc_crc32c_armv8_init(sc_cpu_features());
#endif
    for (chosen = 0; chosen < PORTABLE; chosen++) {
        if (sc_crc32c_impl_usable(chosen) && has_all(impls[chosen].suits))
            break;
    }
    chosen_extend = impls[chosen].extend;
    chosen_copy = impls[chosen].copy;
}

uint32_t
sc_crc32c_extend(uint32_t crc, const uint8_t *p, size_t n)
{
    return chosen_extend(crc, p, n);
}

uint32_t
sc_crc32c_copy(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
    return chosen_copy(crc, dst, src, n);
}

size_t
sc_crc32c_n_impls(void)
{
    return SC_ARRAY_SIZE(impls);
}

const char *
sc_crc32c_impl_name(size_t i)
{
    return impls[i].name;
}

bool
sc_crc32c_impl_usable(size_t i)
{
    return has_all(impls[i].needs);
}

uint32_t
sc_crc32c_extend_impl(size_t i, uint32_t crc, const uint8_t *p, size_t n)
{
    return impls[i].extend(crc, p, n);
}

uint32_t
sc_crc32c_copy_impl(size_t i, uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n)
{
    return impls[i].copy(crc, dst, src, n);
}

size_t
sc_crc32c_chosen(void)
{
    return chosen;
}
