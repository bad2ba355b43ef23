/* sc_read.c - run a reading plan (see sc_engine.h)
 *
 * A *stall* is one thread's open object. Its owner fills it in alone; once it is marked ready, any thread may take the next
 * piece of its work under the stall's mutex: a group of inner chunks, or a part to fill. The owner takes pieces too, and
 * closes the object when none is left and no other thread is inside.
 *
 * SPDX-License-Identifier: MIT */
#include "sc_engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "sc_crc32c.h"
#include "sc_file.h"
#include "sc_pool.h"
#include "sc_walk.h"
#include "sc_worker.h"

/* Indexes above this are not held whole when one small window of them is wanted; blocks of it stay in the cache. */
#define INDEX_BLOCK_NBYTES ((size_t)256 << 10)

/* One inner chunk that is present. */
struct task {
    uint64_t offset, nbytes, entry;
};

/* A piece of work: tasks[begin..end) when chunks, else absent[begin..end), else part `begin` of `end` of the whole box. */
enum piece_kind { PIECE_NONE, PIECE_CHUNKS, PIECE_ABSENT, PIECE_FILL };
struct piece {
    enum piece_kind kind;
    size_t begin, end;
};

struct stall {
    pthread_mutex_t mutex;
    pthread_cond_t left;
    bool ready;
    unsigned guests; /* other threads at work on it */

    size_t item_no;
    struct sc_read_item *item;
    int fd;
    uint64_t nbytes;           /* of the object */
    struct sc_walk walk;
    struct sc_index_extent extent;
    struct sc_buffer index;    /* stored pairs, from word first_word on */
    uint64_t first_word;
    const uint8_t *pairs;

    struct sc_buffer tasks_memory, absent_memory, sort_memory;
    struct task *tasks; /* by offset */
    uint64_t *absent;   /* positions in the index */
    size_t n_tasks, next_task, n_absent, next_absent;
    size_t n_parts, next_part;
};

struct run {
    struct sc_read_plan *plan;
    struct sc_failure failure;
    atomic_size_t next_item, next_stall;
    unsigned n_stalls;
    struct stall *stalls;
    /* threads between taking an item and making its stall ready (or finding that it needs no help) */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned n_opening;
    uint64_t n_announced;
    struct sc_stats stats;
};

/* One thread in one run. */
struct reader {
    struct run *run;
    struct sc_worker *worker;
    struct sc_stats stats;
    struct sc_where where;
};

static bool
cancelled(const struct run *run)
{
    return run->plan->cancel && atomic_load_explicit(run->plan->cancel, memory_order_relaxed);
}

static const struct sc_chain *
chain_of(const struct stall *stall)
{
    return stall->item->chain;
}

/* Is the object read inner chunk by inner chunk? */
static bool
is_shard(const struct sc_chain *chain)
{
    return chain->inner && !chain->n_ops;
}

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

static void
close_object(struct stall *stall)
{
    sc_file_close(stall->fd);
    stall->fd = -1;
}

/* n bytes of the object at `offset`: where they are, or read into `buffer`. The range has been checked against the size. */
static enum sc_status
fetch(struct reader *reader, const struct stall *stall, uint64_t offset, uint64_t n, struct sc_buffer *buffer,
      const uint8_t **bytes)
{
    enum sc_status status;

    if (stall->fd < 0) {
        *bytes = stall->item->source.data + offset;
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
        status = fetch(reader, stall, stall->extent.offset + at, n, block, &bytes);
        if (status)
            break;
        crc = sc_crc32c_extend(crc, bytes, (size_t)n);
        if (at < high && at + n > low) {
            uint64_t from = max_u64(at, low), to = min_u64(at + n, high);

            memcpy(stall->index.data + (from - low), bytes + (from - at), (size_t)(to - from));
        }
    }
    if (!status)
        status = fetch(reader, stall, stall->extent.offset + index->pairs_nbytes, 4, block, &bytes);
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
        return fetch(reader, stall, stall->extent.offset + 8 * first, 8 * (end - first), &stall->index, &stall->pairs);
    }
    stall->first_word = 0;
    status = fetch(reader, stall, stall->extent.offset, index->nbytes, &stall->index, &stall->pairs);
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

/* Stable radix sort by offset, eight bits at a time; digits that all tasks share are skipped. */
static enum sc_status
sort_tasks(struct stall *stall)
{
    size_t n = stall->n_tasks;
    struct task *from = stall->tasks, *to;
    uint64_t any = 0, all = UINT64_MAX;
    bool ascending = true;
    enum sc_status status;

    for (size_t i = 0; i < n; i++) {
        any |= from[i].offset;
        all &= from[i].offset;
        ascending = ascending && (!i || from[i - 1].offset <= from[i].offset);
    }
    if (ascending)
        return SC_OK;
    status = sc_buffer_reserve(&stall->sort_memory, n * sizeof *from);
    if (status)
        return status;
    to = (struct task *)(void *)stall->sort_memory.data;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        size_t starts[256] = { 0 }, sum = 0;
        struct task *swap;

        if (((any ^ all) >> shift & 255) == 0)
            continue;
        for (size_t i = 0; i < n; i++)
            starts[from[i].offset >> shift & 255]++;
        for (size_t d = 0; d < 256; d++) {
            size_t count = starts[d];

            starts[d] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++)
            to[starts[from[i].offset >> shift & 255]++] = from[i];
        swap = from;
        from = to;
        to = swap;
    }
    if (from != stall->tasks) {
        struct sc_buffer memory = stall->tasks_memory;

        stall->tasks_memory = stall->sort_memory;
        stall->sort_memory = memory;
        stall->tasks = from;
    }
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
    return stall->fd >= 0 ? sort_tasks(stall) : SC_OK;
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

/* Open an object and find out what there is to do. */
static enum sc_status
plan_item(struct reader *reader, struct stall *stall)
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
    if (!is_shard(chain_of(stall))) {
        status = sc_chain_check_nbytes(chain_of(stall), stall->nbytes, &reader->where);
        return status ? status : push_task(stall, (struct task){ 0, stall->nbytes, 0 });
    }
    sc_walk_begin(&stall->walk, chain_of(stall), &stall->item->box, reader->run->plan->dst_strides);
    if (stall->item->source.entries)
        return plan_known_chunks(reader, stall);
    status = load_index(reader, stall);
    return status ? status : plan_chunks(reader, stall);
}

/* ---- pieces ---- */

/* The next group of tasks: neighbours in the file, about group_nbytes decoded. */
static size_t
group_end(const struct sc_read_plan *plan, const struct stall *stall, size_t begin)
{
    const struct sc_chain *inner = is_shard(chain_of(stall)) ? chain_of(stall)->inner : chain_of(stall);
    uint64_t most = plan->group_nbytes / inner->nbytes, end_byte;
    size_t i = begin + 1, limit;

    limit = begin + (size_t)min_u64(most ? most : 1, stall->n_tasks - begin);
    if (stall->fd < 0)
        return limit;
    end_byte = stall->tasks[begin].offset + stall->tasks[begin].nbytes;
    for (; i < limit; i++) {
        const struct task *t = &stall->tasks[i];

        if (t->offset > end_byte && t->offset - end_byte > plan->max_gap_nbytes)
            break;
        end_byte = max_u64(end_byte, t->offset + t->nbytes);
        if (end_byte - stall->tasks[begin].offset > 2 * plan->group_nbytes)
            break;
    }
    return i;
}

static struct piece
next_piece(const struct sc_read_plan *plan, struct stall *stall)
{
    struct piece piece = { PIECE_NONE, 0, 0 };

    if (stall->next_task < stall->n_tasks) {
        piece = (struct piece){ PIECE_CHUNKS, stall->next_task, group_end(plan, stall, stall->next_task) };
        stall->next_task = piece.end;
    } else if (stall->next_absent < stall->n_absent) {
        size_t most = (size_t)(plan->group_nbytes / chain_of(stall)->inner->nbytes + 1);

        piece = (struct piece){ PIECE_ABSENT, stall->next_absent, 0 };
        piece.end = most < stall->n_absent - piece.begin ? piece.begin + most : stall->n_absent;
        stall->next_absent = piece.end;
    } else if (stall->next_part < stall->n_parts) {
        piece = (struct piece){ PIECE_FILL, stall->next_part++, stall->n_parts };
    }
    return piece;
}

static bool
has_pieces(const struct stall *stall)
{
    return stall->next_task < stall->n_tasks || stall->next_absent < stall->n_absent ||
           stall->next_part < stall->n_parts;
}

/* Part i of n along the first axis that is longer than 1. */
static void
fill_part(struct reader *reader, const struct stall *stall, size_t i, size_t n)
{
    const struct sc_chain *chain = chain_of(stall);
    const int64_t *strides = reader->run->plan->dst_strides;
    uint64_t count[SC_MAX_NDIM], from, to;
    uint8_t *dst = stall->item->dst;
    int axis = 0;

    memcpy(count, stall->item->box.count, sizeof count);
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

static void
fill_absent(struct reader *reader, const struct stall *stall, size_t begin, size_t end)
{
    const struct sc_chain *shard = chain_of(stall);

    for (size_t i = begin; i < end; i++) {
        uint64_t c[SC_MAX_NDIM];
        struct sc_box part;
        int64_t offset;

        sc_walk_coordinates(shard, stall->absent[i], c);
        if (sc_walk_cut(&stall->walk, shard->inner, c, &part, &offset)) {
            sc_chain_fill(shard->inner, part.count, stall->item->dst + offset, stall->walk.strides);
            reader->stats.chunks_filled++;
        }
    }
}

/* A raw chunk that is wanted whole and lies in the array as it does in the file is read to where it belongs. */
static bool
reads_in_place(const struct stall *stall, const struct sc_chain *chain, const struct sc_box *part,
               const int64_t *strides)
{
    return stall->fd >= 0 && !chain->inner && !chain->n_ops && !chain->swap.n_fields &&
           sc_box_is_whole(chain, part->count) && sc_chain_has_layout(chain, strides);
}

static enum sc_status
decode_group(struct reader *reader, struct stall *stall, size_t begin, size_t end)
{
    const struct sc_chain *shard = chain_of(stall), *inner = is_shard(shard) ? shard->inner : shard;
    bool sharded = inner != shard;
    const int64_t *strides = sharded ? stall->walk.strides : reader->run->plan->dst_strides;
    uint64_t low = stall->tasks[begin].offset, high = 0;
    const uint8_t *bytes = NULL;
    enum sc_status status;

    for (size_t i = begin; i < end; i++)
        high = max_u64(high, stall->tasks[i].offset + stall->tasks[i].nbytes);
    for (size_t i = begin; i < end; i++) {
        const struct task *t = &stall->tasks[i];
        struct sc_box part = stall->item->box;
        int64_t offset = 0;

        if (sharded) {
            uint64_t c[SC_MAX_NDIM];

            sc_walk_coordinates(shard, t->entry, c);
            if (!sc_walk_cut(&stall->walk, inner, c, &part, &offset))
                continue;
        }
        if (!bytes && end - begin == 1 && reads_in_place(stall, inner, &part, strides)) {
            reader->stats.reads++;
            reader->stats.bytes_read += t->nbytes;
            status = sc_file_read_exactly(stall->fd, stall->item->dst + offset, (size_t)t->nbytes, t->offset,
                                          &reader->where);
        } else {
            status = bytes ? SC_OK : fetch(reader, stall, stall->fd < 0 ? 0 : low, high - low, &reader->worker->io, &bytes);
            if (!status)
                status = sc_chain_decode(inner, reader->worker, sharded, bytes + (t->offset - (stall->fd < 0 ? 0 : low)),
                                         (size_t)t->nbytes, &part, stall->item->dst + offset, strides, &reader->where);
        }
        if (status) {
            if (sharded)
                reader->where.entry = t->entry;
            return status;
        }
        reader->stats.chunks_decoded++;
    }
    return SC_OK;
}

static void
do_piece(struct reader *reader, struct stall *stall, struct piece piece)
{
    enum sc_status status = SC_OK;

    if (sc_failure_before(&reader->run->failure, stall->item_no))
        return;
    sc_where_clear(&reader->where);
    if (cancelled(reader->run))
        status = SC_CANCELLED;
    else if (piece.kind == PIECE_CHUNKS)
        status = decode_group(reader, stall, piece.begin, piece.end);
    else if (piece.kind == PIECE_ABSENT)
        fill_absent(reader, stall, piece.begin, piece.end);
    else
        fill_part(reader, stall, piece.begin, piece.end);
    if (status)
        sc_failure_note(&reader->run->failure, status, &reader->where, stall->item_no);
}

/* ---- threads ---- */

static void
announce(struct run *run)
{
    pthread_mutex_lock(&run->mutex);
    run->n_opening--;
    run->n_announced++;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->mutex);
}

/* Work on one's own stall until nothing is left to take and every guest has gone. */
static void
work_off(struct reader *reader, struct stall *stall)
{
    struct piece piece;

    pthread_mutex_lock(&stall->mutex);
    while ((piece = next_piece(reader->run->plan, stall)).kind != PIECE_NONE) {
        pthread_mutex_unlock(&stall->mutex);
        do_piece(reader, stall, piece);
        pthread_mutex_lock(&stall->mutex);
    }
    stall->ready = false;
    while (stall->guests)
        pthread_cond_wait(&stall->left, &stall->mutex);
    pthread_mutex_unlock(&stall->mutex);
}

static void
read_item(struct reader *reader, struct stall *stall, size_t item_no)
{
    struct run *run = reader->run;
    struct piece piece;
    enum sc_status status;

    stall->item_no = item_no;
    stall->item = &run->plan->items[item_no];
    sc_where_clear(&reader->where);
    status = cancelled(run) ? SC_CANCELLED : plan_item(reader, stall);
    if (status) {
        sc_failure_note(&run->failure, status, &reader->where, item_no);
        announce(run);
    } else {
        piece = next_piece(run->plan, stall);
        if (run->n_stalls > 1 && has_pieces(stall)) {
            pthread_mutex_lock(&stall->mutex);
            stall->ready = true;
            pthread_mutex_unlock(&stall->mutex);
        }
        announce(run);
        if (piece.kind != PIECE_NONE)
            do_piece(reader, stall, piece);
        work_off(reader, stall);
    }
    close_object(stall);
}

/* Take a piece of another thread's stall. */
static bool
help_somebody(struct reader *reader)
{
    struct run *run = reader->run;

    for (unsigned i = 0; i < run->n_stalls; i++) {
        struct stall *stall = &run->stalls[i];
        struct piece piece = { PIECE_NONE, 0, 0 };

        pthread_mutex_lock(&stall->mutex);
        if (stall->ready)
            piece = next_piece(run->plan, stall);
        if (piece.kind != PIECE_NONE)
            stall->guests++;
        pthread_mutex_unlock(&stall->mutex);
        if (piece.kind == PIECE_NONE)
            continue;
        do_piece(reader, stall, piece);
        pthread_mutex_lock(&stall->mutex);
        if (--stall->guests == 0)
            pthread_cond_signal(&stall->left);
        pthread_mutex_unlock(&stall->mutex);
        return true;
    }
    return false;
}

/* Help until nobody has anything to share nor is about to. */
static void
help(struct reader *reader)
{
    struct run *run = reader->run;

    for (;;) {
        uint64_t announced;
        unsigned opening;

        pthread_mutex_lock(&run->mutex);
        announced = run->n_announced;
        opening = run->n_opening;
        pthread_mutex_unlock(&run->mutex);
        if (help_somebody(reader))
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

    pthread_mutex_lock(&run->mutex); /* the count of opening threads and the items left change together */
    *item_no = atomic_fetch_add(&run->next_item, 1);
    taken = *item_no < run->plan->n_items;
    run->n_opening += taken;
    pthread_mutex_unlock(&run->mutex);
    return taken;
}

static void
run_thread(void *arg)
{
    struct run *run = arg;
    size_t stall_no = atomic_fetch_add(&run->next_stall, 1), item_no;
    struct reader reader = { .run = run, .worker = sc_worker_take() };

    if (!reader.worker) {
        sc_where_clear(&reader.where);
        sc_failure_note(&run->failure, SC_NO_MEMORY, &reader.where, 0);
        return;
    }
    while (take_item(run, &item_no))
        read_item(&reader, &run->stalls[stall_no], item_no);
    if (run->n_stalls > 1)
        help(&reader);
    sc_worker_put(reader.worker);
    pthread_mutex_lock(&run->mutex);
    sc_stats_add(&run->stats, &reader.stats);
    pthread_mutex_unlock(&run->mutex);
}

static void
stall_free_memory(struct stall *stall)
{
    sc_buffer_free(&stall->index);
    sc_buffer_free(&stall->tasks_memory);
    sc_buffer_free(&stall->absent_memory);
    sc_buffer_free(&stall->sort_memory);
}

static void
stall_free(struct stall *stall)
{
    stall_free_memory(stall);
    pthread_mutex_destroy(&stall->mutex);
    pthread_cond_destroy(&stall->left);
}

enum sc_status
sc_read(struct sc_read_plan *plan, struct sc_where *where)
{
    struct run run = { .plan = plan };
    uint64_t nbytes = 0;

    sc_where_clear(where);
    for (size_t i = 0; i < plan->n_items; i++)
        nbytes += sc_box_nbytes(plan->items[i].chain, &plan->items[i].box);
    run.n_stalls = sc_threads_for(nbytes, plan->n_items, plan->n_threads ? plan->n_threads : 1);
    run.stalls = calloc(run.n_stalls, sizeof *run.stalls);
    if (!run.stalls)
        return SC_NO_MEMORY;
    sc_failure_init(&run.failure);
    pthread_mutex_init(&run.mutex, NULL);
    pthread_cond_init(&run.changed, NULL);
    for (unsigned i = 0; i < run.n_stalls; i++) {
        run.stalls[i].fd = -1;
        pthread_mutex_init(&run.stalls[i].mutex, NULL);
        pthread_cond_init(&run.stalls[i].left, NULL);
    }
    sc_pool_run(run.n_stalls, run_thread, &run);
    for (unsigned i = 0; i < run.n_stalls; i++)
        stall_free(&run.stalls[i]);
    free(run.stalls);
    pthread_cond_destroy(&run.changed);
    pthread_mutex_destroy(&run.mutex);
    plan->stats = run.stats;
    return sc_failure_end(&run.failure, where);
}

enum sc_status
sc_read_index(const struct sc_chain *shard, const struct sc_source *source, bool allow_in_index,
              struct sc_entry *entries, uint64_t *shard_nbytes, struct sc_where *where)
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
            status = fetch(&reader, &stall, extent.offset, shard->index.nbytes, &stall.index, &stored);
        if (!status)
            status = sc_index_verify(&shard->index, stored, &reader.where);
        if (!status) {
            sc_index_load(shard, stored, entries);
            status = sc_index_check(entries, shard->n_chunks, &extent, allow_in_index, &reader.where);
        }
    }
    close_object(&stall);
    sc_buffer_free(&stall.index);
    *where = reader.where;
    return status;
}

enum sc_status
sc_plan_ranges(const struct sc_chain *shard, const struct sc_entry *entries, const struct sc_box *box,
               uint64_t max_gap_nbytes, uint64_t max_nbytes, struct sc_entry *ranges, size_t capacity, size_t *n_ranges)
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

        if (!sc_entry_is_absent(e) && e.nbytes && sc_walk_touches(&stall.walk, shard->inner))
            status = push_task(&stall, (struct task){ e.offset, e.nbytes, entry });
    } while (!status && sc_walk_next(&stall.walk, shard->ndim));
    if (!status)
        status = sort_tasks(&stall);
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
    stall_free_memory(&stall);
    return status;
}
