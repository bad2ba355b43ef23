/* sc_team.h - the threads of one call: they share out the objects of a plan, then help each other
 *
 * A thread takes an object, *opens* it (finds out what there is to do), and announces that. From then on other threads may
 * help. A thread that finds no object left helps with the objects of other threads. It waits while a thread still opens one.
 *
 *     take --> open --> announce --> work ... --> take --> ... nothing left --> help, wait, help --> leave
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_TEAM_H
#define SC_TEAM_H

#include <pthread.h>

#include "base/sc_common.h"

struct sc_team {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    size_t n_items, next_item;
    unsigned n_members, next_member;
    unsigned n_opening;    /* members between take and announce */
    uint64_t n_announced;
};

void sc_team_init(struct sc_team *team, size_t n_items, unsigned n_members);
void sc_team_destroy(struct sc_team *team);

/* A number for the calling thread, below n_members; each thread asks once. */
unsigned sc_team_join(struct sc_team *team);

/* The next object; false when all are taken. Every one taken must be announced. */
bool sc_team_take(struct sc_team *team, size_t *item_no);

/* The object just taken is open, or needs no help. */
void sc_team_announce(struct sc_team *team);

/* Call help(arg) until it finds nothing to do and no object can turn up any more. */
void sc_team_help(struct sc_team *team, bool (*help)(void *arg), void *arg);

#endif
