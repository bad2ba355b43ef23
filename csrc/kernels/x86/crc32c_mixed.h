/* x86/crc32c_mixed.h - a CRC from carry-less multiplications beside crc32 instructions; text for two variants to include
 *
 * Processors without the multiplication of AVX-512 execute these two in different units, neither of which takes more
 * than 8 bytes per cycle alone. So a part of r rounds is laid out, folded and joined as in crc32c_vpclmul.c, with
 * blocks as long as a vector (S streams of the instruction, 8 accumulators of BLOCK bytes):
 *
 *      |<- 64 r ->|<- 64 r ->| ... |<--------- 8 BLOCK r --------->|
 *      | stream 0 | stream 1 | ... | r rounds of eight accumulators |
 *
 * One step folds one accumulator and takes one word of each stream. The rest behind the last part, less than one part,
 * goes to three streams of the instruction, as short messages do.
 *
 * A variant defines before including this:
 *
 *      TARGET, INLINE             attribute of its functions; how those are declared that must be inlined
 *      VECTOR, LANES              its vectors, and the lanes of 128 bits in one
 *      STREAMS                    S, a multiple of LANES
 *      MULTIPLY(v, k, halves)     carry-less products of the low (0x00) or the high halves (0x11) of every lane
 *      ADD(v, w)                  exclusive or
 *      IN_STEP(a, c)              keep the compiler from moving anything of the next step before this point: it puts
 *                                 together what is alike, and either unit waits then
 *      load(p), zero(), every_lane(p), from_register(crc), in_lanes(c), sum_of_lanes(v)
 *      FOLD, MIX_LONG, MIX_SHORT  constants of sc_crc32c_tables.h
 *
 * SPDX-License-Identifier: MIT */

enum {
    BLOCK = 16 * LANES,
    ROUND = 8 * BLOCK,
};

/* v * k + w in every lane: both halves of v by their halves of k. */
INLINE VECTOR
multiply_add(VECTOR v, VECTOR k, VECTOR w)
{
    VECTOR low = MULTIPLY(v, k, 0x00), high = MULTIPLY(v, k, 0x11);

    return ADD(ADD(low, w), high);
}

/* Fold on from `at` with streams beside, in parts of so many rounds while they last; returns where that ends. The number
 * is a constant to the compiler. */
INLINE size_t
fold_mixed(VECTOR a[8], const uint8_t *src, size_t at, size_t n, const size_t rounds, const uint64_t *constants)
{
    const size_t length = rounds * 64, nbytes = STREAMS * length + rounds * ROUND;
    const VECTOR past_round = every_lane(FOLD), past_streams = every_lane(constants + 2 * STREAMS);

    for (; n - at >= nbytes; at += nbytes) {
        const uint8_t *words = src + at, *blocks = words + STREAMS * length;
        uint64_t c[STREAMS] = { 0 };
        VECTOR k = past_streams;

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
#pragma GCC unroll 4
        for (size_t s = 0; s < STREAMS; s += LANES)
            a[7] = ADD(a[7], MULTIPLY(in_lanes(c + s), load(constants + 2 * s), 0x00));
    }
    return at;
}

/* Register of the message that ends with the accumulators: each lane goes straight to the place of the last one. */
INLINE uint32_t
reduce(const VECTOR a[8])
{
    const uint64_t *k = crc32c_finish + 8 * CRC32C_FINISH_BLOCKS - 2 * LANES * 8;
    VECTOR acc = zero();
    __m128i lane;
    uint64_t crc;

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        acc = multiply_add(a[i], load(k + 2 * LANES * i), acc);
    lane = sum_of_lanes(acc);
    crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(lane));
    return (uint32_t)_mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(lane, 1));
}

/* n >= ROUND. The register so far is added to the first four bytes. The loops over a[] are unrolled so that it lives in registers. */
static TARGET __attribute__((noinline)) uint32_t
extend_long(uint32_t crc, const uint8_t *p, size_t n)
{
    VECTOR a[8];
    size_t at = ROUND;

#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++)
        a[i] = load(p + i * BLOCK);
    a[0] = ADD(a[0], from_register(~crc));
    at = fold_mixed(a, p, at, n, CRC32C_MIX_LONG_ROUNDS, MIX_LONG);
    at = fold_mixed(a, p, at, n, CRC32C_MIX_SHORT_ROUNDS, MIX_SHORT);
    return sc_crc32c_extend_sse42(~reduce(a), p + at, n - at);
}
