/* sc_text_read.c - elements of any length out of many encoded chunks (see sc_text_read.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_text_read.h"

#include "base/sc_alloc.h"
#include "base/sc_pool.h"
#include "plan/sc_run.h"

/* ---- from one chunk to the places of its elements */

/* Strides of the stored elements by logical axis, in elements; return their number. */
static uint64_t
element_strides(const struct sc_chain *chain, const uint64_t *shape, uint64_t *strides)
{
    uint64_t n = 1;

    for (int i = chain->ndim - 1; i >= 0; i--) {
        strides[chain->perm[i]] = n;
        n *= shape[chain->perm[i]];
    }
    return n;
}

struct walk {
    struct sc_text_sink *sink;
    const struct sc_texts *texts;
    const struct sc_text_box *box;
    const uint64_t *strides; /* of the chunk */
    int ndim;
};

static bool
put_one(const struct walk *walk, uint64_t index, uint8_t *element)
{
    const uint8_t *bytes = walk->texts->bytes;
    uint64_t place = walk->texts->places[index];

    return walk->sink->put(walk->sink, element, bytes + place, sc_vlen_length(bytes, place));
}

/* Put the elements of a box from this axis on; `index` is the number of the first one in the chunk. */
static bool
put_axis(const struct walk *walk, int axis, uint64_t index, uint8_t *element)
{
    const struct sc_text_box *box = walk->box;
    uint64_t by;

    if (axis == walk->ndim)
        return put_one(walk, index, element);
    by = walk->strides[axis] * (uint64_t)box->part.step[axis];
    for (uint64_t k = 0; k < box->part.count[axis]; k++) {
        bool done = axis + 1 == walk->ndim ? put_one(walk, index, element) : put_axis(walk, axis + 1, index, element);

        if (!done)
            return false;
        index += by;
        element += box->strides[axis];
    }
    return true;
}

static bool
put_box(struct walk *walk)
{
    const struct sc_text_box *box = walk->box;
    uint64_t first = 0;
    bool done;

    for (int a = 0; a < walk->ndim; a++)
        first += box->part.start[a] * walk->strides[a];
    walk->sink->begin(walk->sink, box->owner);
    done = put_axis(walk, 0, first, box->first);
    walk->sink->end(walk->sink);
    return done;
}

/* ---- the run */

struct run {
    const struct sc_text_plan *plan;
    struct sc_failure failure;
    atomic_size_t next;
    pthread_mutex_t sink;
};

static enum sc_status
read_chunk(struct run *run, size_t i, struct sc_worker *worker, struct sc_where *where)
{
    const struct sc_text_plan *plan = run->plan;
    const struct sc_text_chunk *chunk = &plan->chunks[i];
    uint64_t strides[SC_MAX_NDIM], n = element_strides(plan->chain, chunk->shape, strides);
    struct sc_texts texts;
    struct walk walk = { plan->sink, &texts, NULL, strides, plan->chain->ndim };
    enum sc_status status;
    bool done = true;

    sc_where_clear(where);
    if (sc_cancelled(plan->cancel))
        return SC_CANCELLED;
    status = sc_texts_decode(plan->chain, worker, n, plan->is_text, chunk->src, chunk->nbytes, &texts, where);
    if (status)
        return status;
    pthread_mutex_lock(&run->sink);
    for (size_t k = 0; k < chunk->n_boxes && done; k++) {
        walk.box = &chunk->boxes[k];
        done = put_box(&walk);
    }
    pthread_mutex_unlock(&run->sink);
    return done ? SC_OK : SC_NO_MEMORY;
}

static void
run_thread(void *arg)
{
    struct run *run = arg;
    struct sc_worker *worker = sc_worker_take();
    struct sc_where where;
    size_t i;

    sc_where_clear(&where);
    if (!worker) {
        sc_failure_note(&run->failure, SC_NO_MEMORY, &where, 0);
        return;
    }
    while ((i = atomic_fetch_add(&run->next, 1)) < run->plan->n_chunks && !sc_failure_before(&run->failure, i)) {
        enum sc_status status = read_chunk(run, i, worker, &where);

        if (status)
            sc_failure_note(&run->failure, status, &where, i);
    }
    sc_worker_put(worker);
}

enum sc_status
sc_text_read(const struct sc_text_plan *plan, struct sc_where *where)
{
    struct run run = { .plan = plan };
    uint64_t strides[SC_MAX_NDIM], n_items = 0;
    unsigned n_threads = plan->n_threads ? plan->n_threads : 1;

    sc_where_clear(where);
    for (size_t i = 0; i < plan->n_chunks; i++)
        n_items += element_strides(plan->chain, plan->chunks[i].shape, strides);
    sc_failure_init(&run.failure);
    atomic_init(&run.next, 0);
    pthread_mutex_init(&run.sink, NULL);
    n_threads = sc_threads_for(32 * n_items, 0, n_threads); /* an element costs as much as some bytes */
    sc_pool_run((unsigned)min_u64(n_threads, plan->n_chunks), run_thread, &run);
    pthread_mutex_destroy(&run.sink);
    return sc_failure_end(&run.failure, where);
}

/* ---- elements as addresses and sizes */

struct sc_text_block {
    struct sc_text_block *before;
    uint8_t data[];
};

#define FIRST_BLOCK_NBYTES ((size_t)64 << 10)
#define LAST_BLOCK_NBYTES ((size_t)4 << 20)

static void
arena_nothing(struct sc_text_sink *sink, void *owner)
{
    (void)sink;
    (void)owner;
}

static void
arena_end(struct sc_text_sink *sink)
{
    (void)sink;
}

static bool
arena_extend(struct sc_text_arena *arena, size_t nbytes)
{
    struct sc_text_block *block;

    if (arena->block_nbytes < LAST_BLOCK_NBYTES)
        arena->block_nbytes = arena->block_nbytes ? 2 * arena->block_nbytes : FIRST_BLOCK_NBYTES;
    if (nbytes < arena->block_nbytes)
        nbytes = arena->block_nbytes;
    block = sc_malloc(sizeof *block + nbytes);
    if (!block)
        return false;
    block->before = arena->blocks;
    arena->blocks = block;
    arena->next = block->data;
    arena->n_free = nbytes;
    return true;
}

static bool
arena_put(struct sc_text_sink *sink, void *element, const uint8_t *bytes, size_t nbytes)
{
    struct sc_text_arena *arena = (struct sc_text_arena *)(void *)sink;
    struct sc_text_place place = { 0, nbytes };

    if (nbytes > arena->n_free && !arena_extend(arena, nbytes))
        return false;
    if (nbytes)
        memcpy(arena->next, bytes, nbytes);
    place.address = (uint64_t)(uintptr_t)arena->next;
    memcpy(element, &place, sizeof place);
    if (nbytes)
        arena->next += nbytes;
    arena->n_free -= nbytes;
    return true;
}

void
sc_text_arena_begin(struct sc_text_arena *arena)
{
    memset(arena, 0, sizeof *arena);
    arena->sink = (struct sc_text_sink){ arena_nothing, arena_put, arena_end };
}

void
sc_text_arena_free(struct sc_text_arena *arena)
{
    while (arena->blocks) {
        struct sc_text_block *before = arena->blocks->before;

        sc_free(arena->blocks);
        arena->blocks = before;
    }
}

void
sc_text_offsets(const struct sc_text_place *places, size_t n, int64_t *offsets)
{
    int64_t at = 0;

    for (size_t i = 0; i < n; i++) {
        offsets[i] = at;
        at += (int64_t)places[i].nbytes;
    }
    offsets[n] = at;
}

void
sc_text_join(const struct sc_text_place *places, size_t n, uint8_t *dst)
{
    for (size_t i = 0; i < n; i++) {
        if (places[i].nbytes)
            memcpy(dst, (const void *)(uintptr_t)places[i].address, (size_t)places[i].nbytes);
        dst += places[i].nbytes;
    }
}
