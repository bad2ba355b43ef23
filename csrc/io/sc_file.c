/* sc_file.c - local files (see sc_file.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/fs.h>
#include <sys/ioctl.h>
#endif

#include "base/sc_alloc.h"
#include "io/sc_lock.h"

#define COPY_NBYTES ((size_t)1 << 20)
/* Number of attempts to open a name that exists, before the file counts as stale. */
#define MAX_OPENS 3
/* Linux moves at most 0x7ffff000 bytes per call; we ask for less, so an interrupted call loses little. */
#define MAX_CALL_NBYTES ((size_t)1 << 30)
/* Smallest copy for which a clone is tried: a clone of less costs more than the copy. */
#define CLONE_NBYTES ((uint64_t)1 << 16)
/* Clones consist of blocks. No file system with clones has larger ones. */
#define CLONE_GRAIN ((uint64_t)1 << 16)

static struct sc_file_hook hook;

void
sc_file_set_hook(const struct sc_file_hook *new_hook)
{
    hook = new_hook ? *new_hook : (struct sc_file_hook){ 0 };
}

bool
sc_file_allows(const char *call, const char *path, uint64_t *limit)
{
    uint64_t unlimited = UINT64_MAX;

    if (SC_LIKELY(!hook.before))
        return true;
    errno = hook.before(call, path, limit ? limit : &unlimited, hook.arg);
    return errno == 0;
}

enum sc_status
sc_file_error(struct sc_where *where, const char *call)
{
    where->sys_errno = errno;
    where->call = call;
    return SC_IO;
}

/* ---- reading ---- */

/* As sc_file_error(), for a call on an open file. That file cannot be missing: ENOENT means, like ESTALE, that
 * another client of a network file system has replaced it. */
static enum sc_status
handle_error(struct sc_where *where, const char *call)
{
    if (errno == ENOENT)
        errno = ESTALE;
    return sc_file_error(where, call);
}

static int64_t
ns_of(struct timespec t)
{
    return (int64_t)((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec); /* wraps in 2262 */
}

int64_t
sc_file_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return ns_of(now);
}

void
sc_file_id_of(const struct stat *st, int64_t seen_ns, struct sc_file_id *id)
{
    id->device = (uint64_t)st->st_dev;
    id->inode = (uint64_t)st->st_ino;
    id->nbytes = st->st_size > 0 ? (uint64_t)st->st_size : 0;
    id->n_links = (uint64_t)st->st_nlink;
#ifdef __APPLE__
    id->mtime_ns = ns_of(st->st_mtimespec);
    id->ctime_ns = ns_of(st->st_ctimespec);
    id->atime_ns = ns_of(st->st_atimespec);
#else
    id->mtime_ns = ns_of(st->st_mtim);
    id->ctime_ns = ns_of(st->st_ctim);
    id->atime_ns = ns_of(st->st_atim);
#endif
    id->seen_ns = seen_ns;
}

bool
sc_file_id_equal(const struct sc_file_id *a, const struct sc_file_id *b)
{
    return a->inode == b->inode && a->device == b->device && a->nbytes == b->nbytes && a->mtime_ns == b->mtime_ns &&
           a->ctime_ns == b->ctime_ns;
}

bool
sc_file_identify(const char *path, struct sc_file_id *id)
{
    int64_t seen_ns = sc_file_now_ns();
    struct stat st;

    if (stat(path, &st) || !S_ISREG(st.st_mode))
        return false;
    sc_file_id_of(&st, seen_ns, id);
    return true;
}

enum sc_status
sc_file_identify_open(int fd, struct sc_file_id *id, struct sc_where *where)
{
    int64_t seen_ns = sc_file_now_ns();
    struct stat st;

    if (fstat(fd, &st))
        return handle_error(where, "fstat");
    sc_file_id_of(&st, seen_ns, id);
    return SC_OK;
}

uint32_t
sc_file_inode_number(int fd)
{
    long number = 0; /* the kernel writes an int, although the name of the request says long */

#ifdef FS_IOC_GETVERSION
    if (ioctl(fd, FS_IOC_GETVERSION, &number) == 0)
        return (uint32_t)number;
#else
    (void)fd, (void)number;
#endif
    return 0;
}

void
sc_file_version_of(int fd, const struct sc_file_id *id, struct sc_file_version *version)
{
    uint32_t number = sc_file_inode_number(fd);

    *version = (struct sc_file_version){ id->device, id->inode, number, id->nbytes, id->mtime_ns };
}

enum sc_status
sc_file_version_now(int fd, struct sc_file_version *version, struct sc_where *where)
{
    struct sc_file_id id;
    enum sc_status status = sc_file_identify_open(fd, &id, where);

    if (!status)
        sc_file_version_of(fd, &id, version);
    return status;
}

/* ---- opening ---- */

static int
open_with(const char *path, int flags)
{
    unsigned n_interrupts = 0;
    int fd;

    do
        fd = open(path, flags | O_CLOEXEC);
    while (fd < 0 && sc_file_interrupted(&n_interrupts));
    return fd;
}

static int
open_once(const char *path, int flags)
{
    int fd = open_with(path, flags | O_NONBLOCK);
    struct stat st;

    /* another process (such as Samba) holds a lease and has to return it first: wait for that if it is a file */
    if (fd < 0 && errno == EWOULDBLOCK && stat(path, &st) == 0 && S_ISREG(st.st_mode))
        fd = open_with(path, flags);
    return fd;
}

/* After ENOENT: true if the name does not exist, or leads to nothing (*dangling). False: it is a stale cached name, or
 * exists by now. */
static bool
is_missing(const char *path, bool *dangling)
{
    struct stat st;

    if (lstat(path, &st))
        return errno != ESTALE;
    *dangling = S_ISLNK(st.st_mode) && stat(path, &st) && errno != ESTALE;
    return *dangling;
}

static int
open_now(const char *path, int flags, bool *dangling)
{
    *dangling = false;
    for (int i = 0; i < MAX_OPENS; i++) {
        int fd = open_once(path, flags);

        if (fd >= 0 || (errno != ENOENT && errno != ESTALE))
            return fd;
        if (errno == ENOENT && is_missing(path, dangling)) {
            errno = ENOENT;
            return -1;
        }
        if (errno == ESTALE)
            sc_file_look_again(path);
    }
    errno = ESTALE;
    return -1;
}

void
sc_file_look_again(const char *path)
{
    struct stat st;
    int error = errno;

    (void)stat(path, &st);
    errno = error;
}

int
sc_file_open_now(const char *path, int flags)
{
    bool dangling;

    return open_now(path, flags, &dangling);
}

enum sc_status
sc_file_check_kind(const struct stat *st, struct sc_where *where)
{
    if (SC_LIKELY(S_ISREG(st->st_mode)) || S_ISDIR(st->st_mode))
        return SC_OK;
    where->detail = S_ISFIFO(st->st_mode)   ? "FIFO"
                    : S_ISSOCK(st->st_mode) ? "socket"
                    : S_ISCHR(st->st_mode)  ? "character device"
                    : S_ISBLK(st->st_mode)  ? "block device"
                                            : "file of an unknown kind";
    return SC_NOT_A_FILE;
}

enum sc_status
sc_file_open_failed(const char *path, struct sc_where *where)
{
    enum sc_status status = sc_file_error(where, "open");
    struct stat st;

    return stat(path, &st) == 0 && sc_file_check_kind(&st, where) ? SC_NOT_A_FILE : status;
}

/* Make one attempt to open and identify a file. *is_stale: the name leads to a file that another client has replaced. */
static enum sc_status
try_open_id(const char *path, int *fd, struct sc_file_id *id, bool *is_stale, struct sc_where *where)
{
    enum sc_status status;
    struct stat st;
    int64_t seen_ns;
    bool dangling;

    *is_stale = false;
    *fd = open_now(path, O_RDONLY, &dangling);
    if (dangling) {
        where->detail = "link to a missing file";
        return SC_NOT_A_FILE;
    }
    if (*fd < 0)
        return sc_file_means_missing(errno) ? SC_OK : sc_file_open_failed(path, where);
    seen_ns = sc_file_now_ns();
    status = fstat(*fd, &st) ? handle_error(where, "fstat") : sc_file_check_kind(&st, where);
    *is_stale = status == SC_IO && where->sys_errno == ESTALE;
    if (!status && S_ISDIR(st.st_mode)) {
        where->detail = "folder";
        status = SC_NOT_A_FILE;
    }
    if (status) {
        sc_file_close(*fd);
        *fd = -1;
        return status;
    }
    sc_file_id_of(&st, seen_ns, id);
    return SC_OK;
}

enum sc_status
sc_file_open_id(const char *path, int *fd, struct sc_file_id *id, struct sc_where *where)
{
    enum sc_status status = SC_OK;

    memset(id, 0, sizeof *id);
    for (int i = 0; i < MAX_OPENS; i++) {
        bool is_stale;

        status = try_open_id(path, fd, id, &is_stale, where);
        if (!is_stale)
            break;
        sc_file_look_again(path);
    }
    return status;
}

enum sc_status
sc_file_open(const char *path, int *fd, uint64_t *nbytes, struct sc_where *where)
{
    struct sc_file_id id;
    enum sc_status status = sc_file_open_id(path, fd, &id, where);

    *nbytes = id.nbytes;
    return status;
}

enum sc_status
sc_file_share(int given, int *fd, struct sc_where *where)
{
    *fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
    return *fd < 0 ? sc_file_error(where, "fcntl") : SC_OK;
}

enum sc_status
sc_file_size(int fd, uint64_t *nbytes, struct sc_where *where)
{
    struct sc_file_id id;
    enum sc_status status = sc_file_identify_open(fd, &id, where);

    if (!status)
        *nbytes = id.nbytes;
    return status;
}

void
sc_file_close(int fd)
{
    if (fd >= 0)
        close(fd); /* EINTR: Linux has closed it nevertheless */
}

enum sc_status
sc_file_read(int fd, uint8_t *dst, size_t n, uint64_t offset, size_t *got, struct sc_where *where)
{
    unsigned n_interrupts = 0;

    *got = 0;
    if (offset > (uint64_t)INT64_MAX - n)
        return SC_OK;
    while (*got < n) {
        size_t want = n - *got < MAX_CALL_NBYTES ? n - *got : MAX_CALL_NBYTES;
        ssize_t r = pread(fd, dst + *got, want, (off_t)(offset + *got));

        if (r < 0 && sc_file_interrupted(&n_interrupts))
            continue;
        if (r < 0)
            return handle_error(where, "pread");
        if (r == 0)
            break;
        *got += (size_t)r;
    }
    return SC_OK;
}

enum sc_status
sc_file_read_exactly(int fd, uint8_t *dst, size_t n, uint64_t offset, struct sc_where *where)
{
    size_t got;
    enum sc_status status = sc_file_read(fd, dst, n, offset, &got, where);

    if (status || got == n)
        return status;
    where->offset = offset;
    where->nbytes = offset + got;
    where->limit = offset + n;
    return SC_CHANGED;
}

enum sc_status
sc_file_check_seen(int fd, const struct sc_file_id *seen, bool times, struct stat *st, struct sc_where *where)
{
    struct stat found;
    struct sc_file_id id;

    if (sc_lock_stat_read(fd, "", &found))
        return handle_error(where, "fstat");
    if (st)
        *st = found;
    sc_file_id_of(&found, 0, &id);
    if (times ? sc_file_id_equal(&id, seen)
              : id.inode == seen->inode && id.device == seen->device && id.nbytes == seen->nbytes)
        return SC_OK;
    where->nbytes = id.nbytes;
    where->limit = seen->nbytes;
    return SC_CHANGED;
}

/* ---- changing ---- */

#ifdef SHARDCODEC_CHECKS
/* The file has the bytes that were written: they are read again. */
static void
check_written(int fd, const char *path, const uint8_t *src, size_t n, uint64_t offset)
{
    uint8_t block[1 << 14];

    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, block, (size_t)min_u64(n - done, sizeof block), (off_t)(offset + done));

        SC_CHECK(got > 0 && memcmp(block, src + done, (size_t)got) == 0, "written bytes are read as they were given",
                 .path = path, .entry = UINT64_MAX, .offset = offset + done, .nbytes = n - done, .limit = offset + n);
        done += (size_t)got;
    }
}
#else
#define check_written(...) ((void)0)
#endif

enum sc_status
sc_file_write(int fd, const char *path, const uint8_t *src, size_t n, uint64_t offset, struct sc_where *where)
{
    unsigned n_interrupts = 0;
    size_t done = 0;

    while (done < n) {
        uint64_t want = min_u64(n - done, MAX_CALL_NBYTES);
        ssize_t r;

        if (!sc_file_allows("pwrite", path, &want)) {
            if (sc_file_interrupted(&n_interrupts))
                continue;
            return sc_file_error(where, "pwrite");
        }
        r = pwrite(fd, src + done, (size_t)want, (off_t)(offset + done));
        if (r < 0 && sc_file_interrupted(&n_interrupts))
            continue;
        if (r == 0 && want) { /* no error and no progress: nothing forbids it */
            errno = EIO;
            r = -1;
        }
        if (r < 0)
            return sc_file_error(where, "pwrite");
        done += (size_t)r;
    }
    if (SC_CHECKS)
        check_written(fd, path, src, n, offset);
    return SC_OK;
}

enum sc_status
sc_file_truncate(int fd, const char *path, uint64_t nbytes, struct sc_where *where)
{
    unsigned n_interrupts = 0;
    int r;

    do
        r = sc_file_allows("ftruncate", path, NULL) ? ftruncate(fd, (off_t)nbytes) : -1;
    while (r && sc_file_interrupted(&n_interrupts));
    return r ? sc_file_error(where, "ftruncate") : SC_OK;
}

int
sc_file_set_mtime(int fd, const char *path, int64_t ns)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT } };

    times[1].tv_sec = (time_t)(ns / 1000000000);
    times[1].tv_nsec = (long)(ns % 1000000000);
    return sc_file_allows("futimens", path, NULL) ? futimens(fd, times) : -1;
}

static enum sc_status
synchronise(int fd, const char *path, enum sc_sync sync, struct sc_where *where)
{
    if (sync == SC_SYNC_ALL && (!sc_file_allows("fsync", path, NULL) || fsync(fd)))
        return sc_file_error(where, "fsync");
    if (sync == SC_SYNC_DATA && (!sc_file_allows("fdatasync", path, NULL) || fdatasync(fd)))
        return sc_file_error(where, "fdatasync");
    return SC_OK;
}

enum sc_status
sc_file_flush(int fd, const char *path, enum sc_sync sync, struct sc_where *where)
{
    enum sc_status status = synchronise(fd, path, sync, where);
    unsigned n_interrupts = 0;

    while (!status) {
        int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0), r;

        if (duplicate < 0)
            return sc_file_error(where, "fcntl");
        r = sc_file_allows("close", path, NULL) ? 0 : errno;
        if (close(duplicate) && !r)
            r = errno;
        if (!r)
            return SC_OK;
        errno = r;
        if (!sc_file_interrupted(
                &n_interrupts)) /* else it is closed, but some bytes may not have been sent: try again */
            return sc_file_error(where, "close");
    }
    return status;
}

uint64_t
sc_file_clone(int fd, const char *path, int from, uint64_t from_offset, uint64_t n, uint64_t offset)
{
#ifdef FICLONERANGE
    struct file_clone_range range = { .src_fd = from, .src_offset = from_offset, .dest_offset = offset };

    range.src_length = n / CLONE_GRAIN * CLONE_GRAIN;
    if (n < CLONE_NBYTES || from_offset % CLONE_GRAIN || offset % CLONE_GRAIN || !sc_file_allows("ioctl", path, NULL))
        return 0;
    return ioctl(fd, FICLONERANGE, &range) == 0 ? range.src_length : 0;
#else
    (void)fd, (void)path, (void)from, (void)from_offset, (void)n, (void)offset;
    return 0;
#endif
}

/* Copy through memory, for file systems and kernels without copy_file_range(). */
static enum sc_status
copy_by_hand(int fd, const char *path, int from, uint64_t from_offset, uint64_t n, uint64_t offset,
             struct sc_where *where)
{
    uint8_t *buffer = sc_malloc(COPY_NBYTES);
    enum sc_status status = buffer ? SC_OK : SC_NO_MEMORY;

    while (!status && n) {
        size_t part = (size_t)min_u64(n, COPY_NBYTES);

        status = sc_file_read_exactly(from, buffer, part, from_offset, where);
        if (!status)
            status = sc_file_write(fd, path, buffer, part, offset, where);
        from_offset += part;
        offset += part;
        n -= part;
    }
    sc_free(buffer);
    return status;
}

enum sc_status
sc_file_copy(int fd, const char *path, int from, uint64_t from_offset, uint64_t n, uint64_t offset,
             struct sc_where *where)
{
    uint64_t cloned = sc_file_clone(fd, path, from, from_offset, n, offset);

    from_offset += cloned;
    offset += cloned;
    n -= cloned;
#ifdef __linux__
    for (unsigned n_interrupts = 0; n;) {
        off_t in = (off_t)from_offset, out = (off_t)offset;
        uint64_t want = min_u64(n, MAX_CALL_NBYTES);
        ssize_t r;

        if (sc_file_allows("copy_file_range", path, &want))
            r = copy_file_range(from, &in, fd, &out, (size_t)want, 0);
        else
            r = -1;
        if (r < 0 && sc_file_interrupted(&n_interrupts))
            continue;
        if (r < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EFBIG))
            return sc_file_error(where, "copy_file_range");
        if (r <= 0)
            break; /* not possible here (EXDEV, ENOSYS, EINVAL, ...), or the source ends; the copy below finds out */
        from_offset += (uint64_t)r;
        offset += (uint64_t)r;
        n -= (uint64_t)r;
    }
#endif
    return n ? copy_by_hand(fd, path, from, from_offset, n, offset, where) : SC_OK;
}
