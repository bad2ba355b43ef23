/* sc_read_plan.c - open an object, read its index, and list what of it is to be read (see sc_engine.h)
 *
 * Entries are checked here, each one that the box touches and no other, before any memory is taken for what they claim.
 *
 * SPDX-License-Identifier: MIT */
#include "sc_crc32c.h"
#include "sc_file.h"
#include "sc_read_impl.h"

/* Indexes above this are not held whole when one small window of them is wanted; blocks of it stay in the cache. */
#define INDEX_BLOCK_NBYTES ((size_t)256 << 10)

/* ---- the bytes of an object ---- */

static enum sc_status
open_object(struct reader *reader, struct stall *stall)
{
    const struct sc_source *source = &stall->item->source;

    stall->fd = -1;
    if (!source->path) {
        stall->nbytes = source->nbytes;
        stall->item->missing = !source->data && !source->entries;
        return SC_OK;
    }
    reader->stats.opens++;
    enum sc_status status = sc_file_open(source->path, &stall->fd, &stall->nbytes, &reader->where);

    stall->item->missing = !status && stall->fd < 0;
    return status;
}

void
sc_stall_close(struct stall *stall)
{
    sc_file_close(stall->fd);
    stall->fd = -1;
}

enum sc_status
sc_stall_fetch(struct reader *reader, const struct stall *stall, uint64_t offset, uint64_t n, struct sc_buffer *buffer,
               const uint8_t **bytes)
{
    enum sc_status status;

    if (stall->fd < 0) {
        const uint8_t *data = stall->item->source.data;

        *bytes = data ? data + offset : (const uint8_t *)""; /* NULL: only chunks of no bytes */
        return SC_OK;
    }
    status = sc_buffer_reserve(buffer, (size_t)n);
    if (status)
        return status;
    *bytes = buffer->data;
    reader->stats.reads++;
    reader->stats.bytes_read += n;
    return sc_file_read_exactly(stall->fd, buffer->data, (size_t)n, offset, &reader->where);
}

/* ---- the index ---- */

/* The pairs that the box can touch lie in words [*first, *end) of an index in C order. */
static void
index_window(const struct stall *stall, uint64_t *first, uint64_t *end)
{
    const struct sc_chain *shard = chain_of(stall);
    uint64_t low = 0, high = 0;

    for (int a = 0; a < shard->ndim; a++) {
        low += stall->walk.first[a] * shard->grid_strides[a];
        high += (stall->walk.end[a] - 1) * shard->grid_strides[a];
    }
    *first = 2 * low;
    *end = 2 * (high + 1);
}

/* Read an index in blocks, checking its one checksum on the way, and keep only the window. */
static enum sc_status
stream_index(struct reader *reader, struct stall *stall, uint64_t first, uint64_t end)
{
    const struct sc_index_layout *index = &chain_of(stall)->index;
    uint64_t low = 8 * first, high = 8 * end;
    struct sc_buffer *block = &reader->worker->io;
    enum sc_status status = sc_buffer_reserve(&stall->index, (size_t)(high - low));
    const uint8_t *bytes;
    uint32_t crc = 0;

    for (uint64_t at = 0, n; !status && at < index->pairs_nbytes; at += n) {
        n = min_u64(INDEX_BLOCK_NBYTES, index->pairs_nbytes - at);
        status = sc_stall_fetch(reader, stall, stall->extent.offset + at, n, block, &bytes);
        if (status)
            break;
        crc = sc_crc32c_extend(crc, bytes, (size_t)n);
        if (at < high && at + n > low) {
            uint64_t from = max_u64(at, low), to = min_u64(at + n, high);

            memcpy(stall->index.data + (from - low), bytes + (from - at), (size_t)(to - from));
        }
    }
    if (!status)
        status = sc_stall_fetch(reader, stall, stall->extent.offset + index->pairs_nbytes, 4, block, &bytes);
    if (!status && load_le32(bytes) != crc) {
        reader->where.expected = load_le32(bytes);
        reader->where.actual = crc;
        reader->where.nbytes = index->pairs_nbytes;
        reader->where.in_index = true;
        status = SC_INDEX_CHECKSUM;
    }
    stall->pairs = stall->index.data;
    stall->first_word = first;
    return status;
}

static enum sc_status
load_index(struct reader *reader, struct stall *stall)
{
    const struct sc_index_layout *index = &chain_of(stall)->index;
    enum sc_status status = sc_index_locate(index, stall->nbytes, &stall->extent, &reader->where);
    uint64_t first, end;

    if (status)
        return status;
    if (index->in_c_order && index->n_checksums <= 1 && stall->fd >= 0 && index->nbytes > INDEX_BLOCK_NBYTES) {
        index_window(stall, &first, &end);
        if (index->n_checksums)
            return stream_index(reader, stall, first, end);
        stall->first_word = first; /* nothing to check: the window alone is read */
        return sc_stall_fetch(reader, stall, stall->extent.offset + 8 * first, 8 * (end - first), &stall->index,
                              &stall->pairs);
    }
    stall->first_word = 0;
    status = sc_stall_fetch(reader, stall, stall->extent.offset, index->nbytes, &stall->index, &stall->pairs);
    return status ? status : sc_index_verify(index, stall->pairs, &reader->where);
}

/* ---- planning a shard ---- */

static enum sc_status
push_task(struct stall *stall, struct task task)
{
    size_t n = stall->n_tasks;

    if (SC_UNLIKELY((n + 1) * sizeof task > stall->tasks_memory.capacity)) {
        enum sc_status status = sc_buffer_grow(&stall->tasks_memory, n * sizeof task, (2 * n + 64) * sizeof task);

        if (status)
            return status;
    }
    stall->tasks = (struct task *)(void *)stall->tasks_memory.data;
    stall->tasks[stall->n_tasks++] = task;
    return SC_OK;
}

static enum sc_status
push_absent(struct stall *stall, uint64_t entry)
{
    size_t n = stall->n_absent;

    if (SC_UNLIKELY((n + 1) * sizeof entry > stall->absent_memory.capacity)) {
        enum sc_status status = sc_buffer_grow(&stall->absent_memory, n * sizeof entry, (2 * n + 64) * sizeof entry);

        if (status)
            return status;
    }
    stall->absent = (uint64_t *)(void *)stall->absent_memory.data;
    stall->absent[stall->n_absent++] = entry;
    return SC_OK;
}

static uint64_t
task_key(const struct task *task, bool by_entry)
{
    return by_entry ? task->entry : task->offset;
}

/* Stable radix sort, eight bits at a time; digits that all tasks share are skipped. */
enum sc_status
sc_tasks_sort(struct task *tasks, size_t n, bool by_entry, struct sc_buffer *scratch)
{
    struct task *from = tasks, *to;
    uint64_t any = 0, all = UINT64_MAX;
    bool ascending = true;
    enum sc_status status;

    for (size_t i = 0; i < n; i++) {
        uint64_t key = task_key(&tasks[i], by_entry);

        any |= key;
        all &= key;
        ascending = ascending && (!i || task_key(&tasks[i - 1], by_entry) <= key);
    }
    if (ascending)
        return SC_OK;
    status = sc_buffer_reserve(scratch, n * sizeof *tasks);
    if (status)
        return status;
    to = (struct task *)(void *)scratch->data;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        size_t starts[256] = { 0 }, sum = 0;
        struct task *swap;

        if (((any ^ all) >> shift & 255) == 0)
            continue;
        for (size_t i = 0; i < n; i++)
            starts[task_key(&from[i], by_entry) >> shift & 255]++;
        for (size_t d = 0; d < 256; d++) {
            size_t count = starts[d];

            starts[d] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++)
            to[starts[task_key(&from[i], by_entry) >> shift & 255]++] = from[i];
        swap = from;
        from = to;
        to = swap;
    }
    if (from != tasks)
        memcpy(tasks, from, n * sizeof *tasks);
    return SC_OK;
}

/* The box as a whole is filled, in parts along its first long axis. */
static void
plan_fill(const struct run *run, struct stall *stall)
{
    const struct sc_chain *chain = chain_of(stall);
    uint64_t nbytes = sc_box_nbytes(chain, &stall->item->box), parts = nbytes / run->plan->group_nbytes + 1;
    uint64_t longest = 1;

    for (int a = 0; a < chain->ndim; a++) {
        longest = stall->item->box.count[a];
        if (longest > 1)
            break;
    }
    stall->n_parts = (size_t)min_u64(parts, longest);
}

/* Add one inner chunk that the box touches to what is to be done. */
static enum sc_status
plan_chunk(struct reader *reader, struct stall *stall, struct sc_entry e, uint64_t entry)
{
    const struct sc_chain *inner = chain_of(stall)->inner;
    enum sc_status status;

    if (sc_entry_is_absent(e))
        return push_absent(stall, entry);
    status = sc_entry_check(e, &stall->extent, reader->run->plan->allow_in_index, &reader->where);
    if (!status)
        status = sc_chain_check_nbytes(inner, e.nbytes, &reader->where);
    if (!status)
        return push_task(stall, (struct task){ e.offset, e.nbytes, entry });
    reader->where.entry = entry;
    return status;
}

static enum sc_status
plan_chunks(struct reader *reader, struct stall *stall)
{
    const struct sc_chain *shard = chain_of(stall), *inner = shard->inner;
    struct sc_walk *walk = &stall->walk;
    enum sc_status status = SC_OK;

    do {
        if (sc_walk_touches(walk, inner))
            status = plan_chunk(reader, stall, sc_index_get(shard, stall->pairs, stall->first_word, walk->c),
                                sc_walk_entry(shard, walk->c));
    } while (!status && sc_walk_next(walk, shard->ndim));
    if (status)
        return status;
    if (!stall->n_tasks) {
        stall->n_absent = 0;
        plan_fill(reader->run, stall);
    }
    return stall->fd >= 0 ? sc_tasks_sort(stall->tasks, stall->n_tasks, false, &stall->sort_memory) : SC_OK;
}

/* The same where the index is known and only a range of the object is here. */
static enum sc_status
plan_known_chunks(struct reader *reader, struct stall *stall)
{
    const struct sc_chain *shard = chain_of(stall), *inner = shard->inner;
    const struct sc_source *source = &stall->item->source;
    struct sc_walk *walk = &stall->walk;
    enum sc_status status = SC_OK;

    do {
        uint64_t entry = sc_walk_entry(shard, walk->c);
        struct sc_entry e = source->entries[entry];

        if (!sc_walk_touches(walk, inner))
            continue;
        if (sc_entry_is_absent(e)) {
            status = source->fill_absent ? push_absent(stall, entry) : SC_OK;
        } else if (!e.nbytes) { /* no range has it */
            status = source->fill_absent ? push_task(stall, (struct task){ 0, 0, entry }) : SC_OK;
        } else if (e.offset >= source->first && e.nbytes <= source->nbytes &&
                   e.offset - source->first <= source->nbytes - e.nbytes) {
            status = sc_chain_check_nbytes(inner, e.nbytes, &reader->where);
            if (status)
                reader->where.entry = entry;
            else
                status = push_task(stall, (struct task){ e.offset - source->first, e.nbytes, entry });
        }
    } while (!status && sc_walk_next(walk, shard->ndim));
    return status;
}

enum sc_status
sc_stall_plan(struct reader *reader, struct stall *stall)
{
    enum sc_status status;

    stall->n_tasks = stall->next_task = stall->n_absent = stall->next_absent = 0;
    stall->n_parts = stall->next_part = 0;
    status = open_object(reader, stall);
    if (status)
        return status;
    if (stall->item->missing) {
        plan_fill(reader->run, stall);
        return SC_OK;
    }
    if (!sc_chain_is_shard(chain_of(stall))) {
        status = sc_chain_check_nbytes(chain_of(stall), stall->nbytes, &reader->where);
        return status ? status : push_task(stall, (struct task){ 0, stall->nbytes, 0 });
    }
    sc_walk_begin(&stall->walk, chain_of(stall), &stall->item->box, reader->run->plan->dst_strides);
    if (stall->item->source.entries)
        return plan_known_chunks(reader, stall);
    status = load_index(reader, stall);
    return status ? status : plan_chunks(reader, stall);
}

void
sc_stall_free_memory(struct stall *stall)
{
    sc_buffer_free(&stall->index);
    sc_buffer_free(&stall->tasks_memory);
    sc_buffer_free(&stall->absent_memory);
    sc_buffer_free(&stall->sort_memory);
}

/* ---- indexes by themselves ---- */

/* Lengths are checked too: a chunk that is carried over is never decoded, and must not pass for a good one. */
static enum sc_status
check_entries(const struct sc_chain *shard, const struct sc_index_extent *extent, bool allow_in_index,
              const uint8_t *replaced, struct sc_entry *entries, struct sc_where *where)
{
    for (uint64_t i = 0; i < shard->n_chunks; i++) {
        enum sc_status status;

        if (sc_entry_is_absent(entries[i]))
            continue;
        status = sc_entry_check(entries[i], extent, allow_in_index, where);
        if (!status)
            status = sc_chain_check_nbytes(shard->inner, entries[i].nbytes, where);
        if (!status)
            continue;
        if (!replaced || !replaced[i]) {
            where->entry = i;
            return status;
        }
        entries[i] = (struct sc_entry){ SC_ABSENT, SC_ABSENT };
        sc_where_clear(where);
    }
    return SC_OK;
}

enum sc_status
sc_read_index(const struct sc_chain *shard, const struct sc_source *source, bool allow_in_index,
              const uint8_t *replaced, struct sc_entry *entries, uint64_t *shard_nbytes, struct sc_where *where)
{
    struct sc_read_item item = { .chain = shard, .source = *source };
    struct sc_index_extent extent;
    struct stall stall = { .item = &item, .fd = -1 };
    struct reader reader = { 0 };
    enum sc_status status;
    const uint8_t *stored;

    sc_where_clear(&reader.where);
    status = open_object(&reader, &stall);
    *shard_nbytes = item.missing ? SC_ABSENT : stall.nbytes;
    if (!status && !item.missing) {
        status = sc_index_locate(&shard->index, stall.nbytes, &extent, &reader.where);
        if (!status)
            status = sc_stall_fetch(&reader, &stall, extent.offset, shard->index.nbytes, &stall.index, &stored);
        if (!status)
            status = sc_index_verify(&shard->index, stored, &reader.where);
        if (!status) {
            sc_index_load(shard, stored, entries);
            status = check_entries(shard, &extent, allow_in_index, replaced, entries, &reader.where);
        }
    }
    sc_stall_close(&stall);
    sc_buffer_free(&stall.index);
    *where = reader.where;
    return status;
}

enum sc_status
sc_plan_ranges(const struct sc_chain *shard, const struct sc_entry *entries, const struct sc_box *box,
               const struct sc_index_extent *extent, bool allow_in_index, uint64_t max_gap_nbytes, uint64_t max_nbytes,
               struct sc_entry *ranges, size_t capacity, size_t *n_ranges, struct sc_where *where)
{
    static const int64_t no_strides[SC_MAX_NDIM];
    struct stall stall = { .fd = -1 };
    struct sc_entry range = { 0, 0 };
    enum sc_status status = SC_OK;

    *n_ranges = 0;
    sc_walk_begin(&stall.walk, shard, box, no_strides);
    do {
        uint64_t entry = sc_walk_entry(shard, stall.walk.c);
        struct sc_entry e = entries[entry];

        if (sc_entry_is_absent(e) || !sc_walk_touches(&stall.walk, shard->inner))
            continue;
        status = sc_entry_check(e, extent, allow_in_index, where);
        if (!status)
            status = sc_chain_check_nbytes(shard->inner, e.nbytes, where);
        if (status)
            where->entry = entry;
        else if (e.nbytes)
            status = push_task(&stall, (struct task){ e.offset, e.nbytes, entry });
    } while (!status && sc_walk_next(&stall.walk, shard->ndim));
    if (!status)
        status = sc_tasks_sort(stall.tasks, stall.n_tasks, false, &stall.sort_memory);
    for (size_t i = 0; !status && i < stall.n_tasks; i++) {
        const struct task *t = &stall.tasks[i];
        uint64_t end = range.offset + range.nbytes, new_end = max_u64(end, t->offset + t->nbytes);
        bool near = t->offset <= end || t->offset - end <= max_gap_nbytes;

        if (*n_ranges && near && (t->offset + t->nbytes <= end || new_end - range.offset <= max_nbytes)) {
            range.nbytes = new_end - range.offset;
        } else {
            range = (struct sc_entry){ t->offset, t->nbytes };
            ++*n_ranges;
        }
        if (*n_ranges <= capacity)
            ranges[*n_ranges - 1] = range;
    }
    sc_stall_free_memory(&stall);
    return status;
}
