/* sc_guard.h - the lock of a shard where a lock can be lost: a byte of the array's lock file, and a fence
 *
 * A lock in a network file system ends without a word to its holder: the server gives it to another client when the holder's
 * node has not answered for longer than its lease. So a lock does not prove, at the moment of a rename, that no other writer
 * works on the shard. And an open by name may lead to a file that another client has replaced, because a client caches names.
 * An update therefore takes these steps. P is the shard, T the new file, L the lock file, all in one file system:
 *
 *     1 lock     one byte of L, which this lock alone has open          excludes other writers, as long as the lease lasts
 *     2 fence    ask the server for the state of the folder of T;       ends the updates of all who held the lock before:
 *                remove each T of this shard that is there              the source of their rename is gone
 *     3 look     ask the server for the state of the folder of P,       the name that other clients see, and not the one that
 *                then open P by name                                    this client remembers
 *     4 prepare  make T, write it, close it                             T is seen by the fence of any later holder
 *     5 check    read a block of L directly from the server             fails if the lock is lost
 *     6 release  close P                                                a client that has P open would first give P another
 *                                                                       name, so that P is missing for a moment
 *     7 rename   T to P; link T to P if there was no P
 *     8 unlock
 *
 * Why no acknowledged update is lost. Let A and B hold the lock of one shard one after the other, and let A have lost it.
 * A's rename needs T_A. If A made T_A after B's lock, then A's check (5), which comes after (4), finds the lock lost, and A does not
 * rename. If A made T_A before B's lock, B's fence (2) finds it. The server runs A's rename and B's removal of T_A in some order.
 * Removal first: A's rename finds no source and fails, also when A's client sends it again after the cut. Rename first: it comes
 * before the end of (2), so before (3), and B starts from A's shard. The step that decides is one call of the server, so there is
 * no moment between a check and its use.
 *
 * NFS 3 has no lease. A node that is cut off keeps its locks, and other writers wait. But a server that starts again forgets them all,
 * and tells the clients by a message that may not arrive; and a read does not say for which lock it is. So there step 5 is: lock L again,
 * fence again but for the own T, and compare P with what step 3 saw. A holder B that has come and gone meanwhile has changed P. One that
 * has lost its own lock to this one either has prepared T_B, which the second fence removes unless it was renamed before the comparison,
 * or prepares it later, and then finds in its own step 5 that the lock is taken or P has changed.
 *
 * The answer to a rename may be lost, and the client sends it again. Then it fails although it was done. So after ENOENT, ESTALE,
 * EIO or EBADF the file that P names is compared with T: inode, size and time of the last write, because the inode of a T that a fence
 * has removed is given to the next file. Success only if they are equal. Otherwise the caller starts again with the lock.
 *
 * If another process of this node has P open, the client turns the rename into two requests: P to .nfs<inode of P>, then T to P. The
 * first one has no source that a fence removes. Sent again after a cut, it moves the shard of a later holder away: sc_kept.h. After an
 * error, if P is missing and a second name or such a name is there, P is linked to it. Until then, and if this process is killed, readers
 * and writers find neither P nor an empty place: storage/absent.py.
 *
 * Removal of P: it is renamed to T/shard, where T is a folder that is made in step 4, and then removed there. The fence removes this
 * folder, so a late rename has no target.
 *
 * A server of SMB replaces no file that any node has open, and a client of Linux then removes the old one. So there P is renamed to a
 * second name K (sc_kept.h) before T is renamed to P, and K is removed. A lock that is held cannot be taken again there, so step 5 fences
 * again and compares, as on NFS 3, without the lock.
 *
 * L is in the folder `.shardcodec` of the array (or beside a shard that is in no array): each process finds the same one, however
 * it reaches the array, and who may write the array may write there. It is made once and never removed or replaced. It has a block
 * of bytes, because a read of an empty file is answered from the cache. The byte that is locked is chosen by a hash of the shard's
 * path, so one file serves all shards. Each lock has its own open description of L: the server's client knows per description
 * whether its locks are lost, and a lock that is taken again would hide the loss from another one. Open files are kept for later locks only while this
 * process holds some, unless its caller wants open files (option open_files): a folder with an open file cannot be removed on NFS, so
 * no array could be deleted or made anew.
 *
 * Processes on the disk of the server lock P itself (sc_lock.h) and cost nothing more. The two kinds exclude each other by a mark, the
 * sticky bit of P, which has no other meaning for a file. New files of this protocol have it. A holder of L that finds P without it
 * locks P, too, sets the bit and unlocks P. A process that locks P and finds the bit, in the look that it takes anyway, takes the lock of
 * L instead. If the bit cannot be set (a file of another user), P stays open and locked until the rename is done.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_GUARD_H
#define SC_GUARD_H

#include <errno.h>
#include <sys/stat.h>

#include "base/sc_status.h"
#include "io/sc_file.h"
#include "io/sc_kept.h"

/* The mark: mode bits of a shard that is updated under a lock file. */
#define SC_GUARD_MARK S_ISVTX

/* How a lock can be lost, or what else its file system does not hold to. */
enum sc_guard_kind {
    SC_GUARD_LEASED = 0, /* NFS 4: a read of the lock file tells it */
    SC_GUARD_FORGOTTEN = 1, /* NFS 3: no read tells it */
    SC_GUARD_SMB = 2, /* nor here; and a lock that is held cannot be taken again, and no file replaced that is open */
    SC_GUARD_OLD_NAMES =
        3, /* it is not lost, and needs no lock file; but no look at a path tells which file has the name (sc_lock.h) */
};

struct sc_guard {
    int fd; /* the lock file; -1: the lock is not held */
    int at; /* its folder */
    uint64_t shard; /* number of the shard (sc_file_number()) */
    uint64_t inode, device; /* of the folder */
    bool is_direct; /* reads of fd pass the cache by */
    enum sc_guard_kind kind;
    struct sc_file_id seen; /* P at step 3; inode 0: there was none */
    struct sc_kept kept;
    char *folder;
};

/* Install the fork handlers. Once, at import. */
enum sc_status sc_guard_init(void);

/* Steps 1 and 2 for the shard at `path`. folder: that of the lock file; it is made if it is missing. Return 0, or an errno: EAGAIN:
 * another process holds the lock; ESTALE: the folder was removed meanwhile. The guard is held only after 0. */
int sc_guard_take(struct sc_guard *guard, const char *folder, const char *path, enum sc_guard_kind kind);

/* Step 5. own: the name of T in the folder of the lock file. Return 0, or ESTALE if the lock may be lost. */
int sc_guard_check(struct sc_guard *guard, const char *path, const char *own);

/* Steps 4, 5 and 7 of a removal. Return 0, also if nothing has the name, or an errno; ESTALE: the lock may be lost. */
int sc_guard_remove(struct sc_guard *guard, const char *path);

/* Step 8. Do nothing if the lock is not held. is_sound: false after an error, when the open file may be of no more use. */
void sc_guard_release(struct sc_guard *guard, bool is_sound);

/* Close the lock files that are kept for later locks. */
void sc_guard_close_idle(void);

/* Close the descriptors of a guard without unlocking, in a forked child. */
void sc_guard_forget(struct sc_guard *guard);

/* Return true if an update failed with an error that a lost lock, or a lost answer of the server, explains. */
static inline bool
sc_guard_explains(int error)
{
    return error == ENOENT || error == ESTALE || error == EIO || error == EBADF;
}

#endif
