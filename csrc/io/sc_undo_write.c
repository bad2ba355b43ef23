/* sc_undo_write.c - the undo journal as a writer uses it: begin, write, commit, roll back (see sc_undo.h)
 *
 * Why a writer that is killed leaves the old shard or the new one
 * ---------------------------------------------------------------
 * S is the shard's file. M is its marker, T the temporary name of the journal, J the journal. All four lie in one folder,
 * and M, T and J are named by the inode of S. The writer holds the lock of S. S counts as
 *
 *     old   while J exists: the bytes of J in place of those of S, and the size that J says
 *     new   else: the bytes of S as they are
 *
 * and every reader and writer applies this rule. A reader finds J because M gives S a second name (sc_undo_find()).
 * A writer rolls S back before it looks at it (sc_undo_roll_back_dead()).
 *
 *     call                               M  J   S counts as
 *   begin
 *     futimens(S, p)                     -  -   old: no byte has changed
 *     [unlink(J), fsync of the folder]   -  -   old: a J without M says nothing; only a power cut leaves one, or a copy
 *     link(S, M)                         M  -   old: there is no J, and no byte has changed
 *     open, write, attributes, [fsync] T M  -   old: no reader looks for T
 *     rename(T, J)                       M  J   old: J is whole, and its bytes are those of S
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
 *   - M is there whenever J is: M is made before J and removed after it, and no J is there when M is made. So every reader sees a
 *     second name of S while J counts. M alone says nothing; the next writer removes it, with T.
 *   - J is the journal of this S and of this update. M keeps the inode of S from being given to another file. Only the holder
 *     of the lock of S makes or removes M, T and J of this inode (and sweepers, see below).
 *   - While J exists, the old shard can be made from S and J. A byte below the old size is changed only inside a run, and J
 *     has the old bytes of all runs. An index at the start that an append overwrites is a run, too. Everything else that is
 *     appended lies behind the old size, which J has.
 *   - unlink(J) is one step, and the last write to S comes before it. So a kill comes before it, and S is old, or after
 *     it, and S is new and whole.
 *
 * A roll back, by the writer itself after an error or by a later one, which holds the lock of S:
 *
 *     pwrite of the old bytes, ftruncate M  J   old: for a reader J lies over S all the time
 *     [fdatasync], futimens(S, p + 2)    M  J   old
 *     unlink(J), [fsync of the folder]   M  -   old: S has the old bytes and the old size again
 *     unlink(M)                          -  -   old
 *
 * A kill during a roll back leaves J, and the next writer begins it again; to write the same old bytes twice does no harm. Who
 * may write to S and to its folder can roll back. A user who does not own S can set the present time only, and waits until it
 * is later than p + 2.
 *
 * After a power cut the same holds with `sync`: J and both names are on the disk before the first byte of S changes, all
 * new bytes are before J goes, and J is gone for good before the caller is told of success. Without `sync` nothing is promised
 * (docs/durability.md). J ends with a checksum: one that a power cut has damaged is removed, not applied.
 *
 * Readers
 * -------
 * A state of S is named by its mtime. p, p + 1 and p + 2 differ from each other and from every earlier mtime of S. The bytes
 * of p are those of the state before.
 *
 *   - A reader that opens S finds J, or sees that there is none: it looks for J between two looks at S, which must be equal
 *     (number of names, size, mtime). If J came or went in between, one of them has changed.
 *   - What it reads through J is the state p, and it is named so, even if S has another mtime by now: the writer may have
 *     committed since the reader loaded J. (It was named by the mtime of a look after that: p + 1 with the old bytes.)
 *   - Without checksums of inner chunks it looks again after its reads (sc_undo_check()). Through J its bytes are of one
 *     state if S is at p + 1 or p + 2, so that nothing came after this update, or if the same J still exists. Without J they
 *     are if nothing has changed and there is still no J. Otherwise it reads again.
 *   - With checksums it does not look again: a mixture does not pass, and it reads again then. An inner chunk that passes is
 *     whole, from before or after.
 *   - A reader that begins after an acknowledged write opens S when J is gone, so it sees that write.
 *
 * Programs that replace what they have read (packing, repair, conditional writes of key-value stores) read without a lock,
 * then take the lock, which rolls back, and compare the name of the state that they have read with that of S. Every state that
 * is written later has another name, and bytes read through J have the name p, which S never has under the lock. So they
 * agree only if nothing was written in between. They may disagree without need, after a roll back: then nothing is replaced.
 *
 * Sweepers remove M, T and J of a shard that is gone (sc_staging.c). They do it only if M is the one name of its file, which has
 * the inode that M names (else it is a copy, see below), and while they hold the lock of that file. If M is missing they make an empty one first. As long as it exists, no writer can make M by
 * link(), so no J appears while theirs is removed; and two sweepers exclude each other by its lock. So no J of a living update
 * goes, and none of a dead one whose shard has a name.
 *
 * Movers. A rename of any folder above S moves S, M and J at once. A writer that is at work knows S and the folder by their
 * descriptors, and uses names in that folder only, so it ends its update where they are now. A reader asks the kernel for the
 * present path of its descriptor; if this has changed while it looked for M, it looks again. A container that shows only
 * a part of the hierarchy shows S, M and J together. What does not hold: a shard that is moved out of its folder alone leaves J
 * behind.
 *
 * Copies (cp, rsync, object stores) have other inodes, so no J of a copy is ever applied to the wrong file. But a copy that is
 * made while J exists may be a mixture: its J names the file that was copied. `verify` reports such a J
 * (docs/durability.md).
 *
 * Programs that know nothing of this (zarr, TensorStore) replace or remove S without its lock. The writer then goes on in
 * a file that has no name but M, and harms no other writer: link() is checked to have named S, and the new file has another inode and
 * so other names of M and J.
 *
 * Journals of earlier versions lie in a staging folder beside the hierarchy. Readers and writers look there, too; no new ones are
 * made there. One that belongs neither to root, nor to the owner of S, nor to this user is ignored: others may write to the
 * folder of that folder.
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
#include "io/sc_attributes.h"
#include "io/sc_undo_impl.h"

/* Milliseconds to wait for the clock of a file to pass a time: several of its ticks. */
#define MAX_WAIT_MS 50
/* Attempts to make the temporary name: a dead writer may have left it. */
#define MAX_TEMPS 2

/* ---- calls that change the file system ---- */

/* True for an error that forbids this write strategy, but no other one. */
static bool
means_refused(int error)
{
    return sc_file_call_refused(error) || error == EROFS || error == ETXTBSY || error == ENOENT || error == ENOTDIR ||
           error == EXDEV || error == EMLINK || error == EEXIST;
}

/* Remove a name in the folder of the journal; 0, or -1 and errno. */
static int
remove_name(const struct sc_undo_place *place, const char *name)
{
    return !sc_file_allows("unlink", name, NULL) || (unlinkat(place->folder, name, 0) && errno != ENOENT) ? -1 : 0;
}

static enum sc_status
sync_folder(const struct sc_undo_place *place, struct sc_where *where)
{
    bool done = sc_file_allows("fsync", place->names.journal, NULL) && fsync(place->folder) == 0;

    return done ? SC_OK : sc_file_error(where, "fsync");
}

/* Set the mtime to `ns`. A user who may write to the file but does not own it can set the present time only: then wait until it
 * is later than `ns`, so that it is a time of no earlier state either. */
static int
set_mtime_or_later(int fd, const char *path, int64_t ns)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    struct sc_where ignored;
    struct sc_file_id id;

    if (sc_file_set_mtime(fd, path, ns) == 0)
        return 0;
    if (errno != EPERM && errno != EACCES)
        return -1;
    for (int i = 0; i < MAX_WAIT_MS; i++) {
        if (!sc_file_allows("futimens", path, NULL) || futimens(fd, NULL))
            return -1;
        if (sc_file_identify_open(fd, &id, &ignored) || id.mtime_ns > ns)
            break;
        nanosleep(&pause, NULL);
    }
    return 0; /* a clock that was put back is so far away from `ns` that it repeats no time of a reader either */
}

/* ---- names ---- */

/* Open the folder of a journal and make its names. -1 and errno: not possible. */
static int
open_place(struct sc_undo_place *place, const char *folder, uint64_t inode)
{
    sc_staging_undo_names(&place->names, inode);
    place->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return place->folder < 0 ? -1 : 0;
}

/* ---- begin ---- */

/* Open the shard for writing. It must be as the caller has inspected it, with no other name: this look proves that no program
 * without a lock has changed it. */
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
    status = sc_file_check_seen(change->fd, change->seen, true, st, where);
    if (status)
        return status;
    if (st->st_nlink != 1 || sc_append_is_odd(change->fd)) {
        *refused = true;
        return SC_OK;
    }
    /* set an mtime that no state of the file had, and read it back: the clock of the file may be coarser, or the
     * call may have no effect */
    sc_file_id_of(st, sc_file_now_ns(), &id);
    change->begun_ns = id.seen_ns > id.mtime_ns ? id.seen_ns : id.mtime_ns + 1;
    if (id.mtime_ns < 0 || id.mtime_ns > INT64_MAX - 4 ||
        sc_file_set_mtime(change->fd, change->path, change->begun_ns)) {
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
    store_le64(p + 16, change->seen->nbytes);
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

/* Give the shard its second name. No journal of this inode may be there before: it would count at once. */
static enum sc_status
mark(struct sc_undo_change *change, const char *base, const struct stat *shard, bool *refused, struct sc_where *where)
{
    const struct sc_undo_place *place = &change->place;
    enum sc_status status;
    struct stat st;

    if (fstatat(place->folder, place->names.journal, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (remove_name(place, place->names.journal)) {
            *refused = means_refused(errno);
            return *refused ? SC_OK : sc_file_error(where, "unlink");
        }
        /* nothing else orders these two names on the disk */
        if (change->sync && (status = sync_folder(place, where)))
            return status;
    }
    if (!sc_file_allows("link", place->names.marker, NULL) ||
        linkat(place->folder, base, place->folder, place->names.marker, 0)) {
        *refused = means_refused(errno);
        return *refused ? SC_OK : sc_file_error(where, "link");
    }
    change->is_marked = true;
    /* a program that knows no locks may have replaced the shard: then this name is that of another file; or it may have given
     * the shard a third name */
    *refused = fstatat(place->folder, place->names.marker, &st, AT_SYMLINK_NOFOLLOW) || st.st_ino != shard->st_ino ||
               st.st_nlink != 2;
    return SC_OK;
}

/* Open a new file with the temporary name; -1 and errno: not possible. */
static int
open_temp(const struct sc_undo_place *place)
{
    int fd = -1;

    for (int i = 0; fd < 0 && i < MAX_TEMPS; i++) {
        if (sc_file_allows("open", place->names.temp, NULL))
            fd = openat(place->folder, place->names.temp, SC_FOR_WRITING | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST || remove_name(place, place->names.temp))
            break;
    }
    return fd;
}

/* Write the journal under a temporary name; users that may read the shard may read it too. */
static enum sc_status
write_temp(const struct sc_undo_change *change, size_t n, const struct stat *shard, bool *refused,
           struct sc_where *where)
{
    const char *name = change->place.names.temp;
    int fd = open_temp(&change->place);
    enum sc_status status;

    if (fd < 0) {
        *refused = means_refused(errno);
        return *refused ? SC_OK : sc_file_error(where, "open");
    }
    status = sc_file_write(fd, name, change->undo.memory, n, 0, where);
    if (!status)
        status = sc_attributes_copy(fd, change->path, shard, false, where);
    if (!status)
        status = sc_file_flush(fd, name, change->sync ? SC_SYNC_ALL : SC_SYNC_NONE, where);
    sc_file_close(fd);
    return status;
}

/* Give the journal its name. With `sync` both names are on disk. */
static enum sc_status
publish(struct sc_undo_change *change, struct sc_where *where)
{
    const struct sc_undo_place *place = &change->place;

    if (!sc_file_allows("rename", place->names.journal, NULL) ||
        renameat(place->folder, place->names.temp, place->folder, place->names.journal))
        return sc_file_error(where, "rename");
    change->is_published = true;
    if (SC_CHECKS)
        sc_undo_check_published(change);
    return change->sync ? sync_folder(place, where) : SC_OK;
}

/* Make the marker, then the journal, in the folder of the shard. */
static enum sc_status
begin_in(struct sc_undo_change *change, const char *folder, const char *base, const struct stat *shard, bool *refused,
         struct sc_where *where)
{
    enum sc_status status;
    size_t n = 0;

    if (open_place(&change->place, folder, (uint64_t)shard->st_ino)) {
        *refused = means_refused(errno);
        return *refused ? SC_OK : sc_file_error(where, "open");
    }
    sc_staging_sweep_small_once(folder, change->place.folder);
    status = make_journal(change, (uint64_t)shard->st_ino, &n, where);
    if (!status)
        status = mark(change, base, shard, refused, where);
    if (!status && !*refused)
        status = write_temp(change, n, shard, refused, where);
    if (!status && !*refused)
        status = publish(change, where);
    if (status || *refused)
        sc_undo_roll_back(change);
    return status;
}

enum sc_status
sc_undo_begin(struct sc_undo_change *change, bool *refused, struct sc_where *where)
{
    char *resolved, *folder;
    enum sc_status status;
    struct stat st;

    change->fd = change->place.folder = -1;
    change->is_marked = change->is_published = *refused = false;
    change->undo = (struct sc_undo){ 0 };
    status = open_shard(change, &st, refused, where);
    if (status || *refused)
        return status;
    resolved = sc_undo_resolve(change->path, change->fd);
    *refused = !resolved;
    folder = resolved ? sc_undo_folder(resolved, 0) : NULL;
    if (folder)
        status = begin_in(change, folder, strrchr(resolved, '/') + 1, &st, refused, where);
    else if (resolved)
        status = SC_NO_MEMORY;
    sc_free(folder);
    sc_free(resolved);
    return status;
}

enum sc_status
sc_undo_write(struct sc_undo_change *change, size_t first, struct sc_where *where)
{
    enum sc_status status = SC_OK;

    for (size_t i = first; !status && i < change->n_runs; i++)
        status = sc_file_write(change->fd, change->path, change->runs[i].bytes, (size_t)change->runs[i].nbytes,
                               change->runs[i].offset, where);
    if (SC_CHECKS && !status)
        sc_undo_check_written(change, first);
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
    if (sc_file_set_mtime(change->fd, change->path, change->begun_ns + 1))
        return sc_file_error(where, "futimens");
    if (remove_name(&change->place, change->place.names.journal))
        return sc_file_error(where, "unlink");
    *done = true;
    if (change->sync)
        status = sync_folder(&change->place, where);
    remove_name(&change->place,
                change->place.names.marker); /* alone it has no meaning, and the next writer removes it */
    return status;
}

/* Restore old bytes and old size, then remove the journal. */
static enum sc_status
restore(int fd, const char *path, const struct sc_undo *undo, const struct sc_undo_place *place, bool sync,
        struct sc_where *where)
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
    if (SC_CHECKS && !status)
        sc_undo_check_restored(fd, path, undo);
    if (!status && set_mtime_or_later(fd, path, undo->begun_ns + 2))
        status = sc_file_error(where, "futimens");
    if (!status && remove_name(place, place->names.journal))
        status = sc_file_error(where, "unlink");
    if (!status && sync)
        status = sync_folder(place, where);
    if (!status)
        remove_name(place, place->names.marker);
    return status;
}

void
sc_undo_roll_back(struct sc_undo_change *change)
{
    const struct sc_undo_place *place = &change->place;
    struct sc_where ignored;

    if (change->is_published) {
        if (restore(change->fd, change->path, &change->undo, place, change->sync, &ignored))
            (void)restore(change->fd, change->path, &change->undo, place, change->sync, &ignored);
    } else if (change->is_marked) { /* no byte has changed */
        if (remove_name(place, place->names.temp) == 0)
            remove_name(place, place->names.marker);
    }
    change->is_marked = change->is_published = false;
}

void
sc_undo_end(struct sc_undo_change *change)
{
    sc_file_close(change->fd); /* flushed before the journal was removed; else the journal still exists */
    sc_file_close(change->place.folder);
    change->fd = change->place.folder = -1;
    sc_undo_free(&change->undo);
}

/* ---- the update of a dead writer ---- */

/* Roll back a shard whose marker is in this folder. */
static enum sc_status
roll_back_in(const char *folder, bool is_staging, const char *path, int fd, const struct stat *shard,
             struct sc_where *where)
{
    struct sc_undo_place place = { .folder = -1 };
    struct sc_undo undo = { 0 };
    enum sc_status status;

    if (open_place(&place, folder, (uint64_t)shard->st_ino))
        return sc_file_error(where, "open");
    status = sc_undo_load(folder, is_staging, shard, &undo, where);
    if (!status && undo.path)
        status = restore(fd, path, &undo, &place, true, where);
    else if (!status && (remove_name(&place, place.names.journal) || remove_name(&place, place.names.temp) ||
                         remove_name(&place, place.names.marker)))
        status = sc_file_error(where, "unlink");
    sc_undo_free(&undo);
    sc_file_close(place.folder);
    return status;
}

/* Return a descriptor for writing to the shard that is open as `fd`; -1: see *status. */
static int
open_writable(const char *path, const struct stat *shard, enum sc_status *status, struct sc_where *where)
{
    int fd = sc_file_open_now(path, O_RDWR);
    struct stat st;

    if (fd < 0 || fstat(fd, &st)) {
        *status = sc_file_open_failed(path, where);
    } else if (st.st_ino != shard->st_ino || st.st_dev != shard->st_dev) {
        where->nbytes = (uint64_t)st.st_size;
        where->limit = (uint64_t)shard->st_size;
        *status = SC_CHANGED;
    }
    return fd;
}

enum sc_status
sc_undo_roll_back_dead(const char *path, int fd, bool *found, struct sc_where *where)
{
    bool is_writable = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR; /* a caller without a lock only reads */
    enum sc_status status = SC_OK;
    char *resolved, *folder;
    struct stat shard;
    int own = -1;

    *found = false;
    if (fstat(fd, &shard))
        return sc_file_error(where, "fstat");
    resolved = shard.st_nlink > 1 ? sc_undo_resolve(path, fd) : NULL;
    for (unsigned i = 0; !status && resolved && (folder = sc_undo_folder(resolved, i)); i++) {
        if (sc_undo_is_marked(folder, &shard)) {
            *found = true;
            if (!is_writable && own < 0)
                own = open_writable(path, &shard, &status, where);
            if (!status)
                status = roll_back_in(folder, i > 0, path, is_writable ? fd : own, &shard, where);
            if (i > 0)
                sc_staging_leave(folder);
        }
        sc_free(folder);
    }
    sc_free(resolved);
    sc_file_close(own);
    return status;
}
