/* sc_pool.h - threads that help a caller run one function
 *
 * A *job* is a function that several threads enter at once and that shares out its own work (one atomic counter, one
 * scheduler). The caller always takes part, helpers join when they are free, so a job never waits for a thread: with no
 * helper it still ends. Two callers may run jobs at the same time.
 *
 *     caller      post job -> run it -> close it (no helper may join any more) -> wait for helpers inside
 *     helper      sleep -> join the oldest open job with room -> run -> leave -> sleep
 *
 * Threads are made on first use and stay, asleep. A forked child has none of its parent's threads: the child handler of
 * pthread_atfork() forgets them and new ones are made at the next job.
 * SPDX-License-Identifier: MIT */
#ifndef SC_POOL_H
#define SC_POOL_H

#include "base/sc_status.h"

/* Install the fork handlers. Once, at import. */
enum sc_status sc_pool_init(void);

/* Run fn(arg) in the calling thread and in up to n_threads - 1 helpers; return when all have left it.
 * Blocks. fn must end by itself and may be entered by fewer threads than asked for. Failing to make a thread is no error. */
void sc_pool_run(unsigned n_threads, void (*fn)(void *arg), void *arg);

/* Helpers that exist in this process now. */
unsigned sc_pool_size(void);

#endif
