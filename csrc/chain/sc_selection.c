/* sc_selection.c - which inner chunks a selection touches (see sc_selection.h)
 * SPDX-License-Identifier: MIT */
#include "base/sc_radix.h"
#include "chain/sc_selection_impl.h"

/* ---- checks ---- */

/* Numbers checked together: a loop without early exit is several times as fast. */
#define CHECK_BLOCK 1024u

static bool
is_good(const uint64_t *positions, uint64_t n, uint64_t limit, bool ascend)
{
    bool bad = false;

    for (uint64_t i = 0; i < n; i++)
        bad |= positions[i] >= limit;
    for (uint64_t i = 1; ascend && i < n; i++)
        bad |= positions[i] < positions[i - 1];
    return !bad;
}

uint64_t
sc_positions_check(const uint64_t *positions, uint64_t n, uint64_t limit, bool ascend)
{
    uint64_t i = 0;

    while (i < n) { /* a block begins with the last number of the one before it */
        uint64_t k = i ? i - 1 : 0, end = min_u64(i + CHECK_BLOCK, n);

        if (!is_good(positions + k, end - k, limit, ascend))
            break;
        i = end;
    }
    for (; i < n; i++)
        if (positions[i] >= limit || (ascend && i && positions[i] < positions[i - 1]))
            return i;
    return n;
}

size_t
sc_rows_check(const struct sc_selection *selection, const struct sc_chain *object, const int *axes,
              const uint64_t *array_shape, bool repeat)
{
    for (size_t i = 0; i < selection->n; i++) {
        const uint64_t *places =
            selection->rows + i * (size_t)(3 * object->ndim + selection->array_ndim) + 3 * object->ndim;
        struct sc_box box;

        read_row(selection, object->ndim, i, &box);
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
        for (int b = 0; b < selection->array_ndim; b++)
            if (places[b] >= array_shape[b])
                return i;
    }
    return selection->n;
}

/* ---- touched inner chunks ---- */

static enum sc_status
push(struct sc_buffer *memory, size_t *n, uint64_t entry, uint64_t value)
{
    enum sc_status status = sc_buffer_extend(memory, *n * 2 * sizeof(uint64_t), 2 * sizeof(uint64_t));
    uint64_t *pair;

    if (SC_UNLIKELY(status))
        return status;
    pair = (uint64_t *)(void *)memory->data + 2 * (*n)++;
    pair[0] = entry;
    pair[1] = value;
    return SC_OK;
}

static enum sc_status
reserve_chunks(struct sc_touches *touches, size_t n, struct sc_touch **chunks)
{
    enum sc_status status = sc_buffer_reserve(&touches->chunks_memory, (n + 1) * sizeof **chunks);

    *chunks = (struct sc_touch *)(void *)touches->chunks_memory.data;
    touches->chunks = *chunks;
    return status;
}

/* Group records of `words` numbers, the first of which is the entry, by entry. The numbers behind the entry become a
 * contiguous list. */
static inline enum sc_status
group_records(struct sc_touches *touches, size_t n, const size_t words)
{
    uint64_t *records = (uint64_t *)(void *)touches->parts_memory.data, *rest = records;
    enum sc_status status = sc_radix_sort(records, n, words, 0, &touches->scratch);
    struct sc_touch *chunks;
    size_t n_chunks = n != 0;

    if (status)
        return status;
    for (size_t i = 1; i < n; i++)
        n_chunks += records[i * words] != records[(i - 1) * words];
    status = reserve_chunks(touches, n_chunks, &chunks);
    if (status)
        return status;
    touches->n = 0;
    for (size_t i = 0; i < n; i++, rest += words - 1) {
        uint64_t entry = records[i * words];

        if (!touches->n || chunks[touches->n - 1].entry != entry)
            chunks[touches->n++] = (struct sc_touch){ entry, i };
        /* never beyond a record that is not read yet */
        memmove(rest, records + i * words + 1, (words - 1) * sizeof *rest);
    }
    chunks[touches->n] = (struct sc_touch){ UINT64_MAX, n };
    return SC_OK;
}

static enum sc_status
touch_boxes(struct sc_touches *touches, const struct sc_selection *selection, const struct sc_chain *shard)
{
    enum sc_status status = SC_OK;
    size_t n = 0;

    for (size_t i = 0; !status && i < selection->n; i++) {
        struct sc_box box;
        struct sc_walk walk;

        read_row(selection, shard->ndim, i, &box);
        sc_walk_begin(&walk, shard, &box, selection->strides);
        do {
            if (sc_walk_touches(&walk, shard->inner))
                status = push(&touches->parts_memory, &n, sc_walk_entry(shard, walk.c), i);
        } while (!status && sc_walk_next(&walk, shard->ndim));
    }
    if (!status)
        status = group_records(touches, n, 2);
    touches->rows = (const uint64_t *)(const void *)touches->parts_memory.data;
    return status;
}

/* The combinations of touched coordinates, in C order. Each has one part: the lists. */
static enum sc_status
touch_lists(struct sc_touches *touches, const struct sc_selection *selection, const struct sc_chain *shard)
{
    uint64_t c[SC_MAX_NDIM];
    enum sc_status status;
    size_t n = 0;
    int a;

    for (a = 0; a < shard->ndim; a++)
        c[a] = position_on_axis(selection, shard->perm[a], 0) / shard->inner->shape[a];
    do {
        status = push(&touches->chunks_memory, &n, sc_walk_entry(shard, c), n);
        for (a = shard->ndim - 1; a >= 0; a--) {
            int p = shard->perm[a];
            struct sc_cut cut = cut_axis(selection, p, shard->inner->shape[a], c[a]);
            bool is_last = cut.k0 + cut.count >= selection->box->count[p];

            c[a] = position_on_axis(selection, p, is_last ? 0 : cut.k0 + cut.count) / shard->inner->shape[a];
            if (!is_last)
                break;
        }
    } while (!status && a >= 0);
    touches->n = n;
    if (!status)
        status = push(&touches->chunks_memory, &n, UINT64_MAX, n);
    touches->chunks = (const struct sc_touch *)(const void *)touches->chunks_memory.data;
    return status;
}

/* For each point: the entry of its inner chunk, and the number of the element in this chunk. */
static void
locate_points(const struct sc_selection *selection, const struct sc_chain *shard, size_t begin, size_t n,
              uint64_t *entry, uint64_t *item)
{
    memset(entry, 0, n * sizeof *entry);
    memset(item, 0, n * sizeof *item);
    for (int a = 0; a < shard->ndim; a++) {
        const uint64_t *from = selection->from[shard->perm[a]] + begin;
        uint64_t extent = shard->inner->shape[a], stride = shard->grid_strides[a];
        const struct sc_divisor divisor = sc_divisor(extent, shard->shape[shard->perm[a]]);

        for (size_t i = 0; i < n; i++) {
            uint64_t c = sc_divide(divisor, from[i]);

            entry[i] += c * stride;
            item[i] = item[i] * extent + (from[i] - c * extent);
        }
    }
}

#define BLOCK 256u

/* For few points: sort them. */
static enum sc_status
touch_few_points(struct sc_touches *touches, const struct sc_selection *selection, const struct sc_chain *shard)
{
    uint64_t entry[BLOCK], item[BLOCK], *record;
    enum sc_status status = sc_buffer_reserve(&touches->parts_memory, selection->n * 3 * sizeof *record);

    if (status)
        return status;
    record = (uint64_t *)(void *)touches->parts_memory.data;
    for (size_t begin = 0; begin < selection->n; begin += BLOCK) {
        size_t n = selection->n - begin < BLOCK ? selection->n - begin : BLOCK;

        locate_points(selection, shard, begin, n, entry, item);
        for (size_t i = 0; i < n; i++, record += 3) {
            record[0] = entry[i];
            record[1] = item[i];
            record[2] = place_of_point(selection, begin + i);
        }
    }
    return group_records(touches, selection->n, 3);
}

/* For about as many points as inner chunks, or more: count the points of each inner chunk, then put every point in
 * its place. */
static enum sc_status
touch_many_points(struct sc_touches *touches, const struct sc_selection *selection, const struct sc_chain *shard)
{
    size_t n_chunks = (size_t)shard->n_chunks, first = 0;
    struct sc_touch *chunks;
    struct sc_spot *spots;
    enum sc_status status = reserve_chunks(touches, min_u64(selection->n, n_chunks), &chunks);
    uint64_t *entry, *item, *next;

    if (!status)
        status = sc_buffer_reserve(&touches->parts_memory, selection->n * sizeof *spots);
    if (!status)
        status = sc_buffer_reserve(&touches->scratch, (2 * selection->n + n_chunks) * sizeof *next);
    if (status)
        return status;
    spots = (struct sc_spot *)(void *)touches->parts_memory.data;
    entry = (uint64_t *)(void *)touches->scratch.data;
    item = entry + selection->n;
    next = item + selection->n;
    memset(next, 0, n_chunks * sizeof *next);
    for (size_t begin = 0; begin < selection->n; begin += BLOCK) {
        size_t n = selection->n - begin < BLOCK ? selection->n - begin : BLOCK;

        locate_points(selection, shard, begin, n, entry + begin, item + begin);
        for (size_t i = begin; i < begin + n; i++)
            next[entry[i]]++;
    }
    touches->n = 0;
    for (size_t e = 0; e < n_chunks; e++) {
        size_t n = (size_t)next[e];

        next[e] = first;
        if (n)
            chunks[touches->n++] = (struct sc_touch){ e, first };
        first += n;
    }
    chunks[touches->n] = (struct sc_touch){ UINT64_MAX, first };
    for (size_t i = 0; i < selection->n; i++)
        spots[next[entry[i]]++] = (struct sc_spot){ item[i], place_of_point(selection, i) };
    return SC_OK;
}

static enum sc_status
touch_points(struct sc_touches *touches, const struct sc_selection *selection, const struct sc_chain *shard)
{
    enum sc_status status;

    if (selection->n > PTRDIFF_MAX / (8 * sizeof(struct sc_spot)))
        return SC_NO_MEMORY;
    status = shard->n_chunks / 2 > selection->n ? touch_few_points(touches, selection, shard)
                                                : touch_many_points(touches, selection, shard);
    touches->spots = (const struct sc_spot *)(const void *)touches->parts_memory.data;
    return status;
}

enum sc_status
sc_touches_find(struct sc_touches *touches, const struct sc_selection *selection, const struct sc_chain *shard)
{
    touches->n = 0;
    touches->rows = NULL;
    touches->spots = NULL;
    if (selection->kind == SC_SELECTION_LISTS)
        return touch_lists(touches, selection, shard);
    return selection->kind == SC_SELECTION_BOXES ? touch_boxes(touches, selection, shard)
                                                 : touch_points(touches, selection, shard);
}

void
sc_touches_free(struct sc_touches *touches)
{
    sc_buffer_free(&touches->chunks_memory);
    sc_buffer_free(&touches->parts_memory);
    sc_buffer_free(&touches->scratch);
}

bool
sc_touches_have(const struct sc_touches *touches, uint64_t entry)
{
    return touches->chunks[touch_at_or_after(touches, entry)].entry == entry;
}

void
sc_touches_range(const struct sc_touches *touches, const struct sc_chain *shard, uint64_t *first, uint64_t *last)
{
    uint64_t c[SC_MAX_NDIM];

    for (size_t i = 0; i < touches->n; i++) {
        sc_walk_coordinates(shard, touches->chunks[i].entry, c);
        for (int a = 0; a < shard->ndim; a++) {
            first[a] = i ? min_u64(first[a], c[a]) : c[a];
            last[a] = i ? max_u64(last[a], c[a]) : c[a];
        }
    }
}

uint64_t
sc_selection_nbytes(const struct sc_selection *selection, const struct sc_chain *object)
{
    const struct sc_chain *chunk = sc_chain_is_shard(object) ? object->inner : object;
    uint64_t n = 1; /* chunks, if each part had its own */

    if (selection->kind == SC_SELECTION_POINTS)
        n = selection->n;
    for (int a = 0; selection->kind == SC_SELECTION_LISTS && a < object->ndim; a++)
        n = min_u64(n * min_u64(selection->box->count[a], object->shape[a]), object->n_items);
    for (size_t i = 0; selection->kind == SC_SELECTION_BOXES && i < selection->n; i++) {
        struct sc_box box;

        read_row(selection, object->ndim, i, &box);
        n += 1 + sc_box_nbytes(object, &box) / chunk->nbytes;
    }
    n = min_u64(n, sc_chain_is_shard(object) ? object->n_chunks : 1);
    return n * chunk->nbytes;
}
