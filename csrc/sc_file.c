/* sc_file.c - local files (see sc_file.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "sc_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#define COPY_NBYTES ((size_t)1 << 20)
/* Linux moves at most 0x7ffff000 bytes a call; less is asked for, so that an interrupted call loses little. */
#define MAX_CALL_NBYTES ((size_t)1 << 30)
#define RENAME_EXCHANGE_FLAG 2u

static struct sc_file_hook hook;

void
sc_file_set_hook(const struct sc_file_hook *new_hook)
{
    hook = new_hook ? *new_hook : (struct sc_file_hook){ 0 };
}

/* May this call happen? Else errno says why not. */
static bool
allowed(const char *call, const char *path, uint64_t *limit)
{
    uint64_t unlimited = UINT64_MAX;

    if (SC_LIKELY(!hook.before))
        return true;
    errno = hook.before(call, path, limit ? limit : &unlimited, hook.arg);
    return errno == 0;
}

bool
sc_file_allows(const char *call, const char *path, uint64_t *limit)
{
    return allowed(call, path, limit);
}

static enum sc_status
io_error(struct sc_where *where, const char *call)
{
    where->sys_errno = errno;
    where->call = call;
    return SC_IO;
}

/* ---- reading ---- */

static bool
means_missing(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EISDIR;
}

static int64_t
ns_of(struct timespec t)
{
    return (int64_t)((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec); /* wraps in 2262 */
}

/* The time first: what is changed after the look has a later stamp. */
static int64_t
now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return ns_of(now);
}

static void
id_of(const struct stat *st, int64_t seen_ns, struct sc_file_id *id)
{
    id->device = (uint64_t)st->st_dev;
    id->inode = (uint64_t)st->st_ino;
    id->nbytes = st->st_size > 0 ? (uint64_t)st->st_size : 0;
#ifdef __APPLE__
    id->mtime_ns = ns_of(st->st_mtimespec);
    id->ctime_ns = ns_of(st->st_ctimespec);
#else
    id->mtime_ns = ns_of(st->st_mtim);
    id->ctime_ns = ns_of(st->st_ctim);
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
    int64_t seen_ns = now_ns();
    struct stat st;

    if (stat(path, &st) || S_ISDIR(st.st_mode))
        return false;
    id_of(&st, seen_ns, id);
    return true;
}

enum sc_status
sc_file_open_id(const char *path, int *fd, struct sc_file_id *id, struct sc_where *where)
{
    struct stat st;
    int64_t seen_ns;

    memset(id, 0, sizeof *id);
    do
        *fd = open(path, O_RDONLY | O_CLOEXEC);
    while (*fd < 0 && errno == EINTR);
    if (*fd < 0)
        return means_missing(errno) ? SC_OK : io_error(where, "open");
    seen_ns = now_ns();
    if (fstat(*fd, &st)) {
        enum sc_status status = io_error(where, "fstat");

        sc_file_close(*fd);
        *fd = -1;
        return status;
    }
    if (S_ISDIR(st.st_mode)) {
        sc_file_close(*fd);
        *fd = -1;
        return SC_OK;
    }
    id_of(&st, seen_ns, id);
    return SC_OK;
}

enum sc_status
sc_file_open(const char *path, int *fd, uint64_t *nbytes, struct sc_where *where)
{
    struct sc_file_id id;
    enum sc_status status = sc_file_open_id(path, fd, &id, where);

    *nbytes = id.nbytes;
    return status;
}

void
sc_file_close(int fd)
{
    if (fd >= 0)
        close(fd); /* EINTR: Linux has closed it all the same */
}

enum sc_status
sc_file_read(int fd, uint8_t *dst, size_t n, uint64_t offset, size_t *got, struct sc_where *where)
{
    *got = 0;
    if (offset > (uint64_t)INT64_MAX - n)
        return SC_OK;
    while (*got < n) {
        size_t want = n - *got < MAX_CALL_NBYTES ? n - *got : MAX_CALL_NBYTES;
        ssize_t r = pread(fd, dst + *got, want, (off_t)(offset + *got));

        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return io_error(where, "pread");
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

/* ---- names ---- */

/* Unique in the folder as far as this process and this boot go; O_EXCL settles the rest. */
static char *
temp_name(const char *path)
{
    static atomic_uint counter;
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path + 1) : 0;
    struct timespec now;
    char *name;

    clock_gettime(CLOCK_REALTIME, &now);
    if (asprintf(&name, "%.*s.%.60s.%ld-%lx-%x.shardcodec", folder, path, path + folder, (long)getpid(),
                 (unsigned long)now.tv_nsec, atomic_fetch_add(&counter, 1)) < 0)
        return NULL;
    return name;
}

static char *
folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static int
make_folders(char *folder)
{
    int r;

    if (!allowed("mkdir", folder, NULL))
        return -1;
    r = mkdir(folder, 0777);
    if (r == 0 || errno == EEXIST)
        return 0;
    if (errno == ENOENT) {
        char *slash = strrchr(folder, '/');

        if (slash && slash != folder) {
            *slash = 0;
            r = make_folders(folder);
            *slash = '/';
            if (r == 0 && (mkdir(folder, 0777) == 0 || errno == EEXIST))
                return 0;
        }
    }
    return -1;
}

/* ---- writing ---- */

static void
forget_names(struct sc_newfile *file)
{
    free(file->path);
    free(file->temp);
    file->path = file->temp = NULL;
    file->fd = -1;
    file->named = false;
}

/* A file without a name in the folder; -1 and errno when the file system has none. */
static int
open_nameless(const char *folder)
{
#ifdef O_TMPFILE
    if (access("/proc/self/fd", X_OK)) { /* the only way to a name that needs no privilege */
        errno = EOPNOTSUPP;
        return -1;
    }
    if (!allowed("open", folder, NULL))
        return -1;
    return open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
#else
    (void)folder;
    errno = EOPNOTSUPP;
    return -1;
#endif
}

static int
open_named(const char *temp)
{
    if (!allowed("open", temp, NULL))
        return -1;
    return open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

static bool
nameless_unsupported(int error)
{
    return error == EOPNOTSUPP || error == ENOTSUP || error == EISDIR || error == EINVAL || error == ENOSYS;
}

static enum sc_status
open_new(struct sc_newfile *file, struct sc_where *where)
{
    char *folder = folder_of(file->path);

    if (!folder)
        return SC_NO_MEMORY;
    file->fd = open_nameless(folder);
    if (file->fd < 0 && errno == ENOENT && make_folders(folder) == 0)
        file->fd = open_nameless(folder);
    if (file->fd < 0 && nameless_unsupported(errno)) {
        file->fd = open_named(file->temp);
        if (file->fd < 0 && errno == ENOENT && make_folders(folder) == 0)
            file->fd = open_named(file->temp);
        file->named = file->fd >= 0;
    }
    free(folder);
    return file->fd < 0 ? io_error(where, "open") : SC_OK;
}

/* What a symbolic link points to; any other path as it is. */
static char *
resolved(const char *path, const struct stat *st)
{
    char *target = NULL;

    if (st && S_ISLNK(st->st_mode))
        target = realpath(path, NULL); /* NULL for a dangling link: it is replaced */
    return target ? target : strdup(path);
}

enum sc_status
sc_newfile_begin(struct sc_newfile *file, const char *path, struct sc_where *where)
{
    struct stat st;
    bool exists = lstat(path, &st) == 0;
    enum sc_status status;

    file->fd = -1;
    file->named = false;
    file->path = resolved(path, exists ? &st : NULL);
    file->temp = file->path ? temp_name(file->path) : NULL;
    if (!file->temp) {
        forget_names(file);
        return SC_NO_MEMORY;
    }
    if (exists && stat(file->path, &st) == 0 && S_ISDIR(st.st_mode)) {
        /* an exchange of names would succeed and hide the folder */
        forget_names(file);
        errno = EISDIR;
        return io_error(where, "open");
    }
    status = open_new(file, where);
    if (!status && exists && stat(file->path, &st) == 0 && S_ISREG(st.st_mode) &&
        (!allowed("fchmod", file->path, NULL) || fchmod(file->fd, st.st_mode & 07777)))
        status = io_error(where, "fchmod");
    if (status)
        sc_newfile_abort(file);
    return status;
}

enum sc_status
sc_newfile_write(struct sc_newfile *file, const uint8_t *src, size_t n, uint64_t offset, struct sc_where *where)
{
    size_t done = 0;

    while (done < n) {
        uint64_t want = min_u64(n - done, MAX_CALL_NBYTES);
        ssize_t r;

        if (!allowed("pwrite", file->path, &want))
            return io_error(where, "pwrite");
        r = pwrite(file->fd, src + done, (size_t)want, (off_t)(offset + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return io_error(where, "pwrite");
        done += (size_t)r;
    }
    return SC_OK;
}

/* Through memory, for file systems and kernels where copy_file_range() does not work. */
static enum sc_status
copy_by_hand(struct sc_newfile *file, int from, uint64_t from_offset, uint64_t n, uint64_t offset,
             struct sc_where *where)
{
    uint8_t *buffer = malloc(COPY_NBYTES);
    enum sc_status status = buffer ? SC_OK : SC_NO_MEMORY;

    while (!status && n) {
        size_t part = (size_t)min_u64(n, COPY_NBYTES);

        status = sc_file_read_exactly(from, buffer, part, from_offset, where);
        if (!status)
            status = sc_newfile_write(file, buffer, part, offset, where);
        from_offset += part;
        offset += part;
        n -= part;
    }
    free(buffer);
    return status;
}

enum sc_status
sc_newfile_copy(struct sc_newfile *file, int from, uint64_t from_offset, uint64_t n, uint64_t offset,
                struct sc_where *where)
{
#ifdef __linux__
    while (n) {
        off_t in = (off_t)from_offset, out = (off_t)offset;
        uint64_t want = min_u64(n, MAX_CALL_NBYTES);
        ssize_t r;

        if (!allowed("copy_file_range", file->path, &want))
            return io_error(where, "copy_file_range");
        r = copy_file_range(from, &in, file->fd, &out, (size_t)want, 0);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EFBIG))
            return io_error(where, "copy_file_range");
        if (r <= 0)
            break; /* not here (EXDEV, ENOSYS, EINVAL, ...), or a source that ends: the loop below says which */
        from_offset += (uint64_t)r;
        offset += (uint64_t)r;
        n -= (uint64_t)r;
    }
#endif
    return n ? copy_by_hand(file, from, from_offset, n, offset, where) : SC_OK;
}

static enum sc_status
sync_folder(const char *path, struct sc_where *where)
{
    char *folder = folder_of(path);
    enum sc_status status = SC_OK;
    int fd;

    if (!folder)
        return SC_NO_MEMORY;
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        status = io_error(where, "open");
    else if (!allowed("fsync", folder, NULL) ||
             (fsync(fd) && errno != EINVAL)) /* EINVAL: a folder has nothing to sync here */
        status = io_error(where, "fsync");
    sc_file_close(fd);
    free(folder);
    return status;
}

/* Link a nameless file to `name`. */
static int
link_to(const struct sc_newfile *file, const char *name)
{
    char self[64];

    if (!allowed("linkat", name, NULL))
        return -1;
    snprintf(self, sizeof self, "/proc/self/fd/%d", file->fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

static int
exchange(const char *a, const char *b)
{
#if defined(__linux__) && defined(SYS_renameat2)
    if (!allowed("renameat2", b, NULL))
        return -1;
    return (int)syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE_FLAG);
#else
    (void)a;
    (void)b;
    errno = ENOSYS;
    return -1;
#endif
}

/* The temporary name takes the place of the final one. */
static enum sc_status
take_place(struct sc_newfile *file, struct sc_where *where)
{
    if (exchange(file->temp, file->path) == 0) {
        /* the old file has the temporary name now; if it cannot go, it is litter, not damage */
        if (allowed("unlink", file->temp, NULL))
            unlink(file->temp);
        return SC_OK;
    }
    if (!allowed("rename", file->path, NULL) || rename(file->temp, file->path))
        return io_error(where, "rename");
    return SC_OK;
}

static enum sc_status
give_name(struct sc_newfile *file, struct sc_where *where)
{
    enum sc_status status;

    if (!file->named) {
        if (link_to(file, file->path) == 0)
            return SC_OK;
        if (errno != EEXIST)
            return io_error(where, "linkat");
        if (link_to(file, file->temp))
            return io_error(where, "linkat");
        file->named = true;
    }
    status = take_place(file, where);
    if (!status)
        file->named = false;
    return status;
}

enum sc_status
sc_newfile_commit(struct sc_newfile *file, bool sync, struct sc_where *where)
{
    enum sc_status status = SC_OK;

    if (sync && (!allowed("fsync", file->path, NULL) || fsync(file->fd)))
        status = io_error(where, "fsync");
    if (!status)
        status = give_name(file, where);
    if (!status && sync)
        status = sync_folder(file->path, where);
    sc_newfile_abort(file);
    return status;
}

void
sc_newfile_abort(struct sc_newfile *file)
{
    if (file->named && file->temp && allowed("unlink", file->temp, NULL))
        unlink(file->temp);
    sc_file_close(file->fd);
    forget_names(file);
}

enum sc_status
sc_file_remove(const char *path, bool sync, struct sc_where *where)
{
    if (!allowed("unlink", path, NULL))
        return io_error(where, "unlink");
    if (unlink(path) == 0)
        return sync ? sync_folder(path, where) : SC_OK;
    return means_missing(errno) ? SC_OK : io_error(where, "unlink");
}
