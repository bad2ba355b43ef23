/* sc_undo.h - shards that are changed in place, and the undo journal that makes such a change one step
 *
 * Bytes that inner chunks refer to are overwritten, so a writer that dies half way would leave a mixture. Before it
 * touches the first of them it puts the old ones into a *journal*. A reader that finds a journal reads the old state; a writer
 * restores it. sc_undo_write.c has the proof.
 * Two names in the staging folder (sc_staging.h) of the hierarchy, made and removed in this order:
 *
 *     marker   .shardcodec-undo-<inode>.shard   made first, removed last: one more name of the shard itself
 *     journal  .shardcodec-undo-<inode>         complete when it gets this name; the shard is old as long as it exists
 *
 * The marker is what readers look for, and it costs them nothing: they ask for the size of a file that they have opened, and
 * are told its number of names as well. Only if that is not 1 do they look for a journal. It also keeps the shard's inode
 * from being given to another file while the journal names it.
 *
 *     begin     journal under a temporary name [fsync]; mtime = p; link marker; rename journal [fsync of the folder]
 *     write     the slots, what is appended, the index
 *     commit    [fdatasync]; mtime = p + 1; unlink journal: the new state counts [fsync of the folder]; unlink marker
 *     settle    old bytes, old size; fdatasync; mtime = p + 2; unlink journal; fsync of the folder; unlink marker
 *
 * p is the time, but later than every mtime the file had. So no two states of a file have the same mtime, however coarse
 * the kernel's clock, and a reader that finds the same mtime and no marker after its reads has read one state.
 *
 * The journal, all numbers 8 bytes, little endian:
 *
 *     ["scundo" 0 1][inode][nbytes of the shard][p][number of runs n][offset, nbytes] * n [old bytes of the runs][crc32c, 4]
 *
 * Runs rise and do not overlap. What lies behind the old size is cut off.
 * SPDX-License-Identifier: MIT */
#ifndef SC_UNDO_H
#define SC_UNDO_H

#include "io/sc_file.h"

/* Old bytes of a shard. */
struct sc_undo_run {
    uint64_t offset, nbytes;
    const uint8_t *bytes;
};

/* A journal that has been read and found right. */
struct sc_undo {
    char *path; /* of the journal; NULL: there is none */
    uint64_t inode, nbytes; /* of the shard, as it was */
    int64_t begun_ns;       /* p */
    size_t n_runs;
    struct sc_undo_run *runs;
    uint8_t *memory;
};

/* ---- readers ---- */

/* Find the journal of an open shard that has more names than one (id->n_links). undo->path NULL: there is none. *id
 * becomes what the file is while the journal, or its absence, is known. */
enum sc_status sc_undo_find(const char *path, int fd, struct sc_undo *undo, struct sc_file_id *id,
                            struct sc_where *where);
void sc_undo_free(struct sc_undo *undo);

/* Put old bytes over those that were read from [offset, offset + n) of the file. */
void sc_undo_overlay(const struct sc_undo *undo, uint64_t offset, uint64_t n, uint8_t *dst);

/* Read n bytes of one state, even if they are changed meanwhile: after a change it looks for a journal and reads again. */
enum sc_status sc_undo_read(const char *path, int fd, uint8_t *dst, size_t n, uint64_t offset, struct sc_where *where);

/* After the reads: did they all see one state? SC_CHANGED when that is not certain. id, undo: as of sc_undo_find(), or as the
 * file was opened with one name. */
enum sc_status sc_undo_check(const char *path, int fd, const struct sc_undo *undo, const struct sc_file_id *id,
                             struct sc_where *where);

/* ---- the writer, which holds the shard's lock ---- */

/* New bytes for a shard, not yet there. */
struct sc_undo_change {
    const char *path, *staging;
    int old_fd;      /* the shard as it was looked at: what `path` names now must be that file */
    uint64_t nbytes; /* of it */
    const struct sc_undo_run *runs; /* what is to be overwritten: rising, inside; bytes are the new ones */
    size_t n_runs;
    bool sync;

    int fd; /* for writing; -1: not begun */
    char *temp, *marker, *journal;
    bool staged; /* out: the staging folder was used */
    int64_t begun_ns;
    struct sc_undo undo;
};

/* Write the journal. *refused: this file, or the file system, does not allow that; nothing has changed. */
enum sc_status sc_undo_begin(struct sc_undo_change *change, bool *refused, struct sc_where *where);

/* Overwrite the runs from the first on. */
enum sc_status sc_undo_write(struct sc_undo_change *change, size_t first, struct sc_where *where);

/* The new state counts. On failure roll back; only the sync of the folder, the last thing that can fail, comes too late. */
enum sc_status sc_undo_commit(struct sc_undo_change *change, bool *done, struct sc_where *where);

/* After a failure: as it was. If that fails too the journal stays, for the next writer. */
void sc_undo_roll_back(struct sc_undo_change *change);
void sc_undo_end(struct sc_undo_change *change);

/* What a dead writer left of an open shard that has more names than one: roll it back. What is not a valid journal of
 * this file is removed. *folder: the staging folder, malloc'ed; NULL: there was nothing to settle. */
enum sc_status sc_undo_settle(const char *path, int fd, char **folder, struct sc_where *where);

#endif
