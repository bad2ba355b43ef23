/* sc_selection_cut.c - the part of a selection in one chunk, and its place in memory (see sc_selection.h)
 * SPDX-License-Identifier: MIT */
#include "chain/sc_selection_impl.h"

/* ---- one chunk ---- */

void
sc_selection_in_object(struct sc_chunk_selection *at, const struct sc_selection *selection,
                       const struct sc_chain *object)
{
    *at = (struct sc_chunk_selection){ .selection = selection,
                                       .chunk = object,
                                       .n = selection->kind == SC_SELECTION_LISTS ? 1 : selection->n };
}

void
sc_selection_in_entry(struct sc_chunk_selection *at, const struct sc_selection *selection, const struct sc_chain *shard,
                      const struct sc_touches *touches, uint64_t entry)
{
    const struct sc_touch *touch = &touches->chunks[touch_at_or_after(touches, entry)];

    at->selection = selection;
    at->chunk = shard->inner;
    at->perm = shard->perm;
    at->n = touch->entry == entry ? (size_t)(touch[1].first - touch->first) : 0;
    at->rows = touches->rows ? touches->rows + touch->first : NULL;
    at->spots = touches->spots ? touches->spots + touch->first : NULL;
    sc_walk_coordinates(shard, entry, at->c);
}

/* ---- parts, cut to the chunk ---- */

/* True if the numbers rise or fall by one constant step. */
static bool
is_run(const uint64_t *numbers, uint64_t n, int64_t *step)
{
    uint64_t difference = n > 1 ? numbers[1] - numbers[0] : 1;

    for (uint64_t i = 2; i < n; i++)
        if (numbers[i] - numbers[i - 1] != difference)
            return false;
    *step = (int64_t)difference;
    return true;
}

void
sc_selection_cut_row(const struct sc_chunk_selection *at, size_t i, struct sc_box *part, int64_t *strides,
                     int64_t *offset)
{
    const struct sc_chain *chunk = at->chunk;
    struct sc_box box;

    *offset = read_row(at->selection, chunk->ndim, at->rows ? (size_t)at->rows[i] : i, &box);
    for (int a = 0; a < chunk->ndim; a++) {
        int p = axis_of(at, a);
        struct sc_cut cut = sc_axis_cut(box.start[p], box.count[p], box.step[p], chunk->shape[a], at->c[a]);

        part->start[a] = cut.at;
        part->count[a] = cut.count;
        part->step[a] = box.step[p];
        strides[a] = at->selection->strides[p];
        *offset += (int64_t)cut.k0 * strides[a];
    }
}

void
sc_selection_cut_lists(const struct sc_chunk_selection *at, struct sc_cut_lists *lists)
{
    const struct sc_selection *selection = at->selection;

    lists->offset = 0;
    lists->n_listed = 0;
    for (int a = 0; a < at->chunk->ndim; a++) {
        int p = axis_of(at, a);
        struct sc_cut cut = cut_axis(selection, p, at->chunk->shape[a], at->c[a]);
        const uint64_t *from = selection->from[p] ? selection->from[p] + cut.k0 : NULL;
        const uint64_t *to = selection->to[p] ? selection->to[p] + cut.k0 : NULL;
        int64_t from_step = selection->box->step[p], to_step = 1;

        lists->box.start[a] = cut.at;
        lists->box.count[a] = cut.count;
        lists->strides[a] = selection->strides[p];
        lists->from[a] = from;
        lists->to[a] = to;
        if (from && (!is_run(from, cut.count, &from_step) || !from_step || (to && !is_run(to, cut.count, &to_step)))) {
            if (!to)
                lists->offset += (int64_t)cut.k0 * lists->strides[a];
            lists->listed[lists->n_listed++] = a;
            continue;
        }
        lists->box.step[a] = from_step;
        lists->offset += (int64_t)(to ? to[0] : cut.k0) * lists->strides[a];
        lists->strides[a] *= to_step;
    }
}

/* Return the position of point i in the chunk, and its place in the array. */
static uint64_t
read_point(const struct sc_chunk_selection *at, size_t i, uint64_t *position)
{
    struct sc_unraveller u;

    if (at->spots) {
        unraveller_init(&u, at->chunk);
        unravel(&u, at->spots[i].item, position);
        return at->spots[i].place;
    }
    for (int a = 0; a < at->chunk->ndim; a++)
        position[a] = at->selection->from[a][i];
    return place_of_point(at->selection, i);
}

bool
sc_selection_is_box(const struct sc_chunk_selection *at, struct sc_box *box, int64_t *strides, int64_t *offset)
{
    const struct sc_selection *selection = at->selection;
    struct sc_cut_lists lists;

    if (selection->kind == SC_SELECTION_LISTS) {
        sc_selection_cut_lists(at, &lists);
        *box = lists.box;
        memcpy(strides, lists.strides, sizeof lists.strides);
        *offset = lists.offset;
        return lists.n_listed == 0;
    }
    if (at->n != 1)
        return false;
    if (selection->kind == SC_SELECTION_BOXES) {
        sc_selection_cut_row(at, 0, box, strides, offset);
        return true;
    }
    for (int a = 0; a < at->chunk->ndim; a++) {
        box->count[a] = 1;
        box->step[a] = 1;
        strides[a] = 0;
    }
    *offset = (int64_t)read_point(at, 0, box->start) * selection->array_strides[0];
    return true;
}

/* Return the first and the last element, in C order. */
static void
range_of_spots(const struct sc_chunk_selection *at, uint64_t *first, uint64_t *last)
{
    uint64_t low = UINT64_MAX, high = 0;

    for (size_t i = 0; i < at->n; i++) {
        low = min_u64(low, at->spots[i].item);
        high = max_u64(high, at->spots[i].item);
    }
    *first = low;
    *last = high;
}

/* The selection of an object that is one chunk. */
static void
hull_of_points(const struct sc_chunk_selection *at, struct sc_box *hull)
{
    for (int a = 0; a < at->chunk->ndim; a++) {
        const uint64_t *from = at->selection->from[a];
        uint64_t low = UINT64_MAX, high = 0;

        for (size_t i = 0; i < at->n; i++) {
            low = min_u64(low, from[i]);
            high = max_u64(high, from[i]);
        }
        hull->start[a] = low;
        hull->count[a] = high - low + 1;
        hull->step[a] = 1;
    }
}

/* Elements are numbered in C order, so the first and the last bound the first axis. The other axes are searched only
 * until their bounds are those of the chunk. */
static void
hull_of_spots(const struct sc_chunk_selection *at, struct sc_box *hull)
{
    uint64_t low[SC_MAX_NDIM], high[SC_MAX_NDIM], first, last;
    const int ndim = at->chunk->ndim;
    struct sc_unraveller u;
    bool all = false;

    unraveller_init(&u, at->chunk);
    range_of_spots(at, &first, &last);
    unravel(&u, first, low);
    unravel(&u, last, high);
    for (int a = 1; a < ndim; a++) {
        uint64_t position = low[a];

        low[a] = min_u64(position, high[a]);
        high[a] = max_u64(position, high[a]);
    }
    for (size_t i = 0; !all && i < at->n; i++) {
        uint64_t position[SC_MAX_NDIM];

        unravel(&u, at->spots[i].item, position);
        all = true;
        for (int a = 1; a < ndim; a++) {
            low[a] = min_u64(low[a], position[a]);
            high[a] = max_u64(high[a], position[a]);
            all = all && high[a] - low[a] == at->chunk->shape[a] - 1;
        }
    }
    for (int a = 0; a < ndim; a++) {
        hull->start[a] = low[a];
        hull->count[a] = high[a] - low[a] + 1;
        hull->step[a] = 1;
    }
}

static void
hull_of_boxes(const struct sc_chunk_selection *at, struct sc_box *hull)
{
    for (size_t i = 0; i < at->n; i++) {
        int64_t strides[SC_MAX_NDIM], offset;
        struct sc_box part;

        sc_selection_cut_row(at, i, &part, strides, &offset);
        for (int a = 0; a < at->chunk->ndim; a++) {
            uint64_t end = part.start[a] + (part.count[a] - 1) * (uint64_t)part.step[a] + 1;

            if (i) {
                end = max_u64(end, hull->start[a] + hull->count[a]);
                part.start[a] = min_u64(part.start[a], hull->start[a]);
            }
            hull->start[a] = part.start[a];
            hull->count[a] = end - part.start[a];
            hull->step[a] = 1;
        }
    }
}

void
sc_selection_hull(const struct sc_chunk_selection *at, struct sc_box *hull)
{
    if (at->selection->kind == SC_SELECTION_POINTS) {
        if (at->spots)
            hull_of_spots(at, hull);
        else
            hull_of_points(at, hull);
        return;
    }
    if (at->selection->kind == SC_SELECTION_BOXES) {
        hull_of_boxes(at, hull);
        return;
    }
    for (int a = 0; a < at->chunk->ndim; a++) {
        int p = axis_of(at, a);
        struct sc_cut cut = cut_axis(at->selection, p, at->chunk->shape[a], at->c[a]);

        hull->start[a] = cut.at;
        hull->count[a] =
            position_on_axis(at->selection, p, cut.k0 + cut.count - 1) - position_on_axis(at->selection, p, cut.k0) + 1;
        hull->step[a] = 1;
    }
}

bool
sc_selection_bytes(const struct sc_chunk_selection *at, uint64_t *low, uint64_t *high)
{
    struct sc_box hull;
    int64_t step;

    if (at->spots && sc_chain_is_plain(at->chunk) && is_in_c_order(at->chunk, at->chunk->strides, &step)) {
        range_of_spots(at, low, high);
        *low *= (uint64_t)step;
        *high = (*high + 1) * (uint64_t)step;
        return true;
    }
    sc_selection_hull(at, &hull);
    return sc_chain_hull(at->chunk, &hull, low, high);
}
