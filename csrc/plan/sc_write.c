/* sc_write.c - run a writing plan (see sc_engine.h)
 *
 * The threads of a plan divide its objects. One object is written here from begin (open the old one) to commit (give
 * the new one its name); sc_write_chunks.c encodes and places its inner chunks.
 *
 * SPDX-License-Identifier: MIT */

#include "base/sc_alloc.h"
#include "base/sc_pool.h"
#include "io/sc_latency.h"
#include "io/sc_lock.h"
#include "io/sc_staging.h"
#include "plan/sc_write_impl.h"

#define MAX_BATCH_CHUNKS 8192u

/* ---- one object, from begin to commit ---- */

/* Open the old object. A file that the caller has inspected is not looked at: reads past its end fail, and its state is compared
 * before the commit. */
static enum sc_status
open_old(struct sc_writer *writer, struct sc_write_object *object)
{
    const struct sc_source *old = &object->item->old;
    enum sc_status status = SC_OK;

    object->old_fd = -1;
    if (!old->path && !old->is_open)
        return SC_OK;
    if (!old->is_open) {
        writer->stats.opens++;
        status = sc_file_open_id(old->path, &object->old_fd, &object->old_id, &writer->where);
    } else if (!(status = sc_file_share(old->fd, &object->old_fd, &writer->where))) {
        if (object->item->seen)
            object->old_id = *object->item->seen;
        else
            status = sc_file_identify_open(object->old_fd, &object->old_id, &writer->where);
    }
    if (status)
        return status;
    if (!sc_chain_is_shard(object->item->chain)) {
        object->item->old.nbytes = object->old_id.nbytes;
    } else if (object->old_id.nbytes != object->item->old.nbytes) {
        /* the caller holds the lock and has read the size before */
        writer->where.nbytes = object->old_id.nbytes;
        writer->where.limit = object->item->old.nbytes;
        return SC_CHANGED;
    }
    return SC_OK;
}

/* Find the range of inner chunks that the box or selection touches. */
static enum sc_status
begin_touched(struct sc_write_object *object, const int64_t *strides, uint64_t *first, uint64_t *last)
{
    const struct sc_write_item *item = object->item;
    enum sc_status status = SC_OK;

    if (!item->selection) {
        sc_walk_begin(&object->walk, item->chain, &item->box, strides);
        for (int a = 0; a < item->chain->ndim; a++) {
            first[a] = object->walk.first[a];
            last[a] = object->walk.end[a] - 1;
        }
        return SC_OK;
    }
    status = sc_touches_find(&object->touches, item->selection, item->chain);
    if (!status)
        sc_touches_range(&object->touches, item->chain, first, last);
    return status;
}

/* True if no inner chunk is kept or written. The object is then removed without making an index, which may be large. */
static bool
is_emptied(const struct sc_writer *writer, const struct sc_write_item *item)
{
    return item->encoded && !item->n_encoded && !item->entries && !writer->run->plan->rules.keep_empty;
}

/* Return the number of inner chunks in a range. */
static uint64_t
n_between(int ndim, const uint64_t *first, const uint64_t *last)
{
    uint64_t n = 1;

    for (int a = 0; a < ndim; a++)
        n *= last[a] - first[a] + 1; /* no overflow: at most the inner chunks of the shard */
    return n;
}

static enum sc_status
begin_shard(struct sc_writer *writer, struct sc_write_object *object)
{
    const struct sc_write_plan *plan = writer->run->plan;
    struct sc_write_item *item = object->item;
    const struct sc_chain *shard = item->chain;
    uint64_t most = plan->batch_nbytes / shard->inner->nbytes, first[SC_MAX_NDIM] = { 0 }, last[SC_MAX_NDIM] = { 0 };
    enum sc_status status = SC_OK;

    object->entries = item->entries;
    if (!object->entries && !is_emptied(writer, item)) {
        status = sc_buffer_reserve(&object->entries_memory, (size_t)shard->index.pairs_nbytes);
        if (status)
            return status;
        object->entries = (struct sc_entry *)(void *)object->entries_memory.data;
        memset(object->entries, 0xff, (size_t)shard->index.pairs_nbytes); /* absent is all ones */
    }
    if (SC_CHECKS && object->entries && (status = sc_write_check_begin(object)))
        return status;
    object->at = item->data_offset;
    object->batch_nbytes = plan->batch_nbytes;
    object->batch_chunks = writer->run->batch_capacity;
    if (item->encoded)
        return SC_OK;
    status = begin_touched(object, plan->src_strides, first, last);
    if (!status)
        status = sc_order_begin(&object->order, plan->rules.order, shard->ndim, shard->grid, first, last);
    object->batch_chunks = (size_t)min_u64(most ? most : 1, writer->run->batch_capacity);
    if (!status && item->old_entries && object->old_fd >= 0)
        sc_write_expect_reads(writer, object, n_between(shard->ndim, first, last));
    return status;
}

static bool
all_absent(const struct sc_entry *entries, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (!sc_entry_is_absent(entries[i]))
            return false;
    return true;
}

static enum sc_status
put_tail(struct sc_writer *writer, struct sc_write_object *object)
{
    struct sc_write_item *item = object->item;
    enum sc_status status = SC_OK;
    struct sc_tail tail;

    if (!sc_write_object_tail(object, &tail)) {
        if (SC_CHECKS)
            sc_write_check_before(object, NULL);
        return SC_OK;
    }
    if (SC_CHECKS)
        sc_write_check_before(object, &tail);
    if (tail.mark_nbytes)
        status = sc_write_object_put(writer, object, tail.mark, tail.mark_nbytes, tail.mark_at);
    if (!status && item->footer_nbytes)
        status = sc_write_object_put(writer, object, item->footer, item->footer_nbytes, tail.footer_at);
    object->at = tail.end;
    return status;
}

/* Write the index after all inner chunks, unless the shard is empty. */
static enum sc_status
end_shard(struct sc_writer *writer, struct sc_write_object *object)
{
    const struct sc_chain *shard = object->item->chain;
    enum sc_status status;

    object->item->empty = is_emptied(writer, object->item) ||
                          (!writer->run->plan->rules.keep_empty && all_absent(object->entries, shard->n_chunks));
    if (object->item->empty)
        return SC_OK;
    status = sc_buffer_reserve(&object->index, (size_t)shard->index.nbytes);
    if (!status)
        status = put_tail(writer, object);
    if (status)
        return status;
    if (object->item->onto_old)
        sc_write_object_pack_old(object);
    sc_index_store(shard, object->entries, object->index.data);
    if (in_own_file(object->item))
        return SC_OK; /* sc_write_object_append() and _overwrite() write it */
    return sc_write_object_put(writer, object, object->index.data, (size_t)shard->index.nbytes,
                               shard->index.at_start ? 0 : object->at);
}

/* Large chunks are not copied out of the memory of their batch, unless half of it would be wasted. */
#define LARGE_NBYTES ((size_t)1 << 20)

/* Store a chunk that is encoded in the memory of a batch. */
static enum sc_status
put_whole(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch *batch)
{
    if (object->item->path || object->item->onto_old || batch->used < LARGE_NBYTES ||
        batch->used < batch->bytes.capacity / 2)
        return sc_write_object_put(writer, object, batch->bytes.data, batch->used, 0);
    sc_buffer_free(&object->result);
    object->result = batch->bytes;
    object->item->result_nbytes = batch->used;
    batch->bytes = (struct sc_buffer){ 0 };
    writer->stats.bytes_written += batch->used;
    return SC_OK;
}

/* Write an object that is one chunk. */
static enum sc_status
write_whole(struct sc_writer *writer, struct sc_write_object *object)
{
    struct sc_write_batch *batch = sc_write_batch_take(writer->run);
    uint64_t nbytes = SC_ABSENT;
    enum sc_status status = batch ? sc_write_batch_encode_whole(writer, object, batch, &nbytes) : SC_NO_MEMORY;

    sc_seat_end_work(&writer->seat);
    object->item->empty = !status && nbytes == SC_ABSENT;
    if (!status && !object->item->empty)
        status = put_whole(writer, object, batch);
    if (batch)
        sc_write_batch_put(writer->run, batch);
    return status;
}

/* A file that is open while it is replaced lacks its name for a moment on a network file system (sc_guard.h). */
static void
close_old(struct sc_write_object *object)
{
    sc_file_close(object->old_fd);
    object->old_fd = -1;
}

static enum sc_status
finish(struct sc_writer *writer, struct sc_write_object *object)
{
    struct sc_write_item *item = object->item;
    enum sc_status status = SC_OK;

    if (!item->path) {
        if (item->empty)
            return SC_OK;
        if (SC_CHECKS && sc_chain_is_shard(item->chain))
            sc_write_check_memory(object);
        item->result = object->result.data;
        item->result_capacity = object->result.capacity;
        object->result = (struct sc_buffer){ 0 };
        return SC_OK;
    }
    /* This look proves that no program without a lock has changed the file whose bytes were carried. An update in its own file
     * makes its own. */
    if (item->seen && object->old_fd >= 0 && (item->empty || !in_own_file(item)))
        status = sc_file_check_seen(object->old_fd, item->seen, true, NULL, &writer->where);
    if (status)
        return status;
    if (item->empty) {
        sc_newfile_abort(&object->file);
        close_old(object);
        return item->only_new ? SC_OK : sc_lock_remove(item->path, writer->run->plan->sync, &writer->where);
    }
    if (item->in_place || item->append) {
        status =
            item->in_place ? sc_write_object_overwrite(writer, object) : sc_write_object_append(writer, object, false);
        if (status || item->declined || !writer->run->plan->tells_states)
            return status;
        /* The caller holds the lock of the file, so no other writer has changed it since. */
        return sc_file_version_now(object->old_fd, &item->made, &writer->where);
    }
    if (SC_CHECKS && sc_chain_is_shard(item->chain))
        sc_write_check_file(object, object->file.fd);
    close_old(object);
    return sc_newfile_commit(&object->file, writer->run->plan->sync, item->only_new ? &item->exists : NULL,
                             writer->run->plan->tells_states ? &item->made : NULL, &writer->where);
}

static enum sc_status
finish_timed(struct sc_writer *writer, struct sc_write_object *object)
{
    uint64_t begin = sc_clock_ns();
    enum sc_status status;

    sc_seat_end_work(&writer->seat);
    status = object->in_pieces ? sc_write_file_flush(writer, object) : SC_OK;
    if (!status)
        status = finish(writer, object);
    if (writer->run->plan->sync) /* otherwise a commit takes long because a removed file was large */
        sc_write_expect_objects(writer, &writer->run->commits, sc_clock_ns() - begin);
    return status;
}

/* Have room for all that is appended, because memory that grows is copied. What is not used is never touched. */
static enum sc_status
reserve_result(struct sc_write_object *object)
{
    const struct sc_write_item *item = object->item;
    const struct sc_walk *walk = &object->walk;
    uint64_t nbytes = item->encoded ? 0 : sc_chain_bound(item->chain->inner);

    if (item->append == SC_APPEND_NOT || item->in_place || (!item->encoded && (item->selection || walk->leaps)))
        return SC_OK;
    for (size_t i = 0; i < item->n_encoded; i++)
        nbytes += item->encoded[i].nbytes;
    for (int a = 0; !item->encoded && a < item->chain->ndim; a++)
        if (!mul_fits(nbytes, walk->end[a] - walk->first[a], &nbytes) || nbytes > PTRDIFF_MAX / 2)
            return SC_OK;
    return sc_buffer_reserve(&object->result,
                             (size_t)(nbytes + item->footer_nbytes + item->chain->index.nbytes) + 2 * SC_BLOCK_NBYTES);
}

/* Encode the inner chunks and let other threads help. On return every batch is written and every helper has left. */
static void
encode_shared(struct sc_writer *writer, struct sc_write_object *object)
{
    sc_shared_open(&object->shared);
    sc_team_announce(&writer->run->base.team);
    while (sc_write_object_work(writer, object))
        ;
    sc_seat_end_work(&writer->seat);
    sc_shared_close(&object->shared);
}

static void
object_reset(struct sc_write_object *object, size_t item_no, struct sc_write_item *item)
{
    object->item_no = item_no;
    object->item = item;
    object->failed = object->all_claimed = false;
    object->n_claimed = object->n_placed = 0;
    object->slots.n = object->slots.used = 0;
    object->lent = NULL;
    object->lent_nbytes = 0;
    object->in_pieces = false;
    object->given = item->encoded;
    object->n_given = item->n_encoded;
    object->next_given = 0;
    object->file = (struct sc_newfile){ .fd = -1, .at = -1 };
    object->old_fd = -1;
    item->result = NULL;
    item->result_nbytes = item->result_capacity = 0;
    item->empty = item->exists = item->declined = false;
}

static void
write_item(struct sc_writer *writer, struct sc_write_object *object, size_t item_no)
{
    struct sc_write_run *run = writer->run;
    struct sc_write_item *item = &run->plan->items[item_no];
    bool shared = sc_chain_is_shard(item->chain), encodes;
    enum sc_status status;

    object_reset(object, item_no, item);
    sc_where_clear(&writer->where);
    sc_seat_end_work(&writer->seat);
    status = sc_write_object_stopped(run, object) ? SC_CANCELLED : open_old(writer, object);
    if (!status && shared)
        status = begin_shard(writer, object);
    object->in_pieces = shared && !in_memory(item) && sc_write_uses_pieces(run);
    if (!status && shared)
        status = sc_write_object_carry(writer, object);
    encodes = !status && shared && !sc_write_object_lend(writer, object);
    if (encodes)
        status = reserve_result(object);
    if (status || !encodes)
        sc_team_announce(&run->base.team);
    if (!status && shared) {
        if (encodes)
            encode_shared(writer, object);
        sc_where_clear(&writer->where);
        status = sc_failure_decides(&run->base.failure, item_no, SC_NOWHERE) ? SC_CANCELLED : end_shard(writer, object);
    } else if (!status) {
        status = write_whole(writer, object);
    }
    if (!status)
        status = finish_timed(writer, object);
    if (status && !object->failed)
        sc_failure_note(&run->base.failure, status, &writer->where, item_no);
    sc_write_file_drop(run, object);
    sc_newfile_abort(&object->file);
    if (object->file.staged)
        atomic_store_explicit(&run->staged, true, memory_order_relaxed);
    sc_file_close(object->old_fd);
    sc_buffer_free(&object->result);
}

/* ---- threads ---- */

/* Help with the object of a thread, if it needs help. `later`: also if this thread must first wait for another one. */
static bool
help_with(struct sc_writer *writer, struct sc_write_object *object, bool later)
{
    bool join, helped;

    pthread_mutex_lock(&object->shared.mutex);
    join = sc_write_object_wants_help(writer->run, object, later);
    object->shared.n_helpers += join;
    pthread_mutex_unlock(&object->shared.mutex);
    if (!join)
        return false;
    helped = sc_write_object_work(writer, object);
    sc_shared_leave(&object->shared);
    return helped;
}

static bool
help(void *arg)
{
    struct sc_writer *writer = arg;
    struct sc_write_run *run = writer->run;
    unsigned n = run->base.team.n_members;
    bool helped = false;

    for (unsigned i = 0; i < 2 * n && !helped; i++) {
        bool later = i >= n; /* then threads wait for different objects */
        struct sc_write_object *object =
            atomic_load_explicit(&run->objects[later ? (i + writer->number) % n : i], memory_order_acquire);

        helped = object && help_with(writer, object, later);
    }
    if (!helped)
        sc_seat_end_work(&writer->seat);
    return helped;
}

/* Make the object of a thread. NULL: no memory. */
static struct sc_write_object *
make_object(struct sc_write_run *run, unsigned *number)
{
    struct sc_write_object *object = sc_calloc(1, sizeof *object);

    if (!object)
        return NULL;
    sc_shared_init(&object->shared);
    *number = sc_team_join(&run->base.team);
    atomic_store_explicit(&run->objects[*number], object, memory_order_release);
    return object;
}

static void
free_object(struct sc_write_object *object)
{
    if (!object)
        return;
    sc_buffer_free(&object->entries_memory);
    sc_buffer_free(&object->index);
#ifdef SHARDCODEC_CHECKS
    sc_buffer_free(&object->sums_memory);
#endif
    sc_buffer_free(&object->given_memory);
    sc_buffer_free(&object->slots.places);
    sc_buffer_free(&object->slots.bytes);
    sc_touches_free(&object->touches);
    sc_shared_destroy(&object->shared);
    sc_free(object);
}

static void
run_thread(void *arg)
{
    struct sc_write_run *run = arg;
    struct sc_team *team = &run->base.team;
    struct sc_writer writer = { .run = run, .seat.depth = &run->depth };
    struct sc_write_object *object = make_object(run, &writer.number);
    enum sc_status status = object ? SC_OK : SC_NO_MEMORY;
    size_t item_no;

    sc_where_clear(&writer.where);
    if (!status)
        status = sc_seat_take(&writer.seat);
    if (status)
        sc_failure_note(&run->base.failure, status, &writer.where, 0);
    while (!status && sc_team_take(team, &item_no))
        write_item(&writer, object, item_no);
    if (!status && team->n_members > 1)
        sc_team_help(team, help, &writer);
    sc_seat_leave(&writer.seat);
    sc_run_add(&run->base, &writer.stats);
}

/* Return the number of positions of the largest batch of the plan. */
static size_t
batch_capacity(const struct sc_write_plan *plan)
{
    uint64_t most = 1;

    for (size_t i = 0; i < plan->n_items; i++) {
        const struct sc_write_item *item = &plan->items[i];

        if (item->encoded)
            most = max_u64(most, item->n_encoded);
        else if (sc_chain_is_shard(item->chain))
            most = max_u64(most, plan->batch_nbytes / item->chain->inner->nbytes);
    }
    return (size_t)min_u64(most, MAX_BATCH_CHUNKS);
}

static void
run_free(struct sc_write_run *run)
{
    for (unsigned i = 0; i < run->base.team.next_member; i++) /* those that have joined */
        free_object(atomic_load_explicit(&run->objects[i], memory_order_relaxed));
    sc_depth_destroy(&run->depth);
    while (run->free_batches) {
        struct sc_write_batch *next = run->free_batches->next;

        sc_write_batch_free(run->free_batches);
        run->free_batches = next;
    }
    sc_write_file_free_pieces(run);
}

enum sc_status
sc_write(struct sc_write_plan *plan, struct sc_where *where)
{
    struct sc_write_run run = { .plan = plan, .batch_capacity = batch_capacity(plan) };
    enum sc_status status;
    unsigned n_threads, n_flat;

    sc_where_clear(where);
    n_threads = plan->n_threads ? plan->n_threads : 1;
    n_flat = sc_threads_for(sc_write_count(&run), plan->n_items, n_threads);
    n_flat = n_flat < SC_WRITE_MAX_THREADS ? n_flat : SC_WRITE_MAX_THREADS;
    sc_depth_init(&run.depth, &plan->io, n_threads, n_flat, run_thread, &run);
    run.depth.allow_in_index = plan->allow_in_index;
    sc_run_begin(&run.base, plan->n_items, n_flat);
    sc_write_expect_plan(&run);
    sc_depth_run(&run.depth);
    if (run.staged)
        sc_staging_leave(plan->staging);
    run_free(&run);
    plan->stats = (struct sc_stats){ 0 };
    status = sc_run_end(&run.base, &plan->stats, where);
    if (plan->only_encodes)
        plan->stats.bytes_written = 0; /* a later write counts them */
    sc_totals_add(&plan->stats);
    return status;
}
