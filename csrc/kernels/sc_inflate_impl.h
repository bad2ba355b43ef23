/* sc_inflate_impl.h - table entries, made by sc_inflate_code.c and read by the other files
 *
 * An entry, for all kinds of symbols:
 *
 *      31                 16 15    12  11  10   9  8     6 5         0
 *     +---------------------+--------+---+---+---+-------+-----------+
 *     |        value        |  code  | S | T | L |   0   |   drop    |
 *     +---------------------+--------+---+---+---+-------+-----------+
 *
 *     L, literal  value: the byte
 *     T, table    value: where in the array the second table begins; code: bits of its index
 *     S, stop     value: END_OF_BLOCK, or NO_SYMBOL for a code that means nothing
 *     none        a length or an offset; value: the least one; drop - code: number of extra bits, which lie above the
 *                 code's own
 *
 *     drop: bits to take off the stream; code: those among them that are the code (what a first table took not counted)
 * SPDX-License-Identifier: MIT */
#ifndef SC_INFLATE_IMPL_H
#define SC_INFLATE_IMPL_H

#include "kernels/sc_inflate.h"

enum {
    LITLEN_BITS = SC_INFLATE_LITLEN_BITS,
    OFFSET_BITS = SC_INFLATE_OFFSET_BITS,
    PRECODE_BITS = 7,
    MAX_BITS = SC_INFLATE_MAX_BITS,
    N_LITLEN = SC_INFLATE_N_LITLEN,
    N_OFFSET = SC_INFLATE_N_OFFSET,
    N_PRECODE = 19,
    MAX_DYNAMIC_LITLEN = 286, /* the last two of either code are in the predefined code only, and never used */
    MAX_DYNAMIC_OFFSET = 30,
    MAX_LENGTH = 258,
};

#define DROP_MASK 63u
#define LITERAL (1u << 9)
#define TABLE (1u << 10)
#define STOP (1u << 11)
#define CODE_BIT (1u << 12) /* a code that is one bit longer: one more to drop, one more of them code */
#define END_OF_BLOCK (0u << 16 | STOP)
#define NO_SYMBOL (1u << 16 | STOP)

static inline uint32_t
value_of(uint32_t entry)
{
    return entry >> 16;
}

static inline unsigned
drop_of(uint32_t entry)
{
    return entry & DROP_MASK;
}

static inline unsigned
code_of(uint32_t entry)
{
    return entry >> 12 & 15;
}

/* Length or offset: the least one plus the extra bits, which are the first ones of `bits` above the code. */
static inline uint32_t
with_extra(uint32_t entry, uint64_t bits)
{
    return value_of(entry) + (uint32_t)((bits & ((UINT64_C(1) << drop_of(entry)) - 1)) >> code_of(entry));
}

static inline uint32_t
look_up(const uint32_t *table, unsigned n, uint64_t bits)
{
    return table[bits & ((1u << n) - 1)];
}

/* The rest of a stream. sc_inflate.c explains how the bits are held. */
struct sc_inflate_stream {
    const uint8_t *in, *in_end;
    uint8_t *out, *out_start, *out_end;
    uint64_t bits;
    uint32_t n_bits;
};

/* Result of a step of decoding. GOES_ON: no error, and the block is not finished. */
enum sc_inflate_outcome {
    GOES_ON,
    BLOCK_ENDS,
    CUT,
    FULL,
    BAD_TYPE,
    BAD_STORED,
    BAD_COUNTS,
    BAD_PRECODE,
    BAD_LENGTHS,
    NO_END,
    BAD_LITLEN_CODE,
    BAD_OFFSET_CODE,
    BAD_LITLEN,
    BAD_OFFSET,
    TOO_FAR,
};

/* The three codes of a block. */
enum sc_inflate_alphabet { LITLEN, OFFSET, PRECODE };

/* Make the table of the code that n code lengths define; false when they define none: too many codes, or not all of
 * them used. The exception, one code of one bit or none at all, gives a table with NO_SYMBOL behind the codes unused;
 * a precode has no exception. */
bool sc_inflate_build(uint32_t *table, enum sc_inflate_alphabet alphabet, const uint8_t *lengths, unsigned n);

/* Decode until a round could reach the end of either buffer. */
enum sc_inflate_outcome sc_inflate_fast(struct sc_inflate_tables *tables, struct sc_inflate_stream *s);

/* Make the tables of the predefined code, unless they are there. */
void sc_inflate_build_fixed(struct sc_inflate_tables *tables);

#endif
