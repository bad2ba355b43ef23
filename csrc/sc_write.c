/* sc_write.c - run a writing plan (see sc_engine.h)
 *
 * A *bench* is one thread's object in the making. Its inner chunks are encoded in *units* of about unit_nbytes, each into
 * memory of its own, by whichever thread is free; a unit's place in the file is known once all units before it are
 * encoded, so the file has the chosen order however many threads took part:
 *
 *     encoded   [0][1]   [3]         unit 2 is still at work; 3 waits in the window; nobody waits for it
 *     placed    [0][1]               when 2 is done, its thread places and writes 2 and 3
 *
 * The window bounds how far the encoding may run ahead, and so the memory. A thread prefers to begin a file of its own:
 * writes to one file are serialised by the kernel.
 *
 * SPDX-License-Identifier: MIT */
#include "sc_engine.h"

#include <errno.h>
#include <stdlib.h>

#include "sc_file.h"
#include "sc_pool.h"
#include "sc_walk.h"
#include "sc_worker.h"

#define WINDOW 8u
#define MAX_UNIT_CHUNKS 8192u

/* Some inner chunks, encoded one after the other. */
struct unit {
    struct sc_buffer bytes;
    size_t used;
    uint64_t number;
    uint64_t offset; /* in the object, once placed */
    size_t n;
    uint64_t *positions; /* in the index */
    uint64_t *sizes;     /* SC_ABSENT: left out */
    struct unit *next;
};

struct bench {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ready;
    bool failed;
    unsigned guests;

    size_t item_no;
    struct sc_write_item *item;
    struct sc_newfile file;
    int old_fd;
    struct sc_walk walk;
    struct sc_order_iter order;
    size_t unit_chunks;
    bool all_claimed;
    uint64_t n_claimed, n_placed;
    struct unit *window[WINDOW];
    uint64_t at; /* where the next unit goes */
    struct sc_entry *entries;
    struct sc_buffer entries_memory, index, result;
};

struct run {
    struct sc_write_plan *plan;
    struct sc_failure failure;
    atomic_size_t next_bench;
    size_t next_item;
    unsigned n_benches;
    struct bench *benches;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned n_opening;
    uint64_t n_announced;
    struct unit *free_units;
    size_t unit_capacity; /* positions that every unit has room for */
    struct sc_stats stats;
};

struct writer {
    struct run *run;
    struct sc_worker *worker;
    struct sc_stats stats;
    struct sc_where where;
};

static bool
is_shard(const struct sc_chain *chain)
{
    return chain->inner && !chain->n_ops;
}

static bool
stopped(const struct run *run, const struct bench *bench)
{
    return sc_failure_before(&run->failure, bench->item_no) ||
           (run->plan->cancel && atomic_load_explicit(run->plan->cancel, memory_order_relaxed));
}

/* ---- units ---- */

static void
unit_free(struct unit *unit)
{
    sc_buffer_free(&unit->bytes);
    free(unit->positions);
    free(unit->sizes);
    free(unit);
}

static struct unit *
unit_take(struct run *run)
{
    struct unit *unit;

    pthread_mutex_lock(&run->mutex);
    unit = run->free_units;
    if (unit)
        run->free_units = unit->next;
    pthread_mutex_unlock(&run->mutex);
    if (unit)
        return unit;
    unit = calloc(1, sizeof *unit);
    if (!unit)
        return NULL;
    unit->positions = malloc(run->unit_capacity * sizeof *unit->positions);
    unit->sizes = malloc(run->unit_capacity * sizeof *unit->sizes);
    if (!unit->positions || !unit->sizes) {
        unit_free(unit);
        return NULL;
    }
    return unit;
}

static void
unit_put(struct run *run, struct unit *unit)
{
    pthread_mutex_lock(&run->mutex);
    unit->next = run->free_units;
    run->free_units = unit;
    pthread_mutex_unlock(&run->mutex);
}

/* ---- one chunk ---- */

static void
c_strides(const struct sc_chain *chain, int64_t *strides)
{
    int64_t stride = (int64_t)chain->itemsize;

    for (int a = chain->ndim - 1; a >= 0; a--) {
        strides[a] = stride;
        stride *= (int64_t)chain->shape[a];
    }
}

static void
whole_box(const struct sc_chain *chain, struct sc_box *box)
{
    for (int a = 0; a < chain->ndim; a++) {
        box->start[a] = 0;
        box->count[a] = chain->shape[a];
        box->step[a] = 1;
    }
}

/* Lay the given part over what the chunk held before (or the fill value): worker->merge has the new chunk in C order. */
static enum sc_status
merge_chunk(struct writer *writer, const struct sc_chain *chain, unsigned level, const uint8_t *old, uint64_t old_nbytes,
            const struct sc_box *part, const uint8_t *src, const int64_t *src_strides)
{
    struct sc_buffer *merge = &writer->worker->merge;
    int64_t strides[SC_MAX_NDIM], part_strides[SC_MAX_NDIM], first = 0;
    enum sc_status status = sc_buffer_reserve(merge, (size_t)chain->nbytes);
    struct sc_box whole;
    struct sc_copy copy;

    if (status)
        return status;
    c_strides(chain, strides);
    whole_box(chain, &whole);
    if (old)
        status = sc_chain_decode(chain, writer->worker, level, old, (size_t)old_nbytes, &whole, merge->data, strides,
                                 &writer->where);
    else
        sc_chain_fill(chain, whole.count, merge->data, strides);
    if (status)
        return status;
    for (int a = 0; a < chain->ndim; a++) {
        first += (int64_t)part->start[a] * strides[a];
        part_strides[a] = strides[a] * part->step[a];
    }
    sc_copy_prepare(&copy, chain->ndim, part->count, part_strides, src_strides, chain->itemsize, NULL);
    sc_copy_run(&copy, merge->data + first, src);
    return SC_OK;
}

/* The old encoded bytes of an object's range: in memory, or read into worker->io. */
static enum sc_status
fetch_old(struct writer *writer, const struct bench *bench, uint64_t offset, uint64_t nbytes, const uint8_t **bytes)
{
    enum sc_status status;

    if (bench->old_fd < 0) {
        *bytes = bench->item->old.data + offset;
        return SC_OK;
    }
    status = sc_buffer_reserve(&writer->worker->io, (size_t)nbytes);
    if (status)
        return status;
    *bytes = writer->worker->io.data;
    writer->stats.reads++;
    writer->stats.bytes_read += nbytes;
    return sc_file_read_exactly(bench->old_fd, writer->worker->io.data, (size_t)nbytes, offset, &writer->where);
}

/* Encode a chunk of which `part` is given; where there are old bytes, they supply the rest. Appends to the unit. */
static enum sc_status
encode_chunk(struct writer *writer, struct unit *unit, const struct sc_chain *chain, unsigned level,
             const struct sc_box *part, const uint8_t *src, const int64_t *src_strides, const uint8_t *old,
             uint64_t old_nbytes, uint64_t *nbytes)
{
    size_t bound = sc_chain_bound(chain);
    int64_t strides[SC_MAX_NDIM];
    enum sc_status status;

    if (!bound || bound > PTRDIFF_MAX - unit->used)
        return SC_NO_MEMORY;
    if (!sc_box_is_whole(chain, part->count)) {
        status = merge_chunk(writer, chain, level, old, old_nbytes, part, src, src_strides);
        if (status)
            return status;
        src = writer->worker->merge.data;
        c_strides(chain, strides);
        src_strides = strides;
    }
    status = sc_buffer_grow(&unit->bytes, unit->used, unit->used + bound);
    if (status)
        return status;
    status = sc_chain_encode(chain, writer->worker, level, src, src_strides, &writer->run->plan->rules,
                             unit->bytes.data + unit->used, bound, nbytes, &writer->where);
    if (!status && *nbytes != SC_ABSENT)
        unit->used += (size_t)*nbytes;
    writer->stats.chunks_encoded++;
    return status;
}

static enum sc_status
encode_inner(struct writer *writer, struct bench *bench, struct unit *unit, size_t i)
{
    const struct sc_chain *shard = bench->item->chain;
    const struct sc_entry *old_entries = bench->item->old_entries;
    uint64_t position = unit->positions[i], c[SC_MAX_NDIM], old_nbytes = 0;
    const uint8_t *old = NULL;
    enum sc_status status;
    struct sc_box part;
    int64_t offset;

    sc_walk_coordinates(shard, position, c);
    sc_walk_cut(&bench->walk, shard->inner, c, &part, &offset);
    if (old_entries && !sc_entry_is_absent(old_entries[position]) && !sc_box_is_whole(shard->inner, part.count)) {
        old_nbytes = old_entries[position].nbytes;
        status = sc_chain_check_nbytes(shard->inner, old_nbytes, &writer->where);
        if (!status)
            status = fetch_old(writer, bench, old_entries[position].offset, old_nbytes, &old);
        if (status)
            return status;
    }
    return encode_chunk(writer, unit, shard->inner, 1, &part, bench->item->src + offset, bench->walk.strides, old,
                        old_nbytes, &unit->sizes[i]);
}

static enum sc_status
encode_unit(struct writer *writer, struct bench *bench, struct unit *unit)
{
    unit->used = 0;
    for (size_t i = 0; i < unit->n; i++) {
        enum sc_status status = encode_inner(writer, bench, unit, i);

        if (status) {
            writer->where.entry = unit->positions[i];
            return status;
        }
    }
    return SC_OK;
}

/* ---- where bytes go ---- */

static enum sc_status
put_bytes(struct writer *writer, struct bench *bench, const uint8_t *src, size_t n, uint64_t offset)
{
    writer->stats.bytes_written += n;
    if (bench->item->path)
        return sc_newfile_write(&bench->file, src, n, offset, &writer->where);

    if (offset > PTRDIFF_MAX - n)
        return SC_NO_MEMORY;
    if (offset + n > bench->result.capacity) {
        uint64_t want = max_u64(offset + n, bench->result.capacity + bench->result.capacity / 2);
        enum sc_status status = sc_buffer_grow(&bench->result, (size_t)bench->item->result_nbytes, (size_t)want);

        if (status)
            return status;
    }
    memcpy(bench->result.data + offset, src, n);
    bench->item->result_nbytes = max_u64(bench->item->result_nbytes, offset + n);
    return SC_OK;
}

static enum sc_status
carry(struct writer *writer, struct bench *bench)
{
    const struct sc_write_item *item = bench->item;
    enum sc_status status = SC_OK;

    for (size_t i = 0; !status && i < item->n_carries; i++) {
        const struct sc_carry *run = &item->carries[i];

        if (item->path && bench->old_fd >= 0) {
            status = sc_newfile_copy(&bench->file, bench->old_fd, run->from, run->nbytes, run->to, &writer->where);
            writer->stats.bytes_written += run->nbytes;
        } else {
            status = put_bytes(writer, bench, item->old.data + run->from, (size_t)run->nbytes, run->to);
        }
    }
    return status;
}

/* ---- one shard, shared by threads ---- */

/* Under the bench's mutex: the positions of the next unit; n = 0 when none is left. Chunks that a step leaps over are dropped. */
static void
claim(struct bench *bench, struct unit *unit)
{
    const struct sc_chain *shard = bench->item->chain;

    unit->n = 0;
    while (!unit->n && !bench->all_claimed) {
        size_t got = sc_order_next(&bench->order, unit->positions, bench->unit_chunks);

        bench->all_claimed = got == 0;
        for (size_t i = 0; i < got; i++) {
            struct sc_box part;
            int64_t offset;
            uint64_t c[SC_MAX_NDIM];

            if (bench->walk.leaps) {
                sc_walk_coordinates(shard, unit->positions[i], c);
                if (!sc_walk_cut(&bench->walk, shard->inner, c, &part, &offset))
                    continue;
            }
            unit->positions[unit->n++] = unit->positions[i];
        }
    }
    unit->number = bench->n_claimed;
    bench->n_claimed += unit->n > 0;
}

/* Under the bench's mutex: give every unit that can have one its place; the list of them is for the caller to write. */
static struct unit *
place(struct bench *bench)
{
    struct unit *first = NULL, **link = &first, *unit;

    while ((unit = bench->window[bench->n_placed % WINDOW])) {
        uint64_t at = bench->at;

        bench->window[bench->n_placed % WINDOW] = NULL;
        bench->n_placed++;
        unit->offset = at;
        for (size_t i = 0; i < unit->n; i++) {
            struct sc_entry *e = &bench->entries[unit->positions[i]];

            if (unit->sizes[i] == SC_ABSENT) {
                *e = (struct sc_entry){ SC_ABSENT, SC_ABSENT };
                continue;
            }
            *e = (struct sc_entry){ at, unit->sizes[i] };
            at += unit->sizes[i];
        }
        bench->at = at;
        *link = unit;
        unit->next = NULL;
        link = &unit->next;
    }
    return first;
}

static void
note_failure(struct writer *writer, struct bench *bench, enum sc_status status)
{
    sc_failure_note(&writer->run->failure, status, &writer->where, bench->item_no);
    pthread_mutex_lock(&bench->mutex);
    bench->failed = true;
    pthread_cond_broadcast(&bench->changed);
    pthread_mutex_unlock(&bench->mutex);
}

/* Write placed units. A result in memory may move when it grows, so that is done under the mutex. */
static void
write_units(struct writer *writer, struct bench *bench, struct unit *units)
{
    while (units) {
        struct unit *next = units->next;
        bool in_memory = !bench->item->path;
        enum sc_status status = SC_OK;

        if (units->used) {
            if (in_memory)
                pthread_mutex_lock(&bench->mutex);
            status = put_bytes(writer, bench, units->bytes.data, units->used, units->offset);
            if (in_memory)
                pthread_mutex_unlock(&bench->mutex);
        }
        if (status)
            note_failure(writer, bench, status);
        unit_put(writer->run, units);
        units = next;
    }
}

/* Encode one unit of the bench, place and write what can be. False: nothing is left to claim. */
static bool
work_on(struct writer *writer, struct bench *bench)
{
    struct unit *unit = unit_take(writer->run), *placed;
    enum sc_status status = SC_OK;

    sc_where_clear(&writer->where);
    if (!unit) {
        note_failure(writer, bench, SC_NO_MEMORY);
        return false;
    }
    pthread_mutex_lock(&bench->mutex);
    while (!bench->all_claimed && !bench->failed && bench->n_claimed - bench->n_placed >= WINDOW)
        pthread_cond_wait(&bench->changed, &bench->mutex);
    unit->n = 0;
    if (!bench->failed)
        claim(bench, unit);
    pthread_mutex_unlock(&bench->mutex);
    if (!unit->n) {
        unit_put(writer->run, unit);
        return false;
    }

    status = stopped(writer->run, bench) ? SC_CANCELLED : encode_unit(writer, bench, unit);
    if (status) {
        unit->n = unit->used = 0; /* it takes its place all the same, or the others would wait for it */
        note_failure(writer, bench, status);
    }
    pthread_mutex_lock(&bench->mutex);
    bench->window[unit->number % WINDOW] = unit;
    placed = place(bench);
    if (placed)
        pthread_cond_broadcast(&bench->changed);
    pthread_mutex_unlock(&bench->mutex);
    write_units(writer, bench, placed);
    return true;
}

/* ---- one object, from begin to commit ---- */

static enum sc_status
open_old(struct writer *writer, struct bench *bench)
{
    uint64_t nbytes;
    enum sc_status status = SC_OK;

    bench->old_fd = -1;
    if (bench->item->old.path) {
        writer->stats.opens++;
        status = sc_file_open(bench->item->old.path, &bench->old_fd, &nbytes, &writer->where);
        if (!status && !is_shard(bench->item->chain)) {
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

static enum sc_status
begin_shard(struct writer *writer, struct bench *bench)
{
    const struct sc_write_plan *plan = writer->run->plan;
    struct sc_write_item *item = bench->item;
    const struct sc_chain *shard = item->chain;
    uint64_t most = plan->unit_nbytes / shard->inner->nbytes, last[SC_MAX_NDIM] = { 0 };
    enum sc_status status = SC_OK;

    bench->entries = item->entries;
    if (!bench->entries) {
        status = sc_buffer_reserve(&bench->entries_memory, (size_t)shard->index.pairs_nbytes);
        if (status)
            return status;
        bench->entries = (struct sc_entry *)(void *)bench->entries_memory.data;
        memset(bench->entries, 0xff, (size_t)shard->index.pairs_nbytes); /* absent is all ones */
    }
    sc_walk_begin(&bench->walk, shard, &item->box, plan->src_strides);
    for (int a = 0; a < shard->ndim; a++)
        last[a] = bench->walk.end[a] - 1;
    status = sc_order_begin(&bench->order, plan->rules.order, shard->ndim, shard->grid, bench->walk.first, last);
    bench->unit_chunks = (size_t)min_u64(most ? most : 1, writer->run->unit_capacity);
    bench->at = item->data_offset;
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

/* All inner chunks are in place: the index, unless there is nothing to index. */
static enum sc_status
end_shard(struct writer *writer, struct bench *bench)
{
    const struct sc_chain *shard = bench->item->chain;
    enum sc_status status;

    bench->item->empty = !writer->run->plan->rules.keep_empty && all_absent(bench->entries, shard->n_chunks);
    if (bench->item->empty)
        return SC_OK;
    status = sc_buffer_reserve(&bench->index, (size_t)shard->index.nbytes);
    if (status)
        return status;
    sc_index_store(shard, bench->entries, bench->index.data);
    return put_bytes(writer, bench, bench->index.data, (size_t)shard->index.nbytes, shard->index.at_start ? 0 : bench->at);
}

/* An object that is one chunk. */
static enum sc_status
write_whole(struct writer *writer, struct bench *bench)
{
    struct sc_write_item *item = bench->item;
    const uint8_t *old = NULL;
    struct unit *unit = unit_take(writer->run);
    enum sc_status status = unit ? SC_OK : SC_NO_MEMORY;
    uint64_t nbytes = SC_ABSENT, old_nbytes = item->old.nbytes;
    bool has_old = bench->old_fd >= 0 || item->old.data;

    if (!status && has_old && !sc_box_is_whole(item->chain, item->box.count)) {
        status = sc_chain_check_nbytes(item->chain, old_nbytes, &writer->where);
        if (!status)
            status = fetch_old(writer, bench, 0, old_nbytes, &old);
    }
    if (!status) {
        unit->used = 0;
        status = encode_chunk(writer, unit, item->chain, 0, &item->box, item->src, writer->run->plan->src_strides, old,
                              old_nbytes, &nbytes);
    }
    item->empty = !status && nbytes == SC_ABSENT;
    if (!status && !item->empty)
        status = put_bytes(writer, bench, unit->bytes.data, unit->used, 0);
    if (unit)
        unit_put(writer->run, unit);
    return status;
}

static enum sc_status
finish(struct writer *writer, struct bench *bench)
{
    struct sc_write_item *item = bench->item;

    if (!item->path) {
        if (item->empty)
            return SC_OK;
        item->result = bench->result.data;
        bench->result = (struct sc_buffer){ 0 };
        return SC_OK;
    }
    if (item->empty) {
        sc_newfile_abort(&bench->file);
        return sc_file_remove(item->path, writer->run->plan->sync, &writer->where);
    }
    return sc_newfile_commit(&bench->file, writer->run->plan->sync, &writer->where);
}

static void
announce(struct run *run)
{
    pthread_mutex_lock(&run->mutex);
    run->n_opening--;
    run->n_announced++;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->mutex);
}

/* Encode the inner chunks, letting others help; on return every unit is written and every guest gone. */
static void
encode_shared(struct writer *writer, struct bench *bench)
{
    pthread_mutex_lock(&bench->mutex);
    bench->ready = true;
    pthread_mutex_unlock(&bench->mutex);
    announce(writer->run);
    while (work_on(writer, bench))
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
    bench->file = (struct sc_newfile){ .fd = -1 };
    bench->old_fd = -1;
    item->result = NULL;
    item->result_nbytes = 0;
    item->empty = false;
}

static void
write_item(struct writer *writer, struct bench *bench, size_t item_no)
{
    struct run *run = writer->run;
    struct sc_write_item *item = &run->plan->items[item_no];
    bool shared = is_shard(item->chain);
    enum sc_status status;

    bench_reset(bench, item_no, item);
    sc_where_clear(&writer->where);
    status = stopped(run, bench) ? SC_CANCELLED : open_old(writer, bench);
    if (!status && item->path)
        status = sc_newfile_begin(&bench->file, item->path, &writer->where);
    if (!status && shared)
        status = begin_shard(writer, bench);
    if (!status && shared)
        status = carry(writer, bench);
    if (status || !shared)
        announce(run);
    if (!status && shared) {
        encode_shared(writer, bench);
        sc_where_clear(&writer->where);
        status = bench->failed ? SC_CANCELLED : end_shard(writer, bench);
    } else if (!status) {
        status = write_whole(writer, bench);
    }
    if (!status)
        status = finish(writer, bench);
    if (status && !bench->failed)
        sc_failure_note(&run->failure, status, &writer->where, item_no);
    sc_newfile_abort(&bench->file);
    sc_file_close(bench->old_fd);
    if (!item->path)
        sc_buffer_free(&bench->result);
}

/* ---- threads ---- */

static bool
help_somebody(struct writer *writer)
{
    struct run *run = writer->run;
    bool helped = false;

    for (unsigned i = 0; i < run->n_benches && !helped; i++) {
        struct bench *bench = &run->benches[i];
        bool join;

        pthread_mutex_lock(&bench->mutex);
        join = bench->ready && !bench->all_claimed && !bench->failed;
        bench->guests += join;
        pthread_mutex_unlock(&bench->mutex);
        if (!join)
            continue;
        helped = work_on(writer, bench);
        pthread_mutex_lock(&bench->mutex);
        if (--bench->guests == 0)
            pthread_cond_broadcast(&bench->changed);
        pthread_mutex_unlock(&bench->mutex);
    }
    return helped;
}

static void
help(struct writer *writer)
{
    struct run *run = writer->run;

    for (;;) {
        uint64_t announced;
        unsigned opening;

        pthread_mutex_lock(&run->mutex);
        announced = run->n_announced;
        opening = run->n_opening;
        pthread_mutex_unlock(&run->mutex);
        if (help_somebody(writer))
            continue;
        if (!opening)
            return;
        pthread_mutex_lock(&run->mutex);
        while (run->n_announced == announced)
            pthread_cond_wait(&run->changed, &run->mutex);
        pthread_mutex_unlock(&run->mutex);
    }
}

static bool
take_item(struct run *run, size_t *item_no)
{
    bool taken;

    pthread_mutex_lock(&run->mutex);
    taken = run->next_item < run->plan->n_items;
    *item_no = run->next_item;
    run->next_item += taken;
    run->n_opening += taken;
    pthread_mutex_unlock(&run->mutex);
    return taken;
}

static void
run_thread(void *arg)
{
    struct run *run = arg;
    size_t bench_no = atomic_fetch_add(&run->next_bench, 1), item_no;
    struct writer writer = { .run = run, .worker = sc_worker_take() };

    if (!writer.worker) {
        sc_where_clear(&writer.where);
        sc_failure_note(&run->failure, SC_NO_MEMORY, &writer.where, 0);
        return;
    }
    while (take_item(run, &item_no))
        write_item(&writer, &run->benches[bench_no], item_no);
    if (run->n_benches > 1)
        help(&writer);
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

    for (size_t i = 0; i < plan->n_items; i++)
        if (is_shard(plan->items[i].chain))
            most = max_u64(most, plan->unit_nbytes / plan->items[i].chain->inner->nbytes);
    return (size_t)min_u64(most, MAX_UNIT_CHUNKS);
}

static void
run_free(struct run *run)
{
    for (unsigned i = 0; i < run->n_benches; i++) {
        struct bench *bench = &run->benches[i];

        sc_buffer_free(&bench->entries_memory);
        sc_buffer_free(&bench->index);
        pthread_mutex_destroy(&bench->mutex);
        pthread_cond_destroy(&bench->changed);
    }
    free(run->benches);
    while (run->free_units) {
        struct unit *next = run->free_units->next;

        unit_free(run->free_units);
        run->free_units = next;
    }
    pthread_mutex_destroy(&run->mutex);
    pthread_cond_destroy(&run->changed);
}

enum sc_status
sc_write(struct sc_write_plan *plan, struct sc_where *where)
{
    struct run run = { .plan = plan, .unit_capacity = unit_capacity(plan) };
    uint64_t nbytes = 0;

    sc_where_clear(where);
    for (size_t i = 0; i < plan->n_items; i++)
        nbytes += sc_box_nbytes(plan->items[i].chain, &plan->items[i].box);
    run.n_benches = sc_threads_for(nbytes, plan->n_items, plan->n_threads ? plan->n_threads : 1);
    run.benches = calloc(run.n_benches, sizeof *run.benches);
    if (!run.benches)
        return SC_NO_MEMORY;
    sc_failure_init(&run.failure);
    pthread_mutex_init(&run.mutex, NULL);
    pthread_cond_init(&run.changed, NULL);
    for (unsigned i = 0; i < run.n_benches; i++) {
        pthread_mutex_init(&run.benches[i].mutex, NULL);
        pthread_cond_init(&run.benches[i].changed, NULL);
    }
    sc_pool_run(run.n_benches, run_thread, &run);
    plan->stats = run.stats;
    run_free(&run);
    return sc_failure_end(&run.failure, where);
}
