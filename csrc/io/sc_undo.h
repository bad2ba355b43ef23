/* sc_undo.h - updates of shards in place, and the undo journal that makes an update atomic
 *
 * An update in place overwrites bytes that inner chunks refer to, so a writer that dies half way would leave a mixture.
 * Before it changes the first of them, the writer saves the old bytes in a *journal*. A reader that finds a journal
 * reads the old state; a writer restores it. sc_undo_write.c has the proof.
 *
 *     marker   .shardcodec-undo-<inode>.shard   made first, removed last: one more name of the shard itself
 *     journal  .shardcodec-undo-<inode>         complete when it gets this name; the shard is old as long as it exists
 *
 * Both lie in the folder of the shard, so they move with it, wherever the hierarchy goes. Readers look for the marker, at no
 * cost: fstat(), which returns the size of an opened file, also returns its number of names. Only if that is not 1 do they
 * look for a journal: in the folder of the shard, then in the staging folders beside the folders above it, where earlier
 * versions made them. The marker also keeps the inode of the shard from being given to another file while the journal
 * names it.
 *
 *     begin     mtime = p; link marker; journal under a temporary name [fsync]; rename journal [fsync of the folder]
 *     write     the slots, what is appended, the index
 *     commit    [fdatasync]; mtime = p + 1; unlink journal: the new state counts [fsync of the folder]; unlink marker
 *     roll back old bytes, old size; fdatasync; mtime = p + 2; unlink journal; fsync of the folder; unlink marker
 *
 * p is the current time, or the mtime of the file plus 1 if that is later. So no two states of a file have the same
 * mtime, even with a coarse clock. A reader that finds the same mtime and no marker after its reads has read one state.
 *
 * The journal, all numbers 8 bytes, little endian:
 *
 *     ["scundo" 0 1][inode][nbytes of the shard][p][number of runs n][offset, nbytes] * n [old bytes of the runs][crc32c, 4]
 *
 * Runs ascend and do not overlap. Bytes behind the old size are cut off.
 * SPDX-License-Identifier: MIT */
#ifndef SC_UNDO_H
#define SC_UNDO_H

#include "io/sc_file.h"
#include "io/sc_staging.h"

/* Old bytes of a shard. */
struct sc_undo_run {
    uint64_t offset, nbytes;
    const uint8_t *bytes;
};

/* A journal that was read and is valid. */
struct sc_undo {
    char *path; /* of the journal; NULL: the journal is missing */
    uint64_t inode, nbytes; /* of the shard, as it was */
    int64_t begun_ns;       /* p */
    size_t n_runs;
    struct sc_undo_run *runs;
    uint8_t *memory;
};

/* ---- readers ---- */

/* Find the journal of an open shard. undo->path stays NULL if it is missing. *id becomes the state of the file to which this
 * answer belongs; with a journal, the state before the update: its size, and mtime p. */
enum sc_status sc_undo_find(const char *path, int fd, struct sc_undo *undo, struct sc_file_id *id,
                            struct sc_where *where);
void sc_undo_free(struct sc_undo *undo);

/* Replace the bytes that were read from [offset, offset + n) of the file by old ones. */
void sc_undo_overlay(const struct sc_undo *undo, uint64_t offset, uint64_t n, uint8_t *dst);

/* Read n bytes of one state, even if the file is updated meanwhile: after an update, look for a journal and read
 * again. */
enum sc_status sc_undo_read(const char *path, int fd, uint8_t *dst, size_t n, uint64_t offset, struct sc_where *where);

/* Check after reads that they all saw one state. SC_CHANGED: this is not certain. id, undo: as sc_undo_find() set
 * them, or those of a file that had one name when it was opened. */
enum sc_status sc_undo_check(const char *path, int fd, const struct sc_undo *undo, const struct sc_file_id *id,
                             struct sc_where *where);

/* Find the path of the journal of the shard at `path`, malloc'ed; NULL: it has none. */
enum sc_status sc_undo_locate(const char *path, char **journal, struct sc_where *where);

/* ---- the writer, which holds the shard's lock ---- */

/* The folder of a journal, and the names in it. */
struct sc_undo_place {
    int folder; /* -1: not open */
    struct sc_undo_names names;
};

/* An update of a shard in place. */
struct sc_undo_change {
    const char *path;
    const struct sc_file_id *seen; /* the shard as the caller has inspected it: `path` must still name it, unchanged */
    const struct sc_undo_run *runs; /* what is overwritten: ascending, inside the shard; bytes are the new ones */
    size_t n_runs;
    bool sync;

    int fd; /* for writing; -1: not begun */
    struct sc_undo_place place;
    bool is_marked, is_published; /* marker and journal were made */
    int64_t begun_ns;
    struct sc_undo undo;
};

/* Write the journal. *refused: the file, or the file system, does not allow it; nothing has changed. */
enum sc_status sc_undo_begin(struct sc_undo_change *change, bool *refused, struct sc_where *where);

/* Overwrite the runs from number `first` on. */
enum sc_status sc_undo_write(struct sc_undo_change *change, size_t first, struct sc_where *where);

/* Make the new state count. On failure roll back. If *done, only the last step has failed, the fsync of the folder,
 * and it is too late for that. */
enum sc_status sc_undo_commit(struct sc_undo_change *change, bool *done, struct sc_where *where);

/* Restore the old state after a failure. If that fails too the journal stays, for the next writer. */
void sc_undo_roll_back(struct sc_undo_change *change);
void sc_undo_end(struct sc_undo_change *change);

/* Roll back the update of a dead writer, if the open shard has more than one name. A journal that is not valid for
 * this file is removed. *found: there was something to roll back. */
enum sc_status sc_undo_roll_back_dead(const char *path, int fd, bool *found, struct sc_where *where);

#endif
