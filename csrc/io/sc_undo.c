/* sc_undo.c - the undo journal: its content, and how readers use it (see sc_undo.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_undo_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "kernels/sc_crc32c.h"

/* Number of attempts: journals may be made and removed while a reader looks for one. */
#define MAX_LOOKS 64

/* ---- names ---- */

char *
sc_undo_resolve(const char *path, int fd)
{
    char self[64], *found = sc_malloc(PATH_MAX);
    ssize_t n;

    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    n = found ? readlink(self, found, PATH_MAX) : 0;
    if (n > 0 && n < PATH_MAX && found[0] == '/') {
        found[n] = 0;
        return found;
    }
    sc_free(found);
    return realpath(path, NULL);
}

/* Return the length of the folder of a path; 0: it is the root, or there is none. */
static size_t
folder_length(const char *path, size_t n)
{
    while (n && path[n - 1] != '/')
        n--;
    return n ? n - 1 : 0;
}

char *
sc_undo_folder(const char *resolved, unsigned i)
{
    size_t top = folder_length(resolved, strlen(resolved)), parent;

    if (i == 0)
        return top ? sc_strndup(resolved, top) : sc_strdup("/");
    while (--i && top)
        top = folder_length(resolved, top);
    if (!top)
        return NULL; /* the root has no name */
    parent = folder_length(resolved, top);
    return sc_format("%.*s/.%.*s.shardcodec", (int)parent, resolved, (int)(top - parent - 1), resolved + parent + 1);
}

char *
sc_undo_name(const char *folder, uint64_t inode, const char *suffix)
{
    return sc_format("%s/" SC_UNDO_PREFIX "%llx%s", folder, (unsigned long long)inode, suffix);
}

bool
sc_undo_is_marked(const char *folder, const struct stat *shard)
{
    char *marker = sc_undo_name(folder, (uint64_t)shard->st_ino, SC_UNDO_MARKER);
    struct stat st;
    bool is = marker && lstat(marker, &st) == 0 && st.st_ino == shard->st_ino && st.st_dev == shard->st_dev;

    sc_free(marker);
    return is;
}

/* ---- the content of a journal ---- */

void
sc_undo_free(struct sc_undo *undo)
{
    sc_free(undo->path);
    sc_free(undo->runs);
    sc_free(undo->memory);
    *undo = (struct sc_undo){ 0 };
}

/* Read the runs: ascending, inside the shard, with all their bytes in the journal. */
static bool
parse_runs(struct sc_undo *undo, const uint8_t *pairs, const uint8_t *bytes, uint64_t n_bytes)
{
    uint64_t end = 0;

    for (size_t i = 0; i < undo->n_runs; i++) {
        struct sc_undo_run run = { load_le64(pairs + 16 * i), load_le64(pairs + 16 * i + 8), bytes };

        if (run.offset < end || run.offset > undo->nbytes || run.nbytes > undo->nbytes - run.offset ||
            run.nbytes > n_bytes)
            return false;
        undo->runs[i] = run;
        end = run.offset + run.nbytes;
        bytes += run.nbytes;
        n_bytes -= run.nbytes;
    }
    return n_bytes == 0;
}

bool
sc_undo_parse(struct sc_undo *undo, uint64_t n)
{
    const uint8_t *p = undo->memory;
    uint64_t n_runs;

    if (n < SC_UNDO_HEAD_NBYTES + 4 || memcmp(p, SC_UNDO_MAGIC, 8) != 0)
        return false;
    if (load_le32(p + n - 4) != sc_crc32c_extend(0, p, (size_t)(n - 4)))
        return false;
    undo->inode = load_le64(p + 8);
    undo->nbytes = load_le64(p + 16);
    undo->begun_ns = (int64_t)load_le64(p + 24);
    n_runs = load_le64(p + 32);
    n -= SC_UNDO_HEAD_NBYTES + 4;
    if (n_runs > n / 16 || undo->nbytes > INT64_MAX)
        return false;
    undo->n_runs = (size_t)n_runs;
    undo->runs = sc_malloc((undo->n_runs + 1) * sizeof *undo->runs);
    p += SC_UNDO_HEAD_NBYTES;
    return undo->runs && parse_runs(undo, p, p + 16 * n_runs, n - 16 * n_runs);
}

/* True if the journal was made by a user who may change the shard: other users may write to the folder of a staging folder. */
static bool
is_of_owner(const struct stat *journal, const struct stat *shard)
{
    return journal->st_uid == shard->st_uid || journal->st_uid == 0 || journal->st_uid == geteuid();
}

enum sc_status
sc_undo_load(const char *folder, bool is_staging, const struct stat *shard, struct sc_undo *undo,
             struct sc_where *where)
{
    uint64_t inode = (uint64_t)shard->st_ino, size = (uint64_t)shard->st_size;
    char *path = sc_undo_name(folder, inode, "");
    enum sc_status status = SC_OK;
    struct stat st;
    bool right = false;
    uint64_t n;
    int fd;

    *undo = (struct sc_undo){ 0 };
    if (!path)
        return SC_NO_MEMORY;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP)
            status = sc_file_error(where, "open");
        sc_free(path);
        return status;
    }
    if (fstat(fd, &st))
        status = sc_file_error(where, "fstat");
    n = status ? 0 : (uint64_t)st.st_size;
    /* runs do not overlap, so all runs together have at most the size of the shard, and at most one run starts at each
     * byte: a larger file cannot be a journal */
    if (!status && S_ISREG(st.st_mode) && (!is_staging || is_of_owner(&st, shard)) && size < UINT64_MAX / 32 &&
        n <= SC_UNDO_HEAD_NBYTES + 4 + 17 * size) {
        size_t got;

        undo->memory = sc_malloc((size_t)n + 1);
        status = undo->memory ? sc_file_read(fd, undo->memory, (size_t)n, 0, &got, where) : SC_NO_MEMORY;
        right = !status && got == n && sc_undo_parse(undo, n) && undo->inode == inode && undo->nbytes <= size;
    }
    sc_file_close(fd);
    if (!right) {
        sc_undo_free(undo);
        sc_free(path);
        return status;
    }
    undo->path = path;
    return SC_OK;
}

/* ---- readers ---- */

static bool
same_state(const struct sc_file_id *a, const struct sc_file_id *b)
{
    return a->mtime_ns == b->mtime_ns && a->nbytes == b->nbytes && a->n_links == b->n_links;
}

/* Look once into each folder that may hold the journal. */
static enum sc_status
look_from(const char *resolved, int fd, struct sc_undo *undo, struct sc_where *where)
{
    enum sc_status status = SC_OK;
    struct stat shard;
    char *folder;

    if (fstat(fd, &shard))
        return sc_file_error(where, "fstat");
    for (unsigned i = 0; !status && !undo->path && (folder = sc_undo_folder(resolved, i)); i++) {
        if (sc_undo_is_marked(folder, &shard))
            status = sc_undo_load(folder, i > 0, &shard, undo, where);
        sc_free(folder);
    }
    return status;
}

/* Look for the journal, and again if the hierarchy was moved meanwhile. */
static enum sc_status
look(const char *path, int fd, struct sc_undo *undo, struct sc_where *where)
{
    char *resolved = sc_undo_resolve(path, fd);
    enum sc_status status = SC_OK;
    bool moved = true;

    *undo = (struct sc_undo){ 0 };
    /* without a path it was removed, and then no writer finds it any more */
    for (int i = 0; resolved && moved && i < MAX_LOOKS; i++) {
        char *now;

        status = look_from(resolved, fd, undo, where);
        if (status || undo->path)
            break;
        now = sc_undo_resolve(path, fd);
        moved = now && strcmp(now, resolved) != 0;
        sc_free(resolved);
        resolved = now;
    }
    sc_free(resolved);
    return status;
}

enum sc_status
sc_undo_find(const char *path, int fd, struct sc_undo *undo, struct sc_file_id *id, struct sc_where *where)
{
    enum sc_status status = SC_OK;

    *undo = (struct sc_undo){ 0 };
    for (int i = 0; i < MAX_LOOKS && !status; i++) {
        struct sc_file_id before, after;

        status = sc_file_identify_open(fd, &before, where);
        if (!status)
            status = look(path, fd, undo, where);
        if (!status)
            status = sc_file_identify_open(fd, &after, where);
        if (status)
            break;
        *id = after;
        if (undo->path) {
            /* The bytes that it gives are those of the state p. `after` may be a later state: the writer may have committed
             * since the journal was read. */
            id->mtime_ns = undo->begun_ns;
            id->nbytes = undo->nbytes;
            return SC_OK;
        }
        if (same_state(&before, &after))
            return SC_OK;
    }
    sc_undo_free(undo);
    return status ? status : SC_CHANGED;
}

enum sc_status
sc_undo_locate(const char *path, char **journal, struct sc_where *where)
{
    struct sc_undo undo = { 0 };
    struct sc_file_id id;
    enum sc_status status;
    int fd;

    *journal = NULL;
    status = sc_file_open_id(path, &fd, &id, where);
    if (!status && fd >= 0 && id.n_links > 1)
        status = look(path, fd, &undo, where);
    sc_file_close(fd);
    *journal = undo.path;
    undo.path = NULL;
    sc_undo_free(&undo);
    return status;
}

void
sc_undo_overlay(const struct sc_undo *undo, uint64_t offset, uint64_t n, uint8_t *dst)
{
    size_t low = 0, high = undo->n_runs;

    while (low < high) { /* the first run that ends behind `offset` */
        size_t middle = low + (high - low) / 2;

        if (undo->runs[middle].offset + undo->runs[middle].nbytes > offset)
            high = middle;
        else
            low = middle + 1;
    }
    for (; low < undo->n_runs && undo->runs[low].offset < offset + n; low++) {
        const struct sc_undo_run *run = &undo->runs[low];
        uint64_t from = max_u64(run->offset, offset), to = min_u64(run->offset + run->nbytes, offset + n);

        memcpy(dst + (from - offset), run->bytes + (from - run->offset), (size_t)(to - from));
    }
}

enum sc_status
sc_undo_check(const char *path, int fd, const struct sc_undo *undo, const struct sc_file_id *id, struct sc_where *where)
{
    struct sc_undo again = { 0 };
    struct sc_file_id now;
    enum sc_status status = sc_file_identify_open(fd, &now, where);
    bool one_state;

    if (status)
        return status;
    if (undo && undo->path) {
        /* either it was committed or rolled back since, and nothing else; or the same journal is still there */
        one_state = now.mtime_ns == undo->begun_ns + 1 || now.mtime_ns == undo->begun_ns + 2;
        if (!one_state) {
            status = look(path, fd, &again, where);
            one_state = again.path && again.begun_ns == undo->begun_ns;
        }
    } else {
        one_state = same_state(&now, id) || (now.n_links == 0 && now.mtime_ns == id->mtime_ns);
        if (one_state && now.n_links > 1) {
            status = look(path, fd, &again, where);
            one_state = !again.path;
        }
    }
    sc_undo_free(&again);
    if (status || one_state)
        return status;
    where->nbytes = now.nbytes;
    where->limit = id->nbytes;
    return SC_CHANGED;
}

enum sc_status
sc_undo_read(const char *path, int fd, uint8_t *dst, size_t n, uint64_t offset, struct sc_where *where)
{
    enum sc_status status = SC_CHANGED;

    for (int i = 0; i < MAX_LOOKS && status == SC_CHANGED; i++) {
        struct sc_undo undo;
        struct sc_file_id id;

        status = sc_undo_find(path, fd, &undo, &id, where);
        if (!status)
            status = sc_file_read_exactly(fd, dst, n, offset, where);
        if (!status) {
            sc_undo_overlay(&undo, offset, n, dst);
            status = sc_undo_check(path, fd, &undo, &id, where);
        }
        sc_undo_free(&undo);
    }
    return status;
}
