/* sc_newfile_name.c - the names of a new file: a temporary one, then the final one (see sc_newfile.h)
 *
 * sc_newfile.c proves that a kill between any two of these calls leaves the old object or the new one.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_newfile_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "base/sc_alloc.h"
#include "io/sc_staging.h"

#define NOREPLACE 1u
#define EXCHANGE 2u

bool
sc_newfile_name_temp(struct sc_newfile *file, const char *folder)
{
    sc_free(file->temp);
    file->temp = sc_staging_name(folder);
    return file->temp != NULL;
}

/* Link a nameless file to `name`. */
static int
link_to(const struct sc_newfile *file, const char *name)
{
    char self[64];

    if (!sc_file_allows("linkat", name, NULL))
        return -1;
    snprintf(self, sizeof self, "/proc/self/fd/%d", file->fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

static int
rename_with(const char *from, const char *to, unsigned flags)
{
#if defined(__linux__) && defined(SYS_renameat2)
    if (!sc_file_allows("renameat2", to, NULL))
        return -1;
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
#else
    (void)from, (void)to, (void)flags;
    errno = ENOSYS;
    return -1;
#endif
}

static bool
flags_unsupported(int error)
{
    return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == ENOTSUP;
}

/* Give a nameless file a temporary name: in the staging folder, or else beside its own. */
static int
link_temp(struct sc_newfile *file)
{
    char *folder;
    int r = -1;

    if (file->staging) {
        if (!sc_newfile_name_temp(file, file->staging))
            return -1;
        r = link_to(file, file->temp);
        for (int attempt = 0; r && errno == ENOENT && attempt < 8 && sc_staging_make(file->staging) == 0; attempt++)
            r = link_to(file, file->temp);
        file->staged = true;
        if (r == 0 || (errno != ENOENT && errno != EXDEV && errno != EACCES && errno != EPERM && errno != EROFS &&
                       errno != ENOTDIR))
            return r;
    }
    folder = sc_file_folder_of(file->path);
    if (folder && sc_newfile_name_temp(file, folder)) {
        sc_staging_sweep_once(folder);
        r = link_to(file, file->temp);
    }
    sc_free(folder);
    return r;
}

static enum sc_status
remove_displaced(struct sc_newfile *file, struct sc_where *where)
{
    if (sc_file_allows("unlink", file->temp, NULL) && unlink(file->temp) == 0)
        return SC_OK;
    sc_file_error(where, "unlink");
    /* the old file cannot be removed: restore it, so that the failure has changed nothing */
    return rename_with(file->temp, file->path, EXCHANGE) == 0 ? SC_IO : SC_OK;
}

/* Replace the final name, whatever it names, by the temporary one. */
static enum sc_status
take_place(struct sc_newfile *file, struct sc_where *where)
{
    if (rename_with(file->temp, file->path, EXCHANGE) == 0)
        return remove_displaced(file, where);
    if (errno != ENOENT && !flags_unsupported(errno))
        return sc_file_error(where, "renameat2");
    if (!sc_file_allows("rename", file->path, NULL) || rename(file->temp, file->path))
        return sc_file_error(where, "rename");
    return SC_OK;
}

/* Rename the temporary name to the final one, unless the final one exists. */
static enum sc_status
take_free_place(struct sc_newfile *file, bool *taken, struct sc_where *where)
{
    if (rename_with(file->temp, file->path, NOREPLACE) == 0)
        return SC_OK;
    if (errno == EEXIST) {
        *taken = true;
        return SC_OK;
    }
    if (!flags_unsupported(errno))
        return sc_file_error(where, "renameat2");
    if (!sc_file_allows("link", file->path, NULL))
        return sc_file_error(where, "link");
    if (link(file->temp, file->path)) {
        *taken = errno == EEXIST;
        return *taken ? SC_OK : sc_file_error(where, "link");
    }
    *taken = false;
    if (sc_file_allows("unlink", file->temp, NULL))
        unlink(file->temp); /* the file has two names now; if this one stays, a later writer removes it */
    return SC_OK;
}

enum sc_status
sc_newfile_give_name(struct sc_newfile *file, bool *taken, struct sc_where *where)
{
    enum sc_status status;

    if (!file->named) {
        if (link_to(file, file->path) == 0)
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
