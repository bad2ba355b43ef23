/* sc_present.h - which entries of an index exist, and their keys
 *
 * A key is the index of an entry along each axis of the grid, 32 bits each, with the highest byte first. The keys of a
 * grid in ascending order are its positions in C order, so a walk over positions adds to the last axis and carries:
 *
 *     grid 2 x 3     position   0        1        2        3        4        5
 *                    key        0,0      0,1      0,2      1,0      1,1      1,2
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_PRESENT_H
#define SC_PRESENT_H

#include "kernels/sc_index.h"

/* Set a flag for each of the entries [first, end) of an index: 1 if it exists, else 0. */
void sc_present_mark(const struct sc_entry *entries, uint64_t first, uint64_t end, uint8_t *flags);

/* Return the first of the flags [at, end) that is not 0; `end` if there is none. */
uint64_t sc_present_next(const uint8_t *flags, uint64_t at, uint64_t end);

/* A position in a grid and its key. Extents are from 1 to 2^32 - 1.
 *
 * @position: begins at 0 with all of `at` and `key` zero; sc_place_go_to() changes the three. */
struct sc_place {
    uint64_t position;
    int ndim;
    uint64_t grid[SC_MAX_NDIM];
    uint32_t at[SC_MAX_NDIM];
    uint8_t key[4 * SC_MAX_NDIM];
};

/* Step to the same or a later position of the grid. A coordinate is divided only where it leaves its axis. */
void sc_place_go_to(struct sc_place *place, uint64_t position);

#endif
