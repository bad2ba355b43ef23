/* sc_undo_impl.h - what both sides of the undo journal share; for sc_undo*.c only
 * SPDX-License-Identifier: MIT */
#ifndef SC_UNDO_IMPL_H
#define SC_UNDO_IMPL_H

#include "io/sc_staging.h"
#include "io/sc_undo.h"

#define SC_UNDO_MAGIC "scundo\0\1"
#define SC_UNDO_HEAD_NBYTES 40u
#define SC_UNDO_NEAREST SIZE_MAX

/* The staging folders in which a journal of the shard may be, malloc'ed, from the nearest up: one for each folder above it.
 * resolved: its path, without symbolic links. *end: SC_UNDO_NEAREST at first. NULL: no further one. */
char *sc_undo_folder(const char *resolved, size_t *end);

/* Journal (suffix "") or marker in a folder; malloc'ed, NULL: no memory. */
char *sc_undo_name(const char *folder, uint64_t inode, const char *suffix);

/* Has the shard its marker there? */
bool sc_undo_is_marked(const char *folder, const struct stat *shard);

/* undo->memory holds n bytes: are they a journal? The numbers in it are those of this shard only if the caller says so. */
bool sc_undo_parse(struct sc_undo *undo, uint64_t n);

/* Read the journal of a shard; undo->path NULL: there is none that is right. */
enum sc_status sc_undo_load(const char *folder, const struct stat *shard, struct sc_undo *undo, struct sc_where *where);

#endif
