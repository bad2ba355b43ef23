/* sc_lock_calls.c - the calls for locks: a byte of a file, and a look at its folder (see sc_lock.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "io/sc_file.h"
#include "io/sc_lock_impl.h"

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

bool
sc_lock_is_free(int fd)
{
    return sc_lock_set(fd, SC_LOCK_OFFSET, F_WRLCK) == 0;
}

int
sc_lock_look_at_folder(const char *path)
{
    char *folder = sc_file_folder_of(path);
    struct stat st;
    uint64_t mount_id;
    int r = -1;

    if (folder) /* also for its times: NFS asks the server only for what can change */
        r = sc_lock_stat(AT_FDCWD, folder, &st, &mount_id);
    else
        errno = ENOMEM;
    sc_free(folder);
    return r;
}

int
sc_lock_stat_now(int fd, const char *path, struct stat *st)
{
    uint64_t mount_id;

    return sc_lock_stat(fd, path, st, &mount_id);
}

/* Seconds after which no client shows an old name: a second or some, and the difference of the clocks of two machines. */
#define OLD_NAME_SECONDS 60

/* True if the list of a folder, which the server makes anew, has this name for this inode. */
static bool
is_listed(const char *folder, const char *name, uint64_t inode)
{
    DIR *list = opendir(folder);
    const struct dirent *d = NULL;
    bool found;

    while (list && (d = readdir(list)) && strcmp(d->d_name, name) != 0)
        ;
    found = d && (uint64_t)d->d_ino == inode;
    if (list)
        closedir(list);
    return found;
}

bool
sc_lock_has_name(const char *path, const struct stat *state)
{
    const char *name = strrchr(path, '/');
    char *folder;
    bool found;

    if (state->st_ctim.tv_sec < time(NULL) - OLD_NAME_SECONDS)
        return true;
    folder = sc_file_folder_of(path);
    found = folder && is_listed(folder, name ? name + 1 : path, (uint64_t)state->st_ino);
    sc_free(folder);
    return found;
}
