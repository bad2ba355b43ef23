/* sc_newfile.h - write whole files, so that a name never shows a part of one
 *
 *     begin    open(dir, O_TMPFILE)            a file without a name: a killed process leaves nothing behind
 *     write    pwrite, clone, copy_file_range
 *     commit   [fsync]  close of a duplicate   network file systems send the bytes only now, or say that the disk is full
 *                       linkat(.. "name")      when nothing has that name yet; it fails when something has
 *                       linkat(.. temp), renameat2(temp, name, EXCHANGE), unlink(temp)   otherwise
 *              [fsync of the folder, and of those above that were made]
 *
 * So the bytes are at the server, and every error is known, before the name shows the file. A file with a temporary
 * name is even closed before it gets the final one, because some file systems do their work only then. sc_newfile.c has
 * the proof.
 *
 * The temporary name is in the staging folder (sc_staging.h). If a file system lacks O_TMPFILE (NFS, most of Lustre),
 * the file has this name from the start. If it lacks EXCHANGE, rename() replaces; if it lacks hard links too, a new file is
 * renamed after a look that nothing has the name. At a replacing rename() ext4 writes
 * the new file to disk at once, which takes three times as long as the whole write; EXCHANGE avoids that and protects
 * against killed processes as well. With `sync` the bytes are on disk before the name is.
 *
 * If this process holds the lock of the file with a lock file, begin and commit take the steps of sc_guard.h: the temporary name is in
 * the folder of the lock file, and names the shard.
 * SPDX-License-Identifier: MIT */
#ifndef SC_NEWFILE_H
#define SC_NEWFILE_H

#include "io/sc_file.h"

struct sc_newfile {
    int fd;
    char *path;          /* final path, symbolic links resolved */
    char *temp;          /* temporary name, if it has one */
    int at;              /* the staging folder, open, if `temp` is in it; else -1 */
    /* folder for temporary names; NULL: that of path. Belongs to the caller and must outlive the file */
    const char *staging;
    bool named; /* temp exists */
    /* the path is a symbolic link without a target: the object is missing, and the link may be replaced */
    bool dangling;
    bool staged; /* the staging folder was used */
    bool is_shared; /* another process may have given it its name */
    bool guarded; /* temp is in the folder of the lock file */
    unsigned n_made; /* number of folders that were made */
    uint64_t folders_ns; /* how long that took */
};

/* Begin a file that will replace (or become) `path`. Missing folders are made. A symbolic link is followed. A file that is
 * replaced must be a regular one; its owner, mode and attributes are kept (sc_attributes.h). */
enum sc_status sc_newfile_begin(struct sc_newfile *file, const char *path, const char *staging, struct sc_where *where);

/* The same, but the file has a temporary name from the start, so other processes can join. */
enum sc_status sc_newfile_begin_shared(struct sc_newfile *file, const char *path, const char *staging,
                                       struct sc_where *where);

/* Open a file that another process has begun with sc_newfile_begin_shared(). path, temp, staging (if it was used)
 * and n_made are those of that process. */
enum sc_status sc_newfile_join(struct sc_newfile *file, const char *path, const char *temp, const char *staging,
                               unsigned n_made, struct sc_where *where);

/* Close a shared file, which stays with the bytes written so far. sync: they are on disk when this returns. On
 * failure the file is still open; abort or disown it. */
enum sc_status sc_newfile_leave(struct sc_newfile *file, bool sync, struct sc_where *where);

/* Close a shared file without a check of the written bytes. */
void sc_newfile_disown(struct sc_newfile *file);

/* Give the file its name and close it. sync: file and folder are on disk when this returns. made: gets the state of the
 * file; may be NULL.
 *
 * taken: NULL, or the file replaces nothing. *taken: a file had the name. Then the new file is unchanged: commit it
 * again, or abort it.
 *
 * ESTALE: under a lock file, the lock may be lost; nothing has changed.
 *
 * On failure nothing has changed at `path`, with one exception: if the last call fails, the fsync of the folder, the
 * new file is there, but its name may be lost in a power cut. */
enum sc_status sc_newfile_commit(struct sc_newfile *file, bool sync, bool *taken, struct sc_file_version *made,
                                 struct sc_where *where);

/* Return true if a file got a name, since the last call, that nothing kept from another new file of the same name: the file
 * system has neither hard links nor flags of renameat2(). */
bool sc_newfile_was_unguarded(void);

/* Remove the file and close it. It does nothing after a commit. */
void sc_newfile_abort(struct sc_newfile *file);

#endif
