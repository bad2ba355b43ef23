/* crash_record.c - a preloaded library that records every call which changes a file system, with its data
 *
 * crash_begin(fd, kept) starts a record, which is appended to fd; crash_mark(n) adds a mark; -1 stops it. A file that loses
 * its last name is moved to the folder `kept`, under its inode, so that no other file gets that. A call is made and recorded
 * under one mutex, so the record has the order of the calls. A name is the inode of its folder and the last part of the path.
 * Calls that no operation makes (writev, sendfile) are not here; the comparison of the replay with the files would notice them.
 * crash_hold_syncs(1) makes every later sync return at once.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { CREATE = 1, WRITE, SIZE, SYNC, LINK, UNLINK, RENAME, EXCHANGE, MARK };

struct entry {
    uint32_t kind, flag;
    uint64_t inode, other; /* other: the second inode of an exchange; the folder of a nameless file */
    uint64_t folder, to_folder;
    uint64_t offset;
    uint32_t name, to_name, data, unused; /* bytes that follow */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1, kept_fd = -1;
static int holds_syncs;

#define REAL(name) ((__typeof__(&name))next(#name))

static void *
next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);

    if (!found)
        abort();
    return found;
}

static void
put(const void *bytes, size_t n)
{
    while (n) {
        long r = REAL(write)(log_fd, bytes, n);

        if (r <= 0)
            abort();
        bytes = (const char *)bytes + r;
        n -= (size_t)r;
    }
}

static void
record(struct entry entry, const char *name, const char *to_name, const void *data, size_t n)
{
    int saved = errno;

    entry.name = name ? (uint32_t)strlen(name) : 0;
    entry.to_name = to_name ? (uint32_t)strlen(to_name) : 0;
    entry.data = (uint32_t)n;
    put(&entry, sizeof entry);
    put(name, entry.name);
    put(to_name, entry.to_name);
    put(data, n);
    errno = saved;
}

void
crash_begin(int fd, int kept)
{
    pthread_mutex_lock(&mutex);
    log_fd = fd;
    kept_fd = kept;
    pthread_mutex_unlock(&mutex);
}

void
crash_mark(uint32_t n)
{
    pthread_mutex_lock(&mutex);
    if (log_fd >= 0)
        record((struct entry){ .kind = MARK, .flag = n }, NULL, NULL, NULL, 0);
    pthread_mutex_unlock(&mutex);
}

void
crash_hold_syncs(int on)
{
    holds_syncs = on;
}

/* ---- what a call is about ---- */

static uint64_t
inode_of(int folder, const char *path, int flags)
{
    struct stat st;
    int saved = errno;
    uint64_t inode = fstatat(folder, path, &st, flags) == 0 ? (uint64_t)st.st_ino : 0;

    errno = saved;
    return inode;
}

static uint64_t
inode_of_open(int fd)
{
    return inode_of(fd, "", AT_EMPTY_PATH);
}

struct place {
    uint64_t folder;
    char name[256];
};

static struct place
place_of(int folder, const char *path)
{
    struct place place = { 0 };
    char above[4096];
    const char *slash;
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    slash = memrchr(path, '/', n);
    snprintf(above, sizeof above, "%.*s", slash == path ? 1 : (int)(slash ? slash - path : 0), path);
    snprintf(place.name, sizeof place.name, "%.*s", (int)(slash ? path + n - slash - 1 : path + n - path),
             slash ? slash + 1 : path);
    place.folder = *above ? inode_of(folder, above, 0) : inode_of(folder, folder == AT_FDCWD ? "." : "", AT_EMPTY_PATH);
    return place;
}

/* Move a file away that is about to lose its last name. True: it was moved. */
static int
kept(int folder, const char *path)
{
    struct stat st;
    char name[32];
    int saved = errno, r;

    if (log_fd < 0 || fstatat(folder, path, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode) || st.st_nlink != 1) {
        errno = saved;
        return 0;
    }
    snprintf(name, sizeof name, "%llu", (unsigned long long)st.st_ino);
    r = (int)REAL(syscall)(SYS_renameat2, folder, path, kept_fd, name, RENAME_NOREPLACE);
    errno = saved;
    return r == 0;
}

#define LOCKED(call)                  \
    do {                              \
        pthread_mutex_lock(&mutex);   \
        call;                         \
        pthread_mutex_unlock(&mutex); \
    } while (0)

/* ---- bytes and sizes ---- */

static void
wrote(int fd, const void *data, ssize_t n, uint64_t offset)
{
    int flags = fcntl(fd, F_GETFL);

    if (log_fd >= 0 && fd != log_fd && n > 0 && flags >= 0)
        record(
            (struct entry){
                .kind = WRITE, .flag = (flags & O_DIRECT) != 0, .inode = inode_of_open(fd), .offset = offset },
            NULL, NULL, data, (size_t)n);
}

/* The bytes that a call has copied from another file are read there. */
static void
copied(int fd, int from, uint64_t from_offset, ssize_t n, uint64_t offset)
{
    char *data = n > 0 && log_fd >= 0 ? malloc((size_t)n) : NULL;

    if (data && pread(from, data, (size_t)n, (off_t)from_offset) == n)
        wrote(fd, data, n, offset);
    free(data);
}

static uint64_t
position(int fd, ssize_t n)
{
    int saved = errno;
    off_t end = lseek(fd, 0, SEEK_CUR);

    errno = saved;
    return end < n || n < 0 ? 0 : (uint64_t)(end - n);
}

ssize_t
write(int fd, const void *data, size_t n)
{
    ssize_t r;

    if (log_fd < 0)
        return REAL(write)(fd, data, n);
    LOCKED(r = REAL(write)(fd, data, n); wrote(fd, data, r, position(fd, r)));
    return r;
}

ssize_t
pwrite(int fd, const void *data, size_t n, off_t offset)
{
    ssize_t r;

    LOCKED(r = REAL(pwrite)(fd, data, n, offset); wrote(fd, data, r, (uint64_t)offset));
    return r;
}

ssize_t
pwrite64(int fd, const void *data, size_t n, off64_t offset)
{
    return pwrite(fd, data, n, offset);
}

/* One write: all its bytes appear together if it is direct. */
static void
wrote_parts(int fd, const struct iovec *parts, int n_parts, ssize_t n, uint64_t offset)
{
    char *data = n > 0 && log_fd >= 0 ? malloc((size_t)n) : NULL;
    size_t done = 0;

    for (int i = 0; data && i < n_parts && done < (size_t)n; i++) {
        size_t part = parts[i].iov_len < (size_t)n - done ? parts[i].iov_len : (size_t)n - done;

        memcpy(data + done, parts[i].iov_base, part);
        done += part;
    }
    if (data)
        wrote(fd, data, n, offset);
    free(data);
}

ssize_t
pwritev(int fd, const struct iovec *parts, int n_parts, off_t offset)
{
    ssize_t r;

    LOCKED(r = REAL(pwritev)(fd, parts, n_parts, offset); wrote_parts(fd, parts, n_parts, r, (uint64_t)offset));
    return r;
}

ssize_t
pwritev64(int fd, const struct iovec *parts, int n_parts, off64_t offset)
{
    return pwritev(fd, parts, n_parts, offset);
}

ssize_t
copy_file_range(int from, off64_t *in, int fd, off64_t *out, size_t n, unsigned flags)
{
    uint64_t from_offset = in ? (uint64_t)*in : position(from, 0), offset = out ? (uint64_t)*out : position(fd, 0);
    ssize_t r;

    LOCKED(r = REAL(copy_file_range)(from, in, fd, out, n, flags); copied(fd, from, from_offset, r, offset));
    return r;
}

int
ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    void *argument;
    int r;

    va_start(rest, request);
    argument = va_arg(rest, void *);
    va_end(rest);
    if (request != FICLONERANGE || log_fd < 0)
        return REAL(ioctl)(fd, request, argument);
    pthread_mutex_lock(&mutex);
    r = REAL(ioctl)(fd, request, argument);
    if (r == 0) {
        struct file_clone_range *range = argument;

        copied(fd, (int)range->src_fd, range->src_offset, (ssize_t)range->src_length, range->dest_offset);
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

int
ftruncate(int fd, off_t n)
{
    int r;

    LOCKED(r = REAL(ftruncate)(fd, n); if (!r && log_fd >= 0) record(
               (struct entry){ .kind = SIZE, .inode = inode_of_open(fd), .offset = (uint64_t)n }, NULL, NULL, NULL, 0));
    return r;
}

int
ftruncate64(int fd, off64_t n)
{
    return ftruncate(fd, n);
}

/* ---- syncs ---- */

static void
synced(int fd, int r, unsigned data_only)
{
    if (r == 0 && log_fd >= 0)
        record((struct entry){ .kind = SYNC, .flag = data_only, .inode = inode_of_open(fd) }, NULL, NULL, NULL, 0);
}

int
fsync(int fd)
{
    int r;

    if (holds_syncs)
        return 0;
    LOCKED(r = REAL(fsync)(fd); synced(fd, r, 0));
    return r;
}

int
fdatasync(int fd)
{
    int r;

    if (holds_syncs)
        return 0;
    LOCKED(r = REAL(fdatasync)(fd); synced(fd, r, 1));
    return r;
}

/* ---- names ---- */

static void
made(int folder, const char *path, int is_folder)
{
    struct place place = place_of(folder, path);

    record(
        (struct entry){
            .kind = CREATE, .flag = (uint32_t)is_folder, .inode = inode_of(folder, path, 0), .folder = place.folder },
        place.name, NULL, NULL, 0);
}

static int
open_in(int folder, const char *path, int flags, mode_t mode)
{
    uint64_t before;
    int fd;

    if (log_fd < 0 || !(flags & (O_CREAT | O_TRUNC | __O_TMPFILE)))
        return REAL(openat)(folder, path, flags, mode);
    pthread_mutex_lock(&mutex);
    before = inode_of(folder, path, 0);
    fd = REAL(openat)(folder, path, flags, mode);
    if (fd >= 0 && (flags & O_TMPFILE) == O_TMPFILE)
        record((struct entry){ .kind = CREATE, .inode = inode_of_open(fd), .other = before }, NULL, NULL, NULL, 0);
    else if (fd >= 0 && !before)
        made(folder, path, 0);
    else if (fd >= 0 && (flags & O_TRUNC))
        record((struct entry){ .kind = SIZE, .inode = before }, NULL, NULL, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return fd;
}

#define MODE(mode, flags)                    \
    mode_t mode = 0;                         \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list rest;                        \
        va_start(rest, flags);               \
        mode = va_arg(rest, mode_t);         \
        va_end(rest);                        \
    }

int
open(const char *path, int flags, ...)
{
    MODE(mode, flags)
    return open_in(AT_FDCWD, path, flags, mode);
}

int
open64(const char *path, int flags, ...)
{
    MODE(mode, flags)
    return open_in(AT_FDCWD, path, flags, mode);
}

int
openat(int folder, const char *path, int flags, ...)
{
    MODE(mode, flags)
    return open_in(folder, path, flags, mode);
}

int
openat64(int folder, const char *path, int flags, ...)
{
    MODE(mode, flags)
    return open_in(folder, path, flags, mode);
}

int
mkdirat(int folder, const char *path, mode_t mode)
{
    int r;

    LOCKED(r = REAL(mkdirat)(folder, path, mode); if (!r && log_fd >= 0) made(folder, path, 1));
    return r;
}

int
mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int
linkat(int folder, const char *path, int to, const char *to_path, int flags)
{
    int r;

    pthread_mutex_lock(&mutex);
    r = REAL(linkat)(folder, path, to, to_path, flags);
    if (!r && log_fd >= 0) {
        struct place place = place_of(to, to_path);

        record(
            (struct entry){ .kind = LINK, .inode = inode_of(to, to_path, AT_SYMLINK_NOFOLLOW), .folder = place.folder },
            place.name, NULL, NULL, 0);
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

int
link(const char *path, const char *to_path)
{
    return linkat(AT_FDCWD, path, AT_FDCWD, to_path, 0);
}

int
unlinkat(int folder, const char *path, int flags)
{
    struct place place;
    int r;

    pthread_mutex_lock(&mutex);
    place = place_of(folder, path);
    r = kept(folder, path) ? 0 : REAL(unlinkat)(folder, path, flags);
    if (!r && log_fd >= 0)
        record((struct entry){ .kind = UNLINK, .folder = place.folder }, place.name, NULL, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return r;
}

int
unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int
rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

static int
rename_in(int folder, const char *path, int to, const char *to_path, unsigned flags)
{
    struct place from, target;
    int r;

    pthread_mutex_lock(&mutex);
    from = place_of(folder, path);
    target = place_of(to, to_path);
    if (!flags && inode_of(folder, path, 0) && inode_of(folder, path, 0) != inode_of(to, to_path, 0))
        kept(to, to_path);
    r = (int)REAL(syscall)(SYS_renameat2, folder, path, to, to_path, flags);
    if (!r && log_fd >= 0) {
        int exchanges = (flags & RENAME_EXCHANGE) != 0;

        record((struct entry){ .kind = exchanges ? EXCHANGE : RENAME,
                               .inode = inode_of(to, to_path, AT_SYMLINK_NOFOLLOW),
                               .other = exchanges ? inode_of(folder, path, AT_SYMLINK_NOFOLLOW) : 0,
                               .folder = from.folder,
                               .to_folder = target.folder },
               from.name, target.name, NULL, 0);
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

int
rename(const char *path, const char *to_path)
{
    return rename_in(AT_FDCWD, path, AT_FDCWD, to_path, 0);
}

int
renameat(int folder, const char *path, int to, const char *to_path)
{
    return rename_in(folder, path, to, to_path, 0);
}

long
syscall(long number, ...)
{
    long a[6];
    va_list rest;

    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_renameat2)
        return rename_in((int)a[0], (const char *)a[1], (int)a[2], (const char *)a[3], (unsigned)a[4]);
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
