/* sc_file_folders.c - names: folders of files that are written, and removal of a file (see sc_file.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "io/sc_file.h"

uint64_t
sc_file_number(const char *folder, const char *path)
{
    const char *end = strrchr(folder, '/');
    size_t n = end ? (size_t)(end + 1 - folder) : 0;
    uint64_t hash = 0xcbf29ce484222325u;

    if (strncmp(folder, path, n) == 0)
        path += n;
    for (; *path; path++)
        hash = (hash ^ (uint8_t)*path) * 0x100000001b3u; /* FNV-1a */
    return hash ? hash : 1;
}

char *
sc_file_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return sc_strdup(".");
    return sc_strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

bool
sc_file_device_of(const char *path, uint64_t *device)
{
    char *folder = sc_file_folder_of(path), *above;
    bool found = false, is_top;
    struct stat st;

    while (folder && !(found = stat(folder, &st) == 0) && sc_file_means_missing(errno)) {
        above = sc_file_folder_of(folder);
        is_top = above && (!strcmp(above, folder) || !strcmp(folder, "."));
        sc_free(folder);
        folder = above;
        if (is_top)
            break;
    }
    sc_free(folder);
    if (found)
        *device = (uint64_t)st.st_dev;
    return found;
}

/* Return 0 also if another process has made the folder meanwhile. */
static int
make_folder(const char *folder, unsigned *n_made)
{
    if (!sc_file_allows("mkdir", folder, NULL))
        return -1;
    if (mkdir(folder, 0777) == 0) {
        ++*n_made;
        return 0;
    }
    return errno == EEXIST ? 0 : -1;
}

int
sc_file_make_folders(char *folder, unsigned *n_made)
{
    char *slash;
    int r = make_folder(folder, n_made);

    if (r == 0 || errno != ENOENT)
        return r;
    slash = strrchr(folder, '/');
    if (!slash || slash == folder)
        return -1;
    *slash = 0;
    r = sc_file_make_folders(folder, n_made);
    *slash = '/';
    return r ? r : make_folder(folder, n_made);
}

enum sc_status
sc_file_sync_path(const char *path, struct sc_where *where)
{
    enum sc_status status = SC_OK;
    int fd = sc_file_open_now(path, O_RDONLY);

    if (fd < 0)
        return sc_file_error(where, "open");
    if (!sc_file_allows("fsync", path, NULL) ||
        (fsync(fd) && errno != EINVAL)) /* EINVAL: this file system has nothing to sync for a folder */
        status = sc_file_error(where, "fsync");
    sc_file_close(fd);
    return status;
}

enum sc_status
sc_file_sync_folders(const char *path, unsigned n_above, struct sc_where *where)
{
    char *folder = sc_file_folder_of(path);
    enum sc_status status = folder ? SC_OK : SC_NO_MEMORY;

    for (unsigned i = 0; !status && i <= n_above; i++) {
        char *above = i ? sc_file_folder_of(folder) : folder;

        if (i)
            sc_free(folder);
        folder = above;
        status = folder ? sc_file_sync_path(folder, where) : SC_NO_MEMORY;
    }
    sc_free(folder);
    return status;
}

enum sc_status
sc_file_remove(const char *path, bool sync, struct sc_where *where)
{
    struct stat st;

    if (stat(path, &st))
        return sc_file_means_missing(errno) ? SC_OK : sc_file_error(where, "stat");
    if (sc_file_check_kind(&st, where))
        return SC_NOT_A_FILE;
    if (!sc_file_allows("unlink", path, NULL))
        return sc_file_error(where, "unlink");
    if (unlink(path) == 0)
        return sync ? sc_file_sync_folders(path, 0, where) : SC_OK;
    return sc_file_means_missing(errno) ? SC_OK : sc_file_error(where, "unlink");
}
