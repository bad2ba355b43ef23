/* sc_run.h - one run of a plan: its threads, the failure that is reported, its statistics
 *
 * Plans that read and plans that write run in the same way. Each thread takes an item, opens it, and works on it. A thread
 * that finds no item left helps with the items of other threads (base/sc_team.h).
 *
 * Which object has which threads and which work:
 *
 *     pool       sc_pool    of the process: it makes threads, and keeps them asleep between jobs. It knows jobs, and no plan.
 *     run        sc_run     of one call: the failure and the statistics. It owns a team and a depth; the objects and the free
 *                           batches of a reading or writing run are in the structures around it.
 *     depth      sc_depth   of a run: how many threads take part (its job in the pool) and how many of them compute at a time. It
 *                           owns the workers while the run lasts, and counts the bytes that were read and not yet decoded.
 *     team       sc_team    of a run: which items are not taken, and how many are being opened. It has no thread.
 *     object     sc_read_object, sc_write_object   of the thread that has joined the team: the item that it works on now. Only this
 *                           thread, its owner, opens and closes it.
 *     shared     sc_shared  of an object: whether other threads may help, and how many do. Its mutex guards the pieces of work of
 *                           the object that are not taken.
 *     seat       sc_seat    of a thread in a run: the worker that it has, for the whole run in a flat one, and in a deep one only
 *                           while it computes.
 *     worker     sc_worker  contexts of codecs and buffers. A list of free ones belongs to the process; a run takes from it.
 *
 *     pool --> job of the depth --> thread --> seat --> worker
 *                                     |
 *                                     +--> team --> item --> object (its own) --> shared <-- helpers (other threads)
 *
 * Mutexes are taken in this order: object, then run, depth or pool. A thread that waits for one of the others holds no worker in a
 * deep run.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_RUN_H
#define SC_RUN_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sc_team.h"
#include "chain/sc_worker.h"
#include "plan/sc_engine.h"

/* ---- the failure that is reported ---- */

/* The first failure in the order of the plan, so that errors do not depend on timing. */
struct sc_failure {
    _Atomic uint64_t shard; /* SC_NOWHERE: none; read without the lock to skip what comes after */
    struct sc_where where;
    enum sc_status status;
    pthread_mutex_t mutex;
};

void sc_failure_init(struct sc_failure *failure);
void sc_failure_note(struct sc_failure *failure, enum sc_status status, const struct sc_where *where, uint64_t shard);

/* After the last thread has left: return the outcome of the plan. */
enum sc_status sc_failure_end(struct sc_failure *failure, struct sc_where *where);

/* True if there is a failure at or before this inner chunk: its result does not count. */
bool sc_failure_decides(struct sc_failure *failure, uint64_t shard, uint64_t entry);

/* True if there is a failure in an earlier object: the result of this one does not count. */
static inline bool
sc_failure_before(const struct sc_failure *failure, uint64_t shard)
{
    return SC_UNLIKELY(atomic_load_explicit(&failure->shard, memory_order_relaxed) < shard);
}

/* ---- work that is shared ---- */

/* The work on one item, done by its owner and by helpers. Each thread of a run owns one. */
struct sc_shared {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a helper has left; the owner may signal other changes, too */
    bool is_open;           /* helpers may join */
    unsigned n_helpers;
};

void sc_shared_init(struct sc_shared *shared);
void sc_shared_destroy(struct sc_shared *shared);

/* Let helpers join. */
void sc_shared_open(struct sc_shared *shared);

/* Let no further helper join, and wait until all have left. */
void sc_shared_close(struct sc_shared *shared);

/* A helper leaves. It has joined with n_helpers++, under the mutex and while is_open. */
void sc_shared_leave(struct sc_shared *shared);

/* ---- a run ---- */

struct sc_run {
    struct sc_failure failure;
    struct sc_team team;
    pthread_mutex_t mutex;
    struct sc_stats stats; /* under the mutex */
};

void sc_run_begin(struct sc_run *run, size_t n_items, unsigned n_threads);

/* Call this at the end of each thread: add up its statistics. */
void sc_run_add(struct sc_run *run, const struct sc_stats *stats);

/* After the last thread has left: return the outcome and add the statistics to *stats. */
enum sc_status sc_run_end(struct sc_run *run, struct sc_stats *stats, struct sc_where *where);

/* Return the number of threads that is worth its cost for so much decoded data in so many objects: 1 to n_threads. */
unsigned sc_threads_for(uint64_t nbytes, uint64_t n_objects, unsigned n_threads);

#endif
