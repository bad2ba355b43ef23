/* sc_staging.c - temporary names and the processes that own them (see sc_staging.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_staging.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "base/sc_fork.h"
#include "io/sc_file.h"
#include "io/sc_lock.h"

#define PREFIX ".shardcodec-"
#define LATE "late-"
#define KEPT "kept-"

/* ---- this process ---- */

#define HASH_BASIS 0xcbf29ce484222325u

static uint64_t
hash_more(uint64_t hash, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (uint8_t)bytes[i]) * 0x100000001b3u; /* FNV-1a */
    return hash;
}

/* Read a small file as a string; "" if it cannot be read. */
static void
read_text(const char *path, char *text, size_t capacity)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, capacity - 1);

    text[n > 0 ? n : 0] = 0;
    sc_file_close(fd);
}

/* Return the start time of a process, in ticks since the boot; 0: unknown. */
static unsigned long long
start_of(long pid)
{
    char path[64], text[1024];
    const char *p;

    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    read_text(path, text, sizeof text);
    p = strrchr(text, ')'); /* the name of the program may contain any character */
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p, NULL, 10) : 0;
}

struct identity {
    uint64_t host;
    long pid;
    unsigned long long start;
};

/* Determined once in each process: a forked child is another process. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct identity this_process;

static struct identity
identity(void)
{
    struct identity result;
    long pid = (long)getpid();

    pthread_mutex_lock(&mutex);
    if (this_process.pid != pid) {
        char text[256];
        ssize_t n;

        this_process.host = HASH_BASIS;
        read_text("/proc/sys/kernel/random/boot_id", text, sizeof text);
        this_process.host = hash_more(this_process.host, text, strlen(text));
        n = readlink("/proc/self/ns/pid", text, sizeof text);
        this_process.host = hash_more(this_process.host, text, n > 0 ? (size_t)n : 0);
        if (gethostname(text, sizeof text) == 0)
            this_process.host = hash_more(this_process.host, text, strnlen(text, sizeof text));
        this_process.start = start_of(pid);
        this_process.pid = pid;
    }
    result = this_process;
    pthread_mutex_unlock(&mutex);
    return result;
}

SC_HOLD_ACROSS_FORK(mutex)

static void
after_fork_in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
}

enum sc_status
sc_staging_init(void)
{
    return sc_fork_handlers(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- the folder ---- */

#define SUFFIX ".shardcodec"
#define MAX_OPENS 8
#define WRITABLE (S_IWGRP | S_IWOTH)

/* Look at the top of the hierarchy: /data/a.zarr for /data/.a.zarr.shardcodec, or at the array: /data/a.zarr for
 * /data/a.zarr/.shardcodec. False: there is none yet. */
static bool
look_at_hierarchy(const char *folder, struct stat *st)
{
    char *top = sc_strdup(folder), *name = top ? strrchr(top, '/') : NULL;
    size_t n = name ? strlen(name) : 0;
    bool found = false;

    if (name && name != top && strcmp(name + 1, SUFFIX) == 0) {
        *name = 0;
        found = lstat(top, st) == 0 && S_ISDIR(st->st_mode);
    } else if (n > sizeof SUFFIX + 1 && name[1] == '.' && strcmp(name + n - (sizeof SUFFIX - 1), SUFFIX) == 0) {
        name[n - (sizeof SUFFIX - 1)] = 0;
        memmove(name + 1, name + 2, strlen(name + 2) + 1);
        found = lstat(top, st) == 0 && S_ISDIR(st->st_mode);
    }
    sc_free(top);
    return found;
}

/* Return the write permissions of groups and others that a staging folder may have: those of its hierarchy. */
static mode_t
allowed_writers(const struct stat *hierarchy, gid_t group)
{
    mode_t mode = hierarchy ? hierarchy->st_mode : 0;

    if (mode & S_ISVTX)
        mode &= ~(mode_t)S_IWOTH; /* they may make names in the hierarchy, but exchange only their own ones */
    if (hierarchy && hierarchy->st_gid != group)
        mode &= ~(mode_t)S_IWGRP;
    return mode & WRITABLE;
}

static bool
is_safe(int fd, const struct stat *hierarchy)
{
    struct stat st;
    mode_t excess;

    if (fstat(fd, &st) || !S_ISDIR(st.st_mode))
        return false;
    excess = st.st_mode & WRITABLE & ~allowed_writers(hierarchy, st.st_gid);
    if (st.st_uid == geteuid()) /* the umask of another process was wider */
        return !excess || (sc_file_allows("fchmod", ".", NULL) && fchmod(fd, st.st_mode & 07777 & ~excess) == 0);
    return !excess && (st.st_uid == 0 || (hierarchy && st.st_uid == hierarchy->st_uid));
}

int
sc_staging_open(const char *folder)
{
    struct stat above;
    const struct stat *hierarchy = look_at_hierarchy(folder, &above) ? &above : NULL;
    mode_t mode = 0755 | (hierarchy ? above.st_mode & WRITABLE : 0);
    int fd = -1;

    for (int attempt = 0; fd < 0 && attempt < MAX_OPENS; attempt++) {
        fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 &&
            (errno != ENOENT || !sc_file_allows("mkdir", folder, NULL) || (mkdir(folder, mode) && errno != EEXIST)))
            return -1;
    }
    if (fd >= 0 && !is_safe(fd, hierarchy)) {
        sc_file_close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

mode_t
sc_staging_writers(const char *folder, gid_t group)
{
    struct stat above;

    return allowed_writers(look_at_hierarchy(folder, &above) ? &above : NULL, group);
}

/* ---- names ---- */

char *
sc_staging_name(const char *folder, uint64_t shard, uint64_t replaced)
{
    static atomic_uint counter;
    struct identity own = identity();
    char suffix[24] = "";

    if (replaced)
        snprintf(suffix, sizeof suffix, "-%llx", (unsigned long long)replaced);
    return sc_format("%s/" PREFIX "%016llx-%016llx-%ld-%llx-%x%s", folder, (unsigned long long)shard,
                     (unsigned long long)own.host, own.pid, own.start, atomic_fetch_add(&counter, 1), suffix);
}

void
sc_staging_late_name(char *name, size_t capacity, const char *temp)
{
    snprintf(name, capacity, LATE "%s", temp);
}

void
sc_staging_kept_name(char *name, size_t capacity, uint64_t number, const char *temp)
{
    snprintf(name, capacity, KEPT "%llx-%s", (unsigned long long)number, temp);
}

/* ---- names of dead writers ---- */

/* A folder of shards of at most this size is searched for journals of shards that are gone. */
#define SMALL_FOLDER_NBYTES ((off_t)1 << 16)

static bool
is_old(int folder, const char *name)
{
    struct stat st;

    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           st.st_ctim.tv_sec < time(NULL) - SC_STAGING_FOREIGN_SECONDS;
}

void
sc_staging_undo_names(struct sc_undo_names *names, uint64_t inode)
{
    unsigned long long n = inode;

    snprintf(names->journal, sizeof names->journal, SC_UNDO_PREFIX "%llx", n);
    snprintf(names->marker, sizeof names->marker, SC_UNDO_PREFIX "%llx" SC_UNDO_MARKER, n);
    snprintf(names->temp, sizeof names->temp, SC_UNDO_PREFIX "%llx" SC_UNDO_TEMP, n);
}

/* Remove a name, if a test allows it. A failure is harmless: the next sweep finds the name. */
static void
remove_name(int folder, const char *name)
{
    if (sc_file_allows("unlink", name, NULL))
        unlinkat(folder, name, 0);
}

/* Open the marker of an inode. A missing one is made: as long as it exists no writer can mark a shard of this inode, and
 * without a marker no journal appears. */
static int
open_marker(int folder, const char *marker)
{
    int fd = openat(folder, marker, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0 && errno == ENOENT && sc_file_allows("open", marker, NULL))
        fd = openat(folder, marker, O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0600);
    return fd;
}

/* True for a marker that is the only name of its file, or that a sweep has made. A marker of another inode has come with a copy
 * of the folder. It stays, with its journal: they are all that tells of a shard that was copied half way through an update. */
static bool
is_gone(int fd, unsigned long long inode)
{
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_nlink == 1 && (st.st_ino == inode || st.st_size == 0);
}

/* Remove an undo journal whose shard is gone: the marker is the only name of the file, or there is none. A writer makes a
 * journal only while it holds the lock of the file that the marker names. So nothing is removed without that lock. */
static void
sweep_undo(int folder, const char *name)
{
    unsigned long long inode;
    struct sc_undo_names names;
    int end = 0, fd;

    if (sscanf(name, SC_UNDO_PREFIX "%16llx%n", &inode, &end) != 1)
        return;
    sc_staging_undo_names(&names, inode);
    if (name[end] && strcmp(name, names.marker) != 0 && strcmp(name, names.temp) != 0)
        return;
    fd = open_marker(folder, names.marker);
    if (fd < 0)
        return;
    /* looked at twice: a shard that has a name is not even locked, and under the lock the marker is still there */
    if (is_gone(fd, inode) && sc_lock_is_free(fd) && is_gone(fd, inode)) {
        remove_name(folder, names.temp);
        remove_name(folder, names.journal);
        remove_name(folder, names.marker);
    }
    sc_file_close(fd);
}

/* Parse a temporary name; false for any other name. */
static bool
parse_name(const char *name, uint64_t *shard, struct identity *writer, uint64_t *replaced)
{
    unsigned long long number, host, inode = 0;
    unsigned count;
    int end = 0, more = 0;

    if (sscanf(name, PREFIX "%16llx-%16llx-%ld-%llx-%x%n-%llx%n", &number, &host, &writer->pid, &writer->start, &count,
               &end, &inode, &more) < 5 ||
        name[more ? more : end] || writer->pid <= 0)
        return false;
    *shard = number;
    *replaced = more ? inode : 0;
    writer->host = host;
    return true;
}

/* Parse a name in the folder of a lock file; false for any other name. */
static bool
parse_entry(const char *name, uint64_t *shard, struct sc_staging_entry *entry)
{
    struct identity writer;
    unsigned long long number = 0;
    int start = 0;

    *entry = (struct sc_staging_entry){ .kind = SC_STAGING_TEMPORARY, .name = name };
    if (strncmp(name, LATE, sizeof LATE - 1) == 0) {
        entry->kind = SC_STAGING_LATE;
        start = sizeof LATE - 1;
    } else if (sscanf(name, KEPT "%16llx-%n", &number, &start) == 1 && start) {
        entry->kind = SC_STAGING_KEPT;
        entry->number = number;
    }
    return parse_name(name + start, shard, &writer, &entry->replaced);
}

bool
sc_staging_shard_of(const char *temp, uint64_t *shard)
{
    struct identity writer;
    uint64_t replaced;

    return parse_name(temp, shard, &writer, &replaced);
}

/* True for a temporary name in the folder `path` that no writer may use any more: its process is dead, or has lost the lock
 * that this process holds. */
static bool
is_litter(const char *path, int folder, const char *name, const struct identity *own)
{
    struct identity writer;
    uint64_t shard, replaced;

    if (!parse_name(name, &shard, &writer, &replaced))
        return false;
    if (writer.host == own->host && writer.pid == own->pid && writer.start == own->start)
        return false;
    if (shard && sc_lock_shuts_out(path, shard))
        return true;
    if (writer.host != own->host)
        return is_old(folder, name);
    if (kill((pid_t)writer.pid, 0) && errno == ESRCH)
        return true;
    /* another process has the number now */
    return writer.start && start_of(writer.pid) && start_of(writer.pid) != writer.start;
}

/* Remove a folder to which a shard was moved, or was to be moved, by a writer that removes it (sc_guard_remove()). */
static int
remove_folder(int at, const char *name)
{
    int r = -1, fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    /* a shard may arrive between the two calls */
    for (int attempt = 0; fd >= 0 && r && attempt < MAX_OPENS; attempt++) {
        if (unlinkat(fd, SC_STAGING_REMOVED, 0) && errno != ENOENT)
            break;
        r = unlinkat(at, name, AT_REMOVEDIR);
        if (r && errno != ENOTEMPTY && errno != EEXIST)
            break;
    }
    sc_file_close(fd);
    return r;
}

int
sc_staging_remove(int at, const char *name)
{
    int r = sc_file_allows("unlink", name, NULL) ? unlinkat(at, name, 0) : -1;

    return r && errno == EISDIR ? remove_folder(at, name) : r;
}

static void
sweep(const char *path)
{
    struct identity own = identity();
    DIR *folder = opendir(path);
    const struct dirent *d;

    while (folder && (d = readdir(folder))) {
        if (strncmp(d->d_name, SC_UNDO_PREFIX, sizeof SC_UNDO_PREFIX - 1) == 0)
            sweep_undo(dirfd(folder), d->d_name);
        else if (is_litter(path, dirfd(folder), d->d_name, &own))
            sc_staging_remove(dirfd(folder), d->d_name); /* a failure is harmless: the next sweep finds the name */
    }
    if (folder)
        closedir(folder);
}

int
sc_staging_list(int at, uint64_t shard, void (*found)(void *, const struct sc_staging_entry *), void *context)
{
    int fd = fcntl(at, F_DUPFD_CLOEXEC, 0), error; /* to open the folder again would be a request */
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    struct sc_staging_entry entry;
    const struct dirent *d;
    uint64_t of;

    if (!folder) {
        sc_file_close(fd);
        return -1;
    }
    rewinddir(folder); /* the place in the list is that of `at` */
    while ((errno = 0, d = readdir(folder)))
        if (parse_entry(d->d_name, &of, &entry) && of == shard)
            found(context, &entry);
    error = errno; /* the list has an end that was not read */
    closedir(folder);
    errno = error;
    return error ? -1 : 0;
}

/* True if this process has not asked before, for this purpose. */
static bool
is_first(const char *folder, unsigned purpose)
{
    /* a folder is forgotten if another one takes its slot; that costs time only */
    static _Atomic uint64_t known[2][256];
    uint64_t hash = hash_more(identity().host ^ (uint64_t)getpid(), folder, strlen(folder));

    return atomic_exchange(&known[purpose][hash % 256], hash) != hash;
}

void
sc_staging_sweep_once(const char *folder)
{
    if (is_first(folder, 0))
        sweep(folder);
}

void
sc_staging_sweep_small_once(const char *folder, int fd)
{
    struct stat st;

    if (is_first(folder, 1) && fstat(fd, &st) == 0 && st.st_size <= SMALL_FOLDER_NBYTES)
        sc_staging_sweep_once(folder);
}

void
sc_staging_leave(const char *folder)
{
    if (!sc_file_allows("rmdir", folder, NULL) || rmdir(folder) == 0 || (errno != ENOTEMPTY && errno != EEXIST))
        return;
    sweep(folder);
    if (sc_file_allows("rmdir", folder, NULL))
        rmdir(folder); /* another writer may use it by now; then the last one removes it */
}
