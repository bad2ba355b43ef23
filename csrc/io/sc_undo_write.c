/* sc_undo_write.c - the undo journal as a writer uses it: begin, write, commit, roll back, settle (see sc_undo.h)
 *
 * Why a writer that is killed leaves the old shard or the new one
 * ---------------------------------------------------------------
 * S is the shard's file, M its marker, J its journal. The writer holds the lock of S. S counts as
 *
 *     old   while J exists: the bytes of J in place of those of S, and the size that J says
 *     new   else: the bytes of S as they are
 *
 * and every reader and writer applies this rule. A reader finds J because M gives S a second name (sc_undo_find()).
 * A writer rolls S back before it looks at it (sc_undo_settle()).
 *
 *     call                               M  J   S counts as
 *   begin
 *     futimens(S, p)                     -  -   old: no byte has changed
 *     open, write, fchmod, [fsync] of J  -  -   old: J has a temporary name, which no reader looks for
 *     link(S, M)                         M  -   old: there is no J, and no byte has changed
 *     rename(temporary name, J)          M  J   old: J is whole, and its bytes are those of S
 *     [fsync of the folder]              M  J   old
 *   write
 *     pwrite of runs                     M  J   old: J has the old bytes of every run
 *     append                             M  J   old: what lies behind the old size does not count
 *   commit
 *     [fdatasync], close of a duplicate  M  J   old
 *     futimens(S, p + 1)                 M  J   old
 *     unlink(J)                          M  -   new: every byte of it has been written
 *     [fsync of the folder]              M  -   new
 *     unlink(M)                          -  -   new
 *
 * Why each line is true:
 *
 *   - J is never seen in part: it gets its name by one rename(), after all of it is written.
 *   - M is there whenever J is: M is made before J and removed after it. So every reader sees a second name of S while J
 *     counts. M alone says nothing; the next writer removes it. M also keeps the inode of S from being given to another
 *     file, so J, which names this inode, cannot be taken for the journal of another shard.
 *   - While J exists, the old shard can be made from S and J. A byte below the old size is changed only inside a run, and J
 *     has the old bytes of all runs. An index at the start that an append overwrites is a run, too. Everything else that is
 *     appended lies behind the old size, which J has.
 *   - unlink(J) is one step, and the last write to S comes before it. So a kill comes before it, and S is old, or after
 *     it, and S is new and whole.
 *
 * A roll back, by the writer itself after an error or by a later one:
 *
 *     pwrite of the old bytes, ftruncate M  J   old: for a reader J lies over S all the time
 *     [fdatasync], futimens(S, p + 2)    M  J   old
 *     unlink(J), [fsync of the folder]   M  -   old: S has the old bytes and the old size again
 *     unlink(M)                          -  -   old
 *
 * A kill during a roll back leaves J, and the next writer begins it again; to write the same old bytes twice does no harm.
 *
 * After a power cut the same holds with `sync`: J and both names are on the disk before the first byte of S changes, all
 * new bytes are before J goes, and J is gone for good before the caller is told of success. Without `sync` nothing is promised
 * (docs/durability.md). J ends with a checksum: one that a power cut has damaged is removed, not applied.
 *
 * Readers that are at work meanwhile compare the mtime before and after their reads (sc_undo_check()). p, p + 1 and p + 2
 * differ from each other and from every earlier mtime of S, so a reader never joins bytes of two states.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "kernels/sc_crc32c.h"
#include "io/sc_append.h"
#include "io/sc_undo_impl.h"

/* Number of attempts: another process may remove the staging folder after it was made and before it is used. */
#define MAX_TRIES 8

/* ---- calls that change the file system ---- */

/* True for an error that forbids this write strategy, but no other one. */
static bool
means_refused(int error)
{
    return error == EPERM || error == EACCES || error == EROFS || error == ETXTBSY || error == ENOENT ||
           error == ENOTDIR || error == EXDEV || error == EMLINK || error == EEXIST || error == EINVAL ||
           error == EOPNOTSUPP || error == ENOTSUP || error == ENOSYS;
}

/* 0, or -1 and errno. */
static int
remove_name(const char *name)
{
    return !sc_file_allows("unlink", name, NULL) || (unlink(name) && errno != ENOENT) ? -1 : 0;
}

static int
set_mtime(int fd, const char *path, int64_t ns)
{
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT } };

    times[1].tv_sec = (time_t)(ns / 1000000000);
    times[1].tv_nsec = (long)(ns % 1000000000);
    return sc_file_allows("futimens", path, NULL) ? futimens(fd, times) : -1;
}

/* ---- begin ---- */

/* True if readers look into this staging folder. */
static bool
is_found_there(const char *path, const char *staging)
{
    char *resolved = realpath(path, NULL), *folder;
    size_t end = SC_UNDO_NEAREST;
    bool found = false;

    while (resolved && !found && (folder = sc_undo_folder(resolved, &end))) {
        found = strcmp(folder, staging) == 0;
        sc_free(folder);
    }
    sc_free(resolved);
    return found;
}

/* Open the shard for writing. It must be the file that the caller has inspected, with no other name. */
static enum sc_status
open_shard(struct sc_undo_change *change, struct stat *st, bool *refused, struct sc_where *where)
{
    enum sc_status status;
    struct sc_file_id id;

    change->fd = sc_file_open_now(change->path, O_RDWR);
    if (change->fd < 0) {
        *refused = means_refused(errno);
        return *refused ? SC_OK : sc_file_open_failed(change->path, where);
    }
    status = sc_file_check_same(change->fd, change->old_fd, change->nbytes, st, where);
    if (status)
        return status;
    if (st->st_nlink != 1 || sc_append_is_odd(change->fd) || !is_found_there(change->path, change->staging)) {
        *refused = true;
        return SC_OK;
    }
    /* set an mtime that no state of the file had, and read it back: the clock of the file may be coarser, or the
     * call may have no effect */
    if (sc_file_identify_open(change->fd, &id, where))
        return SC_IO;
    change->begun_ns = id.seen_ns > id.mtime_ns ? id.seen_ns : id.mtime_ns + 1;
    if (id.mtime_ns < 0 || id.mtime_ns > INT64_MAX - 4 || set_mtime(change->fd, change->path, change->begun_ns)) {
        *refused = id.mtime_ns < 0 || id.mtime_ns > INT64_MAX - 4 || means_refused(errno);
        return *refused ? SC_OK : sc_file_error(where, "futimens");
    }
    if (sc_file_identify_open(change->fd, &id, where))
        return SC_IO;
    *refused = id.mtime_ns != change->begun_ns;
    return SC_OK;
}

/* Make the journal in memory, with old bytes from the shard. change->undo describes it. */
static enum sc_status
make_journal(struct sc_undo_change *change, uint64_t inode, size_t *n, struct sc_where *where)
{
    uint64_t total = SC_UNDO_HEAD_NBYTES + 4 + 16 * (uint64_t)change->n_runs;
    enum sc_status status = SC_OK;
    struct sc_undo *undo = &change->undo;
    uint8_t *p, *bytes;

    for (size_t i = 0; i < change->n_runs; i++)
        if (!add_fits(total, change->runs[i].nbytes, &total))
            return SC_NO_MEMORY;
    if (total > PTRDIFF_MAX)
        return SC_NO_MEMORY;
    p = undo->memory = sc_malloc((size_t)total);
    if (!p)
        return SC_NO_MEMORY;
    memcpy(p, SC_UNDO_MAGIC, 8);
    store_le64(p + 8, inode);
    store_le64(p + 16, change->nbytes);
    store_le64(p + 24, (uint64_t)change->begun_ns);
    store_le64(p + 32, change->n_runs);
    bytes = p + SC_UNDO_HEAD_NBYTES + 16 * change->n_runs;
    for (size_t i = 0; !status && i < change->n_runs; i++) {
        const struct sc_undo_run *run = &change->runs[i];

        store_le64(p + SC_UNDO_HEAD_NBYTES + 16 * i, run->offset);
        store_le64(p + SC_UNDO_HEAD_NBYTES + 16 * i + 8, run->nbytes);
        status = sc_file_read_exactly(change->fd, bytes, (size_t)run->nbytes, run->offset, where);
        bytes += run->nbytes;
    }
    if (status)
        return status;
    store_le32(bytes, sc_crc32c_extend(0, p, (size_t)total - 4));
    *n = (size_t)total;
    return sc_undo_parse(undo, total) ? SC_OK : SC_NO_MEMORY; /* the runs come from the caller and are valid */
}

/* Open a new file in the staging folder, which is made if it is missing. -1 and errno: not possible. */
static int
open_temp(struct sc_undo_change *change, bool *made_folder)
{
    int fd = -1;

    for (int i = 0; fd < 0 && i < MAX_TRIES; i++) {
        if (sc_file_allows("open", change->temp, NULL))
            fd = open(change->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != ENOENT)
            break;
        if (sc_staging_make(change->staging))
            break;
        *made_folder = true;
    }
    change->staged = change->staged || fd >= 0 || *made_folder;
    return fd;
}

/* Write the journal under a temporary name; users that may read the shard may read it too. */
static enum sc_status
write_temp(struct sc_undo_change *change, size_t n, mode_t mode, bool *made_folder, bool *refused,
           struct sc_where *where)
{
    int fd = open_temp(change, made_folder);
    enum sc_status status;

    if (fd < 0) {
        *refused = means_refused(errno);
        return *refused ? SC_OK : sc_file_error(where, "open");
    }
    status = sc_file_write(fd, change->temp, change->undo.memory, n, 0, where);
    if (!status && (!sc_file_allows("fchmod", change->temp, NULL) || fchmod(fd, (mode & 0444) | 0600)))
        status = sc_file_error(where, "fchmod");
    if (!status)
        status = sc_file_flush(fd, change->temp, change->sync ? SC_SYNC_ALL : SC_SYNC_NONE, where);
    sc_file_close(fd);
    return status;
}

/* Make the marker, then the journal. With `sync` both are on disk. */
static enum sc_status
publish(struct sc_undo_change *change, bool made_folder, bool *refused, struct sc_where *where)
{
    if (!sc_file_allows("link", change->marker, NULL) || link(change->path, change->marker)) {
        *refused = means_refused(errno);
        return *refused ? SC_OK : sc_file_error(where, "link");
    }
    if (!sc_file_allows("rename", change->journal, NULL) || rename(change->temp, change->journal)) {
        enum sc_status status = sc_file_error(where, "rename");

        remove_name(change->marker);
        return status;
    }
    change->undo.path = sc_strdup(change->journal);
    if (!change->undo.path)
        return SC_NO_MEMORY;
    return change->sync ? sc_file_sync_folders(change->journal, made_folder ? 1 : 0, where) : SC_OK;
}

enum sc_status
sc_undo_begin(struct sc_undo_change *change, bool *refused, struct sc_where *where)
{
    bool made_folder = false;
    enum sc_status status;
    struct stat st;
    size_t n = 0;

    change->fd = -1;
    change->temp = change->marker = change->journal = NULL;
    change->undo = (struct sc_undo){ 0 };
    *refused = !change->staging;
    if (*refused)
        return SC_OK;
    status = open_shard(change, &st, refused, where);
    if (status || *refused)
        return status;
    change->temp = sc_staging_name(change->staging);
    change->marker = sc_undo_name(change->staging, (uint64_t)st.st_ino, SC_UNDO_MARKER);
    change->journal = sc_undo_name(change->staging, (uint64_t)st.st_ino, "");
    if (!change->temp || !change->marker || !change->journal)
        return SC_NO_MEMORY;
    status = make_journal(change, (uint64_t)st.st_ino, &n, where);
    if (status)
        return status;
    status = write_temp(change, n, st.st_mode, &made_folder, refused, where);
    if (!status && !*refused)
        status = publish(change, made_folder, refused, where);
    if (status || *refused)
        remove_name(change->temp);
    return status;
}

enum sc_status
sc_undo_write(struct sc_undo_change *change, size_t first, struct sc_where *where)
{
    enum sc_status status = SC_OK;

    for (size_t i = first; !status && i < change->n_runs; i++)
        status = sc_file_write(change->fd, change->path, change->runs[i].bytes, (size_t)change->runs[i].nbytes,
                               change->runs[i].offset, where);
    return status;
}

/* ---- the end ---- */

enum sc_status
sc_undo_commit(struct sc_undo_change *change, bool *done, struct sc_where *where)
{
    enum sc_status status = sc_file_flush(change->fd, change->path, change->sync ? SC_SYNC_DATA : SC_SYNC_NONE, where);

    *done = false;
    if (status)
        return status;
    if (set_mtime(change->fd, change->path, change->begun_ns + 1))
        return sc_file_error(where, "futimens");
    if (remove_name(change->journal))
        return sc_file_error(where, "unlink");
    *done = true;
    if (change->sync)
        status = sc_file_sync_folders(change->journal, 0, where);
    remove_name(change->marker); /* alone it has no meaning, and the next writer removes it */
    return status;
}

/* Restore old bytes and old size, then remove the journal. */
static enum sc_status
restore(int fd, const char *path, const struct sc_undo *undo, const char *marker, bool sync, struct sc_where *where)
{
    enum sc_status status = SC_OK;
    struct stat st;

    for (size_t i = 0; !status && i < undo->n_runs; i++)
        status =
            sc_file_write(fd, path, undo->runs[i].bytes, (size_t)undo->runs[i].nbytes, undo->runs[i].offset, where);
    if (!status && fstat(fd, &st))
        status = sc_file_error(where, "fstat");
    if (!status && (uint64_t)st.st_size > undo->nbytes)
        status = sc_file_truncate(fd, path, undo->nbytes, where);
    if (!status)
        status = sc_file_flush(fd, path, sync ? SC_SYNC_DATA : SC_SYNC_NONE, where);
    if (!status && set_mtime(fd, path, undo->begun_ns + 2))
        status = sc_file_error(where, "futimens");
    if (!status && remove_name(undo->path))
        status = sc_file_error(where, "unlink");
    if (!status && sync)
        status = sc_file_sync_folders(undo->path, 0, where);
    if (!status)
        remove_name(marker);
    return status;
}

void
sc_undo_roll_back(struct sc_undo_change *change)
{
    struct sc_where ignored;

    if (!change->undo.path) /* no journal was published, so no byte has changed */
        return;
    if (restore(change->fd, change->path, &change->undo, change->marker, change->sync, &ignored))
        (void)restore(change->fd, change->path, &change->undo, change->marker, change->sync, &ignored);
}

void
sc_undo_end(struct sc_undo_change *change)
{
    sc_file_close(change->fd); /* flushed before the journal was removed; else the journal still exists */
    change->fd = -1;
    sc_free(change->temp);
    sc_free(change->marker);
    sc_free(change->journal);
    change->temp = change->marker = change->journal = NULL;
    sc_undo_free(&change->undo);
}

/* ---- the update of a dead writer ---- */

/* Return the folder that holds the marker of the shard; NULL: none does. */
static char *
marked_folder(const char *path, const struct stat *shard)
{
    char *resolved = realpath(path, NULL), *folder = NULL;
    size_t end = SC_UNDO_NEAREST;

    while (resolved && (folder = sc_undo_folder(resolved, &end)) && !sc_undo_is_marked(folder, shard)) {
        sc_free(folder);
        folder = NULL;
    }
    sc_free(resolved);
    return folder;
}

static enum sc_status
settle_in(const char *folder, const char *path, int fd, const struct stat *shard, struct sc_where *where)
{
    char *journal = sc_undo_name(folder, (uint64_t)shard->st_ino, "");
    char *marker = sc_undo_name(folder, (uint64_t)shard->st_ino, SC_UNDO_MARKER);
    struct sc_undo undo = { 0 };
    enum sc_status status = journal && marker ? sc_undo_load(folder, shard, &undo, where) : SC_NO_MEMORY;

    if (!status && undo.path) {
        status = restore(fd, path, &undo, marker, true, where);
    } else if (!status && (remove_name(journal) || remove_name(marker))) {
        status = sc_file_error(where, "unlink");
    }
    sc_undo_free(&undo);
    sc_free(journal);
    sc_free(marker);
    return status;
}

enum sc_status
sc_undo_settle(const char *path, int fd, char **folder, struct sc_where *where)
{
    enum sc_status status = SC_OK;
    struct stat shard;
    int own = -1;

    *folder = NULL;
    if (fstat(fd, &shard))
        return sc_file_error(where, "fstat");
    if (shard.st_nlink < 2 || !(*folder = marked_folder(path, &shard)))
        return SC_OK;
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) { /* a caller without a lock has opened it for reading only */
        struct stat st;

        own = sc_file_open_now(path, O_RDWR);
        if (own < 0 || fstat(own, &st))
            status = sc_file_open_failed(path, where);
        else if (st.st_ino != shard.st_ino || st.st_dev != shard.st_dev) {
            where->nbytes = (uint64_t)st.st_size;
            where->limit = (uint64_t)shard.st_size;
            status = SC_CHANGED;
        }
    }
    if (!status)
        status = settle_in(*folder, path, own >= 0 ? own : fd, &shard, where);
    sc_file_close(own);
    return status;
}
