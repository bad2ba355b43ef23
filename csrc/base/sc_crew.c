/* sc_crew.c - sharing out the objects of a plan (see sc_crew.h)
 * SPDX-License-Identifier: MIT */
#include "base/sc_crew.h"

void
sc_crew_init(struct sc_crew *crew, size_t n_items, unsigned n_members)
{
    *crew = (struct sc_crew){ .n_items = n_items, .n_members = n_members };
    pthread_mutex_init(&crew->mutex, NULL);
    pthread_cond_init(&crew->changed, NULL);
}

void
sc_crew_destroy(struct sc_crew *crew)
{
    pthread_cond_destroy(&crew->changed);
    pthread_mutex_destroy(&crew->mutex);
}

unsigned
sc_crew_join(struct sc_crew *crew)
{
    unsigned number;

    pthread_mutex_lock(&crew->mutex);
    number = crew->next_member++;
    pthread_mutex_unlock(&crew->mutex);
    return number;
}

bool
sc_crew_take(struct sc_crew *crew, size_t *item_no)
{
    bool taken;

    pthread_mutex_lock(&crew->mutex); /* what is left and who is opening change together */
    taken = crew->next_item < crew->n_items;
    *item_no = crew->next_item;
    crew->next_item += taken;
    crew->n_opening += taken;
    pthread_mutex_unlock(&crew->mutex);
    return taken;
}

void
sc_crew_announce(struct sc_crew *crew)
{
    pthread_mutex_lock(&crew->mutex);
    crew->n_opening--;
    crew->n_announced++;
    if (crew->n_members > 1)
        pthread_cond_broadcast(&crew->changed);
    pthread_mutex_unlock(&crew->mutex);
}

void
sc_crew_help(struct sc_crew *crew, bool (*help_somebody)(void *), void *arg)
{
    for (;;) {
        uint64_t announced;
        unsigned opening;

        /* noted before looking round, so that what turns up meanwhile is not slept through */
        pthread_mutex_lock(&crew->mutex);
        announced = crew->n_announced;
        opening = crew->n_opening;
        pthread_mutex_unlock(&crew->mutex);
        if (help_somebody(arg))
            continue;
        if (!opening)
            return;
        pthread_mutex_lock(&crew->mutex);
        while (crew->n_announced == announced)
            pthread_cond_wait(&crew->changed, &crew->mutex);
        pthread_mutex_unlock(&crew->mutex);
    }
}
