/* sc_present.h - which entries of an index exist: a set of positions, and their keys in ascending order
 *
 * It has one bit for each position, and for each eight words of bits the number of members before them. So a member is
 * found by its rank (the number of members before it), and a rank by its position, without a pass over all bits:
 *
 *     before   0                    301                  301                   of block 0, 1, 2
 *     bits     | 512 positions      | 512, none exists   | 512 positions ...   the first bit is position `first`
 *
 * A million entries take 141 kB, their index 16 MB. A set never changes.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_PRESENT_H
#define SC_PRESENT_H

#include "kernels/sc_index.h"

#define SC_PRESENT_BLOCK 512 /* positions */

/* @first, @end: the positions [first, end) of a grid are told of, none beyond its end.
 * @bits:   sc_present_nwords() words of 64 bits, little-endian, the lowest bit first; bits from `end` on are 0.
 * @before: as sc_present_count() fills it.
 * @n:      how many are members. */
struct sc_present {
    uint64_t first, end, n;
    const uint8_t *bits;
    const uint64_t *before;
    int ndim;
    uint64_t grid[SC_MAX_NDIM];
};

static inline uint64_t
sc_present_nwords(uint64_t first, uint64_t end)
{
    return (end - first) / 64 + ((end - first) % 64 != 0);
}

static inline uint64_t
sc_present_nblocks(uint64_t first, uint64_t end)
{
    return (end - first) / SC_PRESENT_BLOCK + ((end - first) % SC_PRESENT_BLOCK != 0);
}

/* Set the bits of the entries that exist among positions [first, end) of an index. */
void sc_present_mark(const struct sc_entry *entries, uint64_t first, uint64_t end, uint8_t *bits);

/* Count the bits of a set that is complete except for `n` and `before`, which has room for sc_present_nblocks()
 * numbers. False: bits from `end` on are set, and the set must not be used. */
bool sc_present_count(struct sc_present *set, uint64_t *before);

/* Return the position of a member; rank is below n. */
uint64_t sc_present_position(const struct sc_present *set, uint64_t rank);

/* Find the rank of the member with a key of 4 * ndim bytes. Return false if the set has no such member. */
bool sc_present_find(const struct sc_present *set, const uint8_t *key, uint64_t *rank);

/* Write the keys of n members, one after the other: those with the ranks first, first + step, ..., all below set->n.
 * A key is the coordinates of a member in the grid, 32 bits each with the highest byte first. The first `skip` bytes
 * (at most 4 * ndim) of each key are left out. Extents are below 2^32. */
void sc_present_keys(const struct sc_present *set, uint64_t first, int64_t step, size_t n, size_t skip, uint8_t *keys);

#endif
