/* pool.c - the thread pool under many callers at once, for ThreadSanitizer
 *
 * Every job shares out its items by one atomic counter and marks each in plain memory. The pool must order those marks
 * before the caller looks at them; otherwise ThreadSanitizer reports a race, or an item is found undone.
 * SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sc_pool.h"

#define N_CALLERS 6
#define N_JOBS 400
#define N_ITEMS 64

struct items {
    atomic_uint next;
    unsigned done[N_ITEMS]; /* not atomic on purpose */
};

static void
work(void *arg)
{
    struct items *items = arg;
    unsigned i;

    while ((i = atomic_fetch_add_explicit(&items->next, 1, memory_order_relaxed)) < N_ITEMS)
        items->done[i]++;
}

static void *
caller(void *arg)
{
    unsigned n_threads = *(unsigned *)arg;

    for (int job = 0; job < N_JOBS; job++) {
        struct items items = { 0 };

        sc_pool_run(n_threads, work, &items);
        for (unsigned i = 0; i < N_ITEMS; i++) {
            if (items.done[i] != 1) {
                fprintf(stderr, "item %u was done %u times\n", i, items.done[i]);
                exit(1);
            }
        }
    }
    return NULL;
}

static void
many_callers(void)
{
    pthread_t threads[N_CALLERS];
    unsigned n_threads[N_CALLERS] = { 1, 2, 3, 4, 8, 300 };

    for (int i = 0; i < N_CALLERS; i++) {
        if (pthread_create(&threads[i], NULL, caller, &n_threads[i]))
            exit(2);
    }
    for (int i = 0; i < N_CALLERS; i++)
        pthread_join(threads[i], NULL);
}

/* A child has none of the parent's helpers and must get its own. */
static void
forked_child(void)
{
    unsigned n_threads = 4;
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        if (sc_pool_size() != 0)
            _exit(3);
        caller(&n_threads);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status)) {
        fprintf(stderr, "the forked child failed: status %d\n", status);
        exit(1);
    }
}

int
main(void)
{
    if (sc_pool_init())
        return 2;
    many_callers();
    forked_child();
    many_callers();
    printf("pool: %d callers, %d jobs each, twice, and a forked child: helpers %u\n", N_CALLERS, N_JOBS,
           sc_pool_size());
    return 0;
}
