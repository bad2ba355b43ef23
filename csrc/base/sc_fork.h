/* sc_fork.h - state under a mutex, in a process that forks
 *
 * A forked child has only the thread that called fork(). If another thread held a mutex at that moment, the child would
 * wait for it for ever, and the memory behind it may be half changed. So each file with such state holds its mutex across
 * the fork, and makes it new in the child.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_FORK_H
#define SC_FORK_H

#include <pthread.h>

#include "base/sc_status.h"

/* Define the handlers that hold the file's `mutex` across fork(). */
#define SC_HOLD_ACROSS_FORK(mutex)    \
    static void before_fork(void)     \
    {                                 \
        pthread_mutex_lock(&(mutex)); \
    }                                 \
    SC_UNLOCK_AFTER_FORK(mutex)

/* The second of the two alone, for a file whose first handler does more. */
#define SC_UNLOCK_AFTER_FORK(mutex)        \
    static void after_fork_in_parent(void) \
    {                                      \
        pthread_mutex_unlock(&(mutex));    \
    }

/* Register the handlers of a file. */
static inline enum sc_status
sc_fork_handlers(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
    return pthread_atfork(before, in_parent, in_child) ? SC_NO_MEMORY : SC_OK;
}

#endif
