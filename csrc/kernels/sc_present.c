/* sc_present.c - which entries of an index exist, and their keys (see sc_present.h)
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_present.h"

void
sc_present_mark(const struct sc_entry *entries, uint64_t first, uint64_t end, uint8_t *flags)
{
    for (uint64_t i = first; i < end; i++)
        *flags++ = !sc_entry_is_absent(entries[i]);
}

uint64_t
sc_present_next(const uint8_t *flags, uint64_t at, uint64_t end)
{
    for (; end - at >= 8 && !load_le64(flags + at); at += 8)
        ;
    while (at < end && !flags[at])
        at++;
    return at;
}

void
sc_place_go_to(struct sc_place *place, uint64_t position)
{
    uint64_t carry = position - place->position;

    place->position = position;
    for (int a = place->ndim - 1; carry && a >= 0; a--) {
        uint64_t c = place->at[a] + carry;

        carry = c < place->grid[a] ? 0 : c / place->grid[a];
        place->at[a] = (uint32_t)(c - carry * place->grid[a]);
        store_be32(place->key + 4 * a, place->at[a]);
    }
}
