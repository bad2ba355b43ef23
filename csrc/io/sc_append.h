/* sc_append.h - update a shard in its own file: new inner chunks behind the old bytes, then a new index
 *
 * At any moment the file is a valid shard, the old one or the new one, for every program that finds the index where the
 * format says: a killed process leaves nothing to be repaired. Nothing that an old index refers to is overwritten. docs/durability.md
 * goes through every step. Three ways:
 *
 * direct    index at the end, any size; ext4 and XFS
 *           One write past the page cache appends everything. These file systems set the new size when all of it is there.
 *
 *               [old bytes, old index][to the next block][chunks][mark][padding][footer][index]     (sc_write_commit.c)
 *
 * leap      index at the end, within one page; kills only
 *           1  one write inside a page: a copy of the old index beyond where the new one will end
 *           2  chunks and new index into the hole
 *           3  ftruncate() to the end of the new index
 *
 *               [old bytes, old index][chunks][hole][index][copy]       the last index counts: the copy, then the new one
 *
 * index     index at the start, within one page
 *           Chunks at the end, which no index refers to; then the index, one write inside one page.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_APPEND_H
#define SC_APPEND_H

#include "io/sc_file.h"

enum sc_append_way {
    SC_APPEND_NOT = 0,
    SC_APPEND_DIRECT = 1,
    SC_APPEND_LEAP = 2,
    SC_APPEND_INDEX = 3,
};

struct sc_append {
    const char *path;
    const struct sc_file_id *seen; /* the shard as the caller has inspected it: `path` must still name it, unchanged */
    const uint8_t *lent; /* direct: new inner chunks in the memory of the caller, whole blocks of it; NULL: none */
    uint64_t lent_nbytes;
    uint8_t *data; /* the others, behind the lent ones; `direct` completes the last block: sc_append_room() */
    uint64_t data_nbytes;
    uint64_t data_offset; /* of all of them: at or behind seen->nbytes; on a block boundary for `direct` */
    const uint8_t *index;
    uint64_t index_nbytes;
    bool sync; /* on disk when this returns; not with `leap` */
    bool is_marked; /* an undo journal (sc_undo.h) protects the update; its marker is a second name of the file */
};

/* Return how many bytes of memory `direct` needs at append->data, which begins at a block boundary, too. */
uint64_t sc_append_room(uint64_t data_nbytes, uint64_t index_nbytes);

/* Carry out the update. *refused: the file system, or this file, does not allow it; nothing has changed. On failure
 * the file has been cut back to its old state. */
enum sc_status sc_append(const struct sc_append *append, enum sc_append_way way, bool *refused, struct sc_where *where);

/* True if the file has attributes that forbid writing it in place. */
bool sc_append_is_odd(int fd);

/* Test whether a write in this folder bypasses the page cache as `direct` needs it. Only for file systems that are
 * known to do so. */
bool sc_append_direct_works(const char *folder);

#endif
