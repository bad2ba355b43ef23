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

#include "base/sc_check.h"
#include "base/sc_status.h"

/* How a test takes part: `before` is called before each change of a file system. 0 lets the call happen; an errno
 * makes it fail with that. For writes *limit cuts the number of bytes of this one call. */
struct sc_file_hook {
    int (*before)(const char *call, const char *path, uint64_t *limit, void *arg);
    void *arg;
};

/* Set the hook; NULL removes it. Do not call this while a plan runs. */
void sc_file_set_hook(const struct sc_file_hook *hook);

/* Ask the hook: true if this call may happen, else errno says why not. limit: NULL for a call that moves no bytes. */
bool sc_file_allows(const char *call, const char *path, uint64_t *limit);

/* Store errno and the call in *where; return SC_IO. */
enum sc_status sc_file_error(struct sc_where *where, const char *call);

/* Return true if this errno of a call on a path means that the file does not exist. */
static inline bool
sc_file_means_missing(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EISDIR;
}

/* Return true if this errno may mean that the call, or one of its flags, does not exist here: an older kernel, the file system,
 * or a sandbox (seccomp) that does not know the call and answers EPERM, EACCES or ENOSYS. The caller then tries an older call,
 * which fails too if the reason is another one. */
static inline bool
sc_file_call_refused(int error)
{
    return error == ENOSYS || error == EPERM || error == EACCES || error == EINVAL || error == EOPNOTSUPP ||
           error == ENOTSUP;
}

/* ---- reading ---- */

/* Identifies a version of a file: no two versions have all of these equal. seen_ns: when they were read. */
struct sc_file_id {
    uint64_t device, inode, nbytes;
    int64_t mtime_ns, ctime_ns;
    int64_t atime_ns, seen_ns; /* these and the number of names are not a part of the version */
    uint64_t n_links;
};

bool sc_file_id_equal(const struct sc_file_id *a, const struct sc_file_id *b);

/* Identify the file at a path. Return false if the file does not exist or stat() fails. */
bool sc_file_identify(const char *path, struct sc_file_id *id);

/* Find the device of a path whose file is missing: that of the nearest folder above it which exists. False: it cannot be told. */
bool sc_file_device_of(const char *path, uint64_t *device);

/* Return the time for `seen_ns`. Read the clock before the file: a later change then has a later time stamp. */
int64_t sc_file_now_ns(void);

/* Identify an open file by the result of fstat(). */
void sc_file_id_of(const struct stat *st, int64_t seen_ns, struct sc_file_id *id);

/* Identify an open file. */
enum sc_status sc_file_identify_open(int fd, struct sc_file_id *id, struct sc_where *where);

/* Identifies one state of a file, to be compared later, when the file may be gone and its inode used again. number:
 * generation that the file system gives to each new inode (0: unknown). Links and renames, which change ctime, do
 * not change the version. */
struct sc_file_version {
    uint64_t device, inode, number, nbytes;
    int64_t mtime_ns;
};

/* Return the number that the file system gave to the inode of an open file or folder when it made it; 0: unknown. */
uint32_t sc_file_inode_number(int fd);

/* Return the version of an open file, which looked like `id`. */
void sc_file_version_of(int fd, const struct sc_file_id *id, struct sc_file_version *version);

/* Look at an open file and return its version. */
enum sc_status sc_file_version_now(int fd, struct sc_file_version *version, struct sc_where *where);

/* ---- opening ----
 *
 * A shard is a regular file, or a symbolic link to one. A FIFO would make open() wait forever, and a device may do
 * anything, so every path is opened with these functions. */

/* open() that does not wait for a FIFO; -1 and errno. ESTALE: a file exists, but not the one that this client of a
 * network file system knows by that name, because another client has replaced it. This lasts up to a second or so.
 * Other calls on open files report ESTALE then, too. */
int sc_file_open_now(const char *path, int flags);

/* Look at a path after ESTALE, so that the client forgets its cached name: an open goes by that name again, also to a file that
 * is gone. errno stays. */
void sc_file_look_again(const char *path);

/* Return SC_NOT_A_FILE unless it is a regular file or a folder, which every caller handles itself. */
enum sc_status sc_file_check_kind(const struct stat *st, struct sc_where *where);

/* Return the status of a failed open(): SC_IO with its errno, or SC_NOT_A_FILE if that is the reason (a socket, a
 * device without a driver). */
enum sc_status sc_file_open_failed(const char *path, struct sc_where *where);

/* As sc_file_open(), and identify the file. */
enum sc_status sc_file_open_id(const char *path, int *fd, struct sc_file_id *id, struct sc_where *where);

/* Open a file for reading. *fd = -1 with SC_OK and *nbytes = 0 if the file is missing (ENOENT, ENOTDIR). SC_NOT_A_FILE for a
 * folder, and for a link to nothing: a listing shows the name, so data may be lost or not fetched yet. */
enum sc_status sc_file_open(const char *path, int *fd, uint64_t *nbytes, struct sc_where *where);

/* Return a second descriptor of an open file, which the caller closes. */
enum sc_status sc_file_share(int given, int *fd, struct sc_where *where);

/* Find the size of an open file. */
enum sc_status sc_file_size(int fd, uint64_t *nbytes, struct sc_where *where);

/* Close a file that was only read, or whose bytes are not needed. For one that was written see sc_file_flush(). */
void sc_file_close(int fd);

/* Read up to n bytes at `offset`. *got is less only at the end of the file. */
enum sc_status sc_file_read(int fd, uint8_t *dst, size_t n, uint64_t offset, size_t *got, struct sc_where *where);

/* Read exactly n bytes. SC_CHANGED: the file ends before, because it was truncated after its size was read. */
enum sc_status sc_file_read_exactly(int fd, uint8_t *dst, size_t n, uint64_t offset, struct sc_where *where);

/* SC_CHANGED unless this is the file that was seen, with the same size, and with `times` in the same state: each change in place
 * changes its size or its times. *st (or NULL) describes it. */
enum sc_status sc_file_check_seen(int fd, const struct sc_file_id *seen, bool times, struct stat *st,
                                  struct sc_where *where);

/* ---- changing ---- */

/* How a file is opened that is only written. A debug build reads again what it has written. */
#define SC_FOR_WRITING (SC_CHECKS ? O_RDWR : O_WRONLY)

/* So often one call is repeated after a signal has interrupted it (EINTR); then this is its error. */
#define SC_MAX_INTERRUPTS 10000u

/* After a call that failed: true if it was interrupted and is to be repeated. */
static inline bool
sc_file_interrupted(unsigned *n_interrupts)
{
    return errno == EINTR && ++*n_interrupts < SC_MAX_INTERRUPTS;
}

/* What has to be on the disk when a call returns. */
enum sc_sync {
    SC_SYNC_NONE,
    SC_SYNC_DATA, /* fdatasync(): the bytes and the size */
    SC_SYNC_ALL,  /* fsync(): also times, mode and attributes */
};

/* Write n bytes, in as many calls as needed. `path` names the file to the hook. */
enum sc_status sc_file_write(int fd, const char *path, const uint8_t *src, size_t n, uint64_t offset,
                             struct sc_where *where);

/* Synchronise the file as `sync` says. Then report what close() would report, but keep the descriptor open: some network
 * file systems send the bytes, or say that the disk is full, only at close(). Closing a duplicate has the same effect. Call
 * this before the bytes count: before the file gets its name, before success is reported. `path` names the file to the
 * hook. */
enum sc_status sc_file_flush(int fd, const char *path, enum sc_sync sync, struct sc_where *where);

/* Set the time of the last change. 0, or -1 and errno: only the owner of the file may do this. */
int sc_file_set_mtime(int fd, const char *path, int64_t ns);

/* Set the size. New bytes are zero. */
enum sc_status sc_file_truncate(int fd, const char *path, uint64_t nbytes, struct sc_where *where);

/* Let both files share whole blocks, for as many of the n bytes as possible. Return that number of bytes; 0 if the
 * file system cannot share. */
uint64_t sc_file_clone(int fd, const char *path, int from, uint64_t from_offset, uint64_t n, uint64_t offset);

/* Copy bytes of another file: inside the kernel if possible (clone, copy_file_range), else through memory. */
enum sc_status sc_file_copy(int fd, const char *path, int from, uint64_t from_offset, uint64_t n, uint64_t offset,
                            struct sc_where *where);

/* Return a number for a path, never 0: a hash of its part below the folder that contains `folder`. It is the same on all mounts of
 * that folder. */
uint64_t sc_file_number(const char *folder, const char *path);

/* Return the folder of a path, malloc'ed; NULL: no memory. */
char *sc_file_folder_of(const char *path);

/* Make a folder and those above it. 0, or -1 and errno. *n_made is increased by the number of folders made. */
int sc_file_make_folders(char *folder, unsigned *n_made);

/* fsync() a file or a folder. */
enum sc_status sc_file_sync_path(const char *path, struct sc_where *where);

/* fsync() the folder of `path` and n_above folders above it. */
enum sc_status sc_file_sync_folders(const char *path, unsigned n_above, struct sc_where *where);

/* Remove a file. Succeed if the file is missing. If the path is a symbolic link, remove the link and keep its target; a
 * link without a target counts as a missing file. */
enum sc_status sc_file_remove(const char *path, bool sync, struct sc_where *where);

#endif
