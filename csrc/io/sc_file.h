/* sc_file.h - local files: reading ranges, and what everything that changes a file system has in common
 *
 * Every call that changes a file system is announced to sc_file_allows() first, so that a test can count them, make the
 * n-th fail, or kill the process there (sc_fault.h).
 * SPDX-License-Identifier: MIT */
#ifndef SC_FILE_H
#define SC_FILE_H

#include <errno.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/sc_status.h"

/* How a test takes part: `before` is asked first; 0 lets the call happen, an errno makes it fail with that, and for writes
 * *limit cuts the number of bytes of this one call. */
struct sc_file_hook {
    int (*before)(const char *call, const char *path, uint64_t *limit, void *arg);
    void *arg;
};

/* NULL removes it. Not while a plan runs. */
void sc_file_set_hook(const struct sc_file_hook *hook);

/* May this call happen? Else errno says why not. limit: NULL for a call that moves no bytes. */
bool sc_file_allows(const char *call, const char *path, uint64_t *limit);

/* Note errno and the call; returns SC_IO. */
enum sc_status sc_file_error(struct sc_where *where, const char *call);

/* Does this errno of a call on a name say that there is no such file? */
static inline bool
sc_file_means_missing(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EISDIR;
}

/* ---- reading ---- */

/* What tells a version of a file from every other: no two have all of these. seen_ns is when they were looked at. */
struct sc_file_id {
    uint64_t device, inode, nbytes;
    int64_t mtime_ns, ctime_ns;
    int64_t seen_ns;
    uint64_t n_links; /* names; says nothing about the version */
};

bool sc_file_id_equal(const struct sc_file_id *a, const struct sc_file_id *b);

/* Look at a name: false when there is no such file, or it cannot be told. */
bool sc_file_identify(const char *path, struct sc_file_id *id);

/* Look at an open file. */
enum sc_status sc_file_identify_open(int fd, struct sc_file_id *id, struct sc_where *where);

/* Names one state of a file, to be compared later, when the file may be gone and its inode reused: `number` is what
 * the file system gives to each inode it hands out (0: it does not say). Links and renames, which change ctime, do not count. */
struct sc_file_version {
    uint64_t device, inode, number, nbytes;
    int64_t mtime_ns;
};

/* That of an open file, which looked like `id`. */
void sc_file_version_of(int fd, const struct sc_file_id *id, struct sc_file_version *version);

/* ---- opening ----
 *
 * A shard is a regular file, or a symbolic link to one. A FIFO would make open() wait for ever, and a device may be anything, so
 * every path that is opened goes through these. */

/* open() without waiting for a FIFO; -1 and errno. ESTALE: there is a file, but not yet (any more) the one that this client of a
 * network file system knows by that name, because another client has replaced it; that takes up to a second or so to pass.
 * The other calls on open files say ESTALE then, too. */
int sc_file_open_now(const char *path, int flags);

/* SC_NOT_A_FILE unless it is a regular file or a folder, which every caller treats in its own way. */
enum sc_status sc_file_check_kind(const struct stat *st, struct sc_where *where);

/* After a failed open(): SC_IO with its errno, or SC_NOT_A_FILE if that is why (a socket, a device that has no driver). */
enum sc_status sc_file_open_failed(const char *path, struct sc_where *where);

/* As sc_file_open(), and identify what was opened. */
enum sc_status sc_file_open_id(const char *path, int *fd, struct sc_file_id *id, struct sc_where *where);

/* Open for reading. *fd = -1 with SC_OK when there is no such file (nor can be: ENOENT, ENOTDIR, a folder). *nbytes is its
 * size then 0. */
enum sc_status sc_file_open(const char *path, int *fd, uint64_t *nbytes, struct sc_where *where);

/* A second descriptor of an open file, to be closed on its own; and the file's size. */
enum sc_status sc_file_share(int given, int *fd, uint64_t *nbytes, struct sc_where *where);

/* Close a file that was read only, or whose bytes do not matter (any more). For one that was written see sc_file_flush(). */
void sc_file_close(int fd);

/* Read up to n bytes at `offset`; *got is less only at the end of the file. */
enum sc_status sc_file_read(int fd, uint8_t *dst, size_t n, uint64_t offset, size_t *got, struct sc_where *where);

/* Read exactly n bytes; SC_CHANGED when the file ends before (it was truncated after it was measured). */
enum sc_status sc_file_read_exactly(int fd, uint8_t *dst, size_t n, uint64_t offset, struct sc_where *where);

/* What a file looked like when its index was read: each change in place changes one of these. */
struct sc_file_stamp {
    uint64_t nbytes;
    int64_t mtime_ns, ctime_ns;
};

/* SC_CHANGED when the open file is not what it was. */
enum sc_status sc_file_check_stamp(int fd, const struct sc_file_stamp *stamp, struct sc_where *where);

/* ---- changing ---- */

/* Write n bytes, however many calls that takes. `path` names the file to the hook. */
enum sc_status sc_file_write(int fd, const char *path, const uint8_t *src, size_t n, uint64_t offset,
                             struct sc_where *where);

/* Learn what close() would report, of a descriptor that stays open: network file systems say only then that the disk is full, or
 * send the bytes at all. A duplicate is closed, which has the same effect. To be asked before the bytes count: before the file gets
 * its name, before success is reported. `path` names the file to the hook. */
enum sc_status sc_file_flush(int fd, const char *path, struct sc_where *where);

/* Let both files share whole blocks, as many of n bytes as can be; returns how many bytes that were, 0 where the file system
 * cannot. */
uint64_t sc_file_clone(int fd, const char *path, int from, uint64_t from_offset, uint64_t n, uint64_t offset);

/* Copy bytes of another file inside the kernel where it can (clone, copy_file_range), through memory elsewhere. */
enum sc_status sc_file_copy(int fd, const char *path, int from, uint64_t from_offset, uint64_t n, uint64_t offset,
                            struct sc_where *where);

/* The folder of a path, malloc'ed; NULL: no memory. */
char *sc_file_folder_of(const char *path);

/* Make a folder and those above it. 0, or -1 and errno; *n_made grows by the number of folders that were made. */
int sc_file_make_folders(char *folder, unsigned *n_made);

/* Bring the names in the folder of `path` to the disk, and in n_above folders above it. */
enum sc_status sc_file_sync_folders(const char *path, unsigned n_above, struct sc_where *where);

/* Remove a file; that it does not exist is no error. A symbolic link goes, not what it points to; one to nothing is no file. */
enum sc_status sc_file_remove(const char *path, bool sync, struct sc_where *where);

#endif
