/* sc_lock.c - locks between processes (see sc_lock.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_lock_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "io/sc_closer.h"
#include "io/sc_file.h"
#include "io/sc_mount.h"

/* Number of attempts to lock a file that is replaced meanwhile, before it counts as busy. */
#define MAX_TRIES 8

/* ---- one lock ---- */

/* Lock or unlock the shard's own byte. */
static int
set_lock(int fd, short type)
{
    return sc_lock_set(fd, SC_LOCK_OFFSET, type);
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

/* stat() of the path now. Where a client may know old names, the folder is looked at before: a process of another client that
 * has the old file open keeps it alive, with one name (.nfs...), so nothing else tells that it was replaced. */
static int
stat_named(const struct sc_lock *lock, const char *path, struct stat *named)
{
    if (sc_mount_caches_names(lock->fd, lock->id.device, lock->mount_id) && sc_lock_look_at_folder(path))
        return -1;
    return sc_lock_stat(AT_FDCWD, path, named, NULL);
}

/* Check that the locked file is a regular file and still the one at `path`. These looks are not answered by any earlier one:
 * another writer may have replaced the file before it gave up the lock. All later steps use lock->id. */
static enum sc_status
is_current(struct sc_lock *lock, const char *path, bool *current, bool *marked, struct sc_where *where)
{
    int64_t seen_ns = sc_file_now_ns();
    struct stat ours, named;

    *current = false;
    if ((lock->has_old_names && fdatasync(lock->fd)) || sc_lock_stat(lock->fd, "", &ours, &lock->mount_id)) {
        if (!means_replaced(errno) && errno != EINTR)
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
    *current = ours.st_nlink && ours.st_dev == named.st_dev && ours.st_ino == named.st_ino &&
               (!lock->has_old_names || sc_lock_has_name(path, &ours));
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
    lock->is_kept = !(st.st_mode & SC_GUARD_MARK) && lock->guard.kind != SC_GUARD_SMB;
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
try_guarded(struct sc_lock *lock, const char *path, const char *folder, enum sc_guard_kind kind,
            enum sc_lock_outcome *outcome, struct sc_where *where)
{
    int error = sc_guard_take(&lock->guard, folder, path, kind);
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
sc_lock_try(struct sc_lock *lock, const char *path, const char *name, const char *folder, enum sc_guard_kind kind,
            enum sc_lock_outcome *outcome, struct sc_where *where)
{
    enum sc_status status;

    sc_where_clear(where);
    *outcome = SC_LOCK_DENIED;
    *lock =
        (struct sc_lock){ .fd = -1, .guard = { .fd = -1, .at = -1 }, .path = sc_strdup(path), .name = sc_strdup(name) };
    lock->has_old_names = kind == SC_GUARD_OLD_NAMES;
    status = lock->path && lock->name ? SC_OK : SC_NO_MEMORY;
    if (!status && folder)
        status = try_guarded(lock, path, folder, kind, outcome, where);
    lock->guard.seen = lock->fd < 0 ? (struct sc_file_id){ 0 } : lock->id;
    if (!status && *outcome == SC_LOCK_DENIED)
        status = try_shard(lock, path, outcome, where);
    if (lock->fd >= 0 || lock->guard.fd >= 0) {
        sc_lock_enlist(lock);
    } else {
        sc_lock_forget_names(lock);
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
    lock->guard.seen = (struct sc_file_id){ 0 };
    return sync ? sc_file_sync_folders(path, 0, where) : SC_OK;
}

void
sc_lock_release(struct sc_lock *lock, bool keeps)
{
    unsigned n_others;

    if (lock->fd < 0 && lock->guard.fd < 0)
        return;
    n_others = sc_lock_strike(lock);
    if (lock->guard.fd >= 0) {
        sc_file_close(lock->fd);
        sc_guard_release(&lock->guard, !lock->has_failed);
        if (!n_others && !keeps)
            sc_guard_close_idle();
    } else {
        if (sc_file_allows("unlock", "", NULL))
            set_lock(lock->fd, F_UNLCK); /* if this fails, the close unlocks */
        sc_close_aside(lock->fd, lock->id.nbytes);
    }
    lock->fd = -1;
    sc_lock_forget_names(lock);
}
