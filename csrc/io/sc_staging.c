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
#include "io/sc_file.h"

#define PREFIX ".shardcodec-"
#define FOREIGN_SECONDS ((time_t)7 * 24 * 3600)

/* ---- this process ---- */

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
static struct identity
identity(void)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static struct identity own;
    struct identity result;
    long pid = (long)getpid();

    pthread_mutex_lock(&mutex);
    if (own.pid != pid) {
        char text[256];
        ssize_t n;

        own.host = 0xcbf29ce484222325u;
        read_text("/proc/sys/kernel/random/boot_id", text, sizeof text);
        own.host = hash_more(own.host, text, strlen(text));
        n = readlink("/proc/self/ns/pid", text, sizeof text);
        own.host = hash_more(own.host, text, n > 0 ? (size_t)n : 0);
        if (gethostname(text, sizeof text) == 0)
            own.host = hash_more(own.host, text, strnlen(text, sizeof text));
        own.start = start_of(pid);
        own.pid = pid;
    }
    result = own;
    pthread_mutex_unlock(&mutex);
    return result;
}

int
sc_staging_make(const char *folder)
{
    if (!sc_file_allows("mkdir", folder, NULL))
        return -1;
    return mkdir(folder, 0777) && errno != EEXIST ? -1 : 0;
}

char *
sc_staging_name(const char *folder)
{
    static atomic_uint counter;
    struct identity own = identity();

    return sc_format("%s/" PREFIX "%016llx-%ld-%llx-%x", folder, (unsigned long long)own.host, own.pid, own.start,
                     atomic_fetch_add(&counter, 1));
}

/* ---- names of dead writers ---- */

static bool
is_old(int folder, const char *name)
{
    struct stat st;

    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_ctim.tv_sec < time(NULL) - FOREIGN_SECONDS;
}

/* True for an undo journal without its marker, and for the marker of a shard without another name: the shard is
 * gone. */
static bool
is_undo_litter(int folder, const char *name)
{
    unsigned long long inode;
    char marker[64];
    struct stat st;
    int end = 0;

    if (sscanf(name, SC_UNDO_PREFIX "%16llx%n", &inode, &end) != 1 || (name[end] && strcmp(name + end, SC_UNDO_MARKER)))
        return false;
    snprintf(marker, sizeof marker, SC_UNDO_PREFIX "%llx" SC_UNDO_MARKER, inode);
    if (fstatat(folder, marker, &st, AT_SYMLINK_NOFOLLOW))
        return !name[end] && errno == ENOENT;
    return st.st_nlink == 1;
}

/* True for a temporary name whose writer is dead. */
static bool
is_litter(int folder, const char *name, const struct identity *own)
{
    unsigned long long host, start;
    unsigned number;
    long pid;
    int end = 0;

    if (strncmp(name, SC_UNDO_PREFIX, sizeof SC_UNDO_PREFIX - 1) == 0)
        return is_undo_litter(folder, name);
    if (sscanf(name, PREFIX "%16llx-%ld-%llx-%x%n", &host, &pid, &start, &number, &end) != 4 || name[end] || pid <= 0)
        return false;
    if (host != own->host)
        return is_old(folder, name);
    if (kill((pid_t)pid, 0) && errno == ESRCH)
        return true;
    return start && start_of(pid) && start_of(pid) != start; /* another process has the number now */
}

static void
sweep(const char *path)
{
    struct identity own = identity();
    DIR *folder = opendir(path);
    const struct dirent *d;

    while (folder && (d = readdir(folder)))
        if (is_litter(dirfd(folder), d->d_name, &own) && sc_file_allows("unlink", d->d_name, NULL))
            unlinkat(dirfd(folder), d->d_name, 0); /* a failure is harmless: the next sweep finds the name */
    if (folder)
        closedir(folder);
}

void
sc_staging_sweep_once(const char *folder)
{
    static _Atomic uint64_t swept[256]; /* a folder is forgotten if another one takes its slot; that costs time only */
    uint64_t hash = hash_more(identity().host ^ (uint64_t)getpid(), folder, strlen(folder));

    if (atomic_exchange(&swept[hash % 256], hash) != hash)
        sweep(folder);
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

/* ---- folders that are kept for a while ---- */

#define MAX_KEPT 64u

static pthread_mutex_t kept_mutex = PTHREAD_MUTEX_INITIALIZER;
static char *kept[MAX_KEPT];
static unsigned n_kept;

static bool
is_kept(const char *folder)
{
    for (unsigned i = 0; i < n_kept; i++)
        if (strcmp(kept[i], folder) == 0)
            return true;
    return false;
}

void
sc_staging_leave_later(const char *folder)
{
    bool known, added = false;

    pthread_mutex_lock(&kept_mutex);
    known = is_kept(folder);
    if (!known && n_kept < MAX_KEPT && (kept[n_kept] = sc_strdup(folder))) {
        n_kept++;
        added = true;
    }
    pthread_mutex_unlock(&kept_mutex);
    if (added)
        sweep(folder);
    else if (!known)
        sc_staging_leave(folder);
}

void
sc_staging_leave_all(void)
{
    for (;;) {
        char *folder;

        pthread_mutex_lock(&kept_mutex);
        folder = n_kept ? kept[--n_kept] : NULL;
        pthread_mutex_unlock(&kept_mutex);
        if (!folder)
            return;
        sc_staging_leave(folder);
        sc_free(folder);
    }
}
