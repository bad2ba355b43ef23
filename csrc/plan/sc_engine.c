/* sc_engine.c - what reading and writing plans share
 * SPDX-License-Identifier: MIT */
#include "plan/sc_engine.h"

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
sc_failure_settles(struct sc_failure *failure, uint64_t shard, uint64_t entry)
{
    bool settled;

    if (SC_LIKELY(atomic_load_explicit(&failure->shard, memory_order_relaxed) > shard))
        return false;
    pthread_mutex_lock(&failure->mutex);
    settled = failure->shard < shard || failure->where.entry <= entry;
    pthread_mutex_unlock(&failure->mutex);
    return settled;
}

enum sc_status
sc_failure_end(struct sc_failure *failure, struct sc_where *where)
{
    pthread_mutex_destroy(&failure->mutex);
    if (failure->status)
        *where = failure->where;
    return failure->status;
}

/* The counters are numbers of one kind, so that they can be added up as an array. */
#define N_COUNTERS (sizeof(struct sc_stats) / sizeof(uint64_t))

static _Atomic uint64_t totals[N_COUNTERS];

void
sc_stats_add(struct sc_stats *total, const struct sc_stats *part)
{
    uint64_t sum[N_COUNTERS], more[N_COUNTERS];

    memcpy(sum, total, sizeof sum);
    memcpy(more, part, sizeof more);
    for (size_t i = 0; i < N_COUNTERS; i++)
        sum[i] += more[i];
    memcpy(total, sum, sizeof sum);
}

void
sc_totals_add(const struct sc_stats *part)
{
    uint64_t more[N_COUNTERS];

    memcpy(more, part, sizeof more);
    for (size_t i = 0; i < N_COUNTERS; i++)
        if (more[i])
            atomic_fetch_add_explicit(&totals[i], more[i], memory_order_relaxed);
}

void
sc_totals_get(struct sc_stats *total)
{
    uint64_t sum[N_COUNTERS];

    for (size_t i = 0; i < N_COUNTERS; i++)
        sum[i] = atomic_load_explicit(&totals[i], memory_order_relaxed);
    memcpy(total, sum, sizeof sum);
}

void
sc_totals_reset(void)
{
    for (size_t i = 0; i < N_COUNTERS; i++)
        atomic_store_explicit(&totals[i], 0, memory_order_relaxed);
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
