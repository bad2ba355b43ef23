/* sc_team.c - divide the objects of a plan among threads (see sc_team.h)
 * SPDX-License-Identifier: MIT */
#include "base/sc_team.h"

void
sc_team_init(struct sc_team *team, size_t n_items, unsigned n_members)
{
    *team = (struct sc_team){ .n_items = n_items };
    atomic_init(&team->n_members, n_members);
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->changed, NULL);
}

void
sc_team_destroy(struct sc_team *team)
{
    pthread_cond_destroy(&team->changed);
    pthread_mutex_destroy(&team->mutex);
}

unsigned
sc_team_join(struct sc_team *team)
{
    unsigned number;

    pthread_mutex_lock(&team->mutex);
    number = team->next_member++;
    pthread_mutex_unlock(&team->mutex);
    return number;
}

bool
sc_team_take(struct sc_team *team, size_t *item_no)
{
    bool taken;

    pthread_mutex_lock(&team->mutex); /* next_item and n_opening change together */
    taken = team->next_item < team->n_items;
    *item_no = team->next_item;
    team->next_item += taken;
    team->n_opening += taken;
    pthread_mutex_unlock(&team->mutex);
    return taken;
}

size_t
sc_team_left(struct sc_team *team)
{
    size_t n;

    pthread_mutex_lock(&team->mutex);
    n = team->n_items - team->next_item;
    pthread_mutex_unlock(&team->mutex);
    return n;
}

void
sc_team_grow(struct sc_team *team, unsigned n_members)
{
    pthread_mutex_lock(&team->mutex);
    if (n_members > team->n_members)
        team->n_members = n_members;
    pthread_mutex_unlock(&team->mutex);
}

static void
announce(struct sc_team *team, bool is_open)
{
    pthread_mutex_lock(&team->mutex);
    team->n_opening -= is_open;
    team->n_announced++;
    if (team->n_members > 1)
        pthread_cond_broadcast(&team->changed);
    pthread_mutex_unlock(&team->mutex);
}

void
sc_team_announce(struct sc_team *team)
{
    announce(team, true);
}

void
sc_team_call(struct sc_team *team)
{
    announce(team, false);
}

void
sc_team_help(struct sc_team *team, bool (*help)(void *), void *arg)
{
    for (;;) {
        uint64_t announced;
        unsigned opening;

        /* read before help(), so that an object announced meanwhile is not missed */
        pthread_mutex_lock(&team->mutex);
        announced = team->n_announced;
        opening = team->n_opening;
        pthread_mutex_unlock(&team->mutex);
        if (help(arg))
            continue;
        if (!opening)
            return;
        pthread_mutex_lock(&team->mutex);
        while (team->n_announced == announced)
            pthread_cond_wait(&team->changed, &team->mutex);
        pthread_mutex_unlock(&team->mutex);
    }
}
