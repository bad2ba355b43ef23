/* sc_lock.c - locks between processes (see sc_lock.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#endif
#include <unistd.h>

#include "base/sc_alloc.h"
#include "base/sc_fork.h"
#include "io/sc_closer.h"
#include "io/sc_file.h"
#include "io/sc_mount.h"

/* The byte that is locked. It lies beyond any data, so readers can read where locks are mandatory. */
#define LOCK_OFFSET ((off_t)1 << 62)

/* Number of attempts to lock a file that is replaced meanwhile, before it counts as busy. */
#define MAX_TRIES 8

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sc_lock *held;
static unsigned n_held;

/* ---- the list ---- */

static void
enlist(struct sc_lock *lock)
{
    pthread_mutex_lock(&mutex);
    lock->next = held;
    lock->link = &held;
    if (held)
        held->link = &lock->next;
    held = lock;
    n_held++;
    pthread_mutex_unlock(&mutex);
}

static void
strike(struct sc_lock *lock)
{
    pthread_mutex_lock(&mutex);
    *lock->link = lock->next;
    if (lock->next)
        lock->next->link = lock->link;
    n_held--;
    pthread_mutex_unlock(&mutex);
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

SC_HOLD_ACROSS_FORK(mutex)

/* Close the descriptors without unlocking: the locks are the parent's. */
static void
after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    for (struct sc_lock *lock = held; lock; lock = lock->next) {
        close(lock->fd);
        lock->fd = -1;
    }
    held = NULL;
    n_held = 0;
}

enum sc_status
sc_lock_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- one lock ---- */

/* Lock or unlock the byte; 0, or -1 and errno. */
static int
set_lock(int fd, short type)
{
#ifdef F_OFD_SETLK
    struct flock range = { .l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_OFFSET, .l_len = 1 };
    unsigned n_interrupts = 0;
    int r;

    do
        r = fcntl(fd, F_OFD_SETLK, &range);
    while (r && sc_file_interrupted(&n_interrupts));
    return r;
#else
    (void)fd;
    (void)type;
    errno = ENOSYS;
    return -1;
#endif
}

bool
sc_lock_is_free(int fd)
{
    return set_lock(fd, F_WRLCK) == 0;
}

/* True if another client of a network file system has replaced the file that has this name or descriptor. */
static bool
means_replaced(int error)
{
    return error == ESTALE || error == ENOENT;
}

static bool
means_denied(int error)
{
    return error == EACCES || error == EPERM || error == EROFS || error == ETXTBSY;
}

/* ENOSYS: Lustre mounted without `flock`; ENOLCK: NFS without its lock service; EINVAL: no such command here. */
static bool
means_unsupported(int error)
{
    return error == ENOLCK || error == EOPNOTSUPP || error == ENOTSUP || error == ENOSYS || error == EINVAL;
}

static enum sc_status
try_open(struct sc_lock *lock, const char *path, enum sc_lock_outcome *outcome, struct sc_where *where)
{
    int error;

    lock->fd = sc_file_open_now(path, O_RDWR);
    if (lock->fd >= 0)
        return SC_OK;
    error = errno;
    if (error == ESTALE) {
        *outcome = SC_LOCK_BUSY;
        return SC_OK;
    }
    *outcome = sc_file_means_missing(error) ? SC_LOCK_NO_FILE : SC_LOCK_DENIED;
    if (*outcome == SC_LOCK_NO_FILE)
        return SC_OK;
    return sc_file_open_failed(path, where) == SC_NOT_A_FILE ? SC_NOT_A_FILE : means_denied(error) ? SC_OK : SC_IO;
}

static enum sc_status
try_lock(struct sc_lock *lock, const char *path, enum sc_lock_outcome *outcome, struct sc_where *where)
{
    if (sc_file_allows("lock", path, NULL) && set_lock(lock->fd, F_WRLCK) == 0) {
        *outcome = SC_LOCK_HELD;
        return SC_OK;
    }
    lock->refusal = errno;
    if (errno == EAGAIN || means_replaced(errno))
        *outcome = SC_LOCK_BUSY;
    else if (means_denied(errno))
        *outcome = SC_LOCK_DENIED; /* by a security module */
    else if (means_unsupported(errno))
        *outcome = SC_LOCK_UNSUPPORTED;
    else
        return sc_file_error(where, "fcntl");
    return SC_OK;
}

#if defined(__linux__) && defined(STATX_BASIC_STATS)
/* Older headers know neither these bits (Linux 5.8 and 6.8) nor the field, but reserve its place. The kernel ignores a
 * bit that it does not know, and tells in `stx_mask` which number it has given. */
#define MOUNT_ID 0x1000U
#define MOUNT_ID_UNIQUE 0x4000U
#define MOUNT_ID_PLACE 0x90

static uint64_t
mount_id_of(const struct statx *now)
{
    uint64_t id;

    if (!(now->stx_mask & (MOUNT_ID | MOUNT_ID_UNIQUE)))
        return 0;
    memcpy(&id, (const char *)now + MOUNT_ID_PLACE, sizeof id);
    return id;
}
#endif

#if defined(__linux__) && defined(STATX_BASIC_STATS)
static struct timespec
time_of(struct statx_timestamp t)
{
    return (struct timespec){ .tv_sec = (time_t)t.tv_sec, .tv_nsec = (long)t.tv_nsec };
}
#endif

bool
sc_lock_looks_anew(void)
{
#if defined(__linux__) && defined(STATX_BASIC_STATS)
    struct statx now;

    return statx(AT_FDCWD, "/", AT_STATX_FORCE_SYNC, STATX_TYPE, &now) == 0 || !sc_file_call_refused(errno);
#else
    return false;
#endif
}

/* fstat(), or stat() of a path, without the cache of a network file system, so that a replaced file is detected. Without
 * statx() the cache is used (sc_lock_looks_anew()): in a sandbox, and on older kernels, where glibc's substitute answers EINVAL
 * to AT_STATX_FORCE_SYNC.
 *
 * @mount_id: set to the number of the mount, 0: unknown. NULL: only device, inode and kind are wanted. */
static int
stat_now(int fd, const char *path, struct stat *st, uint64_t *mount_id)
{
    if (mount_id)
        *mount_id = 0;
#if defined(__linux__) && defined(STATX_BASIC_STATS)
    struct statx now;
    unsigned mask = STATX_TYPE | STATX_INO;

    if (mount_id)
        mask |= STATX_NLINK | STATX_SIZE | STATX_MTIME | STATX_CTIME | MOUNT_ID | MOUNT_ID_UNIQUE;
    if (statx(fd, path, AT_STATX_FORCE_SYNC | AT_EMPTY_PATH, mask, &now) == 0) {
        *st = (struct stat){ .st_dev = makedev(now.stx_dev_major, now.stx_dev_minor) };
        st->st_ino = now.stx_ino;
        st->st_mode = now.stx_mode;
        st->st_nlink = now.stx_nlink;
        st->st_size = (off_t)now.stx_size;
        st->st_mtim = time_of(now.stx_mtime);
        st->st_ctim = time_of(now.stx_ctime);
        if (mount_id)
            *mount_id = mount_id_of(&now);
        return 0;
    }
    if (!sc_file_call_refused(errno))
        return -1;
#endif
    return *path ? stat(path, st) : fstat(fd, st);
}

/* Look at the folder of a path without a cache. A client of NFS that finds it changed forgets the names that it knows there; a look
 * at the path alone is answered by the file that had the name. -1 and errno. */
static int
look_at_folder(const char *path)
{
    char *folder = sc_file_folder_of(path);
    struct stat st;
    uint64_t mount_id;
    int r = -1;

    if (folder) /* also for its times: NFS asks the server only for what can change */
        r = stat_now(AT_FDCWD, folder, &st, &mount_id);
    else
        errno = ENOMEM;
    sc_free(folder);
    return r;
}

/* stat() of the path now. Where a client may know old names, the folder is looked at before: a process of another client that
 * has the old file open keeps it alive, with one name (.nfs...), so nothing else tells that it was replaced. */
static int
stat_named(const struct sc_lock *lock, const char *path, struct stat *named)
{
    if (sc_mount_caches_names(lock->fd, lock->id.device, lock->mount_id) && look_at_folder(path))
        return -1;
    return stat_now(AT_FDCWD, path, named, NULL);
}

/* Check that the locked file is a regular file and still the one at `path`. These looks are not answered by any earlier one:
 * another writer may have replaced the file before it gave up the lock. All later steps use lock->id. */
static enum sc_status
is_current(struct sc_lock *lock, const char *path, bool *current, struct sc_where *where)
{
    int64_t seen_ns = sc_file_now_ns();
    struct stat ours, named;

    *current = false;
    if (stat_now(lock->fd, "", &ours, &lock->mount_id)) {
        if (!means_replaced(errno))
            return sc_file_error(where, "fstat");
        sc_file_look_again(path);
        return SC_OK;
    }
    if (sc_file_check_kind(&ours, where))
        return SC_NOT_A_FILE;
    sc_file_id_of(&ours, seen_ns, &lock->id);
    if (stat_named(lock, path, &named))
        return sc_file_means_missing(errno) || means_replaced(errno) ? SC_OK : sc_file_error(where, "stat");
    *current = ours.st_nlink && ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
    return SC_OK;
}

enum sc_status
sc_lock_try(struct sc_lock *lock, const char *path, enum sc_lock_outcome *outcome, struct sc_where *where)
{
    enum sc_status status = SC_OK;

    sc_where_clear(where);
    lock->refusal = 0;
    for (int i = 0; i < MAX_TRIES; i++) {
        bool current = false;

        *outcome = SC_LOCK_BUSY;
        status = try_open(lock, path, outcome, where);
        if (status || lock->fd < 0)
            return status;
        status = try_lock(lock, path, outcome, where);
        if (!status)
            status = is_current(lock, path, &current, where);
        if (current && *outcome == SC_LOCK_HELD) {
            enlist(lock);
            return SC_OK;
        }
        sc_file_close(lock->fd); /* nothing was written, and a lock on a file without this name is useless */
        lock->fd = -1;
        if (status || *outcome != SC_LOCK_HELD)
            return status;
        *outcome = SC_LOCK_BUSY;
    }
    return SC_OK;
}

void
sc_lock_release(struct sc_lock *lock)
{
    if (lock->fd < 0)
        return;
    strike(lock);
    if (sc_file_allows("unlock", "", NULL))
        set_lock(lock->fd, F_UNLCK); /* if this fails, the close unlocks */
    sc_close_aside(lock->fd, lock->id.nbytes);
    lock->fd = -1;
}
