/* schedule_stops.c - a preloaded library that stops a process before each of its calls on files, until a scheduler lets it go on
 *
 * The scheduler calls schedule_share() before it forks the actors; all of them share the memory. An actor calls schedule_join() once.
 * schedule_run() lets one actor make some calls and returns when it stops again. Only one of them runs at a time.
 *
 * A call stops if its path lies below the folder of the schedule, or if it is on a file or folder that was opened there. A lock that is not
 * free, and a sleep, end the turn: the scheduler learns that the actor waits. Syncs are left out, as only kills are tried.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_ACTORS 6
#define MESSAGE_NBYTES 16384
#define MAX_FD 1024
#define LARGE 256 /* bytes of a call with two halves */

/* IDLE: has no work. STOPPED: before a call. LOCKED_OUT: another one has the lock. ASLEEP: in a pause. */
enum state { IDLE, RUNNING, STOPPED, LOCKED_OUT, ASLEEP, GONE };

struct actor {
    _Atomic uint32_t state;
    uint32_t n_done; /* parts of its work that have ended */
    int64_t budget; /* calls before the next stop; -1: no stop */
    uint64_t n_calls; /* since its work began */
    uint64_t is_writing; /* a write is half done: a kill does not come here, because a page is written as a whole */
    uint64_t n_messages; /* bytes of the message */
    char call[24]; /* before which it has stopped */
    char message[MESSAGE_NBYTES];
};

struct shared {
    _Atomic uint32_t turn; /* increased when an actor stops */
    uint32_t folder_nbytes;
    uint64_t n_changes, n_unlocks; /* calls that changed the file system, or gave up a lock */
    char folder[256];
    struct actor actors[MAX_ACTORS];
};

static struct shared *shared;
static struct actor *own;
static unsigned char ours[MAX_FD];
static int is_locked_out; /* the pause after a lock that was not free is left out */
static int is_free; /* calls do not stop */

#define REAL(name)                                             \
    ({                                                         \
        static __typeof__(&name) real;                         \
        if (!real)                                             \
            real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
        real;                                                  \
    })

static long
futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return REAL(syscall)(SYS_futex, word, operation, value, timeout, NULL, 0);
}

/* ---- the scheduler ---- */

struct shared *
schedule_share(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? NULL : shared;
}

/* Call this before an actor is forked. */
void
schedule_expect(int number)
{
    atomic_store(&shared->actors[number].state, RUNNING);
}

/* Wait until an actor stops; return its state. GONE: it has ended, or hangs. */
int
schedule_wait(int number, int pid, int seconds)
{
    struct actor *actor = &shared->actors[number];
    const struct timespec second = { .tv_sec = 1 };

    for (int waited = 0; waited < seconds;) {
        uint32_t turn = atomic_load(&shared->turn), state = atomic_load(&actor->state);
        siginfo_t ended = { 0 };

        if (state != RUNNING)
            return (int)state;
        if (futex(&shared->turn, FUTEX_WAIT, turn, &second) && errno == ETIMEDOUT) {
            waited++;
            if (waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid)
                return GONE;
        }
    }
    return GONE;
}

/* Let an actor make `budget` calls (-1: any number), and wait until it stops. */
int
schedule_run(int number, int64_t budget, int pid, int seconds)
{
    struct actor *actor = &shared->actors[number];

    actor->budget = budget;
    atomic_store(&actor->state, RUNNING);
    futex(&actor->state, FUTEX_WAKE, 1, NULL);
    return schedule_wait(number, pid, seconds);
}

/* ---- an actor ---- */

static void
hand_over(enum state state)
{
    int saved = errno;

    atomic_store(&own->state, state);
    atomic_fetch_add(&shared->turn, 1);
    futex(&shared->turn, FUTEX_WAKE, 1, NULL);
    while (atomic_load(&own->state) != RUNNING)
        futex(&own->state, FUTEX_WAIT, state, NULL);
    errno = saved;
}

/* Wait for work. */
void
schedule_join(int number)
{
    own = &shared->actors[number];
    hand_over(IDLE);
    own->n_calls = own->is_writing = 0;
}

/* Let the calls of this actor not stop: it prepares its work. */
void
schedule_free(int on)
{
    is_free = on;
}

static void
stop(const char *call)
{
    if (is_free)
        return;
    own->n_calls++;
    if (own->budget == 0) {
        snprintf(own->call, sizeof own->call, "%s", call);
        hand_over(STOPPED);
    }
    if (own->budget > 0)
        own->budget--;
}

static int
is_ours(int fd)
{
    return own && fd >= 0 && fd < MAX_FD && ours[fd];
}

/* True for a path of the schedule that an actor may change: shards and all names beside them, temporary names, the target of a
 * link. Looks at other folders and at documents always have the same answer. */
static int
is_below(int folder, const char *path)
{
    if (!own || !path)
        return 0;
    if (path[0] != '/')
        return is_ours(folder);
    if (strncmp(path, shared->folder, shared->folder_nbytes))
        return 0;
    path += shared->folder_nbytes;
    return strstr(path, "/c/0") || strstr(path, ".shardcodec") || strcmp(path, "/target") == 0;
}

static int
opened(int fd, int is)
{
    if (own && fd >= 0 && fd < MAX_FD)
        ours[fd] = (unsigned char)is;
    return fd;
}

#define CHANGED(call)              \
    ({                             \
        __typeof__(call) r = call; \
        shared->n_changes++;       \
        r;                         \
    })

#define ON_FD(fd, name, call) \
    do {                      \
        if (!is_ours(fd))     \
            return call;      \
        stop(name);           \
        return CHANGED(call); \
    } while (0)

#define LOOK_AT_FD(fd, name, call) \
    do {                           \
        if (is_ours(fd))           \
            stop(name);            \
        return call;               \
    } while (0)

#define ON_PATH(folder, path, name, call) \
    do {                                  \
        if (!is_below(folder, path))      \
            return call;                  \
        stop(name);                       \
        return CHANGED(call);             \
    } while (0)

#define LOOK_AT_PATH(folder, path, name, call) \
    do {                                       \
        if (is_below(folder, path))            \
            stop(name);                        \
        return call;                           \
    } while (0)

/* ---- bytes, sizes, times ---- */

ssize_t
read(int fd, void *data, size_t n)
{
    LOOK_AT_FD(fd, "read", REAL(read)(fd, data, n));
}

/* A reader may see a half of a write, so both have two halves. */
ssize_t
pread(int fd, void *data, size_t n, off_t offset)
{
    size_t half = n / 2;
    ssize_t first, second;

    if (!is_ours(fd))
        return REAL(pread)(fd, data, n, offset);
    stop("pread");
    if (n < LARGE)
        return REAL(pread)(fd, data, n, offset);
    first = REAL(pread)(fd, data, half, offset);
    if (first < (ssize_t)half)
        return first;
    stop("pread, second half");
    second = REAL(pread)(fd, (char *)data + half, n - half, offset + (off_t)half);
    return second < 0 ? second : first + second;
}

ssize_t
pread64(int fd, void *data, size_t n, off64_t offset)
{
    return pread(fd, data, n, offset);
}

ssize_t
write(int fd, const void *data, size_t n)
{
    ON_FD(fd, "write", REAL(write)(fd, data, n));
}

/* Bytes behind the end of a file are seen when its size says so, after the write. */
static int
overwrites(int fd, size_t n, off_t offset)
{
    struct stat st;

    return n >= LARGE && REAL(fstat)(fd, &st) == 0 && offset + (off_t)n <= st.st_size;
}

ssize_t
pwrite(int fd, const void *data, size_t n, off_t offset)
{
    size_t half = n / 2;
    ssize_t first, second;

    if (!is_ours(fd))
        return REAL(pwrite)(fd, data, n, offset);
    stop("pwrite");
    if (!overwrites(fd, n, offset))
        return CHANGED(REAL(pwrite)(fd, data, n, offset));
    first = CHANGED(REAL(pwrite)(fd, data, half, offset));
    if (first < (ssize_t)half)
        return first;
    own->is_writing = 1;
    stop("pwrite, second half");
    own->is_writing = 0;
    second = CHANGED(REAL(pwrite)(fd, (const char *)data + half, n - half, offset + (off_t)half));
    return second < 0 ? second : first + second;
}

ssize_t
pwrite64(int fd, const void *data, size_t n, off64_t offset)
{
    return pwrite(fd, data, n, offset);
}

/* Only behind the end of a file: a direct append. */
ssize_t
pwritev(int fd, const struct iovec *parts, int n_parts, off_t offset)
{
    if (!is_ours(fd))
        return REAL(pwritev)(fd, parts, n_parts, offset);
    stop("pwritev");
    return CHANGED(REAL(pwritev)(fd, parts, n_parts, offset));
}

ssize_t
pwritev64(int fd, const struct iovec *parts, int n_parts, off64_t offset)
{
    return pwritev(fd, parts, n_parts, offset);
}

ssize_t
copy_file_range(int from, off64_t *in, int fd, off64_t *out, size_t n, unsigned flags)
{
    ON_FD(fd, "copy_file_range", REAL(copy_file_range)(from, in, fd, out, n, flags));
}

int
ftruncate(int fd, off_t n)
{
    ON_FD(fd, "ftruncate", REAL(ftruncate)(fd, n));
}

int
ftruncate64(int fd, off64_t n)
{
    return ftruncate(fd, n);
}

int
futimens(int fd, const struct timespec times[2])
{
    ON_FD(fd, "futimens", REAL(futimens)(fd, times));
}

int
fsync(int fd)
{
    return is_ours(fd) ? 0 : REAL(fsync)(fd);
}

int
fdatasync(int fd)
{
    return is_ours(fd) ? 0 : REAL(fdatasync)(fd);
}

/* ---- looks ---- */

int
stat(const char *path, struct stat *st)
{
    LOOK_AT_PATH(-1, path, "stat", REAL(stat)(path, st));
}

int
stat64(const char *path, struct stat64 *st)
{
    LOOK_AT_PATH(-1, path, "stat", REAL(stat64)(path, st));
}

int
lstat(const char *path, struct stat *st)
{
    LOOK_AT_PATH(-1, path, "lstat", REAL(lstat)(path, st));
}

int
lstat64(const char *path, struct stat64 *st)
{
    LOOK_AT_PATH(-1, path, "lstat", REAL(lstat64)(path, st));
}

int
fstat(int fd, struct stat *st)
{
    LOOK_AT_FD(fd, "fstat", REAL(fstat)(fd, st));
}

int
fstat64(int fd, struct stat64 *st)
{
    LOOK_AT_FD(fd, "fstat", REAL(fstat64)(fd, st));
}

int
fstatat(int folder, const char *path, struct stat *st, int flags)
{
    LOOK_AT_PATH(folder, path, "fstatat", REAL(fstatat)(folder, path, st, flags));
}

int
fstatat64(int folder, const char *path, struct stat64 *st, int flags)
{
    LOOK_AT_PATH(folder, path, "fstatat", REAL(fstatat64)(folder, path, st, flags));
}

int
statx(int folder, const char *restrict path, int flags, unsigned mask, struct statx *restrict st)
{
    LOOK_AT_PATH(folder, path, "statx", REAL(statx)(folder, path, flags, mask, st));
}

DIR *
opendir(const char *path)
{
    int is = is_below(-1, path);
    DIR *folder;

    if (is)
        stop("opendir");
    folder = REAL(opendir)(path);
    if (folder)
        opened(dirfd(folder), is);
    return folder;
}

int
closedir(DIR *folder)
{
    opened(dirfd(folder), 0);
    return REAL(closedir)(folder);
}

/* ---- names ---- */

static int
open_in(int folder, const char *path, int flags, mode_t mode)
{
    int is = is_below(folder, path);

    if (is) {
        stop("open");
        if (flags & (O_CREAT | O_TRUNC | __O_TMPFILE))
            shared->n_changes++;
    }
    return opened(REAL(openat)(folder, path, flags, mode), is);
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
close(int fd)
{
    if (is_ours(fd)) {
        ours[fd] = 0;
        shared->n_unlocks++;
    }
    return REAL(close)(fd);
}

int
mkdir(const char *path, mode_t mode)
{
    ON_PATH(-1, path, "mkdir", REAL(mkdir)(path, mode));
}

int
mkdirat(int folder, const char *path, mode_t mode)
{
    ON_PATH(folder, path, "mkdir", REAL(mkdirat)(folder, path, mode));
}

int
link(const char *path, const char *to_path)
{
    ON_PATH(-1, to_path, "link", REAL(link)(path, to_path));
}

int
linkat(int folder, const char *path, int to, const char *to_path, int flags)
{
    ON_PATH(to, to_path, "link", REAL(linkat)(folder, path, to, to_path, flags));
}

int
unlink(const char *path)
{
    ON_PATH(-1, path, "unlink", REAL(unlink)(path));
}

int
unlinkat(int folder, const char *path, int flags)
{
    ON_PATH(folder, path, "unlink", REAL(unlinkat)(folder, path, flags));
}

int
rmdir(const char *path)
{
    ON_PATH(-1, path, "rmdir", REAL(rmdir)(path));
}

int
rename(const char *path, const char *to_path)
{
    ON_PATH(-1, to_path, "rename", REAL(rename)(path, to_path));
}

int
renameat(int folder, const char *path, int to, const char *to_path)
{
    ON_PATH(to, to_path, "rename", REAL(renameat)(folder, path, to, to_path));
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
        ON_PATH((int)a[2], (const char *)a[3], "renameat2", REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]));
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* ---- waiting ---- */

static int
set_lock(int fd, int command, struct flock *range)
{
    int r;

    stop(range->l_type == F_UNLCK ? "unlock" : "lock");
    r = REAL(fcntl)(fd, command, range);
    if (range->l_type == F_UNLCK)
        shared->n_unlocks++;
    if (r && errno == EAGAIN && !is_free) {
        is_locked_out = 1;
        hand_over(LOCKED_OUT);
    }
    return r;
}

static int
control(int fd, int command, void *argument)
{
    int r;

    if (command == F_OFD_SETLK && is_ours(fd))
        return set_lock(fd, command, argument);
    r = REAL(fcntl)(fd, command, argument);
    if (command == F_DUPFD_CLOEXEC || command == F_DUPFD)
        opened(r, is_ours(fd));
    return r;
}

#define CONTROL(fd, command)         \
    va_list rest;                    \
    void *argument;                  \
    va_start(rest, command);         \
    argument = va_arg(rest, void *); \
    va_end(rest);                    \
    return control(fd, command, argument)

int
fcntl(int fd, int command, ...)
{
    CONTROL(fd, command);
}

int
fcntl64(int fd, int command, ...)
{
    CONTROL(fd, command);
}

static int
pauses(void)
{
    if (!own)
        return 0;
    if (!is_locked_out)
        hand_over(ASLEEP);
    is_locked_out = 0;
    return 1;
}

int
nanosleep(const struct timespec *pause, struct timespec *rest)
{
    return pauses() ? 0 : REAL(nanosleep)(pause, rest);
}

int
clock_nanosleep(clockid_t clock, int flags, const struct timespec *pause, struct timespec *rest)
{
    return pauses() ? 0 : REAL(clock_nanosleep)(clock, flags, pause, rest);
}
