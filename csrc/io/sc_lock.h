/* sc_lock.h - locks between processes, on the files that they guard
 *
 * A writer locks one byte of the shard's own file, far beyond any data, with an open file description lock. Such a lock
 * belongs to the descriptor, not to the process: two threads exclude each other as two processes do, and the lock ends
 * with its holder in any case. No further file is needed, none is left behind, and none appears in the listing of a
 * store.
 *
 * A shard may be replaced by another file while a process waits. So after the lock is taken the path is looked up again:
 *
 *     A   open i1, lock i1, path is i1: held    write i2, rename it to the path    unlock
 *     B   open i1, lock i1: busy ................................................. lock i1, path is i2: start again
 *     B                                                                            open i2, lock i2, path is i2: held
 *
 * A client of a network file system may know the path from earlier. So there the folder is looked at first, past the caches: one
 * request.
 *
 * A process that replaces, changes or removes a file must hold the lock of the file that is there. Then this file stays the
 * one at the path as long as the lock is held. A file that does not exist has no lock: it is created exclusively, and
 * the second process starts again.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_LOCK_H
#define SC_LOCK_H

#include "io/sc_file.h"

enum sc_lock_outcome {
    SC_LOCK_HELD = 0,
    SC_LOCK_NO_FILE = 1,     /* the file does not exist */
    SC_LOCK_BUSY = 2,        /* another file descriptor holds the lock */
    SC_LOCK_UNSUPPORTED = 3, /* not on this file system, or not on this operating system */
    SC_LOCK_DENIED = 4,      /* the file may not be opened for writing */
};

/* A lock that is held (fd >= 0) is in a list, from which a forked child closes its copies: an open copy would keep
 * the lock after the parent has died. The caller must not move the struct meanwhile. */
struct sc_lock {
    int fd;
    struct sc_file_id id; /* the file when it was locked, or at the last attempt that found one */
    int refusal;          /* errno of the last attempt to lock that failed; 0: none */
    uint64_t mount_id;    /* number of its mount, 0: unknown; from 2^31 on it is never used again (Linux 6.8) */
    struct sc_lock *next, **link;
};

/* Install the fork handlers. Once, at import. */
enum sc_status sc_lock_init(void);

/* Try to take the lock of the file at `path`, which is not a symbolic link. It never waits. */
enum sc_status sc_lock_try(struct sc_lock *lock, const char *path, enum sc_lock_outcome *outcome,
                           struct sc_where *where);

/* Unlock the file and close it; do nothing if the lock is not held. Unlocking is explicit: a descriptor that a
 * forked child has not closed yet must not keep the lock. */
void sc_lock_release(struct sc_lock *lock);

/* Take the lock of an open file until it is closed. False: another descriptor holds it, or it cannot be known. The caller
 * starts no process meanwhile. */
bool sc_lock_is_free(int fd);

/* True if a look under a lock is not answered from the cache of a network file system, for which the kernel needs statx(). False:
 * a file that another node has replaced may not be noticed there. */
bool sc_lock_looks_anew(void);

/* Return the number of locks that this process holds. */
unsigned sc_lock_count(void);

#endif
