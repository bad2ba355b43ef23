/* sc_lock.h - locks between processes, on the files that they guard
 *
 * A writer holds one byte of the shard's own file, far beyond any data, with an open file description lock: it belongs to
 * the descriptor, not to the process, so two threads exclude each other as two processes do, and it is gone with its holder
 * however that ends. No further file is needed, none is left behind, and none shows up in a store's listing.
 *
 * A shard may be replaced by another file while a process waits. So after the lock is taken the path is looked up again:
 *
 *     A   open i1, lock i1, path is i1: held    write i2, rename it to the path    unlock
 *     B   open i1, lock i1: busy ................................................. lock i1, path is i2: start again
 *     B                                                                            open i2, lock i2, path is i2: held
 *
 * A process that replaces, changes or removes a file must hold the lock of the file that is there. Then this file stays the
 * one at the path as long as the lock is held. A file that does not exist has no lock: it is created exclusively, and
 * the second process starts again.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_LOCK_H
#define SC_LOCK_H

#include "base/sc_status.h"

enum sc_lock_outcome {
    SC_LOCK_HELD = 0,
    SC_LOCK_NO_FILE = 1,     /* nothing there to be locked */
    SC_LOCK_BUSY = 2,        /* another descriptor has it */
    SC_LOCK_UNSUPPORTED = 3, /* not on this file system, or not on this operating system */
    SC_LOCK_DENIED = 4,      /* the file may not be opened for writing */
};

/* A lock that is held (fd >= 0) is in a list, from which a forked child closes its copies: a descriptor there would keep
 * the lock alive when the parent has died. The caller keeps the struct in its place meanwhile. */
struct sc_lock {
    int fd;
    uint64_t n_links; /* names of the file when it was locked */
    struct sc_lock *next, **link;
};

/* Install the fork handlers. Once, at import. */
enum sc_status sc_lock_init(void);

/* Try to take the lock of the file at `path`, which is no symbolic link. Never waits for a holder. */
enum sc_status sc_lock_try(struct sc_lock *lock, const char *path, enum sc_lock_outcome *outcome,
                           struct sc_where *where);

/* Give it back and close the file; nothing when it is not held (any more). The unlocking is explicit: a descriptor that a
 * forked child has not closed yet shall not keep the lock. */
void sc_lock_release(struct sc_lock *lock);

/* Locks that this process holds now. */
unsigned sc_lock_count(void);

#endif
