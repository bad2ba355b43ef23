/* sc_kept.h - second names that keep a shard from requests which a client of NFS sends late
 *
 * sc_guard.h has the steps of an update; P, T, A and B are those of that text. If a process of A's node has P open, A's client makes two
 * requests of the rename: P to .nfs<inode of P>, then T to P. B's fence ends the second one, because its source T is gone. It cannot
 * end the first one, whose source is the name P: sent again after a cut, it moves B's shard away, and when no process of the node has
 * the file open, the client removes it. So B takes these steps when its fence finds a T that is to replace a shard; the name of T says
 * so, and has the inode:
 *
 *     a mark      make F_T, an empty file        all later holders see that a late request is possible
 *     b restore   if P is missing, link the      A's client has made the first request. It removes .nfs... only when the second one
 *                 newest K to P, or else         is answered, so .nfs... is there as long as T is
 *                 .nfs<inode> to P
 *     c keep      link P to a new K              from here on the late request removes a second name only
 *     d remove T
 *     e look      if K is not P, do b and c      the second request has come before d: P is T
 *                 again
 *
 * As long as there is an F_T of a shard, each holder takes step e after its fence, and each update links T to a new K before it
 * renames T to P, then removes the old K. So K is P or newer than P, and never older than an update that was acknowledged. A new K is
 * linked from T after the check (step 5), so the fence of a later holder ends the link as it ends the rename. A removal of P removes K
 * first. F_T ends when the client of A has answered: A's rename has failed for want of T, so neither request comes any more; or after a
 * week. Then P is restored once more, and K removed.
 *
 * A reader that finds no P looks for a K (storage/absent.py). Without an F_T none of this costs a call.
 *
 * Not excluded:
 * - The server makes no hard links, or not of a file of another user.
 * - A makes T after B's fence and is cut off before its check, B removes the shard, and an older state of it with the inode in T's name is
 *   still open on a node: the next holder gives that state the name P.
 * - The folder is exported by NFS and by SMB, and a holder on SMB updates the shard while there is an F_T: K is the older state then.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_KEPT_H
#define SC_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#define SC_KEPT_CAPACITY 160

struct sc_kept {
    bool is_needed; /* a late request is possible: there is an F_T */
    uint64_t number; /* of K: the highest is the newest */
    char name[SC_KEPT_CAPACITY]; /* K, in the folder of the lock file; "": none */
};

/* Step 2 of sc_guard.h with steps a to e, for the shard at `path`. at: the folder of the lock file. shard: its number. own: the T of
 * the caller, which stays; NULL: none. Return 0, or an errno if a T may still be there. */
int sc_kept_fence(struct sc_kept *kept, int at, uint64_t shard, const char *path, const char *own);

/* Link T to a new K, if one is needed: `next`. Return 0, or an errno. */
int sc_kept_link(const struct sc_kept *kept, int at, const char *temp, struct sc_kept *next);

/* Rename the shard to a new K, `next`. A server of SMB needs it, because it does not replace a file that is open. Return 0, also if the
 * shard is missing, or an errno; after an errno the shard has its old name. */
int sc_kept_move(const struct sc_kept *kept, int at, uint64_t shard, const char *path, struct sc_kept *next);

/* The shard is now what `next` is, or, if `next` has no name, about to be removed: remove the old K. Return 0, or an errno if the
 * shard would come back from it. */
int sc_kept_pass(struct sc_kept *kept, int at, const struct sc_kept *next);

/* The rename of T has failed with an errno: give the shard its name again if it is missing, and remove F_T if the server has answered.
 * inode: of the shard that T was to replace; 0 for a new shard. The lock may be lost. */
void sc_kept_failed(int at, uint64_t shard, const char *path, uint64_t inode, const char *temp, int error);

#endif
