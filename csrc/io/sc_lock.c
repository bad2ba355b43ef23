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
#include "io/sc_staging.h"

/* The byte that is locked. It lies beyond any data, so readers can read where locks are mandatory. */
#define LOCK_OFFSET ((off_t)1 << 62)

/* Number of attempts to lock a file that is replaced meanwhile, before it counts as busy. */
#define MAX_TRIES 8

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct sc_lock *held;
static unsigned n_held, n_guarded;

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
    n_guarded += lock->guard.fd >= 0;
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
    n_guarded -= lock->guard.fd >= 0;
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
            shard = sc_staging_shard(folder, lock->path);
    pthread_mutex_unlock(&mutex);
    return shard;
}

bool
sc_lock_is_held(const char *folder, uint64_t shard)
{
    bool found = false;

    pthread_mutex_lock(&mutex);
    for (struct sc_lock *lock = held; lock && !found; lock = lock->next)
        found = sc_staging_shard(folder, lock->path) == shard;
    pthread_mutex_unlock(&mutex);
    return found;
}

SC_HOLD_ACROSS_FORK(mutex)

static void
forget_names(struct sc_lock *lock)
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
        sc_guard_forget(&lock->guard);
        forget_names(lock);
    }
    held = NULL;
    n_held = n_guarded = 0;
}

enum sc_status
sc_lock_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- one lock ---- */

int
sc_lock_set(int fd, off_t at, short type)
{
#ifdef F_OFD_SETLK
    struct flock range = { .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1 };
    unsigned n_interrupts = 0;
    int r;

    do
        r = fcntl(fd, F_OFD_SETLK, &range);
    while (r && sc_file_interrupted(&n_interrupts));
    return r;
#else
    (void)fd, (void)at, (void)type;
    errno = ENOSYS;
    return -1;
#endif
}

/* Lock or unlock the shard's own byte. */
static int
set_lock(int fd, short type)
{
    return sc_lock_set(fd, LOCK_OFFSET, type);
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

int
sc_lock_look_at_folder(const char *path)
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
    if (sc_mount_caches_names(lock->fd, lock->id.device, lock->mount_id) && sc_lock_look_at_folder(path))
        return -1;
    return stat_now(AT_FDCWD, path, named, NULL);
}

int
sc_lock_stat_now(int fd, const char *path, struct stat *st)
{
    uint64_t mount_id;

    return stat_now(fd, path, st, &mount_id);
}

/* Check that the locked file is a regular file and still the one at `path`. These looks are not answered by any earlier one:
 * another writer may have replaced the file before it gave up the lock. All later steps use lock->id. */
static enum sc_status
is_current(struct sc_lock *lock, const char *path, bool *current, bool *marked, struct sc_where *where)
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
    *marked = ours.st_mode & SC_GUARD_MARK;
    if (stat_named(lock, path, &named))
        return sc_file_means_missing(errno) || means_replaced(errno) ? SC_OK : sc_file_error(where, "stat");
    *current = ours.st_nlink && ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
    return SC_OK;
}

static void
close_shard(struct sc_lock *lock)
{
    sc_file_close(lock->fd); /* nothing was written */
    lock->fd = -1;
}

/* Lock the shard itself. */
static enum sc_status
try_shard(struct sc_lock *lock, const char *path, enum sc_lock_outcome *outcome, struct sc_where *where)
{
    enum sc_status status = SC_OK;

    for (int i = 0; i < MAX_TRIES; i++) {
        bool current = false, marked = false;

        *outcome = SC_LOCK_BUSY;
        status = try_open(lock, path, outcome, where);
        if (status || lock->fd < 0)
            return status;
        status = try_lock(lock, path, outcome, where);
        if (!status)
            status = is_current(lock, path, &current, &marked, where);
        if (current && *outcome == SC_LOCK_HELD && !marked)
            return SC_OK;
        close_shard(lock); /* a lock on a file without this name is useless */
        if (!status && current && *outcome == SC_LOCK_HELD)
            *outcome = SC_LOCK_GUARDED;
        if (status || *outcome != SC_LOCK_HELD)
            return status;
        *outcome = SC_LOCK_BUSY;
    }
    return SC_OK;
}

/* ---- a lock file in place of the shard ---- */

/* Mark a shard, so that processes which lock it itself take the lock file from now on. SC_LOCK_BUSY: one of them works on it now;
 * *again: one of them has replaced it. */
static enum sc_status
mark(struct sc_lock *lock, const char *path, mode_t mode, enum sc_lock_outcome *outcome, bool *again,
     struct sc_where *where)
{
    bool current = false, marked = false;
    enum sc_status status;
    struct stat st;

    if (set_lock(lock->fd, F_WRLCK)) {
        *outcome = errno == EAGAIN ? SC_LOCK_BUSY : SC_LOCK_HELD; /* else no process can lock it */
        return SC_OK;
    }
    status = is_current(lock, path, &current, &marked, where);
    *again = !current;
    if (status || !current)
        return status;
    if (!marked && sc_file_allows("fchmod", path, NULL))
        fchmod(lock->fd, (mode & 07777) | SC_GUARD_MARK); /* whether it is set is seen below */
    if (fstat(lock->fd, &st))
        return sc_file_error(where, "fstat");
    sc_file_id_of(&st, lock->id.seen_ns, &lock->id);
    lock->is_kept = !(st.st_mode & SC_GUARD_MARK);
    if (!lock->is_kept)
        set_lock(lock->fd, F_UNLCK);
    *outcome = SC_LOCK_HELD;
    return SC_OK;
}

/* Open the shard under the lock file, and look at it. *again: it is another one by now. */
static enum sc_status
look_guarded(struct sc_lock *lock, const char *path, enum sc_lock_outcome *outcome, bool *again, struct sc_where *where)
{
    int64_t seen_ns = sc_file_now_ns();
    enum sc_status status;
    struct stat st;

    *again = false;
    sc_lock_look_at_folder(path);
    status = try_open(lock, path, outcome, where);
    if (!status && *outcome == SC_LOCK_DENIED && (lock->fd = sc_file_open_now(path, O_RDONLY)) >= 0)
        *outcome = SC_LOCK_HELD;
    if (status || lock->fd < 0) {
        *again = !status && *outcome == SC_LOCK_BUSY;
        return status;
    }
    if (fstat(lock->fd, &st)) {
        *again = means_replaced(errno);
        return *again ? SC_OK : sc_file_error(where, "fstat");
    }
    if (sc_file_check_kind(&st, where))
        return SC_NOT_A_FILE;
    sc_file_id_of(&st, seen_ns, &lock->id);
    *outcome = SC_LOCK_HELD;
    return st.st_mode & SC_GUARD_MARK ? SC_OK : mark(lock, path, st.st_mode, outcome, again, where);
}

static bool
means_no_guard(int error)
{
    return means_denied(error) || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
}

/* Lock a byte of the lock file, and open the shard. *outcome is SC_LOCK_DENIED only if the lock file may not be used. */
static enum sc_status
try_guarded(struct sc_lock *lock, const char *path, const char *folder, enum sc_lock_outcome *outcome,
            struct sc_where *where)
{
    int error = sc_guard_take(&lock->guard, folder, path);
    enum sc_status status = SC_OK;
    bool again = true;

    if (error) {
        *outcome = error == EAGAIN || error == ESTALE ? SC_LOCK_BUSY
                   : error == ENOENT                  ? SC_LOCK_NO_FILE /* not even a folder */
                   : means_no_guard(error)            ? SC_LOCK_DENIED
                                                      : SC_LOCK_UNSUPPORTED;
        errno = lock->refusal = error;
        return *outcome == SC_LOCK_UNSUPPORTED && !means_unsupported(error) ? sc_file_error(where, "lock") : SC_OK;
    }
    for (int i = 0; again && !status && i < MAX_TRIES; i++) {
        if (lock->fd >= 0)
            close_shard(lock);
        *outcome = SC_LOCK_BUSY;
        status = look_guarded(lock, path, outcome, &again, where);
    }
    if (!status && !again && (*outcome == SC_LOCK_HELD || *outcome == SC_LOCK_NO_FILE))
        return SC_OK;
    if (lock->fd >= 0)
        close_shard(lock);
    sc_guard_release(&lock->guard, true);
    if (again)
        *outcome = SC_LOCK_BUSY;
    return status;
}

enum sc_status
sc_lock_try(struct sc_lock *lock, const char *path, const char *name, const char *folder, enum sc_lock_outcome *outcome,
            struct sc_where *where)
{
    enum sc_status status;

    sc_where_clear(where);
    *outcome = SC_LOCK_DENIED;
    *lock =
        (struct sc_lock){ .fd = -1, .guard = { .fd = -1, .at = -1 }, .path = sc_strdup(path), .name = sc_strdup(name) };
    status = lock->path && lock->name ? SC_OK : SC_NO_MEMORY;
    if (!status && folder)
        status = try_guarded(lock, path, folder, outcome, where);
    if (!status && *outcome == SC_LOCK_DENIED)
        status = try_shard(lock, path, outcome, where);
    if (lock->fd >= 0 || lock->guard.fd >= 0) {
        enlist(lock);
    } else {
        forget_names(lock);
    }
    return status;
}

void
sc_lock_close_shard(struct sc_lock *lock)
{
    if (!lock->is_kept)
        close_shard(lock);
}

enum sc_status
sc_lock_remove(const char *path, bool sync, struct sc_where *where)
{
    struct sc_lock *lock = sc_lock_guarding(path);
    struct stat st;
    int error;

    if (!lock)
        return sc_file_remove(path, sync, where);
    if (lstat(path, &st))
        return sc_file_means_missing(errno) ? SC_OK : sc_file_error(where, "lstat");
    if (S_ISLNK(st.st_mode)) /* the lock is that of the file to which it leads */
        return sc_file_remove(path, sync, where);
    if (sc_file_check_kind(&st, where))
        return SC_NOT_A_FILE;
    sc_lock_close_shard(lock);
    error = sc_guard_remove(&lock->guard, path);
    if (error) {
        lock->has_failed = true;
        errno = error;
        return sc_file_error(where, "rename");
    }
    return sync ? sc_file_sync_folders(path, 0, where) : SC_OK;
}

void
sc_lock_release(struct sc_lock *lock)
{
    if (lock->fd < 0 && lock->guard.fd < 0)
        return;
    strike(lock);
    if (lock->guard.fd >= 0) {
        sc_file_close(lock->fd);
        sc_guard_release(&lock->guard, !lock->has_failed);
    } else {
        if (sc_file_allows("unlock", "", NULL))
            set_lock(lock->fd, F_UNLCK); /* if this fails, the close unlocks */
        sc_close_aside(lock->fd, lock->id.nbytes);
    }
    lock->fd = -1;
    forget_names(lock);
}
