/* sc_worker.c - the free list of workers
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "chain/sc_worker.h"

#include <pthread.h>

#include "base/sc_alloc.h"
#include "base/sc_fork.h"

/* Limits of what a free worker keeps. An inner chunk of a microscopy array is far below; the memory of a giant one
 * is freed. */
#define KEEP_NBYTES ((size_t)8 << 20)
#define KEEP_WORKERS 64

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sc_worker *free_workers;
static unsigned n_free;

static void
trim(struct sc_buffer *buffer)
{
    if (buffer->capacity > KEEP_NBYTES)
        sc_buffer_free(buffer);
}

static void
worker_free(struct sc_worker *worker)
{
    sc_codec_state_free(worker->codecs);
    for (size_t i = 0; i < SC_MAX_DEPTH; i++) {
        sc_buffer_free(&worker->levels[i].stage[0]);
        sc_buffer_free(&worker->levels[i].stage[1]);
        sc_buffer_free(&worker->levels[i].chunk);
        sc_buffer_free(&worker->levels[i].entries);
    }
    sc_buffer_free(&worker->io);
    sc_buffer_free(&worker->merge);
    sc_free(worker);
}

struct sc_worker *
sc_worker_take(void)
{
    struct sc_worker *worker;

    pthread_mutex_lock(&mutex);
    worker = free_workers;
    if (worker) {
        free_workers = worker->next;
        n_free--;
    }
    pthread_mutex_unlock(&mutex);
    if (worker)
        return worker;

    worker = sc_calloc(1, sizeof *worker);
    if (worker && !(worker->codecs = sc_codec_state_new())) {
        sc_free(worker);
        return NULL;
    }
    return worker;
}

void
sc_worker_put(struct sc_worker *worker)
{
    for (size_t i = 0; i < SC_MAX_DEPTH; i++) {
        /* a chain may be freed and another made at its address */
        worker->levels[i].cache.chain = NULL;
        trim(&worker->levels[i].stage[0]);
        trim(&worker->levels[i].stage[1]);
        trim(&worker->levels[i].chunk);
        trim(&worker->levels[i].entries);
    }
    trim(&worker->io);
    trim(&worker->merge);

    pthread_mutex_lock(&mutex);
    if (n_free < KEEP_WORKERS) {
        worker->next = free_workers;
        free_workers = worker;
        n_free++;
        worker = NULL;
    }
    pthread_mutex_unlock(&mutex);
    if (worker)
        worker_free(worker);
}

void
sc_worker_drop_free(void)
{
    struct sc_worker *worker;

    pthread_mutex_lock(&mutex);
    worker = free_workers;
    free_workers = NULL;
    n_free = 0;
    pthread_mutex_unlock(&mutex);
    while (worker) {
        struct sc_worker *next = worker->next;

        worker_free(worker);
        worker = next;
    }
}

SC_HOLD_ACROSS_FORK(mutex)

/* Free workers are plain memory, which the child can use as well. */
static void
after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
}

enum sc_status
sc_worker_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}
