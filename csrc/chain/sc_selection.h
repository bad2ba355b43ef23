/* sc_selection.h - a selection of an object that is more than one box
 *
 *     boxes    several of them, each with a place of its own in the caller's array
 *     lists    along every axis a range with a step, or a list of positions: all combinations of them, as numpy.ix_ has it
 *     points   one position along every axis for each of them
 *
 *     boxes            lists  [1,4] x [0,2,5]     points (1,2) (4,0) (0,5)
 *     . . . . . .      . . . . . .                . . . . . X
 *     . A A . . .      X . X . . X                . . X . . .
 *     . A A B B .      . . . . . .                . . . . . .
 *     . . . B B .      . . . . . .                . . . . . .
 *     . . . . . .      X . X . . X                X . . . . .
 *
 * For each kind, the inner chunks that it touches are listed first, in order of entry. Each is then decoded once, and
 * the elements of all parts are moved from it. A part is a box, a point, or the lists as a whole. Within an inner chunk
 * parts keep their order, so if several parts store one element the last one counts.
 *
 * There may be millions of points, in an order unrelated to the inner chunks. So the data of each point that are needed
 * later are stored together for each inner chunk, as a *spot*; the lists of positions are not read again.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_SELECTION_H
#define SC_SELECTION_H

#include "chain/sc_walk.h"
#include "chain/sc_worker.h"

enum sc_selection_kind { SC_SELECTION_BOXES, SC_SELECTION_LISTS, SC_SELECTION_POINTS };

/* The arrays belong to the caller. They are checked to lie inside the object and the array, and are not empty. */
struct sc_selection {
    enum sc_selection_kind kind;
    size_t n; /* boxes, points: how many */

    /* Boxes: n rows of start, count and step by axis of the object, then the place of the first element by axis of the
     * array. */
    const uint64_t *rows;

    /* Lists: along axes without one (from == NULL) this box counts, along the others its `count` alone. from: ascending,
     * repeats allowed; to: for each of them the position in the array, from the box's own place on; NULL: one after the
     * other.
     * Points: from: positions along each axis, in any order; to[0]: positions in the array of rank 1; NULL: one after the
     * other. */
    const struct sc_box *box;
    const uint64_t *from[SC_MAX_NDIM];
    const uint64_t *to[SC_MAX_NDIM];

    const int64_t *strides; /* of the array, by axis of the object */
    int array_ndim;
    int64_t array_strides[SC_MAX_NDIM]; /* of the array, by its own axes; boxes and points */
};

/* Return the index of the first of n positions that is not below `limit` or, with `ascend`, is smaller than the one
 * before; n if all positions are valid. */
uint64_t sc_positions_check(const uint64_t *positions, uint64_t n, uint64_t limit, bool ascend);

/* Return the first row of boxes that leaves the object or the array; n if none does. axes: axis of the array for
 * each axis of the object; -1 for none, along which only one element may be selected unless it is to `repeat`. */
size_t sc_rows_check(const struct sc_selection *selection, const struct sc_chain *object, const int *axes,
                     const uint64_t *array_shape, bool repeat);

/* A point of one inner chunk. */
struct sc_spot {
    uint64_t item; /* number of the element, in C order of the chunk's axes */
    uint64_t place; /* in the array of rank 1 */
};

struct sc_touch {
    uint64_t entry;
    uint64_t first; /* of its parts; they end where those of the next one begin */
};

/* The touched inner chunks, in order of entry, and their parts. Zero it at first; it can be filled repeatedly. Its
 * owner frees it. */
struct sc_touches {
    size_t n;
    const struct sc_touch *chunks; /* n, and one more for the end of all parts */
    const uint64_t *rows; /* boxes: which of them */
    const struct sc_spot *spots; /* points */
    struct sc_buffer chunks_memory, parts_memory, scratch;
};

enum sc_status sc_touches_find(struct sc_touches *touches, const struct sc_selection *selection,
                               const struct sc_chain *shard);
void sc_touches_free(struct sc_touches *touches);

/* True if the inner chunk with this entry is touched. */
bool sc_touches_have(const struct sc_touches *touches, uint64_t entry);

/* Find the smallest range of grid coordinates that holds all of them, last included. */
void sc_touches_range(const struct sc_touches *touches, const struct sc_chain *shard, uint64_t *first, uint64_t *last);

/* Estimate how many bytes are decoded for the selection. */
uint64_t sc_selection_nbytes(const struct sc_selection *selection, const struct sc_chain *object);

/* The selected elements of one chunk: of an inner chunk of a shard, or of the object itself. */
struct sc_chunk_selection {
    const struct sc_selection *selection;
    const struct sc_chain *chunk;
    const int *perm; /* axis a of the chunk is axis perm[a] of the object; NULL: the object itself */
    uint64_t c[SC_MAX_NDIM];
    size_t n; /* parts */
    const uint64_t *rows; /* boxes: numbers of the boxes; NULL: all in order */
    const struct sc_spot *spots; /* points; NULL: all in order, as they are in the selection */
};

void sc_selection_in_object(struct sc_chunk_selection *at, const struct sc_selection *selection,
                            const struct sc_chain *object);
void sc_selection_in_entry(struct sc_chunk_selection *at, const struct sc_selection *selection,
                           const struct sc_chain *shard, const struct sc_touches *touches, uint64_t entry);

/* True if the selection is one box of this chunk. Then also return its offset in the array, and the strides of the
 * array by axis of the chunk. */
bool sc_selection_is_box(const struct sc_chunk_selection *at, struct sc_box *box, int64_t *strides, int64_t *offset);

/* Find the smallest box of the chunk, steps 1, that holds the whole selection. */
void sc_selection_hull(const struct sc_chunk_selection *at, struct sc_box *hull);

/* Return the bytes [*low, *high) of an uncompressed chunk that hold all of the selection. False: the whole chunk is
 * needed. */
bool sc_selection_bytes(const struct sc_chunk_selection *at, uint64_t *low, uint64_t *high);

/* Move the selected elements of the chunk to the array, or back with `gather`. A view with strides 0 is the fill
 * value. */
void sc_selection_move(const struct sc_chunk_selection *at, const struct sc_view *view, uint8_t *array, bool gather);

#endif
