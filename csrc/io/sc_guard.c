/* sc_guard.c - the lock file of an array (see sc_guard.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "base/sc_fork.h"
#include "io/sc_file.h"
#include "io/sc_lock.h"
#include "io/sc_staging.h"

#define LOCK_NAME "lock"
#define MAX_TRIES 8

/* The byte that is locked lies beyond the block, and in the range of all servers. */
#define PLACE_OF(shard) ((off_t)(((shard) >> 2) | SC_BLOCK_NBYTES))

/* ---- lock files that stay open between two locks ---- */

#define MAX_IDLE 16

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sc_guard idle[MAX_IDLE];
static unsigned n_idle;

SC_HOLD_ACROSS_FORK(mutex)

void
sc_guard_forget(struct sc_guard *guard)
{
    sc_file_close(guard->fd);
    sc_file_close(guard->at);
    sc_free(guard->folder);
    *guard = (struct sc_guard){ .fd = -1, .at = -1 };
}

/* The open descriptions are the parent's too, and two processes must not share one. */
static void
after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    while (n_idle)
        sc_guard_forget(&idle[--n_idle]);
}

enum sc_status
sc_guard_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* Take an idle lock file of a folder. */
static bool
take_idle(struct sc_guard *guard, const char *folder)
{
    bool found = false;

    pthread_mutex_lock(&mutex);
    for (unsigned i = n_idle; i > 0 && !found; i--) {
        if (strcmp(idle[i - 1].folder, folder) != 0)
            continue;
        *guard = idle[i - 1];
        idle[i - 1] = idle[--n_idle];
        found = true;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

static void
give_idle(struct sc_guard *guard)
{
    struct sc_guard oldest = { .fd = -1, .at = -1 };

    pthread_mutex_lock(&mutex);
    if (n_idle == MAX_IDLE) {
        oldest = idle[0];
        memmove(idle, idle + 1, (MAX_IDLE - 1) * sizeof *idle);
        n_idle--;
    }
    idle[n_idle++] = *guard;
    pthread_mutex_unlock(&mutex);
    *guard = (struct sc_guard){ .fd = -1, .at = -1 };
    sc_guard_forget(&oldest);
}

void
sc_guard_close_idle(void)
{
    struct sc_guard kept[MAX_IDLE];
    unsigned n;

    pthread_mutex_lock(&mutex);
    n = n_idle;
    memcpy(kept, idle, n * sizeof *kept);
    n_idle = 0;
    pthread_mutex_unlock(&mutex);
    while (n)
        sc_guard_forget(&kept[--n]);
}

/* ---- the lock file ---- */

/* Give those the right to write a file or folder of this user who may write the array; the umask does not count. */
static int
admit(int fd, const struct stat *st, const char *folder)
{
    mode_t mode = st->st_mode & 07777, more = sc_staging_writers(folder, st->st_gid);

    if (st->st_uid != geteuid() || (mode | more) == mode || !sc_file_allows("fchmod", folder, NULL))
        return 0;
    return fchmod(fd, mode | more);
}

/* Give a new lock file its block of bytes. */
static int
make_ready(int fd, const char *folder)
{
    static const uint8_t block[SC_BLOCK_NBYTES] = "lock file of shardcodec: see csrc/io/sc_guard.h\n";
    struct stat st;

    if (fstat(fd, &st))
        return -1;
    if (!S_ISREG(st.st_mode)) {
        errno = EPERM;
        return -1;
    }
    if (st.st_size >= (off_t)sizeof block)
        return 0;
    if (admit(fd, &st, folder) || !sc_file_allows("pwrite", folder, NULL))
        return -1;
    return pwrite(fd, block, sizeof block, 0) == (ssize_t)sizeof block ? 0 : -1;
}

/* Open the lock file; it is made if it is missing. On failure the caller forgets the guard. */
static int
open_file(struct sc_guard *guard, const char *folder, enum sc_guard_kind kind)
{
    struct stat st;

    *guard = (struct sc_guard){ .fd = -1, .at = sc_staging_open(folder), .kind = kind, .folder = sc_strdup(folder) };
    if (guard->at < 0 || !guard->folder || fstat(guard->at, &st) || admit(guard->at, &st, folder))
        return -1;
    guard->device = (uint64_t)st.st_dev;
    guard->inode = (uint64_t)st.st_ino;
    if (!sc_file_allows("open", folder, NULL))
        return -1;
    guard->fd = openat(guard->at, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (guard->fd < 0 || make_ready(guard->fd, folder))
        return -1;
#ifdef O_DIRECT
    if (kind != SC_GUARD_SMB) /* its client takes it, and fails at the read */
        guard->is_direct = fcntl(guard->fd, F_SETFL, O_DIRECT) == 0;
#endif
    return 0;
}

/* ---- steps ---- */

static int
fence(struct sc_guard *guard, const char *path, const char *own)
{
    struct stat st;

    if (sc_lock_stat_now(AT_FDCWD, guard->folder, &st))
        return errno == ENOENT ? ESTALE : errno;
    if ((uint64_t)st.st_ino != guard->inode || (uint64_t)st.st_dev != guard->device)
        return ESTALE; /* the folder was removed, and made again by others */
    return sc_kept_fence(&guard->kept, guard->at, guard->shard, path, own);
}

/* Lock the byte, then fence; 0 or an errno. */
static int
lock_and_fence(struct sc_guard *guard, const char *path)
{
    int error;

    if (!sc_file_allows("lock", guard->folder, NULL) || sc_lock_set(guard->fd, PLACE_OF(guard->shard), F_WRLCK))
        return errno;
    error = fence(guard, path, NULL);
    if (error)
        sc_lock_set(guard->fd, PLACE_OF(guard->shard), F_UNLCK);
    return error;
}

int
sc_guard_take(struct sc_guard *guard, const char *folder, const char *path, enum sc_guard_kind kind)
{
    int error = ESTALE;

    for (int i = 0; i < MAX_TRIES; i++) {
        bool was_idle = take_idle(guard, folder);

        error = was_idle || open_file(guard, folder, kind) == 0 ? 0 : errno ? errno : ENOMEM;
        guard->shard = sc_file_number(folder, path);
        if (!error)
            error = lock_and_fence(guard, path);
        if (!error)
            return 0;
        if (error == EAGAIN) {
            give_idle(guard);
            return error;
        }
        sc_guard_forget(guard);
        /* a file that was idle for longer than a lease may be of no more use; another process may remove the folder */
        if (!was_idle && error != ESTALE && error != ENOENT)
            return error;
    }
    return error;
}

/* True if the shard is still the one that was seen. An inode number alone may be that of a later file. */
static bool
is_as_seen(const struct sc_guard *guard, const char *path)
{
    const struct sc_file_id *seen = &guard->seen;
    struct sc_file_id now;
    struct stat st;

    sc_lock_look_at_folder(path);
    if (sc_lock_stat_now(AT_FDCWD, path, &st))
        return errno == ENOENT && !seen->inode;
    sc_file_id_of(&st, 0, &now);
    return now.inode == seen->inode && now.device == seen->device && now.nbytes == seen->nbytes &&
           now.mtime_ns == seen->mtime_ns;
}

int
sc_guard_check(struct sc_guard *guard, const char *path, const char *own)
{
    _Alignas(SC_BLOCK_NBYTES) uint8_t block[SC_BLOCK_NBYTES];
    struct stat st;

    if (pread(guard->fd, block, sizeof block, 0) != (ssize_t)sizeof block)
        return ESTALE;
    if (guard->is_direct && guard->kind == SC_GUARD_LEASED)
        return 0;
    if (guard->kind != SC_GUARD_SMB && sc_lock_set(guard->fd, PLACE_OF(guard->shard), F_WRLCK))
        return ESTALE;
    if (sc_lock_stat_now(guard->fd, "", &st))
        return ESTALE;
    return guard->kind != SC_GUARD_LEASED && (fence(guard, path, own) || !is_as_seen(guard, path)) ? ESTALE : 0;
}

/* Move the shard into the folder `name`; 0 or an errno. */
static int
move_into(struct sc_guard *guard, const char *path, const char *name)
{
    char to[128];
    struct stat st;
    int error = sc_guard_check(guard, path, name);

    snprintf(to, sizeof to, "%s/" SC_STAGING_REMOVED, name);
    if (!error)
        error = sc_kept_pass(&guard->kept, guard->at, &(struct sc_kept){ .is_needed = guard->kept.is_needed });
    if (error)
        return error;
    if (sc_file_allows("rename", path, NULL) && renameat(AT_FDCWD, path, guard->at, to) == 0)
        return 0;
    error = errno;
    if (!sc_guard_explains(error))
        return error;
    if (fstatat(guard->at, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return 0; /* it was done, and the answer was lost */
    sc_lock_look_at_folder(path);
    return sc_lock_stat_now(AT_FDCWD, path, &st) && errno == ENOENT ? 0 : ESTALE;
}

int
sc_guard_remove(struct sc_guard *guard, const char *path)
{
    char *full = sc_staging_name(guard->folder, guard->shard, 0);
    const char *name = full ? strrchr(full, '/') + 1 : NULL;
    int error = ENOMEM;

    if (name)
        error = sc_file_allows("mkdir", full, NULL) && mkdirat(guard->at, name, 0700) == 0 ? 0 : errno;
    if (!error) {
        error = move_into(guard, path, name);
        sc_staging_remove(guard->at, name);
    }
    sc_free(full);
    return error;
}

void
sc_guard_release(struct sc_guard *guard, bool is_sound)
{
    if (guard->fd < 0)
        return;
    if (!sc_file_allows("unlock", guard->folder, NULL) || sc_lock_set(guard->fd, PLACE_OF(guard->shard), F_UNLCK))
        is_sound = false; /* the close unlocks */
    if (is_sound)
        give_idle(guard);
    else
        sc_guard_forget(guard);
}
