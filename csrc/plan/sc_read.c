/* sc_read.c - run a reading plan (see sc_engine.h)
 *
 * A *stall* is one thread's open object. Its owner fills it in alone; once it is marked ready, any thread may take the next
 * piece of its work under the stall's mutex: a group of inner chunks, or a part to fill. The owner takes pieces too, and
 * closes the object when none is left and no other thread is inside.
 *
 * SPDX-License-Identifier: MIT */
#include <errno.h>

#include "io/sc_file.h"
#include "base/sc_alloc.h"
#include "base/sc_pool.h"
#include "plan/sc_read_impl.h"

#define MAX_ATTEMPTS 4

/* A piece of work: tasks[begin..end) when chunks, else absent[begin..end), else part `begin` of `end` of the whole box. */
enum piece_kind { PIECE_NONE, PIECE_CHUNKS, PIECE_ABSENT, PIECE_FILL };
struct piece {
    enum piece_kind kind;
    size_t begin, end;
};

static bool
cancelled(const struct run *run)
{
    return sc_cancelled(run->plan->cancel);
}

/* ---- pieces ---- */

/* The next group of tasks: neighbours in the file, about group_nbytes decoded. */
static size_t
group_end(const struct sc_read_plan *plan, const struct stall *stall, size_t begin)
{
    const struct sc_chain *inner = sc_chain_is_shard(chain_of(stall)) ? chain_of(stall)->inner : chain_of(stall);
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
        size_t most = (size_t)(SC_FILL_GROUPS * plan->group_nbytes / chain_of(stall)->inner->nbytes + 1);

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

/* A raw chunk that is wanted whole and lies in the array as it does in the file is read to where it belongs. */
static bool
reads_in_place(const struct stall *stall, const struct sc_chain *chain, const struct sc_box *part,
               const int64_t *strides)
{
    return stall->fd >= 0 && !chain->inner && !chain->n_ops && !chain->swap.n_fields &&
           sc_box_is_whole(chain, part->count) && sc_chain_has_layout(chain, strides);
}

/* Bytes that lie side by side in the object, read when the first of them is decoded. */
struct span {
    uint64_t low, high;
    const uint8_t *bytes;
};

static struct span
span_of(const struct stall *stall, size_t begin, size_t end)
{
    struct span span = { stall->fd < 0 ? 0 : stall->tasks[begin].offset, 0, NULL };

    for (size_t i = begin; i < end; i++)
        span.high = max_u64(span.high, stall->tasks[i].offset + stall->tasks[i].nbytes);
    return span;
}

/* The encoded bytes of a task, read with those of its neighbours. */
static enum sc_status
fetch_task(struct reader *reader, const struct stall *stall, const struct task *t, struct span *span,
           const uint8_t **bytes)
{
    enum sc_status status = SC_OK;

    if (!span->bytes)
        status = sc_stall_fetch(reader, stall, span->low, span->high - span->low, &reader->worker->io, &span->bytes);
    *bytes = span->bytes + (t->offset - span->low);
    return status;
}

/* Was only what is wanted of it read? The size of the chunk has been checked before. */
static bool
is_narrow(const struct sc_chain *chain, const struct task *t)
{
    return !chain->n_ops && !chain->inner && t->nbytes < chain->nbytes;
}

/* A chunk of which one box is wanted, straight to where it belongs. */
static enum sc_status
decode_box(struct reader *reader, struct stall *stall, const struct task *t, struct span *span, bool alone,
           const struct sc_box *part, int64_t offset, const int64_t *strides)
{
    const struct sc_chain *shard = chain_of(stall), *inner = sc_chain_is_shard(shard) ? shard->inner : shard;
    const uint8_t *bytes;
    enum sc_status status;

    if (alone && reads_in_place(stall, inner, part, strides))
        return sc_stall_read(reader, stall, stall->item->dst + offset, t->nbytes, t->offset);
    status = fetch_task(reader, stall, t, span, &bytes);
    if (status)
        return status;
    if (is_narrow(inner, t)) {
        sc_chain_scatter_hull(inner, reader->worker, inner != shard, bytes, part, stall->item->dst + offset, strides);
        return SC_OK;
    }
    return sc_chain_decode(inner, reader->worker, inner != shard, bytes, (size_t)t->nbytes, part,
                           stall->item->dst + offset, strides, &reader->where);
}

/* The elements of a chunk of which only the bytes around what is wanted were read. */
static void
view_narrow(const struct sc_pick_at *at, const uint8_t *bytes, struct sc_view *view)
{
    const struct sc_chain *chunk = at->chunk;
    uint64_t low = 0, high;

    sc_pick_bytes(at, &low, &high);
    view->data = (uint8_t *)(uintptr_t)bytes;
    view->offset = -(int64_t)low;
    view->swap = &chunk->swap;
    memcpy(view->strides, chunk->strides, sizeof view->strides);
}

/* A chunk of which more than one box may be wanted: decoded once, and all that is wanted moved from there. */
static enum sc_status
decode_picked(struct reader *reader, struct stall *stall, const struct task *t, struct span *span, bool alone)
{
    const struct sc_chain *shard = chain_of(stall);
    int64_t strides[SC_MAX_NDIM], offset;
    struct sc_pick_at at;
    struct sc_view view;
    struct sc_box part;
    const uint8_t *bytes;
    enum sc_status status;

    if (sc_chain_is_shard(shard))
        sc_pick_at_entry(&at, stall->item->pick, shard, &stall->touches, t->entry);
    else
        sc_pick_at_object(&at, stall->item->pick, shard);
    if (sc_pick_is_box(&at, &part, strides, &offset))
        return decode_box(reader, stall, t, span, alone, &part, offset, strides);
    status = fetch_task(reader, stall, t, span, &bytes);
    if (!status && is_narrow(at.chunk, t)) {
        view_narrow(&at, bytes, &view);
    } else if (!status) {
        if (sc_chain_has_parts(at.chunk))
            sc_pick_hull(&at, &part);
        status = sc_chain_view(at.chunk, reader->worker, at.chunk != shard, bytes, (size_t)t->nbytes, &part, &view,
                               &reader->where);
    }
    if (!status)
        sc_pick_move(&at, &view, stall->item->dst, false);
    return status;
}

static enum sc_status
decode_task(struct reader *reader, struct stall *stall, const struct task *t, struct span *span, bool alone)
{
    const struct sc_chain *shard = chain_of(stall);
    uint64_t c[SC_MAX_NDIM];
    struct sc_box part;
    int64_t offset;

    reader->stats.chunks_decoded++;
    reader->stats.bytes_used += t->nbytes;
    if (stall->item->pick)
        return decode_picked(reader, stall, t, span, alone);
    if (!sc_chain_is_shard(shard))
        return decode_box(reader, stall, t, span, alone, &stall->item->box, 0, reader->run->plan->dst_strides);
    sc_walk_coordinates(shard, t->entry, c);
    sc_walk_cut(&stall->walk, shard->inner, c, &part, &offset); /* true: it was listed because the box touches it */
    return decode_box(reader, stall, t, span, alone, &part, offset, stall->walk.strides);
}

/* A fault ends the matter for inner chunks behind it, in C order; those before it may be worse. */
static void
decode_group(struct reader *reader, struct stall *stall, size_t begin, size_t end)
{
    struct sc_failure *failure = &reader->run->failure;
    struct span span = span_of(stall, begin, end);

    /* They came together because they are neighbours in the file. In the array, C order is kinder: chunks side by side
     * along the last axis share cache lines there. Without memory for that the order stays as it is. */
    if (end - begin > 1)
        (void)sort_tasks(stall->tasks + begin, end - begin, true, &reader->sort_memory);
    for (size_t i = begin; i < end; i++) {
        const struct task *t = &stall->tasks[i];
        enum sc_status status;

        if (sc_failure_settles(failure, stall->item_no, t->entry))
            continue;
        status = decode_task(reader, stall, t, &span, end - begin == 1);
        if (status) {
            if (sc_chain_is_shard(chain_of(stall)))
                reader->where.entry = t->entry;
            sc_failure_note(failure, status, &reader->where, stall->item_no);
            sc_where_clear(&reader->where);
        }
    }
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
        decode_group(reader, stall, piece.begin, piece.end);
    else if (piece.kind == PIECE_ABSENT)
        sc_stall_fill_absent(reader, stall, piece.begin, piece.end);
    else
        sc_stall_fill_part(reader, stall, piece.begin, piece.end);
    if (status)
        sc_failure_note(&reader->run->failure, status, &reader->where, stall->item_no);
}

/* ---- threads ---- */

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

/* Let others see the stall, if there is anything for them. */
static void
share(const struct run *run, struct stall *stall)
{
    if (run->crew.n_members < 2 || !has_pieces(stall))
        return;
    pthread_mutex_lock(&stall->mutex);
    stall->ready = true;
    pthread_mutex_unlock(&stall->mutex);
}

/* Was a file whose chunks have no checksums changed in place while it was read? Then all of them are read again. Entries stay
 * right: such chunks are overwritten by others of the same size only. */
static void
read_again_if_changed(struct reader *reader, struct stall *stall)
{
    enum sc_status status;

    if (!stall->is_watched || !stall->n_tasks || sc_failure_before(&reader->run->failure, stall->item_no + 1))
        return;
    status = sc_undo_check(stall->item->source.path, stall->fd, &stall->undo, &stall->file.id, &reader->where);
    if (status == SC_CHANGED) {
        stall->is_changing = true;
        stall->next_task = 0;
        status = sort_tasks(stall->tasks, stall->n_tasks, false, &stall->sort_memory);
        sc_where_clear(&reader->where);
    }
    if (status) {
        sc_failure_note(&reader->run->failure, status, &reader->where, stall->item_no);
    } else if (stall->is_changing) {
        share(reader->run, stall);
        work_off(reader, stall);
    }
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
    status = cancelled(run) ? SC_CANCELLED : sc_stall_plan(reader, stall);
    if (status) {
        sc_failure_note(&run->failure, status, &reader->where, item_no);
        sc_crew_announce(&run->crew);
    } else {
        piece = next_piece(run->plan, stall);
        share(run, stall);
        sc_crew_announce(&run->crew);
        if (piece.kind != PIECE_NONE)
            do_piece(reader, stall, piece);
        work_off(reader, stall);
        read_again_if_changed(reader, stall);
    }
    sc_stall_close(reader, stall);
}

/* Take a piece of another thread's stall. */
static bool
help_somebody(void *arg)
{
    struct reader *reader = arg;
    struct run *run = reader->run;

    for (unsigned i = 0; i < run->crew.n_members; i++) {
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

static void
run_thread(void *arg)
{
    struct run *run = arg;
    struct stall *stall = &run->stalls[sc_crew_join(&run->crew)];
    size_t item_no;
    struct reader reader = { .run = run, .worker = sc_worker_take() };

    if (!reader.worker) {
        sc_where_clear(&reader.where);
        sc_failure_note(&run->failure, SC_NO_MEMORY, &reader.where, 0);
        return;
    }
    reader.worker->allow_in_index = run->plan->allow_in_index;
    while (sc_crew_take(&run->crew, &item_no))
        read_item(&reader, stall, item_no);
    if (run->crew.n_members > 1)
        sc_crew_help(&run->crew, help_somebody, &reader);
    sc_buffer_free(&reader.sort_memory);
    sc_worker_put(reader.worker);
    pthread_mutex_lock(&run->mutex);
    sc_stats_add(&run->stats, &reader.stats);
    pthread_mutex_unlock(&run->mutex);
}

static void
stall_free(struct stall *stall)
{
    sc_stall_free_memory(stall);
    pthread_mutex_destroy(&stall->mutex);
    pthread_cond_destroy(&stall->left);
}

/* Copying is so much faster than decoding, about. */
#define COPY_PER_DECODE 8

/* About how much is to be done, in bytes that are decoded; no more than sums of them can hold. */
static uint64_t
item_nbytes(const struct sc_read_item *item)
{
    const struct sc_chain *chain = item->chain, *chunk = sc_chain_is_shard(chain) ? chain->inner : chain;
    uint64_t nbytes;

    if (item->pick) {
        nbytes = sc_pick_nbytes(item->pick, chain);
    } else {
        nbytes = sc_touched_nbytes(chain, &item->box);
        if (!chunk->n_ops && !chunk->inner)
            nbytes = max_u64(nbytes / COPY_PER_DECODE, sc_box_nbytes(chain, &item->box));
    }
    return min_u64(nbytes, (uint64_t)1 << 40);
}

static enum sc_status
run_plan(struct sc_read_plan *plan, struct sc_where *where)
{
    struct run run = { .plan = plan };
    uint64_t nbytes = 0;
    unsigned n_threads;

    sc_where_clear(where);
    for (size_t i = 0; i < plan->n_items; i++)
        nbytes += item_nbytes(&plan->items[i]);
    n_threads = sc_threads_for(nbytes, plan->n_items, plan->n_threads ? plan->n_threads : 1);
    run.stalls = sc_calloc(n_threads, sizeof *run.stalls);
    if (!run.stalls)
        return SC_NO_MEMORY;
    sc_failure_init(&run.failure);
    sc_crew_init(&run.crew, plan->n_items, n_threads);
    pthread_mutex_init(&run.mutex, NULL);
    for (unsigned i = 0; i < n_threads; i++) {
        run.stalls[i].fd = -1;
        pthread_mutex_init(&run.stalls[i].mutex, NULL);
        pthread_cond_init(&run.stalls[i].left, NULL);
    }
    sc_pool_run(n_threads, run_thread, &run);
    for (unsigned i = 0; i < n_threads; i++)
        stall_free(&run.stalls[i]);
    sc_free(run.stalls);
    pthread_mutex_destroy(&run.mutex);
    sc_crew_destroy(&run.crew);
    sc_stats_add(&plan->stats, &run.stats);
    return sc_failure_end(&run.failure, where);
}

enum sc_status
sc_read(struct sc_read_plan *plan, struct sc_where *where)
{
    struct sc_where stale = { .shard = SC_NOWHERE };
    enum sc_status status = SC_OK;

    plan->stats = (struct sc_stats){ 0 };
    for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        status = run_plan(plan, where);
        if (!status && stale.shard < plan->n_items && plan->items[stale.shard].missing) { /* it was there before */
            *where = stale;
            status = SC_IO;
        }
        if (status != SC_IO || where->sys_errno != ESTALE)
            break;
        stale = *where;
        if (plan->cache)
            sc_cache_drop_files(plan->cache);
    }
    sc_totals_add(&plan->stats);
    return status;
}
