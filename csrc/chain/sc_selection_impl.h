/* sc_selection_impl.h - how the parts of a selection are read: what sc_selection*.c share
 * SPDX-License-Identifier: MIT */
#ifndef SC_SELECTION_IMPL_H
#define SC_SELECTION_IMPL_H

#include "base/sc_divide.h"
#include "chain/sc_selection.h"

/* Return the first position in an ascending list that is not below `value`. */
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

/* The part of axis p of the object that lies in its c-th stretch of the given extent. */
static inline struct sc_cut
cut_axis(const struct sc_selection *selection, int p, uint64_t extent, uint64_t c)
{
    const struct sc_box *box = selection->box;
    const uint64_t *list = selection->from[p];
    uint64_t k0, k1;

    if (!list)
        return sc_axis_cut(box->start[p], box->count[p], box->step[p], extent, c);
    k0 = lower_bound(list, box->count[p], c * extent);
    k1 = k0 + lower_bound(list + k0, box->count[p] - k0, c * extent + extent);
    return (struct sc_cut){ k0, k1 - k0, k0 < k1 ? list[k0] - c * extent : 0 };
}

static inline uint64_t
position_on_axis(const struct sc_selection *selection, int p, uint64_t k)
{
    return selection->from[p] ? selection->from[p][k]
                              : selection->box->start[p] + k * (uint64_t)selection->box->step[p];
}

static inline uint64_t
place_of_point(const struct sc_selection *selection, size_t i)
{
    return selection->to[0] ? selection->to[0][i] : i;
}

/* Return the first of the touches with this entry or a higher one; touches->n if there are only lower ones. */
static inline size_t
touch_at_or_after(const struct sc_touches *touches, uint64_t entry)
{
    size_t low = 0, high = touches->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (touches->chunks[middle].entry < entry)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Read row i as a box; return its offset in the array. */
static inline int64_t
read_row(const struct sc_selection *selection, int ndim, size_t i, struct sc_box *box)
{
    const uint64_t *row = selection->rows + i * (size_t)(3 * ndim + selection->array_ndim);
    int64_t offset = 0;

    for (int a = 0; a < ndim; a++) {
        box->start[a] = row[a];
        box->count[a] = row[ndim + a];
        box->step[a] = (int64_t)row[2 * ndim + a];
    }
    for (int b = 0; b < selection->array_ndim; b++)
        offset += (int64_t)row[3 * ndim + b] * selection->array_strides[b];
    return offset;
}

/* ---- one chunk ---- */

static inline int
axis_of(const struct sc_chunk_selection *at, int a)
{
    return at->perm ? at->perm[a] : a;
}

/* Converts the number of an element in C order to coordinates. */
struct sc_unraveller {
    int ndim;
    struct sc_divisor behind[SC_MAX_NDIM]; /* how many elements one step along the axis is */
};

static inline void
unraveller_init(struct sc_unraveller *u, const struct sc_chain *chunk)
{
    uint64_t behind = 1;

    u->ndim = chunk->ndim;
    for (int a = chunk->ndim - 1; a >= 0; a--) {
        u->behind[a] = sc_divisor(behind, chunk->n_items);
        behind *= chunk->shape[a];
    }
}

static inline void
unravel(const struct sc_unraveller *u, uint64_t item, uint64_t *position)
{
    for (int a = 0; a < u->ndim; a++) {
        position[a] = sc_divide(u->behind[a], item);
        item -= position[a] * u->behind[a].by;
    }
}

/* True if the distance of two elements in memory is *step times the difference of their numbers in C order. This
 * holds for most chunks, and for a fill value, whose one element stands for all (*step 0). */
static inline bool
is_in_c_order(const struct sc_chain *chunk, const int64_t *strides, int64_t *step)
{
    int64_t behind = *step = strides[chunk->ndim - 1];

    for (int a = chunk->ndim - 1; a >= 0; a--) {
        if (strides[a] != behind)
            return false;
        behind *= (int64_t)chunk->shape[a];
    }
    return true;
}

/* Return the box of part i, cut to the chunk. */
void sc_selection_cut_row(const struct sc_chunk_selection *at, size_t i, struct sc_box *part, int64_t *strides,
                          int64_t *offset);

/* Lists, cut to a chunk. Axes with a constant step on both sides are part of `box`; the others are listed. */
struct sc_cut_lists {
    struct sc_box box; /* a listed axis has its count and nothing else here */
    int64_t strides[SC_MAX_NDIM];
    int64_t offset;
    int n_listed;
    int listed[SC_MAX_NDIM];
    const uint64_t *from[SC_MAX_NDIM], *to[SC_MAX_NDIM];
};

void sc_selection_cut_lists(const struct sc_chunk_selection *at, struct sc_cut_lists *lists);

#endif
