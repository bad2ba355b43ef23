/* round_trip.c - a preloaded library that makes each open and read of files below a folder wait, as on a network mount
 *
 *     gcc -O2 -shared -fPIC -o round_trip.so round_trip.c -ldl
 *     ROUND_TRIP_FOLDER=/data ROUND_TRIP_US=200 LD_PRELOAD=./round_trip.so python ...
 *
 * ROUND_TRIP_COUNTS=1 prints the number of opens and reads to standard error at exit. Calls wait independently of each
 * other, and bytes cost nothing. io_uring is not seen.
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

static atomic_bool is_slow[MAX_FDS];
static atomic_ulong n_opens, n_reads;
static char folder[4096];
static size_t folder_nbytes;
static long delay_ns;

__attribute__((constructor)) static void
begin(void)
{
    const char *where = getenv("ROUND_TRIP_FOLDER"), *us = getenv("ROUND_TRIP_US");

    if (where)
        snprintf(folder, sizeof folder, "%s", where);
    folder_nbytes = strlen(folder);
    delay_ns = us ? (long)(1e3 * atof(us)) : 0;
    prctl(PR_SET_TIMERSLACK, 1000L); /* all threads inherit it: a short sleep is not rounded up by 50 us */
}

__attribute__((destructor)) static void
end(void)
{
    if (getenv("ROUND_TRIP_COUNTS"))
        fprintf(stderr, "opens %lu reads %lu\n", atomic_load(&n_opens), atomic_load(&n_reads));
}

static void
wait_for_it(atomic_ulong *count)
{
    struct timespec delay = { delay_ns / 1000000000, delay_ns % 1000000000 };

    atomic_fetch_add(count, 1);
    if (delay_ns)
        nanosleep(&delay, NULL);
}

static int
opened(int fd, const char *path)
{
    bool slow = folder_nbytes && !strncmp(path, folder, folder_nbytes);

    if (slow)
        wait_for_it(&n_opens);
    if (fd >= 0 && fd < MAX_FDS)
        atomic_store(&is_slow[fd], slow);
    return fd;
}

static void
before_read(int fd)
{
    if (fd >= 0 && fd < MAX_FDS && atomic_load(&is_slow[fd]))
        wait_for_it(&n_reads);
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
