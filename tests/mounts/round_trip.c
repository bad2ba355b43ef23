/* round_trip.c - a preloaded library that makes each open and read of files below a folder wait, as on a network mount
 *
 *     gcc -O2 -shared -fPIC -o round_trip.so round_trip.c -ldl
 *     ROUND_TRIP_FOLDER=/data ROUND_TRIP_US=200 LD_PRELOAD=./round_trip.so python ...
 *
 * With ROUND_TRIP_STATS=1 each stat and statfs waits, too, of a name and of an open file: on a cluster each may be a round trip.
 * With ROUND_TRIP_WRITES=1 they wait, and so do the other calls of a writer: locks (fcntl, flock), writes and copies, fsync,
 * changes of names, and closes.
 *
 * ROUND_TRIP_COUNTS=1 prints the number of calls of each kind, and how many of them waited at the same time, to standard error
 * at exit. Calls wait independently of each other, and bytes cost nothing. io_uring, ioctl and listings are not seen.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_FDS 65536

/* The calls of one kind: their number, those that wait now, and the most that waited at the same time. */
struct kind {
    const char *name;
    atomic_ulong n, now, most;
};

enum { OPENS, READS, LOCKS, UNLOCKS, WRITES, SYNCS, NAMES, CLOSES, STATS, N_KINDS };

static struct kind kinds[N_KINDS] = {
    { .name = "opens" }, { .name = "reads" }, { .name = "locks" },  { .name = "unlocks" }, { .name = "writes" },
    { .name = "syncs" }, { .name = "names" }, { .name = "closes" }, { .name = "stats" },
};
static atomic_bool is_slow[MAX_FDS];
static char folder[4096];
static size_t folder_nbytes;
static long delay_ns;
static bool delays_writes, delays_stats;

__attribute__((constructor)) static void
begin(void)
{
    const char *where = getenv("ROUND_TRIP_FOLDER"), *us = getenv("ROUND_TRIP_US"),
               *writes = getenv("ROUND_TRIP_WRITES"), *stats = getenv("ROUND_TRIP_STATS");

    if (where)
        snprintf(folder, sizeof folder, "%s", where);
    folder_nbytes = strlen(folder);
    delay_ns = us ? (long)(1e3 * atof(us)) : 0;
    delays_writes = writes && !strcmp(writes, "1");
    delays_stats = delays_writes || (stats && !strcmp(stats, "1"));
    prctl(PR_SET_TIMERSLACK, 1000L); /* all threads inherit it: a short sleep is not rounded up by 50 us */
}

__attribute__((destructor)) static void
end(void)
{
    if (!getenv("ROUND_TRIP_COUNTS"))
        return;
    for (int i = 0; i < N_KINDS; i++)
        fprintf(stderr, "%s %lu at most %lu\n", kinds[i].name, atomic_load(&kinds[i].n), atomic_load(&kinds[i].most));
}

static void
wait_for_it(int which)
{
    struct timespec delay = { delay_ns / 1000000000, delay_ns % 1000000000 };
    struct kind *kind = &kinds[which];
    unsigned long now = atomic_fetch_add(&kind->now, 1) + 1, most = atomic_load(&kind->most);

    atomic_fetch_add(&kind->n, 1);
    while (most < now && !atomic_compare_exchange_weak(&kind->most, &most, now))
        ;
    if (delay_ns)
        nanosleep(&delay, NULL);
    atomic_fetch_sub(&kind->now, 1);
}

static bool
is_below(const char *path)
{
    return path && folder_nbytes && !strncmp(path, folder, folder_nbytes);
}

static bool
is_slow_fd(int fd)
{
    return fd >= 0 && fd < MAX_FDS && atomic_load(&is_slow[fd]);
}

static int
opened(int fd, const char *path)
{
    bool slow = is_below(path);

    if (slow)
        wait_for_it(OPENS);
    if (fd >= 0 && fd < MAX_FDS)
        atomic_store(&is_slow[fd], slow);
    return fd;
}

static void
before_read(int fd)
{
    if (is_slow_fd(fd))
        wait_for_it(READS);
}

/* True if calls of this kind, which a reader need not make, wait. */
static bool
delays(int which)
{
    return which == STATS ? delays_stats : delays_writes;
}

/* A call on an open file. */
static void
before_write(int fd, int which)
{
    if (delays(which) && is_slow_fd(fd))
        wait_for_it(which);
}

/* The same for a name, which may be relative to an open folder, or empty: then it is that of the open file. */
static void
before_name(int at, const char *path, int which)
{
    if (delays(which) && (is_below(path) || (path && *path != '/' && is_slow_fd(at))))
        wait_for_it(which);
}

static int
duplicated(int fd, int from)
{
    if (delays_stats && fd >= 0 && fd < MAX_FDS)
        atomic_store(&is_slow[fd], is_slow_fd(from));
    return fd;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags, last)                  \
    mode_t mode = 0;                       \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list more;                      \
        va_start(more, last);              \
        mode = va_arg(more, mode_t);       \
        va_end(more);                      \
    }

#define OPEN(name)                                    \
    int name(const char *path, int flags, ...)        \
    {                                                 \
        static __typeof__(&name) next;                \
        MODE(flags, flags)                            \
        if (!next)                                    \
            next = NEXT(name);                        \
        return opened(next(path, flags, mode), path); \
    }
#define OPENAT(name)                                      \
    int name(int at, const char *path, int flags, ...)    \
    {                                                     \
        static __typeof__(&name) next;                    \
        MODE(flags, flags)                                \
        if (!next)                                        \
            next = NEXT(name);                            \
        return opened(next(at, path, flags, mode), path); \
    }
#define PREAD(name, offset_t)                                  \
    ssize_t name(int fd, void *dst, size_t n, offset_t offset) \
    {                                                          \
        static __typeof__(&name) next;                         \
        if (!next)                                             \
            next = NEXT(name);                                 \
        before_read(fd);                                       \
        return next(fd, dst, n, offset);                       \
    }
#define PREADV(name, offset_t)                                           \
    ssize_t name(int fd, const struct iovec *to, int n, offset_t offset) \
    {                                                                    \
        static __typeof__(&name) next;                                   \
        if (!next)                                                       \
            next = NEXT(name);                                           \
        before_read(fd);                                                 \
        return next(fd, to, n, offset);                                  \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
PREAD(pread, off_t)
PREAD(pread64, off64_t)
PREADV(preadv, off_t)
PREADV(preadv64, off64_t)

ssize_t
read(int fd, void *dst, size_t n)
{
    static __typeof__(&read) next;

    if (!next)
        next = NEXT(read);
    before_read(fd);
    return next(fd, dst, n);
}

/* ---- calls of writers ---- */

/* Define a function of the C library that waits first. `prepare` sees its parameters. */
#define WAITING(result, name, parameters, arguments, prepare) \
    result name parameters;                                   \
    result name parameters                                    \
    {                                                         \
        static __typeof__(&name) next;                        \
        if (!next)                                            \
            next = NEXT(name);                                \
        prepare;                                              \
        return next arguments;                                \
    }

#define ON_FD(result, name, parameters, arguments, which) \
    WAITING(result, name, parameters, arguments, before_write(fd, which))
#define ON_NAME(name, parameters, arguments, which) \
    WAITING(int, name, parameters, arguments, before_name(-1, path, which))
#define ON_NAME_AT(name, parameters, arguments, which) \
    WAITING(int, name, parameters, arguments, before_name(at, path, which))

ON_FD(ssize_t, write, (int fd, const void *src, size_t n), (fd, src, n), WRITES)
ON_FD(ssize_t, writev, (int fd, const struct iovec *from, int n), (fd, from, n), WRITES)
ON_FD(ssize_t, pwrite, (int fd, const void *src, size_t n, off_t at), (fd, src, n, at), WRITES)
ON_FD(ssize_t, pwrite64, (int fd, const void *src, size_t n, off64_t at), (fd, src, n, at), WRITES)
ON_FD(ssize_t, pwritev, (int fd, const struct iovec *from, int n, off_t at), (fd, from, n, at), WRITES)
ON_FD(ssize_t, pwritev64, (int fd, const struct iovec *from, int n, off64_t at), (fd, from, n, at), WRITES)
ON_FD(int, ftruncate, (int fd, off_t n), (fd, n), WRITES)
ON_FD(int, ftruncate64, (int fd, off64_t n), (fd, n), WRITES)
ON_FD(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), WRITES)
ON_FD(int, fallocate64, (int fd, int mode, off64_t at, off64_t n), (fd, mode, at, n), WRITES)
WAITING(ssize_t, copy_file_range, (int from, off64_t *in, int fd, off64_t *out, size_t n, unsigned flags),
        (from, in, fd, out, n, flags), before_write(fd, WRITES))
ON_FD(int, fsync, (int fd), (fd), SYNCS)
ON_FD(int, fdatasync, (int fd), (fd), SYNCS)
ON_FD(int, flock, (int fd, int how), (fd, how), LOCKS)

ON_NAME(rename, (const char *from, const char *path), (from, path), NAMES)
ON_NAME_AT(renameat, (int old, const char *from, int at, const char *path), (old, from, at, path), NAMES)
ON_NAME_AT(renameat2, (int old, const char *from, int at, const char *path, unsigned flags),
           (old, from, at, path, flags), NAMES)
ON_NAME(link, (const char *from, const char *path), (from, path), NAMES)
ON_NAME_AT(linkat, (int old, const char *from, int at, const char *path, int flags), (old, from, at, path, flags),
           NAMES)
ON_NAME(symlink, (const char *from, const char *path), (from, path), NAMES)
ON_NAME(unlink, (const char *path), (path), NAMES)
ON_NAME_AT(unlinkat, (int at, const char *path, int flags), (at, path, flags), NAMES)
ON_NAME(rmdir, (const char *path), (path), NAMES)
ON_NAME(mkdir, (const char *path, mode_t mode), (path, mode), NAMES)
ON_NAME_AT(mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), NAMES)

/* Programs that were built with an older C library use the names with underscores. */
ON_NAME(stat, (const char *path, void *found), (path, found), STATS)
ON_NAME(stat64, (const char *path, void *found), (path, found), STATS)
ON_NAME(lstat, (const char *path, void *found), (path, found), STATS)
ON_NAME(lstat64, (const char *path, void *found), (path, found), STATS)
ON_NAME(__xstat, (int version, const char *path, void *found), (version, path, found), STATS)
ON_NAME(__xstat64, (int version, const char *path, void *found), (version, path, found), STATS)
ON_NAME(__lxstat, (int version, const char *path, void *found), (version, path, found), STATS)
ON_NAME(__lxstat64, (int version, const char *path, void *found), (version, path, found), STATS)
ON_NAME_AT(fstatat, (int at, const char *path, void *found, int flags), (at, path, found, flags), STATS)
ON_NAME_AT(fstatat64, (int at, const char *path, void *found, int flags), (at, path, found, flags), STATS)
ON_NAME_AT(__fxstatat, (int version, int at, const char *path, void *found, int flags),
           (version, at, path, found, flags), STATS)
ON_NAME_AT(__fxstatat64, (int version, int at, const char *path, void *found, int flags),
           (version, at, path, found, flags), STATS)
ON_NAME_AT(statx, (int at, const char *path, int flags, unsigned mask, void *found), (at, path, flags, mask, found),
           STATS)
ON_FD(int, fstat, (int fd, void *found), (fd, found), STATS)
ON_FD(int, fstat64, (int fd, void *found), (fd, found), STATS)
ON_FD(int, __fxstat, (int version, int fd, void *found), (version, fd, found), STATS)
ON_FD(int, __fxstat64, (int version, int fd, void *found), (version, fd, found), STATS)
ON_FD(int, fstatfs, (int fd, void *found), (fd, found), STATS)
ON_FD(int, fstatfs64, (int fd, void *found), (fd, found), STATS)
ON_NAME(statfs, (const char *path, void *found), (path, found), STATS)
ON_NAME(statfs64, (const char *path, void *found), (path, found), STATS)
ON_NAME(access, (const char *path, int mode), (path, mode), STATS)

int
close(int fd)
{
    static __typeof__(&close) next;

    if (!next)
        next = NEXT(close);
    before_write(fd, CLOSES);
    if (delays_writes && is_slow_fd(fd))
        atomic_store(&is_slow[fd], false);
    return next(fd);
}

int
dup(int fd)
{
    static __typeof__(&dup) next;

    if (!next)
        next = NEXT(dup);
    return duplicated(next(fd), fd);
}

#define FCNTL(name)                                                                                         \
    int name(int fd, int command, ...)                                                                      \
    {                                                                                                       \
        static __typeof__(&name) next;                                                                      \
        va_list more;                                                                                       \
        void *argument;                                                                                     \
        va_start(more, command);                                                                            \
        argument = va_arg(more, void *); /* or an integer, which is passed in the same way */               \
        va_end(more);                                                                                       \
        if (!next)                                                                                          \
            next = NEXT(name);                                                                              \
        if (command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW) \
            before_write(fd, ((struct flock *)argument)->l_type == F_UNLCK ? UNLOCKS : LOCKS);              \
        if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)                                               \
            return duplicated(next(fd, command, argument), fd);                                             \
        return next(fd, command, argument);                                                                 \
    }

FCNTL(fcntl)
FCNTL(fcntl64)
