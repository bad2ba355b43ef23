/* stops.c - a preloaded library that stops an update of a shard before one of its calls, while the network is cut
 *
 * Each array of the test lies in a folder "x<number>", so a path, or a descriptor opened by one, tells which update a call
 * belongs to. Several updates of one process, in threads, are stopped at different calls at the same time. Looks that a cache may
 * answer (stat) do not count, because their number depends on what the process knows already. Each call is listed with its step, a
 * number from 1 to 8 as in csrc/io/sc_guard.h.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_UPDATES 128
#define MAX_FD 4096
#define MAX_CALLS 256
#define LOCK_FOLDER_NAME ".shardcodec"
#define SHARD_NAME "/c/0/0"

/* at: the number of the call to stop before, from 1; 0: none. before: instead of a number, the first letters of its name or its step;
 * n_before: how many such calls are passed first. */
static struct update {
    _Atomic int n_calls, at, is_stopped, is_counted, n_before;
    const char *_Atomic before;
    const char *calls[MAX_CALLS];
    int step, steps[MAX_CALLS]; /* of the last call, and of each */
} updates[MAX_UPDATES];

/* The files of an update: another one, the shard, the folder of the lock file, the lock file, and the new file. */
enum file { OTHER = 0, SHARD, LOCK_FOLDER, LOCK, NEW };

static _Atomic short update_of_fd[MAX_FD]; /* its number plus one */
static _Atomic char file_of_fd[MAX_FD];
static _Thread_local int own = -1;         /* the update of this thread; readers do not count and are not stopped */

#define REAL(name)                                             \
    ({                                                         \
        static __typeof__(&name) real;                         \
        if (!real)                                             \
            real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        real;                                                  \
    })

/* ---- for the test ---- */

/* Count the calls of an update by this thread from here on, and stop it before one of them. */
void
stops_begin(int number, int at)
{
    struct update *update = &updates[number];

    own = number;
    update->n_calls = update->step = 0;
    update->at = at;
    update->is_counted = 1;
}

/* Count the calls of an update by this thread from here on. Stop it before the n-th call whose name begins with this text, or, if the
 * text is a number, before the n-th call of this step. */
void
stops_begin_before(int number, const char *call, int n)
{
    updates[number].n_before = n - 1;
    updates[number].before = strdup(call); /* one for each update, so it is not freed */
    stops_begin(number, 0);
}

/* Let an update that is stopped go on until its next call whose name begins so. */
void
stops_go_until(int number, const char *call)
{
    updates[number].n_before = 0;
    updates[number].before = strdup(call);
    updates[number].at = 0;
}

/* Let an update go on. */
void
stops_end(int number)
{
    updates[number].before = NULL;
    updates[number].at = 0;
    updates[number].is_counted = 0;
}

int
stops_is_stopped(int number)
{
    return updates[number].is_stopped;
}

int
stops_count(int number)
{
    return updates[number].n_calls;
}

const char *
stops_call(int number, int n)
{
    return n > 0 && n <= updates[number].n_calls && n <= MAX_CALLS ? updates[number].calls[n - 1] : "";
}

/* Return the step of the n-th call of an update. */
int
stops_step(int number, int n)
{
    return n > 0 && n <= updates[number].n_calls && n <= MAX_CALLS ? updates[number].steps[n - 1] : 0;
}

/* ---- the calls ---- */

/* Return the number of the update that a path belongs to; -1: none. */
static int
number_of(const char *path)
{
    const char *name = path ? strstr(path, "/x") : NULL;
    char *end;
    long number;

    if (!name)
        return -1;
    number = strtol(name + 2, &end, 10);
    return end > name + 2 && (*end == '/' || !*end) && number >= 0 && number < MAX_UPDATES ? (int)number : -1;
}

static int
number_at(int fd, const char *path)
{
    if (path && *path == '/')
        return number_of(path);
    return fd >= 0 && fd < MAX_FD ? update_of_fd[fd] - 1 : -1;
}

static enum file
file_at(int fd, const char *path)
{
    const char *name = path && strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    enum file folder = fd >= 0 && fd < MAX_FD && !(path && *path == '/') ? file_of_fd[fd] : OTHER;

    if (!path || !*path)
        return folder;
    if (folder == LOCK_FOLDER || strstr(path, "/" LOCK_FOLDER_NAME "/"))
        return strcmp(name, "lock") == 0 ? LOCK : NEW;
    return strcmp(name, LOCK_FOLDER_NAME) == 0 ? LOCK_FOLDER : strstr(path, SHARD_NAME) ? SHARD : OTHER;
}

static bool
begins(const char *call, const char *name)
{
    return strncmp(call, name, strlen(name)) == 0;
}

/* Return the step of sc_guard.h that a call belongs to. before: the step of the last call; 0: there was none. */
static int
step_of(int before, const char *call, enum file file)
{
    if (begins(call, "unlock"))
        return 8;
    if (begins(call, "lock"))
        return before == 5 ? 5 : 1; /* NFS 3 locks again in its check */
    if (before >= 4 && before < 8) {
        if (begins(call, "rename") || (before >= 5 && begins(call, "link")))
            return 7;
        if (file == LOCK && begins(call, "pread"))
            return 5;
        return file == SHARD && begins(call, "close") ? 6 : before;
    }
    if (before >= 2 && before < 4)
        return file == NEW && begins(call, "open") ? 4 : file == OTHER || file == SHARD ? 3 : before;
    return before ? before : 1;
}

static void
stop(int number, const char *call, enum file file)
{
    struct update *update = &updates[number < 0 ? 0 : number];
    const char *before;
    int n;

    if (number < 0 || number != own || !update->is_counted)
        return;
    before = update->before;
    n = ++update->n_calls;
    update->step =
        step_of(n > 1 && n <= MAX_CALLS && update->step == 1 && begins(update->calls[n - 2], "lock") ? 2 : update->step,
                call, file);
    if (n <= MAX_CALLS) {
        update->calls[n - 1] = call;
        update->steps[n - 1] = update->step;
    }
    if (before && (begins(call, before) || atoi(before) == update->step) && update->n_before-- == 0) {
        update->before = NULL;
        update->at = n;
    }
    if (n != update->at)
        return;
    update->is_stopped = 1;
    while (update->at == n)
        usleep(5000);
    update->is_stopped = 0;
}

static int
opened(int fd, int number, enum file file)
{
    if (fd >= 0 && fd < MAX_FD) {
        update_of_fd[fd] = (short)(number + 1);
        file_of_fd[fd] = (char)file;
    }
    return fd;
}

#define ON_FD(type, name, fd, parameters, arguments)         \
    type name parameters                                     \
    {                                                        \
        stop(number_at(fd, NULL), #name, file_at(fd, NULL)); \
        return REAL(name) arguments;                         \
    }

#define ON_PATH(type, name, folder, path, parameters, arguments)     \
    type name parameters                                             \
    {                                                                \
        stop(number_at(folder, path), #name, file_at(folder, path)); \
        return REAL(name) arguments;                                 \
    }

ON_FD(ssize_t, pread, fd, (int fd, void *data, size_t n, off_t at), (fd, data, n, at))
ON_FD(ssize_t, pread64, fd, (int fd, void *data, size_t n, off64_t at), (fd, data, n, at))
ON_FD(ssize_t, write, fd, (int fd, const void *data, size_t n), (fd, data, n))
ON_FD(ssize_t, pwrite, fd, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
ON_FD(ssize_t, pwrite64, fd, (int fd, const void *data, size_t n, off64_t at), (fd, data, n, at))
ON_FD(ssize_t, pwritev, fd, (int fd, const struct iovec *parts, int n, off_t at), (fd, parts, n, at))
ON_FD(ssize_t, copy_file_range, fd, (int from, off64_t *in, int fd, off64_t *out, size_t n, unsigned flags),
      (from, in, fd, out, n, flags))
ON_FD(int, ftruncate, fd, (int fd, off_t n), (fd, n))
ON_FD(int, fsync, fd, (int fd), (fd))
ON_FD(int, fdatasync, fd, (int fd), (fd))

ON_PATH(int, statx, folder, path,
        (int folder, const char *restrict path, int flags, unsigned mask, struct statx *restrict st),
        (folder, path, flags, mask, st))
ON_PATH(int, mkdir, -1, path, (const char *path, mode_t mode), (path, mode))
ON_PATH(int, rmdir, -1, path, (const char *path), (path))
ON_PATH(int, unlink, -1, path, (const char *path), (path))
ON_PATH(int, unlinkat, folder, path, (int folder, const char *path, int flags), (folder, path, flags))
ON_PATH(int, link, -1, to, (const char *path, const char *to), (path, to))
ON_PATH(int, linkat, to_folder, to, (int folder, const char *path, int to_folder, const char *to, int flags),
        (folder, path, to_folder, to, flags))
ON_PATH(int, rename, -1, to, (const char *path, const char *to), (path, to))
ON_PATH(int, renameat, to_folder, to, (int folder, const char *path, int to_folder, const char *to),
        (folder, path, to_folder, to))

DIR *
opendir(const char *path)
{
    int number = number_of(path);
    DIR *folder;

    stop(number, "opendir", file_at(-1, path));
    folder = REAL(opendir)(path);
    if (folder)
        opened(dirfd(folder), number, file_at(-1, path));
    return folder;
}

static int
open_in(int folder, const char *path, int flags, mode_t mode)
{
    int number = number_at(folder, path);
    enum file file = file_at(folder, path);

    stop(number, "open", file);
    return opened(REAL(openat)(folder, path, flags, mode), number, file);
}

#define MODE(mode, flags)                    \
    mode_t mode = 0;                         \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list rest;                        \
        va_start(rest, flags);               \
        mode = va_arg(rest, mode_t);         \
        va_end(rest);                        \
    }

#define OPENS(name)                                  \
    int name(const char *path, int flags, ...)       \
    {                                                \
        MODE(mode, flags)                            \
        return open_in(AT_FDCWD, path, flags, mode); \
    }

#define OPENS_IN(name)                                     \
    int name(int folder, const char *path, int flags, ...) \
    {                                                      \
        MODE(mode, flags)                                  \
        return open_in(folder, path, flags, mode);         \
    }

OPENS(open)
OPENS(open64)
OPENS_IN(openat)
OPENS_IN(openat64)

int
close(int fd)
{
    stop(number_at(fd, NULL), "close", file_at(fd, NULL));
    opened(fd, -1, OTHER);
    return REAL(close)(fd);
}

static int
control(int fd, int command, void *argument)
{
    int number = number_at(fd, NULL), r;

    if (command == F_OFD_SETLK)
        stop(number, ((struct flock *)argument)->l_type == F_UNLCK ? "unlock" : "lock", LOCK);
    r = REAL(fcntl)(fd, command, argument);
    if (command == F_DUPFD_CLOEXEC || command == F_DUPFD)
        opened(r, number, file_at(fd, NULL));
    return r;
}

#define CONTROLS(name)                         \
    int name(int fd, int command, ...)         \
    {                                          \
        va_list rest;                          \
        void *argument;                        \
        va_start(rest, command);               \
        argument = va_arg(rest, void *);       \
        va_end(rest);                          \
        return control(fd, command, argument); \
    }

CONTROLS(fcntl)
CONTROLS(fcntl64)

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
        stop(number_at((int)a[2], (const char *)a[3]), "renameat2", SHARD);
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
