/* sc_write_depth.c - many objects at a time, while few threads encode (see sc_depth.h)
 *
 * A new file costs several calls that may wait: lstat(), open(), mkdir(), fsync(), close(), linkat(). They follow each other
 * within one object, so where they wait, more objects are written at a time. A run learns this from the estimate for the
 * file system (io/sc_latency.h), or from the first steps of objects, if each of them takes long.
 *
 * SPDX-License-Identifier: MIT */
#include <sys/stat.h>

#include "base/sc_alloc.h"
#include "io/sc_latency.h"
#include "plan/sc_write_impl.h"

/* From this cost of a call on, several objects at a time are worth a change of threads. Calls that change a local file
 * system cost less, and sometimes as much by chance. */
#define DEEP_NS ((uint64_t)100 * 1000)

/* To begin or to commit a file takes at least so many calls. */
#define CALLS_PER_STEP 3u

/* One step may take long because its thread has lost the processor. */
#define ENOUGH_STEPS 2u

enum sc_status
sc_write_begin_encoding(struct sc_writer *writer)
{
    if (SC_UNLIKELY(!writer->worker)) {
        writer->worker = sc_depth_borrow(&writer->run->depth);
        if (!writer->worker)
            return SC_NO_MEMORY;
        writer->worker->allow_in_index = writer->run->plan->allow_in_index;
    }
    return SC_OK;
}

void
sc_write_end_encoding(struct sc_writer *writer)
{
    if (SC_LIKELY(!sc_depth_is_deep(&writer->run->depth)))
        return;
    if (writer->worker)
        sc_depth_return(&writer->run->depth, writer->worker);
    writer->worker = NULL;
    writer->io = &writer->own_io;
}

static void
expect(struct sc_write_run *run, uint64_t latency_ns, uint64_t n_calls)
{
    sc_team_grow(&run->base.team, run->depth.most);
    sc_depth_expect(&run->depth, latency_ns, n_calls);
}

/* Return the cost of a call on the file system of the staging folder, which is that of the store; 0: unknown. */
static uint64_t
latency_of(const struct sc_write_plan *plan)
{
    char *folder;
    struct stat st;
    bool found;

    if (plan->io.latency_ns != SC_IO_MEASURED)
        return plan->io.latency_ns;
    if (!plan->staging)
        return 0;
    folder = sc_file_folder_of(plan->staging); /* the staging folder itself exists only while it is used */
    found = folder && stat(folder, &st) == 0;
    sc_free(folder);
    return found ? sc_latency_of((uint64_t)st.st_dev) : 0;
}

void
sc_write_expect_plan(struct sc_write_run *run)
{
    uint64_t latency_ns = run->plan->n_items > 1 ? latency_of(run->plan) : 0;

    if (SC_LIKELY(latency_ns < DEEP_NS))
        return;
    atomic_store(&run->is_expected, true);
    expect(run, latency_ns, run->plan->n_items);
}

void
sc_write_expect_objects(struct sc_writer *writer, struct sc_timed_step *step, uint64_t ns)
{
    struct sc_write_run *run = writer->run;
    const struct sc_io_rules *rules = &run->plan->io;
    size_t n_left = sc_team_left(&run->base.team);
    uint64_t least = atomic_load(&step->least_ns), latency_ns;
    unsigned n = atomic_fetch_add(&step->n, 1) + 1;

    while ((!least || ns < least) && !atomic_compare_exchange_weak(&step->least_ns, &least, ns))
        ;
    latency_ns =
        rules->latency_ns == SC_IO_MEASURED ? min_u64(ns, least ? least : ns) / CALLS_PER_STEP : rules->latency_ns;
    if (SC_LIKELY(latency_ns < DEEP_NS) || !n_left || n < ENOUGH_STEPS)
        return;
    if (!atomic_exchange(&run->is_expected, true))
        expect(run, latency_ns, run->base.team.n_members + n_left);
}

enum sc_status
sc_write_expect_reads(struct sc_writer *writer, struct sc_write_object *object, uint64_t n)
{
    const struct sc_io_rules *rules = &writer->run->plan->io;
    uint64_t latency_ns;
    struct sc_file_id id;
    enum sc_status status = sc_file_identify_open(object->old_fd, &id, &writer->where);

    if (status)
        return status;
    latency_ns = sc_depth_latency(rules, &id);
    if (SC_LIKELY(latency_ns < SC_LATENCY_DEEP_NS))
        return SC_OK;
    expect(writer->run, latency_ns, n);
    if (sc_depth_is_deep(&writer->run->depth)) /* a flat run would write each inner chunk by itself */
        object->batch_chunks = 1; /* so that each is read by another thread */
    return SC_OK;
}
