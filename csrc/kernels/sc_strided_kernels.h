/* sc_strided_kernels.h - the kernels that sc_strided.c chooses from
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_STRIDED_KERNELS_H
#define SC_STRIDED_KERNELS_H

#include "kernels/sc_strided.h"

typedef void sc_copy_fn(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src);

/* How the bytes of an element are reversed. */
enum sc_swap_kind {
    SC_SWAP_NONE = 0,
    SC_SWAP_MIXED = 1, /* as the fields say */
    SC_SWAP_2 = 2,     /* the element consists of units of this many bytes */
    SC_SWAP_4 = 4,
    SC_SWAP_8 = 8,
};

/* All kernels take a copy whose axes are merged and number three or more.
 *
 * rows:   row_nbytes contiguous bytes on both sides
 * spread: row_nbytes at the destination, all from one element
 * tiled:  row_nbytes is one element, and the source runs fastest along the second to last axis, the destination along
 *         the last one. NULL: there is none for this element, rows will do. */
sc_copy_fn *sc_strided_rows_kernel(size_t row_nbytes, enum sc_swap_kind swap);
sc_copy_fn *sc_strided_spread_kernel(void);
sc_copy_fn *sc_strided_tiled_kernel(size_t itemsize, enum sc_swap_kind swap);

#endif
