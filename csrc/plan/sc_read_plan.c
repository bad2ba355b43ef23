/* sc_read_plan.c - list what of an object is to be read (see sc_engine.h)
 *
 * Every entry that is needed is checked here, before memory is allocated for the sizes that it claims. No other is checked.
 *
 * SPDX-License-Identifier: MIT */
#include "plan/sc_read_impl.h"

void
sc_read_object_free(struct sc_read_object *object)
{
    sc_buffer_free(&object->index);
    sc_buffer_free(&object->whole);
    sc_buffer_free(&object->slots_memory);
    sc_buffer_free(&object->tasks_memory);
    sc_buffer_free(&object->absent_memory);
    sc_buffer_free(&object->sort_memory);
    sc_touches_free(&object->touches);
}

/* ---- planning a shard ---- */

static enum sc_status
push_task(struct sc_read_object *object, struct sc_read_task task)
{
    enum sc_status status = sc_buffer_extend(&object->tasks_memory, object->n_tasks * sizeof task, sizeof task);

    if (SC_UNLIKELY(status))
        return status;
    object->tasks = (struct sc_read_task *)(void *)object->tasks_memory.data;
    object->tasks[object->n_tasks++] = task;
    if (SC_UNLIKELY(object->slots != NULL))
        sc_read_disk_note(object, task.entry);
    return SC_OK;
}

static enum sc_status
push_absent(struct sc_read_object *object, uint64_t entry)
{
    enum sc_status status = sc_buffer_extend(&object->absent_memory, object->n_absent * sizeof entry, sizeof entry);

    if (SC_UNLIKELY(status))
        return status;
    object->absent = (uint64_t *)(void *)object->absent_memory.data;
    object->absent[object->n_absent++] = entry;
    return SC_OK;
}

/* Plan to fill everything: a box in parts along its first long axis, a selection at once. */
static void
plan_fill(const struct sc_read_run *run, struct sc_read_object *object)
{
    const struct sc_chain *chain = chain_of(object);
    uint64_t longest = 1, parts;

    object->n_parts = 1;
    if (object->item->selection)
        return;
    parts = sc_box_nbytes(chain, &object->item->box) / (SC_FILL_GROUPS * run->plan->group_nbytes) + 1;
    for (int a = 0; a < chain->ndim; a++) {
        longest = object->item->box.count[a];
        if (longest > 1)
            break;
    }
    object->n_parts = (size_t)min_u64(parts, longest);
}

/* Find the inner chunks that are touched: a walk over the box, or a list for a selection. */
static enum sc_status
begin_touched(struct sc_read_object *object)
{
    const struct sc_read_item *item = object->item;

    if (item->selection)
        return sc_touches_find(&object->touches, item->selection, item->chain);
    sc_walk_begin(&object->walk, item->chain, &item->box, object->strides);
    return SC_OK;
}

typedef enum sc_status touched_fn(struct sc_reader *reader, struct sc_read_object *object, const uint64_t *c,
                                  uint64_t entry);

/* Call fn once for each touched inner chunk, in C order. Always inlined, because fn may be called a million times. */
static inline __attribute__((always_inline)) enum sc_status
for_each_touched(struct sc_reader *reader, struct sc_read_object *object, touched_fn *fn)
{
    const struct sc_chain *shard = chain_of(object);
    struct sc_walk *walk = &object->walk;
    enum sc_status status = SC_OK;

    if (!object->item->selection) {
        do {
            if (sc_walk_touches(walk, shard->inner))
                status = fn(reader, object, walk->c, sc_walk_entry(shard, walk->c));
        } while (!status && sc_walk_next(walk, shard->ndim));
        return status;
    }
    for (size_t i = 0; !status && i < object->touches.n; i++) {
        uint64_t c[SC_MAX_NDIM], entry = object->touches.chunks[i].entry;

        sc_walk_coordinates(shard, entry, c);
        status = fn(reader, object, c, entry);
    }
    return status;
}

/* Read only the wanted part of an uncompressed chunk, if it comes from a file or from one of several ranges. Bytes
 * in memory cost nothing. */
static void
narrow(const struct sc_chain *chunk, const struct sc_box *part, struct sc_read_task *task)
{
    uint64_t low, high;

    if (sc_chain_hull(chunk, part, &low, &high)) {
        task->offset += low;
        task->nbytes = high - low;
    }
}

static void
narrow_selected(const struct sc_chunk_selection *at, struct sc_read_task *task)
{
    uint64_t low, high;

    if (sc_selection_bytes(at, &low, &high)) {
        task->offset += low;
        task->nbytes = high - low;
    }
}

static void
narrow_inner(const struct sc_read_object *object, const uint64_t *c, struct sc_read_task *task)
{
    const struct sc_chain *shard = chain_of(object), *inner = shard->inner;
    struct sc_chunk_selection at;
    struct sc_box part;
    int64_t offset;

    if ((object->input.fd < 0 && !object->item->source.entries) || inner->n_ops || inner->inner)
        return;
    if (object->slots && !sc_read_disk_was_compared(object, task->entry))
        return; /* the slot has the checksum of all bytes */
    if (object->item->selection) {
        sc_selection_in_entry(&at, object->item->selection, shard, &object->touches, task->entry);
        narrow_selected(&at, task);
    } else if (sc_walk_cut(&object->walk, inner, c, &part, &offset)) {
        narrow(inner, &part, task);
    }
}

/* The same for an object that is one chunk. */
static void
narrow_whole(const struct sc_read_object *object, struct sc_read_task *task)
{
    struct sc_chunk_selection at;

    if (object->item->selection) {
        sc_selection_in_object(&at, object->item->selection, chain_of(object));
        narrow_selected(&at, task);
    } else {
        narrow(chain_of(object), &object->item->box, task);
    }
}

/* Plan one inner chunk. */
static inline enum sc_status
plan_chunk(struct sc_reader *reader, struct sc_read_object *object, const uint64_t *c, uint64_t entry)
{
    const struct sc_chain *shard = chain_of(object);
    struct sc_entry e = object->input.index ? object->input.index->entries[entry]
                                            : sc_index_get(shard, object->pairs, object->first_word, c);
    enum sc_status status;

    if (sc_entry_is_absent(e))
        return push_absent(object, entry);
    status = sc_entry_check(e, &object->input.extent, reader->run->plan->allow_in_index, &reader->where);
    if (!status)
        status = sc_chain_check_nbytes(shard->inner, e.nbytes, &reader->where);
    if (!status) {
        struct sc_read_task task = { e.offset, e.nbytes, entry };

        narrow_inner(object, c, &task);
        return push_task(object, task);
    }
    reader->where.entry = entry;
    return status;
}

/* Put the chunks that the cache has before the others, because loading those could evict them: a loop over a cache that is a little
 * too small would find none. Without memory the order stays as it is. */
static void
put_kept_first(const struct sc_reader *reader, struct sc_read_object *object)
{
    size_t n_others = 0, n_kept = 0;
    struct sc_read_task *others;

    if (!object->state || object->n_tasks < 2 ||
        sc_buffer_reserve(&object->sort_memory, object->n_tasks * sizeof *others))
        return;
    others = (struct sc_read_task *)(void *)object->sort_memory.data;
    for (size_t i = 0; i < object->n_tasks; i++) {
        const struct sc_read_task t = object->tasks[i];

        *(sc_read_object_is_kept(reader, object, &t) ? &object->tasks[n_kept++] : &others[n_others++]) = t;
    }
    memcpy(&object->tasks[n_kept], others, n_others * sizeof *others);
    object->n_kept = n_kept;
}

static enum sc_status
plan_chunks(struct sc_reader *reader, struct sc_read_object *object)
{
    enum sc_status status = for_each_touched(reader, object, plan_chunk);

    if (status)
        return status;
    if (!object->n_tasks && !object->item->selection) {
        object->n_absent = 0;
        plan_fill(reader->run, object);
    }
    if (object->input.fd >= 0)
        status = sort_tasks(object->tasks, object->n_tasks, false, &object->sort_memory);
    if (!status)
        put_kept_first(reader, object);
    return status;
}

/* The same if the index is known and only a range of the object is in memory. */
static inline enum sc_status
plan_known_chunk(struct sc_reader *reader, struct sc_read_object *object, const uint64_t *c, uint64_t entry)
{
    const struct sc_source *source = &object->item->source;
    struct sc_entry e = source->entries[entry];
    struct sc_read_task task = { e.offset, e.nbytes, entry };
    enum sc_status status;

    if (sc_entry_is_absent(e))
        return source->fill_absent ? push_absent(object, entry) : SC_OK;
    if (!e.nbytes) /* no range has it */
        return source->fill_absent ? push_task(object, (struct sc_read_task){ 0, 0, entry }) : SC_OK;
    status = sc_chain_check_nbytes(chain_of(object)->inner, e.nbytes, &reader->where);
    if (!status)
        narrow_inner(object, c, &task);
    if (task.offset < source->first || task.nbytes > source->nbytes ||
        task.offset - source->first > source->nbytes - task.nbytes) {
        sc_where_clear(&reader->where);
        return SC_OK;
    }
    task.offset -= source->first;
    if (!status)
        return push_task(object, task);
    reader->where.entry = entry;
    return status;
}

void
sc_read_object_close(struct sc_read_run *run, struct sc_read_object *object)
{
    sc_input_close(&object->input);
    if (object->room)
        sc_depth_leave(&run->depth, object->room, &object->whole);
    object->room = 0;
    sc_buffer_free(&object->whole);
}

enum sc_status
sc_read_object_open(struct sc_reader *reader, struct sc_read_object *object)
{
    const struct sc_read_plan *plan = reader->run->plan;
    enum sc_status status;

    object->n_tasks = object->next_task = object->n_kept = object->n_absent = object->next_absent = 0;
    object->n_parts = object->next_part = object->n_ranges = object->next_range = 0;
    status = sc_input_open(&object->input, chain_of(object), &object->item->source, plan->cache, plan->immutable,
                           &reader->stats, &reader->where);
    if (!status)
        status = sc_read_disk_open(reader, object);
    object->item->missing = object->input.missing;
    if (status)
        return status;
    object->latency_ns = 0;
    if (SC_LIKELY(!object->input.missing) || plan->n_items > 1) /* a single missing object needs no other call */
        object->latency_ns = sc_depth_learn(&reader->run->depth, &object->item->source, &object->input.file);
    expect_objects(reader->run, object->latency_ns);
    sc_seat_end_work(&reader->seat);
    return sc_read_whole_begin(reader, object);
}

/* True if the cache may have inner chunks of the object. A read of all of them is left out, because nothing would be decoded for a
 * second read that does not come; so are elements that lie in a file as they are, because the page cache has them. */
static bool
may_keep(const struct sc_reader *reader, const struct sc_read_object *object)
{
    const struct sc_read_item *item = object->item;
    const struct sc_chain *chain = item->chain, *chunk = sc_chain_is_shard(chain) ? chain->inner : chain;

    return sc_cache_chunks(reader->run->plan->cache) && (chunk->n_ops || item->source.entries) && !chunk->inner &&
           !chunk->opaque && (chunk == chain || item->selection || !sc_box_is_whole(chain, item->box.count));
}

static void
note_state(const struct sc_reader *reader, struct sc_read_object *object)
{
    const struct sc_source *source = &object->item->source;

    if (may_keep(reader, object))
        object->state = object->input.index ? object->input.index->number : source->entries ? source->state : 0;
}

static enum sc_status
plan_object(struct sc_reader *reader, struct sc_read_object *object)
{
    enum sc_status status;

    object->state = 0;
    if (object->input.missing) {
        if (!object->item->source.is_on_disk)
            plan_fill(reader->run, object);
        return SC_OK;
    }
    if (!sc_chain_is_shard(chain_of(object))) {
        struct sc_read_task task = { 0, object->input.nbytes, 0 };

        status = sc_chain_check_nbytes(chain_of(object), object->input.nbytes, &reader->where);
        if (may_keep(reader, object) || object->slots)
            sc_input_find_state(&object->input, reader->run->plan->cancel);
        if (object->input.fd >= 0 && (!object->slots || sc_read_disk_was_compared(object, 0)))
            narrow_whole(object, &task);
        note_state(reader, object);
        return status ? status : push_task(object, task);
    }
    object->strides = reader->run->plan->dst_strides;
    status = begin_touched(object);
    if (status)
        return status;
    if (object->item->source.entries) {
        note_state(reader, object);
        return for_each_touched(reader, object, plan_known_chunk);
    }
    status = sc_read_object_load_index(reader, object);
    note_state(reader, object);
    if (!status)
        status = plan_chunks(reader, object);
    sc_read_object_drop_index(reader, object);
    return status;
}

enum sc_status
sc_read_object_plan(struct sc_reader *reader, struct sc_read_object *object)
{
    enum sc_status status = plan_object(reader, object);

    if (SC_UNLIKELY(object->slots != NULL))
        sc_read_disk_end_plan(object);
    return status;
}

/* ---- inner chunks of a shard in a remote store ---- */

/* The next flag of sc_read_kept(). */
struct flags {
    struct sc_read_object object; /* first, so that the function for a touched chunk finds it */
    uint8_t *next, *end;
};

static inline enum sc_status
copy_kept(struct sc_reader *reader, struct sc_read_object *object, const uint64_t *c, uint64_t entry)
{
    struct flags *flags = (struct flags *)(void *)object;
    struct sc_read_task task = { 0, 0, entry };

    (void)c;
    if (flags->next == flags->end)
        return SC_BAD_ARGUMENT;
    *flags->next++ = sc_read_object_copy_kept(reader, object, &task);
    return SC_OK;
}

enum sc_status
sc_read_kept(const struct sc_read_item *item, struct sc_cache *cache, const int64_t *dst_strides, uint8_t *is_there,
             size_t n)
{
    struct sc_read_item wanted = *item;
    struct sc_read_plan plan = { .cache = cache };
    struct sc_read_run run = { .plan = &plan };
    struct flags flags = { .object = { .item = &wanted, .input = { .fd = -1 }, .strides = dst_strides },
                           .next = is_there,
                           .end = is_there + n };
    struct sc_reader reader = { .run = &run, .seat.worker = sc_worker_take() };
    enum sc_status status = reader.seat.worker ? begin_touched(&flags.object) : SC_NO_MEMORY;

    if (!status)
        note_state(&reader, &flags.object);
    if (!status && flags.object.state)
        status = for_each_touched(&reader, &flags.object, copy_kept);
    sc_read_object_free(&flags.object);
    if (reader.seat.worker)
        sc_worker_put(reader.seat.worker);
    sc_totals_add(&reader.stats);
    return status;
}

/* ---- ranges to request from a remote store ---- */

static inline enum sc_status
plan_range(struct sc_reader *reader, struct sc_read_object *object, const uint64_t *c, uint64_t entry)
{
    struct sc_entry e = object->item->source.entries[entry];
    struct sc_read_task task = { e.offset, e.nbytes, entry };
    enum sc_status status;

    if (sc_entry_is_absent(e))
        return SC_OK;
    status = sc_entry_check(e, &object->input.extent, reader->run->plan->allow_in_index, &reader->where);
    if (!status)
        status = sc_chain_check_nbytes(chain_of(object)->inner, e.nbytes, &reader->where);
    if (status) {
        reader->where.entry = entry;
        return status;
    }
    if (object->input.extent.shard_nbytes != SC_UNKNOWN_NBYTES)
        narrow_inner(object, c, &task);
    return task.nbytes ? push_task(object, task) : SC_OK;
}

enum sc_status
sc_plan_ranges(const struct sc_read_item *item, const struct sc_index_extent *extent, bool allow_in_index,
               uint64_t max_gap_nbytes, uint64_t max_nbytes, struct sc_entry *ranges, size_t capacity, size_t *n_ranges,
               struct sc_where *where)
{
    static const int64_t no_strides[SC_MAX_NDIM];
    struct sc_read_item wanted = *item;
    struct sc_read_plan plan = { .allow_in_index = allow_in_index };
    struct sc_read_run run = { .plan = &plan };
    struct sc_read_object object = { .item = &wanted, .input = { .fd = -1, .extent = *extent }, .strides = no_strides };
    struct sc_reader reader = { .run = &run };
    struct sc_entry range = { 0, 0 };
    enum sc_status status = begin_touched(&object);

    *n_ranges = 0;
    sc_where_clear(&reader.where);
    if (!status)
        status = for_each_touched(&reader, &object, plan_range);
    if (!status)
        status = sort_tasks(object.tasks, object.n_tasks, false, &object.sort_memory);
    for (size_t i = 0; !status && i < object.n_tasks; i++) {
        const struct sc_read_task *t = &object.tasks[i];
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
    sc_read_object_free(&object);
    *where = reader.where;
    return status;
}
