/* sc_read.c - run a reading plan (see sc_engine.h)
 *
 * Each thread has one open object (struct sc_read_object) and is its owner. The owner plans it alone and marks it ready. From
 * then on any thread may take the next piece of its work, under the object's mutex: a group of inner chunks, or a part to
 * fill. The owner takes pieces too. It closes the object when no piece is left and no helper is at work on it. If all bytes
 * are read before the plan, ranges of them are shared in the same way.
 *
 * SPDX-License-Identifier: MIT */
#include <errno.h>

#include "base/sc_alloc.h"
#include "plan/sc_read_impl.h"

#define MAX_ATTEMPTS 4

/* A piece of work: range `begin` of the file for PIECE_RANGE, tasks[begin..end) for PIECE_CHUNKS, absent[begin..end) for
 * PIECE_ABSENT, part `begin` of `end` of the whole box for PIECE_FILL. */
enum piece_kind { PIECE_NONE, PIECE_RANGE, PIECE_CHUNKS, PIECE_ABSENT, PIECE_FILL };
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

static const struct sc_chain *
inner_of(const struct sc_read_object *object)
{
    return sc_chain_is_shard(chain_of(object)) ? chain_of(object)->inner : chain_of(object);
}

/* Return the end of the next group of tasks: neighbours in the file, about group_nbytes decoded. */
static size_t
group_end(const struct sc_read_object *object, size_t begin)
{
    uint64_t most = object->sizes.group_nbytes / inner_of(object)->nbytes, end_byte;
    size_t i = begin + 1, limit;

    limit = begin < object->n_kept ? object->n_kept : object->n_tasks;
    limit = begin + (size_t)min_u64(most ? most : 1, limit - begin);
    if (object->input.fd < 0)
        return limit;
    end_byte = object->tasks[begin].offset + object->tasks[begin].nbytes;
    for (; i < limit; i++) {
        const struct sc_read_task *t = &object->tasks[i];

        if (t->offset > end_byte && t->offset - end_byte > object->sizes.max_gap_nbytes)
            break;
        end_byte = max_u64(end_byte, t->offset + t->nbytes);
        if (end_byte - object->tasks[begin].offset > 2 * object->sizes.group_nbytes)
            break;
    }
    return i;
}

static void
size_groups(const struct sc_read_run *run, struct sc_read_object *object)
{
    uint64_t nbytes = object->n_tasks * min_u64(inner_of(object)->nbytes, UINT64_MAX >> 32);
    struct sc_read_sizes flat = { run->plan->group_nbytes, run->plan->max_gap_nbytes };

    object->sizes = sc_depth_sizes(&run->depth, object->latency_ns, nbytes, flat);
}

/* Let one more thread join for each group but the one that the owner reads. */
static void
expect_groups(struct sc_reader *reader, const struct sc_read_object *object)
{
    uint64_t n = 0;

    if (SC_LIKELY(object->latency_ns < SC_LATENCY_DEEP_NS) || !object->n_tasks || object->input.whole)
        return;
    for (size_t i = 0; i < object->n_tasks; i = group_end(object, i))
        n++;
    expect_calls(reader->run, object->latency_ns, n - 1);
    sc_seat_end_work(&reader->seat);
}

static struct piece
next_piece(const struct sc_read_plan *plan, struct sc_read_object *object)
{
    struct piece piece = { PIECE_NONE, 0, 0 };

    if (SC_UNLIKELY(object->next_range < object->n_ranges)) {
        piece = (struct piece){ PIECE_RANGE, object->next_range++, object->n_ranges };
    } else if (object->next_task < object->n_tasks) {
        piece = (struct piece){ PIECE_CHUNKS, object->next_task, group_end(object, object->next_task) };
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
    return object->next_range < object->n_ranges || object->next_task < object->n_tasks ||
           object->next_absent < object->n_absent || object->next_part < object->n_parts;
}

static void
do_piece(struct sc_reader *reader, struct sc_read_object *object, struct piece piece)
{
    enum sc_status status = SC_OK;

    sc_seat_end_work(&reader->seat);
    sc_where_clear(&reader->where);
    if (SC_UNLIKELY(piece.kind == PIECE_RANGE)) {
        sc_read_whole_range(reader, object, piece.begin);
        return;
    }
    if (sc_failure_before(&reader->run->base.failure, object->item_no))
        return;
    if (cancelled(reader->run))
        status = SC_CANCELLED;
    else if (piece.kind == PIECE_CHUNKS)
        sc_read_object_decode(reader, object, piece.begin, piece.end);
    else if (!(status = sc_seat_begin_work(&reader->seat)) && piece.kind == PIECE_ABSENT)
        sc_read_object_fill_absent(reader, object, piece.begin, piece.end);
    else if (!status)
        sc_read_object_fill_part(reader, object, piece.begin, piece.end);
    sc_read_end_decoding(reader);
    if (status)
        sc_failure_note(&reader->run->base.failure, status, &reader->where, object->item_no);
}

/* ---- threads ---- */

/* Work on the own object until no piece is left and every helper has left. */
static void
work_off(struct sc_reader *reader, struct sc_read_object *object)
{
    struct piece piece;

    pthread_mutex_lock(&object->shared.mutex);
    while ((piece = next_piece(reader->run->plan, object)).kind != PIECE_NONE) {
        pthread_mutex_unlock(&object->shared.mutex);
        do_piece(reader, object, piece);
        pthread_mutex_lock(&object->shared.mutex);
    }
    pthread_mutex_unlock(&object->shared.mutex);
    sc_shared_close(&object->shared);
}

/* Let other threads help with the object, if there are pieces for them. */
static void
share(const struct sc_read_run *run, struct sc_read_object *object)
{
    if (run->base.team.n_members > 1 && has_pieces(object))
        sc_shared_open(&object->shared);
}

/* If a file without checksums of inner chunks was changed in place while it was read, read all its chunks again. The
 * entries are still right: such chunks are overwritten only by chunks of the same size. */
static void
read_again_if_changed(struct sc_reader *reader, struct sc_read_object *object)
{
    enum sc_status status;

    if (!object->input.is_watched || !object->n_tasks ||
        sc_failure_before(&reader->run->base.failure, object->item_no + 1))
        return;
    status = sc_input_check(&object->input, &reader->where);
    if (status == SC_CHANGED) {
        object->input.is_changing = true;
        object->next_task = object->n_kept = 0;
        status = sort_tasks(object->tasks, object->n_tasks, false, &object->sort_memory);
        sc_where_clear(&reader->where);
    }
    if (status) {
        sc_failure_note(&reader->run->base.failure, status, &reader->where, object->item_no);
    } else if (object->input.is_changing) {
        share(reader->run, object);
        work_off(reader, object);
    }
}

/* Read all bytes of the object with the help of other threads, if it is worth it, and plan it. */
static enum sc_status
plan_object(struct sc_reader *reader, struct sc_read_object *object)
{
    enum sc_status status = sc_read_object_open(reader, object);

    if (!status && SC_UNLIKELY(object->n_ranges)) {
        share(reader->run, object);
        sc_team_call(&reader->run->base.team);
        work_off(reader, object);
        status = sc_read_whole_end(reader, object);
    }
    return status ? status : sc_read_object_plan(reader, object);
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
    status = cancelled(run) ? SC_CANCELLED : plan_object(reader, object);
    if (status) {
        sc_failure_note(&run->base.failure, status, &reader->where, item_no);
        sc_team_announce(&run->base.team);
    } else {
        size_groups(run, object);
        expect_groups(reader, object);
        piece = next_piece(run->plan, object);
        share(run, object);
        sc_team_announce(&run->base.team);
        if (piece.kind != PIECE_NONE)
            do_piece(reader, object, piece);
        work_off(reader, object);
        read_again_if_changed(reader, object);
    }
    sc_read_object_close(run, object);
}

/* Do a piece of the object of another thread. */
static bool
help(void *arg)
{
    struct sc_reader *reader = arg;
    struct sc_read_run *run = reader->run;

    for (unsigned i = 0; i < run->base.team.n_members; i++) {
        struct sc_read_object *object = atomic_load_explicit(&run->objects[i], memory_order_acquire);
        struct piece piece = { PIECE_NONE, 0, 0 };

        if (!object)
            continue;
        pthread_mutex_lock(&object->shared.mutex);
        if (object->shared.is_open)
            piece = next_piece(run->plan, object);
        object->shared.n_helpers += piece.kind != PIECE_NONE;
        pthread_mutex_unlock(&object->shared.mutex);
        if (piece.kind == PIECE_NONE)
            continue;
        do_piece(reader, object, piece);
        sc_shared_leave(&object->shared);
        return true;
    }
    return false;
}

/* Make the object of a thread. NULL: no memory. */
static struct sc_read_object *
make_object(struct sc_read_run *run)
{
    struct sc_read_object *object = sc_calloc(1, sizeof *object);

    if (!object)
        return NULL;
    object->input.fd = -1;
    sc_shared_init(&object->shared);
    atomic_store_explicit(&run->objects[sc_team_join(&run->base.team)], object, memory_order_release);
    return object;
}

static void
free_object(struct sc_read_object *object)
{
    if (!object)
        return;
    sc_read_object_free(object);
    sc_shared_destroy(&object->shared);
    sc_free(object);
}

static void
run_thread(void *arg)
{
    struct sc_read_run *run = arg;
    struct sc_team *team = &run->base.team;
    struct sc_reader reader = { .run = run, .seat.depth = &run->depth };
    struct sc_read_object *object = make_object(run);
    enum sc_status status = object ? SC_OK : SC_NO_MEMORY;
    size_t item_no;

    sc_where_clear(&reader.where);
    if (!status)
        status = sc_seat_take(&reader.seat);
    if (status)
        sc_failure_note(&run->base.failure, status, &reader.where, 0);
    while (!status && sc_team_take(team, &item_no))
        read_item(&reader, object, item_no);
    if (!status && team->n_members > 1)
        sc_team_help(team, help, &reader);
    sc_seat_leave(&reader.seat);
    sc_buffer_free(&reader.sort_memory);
    sc_run_add(&run->base, &reader.stats);
}

/* Copying is about this many times as fast as decoding. */
#define COPY_PER_DECODE 8

/* Estimate the work in decoded bytes, with a limit so that a sum does not overflow. */
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
    unsigned n_threads = plan->n_threads ? plan->n_threads : 1, n_flat;
    uint64_t nbytes = 0;

    sc_where_clear(where);
    for (size_t i = 0; i < plan->n_items; i++)
        nbytes += item_nbytes(&plan->items[i]);
    n_flat = sc_threads_for(nbytes, plan->n_items, n_threads);
    n_flat = n_flat < SC_READ_MAX_THREADS ? n_flat : SC_READ_MAX_THREADS;
    sc_depth_init(&run.depth, &plan->io, n_threads, n_flat, run_thread, &run);
    sc_run_begin(&run.base, plan->n_items, n_flat);
    run.depth.hint = plan->hint;
    run.depth.allow_in_index = plan->allow_in_index;
    if (plan->n_items > 1)
        expect_objects(&run, sc_depth_expected(&run.depth, &plan->items[0].source));
    sc_depth_run(&run.depth);
    for (unsigned i = 0; i < run.base.team.next_member; i++) /* those that have joined */
        free_object(atomic_load_explicit(&run.objects[i], memory_order_relaxed));
    plan->peak_nbytes = max_u64(plan->peak_nbytes, run.depth.peak_nbytes);
    sc_depth_destroy(&run.depth);
    return sc_run_end(&run.base, &plan->stats, where);
}

enum sc_status
sc_read(struct sc_read_plan *plan, struct sc_where *where)
{
    struct sc_where stale = { .shard = SC_NOWHERE };
    enum sc_status status = SC_OK;

    plan->stats = (struct sc_stats){ 0 };
    plan->peak_nbytes = 0;
    for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        status = run_plan(plan, where);
        if (!status && stale.shard < plan->n_items && plan->items[stale.shard].missing) { /* it existed before */
            *where = stale;
            status = SC_IO;
        }
        if (status != SC_IO || where->sys_errno != ESTALE)
            break;
        stale = *where;
        if (stale.shard < plan->n_items && plan->items[stale.shard].source.path)
            sc_file_look_again(plan->items[stale.shard].source.path);
        if (plan->cache)
            sc_cache_drop_files(plan->cache);
    }
    sc_totals_add(&plan->stats);
    return status;
}
