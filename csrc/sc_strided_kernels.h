/* sc_strided_kernels.h - what sc_strided.c needs of the kernels
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_STRIDED_KERNELS_H
#define SC_STRIDED_KERNELS_H

#include "sc_strided.h"

typedef void sc_copy_fn(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src);

/* What a byte order does to an element. */
enum sc_swap_kind {
    SC_SWAP_NONE = 0,
    SC_SWAP_MIXED = 1, /* as the fields say */
    SC_SWAP_2 = 2,     /* the whole element is units of as many bytes */
    SC_SWAP_4 = 4,
    SC_SWAP_8 = 8,
};

/* How the innermost level of a prepared copy looks. */
enum sc_row_kind {
    SC_ROW_PLAIN,  /* row_nbytes contiguous bytes on both sides */
    SC_ROW_SPREAD, /* row_nbytes at the destination, all from one element */
    SC_ROW_TILED,  /* one element, and the two innermost axes are a transpose */
};

/* The kernel for a copy whose axes are merged; it has three of them or more. */
sc_copy_fn *sc_strided_kernel(const struct sc_copy *copy, enum sc_row_kind row, enum sc_swap_kind swap);

/* Is there a tiled kernel for elements of this size? */
bool sc_strided_can_tile(size_t itemsize, enum sc_swap_kind swap);

#endif
