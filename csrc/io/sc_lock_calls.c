/* sc_lock_calls.c - the calls for locks: a byte of a file, and a look at its folder (see sc_lock.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
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
