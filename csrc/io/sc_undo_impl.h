/* sc_undo_impl.h - shared by readers and writers of undo journals; for sc_undo*.c only
 * SPDX-License-Identifier: MIT */
#ifndef SC_UNDO_IMPL_H
#define SC_UNDO_IMPL_H

#include "io/sc_staging.h"
#include "io/sc_undo.h"

#define SC_UNDO_MAGIC "scundo\0\1"
#define SC_UNDO_HEAD_NBYTES 40u
#define SC_UNDO_NEAREST SIZE_MAX

/* Return the next staging folder that may hold a journal of the shard, malloc'ed, from the nearest up: one for each
 * folder above the shard. resolved: path of the shard without symbolic links. *end: SC_UNDO_NEAREST at first. NULL:
 * no further one. */
char *sc_undo_folder(const char *resolved, size_t *end);

/* Return the name of the journal (suffix "") or marker in a folder, malloc'ed; NULL: no memory. */
char *sc_undo_name(const char *folder, uint64_t inode, const char *suffix);

/* True if the folder holds the marker of the shard. */
bool sc_undo_is_marked(const char *folder, const struct stat *shard);

/* Parse the n bytes at undo->memory; false: they are not a journal. The caller checks that the journal belongs to
 * the shard. */
bool sc_undo_parse(struct sc_undo *undo, uint64_t n);

/* Read the journal of a shard. undo->path stays NULL if the journal is missing or invalid. */
enum sc_status sc_undo_load(const char *folder, const struct stat *shard, struct sc_undo *undo, struct sc_where *where);

#endif
