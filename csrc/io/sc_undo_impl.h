/* sc_undo_impl.h - shared by readers and writers of undo journals; for sc_undo*.c only
 * SPDX-License-Identifier: MIT */
#ifndef SC_UNDO_IMPL_H
#define SC_UNDO_IMPL_H

#include "io/sc_undo.h"

#define SC_UNDO_MAGIC "scundo\0\1"
#define SC_UNDO_HEAD_NBYTES 40u

/* Return the present path of an open shard without symbolic links, malloc'ed; NULL: unknown. It follows a hierarchy that was
 * moved since the shard was opened. If the shard has lost its name, the folder is still right. */
char *sc_undo_resolve(const char *path, int fd);

/* Return the folder number i that may hold a journal of the shard, malloc'ed; NULL: no further one. Number 0 is the folder
 * of the shard. The others are the staging folders beside each folder above the shard, from the nearest up: earlier
 * versions have made journals there. */
char *sc_undo_folder(const char *resolved, unsigned i);

/* Return the name of the journal (suffix ""), the marker or the temporary file in a folder, malloc'ed; NULL: no memory. */
char *sc_undo_name(const char *folder, uint64_t inode, const char *suffix);

/* True if the folder holds the marker of the shard. */
bool sc_undo_is_marked(const char *folder, const struct stat *shard);

/* Parse the n bytes at undo->memory; false: they are not a journal. The caller checks that the journal belongs to
 * the shard. */
bool sc_undo_parse(struct sc_undo *undo, uint64_t n);

/* Read the journal of a shard. undo->path stays NULL if the journal is missing or invalid, or if it lies in a staging folder
 * and belongs to a user who does not own the shard. */
enum sc_status sc_undo_load(const char *folder, bool is_staging, const struct stat *shard, struct sc_undo *undo,
                            struct sc_where *where);

/* ---- sc_undo_check.c, for debug builds ---- */

/* After the journal got its name, before a byte of the shard changes. */
void sc_undo_check_published(const struct sc_undo_change *change);

/* After the runs from number `first` on were overwritten. */
void sc_undo_check_written(const struct sc_undo_change *change, size_t first);

/* After a roll back, before the journal goes. */
void sc_undo_check_restored(int fd, const char *path, const struct sc_undo *undo);

#endif
