/* sc_closer.c - a thread that closes files which have lost their last name (see sc_closer.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_closer.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/sc_fork.h"
#include "base/sc_pool.h"

/* Pages of smaller files are freed in less time than a thread needs to start. */
#define WORTH_NBYTES ((uint64_t)1 << 20)

/* As many files as one request locks; the caller closes any further file itself. */
#define MAX_WAITING 64

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static int waiting[MAX_WAITING];
static unsigned n_waiting;
static bool running;

static void *
run(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&mutex);
    while (n_waiting) {
        int fd = waiting[--n_waiting];

        pthread_mutex_unlock(&mutex);
        close(fd);
        pthread_mutex_lock(&mutex);
    }
    running = false;
    pthread_cond_broadcast(&idle);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* True for a large file without a name. */
static bool
is_worth_it(int fd, uint64_t nbytes)
{
    struct stat st;

    return nbytes >= WORTH_NBYTES && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 0 &&
           st.st_size >= (off_t)WORTH_NBYTES;
}

void
sc_close_aside(int fd, uint64_t nbytes)
{
    bool taken = false;

    if (is_worth_it(fd, nbytes)) {
        pthread_mutex_lock(&mutex);
        running = running || sc_thread_begin(run, NULL); /* it cannot look before the mutex is released */
        taken = running && n_waiting < MAX_WAITING;
        if (taken)
            waiting[n_waiting++] = fd;
        pthread_mutex_unlock(&mutex);
    }
    if (!taken)
        close(fd);
}

void
sc_closer_wait(void)
{
    pthread_mutex_lock(&mutex);
    while (running)
        pthread_cond_wait(&idle, &mutex);
    pthread_mutex_unlock(&mutex);
}

/* Wait for a limited time: a fork handler of another library may hold a lock that a new thread needs. */
static void
before_fork(void)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 1;
    pthread_mutex_lock(&mutex);
    while (running && pthread_cond_timedwait(&idle, &mutex, &end) == 0)
        ;
}

SC_UNLOCK_AFTER_FORK(mutex)

static void
after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&idle, NULL);
    while (n_waiting)
        close(waiting[--n_waiting]);
    running = false;
}

enum sc_status
sc_closer_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}
