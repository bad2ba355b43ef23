/* sc_selection_move.c - move the selected elements of one chunk (see sc_selection.h)
 * SPDX-License-Identifier: MIT */
#include "chain/sc_selection_impl.h"

#define BLOCK 256u

/* Move elements between a chunk and the array, at offsets without a rule. */
struct mover {
    uint8_t *chunk, *array;
    struct sc_copy copy; /* number of bytes at each offset: an element, or a box of them */
    bool gather;
    bool is_item; /* one element that is copied as it is */
};

static void
move_one(const struct mover *m, int64_t in_chunk, int64_t in_array)
{
    if (m->gather)
        sc_copy_run(&m->copy, m->chunk + in_chunk, m->array + in_array);
    else
        sc_copy_run(&m->copy, m->array + in_array, m->chunk + in_chunk);
}

/* nbytes is a constant where this is called. */
static inline __attribute__((always_inline)) void
move_items(const struct mover *m, const int64_t *in_chunk, const int64_t *in_array, size_t n, const size_t nbytes)
{
    for (size_t i = 0; i < n; i++)
        if (m->gather)
            memcpy(m->chunk + in_chunk[i], m->array + in_array[i], nbytes);
        else
            memcpy(m->array + in_array[i], m->chunk + in_chunk[i], nbytes);
}

static void
move_block(const struct mover *m, const int64_t *in_chunk, const int64_t *in_array, size_t n)
{
    if (m->is_item && m->copy.itemsize == 1)
        move_items(m, in_chunk, in_array, n, 1);
    else if (m->is_item && m->copy.itemsize == 2)
        move_items(m, in_chunk, in_array, n, 2);
    else if (m->is_item && m->copy.itemsize == 4)
        move_items(m, in_chunk, in_array, n, 4);
    else if (m->is_item && m->copy.itemsize == 8)
        move_items(m, in_chunk, in_array, n, 8);
    else
        for (size_t i = 0; i < n; i++)
            move_one(m, in_chunk[i], in_array[i]);
}

/* Move points of an object that is one chunk. */
static void
move_points(const struct sc_chunk_selection *at, const struct sc_view *view, const struct mover *m)
{
    int64_t in_chunk[BLOCK], in_array[BLOCK];

    for (size_t begin = 0; begin < at->n; begin += BLOCK) {
        size_t n = at->n - begin < BLOCK ? at->n - begin : BLOCK;

        for (size_t i = 0; i < n; i++) {
            in_chunk[i] = view->offset;
            in_array[i] = (int64_t)place_of_point(at->selection, begin + i) * at->selection->array_strides[0];
        }
        for (int a = 0; a < at->chunk->ndim; a++)
            for (size_t i = 0; i < n; i++)
                in_chunk[i] += (int64_t)at->selection->from[a][begin + i] * view->strides[a];
        move_block(m, in_chunk, in_array, n);
    }
}

static void
move_spots(const struct sc_chunk_selection *at, const struct sc_view *view, const struct mover *m)
{
    int64_t in_chunk[BLOCK], in_array[BLOCK], step;
    const bool in_c_order = is_in_c_order(at->chunk, view->strides, &step);
    struct sc_unraveller u;

    unraveller_init(&u, at->chunk);
    for (size_t begin = 0; begin < at->n; begin += BLOCK) {
        const struct sc_spot *spots = at->spots + begin;
        size_t n = at->n - begin < BLOCK ? at->n - begin : BLOCK;

        for (size_t i = 0; i < n; i++)
            in_array[i] = (int64_t)spots[i].place * at->selection->array_strides[0];
        for (size_t i = 0; in_c_order && i < n; i++)
            in_chunk[i] = view->offset + (int64_t)spots[i].item * step;
        for (size_t i = 0; !in_c_order && i < n; i++) {
            uint64_t position[SC_MAX_NDIM];

            unravel(&u, spots[i].item, position);
            in_chunk[i] = view->offset;
            for (int a = 0; a < at->chunk->ndim; a++)
                in_chunk[i] += (int64_t)position[a] * view->strides[a];
        }
        move_block(m, in_chunk, in_array, n);
    }
}

/* Move along the last listed axis, one offset after the other. */
static void
move_last_list(const struct sc_chunk_selection *at, const struct sc_cut_lists *lists, const struct sc_view *view,
               const struct mover *m, int64_t chunk_offset, int64_t array_offset)
{
    const int a = lists->listed[lists->n_listed - 1];
    const uint64_t origin = at->c[a] * at->chunk->shape[a];
    const uint64_t *from = lists->from[a], *to = lists->to[a];
    int64_t in_chunk[BLOCK], in_array[BLOCK];

    for (uint64_t begin = 0; begin < lists->box.count[a]; begin += BLOCK) {
        size_t n = (size_t)min_u64(lists->box.count[a] - begin, BLOCK);

        for (size_t i = 0; i < n; i++) {
            uint64_t k = begin + i;

            in_chunk[i] = chunk_offset + (int64_t)(from[k] - origin) * view->strides[a];
            in_array[i] = array_offset + (int64_t)(to ? to[k] : k) * lists->strides[a];
        }
        move_block(m, in_chunk, in_array, n);
    }
}

/* Move all combinations of the listed axes from number `depth` on. */
static void
move_lists(const struct sc_chunk_selection *at, const struct sc_cut_lists *lists, const struct sc_view *view,
           const struct mover *m, int depth, int64_t chunk_offset, int64_t array_offset)
{
    const int a = lists->n_listed ? lists->listed[depth] : 0;
    const uint64_t origin = at->c[a] * at->chunk->shape[a];

    if (!lists->n_listed) {
        move_one(m, chunk_offset, array_offset);
        return;
    }
    if (depth == lists->n_listed - 1) {
        move_last_list(at, lists, view, m, chunk_offset, array_offset);
        return;
    }
    for (uint64_t k = 0; k < lists->box.count[a]; k++)
        move_lists(at, lists, view, m, depth + 1,
                   chunk_offset + (int64_t)(lists->from[a][k] - origin) * view->strides[a],
                   array_offset + (int64_t)(lists->to[a] ? lists->to[a][k] : k) * lists->strides[a]);
}

/* Prepare the copy of a box; return the offset of the box in the chunk. */
static int64_t
prepare(struct mover *m, const struct sc_chain *chunk, const struct sc_view *view, const struct sc_box *box,
        const int64_t *array_strides)
{
    int64_t chunk_strides[SC_MAX_NDIM], first = view->offset;
    bool is_item = !view->swap || !view->swap->n_fields;

    for (int a = 0; a < chunk->ndim; a++) {
        first += (int64_t)box->start[a] * view->strides[a];
        chunk_strides[a] = view->strides[a] * box->step[a];
        is_item = is_item && box->count[a] == 1;
    }
    sc_copy_prepare(&m->copy, chunk->ndim, box->count, m->gather ? chunk_strides : array_strides,
                    m->gather ? array_strides : chunk_strides, chunk->itemsize, view->swap);
    m->is_item = is_item;
    return first;
}

void
sc_selection_move(const struct sc_chunk_selection *at, const struct sc_view *view, uint8_t *array, bool gather)
{
    struct mover m = { .chunk = view->data, .array = array, .gather = gather };
    int64_t strides[SC_MAX_NDIM] = { 0 }, offset, first;
    struct sc_cut_lists lists;
    struct sc_box box;

    if (at->selection->kind == SC_SELECTION_BOXES) {
        for (size_t i = 0; i < at->n; i++) {
            sc_selection_cut_row(at, i, &box, strides, &offset);
            first = prepare(&m, at->chunk, view, &box, strides);
            move_one(&m, first, offset);
        }
        return;
    }
    if (at->selection->kind == SC_SELECTION_POINTS) {
        for (int a = 0; a < at->chunk->ndim; a++) {
            box.start[a] = 0;
            box.count[a] = 1;
            box.step[a] = 1;
        }
        prepare(&m, at->chunk, view, &box, strides);
        if (at->spots)
            move_spots(at, view, &m);
        else
            move_points(at, view, &m);
        return;
    }
    sc_selection_cut_lists(at, &lists);
    box = lists.box;
    for (int i = 0; i < lists.n_listed; i++) {
        box.start[lists.listed[i]] = 0;
        box.count[lists.listed[i]] = 1;
        box.step[lists.listed[i]] = 1;
    }
    first = prepare(&m, at->chunk, view, &box, lists.strides);
    move_lists(at, &lists, view, &m, 0, first, lists.offset);
}
