/* sc_order.h - the order in which a writer lays inner chunks into a shard
 *
 * The writer chooses it at run time; metadata never contain it. The default is the compressed Morton order of
 * zarr-python.
 * SPDX-License-Identifier: MIT */
#ifndef SC_ORDER_H
#define SC_ORDER_H

#include "base/sc_status.h"

enum sc_order {
    SC_ORDER_MORTON = 0,
    SC_ORDER_LEXICOGRAPHIC = 1,   /* C order: last axis fastest */
    SC_ORDER_COLEXICOGRAPHIC = 2, /* first axis fastest */
};

/* A grid has at most 2^63 inner chunks, and an axis of c of them has less than log2(c) + 1 bits. */
#define SC_ORDER_MAX_BITS (63 + SC_MAX_NDIM)
#define SC_ORDER_BLOCK_BITS 6 /* a block of 64 positions has a mask of one word */

/* A sub-grid of the shard's grid in the chosen order, produced piece by piece without a sort or an allocation.
 * Declared here for the caller's stack; plain memory, no destructor, members are private. */
struct sc_order_iter {
    enum sc_order order;
    int ndim;
    bool done; /* no row or block after the current one */
    uint64_t first[SC_MAX_NDIM], last[SC_MAX_NDIM], strides[SC_MAX_NDIM];
    uint64_t c[SC_MAX_NDIM]; /* first corner of the present row or block ... */
    uint64_t base;           /* ... and its position */

    /* by rows */
    uint64_t at, left; /* next position, and how many this row still has */

    /* Morton */
    int n_bits, n_block_bits;
    struct {
        uint8_t axis, bit;
    } bits[SC_ORDER_MAX_BITS]; /* rank bit -> bit of a coordinate */
    uint64_t sides[SC_MAX_NDIM]; /* of a block */
    uint64_t mask;               /* positions of the block still to come, by rank */
    uint64_t within[1 << SC_ORDER_BLOCK_BITS]; /* rank in a block -> position counted from base */
};

/* grid:        inner chunks along each axis of the shard, none 0, at most 2^63 together
 * first, last: the sub-grid, first[i] <= coordinate <= last[i] < grid[i]
 *
 * SC_BAD_ARGUMENT when these, the rank or the order are not so. */
enum sc_status sc_order_begin(struct sc_order_iter *it, enum sc_order order, int ndim, const uint64_t *grid,
                              const uint64_t *first, const uint64_t *last);

/* Write up to `capacity` positions (C order index over the whole *grid*) and return their number; 0: done. The
 * sequence of a sub-grid is the full sequence without the other positions; whole subtrees outside are skipped. */
size_t sc_order_next(struct sc_order_iter *it, uint64_t *positions, size_t capacity);

#endif
