/* sc_file.h - local files: reading ranges, and writing whole files so that a name never shows half of one
 *
 * Every call that changes a file system goes through one table, sc_file_calls, so that a test can count them, make the
 * n-th fail, or kill the process there.
 *
 * How a file is replaced:
 *
 *     begin    open(dir, O_TMPFILE)            a file without a name: a killed process leaves nothing behind
 *     write    pwrite, copy_file_range
 *     commit   [fsync]  linkat(.. "name")      when nothing has that name yet
 *                       linkat(.. temp), renameat2(temp, name, EXCHANGE), unlink(temp)   otherwise
 *              [fsync of the folder]
 *
 * Where a file system lacks O_TMPFILE (NFS, most of Lustre) the file has its temporary name from the start; where it lacks
 * EXCHANGE, rename() replaces. EXCHANGE avoids what ext4 does at a replacing rename, to write the new file out at once
 * (three times the cost of the whole write); it gives the same promise against killed processes. With `sync` the bytes
 * are on disk before the name is.
 * SPDX-License-Identifier: MIT */
#ifndef SC_FILE_H
#define SC_FILE_H

#include <sys/stat.h>
#include <sys/types.h>

#include "sc_status.h"

/* The calls that change a file system, and how a test takes part: `before` is asked first; 0 lets the call happen, an
 * errno makes it fail with that, and for writes *limit cuts the number of bytes of this one call. */
struct sc_file_hook {
    int (*before)(const char *call, const char *path, uint64_t *limit, void *arg);
    void *arg;
};

/* NULL removes it. Not for two threads at once. */
void sc_file_set_hook(const struct sc_file_hook *hook);

/* For the other files that make such calls: may this one happen? Else errno says why not. */
bool sc_file_allows(const char *call, const char *path, uint64_t *limit);

/* ---- reading ---- */

/* What tells a version of a file from every other: no two have all of these. seen_ns is when they were looked at. */
struct sc_file_id {
    uint64_t device, inode, nbytes;
    int64_t mtime_ns, ctime_ns;
    int64_t seen_ns;
};

bool sc_file_id_equal(const struct sc_file_id *a, const struct sc_file_id *b);

/* Look at a name: false when there is no such file, or it cannot be told. */
bool sc_file_identify(const char *path, struct sc_file_id *id);

/* As sc_file_open(), and identify what was opened. */
enum sc_status sc_file_open_id(const char *path, int *fd, struct sc_file_id *id, struct sc_where *where);

/* Open for reading. *fd = -1 with SC_OK when there is no such file (nor can be: ENOENT, ENOTDIR, a folder). *nbytes is its
 * size then 0. */
enum sc_status sc_file_open(const char *path, int *fd, uint64_t *nbytes, struct sc_where *where);
void sc_file_close(int fd);

/* Read up to n bytes at `offset`; *got is less only at the end of the file. */
enum sc_status sc_file_read(int fd, uint8_t *dst, size_t n, uint64_t offset, size_t *got, struct sc_where *where);

/* Read exactly n bytes; SC_CHANGED when the file ends before (it was truncated after it was measured). */
enum sc_status sc_file_read_exactly(int fd, uint8_t *dst, size_t n, uint64_t offset, struct sc_where *where);

/* ---- writing ---- */

struct sc_newfile {
    int fd;
    char *path;  /* where it shall be, symbolic links resolved */
    char *temp;  /* a name in the same folder */
    bool named;  /* temp exists */
};

/* Begin a file that will replace (or become) `path`; missing folders are made. A replaced file's mode bits are kept; a
 * symbolic link is followed. */
enum sc_status sc_newfile_begin(struct sc_newfile *file, const char *path, struct sc_where *where);
enum sc_status sc_newfile_write(struct sc_newfile *file, const uint8_t *src, size_t n, uint64_t offset,
                                struct sc_where *where);

/* Copy bytes of another file inside the kernel where it can (clone, copy_file_range), through memory elsewhere. */
enum sc_status sc_newfile_copy(struct sc_newfile *file, int from, uint64_t from_offset, uint64_t n, uint64_t offset,
                               struct sc_where *where);

/* Give it its name. sync: file and folder are on disk when this returns. The file is closed in any case. On failure
 * nothing has changed at `path`, except when the very last call fails, the sync of the folder: the new file is there
 * then, but its name may not survive a power cut. */
enum sc_status sc_newfile_commit(struct sc_newfile *file, bool sync, struct sc_where *where);

/* Forget it. Harmless after a commit. */
void sc_newfile_abort(struct sc_newfile *file);

/* Remove a file; that it does not exist is no error. A symbolic link goes, not what it points to. */
enum sc_status sc_file_remove(const char *path, bool sync, struct sc_where *where);

#endif
