/* sc_run.c - one run of a plan (see sc_run.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_run.h"

/* ---- the failure that is reported ---- */

void
sc_failure_init(struct sc_failure *failure)
{
    atomic_init(&failure->shard, SC_NOWHERE);
    failure->status = SC_OK;
    pthread_mutex_init(&failure->mutex, NULL);
}

void
sc_failure_note(struct sc_failure *failure, enum sc_status status, const struct sc_where *where, uint64_t shard)
{
    pthread_mutex_lock(&failure->mutex);
    if (shard < failure->shard || (shard == failure->shard && where->entry < failure->where.entry)) {
        failure->status = status;
        failure->where = *where;
        failure->where.shard = shard;
        atomic_store(&failure->shard, shard);
    }
    pthread_mutex_unlock(&failure->mutex);
}

bool
sc_failure_decides(struct sc_failure *failure, uint64_t shard, uint64_t entry)
{
    bool decides;

    if (SC_LIKELY(atomic_load_explicit(&failure->shard, memory_order_relaxed) > shard))
        return false;
    pthread_mutex_lock(&failure->mutex);
    decides = failure->shard < shard || failure->where.entry <= entry;
    pthread_mutex_unlock(&failure->mutex);
    return decides;
}

enum sc_status
sc_failure_end(struct sc_failure *failure, struct sc_where *where)
{
    pthread_mutex_destroy(&failure->mutex);
    if (failure->status)
        *where = failure->where;
    return failure->status;
}

/* ---- work that is shared ---- */

void
sc_shared_init(struct sc_shared *shared)
{
    shared->is_open = false;
    shared->n_helpers = 0;
    pthread_mutex_init(&shared->mutex, NULL);
    pthread_cond_init(&shared->changed, NULL);
}

void
sc_shared_destroy(struct sc_shared *shared)
{
    pthread_mutex_destroy(&shared->mutex);
    pthread_cond_destroy(&shared->changed);
}

void
sc_shared_open(struct sc_shared *shared)
{
    pthread_mutex_lock(&shared->mutex);
    shared->is_open = true;
    pthread_mutex_unlock(&shared->mutex);
}

void
sc_shared_close(struct sc_shared *shared)
{
    pthread_mutex_lock(&shared->mutex);
    shared->is_open = false;
    while (shared->n_helpers)
        pthread_cond_wait(&shared->changed, &shared->mutex);
    pthread_mutex_unlock(&shared->mutex);
}

void
sc_shared_leave(struct sc_shared *shared)
{
    pthread_mutex_lock(&shared->mutex);
    if (--shared->n_helpers == 0)
        pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->mutex);
}

/* ---- a run ---- */

void
sc_run_begin(struct sc_run *run, size_t n_items, unsigned n_threads)
{
    run->stats = (struct sc_stats){ 0 };
    sc_failure_init(&run->failure);
    sc_team_init(&run->team, n_items, n_threads);
    pthread_mutex_init(&run->mutex, NULL);
}

void
sc_run_add(struct sc_run *run, const struct sc_stats *stats)
{
    pthread_mutex_lock(&run->mutex);
    sc_stats_add(&run->stats, stats);
    pthread_mutex_unlock(&run->mutex);
}

enum sc_status
sc_run_end(struct sc_run *run, struct sc_stats *stats, struct sc_where *where)
{
    sc_stats_add(stats, &run->stats);
    pthread_mutex_destroy(&run->mutex);
    sc_team_destroy(&run->team);
    return sc_failure_end(&run->failure, where);
}

/* Waking a helper costs about as much as decoding this many bytes. */
#define NBYTES_PER_THREAD ((uint64_t)256 << 10)
#define NBYTES_PER_OBJECT ((uint64_t)32 << 10)

unsigned
sc_threads_for(uint64_t nbytes, uint64_t n_objects, unsigned n_threads)
{
    uint64_t work = nbytes + n_objects * NBYTES_PER_OBJECT;
    uint64_t useful = work / NBYTES_PER_THREAD + 1;

    return useful < n_threads ? (unsigned)useful : n_threads;
}
