/* sc_team.h - the threads of one call: they divide the objects of a plan, then help each other
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
#include <stdatomic.h>

#include "base/sc_common.h"

struct sc_team {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    size_t n_items, next_item;
    unsigned next_member;
    _Atomic unsigned n_members; /* at most */
    unsigned n_opening;    /* members between take and announce */
    uint64_t n_announced;
};

void sc_team_init(struct sc_team *team, size_t n_items, unsigned n_members);
void sc_team_destroy(struct sc_team *team);

/* Return a number for the calling thread, below n_members. Each thread calls this once. */
unsigned sc_team_join(struct sc_team *team);

/* Return the next object; false: all are taken. Every object that is taken must be announced. */
bool sc_team_take(struct sc_team *team, size_t *item_no);

/* Return the number of objects that no thread has taken. */
size_t sc_team_left(struct sc_team *team);

/* Let up to n_members threads join from now on, if these are more than before. */
void sc_team_grow(struct sc_team *team, unsigned n_members);

/* Announce that the object just taken is open, or needs no help. */
void sc_team_announce(struct sc_team *team);

/* Let others help with the object just taken, which is still being opened. */
void sc_team_call(struct sc_team *team);

/* Call help(arg) until it finds nothing to do and no further object can be announced. */
void sc_team_help(struct sc_team *team, bool (*help)(void *arg), void *arg);

#endif
