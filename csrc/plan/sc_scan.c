/* sc_scan.c - the indexes of many shards (see sc_scan.h)
 *
 * SPDX-License-Identifier: MIT */
#include "plan/sc_scan.h"

#include "io/sc_latency.h"
#include "plan/sc_depth.h"
#include "plan/sc_run.h"

struct run {
    struct sc_scan *scan;
    struct sc_depth depth;
    struct sc_failure failure;
    atomic_size_t next;
    atomic_bool is_expected; /* the sources were told to `depth` */
};

/* Calls for one shard follow each other, so each shard that is left is one call at a time. */
static void
expect_sources(struct run *run, uint64_t latency_ns)
{
    uint64_t n = run->scan->n_sources, taken = min_u64(atomic_load(&run->next), n);

    if (SC_LIKELY(latency_ns < SC_LATENCY_DEEP_NS))
        return;
    /* later calls count only because the estimate may have risen */
    sc_depth_expect(&run->depth, latency_ns, atomic_exchange(&run->is_expected, true) ? 0 : n - taken);
}

static enum sc_status
scan_one(struct run *run, size_t i, struct sc_buffer *memory, struct sc_where *where)
{
    const struct sc_scan *scan = run->scan;
    size_t n = (size_t)scan->shard->n_chunks;
    uint64_t *sizes = scan->sizes + i * n, shard_nbytes;
    struct sc_entry *entries = (struct sc_entry *)(void *)memory->data;
    struct sc_opened file;
    enum sc_status status;

    sc_where_clear(where);
    if (sc_cancelled(scan->cancel))
        return SC_CANCELLED;
    status = sc_read_index(scan->shard, &scan->sources[i], scan->allow_in_index, NULL, entries, &shard_nbytes, NULL,
                           &file, where);
    if (status)
        return status;
    if (shard_nbytes != SC_ABSENT || scan->n_sources > 1)
        expect_sources(run, sc_depth_learn(&run->depth, &scan->sources[i], &file));
    for (size_t k = 0; k < n; k++)
        sizes[k] = shard_nbytes == SC_ABSENT ? SC_ABSENT : entries[k].nbytes;
    return SC_OK;
}

static void
run_thread(void *arg)
{
    struct run *run = arg;
    struct sc_buffer memory = { 0 };
    struct sc_where where;
    enum sc_status status = sc_buffer_reserve(&memory, (size_t)run->scan->shard->index.nbytes);
    size_t i;

    sc_where_clear(&where);
    if (status)
        sc_failure_note(&run->failure, status, &where, 0);
    while (!status && (i = atomic_fetch_add(&run->next, 1)) < run->scan->n_sources) {
        if (sc_failure_before(&run->failure, i))
            break;
        status = scan_one(run, i, &memory, &where);
        if (status)
            sc_failure_note(&run->failure, status, &where, i);
    }
    sc_buffer_free(&memory);
}

enum sc_status
sc_scan(struct sc_scan *scan, struct sc_where *where)
{
    struct run run = { .scan = scan };
    uint64_t index_nbytes = scan->shard->index.nbytes, nbytes = index_nbytes * scan->n_sources;
    unsigned n_threads = scan->n_threads ? scan->n_threads : 1;

    sc_where_clear(where);
    sc_depth_init(&run.depth, &scan->io, n_threads, sc_threads_for(nbytes, scan->n_sources, n_threads), run_thread,
                  &run);
    sc_depth_bound(&run.depth, scan->shard->index.in_c_order ? index_nbytes : 2 * index_nbytes);
    sc_failure_init(&run.failure);
    atomic_init(&run.next, 0);
    atomic_init(&run.is_expected, false);
    run.depth.hint = scan->hint;
    if (scan->n_sources > 1)
        expect_sources(&run, sc_depth_expected(&run.depth, &scan->sources[0]));
    sc_depth_run(&run.depth);
    sc_depth_destroy(&run.depth);
    return sc_failure_end(&run.failure, where);
}
