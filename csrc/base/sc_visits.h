/* sc_visits.h - whether a thread is at this moment among data that others may free
 *
 * A thread that takes no lock begins a visit, follows pointers, and ends the visit. A thread that has unlinked memory frees it only when
 * no visit goes on: a visit that begins later cannot find this memory. Visits are counted in several lines of the processor's cache, so
 * that threads do not wait for each other.
 * SPDX-License-Identifier: MIT */
#ifndef SC_VISITS_H
#define SC_VISITS_H

#include <stdatomic.h>

#include "base/sc_common.h"

#define SC_VISIT_LINES 8u

struct sc_visits {
    struct {
        _Alignas(SC_ALIGNMENT) atomic_uint n;
    } lines[SC_VISIT_LINES];
};

/* Return the counter of this thread, which ends the visit. */
static inline atomic_uint *
sc_visit_begin(struct sc_visits *visits)
{
    static atomic_uint n_threads;
    static _Thread_local unsigned thread; /* 0: has no number yet */
    atomic_uint *line;

    if (!thread)
        thread = atomic_fetch_add(&n_threads, 1) % SC_VISIT_LINES + 1;
    line = &visits->lines[thread - 1].n;
    atomic_fetch_add(line, 1);
    return line;
}

static inline void
sc_visit_end(atomic_uint *line)
{
    atomic_fetch_sub(line, 1);
}

static inline bool
sc_visits_none(struct sc_visits *visits)
{
    unsigned n = 0;

    for (unsigned i = 0; i < SC_VISIT_LINES; i++)
        n |= visits->lines[i].n;
    return !n;
}

#endif
