/* sc_pick.c - which inner chunks a selection touches (see sc_pick.h)
 * SPDX-License-Identifier: MIT */
#include "sc_pick_impl.h"
#include "sc_radix.h"

/* ---- checks ---- */

uint64_t
sc_positions_check(const uint64_t *positions, uint64_t n, uint64_t limit, bool ascend)
{
    for (uint64_t i = 0; i < n; i++)
        if (positions[i] >= limit || (ascend && i && positions[i] < positions[i - 1]))
            return i;
    return n;
}

size_t
sc_rows_check(const struct sc_pick *pick, const struct sc_chain *object, const int *axes, const uint64_t *array_shape,
              bool repeat)
{
    for (size_t i = 0; i < pick->n; i++) {
        const uint64_t *places = pick->rows + i * (size_t)(3 * object->ndim + pick->array_ndim) + 3 * object->ndim;
        struct sc_box box;

        read_row(pick, object->ndim, i, &box);
        for (int a = 0; a < object->ndim; a++) {
            if (!box.count[a] || box.step[a] < 1 || box.start[a] >= object->shape[a] ||
                box.count[a] - 1 > (object->shape[a] - 1 - box.start[a]) / (uint64_t)box.step[a])
                return i;
            if (axes[a] < 0 && box.count[a] != 1 && !repeat)
                return i;
            if (axes[a] >= 0 &&
                (places[axes[a]] >= array_shape[axes[a]] || box.count[a] > array_shape[axes[a]] - places[axes[a]]))
                return i;
        }
        for (int b = 0; b < pick->array_ndim; b++)
            if (places[b] >= array_shape[b])
                return i;
    }
    return pick->n;
}

/* ---- touched inner chunks ---- */

static enum sc_status
push_touch(struct sc_buffer *memory, size_t *n, uint64_t entry, uint64_t part)
{
    struct sc_touch *touch;

    if (SC_UNLIKELY((*n + 1) * sizeof *touch > memory->capacity)) {
        enum sc_status status = sc_buffer_grow(memory, *n * sizeof *touch, (2 * *n + 64) * sizeof *touch);

        if (status)
            return status;
    }
    touch = (struct sc_touch *)(void *)memory->data + (*n)++;
    *touch = (struct sc_touch){ entry, part };
    return SC_OK;
}

static enum sc_status
touch_boxes(const struct sc_pick *pick, const struct sc_chain *shard, struct sc_buffer *memory, size_t *n)
{
    enum sc_status status = SC_OK;

    for (size_t i = 0; !status && i < pick->n; i++) {
        struct sc_box box;
        struct sc_walk walk;

        read_row(pick, shard->ndim, i, &box);
        sc_walk_begin(&walk, shard, &box, pick->strides);
        do {
            if (sc_walk_touches(&walk, shard->inner))
                status = push_touch(memory, n, sc_walk_entry(shard, walk.c), i);
        } while (!status && sc_walk_next(&walk, shard->ndim));
    }
    return status;
}

/* The combinations of touched coordinates, in C order. */
static enum sc_status
touch_lists(const struct sc_pick *pick, const struct sc_chain *shard, struct sc_buffer *memory, size_t *n)
{
    uint64_t c[SC_MAX_NDIM];
    enum sc_status status;
    int a;

    for (a = 0; a < shard->ndim; a++)
        c[a] = position_on_axis(pick, shard->perm[a], 0) / shard->inner->shape[a];
    do {
        status = push_touch(memory, n, sc_walk_entry(shard, c), 0);
        for (a = shard->ndim - 1; a >= 0; a--) {
            int p = shard->perm[a];
            struct sc_cut cut = cut_axis(pick, p, shard->inner->shape[a], c[a]);
            bool is_last = cut.k0 + cut.count >= pick->box->count[p];

            c[a] = position_on_axis(pick, p, is_last ? 0 : cut.k0 + cut.count) / shard->inner->shape[a];
            if (!is_last)
                break;
        }
    } while (!status && a >= 0);
    return status;
}

static enum sc_status
touch_points(const struct sc_pick *pick, const struct sc_chain *shard, struct sc_buffer *memory, size_t *n)
{
    struct sc_touch *touches;
    enum sc_status status;

    if (pick->n > PTRDIFF_MAX / sizeof *touches)
        return SC_NO_MEMORY;
    status = sc_buffer_reserve(memory, pick->n * sizeof *touches);
    if (status)
        return status;
    touches = (struct sc_touch *)(void *)memory->data;
    for (size_t i = 0; i < pick->n; i++)
        touches[i] = (struct sc_touch){ 0, i };
    for (int a = 0; a < shard->ndim; a++) {
        const uint64_t *from = pick->from[shard->perm[a]];
        uint64_t extent = shard->inner->shape[a], stride = shard->grid_strides[a];

        for (size_t i = 0; i < pick->n; i++)
            touches[i].entry += from[i] / extent * stride;
    }
    *n = pick->n;
    return SC_OK;
}

enum sc_status
sc_pick_touches(const struct sc_pick *pick, const struct sc_chain *shard, struct sc_buffer *memory,
                struct sc_buffer *scratch, size_t *n)
{
    enum sc_status status;

    *n = 0;
    if (pick->kind == SC_PICK_LISTS)
        return touch_lists(pick, shard, memory, n);
    status = pick->kind == SC_PICK_BOXES ? touch_boxes(pick, shard, memory, n) : touch_points(pick, shard, memory, n);
    return status ? status : sc_radix_sort((uint64_t *)(void *)memory->data, *n, 2, 0, scratch);
}

size_t
sc_touches_find(const struct sc_touch *touches, size_t n, uint64_t entry)
{
    size_t low = 0;

    while (low < n) {
        size_t middle = low + (n - low) / 2;

        if (touches[middle].entry < entry)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

void
sc_touches_range(const struct sc_chain *shard, const struct sc_touch *touches, size_t n, uint64_t *first,
                 uint64_t *last)
{
    uint64_t c[SC_MAX_NDIM];

    for (size_t i = 0; i < n; i++) {
        if (i && touches[i].entry == touches[i - 1].entry)
            continue;
        sc_walk_coordinates(shard, touches[i].entry, c);
        for (int a = 0; a < shard->ndim; a++) {
            first[a] = i ? min_u64(first[a], c[a]) : c[a];
            last[a] = i ? max_u64(last[a], c[a]) : c[a];
        }
    }
}

uint64_t
sc_pick_nbytes(const struct sc_pick *pick, const struct sc_chain *object)
{
    const struct sc_chain *chunk = sc_chain_is_shard(object) ? object->inner : object;
    uint64_t n = 1; /* chunks, if each part had its own */

    if (pick->kind == SC_PICK_POINTS)
        n = pick->n;
    for (int a = 0; pick->kind == SC_PICK_LISTS && a < object->ndim; a++)
        n = min_u64(n * min_u64(pick->box->count[a], object->shape[a]), object->n_items);
    for (size_t i = 0; pick->kind == SC_PICK_BOXES && i < pick->n; i++) {
        struct sc_box box;

        read_row(pick, object->ndim, i, &box);
        n += 1 + sc_box_nbytes(object, &box) / chunk->nbytes;
    }
    n = min_u64(n, sc_chain_is_shard(object) ? object->n_chunks : 1);
    return n * chunk->nbytes;
}
