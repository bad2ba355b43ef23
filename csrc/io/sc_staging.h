/* sc_staging.h - where files live before they have their names, and what is left there by writers that died
 *
 * A store lists every file below its root, so a half-written one must not be there. A file system with O_TMPFILE needs a
 * name for the moment in which the new file takes the place of the old one, others for the whole write. Both are
 * made in the *staging folder*, beside the hierarchy and not in it:
 *
 *     data/a.zarr/c/0/0
 *     data/.a.zarr.shardcodec/.shardcodec-<host>-<pid>-<start>-<n>       goes with the last name in it
 *
 * Where that folder cannot be had (permissions, another file system) such a name is made beside the shard.
 *
 * A name says which process made it: host is a hash of the machine's name, its boot and the process's pid name space, start the
 * process's start time. So a name whose process is gone can be told and is removed. One of another host cannot be
 * asked after; it is left alone for a week.
 * SPDX-License-Identifier: MIT */
#ifndef SC_STAGING_H
#define SC_STAGING_H

#include "base/sc_status.h"

/* A name that no other process uses, in a folder; malloc'ed, NULL: no memory. */
char *sc_staging_name(const char *folder);

/* Remove the names of dead writers from a folder of shards, where names had to be made for want of a staging folder.
 * The folder may have many files, so this process looks at it once. */
void sc_staging_sweep_once(const char *folder);

/* Names that are no temporary ones: undo journals of shards, and what marks these (sc_undo.h). */
#define SC_UNDO_PREFIX ".shardcodec-undo-"
#define SC_UNDO_MARKER ".shard"

/* At the end of a plan that used the staging folder: it goes if it is empty, else what the dead left there does. */
void sc_staging_leave(const char *folder);

/* The same when the process ends: for a process that comes back soon, since to make and remove a folder costs as much as
 * all the rest of a small update. What the dead left is removed at once, the first time. */
void sc_staging_leave_later(const char *folder);
void sc_staging_leave_all(void);

#endif
