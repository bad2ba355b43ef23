/* sc_lock_list.c - the locks that this process holds (see sc_lock.h)
 * SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "base/sc_alloc.h"
#include "base/sc_fork.h"
#include "io/sc_file.h"
#include "io/sc_lock_impl.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sc_lock *held;
static unsigned n_held, n_guarded;

void
sc_lock_enlist(struct sc_lock *lock)
{
    pthread_mutex_lock(&mutex);
    lock->next = held;
    lock->link = &held;
    if (held)
        held->link = &lock->next;
    held = lock;
    n_held++;
    n_guarded += lock->guard.fd >= 0;
    pthread_mutex_unlock(&mutex);
}

unsigned
sc_lock_strike(struct sc_lock *lock)
{
    unsigned n;

    pthread_mutex_lock(&mutex);
    *lock->link = lock->next;
    if (lock->next)
        lock->next->link = lock->link;
    n_held--;
    n_guarded -= lock->guard.fd >= 0;
    n = n_guarded;
    pthread_mutex_unlock(&mutex);
    return n;
}

unsigned
sc_lock_count(void)
{
    unsigned n;

    pthread_mutex_lock(&mutex);
    n = n_held;
    pthread_mutex_unlock(&mutex);
    return n;
}

struct sc_lock *
sc_lock_guarding(const char *path)
{
    struct sc_lock *found = NULL;

    pthread_mutex_lock(&mutex);
    for (struct sc_lock *lock = n_guarded ? held : NULL; lock && !found; lock = lock->next)
        if (lock->guard.fd >= 0 && (strcmp(lock->path, path) == 0 || strcmp(lock->name, path) == 0))
            found = lock;
    pthread_mutex_unlock(&mutex);
    return found;
}

uint64_t
sc_lock_shard(const char *folder, const char *path)
{
    uint64_t shard = 0;

    pthread_mutex_lock(&mutex);
    for (struct sc_lock *lock = held; lock && !shard; lock = lock->next)
        if (strcmp(lock->path, path) == 0 || strcmp(lock->name, path) == 0)
            shard = sc_file_number(folder, lock->path);
    pthread_mutex_unlock(&mutex);
    return shard;
}

/* True if `path` still names the locked file, or names another file that no process has locked. */
static bool
is_free(const char *path, const struct sc_file_id *locked)
{
    struct stat st;
    int fd = sc_file_open_now(path, O_RDWR);
    bool found;

    if (fd < 0)
        return sc_file_means_missing(errno);
    found = fstat(fd, &st) == 0 &&
            (((uint64_t)st.st_ino == locked->inode && (uint64_t)st.st_dev == locked->device) || sc_lock_is_free(fd));
    sc_file_close(fd);
    return found;
}

bool
sc_lock_shuts_out(const char *folder, uint64_t shard)
{
    struct sc_file_id locked = { 0 };
    bool by_file = false, found = false;
    char *path = NULL;

    pthread_mutex_lock(&mutex);
    for (struct sc_lock *lock = held; lock && !found; lock = lock->next) {
        found = sc_file_number(folder, lock->path) == shard;
        by_file = found && lock->guard.fd >= 0;
        locked = lock->id;
        path = found ? sc_strdup(lock->path) : NULL;
    }
    pthread_mutex_unlock(&mutex);
    found = by_file || (path && is_free(path, &locked));
    sc_free(path);
    return found;
}

SC_HOLD_ACROSS_FORK(mutex)

void
sc_lock_forget_names(struct sc_lock *lock)
{
    sc_free(lock->path);
    sc_free(lock->name);
    lock->path = lock->name = NULL;
}

/* Close the descriptors without unlocking: the locks are the parent's. */
static void
after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    for (struct sc_lock *lock = held; lock; lock = lock->next) {
        sc_file_close(lock->fd);
        lock->fd = -1;
        sc_file_close(lock->guard.fd);
        sc_file_close(lock->guard.at);
        sc_free(lock->guard.folder);
        lock->guard = (struct sc_guard){ .fd = -1, .at = -1 };
        sc_lock_forget_names(lock);
    }
    held = NULL;
    n_held = n_guarded = 0;
}

enum sc_status
sc_lock_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}
