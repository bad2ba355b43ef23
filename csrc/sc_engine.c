/* sc_engine.c - what reading and writing plans share
 * SPDX-License-Identifier: MIT */
#include "sc_engine.h"

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

void
sc_stats_add(struct sc_stats *total, const struct sc_stats *part)
{
    total->opens += part->opens;
    total->reads += part->reads;
    total->bytes_read += part->bytes_read;
    total->chunks_decoded += part->chunks_decoded;
    total->chunks_filled += part->chunks_filled;
    total->chunks_encoded += part->chunks_encoded;
    total->bytes_written += part->bytes_written;
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
