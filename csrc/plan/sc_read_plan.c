/* sc_read_plan.c - list what of an object is to be read (see sc_engine.h)
 *
 * Entries are checked here, each one that the box touches and no other, before any memory is taken for what they claim.
 *
 * SPDX-License-Identifier: MIT */
#include "plan/sc_read_impl.h"

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

/* What is wanted is filled as a whole: a box in parts along its first long axis, a pick at once. */
static void
plan_fill(const struct run *run, struct stall *stall)
{
    const struct sc_chain *chain = chain_of(stall);
    uint64_t longest = 1, parts;

    stall->n_parts = 1;
    if (stall->item->pick)
        return;
    parts = sc_box_nbytes(chain, &stall->item->box) / (SC_FILL_GROUPS * run->plan->group_nbytes) + 1;
    for (int a = 0; a < chain->ndim; a++) {
        longest = stall->item->box.count[a];
        if (longest > 1)
            break;
    }
    stall->n_parts = (size_t)min_u64(parts, longest);
}

/* Find out which inner chunks are touched: a walk, or a list of them. */
static enum sc_status
begin_touched(struct stall *stall)
{
    const struct sc_read_item *item = stall->item;

    if (item->pick)
        return sc_touches_find(&stall->touches, item->pick, item->chain);
    sc_walk_begin(&stall->walk, item->chain, &item->box, stall->strides);
    return SC_OK;
}

typedef enum sc_status touched_fn(struct reader *reader, struct stall *stall, const uint64_t *c, uint64_t entry);

/* Call fn for each touched inner chunk, once, in C order. Made anew for each fn: it is called a million times. */
static inline __attribute__((always_inline)) enum sc_status
for_each_touched(struct reader *reader, struct stall *stall, touched_fn *fn)
{
    const struct sc_chain *shard = chain_of(stall);
    struct sc_walk *walk = &stall->walk;
    enum sc_status status = SC_OK;

    if (!stall->item->pick) {
        do {
            if (sc_walk_touches(walk, shard->inner))
                status = fn(reader, stall, walk->c, sc_walk_entry(shard, walk->c));
        } while (!status && sc_walk_next(walk, shard->ndim));
        return status;
    }
    for (size_t i = 0; !status && i < stall->touches.n; i++) {
        uint64_t c[SC_MAX_NDIM], entry = stall->touches.chunks[i].entry;

        sc_walk_coordinates(shard, entry, c);
        status = fn(reader, stall, c, entry);
    }
    return status;
}

/* Of a chunk whose elements lie in the object as they are, and which is wanted in part, only that part is read: from a file,
 * or in ranges that arrive one by one. What is in memory costs nothing. */
static void
narrow(const struct sc_chain *chunk, const struct sc_box *part, struct task *task)
{
    uint64_t low, high;

    if (sc_chain_hull(chunk, part, &low, &high)) {
        task->offset += low;
        task->nbytes = high - low;
    }
}

static void
narrow_picked(const struct sc_pick_at *at, struct task *task)
{
    uint64_t low, high;

    if (sc_pick_bytes(at, &low, &high)) {
        task->offset += low;
        task->nbytes = high - low;
    }
}

static void
narrow_inner(const struct stall *stall, const uint64_t *c, struct task *task)
{
    const struct sc_chain *shard = chain_of(stall), *inner = shard->inner;
    struct sc_pick_at at;
    struct sc_box part;
    int64_t offset;

    if ((stall->fd < 0 && !stall->item->source.entries) || inner->n_ops || inner->inner)
        return;
    if (stall->item->pick) {
        sc_pick_at_entry(&at, stall->item->pick, shard, &stall->touches, task->entry);
        narrow_picked(&at, task);
    } else if (sc_walk_cut(&stall->walk, inner, c, &part, &offset)) {
        narrow(inner, &part, task);
    }
}

/* The same for an object that is one chunk. */
static void
narrow_whole(const struct stall *stall, struct task *task)
{
    struct sc_pick_at at;

    if (stall->item->pick) {
        sc_pick_at_object(&at, stall->item->pick, chain_of(stall));
        narrow_picked(&at, task);
    } else {
        narrow(chain_of(stall), &stall->item->box, task);
    }
}

/* Add one inner chunk to what is to be done. */
static inline enum sc_status
plan_chunk(struct reader *reader, struct stall *stall, const uint64_t *c, uint64_t entry)
{
    const struct sc_chain *shard = chain_of(stall);
    struct sc_entry e =
        stall->known ? stall->known->entries[entry] : sc_index_get(shard, stall->pairs, stall->first_word, c);
    enum sc_status status;

    if (sc_entry_is_absent(e))
        return push_absent(stall, entry);
    status = sc_entry_check(e, &stall->extent, reader->run->plan->allow_in_index, &reader->where);
    if (!status)
        status = sc_chain_check_nbytes(shard->inner, e.nbytes, &reader->where);
    if (!status) {
        struct task task = { e.offset, e.nbytes, entry };

        narrow_inner(stall, c, &task);
        return push_task(stall, task);
    }
    reader->where.entry = entry;
    return status;
}

static enum sc_status
plan_chunks(struct reader *reader, struct stall *stall)
{
    enum sc_status status = for_each_touched(reader, stall, plan_chunk);

    if (status)
        return status;
    if (!stall->n_tasks && !stall->item->pick) {
        stall->n_absent = 0;
        plan_fill(reader->run, stall);
    }
    return stall->fd >= 0 ? sort_tasks(stall->tasks, stall->n_tasks, false, &stall->sort_memory) : SC_OK;
}

/* The same where the index is known and only a range of the object is here. */
static inline enum sc_status
plan_known_chunk(struct reader *reader, struct stall *stall, const uint64_t *c, uint64_t entry)
{
    const struct sc_source *source = &stall->item->source;
    struct sc_entry e = source->entries[entry];
    struct task task = { e.offset, e.nbytes, entry };
    enum sc_status status;

    if (sc_entry_is_absent(e))
        return source->fill_absent ? push_absent(stall, entry) : SC_OK;
    if (!e.nbytes) /* no range has it */
        return source->fill_absent ? push_task(stall, (struct task){ 0, 0, entry }) : SC_OK;
    status = sc_chain_check_nbytes(chain_of(stall)->inner, e.nbytes, &reader->where);
    if (!status)
        narrow_inner(stall, c, &task);
    if (task.offset < source->first || task.nbytes > source->nbytes ||
        task.offset - source->first > source->nbytes - task.nbytes) {
        sc_where_clear(&reader->where);
        return SC_OK;
    }
    task.offset -= source->first;
    if (!status)
        return push_task(stall, task);
    reader->where.entry = entry;
    return status;
}

enum sc_status
sc_stall_plan(struct reader *reader, struct stall *stall)
{
    enum sc_status status;

    stall->n_tasks = stall->next_task = stall->n_absent = stall->next_absent = 0;
    stall->n_parts = stall->next_part = 0;
    status = sc_stall_open(reader, stall);
    if (status)
        return status;
    if (stall->item->missing) {
        plan_fill(reader->run, stall);
        return SC_OK;
    }
    if (!sc_chain_is_shard(chain_of(stall))) {
        struct task task = { 0, stall->nbytes, 0 };

        status = sc_chain_check_nbytes(chain_of(stall), stall->nbytes, &reader->where);
        if (stall->fd >= 0)
            narrow_whole(stall, &task);
        return status ? status : push_task(stall, task);
    }
    stall->strides = reader->run->plan->dst_strides;
    status = begin_touched(stall);
    if (status)
        return status;
    if (stall->item->source.entries)
        return for_each_touched(reader, stall, plan_known_chunk);
    status = sc_stall_load_index(reader, stall);
    return status ? status : plan_chunks(reader, stall);
}

/* ---- ranges to ask a remote store for ---- */

static inline enum sc_status
plan_range(struct reader *reader, struct stall *stall, const uint64_t *c, uint64_t entry)
{
    struct sc_entry e = stall->item->source.entries[entry];
    struct task task = { e.offset, e.nbytes, entry };
    enum sc_status status;

    if (sc_entry_is_absent(e))
        return SC_OK;
    status = sc_entry_check(e, &stall->extent, reader->run->plan->allow_in_index, &reader->where);
    if (!status)
        status = sc_chain_check_nbytes(chain_of(stall)->inner, e.nbytes, &reader->where);
    if (status) {
        reader->where.entry = entry;
        return status;
    }
    if (stall->extent.shard_nbytes != SC_UNKNOWN_NBYTES)
        narrow_inner(stall, c, &task);
    return task.nbytes ? push_task(stall, task) : SC_OK;
}

enum sc_status
sc_plan_ranges(const struct sc_read_item *item, const struct sc_index_extent *extent, bool allow_in_index,
               uint64_t max_gap_nbytes, uint64_t max_nbytes, struct sc_entry *ranges, size_t capacity, size_t *n_ranges,
               struct sc_where *where)
{
    static const int64_t no_strides[SC_MAX_NDIM];
    struct sc_read_item wanted = *item;
    struct sc_read_plan plan = { .allow_in_index = allow_in_index };
    struct run run = { .plan = &plan };
    struct stall stall = { .item = &wanted, .fd = -1, .extent = *extent, .strides = no_strides };
    struct reader reader = { .run = &run };
    struct sc_entry range = { 0, 0 };
    enum sc_status status = begin_touched(&stall);

    *n_ranges = 0;
    sc_where_clear(&reader.where);
    if (!status)
        status = for_each_touched(&reader, &stall, plan_range);
    if (!status)
        status = sort_tasks(stall.tasks, stall.n_tasks, false, &stall.sort_memory);
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
    *where = reader.where;
    return status;
}
