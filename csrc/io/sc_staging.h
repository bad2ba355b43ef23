/* sc_staging.h - temporary names of files, and removal of those that dead writers have left
 *
 * A store lists every file below its root, so a half-written file must not be there. A file system with O_TMPFILE needs
 * a temporary name only for the moment in which the new file replaces the old one; other file systems need it for the
 * whole write. Both kinds are made in the *staging folder*, beside the hierarchy and not in it. It is removed with its
 * last name:
 *
 *     data/a.zarr/c/0/0
 *     data/.a.zarr.shardcodec/.shardcodec-<shard>-<host>-<pid>-<start>-<n>[-<inode>]       goes with the last name in it
 *
 * If that folder cannot be made (permissions, another file system, a name that is too long), the temporary name is beside
 * the shard. The same holds if a folder of this name is not safe: in a sticky folder such as /tmp another user may have made it,
 * who could exchange every file in it.
 *
 * Where a lock can be lost, the folder is in the array, as data/a.zarr/.shardcodec, and stays: it has the lock file (sc_guard.h).
 *
 * A name identifies its shard, by a hash of the path below the folder that has the staging folder, and its process: host is a hash of
 * the name of the machine, its boot and the pid name space; start is the start time of the process. A name whose process is dead is removed. For a process of another host this is
 * unknown; such a name is kept for a week.
 * SPDX-License-Identifier: MIT */
#ifndef SC_STAGING_H
#define SC_STAGING_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

#include "base/sc_status.h"

/* Install the fork handlers. Once, at import. */
enum sc_status sc_staging_init(void);

/* Open a staging folder, and make it first if it is missing. Return a descriptor, or -1 and errno; EPERM: the folder is not
 * safe. A safe one is a folder and no link to one, belongs to the caller, to the owner of the hierarchy or to root, and nobody
 * else may write it who may not write the hierarchy. Names in it are used through this descriptor only: after the folder was
 * removed, another user may make one of the same name. */
int sc_staging_open(const char *folder);

/* Return the permissions to write that groups and others may have in a staging folder: those of its hierarchy. */
mode_t sc_staging_writers(const char *folder, gid_t group);

/* Return a name in a folder that no other process uses, malloc'ed; NULL: no memory. shard: the number of the shard if its lock
 * is held as long as the name exists, else 0. replaced: with a lock file, the inode of the shard that the file is to replace, else 0. */
char *sc_staging_name(const char *folder, uint64_t shard, uint64_t replaced);

/* Parse the number of the shard in a temporary name; false for any other name. */
bool sc_staging_shard_of(const char *temp, uint64_t *shard);

/* Write the names of sc_kept.h that belong to a temporary name: the mark of late requests, and a second name of the shard. */
void sc_staging_late_name(char *name, size_t capacity, const char *temp);
void sc_staging_kept_name(char *name, size_t capacity, uint64_t number, const char *temp);

/* Remove a temporary name from a folder: a file, or a folder for a shard that is removed. 0, or -1 and errno. */
int sc_staging_remove(int at, const char *name);

/* A name in the folder of a lock file. */
struct sc_staging_entry {
    enum { SC_STAGING_TEMPORARY, SC_STAGING_LATE, SC_STAGING_KEPT } kind;
    uint64_t replaced; /* as of sc_staging_name() */
    uint64_t number;   /* of a second name */
    const char *name;
};

/* Call `found` for each name of a shard in the folder of its lock file, which is open as `at`. It may remove the name. Return 0, or -1
 * and errno if there may be more names. */
int sc_staging_list(int at, uint64_t shard, void (*found)(void *context, const struct sc_staging_entry *entry),
                    void *context);

/* A name of a process of another host, which may be dead, is used for so long. */
#define SC_STAGING_FOREIGN_SECONDS ((time_t)7 * 24 * 3600)

/* Remove the temporary names of dead writers from a folder of shards, where names are made if there is no staging
 * folder. The folder may hold many files, so each process does this once. */
void sc_staging_sweep_once(const char *folder);

/* The same for the undo journals of shards that are gone, but only where the search costs nothing: in a small folder, which is
 * open as `fd`. Its size is asked once. */
void sc_staging_sweep_small_once(const char *folder, int fd);

/* The name of a shard in the temporary folder of the writer that removes it. */
#define SC_STAGING_REMOVED "shard"

/* Names that are not temporary: undo journals of shards, and their markers (sc_undo.h). A journal gets its name when it is
 * complete. */
#define SC_UNDO_PREFIX ".shardcodec-undo-"
#define SC_UNDO_MARKER ".shard"
#define SC_UNDO_TEMP ".new"

struct sc_undo_names {
    char journal[48], marker[48], temp[48];
};

/* Make the names for the shard with this inode. */
void sc_staging_undo_names(struct sc_undo_names *names, uint64_t inode);

/* Call this at the end of a plan that used the staging folder. It removes the folder if it is empty; otherwise it
 * removes the names of dead writers. */
void sc_staging_leave(const char *folder);

#endif
