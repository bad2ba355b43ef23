/* sc_pool.h - threads that help a caller run one function
 *
 * A *job* is a function that several threads enter at once and that divides its own work (with an atomic counter or a
 * scheduler). The caller always takes part, and helpers join when they are free. So a job never waits for a thread: it
 * ends even without helpers. Two callers may run jobs at the same time.
 *
 *     caller      post job -> run it -> close it (no helper may join any more) -> wait for helpers inside
 *     helper      sleep -> join the oldest open job with room -> run -> leave -> sleep
 *
 * Threads are made at their first use and then sleep. A forked child has none of the threads of its parent: the child
 * handler of pthread_atfork() forgets them, and the next job makes new ones.
 * SPDX-License-Identifier: MIT */
#ifndef SC_POOL_H
#define SC_POOL_H

#include <pthread.h>

#include "base/sc_status.h"

/* The helpers that a job still wants from one group of threads. */
struct sc_pool_post {
    struct sc_pool_job *job;
    struct sc_pool_post *next;
    unsigned wanted;
};

/* A job that may grow while it runs. Set fn and arg, and everything else to zero. */
struct sc_pool_job {
    void (*fn)(void *arg);
    void *arg;
    bool is_posted;
    bool is_closed; /* the caller has left fn: no thread may join */
    unsigned inside; /* helpers that joined and have not left */
    pthread_cond_t left;
    struct sc_pool_post workers, readers;
};

/* Install the fork handlers. Once, at import. */
enum sc_status sc_pool_init(void);

/* Run fn(arg) in the calling thread and in up to n_threads - 1 helpers; return when all have left it. The call
 * blocks. fn must return by itself: nothing stops it from outside. If a helper cannot be started, fewer threads call fn,
 * and the call still succeeds. */
void sc_pool_run(unsigned n_threads, void (*fn)(void *arg), void *arg);

/* The same for a job that may grow. */
void sc_pool_run_job(struct sc_pool_job *job, unsigned n_threads);

/* Ask for n more threads that call fn. Only a thread inside the job may ask, or the caller before it runs the job. These
 * threads, the *readers*, are for work that mostly waits for reads. They are others than those of sc_pool_run(), so a job
 * that computes does not wait for helpers that wait. All jobs share them, and there are at most SC_POOL_MAX_READERS. */
#define SC_POOL_MAX_READERS 128u
void sc_pool_grow(struct sc_pool_job *job, unsigned n);

/* Start a detached thread. The thread blocks all signals, so Python's own threads get them. Returns false if the system
 * refuses the thread. */
bool sc_thread_begin(void *(*run)(void *arg), void *arg);

/* Return the number of helpers in this process, readers included. */
unsigned sc_pool_size(void);

#endif
