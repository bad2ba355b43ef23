/* sc_cancel.c - check whether a plan has to stop (see sc_cancel.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/sc_cancel.h"

#include <time.h>

bool
sc_cancel_ask(struct sc_cancel *cancel)
{
    struct timespec now;
    int64_t ns;

    clock_gettime(CLOCK_MONOTONIC, &now);
    ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (cancel->due_ns == 0)
        cancel->due_ns = ns + SC_POLL_NS; /* the caller was asked just before the plan began */
    if (ns < cancel->due_ns)
        return false;
    cancel->due_ns = ns + SC_POLL_NS;
    if (cancel->poll(cancel->arg))
        sc_cancel_stop(cancel);
    return atomic_load_explicit(&cancel->stop, memory_order_relaxed);
}
