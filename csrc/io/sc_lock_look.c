/* sc_lock_look.c - the state of a file: without a cache, or only what a cache knows (see sc_lock.h)
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

#include "io/sc_file.h"
#include "io/sc_lock_impl.h"

#if defined(__linux__) && defined(STATX_BASIC_STATS)
#define HAS_STATX 1
#else
#define HAS_STATX 0
#endif

#if HAS_STATX
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

static struct timespec
time_of(struct statx_timestamp t)
{
    return (struct timespec){ .tv_sec = (time_t)t.tv_sec, .tv_nsec = (long)t.tv_nsec };
}

static void
copy_state(const struct statx *now, struct stat *st)
{
    *st = (struct stat){ .st_dev = makedev(now->stx_dev_major, now->stx_dev_minor) };
    st->st_ino = now->stx_ino;
    st->st_mode = now->stx_mode;
    st->st_nlink = now->stx_nlink;
    st->st_uid = now->stx_uid;
    st->st_gid = now->stx_gid;
    st->st_size = (off_t)now->stx_size;
    st->st_mtim = time_of(now->stx_mtime);
    st->st_ctim = time_of(now->stx_ctime);
}
#else
#define AT_EMPTY_PATH 0
#define AT_STATX_FORCE_SYNC 0
#define AT_STATX_DONT_SYNC 0
#define STATX_TYPE 0u
#define STATX_INO 0u
#define STATX_ATIME 0u
#define STATX_BASIC_STATS 0u
#endif

/* statx(), or fstat(), stat() or lstat() where it is missing: in a sandbox, and on older kernels, where glibc's substitute answers
 * EINVAL to AT_STATX_FORCE_SYNC. mount_id: NULL, or set to the number of the mount, 0: unknown. */
static int
stat_with(int fd, const char *path, int flags, unsigned mask, struct stat *st, uint64_t *mount_id)
{
#if HAS_STATX
    struct statx now;

    if (statx(fd, path, flags, mask, &now) == 0) {
        copy_state(&now, st);
        if (mount_id)
            *mount_id = mount_id_of(&now);
        return 0;
    }
    if (!sc_file_call_refused(errno))
        return -1;
#else
    (void)mask;
#endif
    if (mount_id)
        *mount_id = 0;
    if (!*path)
        return fstat(fd, st);
    return fstatat(fd, path, st, flags & AT_SYMLINK_NOFOLLOW);
}

bool
sc_lock_looks_anew(void)
{
#if HAS_STATX
    struct statx now;

    return statx(AT_FDCWD, "/", AT_STATX_FORCE_SYNC, STATX_TYPE, &now) == 0 || !sc_file_call_refused(errno);
#else
    return false;
#endif
}

/* @mount_id: NULL: only device, inode and kind are wanted. */
int
sc_lock_stat(int fd, const char *path, struct stat *st, uint64_t *mount_id)
{
    unsigned mask = STATX_TYPE | STATX_INO;

#if HAS_STATX
    if (mount_id)
        mask |= STATX_NLINK | STATX_SIZE | STATX_MTIME | STATX_CTIME | MOUNT_ID | MOUNT_ID_UNIQUE;
#endif
    return stat_with(fd, path, AT_STATX_FORCE_SYNC | AT_EMPTY_PATH, mask, st, mount_id);
}

int
sc_lock_stat_read(int fd, const char *path, struct stat *st)
{
    return stat_with(fd, path, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS & ~STATX_ATIME, st, NULL);
}

int
sc_lock_look_at_known(const char *path, bool follows, struct sc_file_id *id, bool *is_link)
{
    int flags = AT_STATX_DONT_SYNC | (follows ? 0 : AT_SYMLINK_NOFOLLOW);
    struct stat st;

    if (stat_with(AT_FDCWD, path, flags, STATX_TYPE | STATX_INO, &st, NULL))
        return -1;
    *id = (struct sc_file_id){ .device = (uint64_t)st.st_dev, .inode = (uint64_t)st.st_ino };
    *is_link = S_ISLNK(st.st_mode);
    return 0;
}
