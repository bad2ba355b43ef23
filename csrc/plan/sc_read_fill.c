/* sc_read_fill.c - fill elements that are not stored with the fill value
 * SPDX-License-Identifier: MIT */
#include "plan/sc_read_impl.h"

/* Fill a selection: all missing elements have one value. */
static void
fill_selected(const struct sc_read_object *object, const struct sc_chunk_selection *at)
{
    const struct sc_view fill = { .data = chain_of(object)->fill };

    sc_selection_move(at, &fill, object->item->dst, false);
}

/* Fill part i of n along the first axis that is longer than 1. */
void
sc_read_object_fill_part(struct sc_reader *reader, const struct sc_read_object *object, size_t i, size_t n)
{
    const struct sc_chain *chain = chain_of(object);
    const int64_t *strides = reader->run->plan->dst_strides;
    uint64_t count[SC_MAX_NDIM], from, to;
    uint8_t *dst = object->item->dst;
    struct sc_chunk_selection at;
    int axis = 0;

    if (object->item->selection) {
        sc_selection_in_object(&at, object->item->selection, chain);
        fill_selected(object, &at);
        return;
    }
    memcpy(count, object->item->box.count, sizeof count);
    while (axis < chain->ndim - 1 && count[axis] <= 1)
        axis++;
    if (n > 1) {
        from = count[axis] / n * i + min_u64(i, count[axis] % n);
        to = count[axis] / n * (i + 1) + min_u64(i + 1, count[axis] % n);
        count[axis] = to - from;
        dst += (int64_t)from * strides[axis];
    }
    sc_chain_fill(chain, count, dst, strides);
}

/* How many absent inner chunks, from the i-th of the list on, make up one box of them: its extents are left in `grid`.
 *
 *     touched, absent in small letters     boxes: along the last axis first, then, where that is complete, along the one
 *     a b c d                              before it
 *     e f g h                              a..h   i   k l
 *     i J k l
 *
 * The list ascends, and holds touched chunks alone. So where it goes on for as many as a box would have more, and ends as the
 * box would end, all of the box is in it. */
static size_t
absent_box(const struct sc_read_object *object, size_t i, size_t end, const uint64_t *c, uint64_t *grid)
{
    const struct sc_chain *shard = chain_of(object);
    const struct sc_walk *walk = &object->walk;
    uint64_t last = object->absent[i];
    size_t n = 1;
    int a = shard->ndim;

    for (int b = 0; b < shard->ndim; b++)
        grid[b] = 1;
    if (walk->leaps)
        return 1;
    while (a-- > 0) {
        size_t inside = n; /* inner chunks at one place along axis a: all that are touched along the axes behind it */

        while (c[a] + grid[a] < walk->end[a] && inside <= end - i - n &&
               object->absent[i + n + inside - 1] == last + shard->grid_strides[a]) {
            last += shard->grid_strides[a];
            n += inside;
            grid[a]++;
        }
        if (grid[a] < walk->end[a] - walk->first[a])
            break;
    }
    return n;
}

void
sc_read_object_fill_absent(struct sc_reader *reader, const struct sc_read_object *object, size_t begin, size_t end)
{
    const struct sc_chain *shard = chain_of(object);
    const struct sc_walk *walk = &object->walk;
    uint64_t c[SC_MAX_NDIM], grid[SC_MAX_NDIM], count[SC_MAX_NDIM];
    struct sc_chunk_selection at;

    reader->stats.chunks_filled += end - begin;
    for (size_t i = begin; object->item->selection && i < end; i++) {
        sc_selection_in_entry(&at, object->item->selection, shard, &object->touches, object->absent[i]);
        fill_selected(object, &at);
    }
    while (!object->item->selection && begin < end) {
        uint8_t *dst = object->item->dst;

        sc_walk_coordinates(shard, object->absent[begin], c);
        begin += absent_box(object, begin, end, c, grid);
        for (int a = 0; a < shard->ndim; a++) {
            uint64_t start = walk->box.start[a], n = walk->box.count[a], extent = shard->inner->shape[a];
            struct sc_cut low = sc_axis_cut(start, n, walk->box.step[a], extent, c[a]);
            struct sc_cut high = sc_axis_cut(start, n, walk->box.step[a], extent, c[a] + grid[a] - 1);

            count[a] = high.k0 + high.count - low.k0;
            dst += (int64_t)low.k0 * walk->strides[a];
        }
        sc_chain_fill(shard->inner, count, dst, walk->strides);
    }
}
