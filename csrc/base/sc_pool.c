/* sc_pool.c - threads that help a caller run one function (see sc_pool.h)
 *
 * One mutex guards everything. It is taken a few times per job, never per inner chunk, so it is no place of contention.
 * Jobs live on their callers' stacks and hang in one list while they are open.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/sc_pool.h"

#include <pthread.h>
#include <signal.h>

/* More helpers than this never pay: the work is bound by memory long before. */
#define MAX_HELPERS 255u

struct job {
    void (*fn)(void *);
    void *arg;
    unsigned wanted; /* helpers that may still join */
    unsigned inside; /* helpers that joined and have not left */
    pthread_cond_t left;
    struct job *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER;
static struct job *open_jobs;
static unsigned n_helpers;
static unsigned n_idle;

/* Remove a job from the list when it is still there. Under the mutex. */
static void
close_job(struct job *job)
{
    for (struct job **link = &open_jobs; *link; link = &(*link)->next) {
        if (*link == job) {
            *link = job->next;
            return;
        }
    }
}

static void *
helper(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (;;) {
        struct job *job = open_jobs;

        if (!job) {
            n_idle++;
            pthread_cond_wait(&posted, &mutex);
            n_idle--;
            continue;
        }
        job->inside++;
        if (--job->wanted == 0)
            close_job(job);
        pthread_mutex_unlock(&mutex);
        job->fn(job->arg);
        pthread_mutex_lock(&mutex);
        if (--job->inside == 0)
            pthread_cond_signal(&job->left);
    }
    return NULL;
}

/* Make helpers until n exist. Under the mutex. Signals stay with the threads that Python knows. */
static void
grow(unsigned n)
{
    sigset_t all, old;
    pthread_attr_t attr;

    if (n_helpers >= n)
        return;
    if (pthread_attr_init(&attr))
        return;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (n_helpers < n) {
        pthread_t thread;

        if (pthread_create(&thread, &attr, helper, NULL))
            break; /* a limit of the system: the caller does the work itself */
        n_helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

void
sc_pool_run(unsigned n_threads, void (*fn)(void *), void *arg)
{
    struct job job = { .fn = fn, .arg = arg };
    struct job **tail;

    if (n_threads <= 1) {
        fn(arg);
        return;
    }
    job.wanted = n_threads - 1 < MAX_HELPERS ? n_threads - 1 : MAX_HELPERS;
    pthread_cond_init(&job.left, NULL);

    pthread_mutex_lock(&mutex);
    grow(job.wanted);
    for (tail = &open_jobs; *tail; tail = &(*tail)->next)
        ;
    *tail = &job;
    for (unsigned i = 0; i < job.wanted && i < n_idle; i++)
        pthread_cond_signal(&posted);
    pthread_mutex_unlock(&mutex);

    fn(arg);

    pthread_mutex_lock(&mutex);
    if (job.wanted > 0)
        close_job(&job);
    while (job.inside > 0)
        pthread_cond_wait(&job.left, &mutex);
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&job.left);
}

unsigned
sc_pool_size(void)
{
    unsigned n;

    pthread_mutex_lock(&mutex);
    n = n_helpers;
    pthread_mutex_unlock(&mutex);
    return n;
}

/* fork: hold the mutex across it, so that the child finds consistent memory, then forget threads it does not have. A job
 * that another thread of the parent had open is left behind with that thread. */
static void
before_fork(void)
{
    pthread_mutex_lock(&mutex);
}

static void
after_fork_in_parent(void)
{
    pthread_mutex_unlock(&mutex);
}

static void
after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&posted, NULL);
    open_jobs = NULL;
    n_helpers = n_idle = 0;
}

enum sc_status
sc_pool_init(void)
{
    return pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) ? SC_NO_MEMORY : SC_OK;
}
