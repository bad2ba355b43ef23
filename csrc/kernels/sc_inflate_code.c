/* sc_inflate_code.c - from code lengths to the tables that decode them (see sc_inflate_impl.h)
 *
 * The format defines codes by their lengths alone. In order of length, and of symbol within one length, each code is
 * the one before plus one. The first bit of a code is the most significant one in this order, but the lowest in the
 * stream. So the index into a table is a code read backwards, and counting up carries downwards:
 *
 *     lengths A 1, B 2, C 3, D 3     codes 0, 10, 110, 111     backwards 000, 001, 011, 111
 *
 *     index  000 001 010 011 100 101 110 111       A code of 2 bits stands at both indices that end in it, a shorter
 *     entry   A   B   A   C   A   B   A   D        one at more: the bits above are of the next symbol.
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_inflate_impl.h"

/* Entries before their codes are known. */
#define BYTE(i) ((uint32_t)(i) << 16 | LITERAL)
#define BYTES_4(i) BYTE(i), BYTE((i) + 1), BYTE((i) + 2), BYTE((i) + 3)
#define BYTES_16(i) BYTES_4(i), BYTES_4((i) + 4), BYTES_4((i) + 8), BYTES_4((i) + 12)
#define BYTES_64(i) BYTES_16(i), BYTES_16((i) + 16), BYTES_16((i) + 32), BYTES_16((i) + 48)
#define BASE(least, n_extra) ((uint32_t)(least) << 16 | (n_extra))

/* clang-format off */
static const uint32_t litlen_meanings[N_LITLEN] = {
    BYTES_64(0), BYTES_64(64), BYTES_64(128), BYTES_64(192),
    END_OF_BLOCK,
    BASE(3, 0), BASE(4, 0), BASE(5, 0), BASE(6, 0), BASE(7, 0), BASE(8, 0), BASE(9, 0), BASE(10, 0),
    BASE(11, 1), BASE(13, 1), BASE(15, 1), BASE(17, 1), BASE(19, 2), BASE(23, 2), BASE(27, 2), BASE(31, 2),
    BASE(35, 3), BASE(43, 3), BASE(51, 3), BASE(59, 3), BASE(67, 4), BASE(83, 4), BASE(99, 4), BASE(115, 4),
    BASE(131, 5), BASE(163, 5), BASE(195, 5), BASE(227, 5), BASE(258, 0),
    NO_SYMBOL, NO_SYMBOL,
};

static const uint32_t offset_meanings[N_OFFSET] = {
    BASE(1, 0), BASE(2, 0), BASE(3, 0), BASE(4, 0), BASE(5, 1), BASE(7, 1), BASE(9, 2), BASE(13, 2),
    BASE(17, 3), BASE(25, 3), BASE(33, 4), BASE(49, 4), BASE(65, 5), BASE(97, 5), BASE(129, 6), BASE(193, 6),
    BASE(257, 7), BASE(385, 7), BASE(513, 8), BASE(769, 8), BASE(1025, 9), BASE(1537, 9), BASE(2049, 10),
    BASE(3073, 10), BASE(4097, 11), BASE(6145, 11), BASE(8193, 12), BASE(12289, 12), BASE(16385, 13),
    BASE(24577, 13), NO_SYMBOL, NO_SYMBOL,
};

static const uint32_t precode_meanings[N_PRECODE] = {
    BASE(0, 0), BASE(1, 0), BASE(2, 0), BASE(3, 0), BASE(4, 0), BASE(5, 0), BASE(6, 0), BASE(7, 0), BASE(8, 0),
    BASE(9, 0), BASE(10, 0), BASE(11, 0), BASE(12, 0), BASE(13, 0), BASE(14, 0), BASE(15, 0), BASE(16, 0),
    BASE(17, 0), BASE(18, 0),
};
/* clang-format on */

static const struct {
    const uint32_t *meanings;
    unsigned n_bits;
} alphabets[] = {
    [LITLEN] = { litlen_meanings, LITLEN_BITS },
    [OFFSET] = { offset_meanings, OFFSET_BITS },
    [PRECODE] = { precode_meanings, PRECODE_BITS },
};

/* The symbols that have a code, shorter codes first; n_of[length] counts them. */
static void
sort_by_length(const uint8_t *lengths, unsigned n, uint16_t *n_of, uint16_t *sorted)
{
    uint16_t next[MAX_BITS + 2] = { 0 };

    memset(n_of, 0, (MAX_BITS + 1) * sizeof *n_of);
    for (unsigned i = 0; i < n; i++)
        n_of[lengths[i]]++;
    for (unsigned length = 1; length <= MAX_BITS; length++)
        next[length + 1] = (uint16_t)(next[length] + n_of[length]);
    for (unsigned i = 0; i < n; i++)
        if (lengths[i] > 0)
            sorted[next[lengths[i]]++] = (uint16_t)i;
}

/* Return how many codes of MAX_BITS bits are unused: 0 for a complete code, negative for too many codes. */
static int
unused_codes(const uint16_t *n_of)
{
    int unused = 1;

    for (unsigned length = 1; length <= MAX_BITS && unused >= 0; length++)
        unused = 2 * unused - n_of[length];
    return unused;
}

/* The code behind `code` of the same length, both with their first bit lowest, which is how the stream has them: add one
 * at the highest of `length` bits and carry downwards. Behind the last code comes 0. */
static uint32_t
next_code(uint32_t code, unsigned length)
{
    const uint32_t zeros = code ^ ((1u << length) - 1);
    uint32_t highest;

    if (zeros == 0)
        return 0;
    highest = 1u << (31 - __builtin_clz(zeros));
    return (code & (highest - 1)) | highest;
}

/* For codes of one bit: `zero` is the entry of bit 0; bit 1 has no symbol. */
static void
build_lone(uint32_t *table, unsigned n_bits, uint32_t zero)
{
    for (uint32_t i = 0; i < 1u << n_bits; i++)
        table[i] = i & 1 ? NO_SYMBOL + 1 : zero;
}

/* Codes of n_bits + 1 bits and more, `code` being the first of them. Each prefix gets a table that takes the longest. */
static void
build_second(uint32_t *table, unsigned n_bits, const uint16_t *n_of, const uint16_t *sorted, uint32_t code,
             unsigned longest, const uint32_t *meanings)
{
    const unsigned n_more = longest - n_bits;
    uint32_t *next = table + (1u << n_bits), *second = NULL;
    uint32_t prefix = UINT32_MAX;

    for (unsigned length = n_bits + 1; length <= longest; length++) {
        for (unsigned n = n_of[length]; n > 0; n--, code = next_code(code, length)) {
            const unsigned more = length - n_bits;

            if ((code & ((1u << n_bits) - 1)) != prefix) {
                prefix = code & ((1u << n_bits) - 1);
                second = next;
                next += 1u << n_more;
                table[prefix] = (uint32_t)(second - table) << 16 | n_more * CODE_BIT | TABLE | n_bits;
            }
            for (uint32_t i = code >> n_bits; i < 1u << n_more; i += 1u << more)
                second[i] = meanings[*sorted] + more * (CODE_BIT + 1);
            sorted++;
        }
    }
}

/* The table for codes of up to k bits is that for k - 1 bits, twice, and the codes of k bits put over it. */
bool
sc_inflate_build(uint32_t *table, enum sc_inflate_alphabet alphabet, const uint8_t *lengths, unsigned n)
{
    const uint32_t *const meanings = alphabets[alphabet].meanings;
    const unsigned n_bits = alphabets[alphabet].n_bits;
    uint16_t n_of[MAX_BITS + 1], symbols[N_LITLEN], *sorted = symbols;
    unsigned longest = MAX_BITS;
    uint32_t code = 0;
    int unused;

    sort_by_length(lengths, n, n_of, symbols);
    unused = unused_codes(n_of);
    while (longest > 0 && n_of[longest] == 0)
        longest--;
    if (unused < 0 || (unused > 0 && (longest > 1 || alphabet == PRECODE)))
        return false;
    if (unused > 0) {
        build_lone(table, n_bits, longest ? meanings[symbols[0]] + CODE_BIT + 1 : NO_SYMBOL + 1);
        return true;
    }
    for (unsigned length = 1; length <= n_bits; length++) {
        if (sorted != symbols)
            memcpy(table + (1u << (length - 1)), table, sizeof *table << (length - 1));
        for (unsigned k = n_of[length]; k > 0; k--, code = next_code(code, length))
            table[code] = meanings[*sorted++] + length * (CODE_BIT + 1);
    }
    if (longest > n_bits)
        build_second(table, n_bits, n_of, sorted, code, longest, meanings);
    return true;
}

void
sc_inflate_build_fixed(struct sc_inflate_tables *tables)
{
    uint8_t lengths[N_LITLEN];

    if (tables->hold_fixed)
        return;
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    sc_inflate_build(tables->litlen, LITLEN, lengths, N_LITLEN);
    memset(lengths, 5, N_OFFSET);
    sc_inflate_build(tables->offset, OFFSET, lengths, N_OFFSET);
    tables->hold_fixed = true;
}
