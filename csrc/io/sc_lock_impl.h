/* sc_lock_impl.h - parts of sc_lock.c that have files of their own; for these files only
 * SPDX-License-Identifier: MIT */
#ifndef SC_LOCK_IMPL_H
#define SC_LOCK_IMPL_H

#include "io/sc_lock.h"

/* The byte that is locked. It lies beyond any data, so readers can read where locks are mandatory. */
#define SC_LOCK_OFFSET ((off_t)1 << 62)

/* Add a lock to the list of held locks, or remove it. Both return how many locks with a lock file the list has then. */
void sc_lock_enlist(struct sc_lock *lock);
unsigned sc_lock_strike(struct sc_lock *lock);

/* Free the names of a lock. */
void sc_lock_forget_names(struct sc_lock *lock);

/* fstat(), or stat() of a path, without the cache of a network file system, so that a replaced file is detected. Without
 * statx() the cache is used (sc_lock_looks_anew()).
 *
 * @mount_id: set to the number of the mount, 0: unknown. NULL: only device, inode and kind are wanted. */
int sc_lock_stat(int fd, const char *path, struct stat *st, uint64_t *mount_id);

/* True if a file had a name at `path` for so long that no cache shows an older one, or has it in the list of the folder. state: of the
 * file, past all caches. */
bool sc_lock_has_name(const char *path, const struct stat *state);

#endif
