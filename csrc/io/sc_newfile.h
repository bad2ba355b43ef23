/* sc_newfile.h - write whole files so that a name never shows half of one
 *
 *     begin    open(dir, O_TMPFILE)            a file without a name: a killed process leaves nothing behind
 *     write    pwrite, clone, copy_file_range
 *     commit   [fsync]  close of a duplicate   network file systems send the bytes only now, or say that the disk is full
 *                       linkat(.. "name")      when nothing has that name yet; it fails when something has
 *                       linkat(.. temp), renameat2(temp, name, EXCHANGE), unlink(temp)   otherwise
 *              [fsync of the folder, and of those above that were made]
 *
 * So the bytes are at the server, and every error is known, before the name shows the file. A file with a temporary name is
 * even closed before it gets the final one: some file systems do their work only then. sc_newfile.c has the proof.
 *
 * The temporary name is in the staging folder (sc_staging.h). Where a file system lacks O_TMPFILE (NFS, most of Lustre)
 * the file has it from the start; where it lacks EXCHANGE, rename() replaces. EXCHANGE avoids what ext4 does at
 * a replacing rename, to write the new file out at once (three times the cost of the whole write); it gives the same
 * promise against killed processes. With `sync` the bytes are on disk before the name is.
 * SPDX-License-Identifier: MIT */
#ifndef SC_NEWFILE_H
#define SC_NEWFILE_H

#include "io/sc_file.h"

struct sc_newfile {
    int fd;
    char *path;          /* where it shall be, symbolic links resolved */
    char *temp;          /* its name until then, if it has one */
    const char *staging; /* folder for that; NULL: the one of path. The caller's, as long as the file lives */
    bool named;          /* temp exists */
    bool dangling;       /* there is a symbolic link to nothing: no object, but a name, which may be replaced */
    bool staged;         /* the staging folder was used */
    unsigned n_made;     /* folders that had to be made */
};

/* Begin a file that will replace (or become) `path`. Missing folders are made. A symbolic link is followed. A file that is
 * replaced must be a regular one; its owner, mode and attributes are kept (sc_attributes.h). */
enum sc_status sc_newfile_begin(struct sc_newfile *file, const char *path, const char *staging, struct sc_where *where);

/* The same with a temporary name from the start, so that other processes can join. */
enum sc_status sc_newfile_begin_shared(struct sc_newfile *file, const char *path, const char *staging,
                                       struct sc_where *where);

/* Open a file that another process has begun so, to write to it: path, temp, staging (where it was used) and n_made are
 * those of the other's. */
enum sc_status sc_newfile_join(struct sc_newfile *file, const char *path, const char *temp, const char *staging,
                               unsigned n_made, struct sc_where *where);

/* Close a file that is shared. It stays, with the bytes written so far; sync: these are on disk when this returns. On failure
 * the file is still open, to be aborted or disowned. */
enum sc_status sc_newfile_leave(struct sc_newfile *file, bool sync, struct sc_where *where);

/* Close a file that is shared, without a check of the bytes that were written. */
void sc_newfile_disown(struct sc_newfile *file);

/* Set the size; new bytes are zero. */
enum sc_status sc_newfile_truncate(struct sc_newfile *file, uint64_t nbytes, struct sc_where *where);

/* Give the file its name and close it. sync: file and folder are on disk when this returns. made: NULL, or gets the state of
 * the file. On failure nothing has changed at `path`, with one exception: if the last call fails, the sync of the folder, the
 * new file is there, but its name may not survive a power cut.
 * taken: NULL, or nothing is replaced. *taken tells whether there was a file. Then the new file is left as it is: commit it
 * again, or abort it. */
enum sc_status sc_newfile_commit(struct sc_newfile *file, bool sync, bool *taken, struct sc_file_version *made,
                                 struct sc_where *where);

/* Remove the file and close it. Harmless after a commit. */
void sc_newfile_abort(struct sc_newfile *file);

#endif
