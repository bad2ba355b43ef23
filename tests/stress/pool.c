/* pool.c - many concurrent callers of the thread pool, for ThreadSanitizer
 *
 * Every job distributes its items with one atomic counter and marks each item in plain memory. The marks must happen
 * before the caller reads them; otherwise ThreadSanitizer reports a race, or an item is found undone.
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

/* A job that asks for readers while it runs. */
struct growing {
    struct sc_pool_job job;
    struct items items;
    atomic_uint n_asked;
};

static void
grow_and_work(void *arg)
{
    struct growing *growing = arg;

    if (atomic_fetch_add(&growing->n_asked, 1) < 3)
        sc_pool_grow(&growing->job, 7);
    work(&growing->items);
}

static void *
growing_caller(void *arg)
{
    unsigned n_threads = *(unsigned *)arg;

    for (int job = 0; job < N_JOBS; job++) {
        struct growing growing = { .job = { .fn = grow_and_work } };

        growing.job.arg = &growing;
        sc_pool_run_job(&growing.job, n_threads);
        for (unsigned i = 0; i < N_ITEMS; i++) {
            if (growing.items.done[i] != 1) {
                fprintf(stderr, "item %u of a growing job was done %u times\n", i, growing.items.done[i]);
                exit(1);
            }
        }
    }
    return NULL;
}

/* Half of the callers run jobs that grow. */
static void
many_callers(void)
{
    pthread_t threads[N_CALLERS];
    unsigned n_threads[N_CALLERS] = { 1, 2, 3, 4, 8, 300 };

    for (int i = 0; i < N_CALLERS; i++) {
        if (pthread_create(&threads[i], NULL, i % 2 ? growing_caller : caller, &n_threads[i]))
            exit(2);
    }
    for (int i = 0; i < N_CALLERS; i++)
        pthread_join(threads[i], NULL);
}

/* A child has none of the parent's helper threads and must start its own. */
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
        growing_caller(&n_threads);
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
