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
 * request. A client of GlusterFS answers from its caches nevertheless, for a second. It notices at the lock that the file is gone, but
 * not if the file has another name (a hard link of the user, a temporary one of a dead writer): then an acknowledged update was lost.
 * There fdatasync(), which asks the server, brings the true times. A file whose last change, such as the loss of a name, is long ago
 * has its name still; for another one the list of the folder tells.
 *
 * A process that replaces, changes or removes a file must hold the lock of the file that is there. Then this file stays the
 * one at the path as long as the lock is held. A file that does not exist has no lock: it is created exclusively, and
 * the second process starts again.
 *
 * Where a lock can be lost, and for shards that are updated there, too, the lock is a byte of another file: sc_guard.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_LOCK_H
#define SC_LOCK_H

#include "io/sc_file.h"
#include "io/sc_guard.h"

enum sc_lock_outcome {
    SC_LOCK_HELD = 0,
    SC_LOCK_NO_FILE = 1,     /* the file does not exist */
    SC_LOCK_BUSY = 2,        /* another file descriptor holds the lock */
    SC_LOCK_UNSUPPORTED = 3, /* not on this file system, or not on this operating system */
    SC_LOCK_DENIED = 4,      /* the file may not be opened for writing */
    SC_LOCK_GUARDED = 5,     /* other processes update the file under the array's lock file (sc_guard.h) */
};

/* A lock that is held is in a list, from which a forked child closes its copies: an open copy would keep
 * the lock after the parent has died. The caller must not move the struct meanwhile. */
struct sc_lock {
    int fd; /* the shard; -1: it does not exist, or the lock is not held */
    struct sc_guard guard; /* holds the lock in place of fd, if guard.fd >= 0 */
    bool is_kept; /* with a guard: the shard is locked, too, and stays open until it is replaced */
    bool has_failed; /* the guard may be lost */
    bool has_old_names; /* SC_GUARD_OLD_NAMES */
    char *path, *name; /* of the shard: with links resolved, and as its writer names it */
    struct sc_file_id id; /* the file when it was locked, or at the last attempt that found one */
    int refusal;          /* errno of the last attempt to lock that failed; 0: none */
    uint64_t mount_id;    /* number of its mount, 0: unknown; from 2^31 on it is never used again (Linux 6.8) */
    struct sc_lock *next, **link;
};

/* Install the fork handlers. Once, at import. */
enum sc_status sc_lock_init(void);

/* Try to take the lock of the file at `path`, which is not a symbolic link. It never waits for another holder. name: another path
 * of the file, by which the caller replaces or removes it.
 *
 * folder: NULL, or that of the lock file. Then the lock is held after SC_LOCK_NO_FILE, too. kind: how the lock can be lost; without a
 * folder only SC_GUARD_OLD_NAMES counts. If the lock file may not be used (permissions), the shard is locked itself; SC_LOCK_GUARDED if
 * others do not respect that. */
enum sc_status sc_lock_try(struct sc_lock *lock, const char *path, const char *name, const char *folder,
                           enum sc_guard_kind kind, enum sc_lock_outcome *outcome, struct sc_where *where);

/* Lock or unlock a byte of an open file; 0, or -1 and errno (EAGAIN: another description holds it). */
int sc_lock_set(int fd, off_t at, short type);

/* fstat(), or stat() of a path with fd AT_FDCWD, without the cache of a network file system. */
int sc_lock_stat_now(int fd, const char *path, struct stat *st);

/* fstat(), or lstat() of a path with fd AT_FDCWD, but for the time of the last access: a client of NFS that has read the file would ask
 * its server for that. */
int sc_lock_stat_read(int fd, const char *path, struct stat *st);

/* Look for what never changes while a path leads to the same file: device, inode and kind. So a client of a network file system that
 * knows the file asks its server for nothing, as it does for stat(). 0, or -1 and errno. */
int sc_lock_look_at_known(const char *path, bool follows, struct sc_file_id *id, bool *is_link);

/* Look at the folder of a path without a cache. A client of NFS that finds it changed forgets the names that it knows there; a look
 * at the path alone is answered by the file that had the name. 0, or -1 and errno. */
int sc_lock_look_at_folder(const char *path);

/* Return the lock of a file that this process holds with a lock file; NULL: none. The caller is its holder. */
struct sc_lock *sc_lock_guarding(const char *path);

/* Return the number of a shard among those of a folder (sc_file_number()) if this process holds its lock; else 0. */
uint64_t sc_lock_shard(const char *folder, const char *path);

/* Return true if no other process may hold the lock of a shard with this number among those of a folder: this one does. A lock of the
 * shard itself is that of the old file once its holder has replaced it; then the new file must not be locked either. So a temporary name
 * that another process made before this call belongs to a writer that has lost its lock. */
bool sc_lock_shuts_out(const char *folder, uint64_t shard);

/* Close a shard before it is replaced under its lock file, so that it never lacks its name. */
void sc_lock_close_shard(struct sc_lock *lock);

/* Remove a file as sc_file_remove(), in the way that its lock demands. */
enum sc_status sc_lock_remove(const char *path, bool sync, struct sc_where *where);

/* Unlock the file and close it; do nothing if the lock is not held (also after SC_LOCK_NO_FILE without a lock file). Unlocking is explicit: a descriptor that a
 * forked child has not closed yet must not keep the lock. keeps: lock files stay open for later locks, also after the last one. */
void sc_lock_release(struct sc_lock *lock, bool keeps);

/* Take the lock of an open file until it is closed. False: another descriptor holds it, or it cannot be known. The caller
 * starts no process meanwhile. */
bool sc_lock_is_free(int fd);

/* True if a look under a lock is not answered from the cache of a network file system, for which the kernel needs statx(). False:
 * a file that another node has replaced may not be noticed there. */
bool sc_lock_looks_anew(void);

/* Return the number of locks that this process holds. */
unsigned sc_lock_count(void);

#endif
