/* sc_lock_calls.c - the calls for locks: a byte of a file, and looks that no cache answers (see sc_lock.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#endif
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
int
sc_lock_stat(int fd, const char *path, struct stat *st, uint64_t *mount_id)
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
