/* sc_pick_move.c - what a selection takes of one chunk, and moving it (see sc_pick.h)
 * SPDX-License-Identifier: MIT */
#include "sc_pick_impl.h"

/* ---- one chunk ---- */

void
sc_pick_at_object(struct sc_pick_at *at, const struct sc_pick *pick, const struct sc_chain *object)
{
    *at = (struct sc_pick_at){ .pick = pick, .chunk = object, .n = pick->kind == SC_PICK_LISTS ? 1 : pick->n };
}

void
sc_pick_at_entry(struct sc_pick_at *at, const struct sc_pick *pick, const struct sc_chain *shard,
                 const struct sc_touch *touches, size_t n, uint64_t entry)
{
    size_t first = sc_touches_find(touches, n, entry);

    at->pick = pick;
    at->chunk = shard->inner;
    at->perm = shard->perm;
    at->touches = touches + first;
    at->n = 0;
    while (first + at->n < n && at->touches[at->n].entry == entry)
        at->n++;
    sc_walk_coordinates(shard, entry, at->c);
}

static int
axis_of(const struct sc_pick_at *at, int a)
{
    return at->perm ? at->perm[a] : a;
}

static size_t
part_of(const struct sc_pick_at *at, size_t i)
{
    return at->touches ? (size_t)at->touches[i].part : i;
}

/* ---- parts, cut to the chunk ---- */

/* Do the numbers go up or down by one and the same step? */
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

/* The box of part i, cut to the chunk. */
static void
cut_row(const struct sc_pick_at *at, size_t i, struct sc_box *part, int64_t *strides, int64_t *offset)
{
    const struct sc_chain *chunk = at->chunk;
    struct sc_box box;

    *offset = read_row(at->pick, chunk->ndim, part_of(at, i), &box);
    for (int a = 0; a < chunk->ndim; a++) {
        int p = axis_of(at, a);
        struct sc_cut cut = sc_axis_cut(box.start[p], box.count[p], box.step[p], chunk->shape[a], at->c[a]);

        part->start[a] = cut.at;
        part->count[a] = cut.count;
        part->step[a] = box.step[p];
        strides[a] = at->pick->strides[p];
        *offset += (int64_t)cut.k0 * strides[a];
    }
}

/* Lists, cut to a chunk. Axes whose positions go by one step on both sides are part of `box`; the others are listed. */
struct cut_lists {
    struct sc_box box; /* a listed axis has its count and nothing else here */
    int64_t strides[SC_MAX_NDIM];
    int64_t offset;
    int n_listed;
    int listed[SC_MAX_NDIM];
    const uint64_t *from[SC_MAX_NDIM], *to[SC_MAX_NDIM];
};

static void
cut_lists(const struct sc_pick_at *at, struct cut_lists *lists)
{
    const struct sc_pick *pick = at->pick;

    lists->offset = 0;
    lists->n_listed = 0;
    for (int a = 0; a < at->chunk->ndim; a++) {
        int p = axis_of(at, a);
        struct sc_cut cut = cut_axis(pick, p, at->chunk->shape[a], at->c[a]);
        const uint64_t *from = pick->from[p] ? pick->from[p] + cut.k0 : NULL;
        const uint64_t *to = pick->to[p] ? pick->to[p] + cut.k0 : NULL;
        int64_t from_step = pick->box->step[p], to_step = 1;

        lists->box.start[a] = cut.at;
        lists->box.count[a] = cut.count;
        lists->strides[a] = pick->strides[p];
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

static int64_t
place_of_point(const struct sc_pick *pick, size_t part)
{
    return (int64_t)(pick->to[0] ? pick->to[0][part] : part) * pick->array_strides[0];
}

bool
sc_pick_is_box(const struct sc_pick_at *at, struct sc_box *box, int64_t *strides, int64_t *offset)
{
    const struct sc_pick *pick = at->pick;
    struct cut_lists lists;

    if (pick->kind == SC_PICK_LISTS) {
        cut_lists(at, &lists);
        *box = lists.box;
        memcpy(strides, lists.strides, sizeof lists.strides);
        *offset = lists.offset;
        return lists.n_listed == 0;
    }
    if (at->n != 1)
        return false;
    if (pick->kind == SC_PICK_BOXES) {
        cut_row(at, 0, box, strides, offset);
        return true;
    }
    for (int a = 0; a < at->chunk->ndim; a++) {
        box->start[a] = pick->from[axis_of(at, a)][part_of(at, 0)] - at->c[a] * at->chunk->shape[a];
        box->count[a] = 1;
        box->step[a] = 1;
        strides[a] = 0;
    }
    *offset = place_of_point(pick, part_of(at, 0));
    return true;
}

static void
hull_of_points(const struct sc_pick_at *at, struct sc_box *hull)
{
    for (int a = 0; a < at->chunk->ndim; a++) {
        const uint64_t *from = at->pick->from[axis_of(at, a)];
        uint64_t low = UINT64_MAX, high = 0;

        for (size_t i = 0; i < at->n; i++) {
            low = min_u64(low, from[part_of(at, i)]);
            high = max_u64(high, from[part_of(at, i)]);
        }
        hull->start[a] = low - at->c[a] * at->chunk->shape[a];
        hull->count[a] = high - low + 1;
        hull->step[a] = 1;
    }
}

static void
hull_of_boxes(const struct sc_pick_at *at, struct sc_box *hull)
{
    for (size_t i = 0; i < at->n; i++) {
        int64_t strides[SC_MAX_NDIM], offset;
        struct sc_box part;

        cut_row(at, i, &part, strides, &offset);
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
sc_pick_hull(const struct sc_pick_at *at, struct sc_box *hull)
{
    if (at->pick->kind == SC_PICK_POINTS) {
        hull_of_points(at, hull);
        return;
    }
    if (at->pick->kind == SC_PICK_BOXES) {
        hull_of_boxes(at, hull);
        return;
    }
    for (int a = 0; a < at->chunk->ndim; a++) {
        int p = axis_of(at, a);
        struct sc_cut cut = cut_axis(at->pick, p, at->chunk->shape[a], at->c[a]);

        hull->start[a] = cut.at;
        hull->count[a] =
            position_on_axis(at->pick, p, cut.k0 + cut.count - 1) - position_on_axis(at->pick, p, cut.k0) + 1;
        hull->step[a] = 1;
    }
}

/* ---- moving elements ---- */

#define BLOCK 256u

/* Elements between a chunk and the array, at offsets that follow no rule. */
struct mover {
    uint8_t *chunk, *array;
    struct sc_copy copy; /* of what lies at each offset: an element, or a box of them */
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

#define MOVE_ITEMS(n_bytes)                                                  \
    for (size_t i = 0; i < n; i++)                                           \
        if (m->gather)                                                       \
            memcpy(m->chunk + in_chunk[i], m->array + in_array[i], n_bytes); \
        else                                                                 \
            memcpy(m->array + in_array[i], m->chunk + in_chunk[i], n_bytes)

static void
move_block(const struct mover *m, const int64_t *in_chunk, const int64_t *in_array, size_t n)
{
    if (m->is_item && m->copy.itemsize == 1)
        MOVE_ITEMS(1);
    else if (m->is_item && m->copy.itemsize == 2)
        MOVE_ITEMS(2);
    else if (m->is_item && m->copy.itemsize == 4)
        MOVE_ITEMS(4);
    else if (m->is_item && m->copy.itemsize == 8)
        MOVE_ITEMS(8);
    else
        for (size_t i = 0; i < n; i++)
            move_one(m, in_chunk[i], in_array[i]);
}

static void
move_points(const struct sc_pick_at *at, const struct sc_view *view, const struct mover *m)
{
    int64_t in_chunk[BLOCK], in_array[BLOCK];

    for (size_t begin = 0; begin < at->n; begin += BLOCK) {
        size_t n = at->n - begin < BLOCK ? at->n - begin : BLOCK;

        for (size_t i = 0; i < n; i++) {
            in_chunk[i] = view->offset;
            in_array[i] = place_of_point(at->pick, part_of(at, begin + i));
        }
        for (int a = 0; a < at->chunk->ndim; a++) {
            const uint64_t *from = at->pick->from[axis_of(at, a)];
            uint64_t origin = at->c[a] * at->chunk->shape[a];

            for (size_t i = 0; i < n; i++)
                in_chunk[i] += (int64_t)(from[part_of(at, begin + i)] - origin) * view->strides[a];
        }
        move_block(m, in_chunk, in_array, n);
    }
}

/* The last listed axis: one offset after the other. */
static void
move_last_list(const struct sc_pick_at *at, const struct cut_lists *lists, const struct sc_view *view,
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

/* Combinations of the listed axes from number `depth` on. */
static void
move_lists(const struct sc_pick_at *at, const struct cut_lists *lists, const struct sc_view *view,
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

/* The copy of a box; where it begins in the chunk comes back. */
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
sc_pick_move(const struct sc_pick_at *at, const struct sc_view *view, uint8_t *array, bool gather)
{
    struct mover m = { .chunk = view->data, .array = array, .gather = gather };
    int64_t strides[SC_MAX_NDIM] = { 0 }, offset, first;
    struct cut_lists lists;
    struct sc_box box;

    if (at->pick->kind == SC_PICK_BOXES) {
        for (size_t i = 0; i < at->n; i++) {
            cut_row(at, i, &box, strides, &offset);
            first = prepare(&m, at->chunk, view, &box, strides);
            move_one(&m, first, offset);
        }
        return;
    }
    if (at->pick->kind == SC_PICK_POINTS) {
        for (int a = 0; a < at->chunk->ndim; a++) {
            box.start[a] = 0;
            box.count[a] = 1;
            box.step[a] = 1;
        }
        prepare(&m, at->chunk, view, &box, strides);
        move_points(at, view, &m);
        return;
    }
    cut_lists(at, &lists);
    box = lists.box;
    for (int i = 0; i < lists.n_listed; i++) {
        box.start[lists.listed[i]] = 0;
        box.count[lists.listed[i]] = 1;
        box.step[lists.listed[i]] = 1;
    }
    first = prepare(&m, at->chunk, view, &box, lists.strides);
    move_lists(at, &lists, view, &m, 0, first, lists.offset);
}
