/* sc_pick_impl.h - how the parts of a selection are read: what sc_pick.c and sc_pick_move.c share
 * SPDX-License-Identifier: MIT */
#ifndef SC_PICK_IMPL_H
#define SC_PICK_IMPL_H

#include "sc_pick.h"

/* First position in an ascending list that is not below `value`. */
static inline uint64_t
lower_bound(const uint64_t *list, uint64_t n, uint64_t value)
{
    uint64_t low = 0;

    while (low < n) {
        uint64_t middle = low + (n - low) / 2;

        if (list[middle] < value)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

/* What of axis p of the object falls into its c-th stretch of the given extent. */
static inline struct sc_cut
cut_axis(const struct sc_pick *pick, int p, uint64_t extent, uint64_t c)
{
    const struct sc_box *box = pick->box;
    const uint64_t *list = pick->from[p];
    uint64_t k0, k1;

    if (!list)
        return sc_axis_cut(box->start[p], box->count[p], box->step[p], extent, c);
    k0 = lower_bound(list, box->count[p], c * extent);
    k1 = k0 + lower_bound(list + k0, box->count[p] - k0, c * extent + extent);
    return (struct sc_cut){ k0, k1 - k0, k0 < k1 ? list[k0] - c * extent : 0 };
}

static inline uint64_t
position_on_axis(const struct sc_pick *pick, int p, uint64_t k)
{
    return pick->from[p] ? pick->from[p][k] : pick->box->start[p] + k * (uint64_t)pick->box->step[p];
}

/* Row i as a box; where it lies in the array. */
static inline int64_t
read_row(const struct sc_pick *pick, int ndim, size_t i, struct sc_box *box)
{
    const uint64_t *row = pick->rows + i * (size_t)(3 * ndim + pick->array_ndim);
    int64_t offset = 0;

    for (int a = 0; a < ndim; a++) {
        box->start[a] = row[a];
        box->count[a] = row[ndim + a];
        box->step[a] = (int64_t)row[2 * ndim + a];
    }
    for (int b = 0; b < pick->array_ndim; b++)
        offset += (int64_t)row[3 * ndim + b] * pick->array_strides[b];
    return offset;
}

#endif
