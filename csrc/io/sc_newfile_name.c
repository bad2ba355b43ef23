/* sc_newfile_name.c - the names of a new file: a temporary one, then the final one (see sc_newfile.h)
 *
 * sc_newfile.c proves that a kill between any two of these calls leaves the old object or the new one.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_newfile_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "base/sc_alloc.h"
#include "io/sc_lock.h"
#include "io/sc_mount.h"
#include "io/sc_staging.h"

static atomic_bool was_unguarded;

bool
sc_newfile_was_unguarded(void)
{
    return atomic_exchange_explicit(&was_unguarded, false, memory_order_relaxed);
}

#define NOREPLACE 1u
#define EXCHANGE 2u

bool
sc_newfile_name_temp(struct sc_newfile *file, const char *folder)
{
    sc_newfile_leave_staging(file);
    sc_free(file->temp);
    file->temp = sc_staging_name(folder, sc_lock_shard(folder, file->path), 0);
    return file->temp != NULL;
}

int
sc_newfile_enter_staging(struct sc_newfile *file)
{
    if (!sc_newfile_name_temp(file, file->staging)) {
        errno = ENOMEM;
        return -1;
    }
    file->at = sc_staging_open(file->staging);
    return file->at < 0 ? -1 : 0;
}

void
sc_newfile_leave_staging(struct sc_newfile *file)
{
    sc_file_close(file->at);
    file->at = -1;
}

int
sc_newfile_unlink_temp(const struct sc_newfile *file)
{
    return sc_file_allows("unlink", file->temp, NULL) ? unlinkat(sc_newfile_at(file), sc_newfile_temp(file), 0) : -1;
}

/* Link a nameless file to a name in a folder. path: for the hook. */
static int
link_to(const struct sc_newfile *file, int folder, const char *name, const char *path)
{
    char self[64];

    if (!sc_file_allows("linkat", path, NULL))
        return -1;
    snprintf(self, sizeof self, "/proc/self/fd/%d", file->fd);
    return linkat(AT_FDCWD, self, folder, name, AT_SYMLINK_FOLLOW);
}

static int
link_temp_name(const struct sc_newfile *file)
{
    return link_to(file, sc_newfile_at(file), sc_newfile_temp(file), file->temp);
}

int
sc_newfile_enter_guard(struct sc_newfile *file, const struct sc_guard *guard)
{
    int at = fcntl(guard->at, F_DUPFD_CLOEXEC, 0);
    char *temp =
        at < 0 ? NULL
               : sc_staging_name(guard->folder, guard->shard, guard->kind == SC_GUARD_SMB ? 0 : guard->seen.inode);

    if (!temp) {
        errno = at < 0 ? errno : ENOMEM;
        sc_file_close(at);
        return -1;
    }
    file->at = at;
    file->temp = temp;
    file->guarded = true;
    return 0;
}

int
sc_newfile_move_to_guard(struct sc_newfile *file, const struct sc_guard *guard)
{
    struct sc_newfile before = *file;
    struct stat st;
    int r;

    if (fstat(file->fd, &st) || !sc_file_allows("fchmod", file->path, NULL))
        return -1;
    fchmod(file->fd, (st.st_mode & 07777) | SC_GUARD_MARK); /* not every server has this bit */
    if (sc_newfile_enter_guard(file, guard))
        return -1;
    if (!before.named)
        r = link_temp_name(file);
    else
        r = sc_file_allows("rename", file->temp, NULL)
                ? renameat(sc_newfile_at(&before), sc_newfile_temp(&before), file->at, sc_newfile_temp(file))
                : -1;
    if (r) { /* the caller aborts it under the old name */
        sc_newfile_leave_staging(file);
        sc_free(file->temp);
        *file = before;
        return -1;
    }
    file->named = true;
    sc_file_close(before.at);
    sc_free(before.temp);
    return 0;
}

/* Rename the temporary name to the final one. */
static int
rename_with(const struct sc_newfile *file, unsigned flags)
{
#if defined(__linux__) && defined(SYS_renameat2)
    if (!sc_file_allows("renameat2", file->path, NULL))
        return -1;
    return (int)syscall(SYS_renameat2, sc_newfile_at(file), sc_newfile_temp(file), AT_FDCWD, file->path, flags);
#else
    (void)file, (void)flags;
    errno = ENOSYS;
    return -1;
#endif
}

/* EPERM is the answer of FUSE file systems and of FAT. */
static bool
links_unsupported(int error)
{
    return error == EMLINK || sc_file_call_refused(error);
}

/* True if a name beside the shard may be possible where one in the staging folder is not. */
static bool
is_possible_beside(int error)
{
    return error == ENOENT || error == EXDEV || error == EACCES || error == EPERM || error == EROFS ||
           error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG;
}

static int
link_staged(struct sc_newfile *file)
{
    int r = -1;

    /* another process may remove the folder after it was made and before it is used */
    for (int attempt = 0; r && attempt < SC_NEWFILE_MAX_ATTEMPTS; attempt++) {
        if (sc_newfile_enter_staging(file))
            return -1;
        r = link_temp_name(file);
        file->staged = true;
        if (r && errno != ENOENT)
            break;
    }
    return r;
}

/* Give a nameless file a temporary name: in the staging folder, or else beside its own. */
static int
link_temp(struct sc_newfile *file)
{
    char *folder;
    int r = -1;

    if (file->staging && ((r = link_staged(file)) == 0 || !is_possible_beside(errno)))
        return r;
    folder = sc_file_folder_of(file->path);
    if (folder && sc_newfile_name_temp(file, folder)) {
        sc_staging_sweep_once(folder);
        r = link_temp_name(file);
    }
    sc_free(folder);
    return r;
}

/* Take the place of no file, where a name cannot be given on this condition (no hard links, no flags of renameat2). Two writers
 * that make the same new file at the same moment do not notice each other: the later one wins. */
static enum sc_status
take_unguarded(struct sc_newfile *file, bool *taken, struct sc_where *where)
{
    struct stat st;

    if (lstat(file->path, &st) == 0) {
        *taken = true;
        return SC_OK;
    }
    if (errno != ENOENT)
        return sc_file_error(where, "lstat");
    if (!sc_file_allows("rename", file->path, NULL) ||
        renameat(sc_newfile_at(file), sc_newfile_temp(file), AT_FDCWD, file->path))
        return sc_file_error(where, "rename");
    *taken = false;
    atomic_store_explicit(&was_unguarded, true, memory_order_relaxed);
    return SC_OK;
}

static enum sc_status
remove_displaced(struct sc_newfile *file, struct sc_where *where)
{
    if (sc_newfile_unlink_temp(file) == 0)
        return SC_OK;
    sc_file_error(where, "unlink");
    /* the old file cannot be removed: restore it, so that the failure has changed nothing */
    return rename_with(file, EXCHANGE) == 0 ? SC_IO : SC_OK;
}

/* Rename the old file away, rename the new one to its name, and remove the old one. A client of SMB that renames a file over one that any
 * node has open fails, and removes the old one. If this process is killed in between, the old file stays under a name that no sweep
 * removes. */
static enum sc_status
take_place_in_turn(struct sc_newfile *file, struct sc_where *where)
{
    char *old = sc_format("%s.old", sc_newfile_temp(file));
    enum sc_status status = old ? SC_OK : SC_NO_MEMORY;

    if (old &&
        (!sc_file_allows("rename", file->path, NULL) || renameat(AT_FDCWD, file->path, sc_newfile_at(file), old)))
        status = errno == ENOENT ? SC_OK : sc_file_error(where, "rename");
    if (!status && (!sc_file_allows("rename", file->path, NULL) ||
                    renameat(sc_newfile_at(file), sc_newfile_temp(file), AT_FDCWD, file->path))) {
        status = sc_file_error(where, "rename");
        renameat(sc_newfile_at(file), old, AT_FDCWD, file->path);
    }
    if (!status && sc_file_allows("unlink", file->path, NULL))
        unlinkat(sc_newfile_at(file), old, 0);
    sc_free(old);
    return status;
}

/* After a rename or link of the temporary name has failed. ENOENT in a folder that exists: the temporary name is gone, so it is ESTALE, and
 * the caller writes the file once more. GlusterFS removes a folder although another client has just made a file in it, and the user may
 * remove the staging folder. */
static enum sc_status
naming_failed(const struct sc_newfile *file, const char *call, struct sc_where *where)
{
    int error = errno;

    if (error == ENOENT && !file->guarded && !file->is_shared && sc_lock_look_at_folder(file->path) == 0)
        error = ESTALE;
    errno = error;
    return sc_file_error(where, call);
}

/* Replace the final name, whatever it names, by the temporary one. */
static enum sc_status
take_place(struct sc_newfile *file, struct sc_where *where)
{
    if (rename_with(file, EXCHANGE) == 0)
        return remove_displaced(file, where);
    if (errno != ENOENT && !sc_file_call_refused(errno))
        return sc_file_error(where, "renameat2");
    if (!file->guarded && sc_mount_is_smb(file->path))
        return take_place_in_turn(file, where);
    if (!sc_file_allows("rename", file->path, NULL) ||
        renameat(sc_newfile_at(file), sc_newfile_temp(file), AT_FDCWD, file->path))
        return naming_failed(file, "rename", where);
    return SC_OK;
}

/* Rename the temporary name to the final one, unless the final one exists. */
static enum sc_status
take_free_place(struct sc_newfile *file, bool *taken, struct sc_where *where)
{
    if (rename_with(file, NOREPLACE) == 0)
        return SC_OK;
    if (errno == EEXIST) {
        *taken = true;
        return SC_OK;
    }
    if (!sc_file_call_refused(errno))
        return naming_failed(file, "renameat2", where);
    if (!sc_file_allows("link", file->path, NULL))
        return sc_file_error(where, "link");
    if (linkat(sc_newfile_at(file), sc_newfile_temp(file), AT_FDCWD, file->path, 0)) {
        *taken = errno == EEXIST;
        if (!*taken && links_unsupported(errno))
            return take_unguarded(file, taken, where);
        return *taken ? SC_OK : naming_failed(file, "link", where);
    }
    *taken = false;
    sc_newfile_unlink_temp(file); /* the file has two names now; if this one stays, a later writer removes it */
    return SC_OK;
}

enum sc_status
sc_newfile_give_name(struct sc_newfile *file, bool *taken, struct sc_where *where)
{
    enum sc_status status;

    if (!file->named) {
        if (link_to(file, AT_FDCWD, file->path, file->path) == 0)
            return SC_OK;
        if (errno != EEXIST)
            return sc_file_error(where, "linkat");
        if (taken) {
            *taken = true;
            return SC_OK;
        }
        if (link_temp(file))
            return file->temp ? sc_file_error(where, "linkat") : SC_NO_MEMORY;
        file->named = true;
    }
    status = taken ? take_free_place(file, taken, where) : take_place(file, where);
    if (!status && !(taken && *taken))
        file->named = false;
    return status;
}
