/* sc_inflate_fast.c - the fast loop of a block, far from both ends: no tests per symbol (see sc_inflate.c)
 *
 * The chain from one look-up to the next limits the speed. So if the rest of the stream is long enough to pay for a
 * table, one look-up takes two symbols: two literals, or a complete match (length and offset), if their codes fit into
 * the index together. This raised a stream of a smooth field with noise (short matches, few literals between them) from
 * 484 to 545 MB/s (with an index of 9 bits for offsets).
 *
 * An entry for two symbols has more bits than one for one symbol (sc_inflate_impl.h); the low bits keep their meaning:
 *
 *      63     49  48  47                 32 31                 16 15    12 11        0
 *     +---------+---+---------------------+---------------------+--------+-----------+
 *     |    0    | M |   count or length   |        value        |  code  | as before |
 *     +---------+---+---------------------+---------------------+--------+-----------+
 *
 *     literal    value: one byte or two; count: how many
 *     M, match   length: of the match; value, code, drop: of its offset, the length's bits counted with the code's
 *     the rest   as for one symbol, and 0 above
 *
 * SPDX-License-Identifier: MIT */
#include "base/sc_cpu.h"
#include "kernels/sc_inflate_impl.h"

/* Smallest input for which a table of pairs pays: it takes about 3 us to make. */
#define WORTH_PAIRS (8 << 10)

#define MATCH (UINT64_C(1) << 48)

/* A round: refills three times, each moving on by 7 bytes at most and loading 8; writes three literals or pairs of them,
 * and one match, which may be overshot by less than 32. */
#define IN_MARGIN 32
#define OUT_MARGIN (6 + MAX_LENGTH + 32)

static inline void
copy_8(uint8_t *dst, const uint8_t *src)
{
    uint64_t word;

    memcpy(&word, src, sizeof word);
    memcpy(dst, &word, sizeof word);
}

static inline void
copy_16(uint8_t *dst, const uint8_t *src)
{
    uint64_t words[2];

    memcpy(words, src, sizeof words);
    memcpy(dst, words, sizeof words);
}

/* Write `length` bytes of a pattern of `offset` < 8 bytes that ends at out: the pattern is repeated over a word by one
 * multiplication, and the word written at steps of whole patterns, four times at once, as long matches are most of a run. */
static inline void
copy_pattern(uint8_t *out, uint32_t offset, uint32_t length)
{
    static const uint64_t repeat[8] = { 0,
                                        UINT64_C(0x0101010101010101),
                                        UINT64_C(0x0001000100010001),
                                        UINT64_C(0x0001000001000001),
                                        UINT64_C(0x0000000100000001),
                                        UINT64_C(0x0000010000000001),
                                        UINT64_C(0x0001000000000001),
                                        UINT64_C(0x0100000000000001) };
    static const uint8_t step[8] = { 0, 8, 8, 6, 8, 5, 6, 7 };
    const uint8_t *const end = out + length;
    const size_t n = step[offset];
    uint64_t word = 0;

    for (uint32_t i = 0; i < offset; i++)
        word |= (uint64_t)out[(ptrdiff_t)i - (ptrdiff_t)offset] << 8 * i;
    word *= repeat[offset];
    for (; out < end; out += 4 * n) {
        store_le64(out, word);
        store_le64(out + n, word);
        store_le64(out + 2 * n, word);
        store_le64(out + 3 * n, word);
    }
}

/* Copy a match; up to 31 bytes behind its end are overwritten. Most matches are short and come from far enough for one
 * copy; one test for that is foreseen better than two. */
static inline void
copy_match(uint8_t *out, uint32_t offset, uint32_t length)
{
    const uint8_t *const end = out + length, *src = out - offset;

    if (SC_LIKELY(offset >= 16 && length <= 16)) {
        copy_16(out, src);
    } else if (offset >= 16) {
        for (; out < end; out += 16, src += 16)
            copy_16(out, src);
    } else if (offset >= 8) {
        for (; out < end; out += 8, src += 8)
            copy_8(out, src);
    } else {
        copy_pattern(out, offset, length);
    }
}

/* ---- two symbols at once */

static uint64_t
pair_of_literals(const uint32_t *litlen, uint32_t entry, uint32_t i)
{
    const unsigned n = drop_of(entry);
    const uint32_t next = litlen[i >> n]; /* the bits above are not known, and read as 0 */

    if ((next & LITERAL) && n + drop_of(next) <= LITLEN_BITS)
        return UINT64_C(2) << 32 | (entry + drop_of(next)) | value_of(next) << 24;
    return UINT64_C(1) << 32 | entry;
}

static uint64_t
pair_of_match(const uint32_t *offsets, uint32_t entry, uint32_t i)
{
    const unsigned n = drop_of(entry); /* extra bits of the length among them */
    uint32_t next;

    if (n >= LITLEN_BITS)
        return entry;
    next = look_up(offsets, OFFSET_BITS, i >> n);
    if ((next & (TABLE | STOP)) || n + code_of(next) > LITLEN_BITS)
        return entry;
    return MATCH | (uint64_t)with_extra(entry, i) << 32 | (next + n * (CODE_BIT + 1));
}

static void
build_pairs(struct sc_inflate_tables *tables)
{
    for (uint32_t i = 0; i < 1u << LITLEN_BITS; i++) {
        const uint32_t entry = tables->litlen[i];

        if (entry & LITERAL)
            tables->pairs[i] = pair_of_literals(tables->litlen, entry, i);
        else
            tables->pairs[i] = entry & (TABLE | STOP) ? entry : pair_of_match(tables->offset, entry, i);
    }
}

/* ---- the loop */

/* What the loop holds in registers, as no function takes its address. Only the low 6 bits of n_bits count here. Whole entries are
 * subtracted from it, which saves masking them. It never falls below the number of dropped bits, so the subtraction does not
 * borrow. */
struct place {
    const uint8_t *in;
    uint8_t *out;
    uint64_t bits;
    uint32_t n_bits;
};

#define INLINE static inline __attribute__((always_inline))

INLINE void
refill(struct place *p)
{
    p->bits |= load_le64(p->in) << (p->n_bits & 63);
    p->in += ~p->n_bits >> 3 & 7;
    p->n_bits |= 56;
}

INLINE void
drop(struct place *p, uint64_t entry)
{
    p->bits >>= entry & DROP_MASK;
    p->n_bits -= (uint32_t)entry;
}

/* Write two bytes. If the entry has one literal only, the next symbol overwrites the second byte. */
INLINE void
put_literals(struct place *p, uint64_t entry, const bool paired)
{
    p->out[0] = (uint8_t)(entry >> 16);
    if (paired)
        p->out[1] = (uint8_t)(entry >> 24);
    p->out += paired ? (ptrdiff_t)(entry >> 32) : 1;
    drop(p, entry);
}

INLINE uint64_t
next_entry(const struct sc_inflate_tables *tables, const struct place *p, const bool paired)
{
    return paired ? tables->pairs[p->bits & ((1u << LITLEN_BITS) - 1)] : look_up(tables->litlen, LITLEN_BITS, p->bits);
}

/* Decode while a round fits into both buffers, which it has to at the start. `paired` is a constant where this is
 * called: two loops come of it. */
INLINE enum sc_inflate_outcome
decode(const struct sc_inflate_tables *tables, struct sc_inflate_stream *s, const bool paired)
{
    const uint32_t *const litlen = tables->litlen, *const offsets = tables->offset;
    const uint8_t *const in_last = s->in_end - IN_MARGIN, *const out_last = s->out_end - OUT_MARGIN;
    struct place p = { s->in, s->out, s->bits, s->n_bits };
    enum sc_inflate_outcome outcome = GOES_ON;
    uint32_t one, length, offset;
    uint64_t entry;

    refill(&p);
    entry = next_entry(tables, &p, paired);
    do {
        if (entry & LITERAL) {
            put_literals(&p, entry, paired);
            entry = next_entry(tables, &p, paired);
            if (entry & LITERAL) {
                put_literals(&p, entry, paired);
                entry = next_entry(tables, &p, paired);
                if (entry & LITERAL) {
                    put_literals(&p, entry, paired);
                    entry = next_entry(tables, &p, paired);
                }
            }
            refill(&p);
            if (entry & LITERAL)
                continue;
        }
        one = (uint32_t)entry;
        if (paired && SC_LIKELY(entry & MATCH)) {
            length = (uint32_t)(entry >> 32) & 0xFFFF;
        } else {
            if (SC_UNLIKELY(one & (TABLE | STOP))) {
                if (one & TABLE) {
                    drop(&p, one);
                    one = look_up(litlen + value_of(one), code_of(one), p.bits);
                    if (one & LITERAL) {
                        *p.out++ = (uint8_t)value_of(one);
                        drop(&p, one);
                        refill(&p);
                        entry = next_entry(tables, &p, paired);
                        continue;
                    }
                }
                if (one & STOP) {
                    drop(&p, one);
                    outcome = value_of(one) == value_of(END_OF_BLOCK) ? BLOCK_ENDS : BAD_LITLEN;
                    break;
                }
            }
            length = with_extra(one, p.bits);
            drop(&p, one);
            one = look_up(offsets, OFFSET_BITS, p.bits);
            if (SC_UNLIKELY(one & (TABLE | STOP))) {
                if (one & TABLE) {
                    drop(&p, one);
                    one = look_up(offsets + value_of(one), code_of(one), p.bits);
                }
                if (one & STOP) {
                    outcome = BAD_OFFSET;
                    break;
                }
            }
        }
        offset = with_extra(one, p.bits);
        drop(&p, one);
        if (SC_UNLIKELY(offset > (size_t)(p.out - s->out_start))) {
            outcome = TOO_FAR;
            break;
        }
        /* the next entry is under way while the match is copied */
        refill(&p);
        entry = next_entry(tables, &p, paired);
        copy_match(p.out, offset, length);
        p.out += length;
    } while (p.in <= in_last && p.out <= out_last);

    s->in = p.in;
    s->out = p.out;
    s->n_bits = p.n_bits & 63;
    s->bits = p.bits & ((UINT64_C(1) << s->n_bits) - 1);
    return outcome;
}

INLINE enum sc_inflate_outcome
decode_either(struct sc_inflate_tables *tables, struct sc_inflate_stream *s)
{
    if (s->in_end - s->in < WORTH_PAIRS)
        return decode(tables, s, false);
    build_pairs(tables);
    return decode(tables, s, true);
}

static enum sc_inflate_outcome
decode_portable(struct sc_inflate_tables *tables, struct sc_inflate_stream *s)
{
    return decode_either(tables, s);
}

#ifdef SC_ARCH_X86_64
/* Shifts by a variable number cost three steps where the processor has only the old ones. */
SC_TARGET("bmi2")
static enum sc_inflate_outcome
decode_bmi2(struct sc_inflate_tables *tables, struct sc_inflate_stream *s)
{
    return decode_either(tables, s);
}
#endif

enum sc_inflate_outcome
sc_inflate_fast(struct sc_inflate_tables *tables, struct sc_inflate_stream *s)
{
    if (s->in_end - s->in < IN_MARGIN || s->out_end - s->out < OUT_MARGIN)
        return GOES_ON;
#ifdef SC_ARCH_X86_64
    if (sc_cpu_features() & SC_CPU_BMI2)
        return decode_bmi2(tables, s);
#endif
    return decode_portable(tables, s);
}
