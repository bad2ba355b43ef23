/* sc_cancel.h - how a plan is stopped
 *
 * A thread that waits for a plan sets `stop`. Threads at work check it between two pieces of work. If the thread of the
 * caller itself works on the plan, there may be no other thread to set it: this thread calls `poll` from time to time,
 * with no lock held.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_CANCEL_H
#define SC_CANCEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sc_common.h"

/* Time between two calls of `poll`. */
#define SC_POLL_NS ((int64_t)50 * 1000 * 1000)

struct sc_cancel {
    atomic_bool stop;
    int (*poll)(void *arg); /* returns whether the plan has to stop; NULL: only `stop` counts */
    void *arg;
    pthread_t caller; /* the only thread that asks */
    int64_t due_ns;
};

/* Call this in the thread that will call `poll`. */
static inline void
sc_cancel_init(struct sc_cancel *cancel, int (*poll)(void *), void *arg)
{
    atomic_init(&cancel->stop, false);
    cancel->poll = poll;
    cancel->arg = arg;
    cancel->caller = pthread_self();
    cancel->due_ns = 0;
}

static inline void
sc_cancel_stop(struct sc_cancel *cancel)
{
    atomic_store_explicit(&cancel->stop, true, memory_order_relaxed);
}

/* Call `poll` if enough time has passed since the last call; return its answer. Only for the thread of the caller. */
bool sc_cancel_ask(struct sc_cancel *cancel);

/* True if the plan has to stop. cancel may be NULL. */
static inline bool
sc_cancelled(struct sc_cancel *cancel)
{
    if (!cancel)
        return false;
    if (atomic_load_explicit(&cancel->stop, memory_order_relaxed))
        return true;
    if (!cancel->poll || !pthread_equal(cancel->caller, pthread_self()))
        return false;
    return sc_cancel_ask(cancel);
}

#endif
