/* sc_newfile_impl.h - the names of a new file; for sc_newfile.c and sc_newfile_name.c only
 * SPDX-License-Identifier: MIT */
#ifndef SC_NEWFILE_IMPL_H
#define SC_NEWFILE_IMPL_H

#include <fcntl.h>
#include <string.h>

#include "io/sc_guard.h"
#include "io/sc_newfile.h"

/* So often a step is tried that other processes can undo at any time: they remove an empty folder, or take a name. */
#define SC_NEWFILE_MAX_ATTEMPTS 8

/* Choose a temporary name in a folder: file->temp. False: no memory. */
bool sc_newfile_name_temp(struct sc_newfile *file, const char *folder);

/* Choose a temporary name in the staging folder and open that: file->at. Return 0, or -1 and errno. */
int sc_newfile_enter_staging(struct sc_newfile *file);

/* Choose a temporary name in the folder of a lock file, which a fence finds. 0, or -1 and errno. */
int sc_newfile_enter_guard(struct sc_newfile *file, const struct sc_guard *guard);

/* The same for a file that was begun before the lock was taken; it gets this name, and the mark. */
int sc_newfile_move_to_guard(struct sc_newfile *file, const struct sc_guard *guard);

/* Close the staging folder. */
void sc_newfile_leave_staging(struct sc_newfile *file);

/* The temporary name for calls as openat(): a folder, and the name in it. */
static inline int
sc_newfile_at(const struct sc_newfile *file)
{
    return file->at >= 0 ? file->at : AT_FDCWD;
}

static inline const char *
sc_newfile_temp(const struct sc_newfile *file)
{
    return file->at >= 0 ? strrchr(file->temp, '/') + 1 : file->temp;
}

/* Remove the temporary name. 0, or -1 and errno. */
int sc_newfile_unlink_temp(const struct sc_newfile *file);

/* Give a finished file its final name. taken: as of sc_newfile_commit(). */
enum sc_status sc_newfile_give_name(struct sc_newfile *file, bool *taken, struct sc_where *where);

#endif
