/* sc_crew.h - how the threads of a plan share out objects, and join in on each other's
 *
 * A thread takes an object, *opens* it (finds out what there is to do), and announces that: from then on others may help.
 * A thread that finds no object left helps whoever has work to share, and waits while somebody is still opening one.
 *
 *     take --> open --> announce --> work ... --> take --> ... nothing left --> help, wait, help --> leave
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_CREW_H
#define SC_CREW_H

#include <pthread.h>

#include "base/sc_common.h"

struct sc_crew {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    size_t n_items, next_item;
    unsigned n_members, next_member;
    unsigned n_opening;    /* members between take and announce */
    uint64_t n_announced;
};

void sc_crew_init(struct sc_crew *crew, size_t n_items, unsigned n_members);
void sc_crew_destroy(struct sc_crew *crew);

/* A number for the calling thread, below n_members; each thread asks once. */
unsigned sc_crew_join(struct sc_crew *crew);

/* The next object; false when all are taken. Every one taken must be announced. */
bool sc_crew_take(struct sc_crew *crew, size_t *item_no);

/* The object just taken is open, or needs nobody's help. */
void sc_crew_announce(struct sc_crew *crew);

/* Call help_somebody(arg) until it finds nothing to do and no object can turn up any more. */
void sc_crew_help(struct sc_crew *crew, bool (*help_somebody)(void *arg), void *arg);

#endif
