/* sc_present.c - which entries of an index exist (see sc_present.h)
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_present.h"

#define BLOCK_WORDS (SC_PRESENT_BLOCK / 64)

static uint64_t
word_of(const struct sc_present *set, uint64_t w)
{
    return load_le64(set->bits + 8 * w);
}

/* ---- the set ---- */

static uint64_t
mark_word(const struct sc_entry *entries, unsigned n)
{
    uint64_t word = 0;

    for (unsigned i = 0; i < n; i++)
        word |= (uint64_t)!sc_entry_is_absent(entries[i]) << i;
    return word;
}

void
sc_present_mark(const struct sc_entry *entries, uint64_t first, uint64_t end, uint8_t *bits)
{
    for (; end - first >= 64; first += 64, bits += 8)
        store_le64(bits, mark_word(entries + first, 64)); /* a constant, which unrolls */
    if (first < end)
        store_le64(bits, mark_word(entries + first, (unsigned)(end - first)));
}

bool
sc_present_count(struct sc_present *set, uint64_t *before)
{
    uint64_t n_words = sc_present_nwords(set->first, set->end);
    unsigned rest = (unsigned)((set->end - set->first) % 64);

    set->n = 0;
    for (uint64_t w = 0; w < n_words; w++) {
        if (w % BLOCK_WORDS == 0)
            before[w / BLOCK_WORDS] = set->n;
        set->n += (uint64_t)__builtin_popcountll(word_of(set, w));
    }
    set->before = before;
    return !rest || !(word_of(set, n_words - 1) >> rest);
}

/* Return a word without its lowest n bits that are set. */
static uint64_t
without_lowest(uint64_t word, uint64_t n)
{
    while (n--)
        word &= word - 1;
    return word;
}

/* Find the word that holds the bit of a member. *rank becomes the number of members before it in this word. */
static uint64_t
word_with(const struct sc_present *set, uint64_t *rank)
{
    uint64_t low = 0, high = sc_present_nblocks(set->first, set->end), w;

    while (high - low > 1) { /* the last block with at most `rank` members before it */
        uint64_t middle = low + (high - low) / 2;

        if (set->before[middle] <= *rank)
            low = middle;
        else
            high = middle;
    }
    *rank -= set->before[low];
    for (w = low * BLOCK_WORDS;; w++) {
        uint64_t n = (uint64_t)__builtin_popcountll(word_of(set, w));

        if (*rank < n)
            return w;
        *rank -= n;
    }
}

uint64_t
sc_present_position(const struct sc_present *set, uint64_t rank)
{
    uint64_t w = word_with(set, &rank);

    return set->first + 64 * w + (uint64_t)__builtin_ctzll(without_lowest(word_of(set, w), rank));
}

bool
sc_present_find(const struct sc_present *set, const uint8_t *key, uint64_t *rank)
{
    uint64_t position = 0, w, bit;

    for (int a = 0; a < set->ndim; a++) {
        uint64_t c = load_be32(key + 4 * a);

        if (c >= set->grid[a])
            return false;
        position = position * set->grid[a] + c;
    }
    if (position < set->first || position >= set->end)
        return false;
    position -= set->first;
    bit = (uint64_t)1 << position % 64;
    if (!(word_of(set, position / 64) & bit))
        return false;
    *rank = set->before[position / SC_PRESENT_BLOCK];
    for (w = position / SC_PRESENT_BLOCK * BLOCK_WORDS; w < position / 64; w++)
        *rank += (uint64_t)__builtin_popcountll(word_of(set, w));
    *rank += (uint64_t)__builtin_popcountll(word_of(set, w) & (bit - 1));
    return true;
}

/* ---- keys ---- */

/* A position in the grid, and its key. */
struct place {
    uint64_t position;
    uint32_t at[SC_MAX_NDIM];
    uint8_t key[4 * SC_MAX_NDIM];
};

/* Step to a later position. A coordinate is divided only where it leaves its axis. */
static void
go_to(struct place *place, const struct sc_present *set, uint64_t position)
{
    uint64_t carry = position - place->position;

    place->position = position;
    for (int a = set->ndim - 1; carry && a >= 0; a--) {
        uint64_t c = place->at[a] + carry;

        carry = c < set->grid[a] ? 0 : c / set->grid[a];
        place->at[a] = (uint32_t)(c - carry * set->grid[a]);
        store_be32(place->key + 4 * a, place->at[a]);
    }
}

/* Copy a few bytes without a call, though the compiler does not know their number. */
static void
copy_short(uint8_t *dst, const uint8_t *src, size_t n)
{
    size_t i = 0;

    for (; i + 4 <= n; i += 4)
        memcpy(dst + i, src + i, 4);
    for (; i < n; i++)
        dst[i] = src[i];
}

/* Write the keys of neighbours, in ascending order from `rank` on, `stride` bytes apart. */
static void
write_run(const struct sc_present *set, uint64_t rank, size_t n, size_t skip, uint8_t *keys, ptrdiff_t stride)
{
    size_t width = 4 * (size_t)set->ndim - skip;
    struct place place = { 0 };
    uint64_t w = word_with(set, &rank), word = without_lowest(word_of(set, w), rank);

    while (n--) {
        while (!word)
            word = word_of(set, ++w);
        go_to(&place, set, set->first + 64 * w + (uint64_t)__builtin_ctzll(word));
        word &= word - 1;
        copy_short(keys, place.key + skip, width);
        keys += stride;
    }
}

void
sc_present_keys(const struct sc_present *set, uint64_t first, int64_t step, size_t n, size_t skip, uint8_t *keys)
{
    size_t width = 4 * (size_t)set->ndim - skip;

    if (!n)
        return;
    if (step == 1) {
        write_run(set, first, n, skip, keys, (ptrdiff_t)width);
    } else if (step == -1) {
        write_run(set, first - (n - 1), n, skip, keys + (n - 1) * width, -(ptrdiff_t)width);
    } else {
        for (; n--; first += (uint64_t)step, keys += width)
            write_run(set, first, 1, skip, keys, 0);
    }
}
