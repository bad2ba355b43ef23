/* sc_read.c - run a reading plan (see sc_engine.h)
 *
 * Each thread has one open object (struct sc_read_object) and is its owner. The owner plans it alone and marks it ready. From
 * then on any thread may take the next piece of its work, under the object's mutex: a group of inner chunks, or a part to
 * fill. The owner takes pieces too. It closes the object when no piece is left and no helper is at work on it.
 *
 * SPDX-License-Identifier: MIT */
#include <errno.h>

#include "base/sc_alloc.h"
#include "base/sc_pool.h"
#include "io/sc_file.h"
#include "plan/sc_read_impl.h"

#define MAX_ATTEMPTS 4

/* A piece of work: tasks[begin..end) when chunks, else absent[begin..end), else part `begin` of `end` of the whole box. */
enum piece_kind { PIECE_NONE, PIECE_CHUNKS, PIECE_ABSENT, PIECE_FILL };
struct piece {
    enum piece_kind kind;
    size_t begin, end;
};

static bool
cancelled(const struct sc_read_run *run)
{
    return sc_cancelled(run->plan->cancel);
}

/* ---- pieces ---- */

/* The next group of tasks: neighbours in the file, about group_nbytes decoded. */
static size_t
group_end(const struct sc_read_plan *plan, const struct sc_read_object *object, size_t begin)
{
    const struct sc_chain *inner = sc_chain_is_shard(chain_of(object)) ? chain_of(object)->inner : chain_of(object);
    uint64_t most = plan->group_nbytes / inner->nbytes, end_byte;
    size_t i = begin + 1, limit;

    limit = begin + (size_t)min_u64(most ? most : 1, object->n_tasks - begin);
    if (object->fd < 0)
        return limit;
    end_byte = object->tasks[begin].offset + object->tasks[begin].nbytes;
    for (; i < limit; i++) {
        const struct sc_read_task *t = &object->tasks[i];

        if (t->offset > end_byte && t->offset - end_byte > plan->max_gap_nbytes)
            break;
        end_byte = max_u64(end_byte, t->offset + t->nbytes);
        if (end_byte - object->tasks[begin].offset > 2 * plan->group_nbytes)
            break;
    }
    return i;
}

static struct piece
next_piece(const struct sc_read_plan *plan, struct sc_read_object *object)
{
    struct piece piece = { PIECE_NONE, 0, 0 };

    if (object->next_task < object->n_tasks) {
        piece = (struct piece){ PIECE_CHUNKS, object->next_task, group_end(plan, object, object->next_task) };
        object->next_task = piece.end;
    } else if (object->next_absent < object->n_absent) {
        size_t most = (size_t)(SC_FILL_GROUPS * plan->group_nbytes / chain_of(object)->inner->nbytes + 1);

        piece = (struct piece){ PIECE_ABSENT, object->next_absent, 0 };
        piece.end = most < object->n_absent - piece.begin ? piece.begin + most : object->n_absent;
        object->next_absent = piece.end;
    } else if (object->next_part < object->n_parts) {
        piece = (struct piece){ PIECE_FILL, object->next_part++, object->n_parts };
    }
    return piece;
}

static bool
has_pieces(const struct sc_read_object *object)
{
    return object->next_task < object->n_tasks || object->next_absent < object->n_absent ||
           object->next_part < object->n_parts;
}

/* True for an uncompressed chunk that is wanted whole and has the same layout in the array: it is read straight into it. */
static bool
reads_in_place(const struct sc_read_object *object, const struct sc_chain *chain, const struct sc_box *part,
               const int64_t *strides)
{
    return object->fd >= 0 && !chain->inner && !chain->n_ops && !chain->swap.n_fields &&
           sc_box_is_whole(chain, part->count) && sc_chain_has_layout(chain, strides);
}

/* Bytes that lie side by side in the object, read when the first of them is decoded. */
struct span {
    uint64_t low, high;
    const uint8_t *bytes;
};

static struct span
span_of(const struct sc_read_object *object, size_t begin, size_t end)
{
    struct span span = { object->fd < 0 ? 0 : object->tasks[begin].offset, 0, NULL };

    for (size_t i = begin; i < end; i++)
        span.high = max_u64(span.high, object->tasks[i].offset + object->tasks[i].nbytes);
    return span;
}

/* The encoded bytes of a task, read with those of its neighbours. */
static enum sc_status
fetch_task(struct sc_reader *reader, const struct sc_read_object *object, const struct sc_read_task *t,
           struct span *span, const uint8_t **bytes)
{
    enum sc_status status = SC_OK;

    if (!span->bytes)
        status =
            sc_read_object_fetch(reader, object, span->low, span->high - span->low, &reader->worker->io, &span->bytes);
    *bytes = span->bytes + (t->offset - span->low);
    return status;
}

/* True if only the wanted bytes of the chunk were read. Its size has been checked before. */
static bool
is_narrow(const struct sc_chain *chain, const struct sc_read_task *t)
{
    return !chain->n_ops && !chain->inner && t->nbytes < chain->nbytes;
}

/* Decode one box of a chunk straight into the array. */
static enum sc_status
decode_box(struct sc_reader *reader, struct sc_read_object *object, const struct sc_read_task *t, struct span *span,
           bool alone, const struct sc_box *part, int64_t offset, const int64_t *strides)
{
    const struct sc_chain *shard = chain_of(object), *inner = sc_chain_is_shard(shard) ? shard->inner : shard;
    const uint8_t *bytes;
    enum sc_status status;

    if (alone && reads_in_place(object, inner, part, strides))
        return sc_read_object_read(reader, object, object->item->dst + offset, t->nbytes, t->offset);
    status = fetch_task(reader, object, t, span, &bytes);
    if (status)
        return status;
    if (is_narrow(inner, t)) {
        sc_chain_scatter_hull(inner, reader->worker, inner != shard, bytes, part, object->item->dst + offset, strides);
        return SC_OK;
    }
    return sc_chain_decode(inner, reader->worker, inner != shard, bytes, (size_t)t->nbytes, part,
                           object->item->dst + offset, strides, &reader->where);
}

/* The elements of a chunk of which only the bytes around what is wanted were read. */
static void
view_narrow(const struct sc_chunk_selection *at, const uint8_t *bytes, struct sc_view *view)
{
    const struct sc_chain *chunk = at->chunk;
    uint64_t low = 0, high;

    sc_selection_bytes(at, &low, &high);
    view->data = (uint8_t *)(uintptr_t)bytes;
    view->offset = -(int64_t)low;
    view->swap = &chunk->swap;
    memcpy(view->strides, chunk->strides, sizeof view->strides);
}

/* Decode a chunk once and move everything selected of it into the array. */
static enum sc_status
decode_selected(struct sc_reader *reader, struct sc_read_object *object, const struct sc_read_task *t,
                struct span *span, bool alone)
{
    const struct sc_chain *shard = chain_of(object);
    int64_t strides[SC_MAX_NDIM], offset;
    struct sc_chunk_selection at;
    struct sc_view view;
    struct sc_box part;
    const uint8_t *bytes;
    enum sc_status status;

    if (sc_chain_is_shard(shard))
        sc_selection_in_entry(&at, object->item->selection, shard, &object->touches, t->entry);
    else
        sc_selection_in_object(&at, object->item->selection, shard);
    if (sc_selection_is_box(&at, &part, strides, &offset))
        return decode_box(reader, object, t, span, alone, &part, offset, strides);
    status = fetch_task(reader, object, t, span, &bytes);
    if (!status && is_narrow(at.chunk, t)) {
        view_narrow(&at, bytes, &view);
    } else if (!status) {
        if (sc_chain_has_parts(at.chunk))
            sc_selection_hull(&at, &part);
        status = sc_chain_view(at.chunk, reader->worker, at.chunk != shard, bytes, (size_t)t->nbytes, &part, &view,
                               &reader->where);
    }
    if (!status)
        sc_selection_move(&at, &view, object->item->dst, false);
    return status;
}

static enum sc_status
decode_task(struct sc_reader *reader, struct sc_read_object *object, const struct sc_read_task *t, struct span *span,
            bool alone)
{
    const struct sc_chain *shard = chain_of(object);
    uint64_t c[SC_MAX_NDIM];
    struct sc_box part;
    int64_t offset;

    reader->stats.chunks_decoded++;
    reader->stats.bytes_used += t->nbytes;
    if (object->item->selection)
        return decode_selected(reader, object, t, span, alone);
    if (!sc_chain_is_shard(shard))
        return decode_box(reader, object, t, span, alone, &object->item->box, 0, reader->run->plan->dst_strides);
    sc_walk_coordinates(shard, t->entry, c);
    sc_walk_cut(&object->walk, shard->inner, c, &part, &offset); /* true: it was listed because the box touches it */
    return decode_box(reader, object, t, span, alone, &part, offset, object->walk.strides);
}

/* After a failure inner chunks behind it, in C order, are skipped. Those before it still count: the lowest failure is reported. */
static void
decode_group(struct sc_reader *reader, struct sc_read_object *object, size_t begin, size_t end)
{
    struct sc_failure *failure = &reader->run->failure;
    struct span span = span_of(object, begin, end);

    /* The group is in file order. C order is faster in the array: chunks side by side along the last axis share cache
     * lines there. Without memory for the sort the order stays as it is. */
    if (end - begin > 1)
        (void)sort_tasks(object->tasks + begin, end - begin, true, &reader->sort_memory);
    for (size_t i = begin; i < end; i++) {
        const struct sc_read_task *t = &object->tasks[i];
        enum sc_status status;

        if (sc_failure_settles(failure, object->item_no, t->entry))
            continue;
        status = decode_task(reader, object, t, &span, end - begin == 1);
        if (status) {
            if (sc_chain_is_shard(chain_of(object)))
                reader->where.entry = t->entry;
            sc_failure_note(failure, status, &reader->where, object->item_no);
            sc_where_clear(&reader->where);
        }
    }
}

static void
do_piece(struct sc_reader *reader, struct sc_read_object *object, struct piece piece)
{
    enum sc_status status = SC_OK;

    if (sc_failure_before(&reader->run->failure, object->item_no))
        return;
    sc_where_clear(&reader->where);
    if (cancelled(reader->run))
        status = SC_CANCELLED;
    else if (piece.kind == PIECE_CHUNKS)
        decode_group(reader, object, piece.begin, piece.end);
    else if (piece.kind == PIECE_ABSENT)
        sc_read_object_fill_absent(reader, object, piece.begin, piece.end);
    else
        sc_read_object_fill_part(reader, object, piece.begin, piece.end);
    if (status)
        sc_failure_note(&reader->run->failure, status, &reader->where, object->item_no);
}

/* ---- threads ---- */

/* Work on the own object until no piece is left and every helper has left. */
static void
work_off(struct sc_reader *reader, struct sc_read_object *object)
{
    struct piece piece;

    pthread_mutex_lock(&object->mutex);
    while ((piece = next_piece(reader->run->plan, object)).kind != PIECE_NONE) {
        pthread_mutex_unlock(&object->mutex);
        do_piece(reader, object, piece);
        pthread_mutex_lock(&object->mutex);
    }
    object->ready = false;
    while (object->helpers)
        pthread_cond_wait(&object->left, &object->mutex);
    pthread_mutex_unlock(&object->mutex);
}

/* Let other threads help with the object, if there are pieces for them. */
static void
share(const struct sc_read_run *run, struct sc_read_object *object)
{
    if (run->team.n_members < 2 || !has_pieces(object))
        return;
    pthread_mutex_lock(&object->mutex);
    object->ready = true;
    pthread_mutex_unlock(&object->mutex);
}

/* Was a file whose chunks have no checksums changed in place while it was read? Then all of them are read again. Entries stay
 * right: such chunks are overwritten by others of the same size only. */
static void
read_again_if_changed(struct sc_reader *reader, struct sc_read_object *object)
{
    enum sc_status status;

    if (!object->is_watched || !object->n_tasks || sc_failure_before(&reader->run->failure, object->item_no + 1))
        return;
    status = sc_undo_check(object->item->source.path, object->fd, &object->undo, &object->file.id, &reader->where);
    if (status == SC_CHANGED) {
        object->is_changing = true;
        object->next_task = 0;
        status = sort_tasks(object->tasks, object->n_tasks, false, &object->sort_memory);
        sc_where_clear(&reader->where);
    }
    if (status) {
        sc_failure_note(&reader->run->failure, status, &reader->where, object->item_no);
    } else if (object->is_changing) {
        share(reader->run, object);
        work_off(reader, object);
    }
}

static void
read_item(struct sc_reader *reader, struct sc_read_object *object, size_t item_no)
{
    struct sc_read_run *run = reader->run;
    struct piece piece;
    enum sc_status status;

    object->item_no = item_no;
    object->item = &run->plan->items[item_no];
    sc_where_clear(&reader->where);
    status = cancelled(run) ? SC_CANCELLED : sc_read_object_plan(reader, object);
    if (status) {
        sc_failure_note(&run->failure, status, &reader->where, item_no);
        sc_team_announce(&run->team);
    } else {
        piece = next_piece(run->plan, object);
        share(run, object);
        sc_team_announce(&run->team);
        if (piece.kind != PIECE_NONE)
            do_piece(reader, object, piece);
        work_off(reader, object);
        read_again_if_changed(reader, object);
    }
    sc_read_object_close(reader, object);
}

/* Take a piece of another thread's object. */
static bool
help(void *arg)
{
    struct sc_reader *reader = arg;
    struct sc_read_run *run = reader->run;

    for (unsigned i = 0; i < run->team.n_members; i++) {
        struct sc_read_object *object = &run->objects[i];
        struct piece piece = { PIECE_NONE, 0, 0 };

        pthread_mutex_lock(&object->mutex);
        if (object->ready)
            piece = next_piece(run->plan, object);
        if (piece.kind != PIECE_NONE)
            object->helpers++;
        pthread_mutex_unlock(&object->mutex);
        if (piece.kind == PIECE_NONE)
            continue;
        do_piece(reader, object, piece);
        pthread_mutex_lock(&object->mutex);
        if (--object->helpers == 0)
            pthread_cond_signal(&object->left);
        pthread_mutex_unlock(&object->mutex);
        return true;
    }
    return false;
}

static void
run_thread(void *arg)
{
    struct sc_read_run *run = arg;
    struct sc_read_object *object = &run->objects[sc_team_join(&run->team)];
    size_t item_no;
    struct sc_reader reader = { .run = run, .worker = sc_worker_take() };

    if (!reader.worker) {
        sc_where_clear(&reader.where);
        sc_failure_note(&run->failure, SC_NO_MEMORY, &reader.where, 0);
        return;
    }
    reader.worker->allow_in_index = run->plan->allow_in_index;
    while (sc_team_take(&run->team, &item_no))
        read_item(&reader, object, item_no);
    if (run->team.n_members > 1)
        sc_team_help(&run->team, help, &reader);
    sc_buffer_free(&reader.sort_memory);
    sc_worker_put(reader.worker);
    pthread_mutex_lock(&run->mutex);
    sc_stats_add(&run->stats, &reader.stats);
    pthread_mutex_unlock(&run->mutex);
}

static void
object_free(struct sc_read_object *object)
{
    sc_read_object_free_memory(object);
    pthread_mutex_destroy(&object->mutex);
    pthread_cond_destroy(&object->left);
}

/* Copying is about this many times faster than decoding. */
#define COPY_PER_DECODE 8

/* Estimate the work, in decoded bytes; bounded, so that a sum of many does not overflow. */
static uint64_t
item_nbytes(const struct sc_read_item *item)
{
    const struct sc_chain *chain = item->chain, *chunk = sc_chain_is_shard(chain) ? chain->inner : chain;
    uint64_t nbytes;

    if (item->selection) {
        nbytes = sc_selection_nbytes(item->selection, chain);
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
    struct sc_read_run run = { .plan = plan };
    uint64_t nbytes = 0;
    unsigned n_threads;

    sc_where_clear(where);
    for (size_t i = 0; i < plan->n_items; i++)
        nbytes += item_nbytes(&plan->items[i]);
    n_threads = sc_threads_for(nbytes, plan->n_items, plan->n_threads ? plan->n_threads : 1);
    run.objects = sc_calloc(n_threads, sizeof *run.objects);
    if (!run.objects)
        return SC_NO_MEMORY;
    sc_failure_init(&run.failure);
    sc_team_init(&run.team, plan->n_items, n_threads);
    pthread_mutex_init(&run.mutex, NULL);
    for (unsigned i = 0; i < n_threads; i++) {
        run.objects[i].fd = -1;
        pthread_mutex_init(&run.objects[i].mutex, NULL);
        pthread_cond_init(&run.objects[i].left, NULL);
    }
    sc_pool_run(n_threads, run_thread, &run);
    for (unsigned i = 0; i < n_threads; i++)
        object_free(&run.objects[i]);
    sc_free(run.objects);
    pthread_mutex_destroy(&run.mutex);
    sc_team_destroy(&run.team);
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
