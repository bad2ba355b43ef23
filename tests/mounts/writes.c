/* writes.c - a preloaded library that records each pwrite() to files below a folder, and can hold them until several wait
 *
 *     gcc -O2 -shared -fPIC -o writes.so writes.c -ldl
 *     WRITES_FOLDER=/data WRITES_TOGETHER=8 LD_PRELOAD=./writes.so python ...
 *
 * WRITES_TOGETHER=n holds each write of WRITES_NBYTES bytes or more until n of them wait at the same time, once, and then for
 * WRITES_MORE_SECONDS (default: 0), with those that come meanwhile; writes that come later are not held. If n do not wait within
 * WRITES_SECONDS (default: 20), they go on nevertheless. WRITES_BLOCK is what fstat() says of st_blksize for files below the
 * folder. At exit a line on standard error for each write, "write OFFSET NBYTES", and one that says how many waited together at
 * most, "together N". write(), pwritev() and io_uring are not seen.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_FDS 65536
#define MAX_WRITES 4096

static atomic_bool is_below[MAX_FDS];
static const char *folder;
static unsigned long wanted, held_nbytes, block, most_seconds, more_seconds;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* its clock is CLOCK_MONOTONIC */
static struct timespec released_at;
static struct {
    long long offset;
    size_t n;
} writes[MAX_WRITES];
static unsigned n_writes, n_waiting, most;

static unsigned long
number(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);

    return text ? strtoul(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void
begin(void)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
    folder = getenv("WRITES_FOLDER");
    wanted = number("WRITES_TOGETHER", 0);
    held_nbytes = number("WRITES_NBYTES", 0);
    most_seconds = number("WRITES_SECONDS", 20);
    more_seconds = number("WRITES_MORE_SECONDS", 0);
    block = number("WRITES_BLOCK", 0);
}

__attribute__((destructor)) static void
end(void)
{
    for (unsigned i = 0; i < n_writes && i < MAX_WRITES; i++)
        fprintf(stderr, "write %lld %zu\n", writes[i].offset, writes[i].n);
    fprintf(stderr, "together %u\n", most);
}

static bool
watched(int fd)
{
    return fd >= 0 && fd < MAX_FDS && atomic_load(&is_below[fd]);
}

static int
opened(int fd, const char *path)
{
    if (fd >= 0 && fd < MAX_FDS)
        atomic_store(&is_below[fd], folder && !strncmp(path, folder, strlen(folder)));
    return fd;
}

static struct timespec
after(unsigned long seconds)
{
    struct timespec moment;

    clock_gettime(CLOCK_MONOTONIC, &moment);
    moment.tv_sec += (time_t)seconds;
    return moment;
}

/* Wait until enough writes wait, and then for some time more. The caller holds the mutex. */
static void
hold(void)
{
    struct timespec until = after(most_seconds);

    n_waiting++;
    if (most < n_waiting) {
        most = n_waiting;
        if (most == wanted)
            released_at = after(more_seconds);
    }
    pthread_cond_broadcast(&changed);
    while (most < wanted)
        if (pthread_cond_timedwait(&changed, &mutex, &until) == ETIMEDOUT)
            wanted = 0;
    while (wanted && pthread_cond_timedwait(&changed, &mutex, &released_at) != ETIMEDOUT)
        ;
    n_waiting--;
}

static void
before_write(size_t n, long long offset)
{
    pthread_mutex_lock(&mutex);
    if (n_writes < MAX_WRITES) {
        writes[n_writes].offset = offset;
        writes[n_writes].n = n;
    }
    n_writes++;
    if (n >= held_nbytes)
        hold();
    pthread_mutex_unlock(&mutex);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                          \
    int name(const char *path, int flags, ...)              \
    {                                                       \
        mode_t mode = 0;                                    \
        if (flags & (O_CREAT | O_TMPFILE)) {                \
            va_list more;                                   \
            va_start(more, flags);                          \
            mode = va_arg(more, mode_t);                    \
            va_end(more);                                   \
        }                                                   \
        return opened(NEXT(name)(path, flags, mode), path); \
    }
#define PWRITE(name, offset_t)                                       \
    ssize_t name(int fd, const void *src, size_t n, offset_t offset) \
    {                                                                \
        if (watched(fd))                                             \
            before_write(n, offset);                                 \
        return NEXT(name)(fd, src, n, offset);                       \
    }
#define FSTAT(name, type)                      \
    int name(int fd, struct type *st)          \
    {                                          \
        int r = NEXT(name)(fd, st);            \
        if (r == 0 && block && watched(fd))    \
            st->st_blksize = (blksize_t)block; \
        return r;                              \
    }
/* what programs for a glibc before 2.33 call, such as wheels for manylinux */
#define FXSTAT(name, type)                          \
    int name(int version, int fd, struct type *st); \
    int name(int version, int fd, struct type *st)  \
    {                                               \
        int r = NEXT(name)(version, fd, st);        \
        if (r == 0 && block && watched(fd))         \
            st->st_blksize = (blksize_t)block;      \
        return r;                                   \
    }

OPEN(open)
OPEN(open64)
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)
FXSTAT(__fxstat, stat)
FXSTAT(__fxstat64, stat64)
