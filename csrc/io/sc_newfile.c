/* sc_newfile.c - whole files, from begin to commit (see sc_newfile.h)
 *
 * Why a writer that is killed leaves the old object or the new one, whole
 * ------------------------------------------------------------------------
 * P is the final name, T the temporary name, O the file that P names before the write ("-" if P does not exist), N the new file.
 * The caller holds the lock of O, if there is an O, so no other writer replaces it meanwhile. T belongs to this writer alone.
 *
 * Three rules hold in all ways through this file and sc_newfile_name.c:
 *
 *   1. N is finished before any call changes P. Attributes, bytes and size are set, and close() of a duplicate has reported
 *      no error (sc_file_flush()). With `sync`, fsync() of N has returned.
 *   2. One call makes P name N: linkat(), link(), rename() or renameat2(). The kernel does it as a whole, so P is never
 *      missing in between, if it was there before.
 *   3. No call changes the bytes of O. A reader that has O open goes on to read O.
 *
 * By rule 2 a kill comes before that call or after it. Before it, P names O. After it, P names N, which rule 1 has
 * finished. These are all the states; each line shows the names after the call returned:
 *
 *     call                             P    T          P shows
 *     mkdir of missing folders         -    -          no object, as before
 *     open(folder, O_TMPFILE)          O    -          old: N has no name, the kernel frees it with the process
 *     attributes, writes, flush        O    -          old
 *     linkat(N, P)     if P is free    N    -          new: done
 *     linkat(N, T)     if it is not    O    N          old
 *     renameat2(T, P, EXCHANGE)        N    O          new
 *     unlink(T)                        N    -          new: done
 *
 * Where one of these calls is missing, or fails:
 *
 *     open(T, O_EXCL) for O_TMPFILE    O    N in part  old: T is no name of an object
 *     rename(T, P) for EXCHANGE        N    -          new: done; also if O is gone by now
 *     unlink(T) has failed, so
 *     renameat2(T, P, EXCHANGE) again  O    N          old: the caller gets the error, and nothing has changed
 *
 * If nothing may be replaced (`taken`), a file at P makes the call fail, and the answer is "taken":
 *
 *     linkat(N, P)                     N    -          new: done
 *     renameat2(T, P, NOREPLACE)       N    -          new: done
 *     link(T, P) where that is missing N    N          new: two names of one file, without an undo journal (sc_undo.h)
 *     unlink(T)                        N    -          new: done
 *     lstat(P), rename(T, P) where
 *     hard links are missing too       N    -          new: done
 *
 * In the last line another writer may make P between the two calls, and the rename replaces its file: of two writers that make
 * the same new object at the same moment the later one wins, as without shardcodec. Readers still see whole objects only.
 *
 * T is a name in a folder that is open and was found safe (sc_staging_open()), and every call reaches it through this
 * descriptor. So another user can neither exchange N nor lead these calls elsewhere.
 *
 * So a kill leaves at most folders and T. T lies in the staging folder, which no store lists, or beside P under a name that is
 * no key of zarr. A later writer removes T when the process in its name is gone (sc_staging.h). That is right whether T is O
 * or N: only what P names counts.
 *
 * After a power cut the same holds with `sync`. Rule 1 has N on the disk before it gets a name, and the fsync of the folders
 * puts the name there before the caller is told of success. Without `sync` nothing is promised (docs/durability.md).
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_newfile_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "io/sc_attributes.h"
#include "io/sc_closer.h"
#include "io/sc_latency.h"
#include "io/sc_lock.h"
#include "io/sc_staging.h"

static void
forget(struct sc_newfile *file)
{
    sc_newfile_leave_staging(file);
    sc_free(file->path);
    sc_free(file->temp);
    file->path = file->temp = NULL;
    file->fd = -1;
    file->named = false;
}

/* ---- begin ---- */

/* True if this process may call linkat(); a sandbox may forbid it. Each process asks once, with an empty name, for which the kernel
 * makes no link: a forked child may be in another sandbox than its parent. */
static bool
may_link(void)
{
    static atomic_long known; /* number of the process that has asked; negative: it may not */
    long pid = (long)getpid(), seen = atomic_load_explicit(&known, memory_order_relaxed);

    if (seen != pid && seen != -pid) {
        seen = linkat(AT_FDCWD, "/", AT_FDCWD, "", 0) && sc_file_call_refused(errno) ? -pid : pid;
        atomic_store_explicit(&known, seen, memory_order_relaxed);
    }
    return seen > 0;
}

/* Open a file without a name in the folder; -1 and errno if the file system does not support O_TMPFILE. */
static int
open_nameless(const char *folder)
{
#ifdef O_TMPFILE
    /* without privileges a name can be given only through this folder */
    if (access("/proc/self/fd", X_OK) || !may_link()) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if (!sc_file_allows("open", folder, NULL))
        return -1;
    return open(folder, O_TMPFILE | SC_FOR_WRITING | O_CLOEXEC, 0666);
#else
    (void)folder;
    errno = EOPNOTSUPP;
    return -1;
#endif
}

static bool
nameless_unsupported(int error)
{
    return error == EISDIR || (error != EACCES && sc_file_call_refused(error)); /* EACCES: in this folder */
}

static int
open_temp(const struct sc_newfile *file)
{
    if (!sc_file_allows("open", file->temp, NULL))
        return -1;
    /* an exclusive file costs NFS a second request, and no other process makes this name in the folder of a lock file */
    if (file->guarded)
        return openat(file->at, sc_newfile_temp(file), SC_FOR_WRITING | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                      0666 | SC_GUARD_MARK);
    return openat(sc_newfile_at(file), sc_newfile_temp(file), SC_FOR_WRITING | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

/* True if the file and the folder are on one file system, so that a rename is possible. */
static bool
same_device(int fd, const char *folder)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && stat(folder, &b) == 0 && a.st_dev == b.st_dev;
}

/* Open a file with a temporary name in the staging folder; -1: not possible. */
static int
open_staged(struct sc_newfile *file, const char *folder)
{
    int fd = -1;

    /* another process may remove the folder after it was made and before it is used */
    for (int attempt = 0; fd < 0 && attempt < SC_NEWFILE_MAX_ATTEMPTS; attempt++) {
        if (sc_newfile_enter_staging(file))
            return -1;
        fd = open_temp(file);
        if (fd < 0 && errno != ENOENT)
            break;
    }
    file->staged = fd >= 0;
    if (fd >= 0 && !same_device(fd, folder)) {
        sc_newfile_unlink_temp(file);
        sc_file_close(fd);
        fd = -1;
    }
    if (fd < 0)
        sc_newfile_leave_staging(file);
    return fd;
}

/* Open a file with a temporary name, on a file system without nameless files. */
static enum sc_status
open_named(struct sc_newfile *file, char *folder, struct sc_where *where)
{
    if (file->staging)
        file->fd = open_staged(file, folder);
    if (file->fd < 0) {
        if (!sc_newfile_name_temp(file, folder))
            return SC_NO_MEMORY;
        sc_staging_sweep_once(folder);
        file->fd = open_temp(file);
    }
    file->named = file->fd >= 0;
    return file->fd < 0 ? sc_file_error(where, "open") : SC_OK;
}

static int
make_folders(struct sc_newfile *file, char *folder)
{
    uint64_t begin_ns = sc_clock_ns();
    int r = sc_file_make_folders(folder, &file->n_made);

    file->folders_ns += sc_clock_ns() - begin_ns;
    return r;
}

/* Make the folder, unless it is there. */
static int
make_missing(struct sc_newfile *file, char *folder)
{
    struct stat st;

    return stat(folder, &st) && errno == ENOENT ? make_folders(file, folder) : 0;
}

static enum sc_status
open_in(struct sc_newfile *file, char *folder, bool shared, struct sc_where *where)
{
    /* An open that fails tells that the folder is missing. The writer that made the folder may remove it again. */
    for (int attempt = 0; !shared && attempt < SC_NEWFILE_MAX_ATTEMPTS; attempt++) {
        file->fd = open_nameless(folder);
        if (file->fd >= 0)
            return SC_OK;
        if (errno != ENOENT)
            break;
        if (make_folders(file, folder))
            return sc_file_error(where, "mkdir");
    }
    if (!shared && !nameless_unsupported(errno))
        return sc_file_error(where, "open");
    /* the staging folder has to be on the same file system, so the folder must be there */
    return make_missing(file, folder) ? sc_file_error(where, "mkdir") : open_named(file, folder, where);
}

/* Open a file with a temporary name in the folder of the lock file. */
static enum sc_status
open_guarded(struct sc_newfile *file, char *folder, const struct sc_guard *guard, struct sc_where *where)
{
    if (make_missing(file, folder))
        return sc_file_error(where, "mkdir");
    file->fd = sc_newfile_enter_guard(file, guard) ? -1 : open_temp(file);
    file->named = file->fd >= 0;
    return file->fd < 0 ? sc_file_error(where, "open") : SC_OK;
}

static enum sc_status
open_new(struct sc_newfile *file, bool shared, struct sc_where *where)
{
    char *folder = sc_file_folder_of(file->path);
    const struct sc_lock *lock = sc_lock_guarding(file->path);
    enum sc_status status = !folder ? SC_NO_MEMORY
                            : lock  ? open_guarded(file, folder, &lock->guard, where)
                                    : open_in(file, folder, shared, where);

    sc_free(folder);
    return status;
}

/* Inspect what has the name, if anything, and follow a symbolic link: file->path. A link to nothing is replaced. */
static enum sc_status
look(struct sc_newfile *file, const char *path, struct stat *st, bool *exists, struct sc_where *where)
{
    bool is_link;

    *exists = sc_lock_stat_read(AT_FDCWD, path, st) == 0;
    is_link = *exists && S_ISLNK(st->st_mode);
    file->path = is_link ? realpath(path, NULL) : NULL;
    if (!file->path && !(file->path = sc_strdup(path)))
        return SC_NO_MEMORY;
    if (is_link && stat(file->path, st)) {
        *exists = false;
        file->dangling = errno == ENOENT;
        return file->dangling ? SC_OK : sc_file_error(where, "stat");
    }
    if (!*exists || !S_ISDIR(st->st_mode))
        return *exists ? sc_file_check_kind(st, where) : SC_OK;
    errno = EISDIR; /* an exchange of names would succeed and hide the folder */
    return sc_file_error(where, "open");
}

static enum sc_status
begin(struct sc_newfile *file, const char *path, const char *staging, bool shared, struct sc_where *where)
{
    enum sc_status status;
    struct stat st;
    bool exists;

    sc_closer_wait();
    *file = (struct sc_newfile){ .fd = -1, .at = -1, .staging = staging, .is_shared = shared };
    status = look(file, path, &st, &exists, where);
    if (!status)
        status = open_new(file, shared, where);
    if (!status && exists)
        status = sc_attributes_copy(file->fd, file->path, &st, file->guarded, where);
    if (status)
        sc_newfile_abort(file);
    return status;
}

enum sc_status
sc_newfile_begin(struct sc_newfile *file, const char *path, const char *staging, struct sc_where *where)
{
    return begin(file, path, staging, false, where);
}

/* ---- shared by processes ---- */

enum sc_status
sc_newfile_begin_shared(struct sc_newfile *file, const char *path, const char *staging, struct sc_where *where)
{
    return begin(file, path, staging, true, where);
}

/* Open the file by its temporary name, which must still name a regular file. */
static enum sc_status
open_again(struct sc_newfile *file, struct sc_where *where)
{
    enum sc_status status;
    struct stat st, staged;

    file->fd = sc_file_open_now(file->temp, SC_FOR_WRITING | O_NOFOLLOW);
    if (file->fd < 0)
        return sc_file_open_failed(file->temp, where);
    status = fstat(file->fd, &st) ? sc_file_error(where, "fstat") : sc_file_check_kind(&st, where);
    if (!status && file->at >= 0 &&
        (fstatat(file->at, sc_newfile_temp(file), &staged, AT_SYMLINK_NOFOLLOW) || staged.st_ino != st.st_ino)) {
        errno = ESTALE; /* the path no longer leads through the folder that was found safe */
        status = sc_file_error(where, "open");
    }
    if (status) {
        sc_file_close(file->fd);
        file->fd = -1;
    }
    return status;
}

static enum sc_status
open_join(struct sc_newfile *file, struct sc_where *where)
{
    if (file->staged && (file->at = sc_staging_open(file->staging)) < 0)
        return sc_file_error(where, "open");
    return open_again(file, where);
}

enum sc_status
sc_newfile_join(struct sc_newfile *file, const char *path, const char *temp, const char *staging, unsigned n_made,
                struct sc_where *where)
{
    enum sc_status status;

    *file = (struct sc_newfile){ .fd = -1, .at = -1, .staging = staging, .staged = staging != NULL, .n_made = n_made };
    file->path = sc_strdup(path);
    file->temp = sc_strdup(temp);
    if (!file->path || !file->temp) {
        forget(file);
        return SC_NO_MEMORY;
    }
    status = open_join(file, where);
    if (status) {
        forget(file);
        return status;
    }
    file->named = file->is_shared = true;
    return SC_OK;
}

/* The last check of what was written: an error that comes later could not be reported. */
static enum sc_status
flush(const struct sc_newfile *file, bool sync, struct sc_where *where)
{
    return sc_file_flush(file->fd, file->path, sync ? SC_SYNC_ALL : SC_SYNC_NONE, where);
}

enum sc_status
sc_newfile_leave(struct sc_newfile *file, bool sync, struct sc_where *where)
{
    enum sc_status status = flush(file, sync, where);

    if (!status)
        sc_newfile_disown(file);
    return status;
}

void
sc_newfile_disown(struct sc_newfile *file)
{
    sc_file_close(file->fd);
    forget(file);
}

/* ---- commit ---- */

/* Everything is written. Close a named file; only a nameless one needs its descriptor for the next step. */
static enum sc_status
close_named(struct sc_newfile *file, struct sc_where *where)
{
    int fd = file->fd;

    if (!file->named)
        return SC_OK;
    file->fd = -1;
    return close(fd) && errno != EINTR ? sc_file_error(where, "close") : SC_OK; /* EINTR: it was flushed before */
}

static enum sc_status
name(struct sc_newfile *file, bool *taken, struct sc_where *where)
{
    enum sc_status status = close_named(file, where);

    return status ? status : sc_newfile_give_name(file, taken, where);
}

/* After an error, or if another file seems to have the name: true if the name leads to the new file. The answer of the server to the
 * call that has done this was lost. The inode alone does not tell: that of a new file which a fence has removed is given to the next
 * one. */
static bool
has_name(const struct sc_newfile *file, const struct sc_file_id *made)
{
    struct sc_file_id found;
    struct stat st;

    sc_lock_look_at_folder(file->path);
    if (sc_lock_stat_now(AT_FDCWD, file->path, &st))
        return false;
    sc_file_id_of(&st, 0, &found);
    return found.inode == made->inode && found.device == made->device && found.nbytes == made->nbytes &&
           found.mtime_ns == made->mtime_ns;
}

/* After a rename or link under a lock file: find out what it has done if its answer was lost. */
static enum sc_status
look_again(struct sc_newfile *file, const struct sc_file_id *made, bool *taken, enum sc_status status,
           const struct sc_where *where)
{
    bool is_open = status == SC_IO ? sc_guard_explains(where->sys_errno) : taken && *taken;

    if (!is_open || !has_name(file, made))
        return status;
    file->named = taken && *taken; /* after a link the temporary name is there, too */
    if (taken)
        *taken = false;
    return SC_OK;
}

/* Step 7 of sc_guard.h, with a second name of the new file if one is needed, or of the old one (SMB). */
static enum sc_status
give_name_guarded(struct sc_newfile *file, struct sc_guard *guard, const struct sc_file_id *made, bool *taken,
                  struct sc_where *where)
{
    const char *temp = strrchr(file->temp, '/') + 1;
    bool moves = guard->kind == SC_GUARD_SMB && !taken;
    enum sc_status status;
    struct sc_kept next;

    errno = moves ? sc_kept_move(&guard->kept, guard->at, guard->shard, file->path, &next)
                  : sc_kept_link(&guard->kept, guard->at, temp, &next);
    status = errno ? sc_file_error(where, moves ? "rename" : "link") : sc_newfile_give_name(file, taken, where);
    if (status)
        sc_kept_failed(guard->at, guard->shard, file->path, guard->seen.inode, temp, where->sys_errno);
    status = look_again(file, made, taken, status, where);
    if (!status && !moves && !(taken && *taken))
        sc_kept_pass(&guard->kept, guard->at, &next);
    else if (!status || !moves) /* the old shard may have no other name */
        sc_kept_pass(&next, guard->at, &guard->kept);
    return status;
}

/* Steps 4 to 7 of sc_guard.h. */
static enum sc_status
name_guarded(struct sc_newfile *file, struct sc_lock *lock, bool *taken, struct sc_where *where)
{
    enum sc_status status = SC_OK;
    struct sc_file_id made;

    if (!file->guarded && sc_newfile_move_to_guard(file, &lock->guard))
        status = sc_file_error(where, "rename");
    if (!status)
        status = sc_file_identify_open(file->fd, &made, where);
    if (!status)
        status = close_named(file, where);
    sc_lock_close_shard(lock);
    if (!status && (errno = sc_guard_check(&lock->guard, lock->path, strrchr(file->temp, '/') + 1)))
        status = sc_file_error(where, "pread");
    if (!status)
        status = give_name_guarded(file, &lock->guard, &made, taken, where);
    if (!status && !(taken && *taken))
        lock->guard.seen = made;
    if (status == SC_IO && sc_guard_explains(where->sys_errno)) {
        lock->has_failed = true;
        where->sys_errno = ESTALE;
    }
    return status;
}

enum sc_status
sc_newfile_commit(struct sc_newfile *file, bool sync, bool *taken, struct sc_file_version *made, struct sc_where *where)
{
    enum sc_status status = flush(file, sync, where);
    struct sc_lock *lock = sc_lock_guarding(file->path);

    if (taken)
        *taken = false;
    if (file->dangling)
        taken = NULL;
    if (!status && made)
        status = sc_file_version_now(file->fd, made, where);
    if (!status)
        status = lock ? name_guarded(file, lock, taken, where) : name(file, taken, where);
    if (!status && taken && *taken) {
        status = file->fd < 0 ? open_again(file, where) : SC_OK;
        if (!status)
            return SC_OK;
        *taken = false;
    }
    if (!status && sync)
        status = sc_file_sync_folders(file->path, file->n_made, where);
    sc_newfile_abort(file);
    return status;
}

void
sc_newfile_abort(struct sc_newfile *file)
{
    if (file->named)
        sc_newfile_unlink_temp(file); /* if it stays, the next writer removes it */
    sc_file_close(file->fd); /* its bytes are not needed, or were flushed before it got its name */
    forget(file);
}
