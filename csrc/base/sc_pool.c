/* sc_pool.c - threads that help a caller run one function (see sc_pool.h)
 *
 * One mutex protects everything. It is taken a few times per job, never per inner chunk, so threads do not compete for
 * it. Jobs are on the stacks of their callers and in the lists of posts while they are open.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/sc_pool.h"

#include <signal.h>

#include "base/sc_fork.h"

/* More helpers are never useful: memory limits the work long before. */
#define MAX_WORKERS 255u

/* To wake a thread takes some microseconds. So the thread that posts a job wakes a few helpers, and each helper that joins
 * wakes the next one. */
#define MAX_WOKEN 2u

/* Threads of one kind, and the open posts that want them, oldest first. */
struct group {
    pthread_cond_t posted;
    struct sc_pool_post *posts;
    unsigned n_helpers, n_idle, n_inside;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct group workers = { .posted = PTHREAD_COND_INITIALIZER };
static struct group readers = { .posted = PTHREAD_COND_INITIALIZER };

/* Remove a post from its list if it is there. Under the mutex. */
static void
close_post(struct group *group, struct sc_pool_post *post)
{
    for (struct sc_pool_post **link = &group->posts; *link; link = &(*link)->next) {
        if (*link == post) {
            *link = post->next;
            return;
        }
    }
}

static void *
helper(void *arg)
{
    struct group *group = arg;

    pthread_mutex_lock(&mutex);
    for (;;) {
        struct sc_pool_post *post = group->posts;
        struct sc_pool_job *job;

        if (!post) {
            group->n_idle++;
            pthread_cond_wait(&group->posted, &mutex);
            group->n_idle--;
            continue;
        }
        job = post->job;
        job->inside++;
        group->n_inside++;
        if (--post->wanted == 0)
            close_post(group, post);
        if (group->posts && group->n_idle)
            pthread_cond_signal(&group->posted);
        pthread_mutex_unlock(&mutex);
        job->fn(job->arg);
        pthread_mutex_lock(&mutex);
        group->n_inside--;
        if (--job->inside == 0)
            pthread_cond_signal(&job->left);
    }
    return NULL;
}

bool
sc_thread_begin(void *(*run)(void *), void *arg)
{
    sigset_t all, old;
    pthread_attr_t attr;
    pthread_t thread;
    bool begun;

    if (pthread_attr_init(&attr))
        return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    begun = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0 &&
            pthread_create(&thread, &attr, run, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return begun;
}

/* Make helpers until n exist or the system refuses one: then the caller does the work itself. Under the mutex. */
static void
make_helpers(struct group *group, unsigned n)
{
    while (group->n_helpers < n && sc_thread_begin(helper, group))
        group->n_helpers++;
}

/* Ask for n helpers of a group. Under the mutex. */
static void
add_post(struct group *group, struct sc_pool_post *post, struct sc_pool_job *job, unsigned n)
{
    struct sc_pool_post **tail = &group->posts;

    if (!job->is_posted) {
        pthread_cond_init(&job->left, NULL);
        job->is_posted = true;
    }
    while (*tail && *tail != post)
        tail = &(*tail)->next;
    if (!*tail) {
        *post = (struct sc_pool_post){ .job = job };
        *tail = post;
    }
    post->wanted += n;
    for (unsigned i = 0; i < n && i < group->n_idle && i < MAX_WOKEN; i++)
        pthread_cond_signal(&group->posted);
}

/* Return how many helpers all open posts of a group want. Under the mutex. */
static unsigned
n_wanted(const struct group *group)
{
    unsigned n = 0;

    for (const struct sc_pool_post *open = group->posts; open; open = open->next)
        n += open->wanted;
    return n;
}

void
sc_pool_run_job(struct sc_pool_job *job, unsigned n_threads)
{
    unsigned n = n_threads > MAX_WORKERS ? MAX_WORKERS : n_threads - 1;

    if (n_threads > 1) {
        pthread_mutex_lock(&mutex);
        make_helpers(&workers, n);
        add_post(&workers, &job->workers, job, n);
        pthread_mutex_unlock(&mutex);
    }

    job->fn(job->arg);

    if (!job->is_posted) /* so no other thread is inside that could post it */
        return;
    pthread_mutex_lock(&mutex);
    job->is_closed = true;
    close_post(&workers, &job->workers);
    close_post(&readers, &job->readers);
    while (job->inside > 0)
        pthread_cond_wait(&job->left, &mutex);
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&job->left);
}

void
sc_pool_run(unsigned n_threads, void (*fn)(void *), void *arg)
{
    struct sc_pool_job job = { .fn = fn, .arg = arg };

    sc_pool_run_job(&job, n_threads);
}

void
sc_pool_grow(struct sc_pool_job *job, unsigned n)
{
    unsigned needed;

    pthread_mutex_lock(&mutex);
    if (!job->is_closed) {
        add_post(&readers, &job->readers, job, n);
        needed = readers.n_inside + n_wanted(&readers);
        make_helpers(&readers, needed < SC_POOL_MAX_READERS ? needed : SC_POOL_MAX_READERS);
    }
    pthread_mutex_unlock(&mutex);
}

unsigned
sc_pool_size(void)
{
    unsigned n;

    pthread_mutex_lock(&mutex);
    n = workers.n_helpers + readers.n_helpers;
    pthread_mutex_unlock(&mutex);
    return n;
}

/* fork: hold the mutex across it, so that the child finds consistent memory. The child then forgets the threads that
 * it does not have. A job that another thread of the parent had open stays with that thread. */
SC_HOLD_ACROSS_FORK(mutex)

static void
after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    workers = readers = (struct group){ 0 };
    pthread_cond_init(&workers.posted, NULL);
    pthread_cond_init(&readers.posted, NULL);
}

enum sc_status
sc_pool_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}
