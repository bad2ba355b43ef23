/* sc_write.c - run a writing plan (see sc_engine.h)
 *
 * What becomes of one object, from the old one's opening to the new one's name, and of all of them, shared by threads. The
 * inner chunks of one are sc_write_bench.c's.
 *
 * SPDX-License-Identifier: MIT */

#include "base/sc_pool.h"
#include "base/sc_alloc.h"
#include "io/sc_staging.h"
#include "plan/sc_write_impl.h"

#define MAX_UNIT_CHUNKS 8192u

/* ---- one object, from begin to commit ---- */

static enum sc_status
open_old(struct writer *writer, struct bench *bench)
{
    const struct sc_source *old = &bench->item->old;
    uint64_t nbytes;
    enum sc_status status = SC_OK;

    bench->old_fd = -1;
    if (old->path || old->is_open) {
        writer->stats.opens += !old->is_open;
        status = old->is_open ? sc_file_share(old->fd, &bench->old_fd, &nbytes, &writer->where)
                              : sc_file_open(old->path, &bench->old_fd, &nbytes, &writer->where);
        if (!status && !sc_chain_is_shard(bench->item->chain)) {
            bench->item->old.nbytes = nbytes;
        } else if (!status && nbytes != bench->item->old.nbytes) {
            /* the caller holds the lock and has measured it */
            writer->where.nbytes = nbytes;
            writer->where.limit = bench->item->old.nbytes;
            return SC_CHANGED;
        }
    }
    return status;
}

/* The range of inner chunks that the box or pick lies in. */
static enum sc_status
begin_touched(struct bench *bench, const int64_t *strides, uint64_t *first, uint64_t *last)
{
    const struct sc_write_item *item = bench->item;
    enum sc_status status = SC_OK;

    if (!item->pick) {
        sc_walk_begin(&bench->walk, item->chain, &item->box, strides);
        for (int a = 0; a < item->chain->ndim; a++) {
            first[a] = bench->walk.first[a];
            last[a] = bench->walk.end[a] - 1;
        }
        return SC_OK;
    }
    status = sc_touches_find(&bench->touches, item->pick, item->chain);
    if (!status)
        sc_touches_range(&bench->touches, item->chain, first, last);
    return status;
}

/* Nothing is kept and nothing comes: the object goes, and no index, which may be huge, is needed to know that. */
static bool
is_emptied(const struct writer *writer, const struct sc_write_item *item)
{
    return item->encoded && !item->n_encoded && !item->entries && !writer->run->plan->rules.keep_empty;
}

static enum sc_status
begin_shard(struct writer *writer, struct bench *bench)
{
    const struct sc_write_plan *plan = writer->run->plan;
    struct sc_write_item *item = bench->item;
    const struct sc_chain *shard = item->chain;
    uint64_t most = plan->unit_nbytes / shard->inner->nbytes, first[SC_MAX_NDIM] = { 0 }, last[SC_MAX_NDIM] = { 0 };
    enum sc_status status = SC_OK;

    bench->entries = item->entries;
    if (!bench->entries && !is_emptied(writer, item)) {
        status = sc_buffer_reserve(&bench->entries_memory, (size_t)shard->index.pairs_nbytes);
        if (status)
            return status;
        bench->entries = (struct sc_entry *)(void *)bench->entries_memory.data;
        memset(bench->entries, 0xff, (size_t)shard->index.pairs_nbytes); /* absent is all ones */
    }
    bench->at = item->data_offset;
    bench->unit_nbytes = plan->unit_nbytes;
    bench->unit_chunks = writer->run->unit_capacity;
    if (item->encoded)
        return SC_OK;
    status = begin_touched(bench, plan->src_strides, first, last);
    if (!status)
        status = sc_order_begin(&bench->order, plan->rules.order, shard->ndim, shard->grid, first, last);
    bench->unit_chunks = (size_t)min_u64(most ? most : 1, writer->run->unit_capacity);
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
put_tail(struct writer *writer, struct bench *bench)
{
    struct sc_write_item *item = bench->item;
    enum sc_status status = SC_OK;
    struct tail tail;

    if (!sc_bench_tail(bench, &tail))
        return SC_OK;
    if (tail.mark_nbytes)
        status = sc_bench_put(writer, bench, tail.mark, tail.mark_nbytes, tail.mark_at);
    if (!status && item->footer_nbytes)
        status = sc_bench_put(writer, bench, item->footer, item->footer_nbytes, tail.footer_at);
    bench->at = tail.end;
    return status;
}

/* All inner chunks are in place: the index, unless there is nothing to index. */
static enum sc_status
end_shard(struct writer *writer, struct bench *bench)
{
    const struct sc_chain *shard = bench->item->chain;
    enum sc_status status;

    bench->item->empty = is_emptied(writer, bench->item) ||
                         (!writer->run->plan->rules.keep_empty && all_absent(bench->entries, shard->n_chunks));
    if (bench->item->empty)
        return SC_OK;
    status = sc_buffer_reserve(&bench->index, (size_t)shard->index.nbytes);
    if (!status)
        status = put_tail(writer, bench);
    if (status)
        return status;
    if (bench->item->onto_old)
        sc_bench_pack_old(bench);
    sc_index_store(shard, bench->entries, bench->index.data);
    if (in_own_file(bench->item))
        return SC_OK; /* it has a way of its own */
    return sc_bench_put(writer, bench, bench->index.data, (size_t)shard->index.nbytes,
                        shard->index.at_start ? 0 : bench->at);
}

/* An object that is one chunk. */
static enum sc_status
write_whole(struct writer *writer, struct bench *bench)
{
    struct unit *unit = sc_unit_take(writer->run);
    uint64_t nbytes = SC_ABSENT;
    enum sc_status status = unit ? sc_unit_encode_whole(writer, bench, unit, &nbytes) : SC_NO_MEMORY;

    bench->item->empty = !status && nbytes == SC_ABSENT;
    if (!status && !bench->item->empty)
        status = sc_bench_put(writer, bench, unit->bytes.data, unit->used, 0);
    if (unit)
        sc_unit_put(writer->run, unit);
    return status;
}

/* Note the state that a file got in which something was changed, while nobody else can have changed it. */
static enum sc_status
note_version(struct writer *writer, struct sc_write_item *item, int fd)
{
    struct sc_file_id id;
    enum sc_status status = sc_file_identify_open(fd, &id, &writer->where);

    if (!status)
        sc_file_version_of(fd, &id, &item->made);
    return status;
}

static enum sc_status
finish(struct writer *writer, struct bench *bench)
{
    struct sc_write_item *item = bench->item;
    enum sc_status status = SC_OK;

    if (!item->path) {
        if (item->empty)
            return SC_OK;
        item->result = bench->result.data;
        bench->result = (struct sc_buffer){ 0 };
        return SC_OK;
    }
    if (item->stamp && bench->old_fd >= 0)
        status = sc_file_check_stamp(bench->old_fd, item->stamp, &writer->where);
    if (status)
        return status;
    if (item->empty) {
        sc_newfile_abort(&bench->file);
        return item->only_new ? SC_OK : sc_file_remove(item->path, writer->run->plan->sync, &writer->where);
    }
    if (item->in_place || item->append) {
        status = item->in_place ? sc_bench_overwrite(writer, bench) : sc_bench_append(writer, bench, false);
        return status || item->declined ? status : note_version(writer, item, bench->old_fd);
    }
    return sc_newfile_commit(&bench->file, writer->run->plan->sync, item->only_new ? &item->exists : NULL, &item->made,
                             &writer->where);
}

/* Encode the inner chunks, letting others help; on return every unit is written and every guest gone. */
static void
encode_shared(struct writer *writer, struct bench *bench)
{
    pthread_mutex_lock(&bench->mutex);
    bench->ready = true;
    pthread_mutex_unlock(&bench->mutex);
    sc_crew_announce(&writer->run->crew);
    while (sc_bench_work(writer, bench))
        ;
    pthread_mutex_lock(&bench->mutex);
    bench->ready = false;
    while (bench->guests)
        pthread_cond_wait(&bench->changed, &bench->mutex);
    pthread_mutex_unlock(&bench->mutex);
}

static void
bench_reset(struct bench *bench, size_t item_no, struct sc_write_item *item)
{
    bench->item_no = item_no;
    bench->item = item;
    bench->failed = bench->all_claimed = false;
    bench->n_claimed = bench->n_placed = 0;
    bench->slots.n = bench->slots.used = 0;
    bench->given = item->encoded;
    bench->n_given = item->n_encoded;
    bench->next_given = 0;
    bench->file = (struct sc_newfile){ .fd = -1 };
    bench->old_fd = -1;
    item->result = NULL;
    item->result_nbytes = 0;
    item->empty = item->exists = item->declined = false;
}

static void
write_item(struct writer *writer, struct bench *bench, size_t item_no)
{
    struct run *run = writer->run;
    struct sc_write_item *item = &run->plan->items[item_no];
    bool shared = sc_chain_is_shard(item->chain);
    enum sc_status status;

    bench_reset(bench, item_no, item);
    sc_where_clear(&writer->where);
    status = sc_bench_stopped(run, bench) ? SC_CANCELLED : open_old(writer, bench);
    if (!status && shared)
        status = begin_shard(writer, bench);
    if (!status && shared)
        status = sc_bench_carry(writer, bench);
    if (status || !shared)
        sc_crew_announce(&run->crew);
    if (!status && shared) {
        encode_shared(writer, bench);
        sc_where_clear(&writer->where);
        status = sc_failure_settles(&run->failure, item_no, SC_NOWHERE) ? SC_CANCELLED : end_shard(writer, bench);
    } else if (!status) {
        status = write_whole(writer, bench);
    }
    if (!status)
        status = finish(writer, bench);
    if (status && !bench->failed)
        sc_failure_note(&run->failure, status, &writer->where, item_no);
    sc_newfile_abort(&bench->file);
    if (bench->file.staged)
        atomic_store_explicit(&run->staged, true, memory_order_relaxed);
    sc_file_close(bench->old_fd);
    sc_buffer_free(&bench->result);
}

/* ---- threads ---- */

static bool
help_somebody(void *arg)
{
    struct writer *writer = arg;
    struct run *run = writer->run;
    bool helped = false;

    for (unsigned i = 0; i < run->crew.n_members && !helped; i++) {
        struct bench *bench = &run->benches[i];
        bool join;

        pthread_mutex_lock(&bench->mutex);
        join = bench->ready && !bench->all_claimed && !bench->failed;
        bench->guests += join;
        pthread_mutex_unlock(&bench->mutex);
        if (!join)
            continue;
        helped = sc_bench_work(writer, bench);
        pthread_mutex_lock(&bench->mutex);
        if (--bench->guests == 0)
            pthread_cond_broadcast(&bench->changed);
        pthread_mutex_unlock(&bench->mutex);
    }
    return helped;
}

static void
run_thread(void *arg)
{
    struct run *run = arg;
    struct bench *bench = &run->benches[sc_crew_join(&run->crew)];
    size_t item_no;
    struct writer writer = { .run = run, .worker = sc_worker_take() };

    if (!writer.worker) {
        sc_where_clear(&writer.where);
        sc_failure_note(&run->failure, SC_NO_MEMORY, &writer.where, 0);
        return;
    }
    writer.worker->allow_in_index = run->plan->allow_in_index;
    while (sc_crew_take(&run->crew, &item_no))
        write_item(&writer, bench, item_no);
    if (run->crew.n_members > 1)
        sc_crew_help(&run->crew, help_somebody, &writer);
    sc_worker_put(writer.worker);
    pthread_mutex_lock(&run->mutex);
    sc_stats_add(&run->stats, &writer.stats);
    pthread_mutex_unlock(&run->mutex);
}

/* Room for the positions of the largest unit of the plan. */
static size_t
unit_capacity(const struct sc_write_plan *plan)
{
    uint64_t most = 1;

    for (size_t i = 0; i < plan->n_items; i++) {
        const struct sc_write_item *item = &plan->items[i];

        if (item->encoded)
            most = max_u64(most, item->n_encoded);
        else if (sc_chain_is_shard(item->chain))
            most = max_u64(most, plan->unit_nbytes / item->chain->inner->nbytes);
    }
    return (size_t)min_u64(most, MAX_UNIT_CHUNKS);
}

/* What an item gives to do, for the choice of threads. */
static uint64_t
item_nbytes(const struct sc_write_item *item)
{
    uint64_t nbytes = 0;

    if (item->pick)
        return sc_pick_nbytes(item->pick, item->chain);
    if (!item->encoded)
        return sc_box_nbytes(item->chain, &item->box);
    for (size_t i = 0; i < item->n_encoded; i++)
        nbytes += item->encoded[i].nbytes;
    return nbytes;
}

static void
run_free(struct run *run)
{
    for (unsigned i = 0; i < run->crew.n_members; i++) {
        struct bench *bench = &run->benches[i];

        sc_buffer_free(&bench->entries_memory);
        sc_buffer_free(&bench->index);
        sc_buffer_free(&bench->given_memory);
        sc_buffer_free(&bench->slots.places);
        sc_buffer_free(&bench->slots.bytes);
        sc_touches_free(&bench->touches);
        pthread_mutex_destroy(&bench->mutex);
        pthread_cond_destroy(&bench->changed);
    }
    sc_free(run->benches);
    while (run->free_units) {
        struct unit *next = run->free_units->next;

        sc_unit_free(run->free_units);
        run->free_units = next;
    }
    pthread_mutex_destroy(&run->mutex);
    sc_crew_destroy(&run->crew);
}

enum sc_status
sc_write(struct sc_write_plan *plan, struct sc_where *where)
{
    struct run run = { .plan = plan, .unit_capacity = unit_capacity(plan) };
    uint64_t nbytes = 0;
    unsigned n_threads;

    sc_where_clear(where);
    for (size_t i = 0; i < plan->n_items; i++)
        nbytes += item_nbytes(&plan->items[i]);
    n_threads = sc_threads_for(nbytes, plan->n_items, plan->n_threads ? plan->n_threads : 1);
    run.benches = sc_calloc(n_threads, sizeof *run.benches);
    if (!run.benches)
        return SC_NO_MEMORY;
    sc_failure_init(&run.failure);
    sc_crew_init(&run.crew, plan->n_items, n_threads);
    pthread_mutex_init(&run.mutex, NULL);
    for (unsigned i = 0; i < n_threads; i++) {
        pthread_mutex_init(&run.benches[i].mutex, NULL);
        pthread_cond_init(&run.benches[i].changed, NULL);
    }
    sc_pool_run(n_threads, run_thread, &run);
    if (run.journals)
        sc_staging_leave_later(plan->staging);
    else if (run.staged)
        sc_staging_leave(plan->staging);
    plan->stats = run.stats;
    sc_totals_add(&plan->stats);
    run_free(&run);
    return sc_failure_end(&run.failure, where);
}
