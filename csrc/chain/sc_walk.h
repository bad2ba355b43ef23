/* sc_walk.h - the inner chunks of a shard under a box of its elements
 *
 * The box is given in logical axis order, the grid in stored order; everything here is in stored order.
 * SPDX-License-Identifier: MIT */
#ifndef SC_WALK_H
#define SC_WALK_H

#include "chain/sc_chain.h"

struct sc_walk {
    struct sc_box box;
    int64_t strides[SC_MAX_NDIM]; /* of the caller's array, bytes per selected element */
    uint64_t first[SC_MAX_NDIM], end[SC_MAX_NDIM]; /* inner chunks touched: first <= c < end */
    uint64_t c[SC_MAX_NDIM];
    bool leaps; /* a step is longer than an inner chunk, so not every chunk in the range is touched */
};

/* Start at the first inner chunk. No count of the box is 0. */
static inline void
sc_walk_begin(struct sc_walk *walk, const struct sc_chain *shard, const struct sc_box *box, const int64_t *strides)
{
    walk->leaps = false;
    for (int a = 0; a < shard->ndim; a++) {
        int p = shard->perm[a];
        uint64_t extent = shard->inner->shape[a];
        uint64_t last = box->start[p] + (box->count[p] - 1) * (uint64_t)box->step[p];

        walk->box.start[a] = box->start[p];
        walk->box.count[a] = box->count[p];
        walk->box.step[a] = box->step[p];
        walk->strides[a] = strides[p];
        walk->c[a] = walk->first[a] = box->start[p] / extent;
        walk->end[a] = last / extent + 1;
        walk->leaps = walk->leaps || (uint64_t)box->step[p] > extent;
    }
}

/* Return the number of bytes that are decoded for a box: those of the inner chunks that it touches, or of the object
 * if it is not a shard. */
static inline uint64_t
sc_touched_nbytes(const struct sc_chain *object, const struct sc_box *box)
{
    uint64_t nbytes = sc_chain_is_shard(object) ? object->inner->nbytes : object->nbytes;

    for (int a = 0; sc_chain_is_shard(object) && a < object->ndim; a++) {
        int p = object->perm[a];
        uint64_t extent = object->inner->shape[a];
        uint64_t last = box->start[p] + (box->count[p] - 1) * (uint64_t)box->step[p];

        nbytes *= min_u64(last / extent - box->start[p] / extent + 1, box->count[p]); /* at most those of the shard */
    }
    return nbytes;
}

/* Step in C order; false after the last. */
static inline bool
sc_walk_next(struct sc_walk *walk, int ndim)
{
    for (int a = ndim - 1; a >= 0; a--) {
        if (++walk->c[a] < walk->end[a])
            return true;
        walk->c[a] = walk->first[a];
    }
    return false;
}

/* Cut the box to the inner chunk at c. *offset: distance in bytes from the first element of the box, in the array.
 * False: a step skips this chunk. */
static inline bool
sc_walk_cut(const struct sc_walk *walk, const struct sc_chain *inner, const uint64_t *c, struct sc_box *part,
            int64_t *offset)
{
    *offset = 0;
    for (int a = 0; a < inner->ndim; a++) {
        struct sc_cut cut =
            sc_axis_cut(walk->box.start[a], walk->box.count[a], walk->box.step[a], inner->shape[a], c[a]);

        if (!cut.count)
            return false;
        part->start[a] = cut.at;
        part->count[a] = cut.count;
        part->step[a] = walk->box.step[a];
        *offset += (int64_t)cut.k0 * walk->strides[a];
    }
    return true;
}

/* True if the box has an element in the inner chunk at walk->c. */
static inline bool
sc_walk_touches(const struct sc_walk *walk, const struct sc_chain *inner)
{
    struct sc_box part;
    int64_t offset;

    return !walk->leaps || sc_walk_cut(walk, inner, walk->c, &part, &offset);
}

/* Return the position of the inner chunk at c in the index. */
static inline uint64_t
sc_walk_entry(const struct sc_chain *shard, const uint64_t *c)
{
    uint64_t entry = 0;

    for (int a = 0; a < shard->ndim; a++)
        entry += c[a] * shard->grid_strides[a];
    return entry;
}

/* Return the coordinates of an entry. Grids of fewer than 2^32 inner chunks take the cheaper division. */
static inline void
sc_walk_coordinates(const struct sc_chain *shard, uint64_t entry, uint64_t *c)
{
    if (SC_LIKELY(shard->n_chunks <= UINT32_MAX)) {
        uint32_t rest = (uint32_t)entry;

        for (int a = 0; a < shard->ndim; a++) {
            uint32_t stride = (uint32_t)shard->grid_strides[a];

            c[a] = rest / stride;
            rest %= stride;
        }
        return;
    }
    for (int a = 0; a < shard->ndim; a++) {
        c[a] = entry / shard->grid_strides[a];
        entry %= shard->grid_strides[a];
    }
}

#endif
