/* sc_append.c - update a shard in its own file (see sc_append.h)
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "io/sc_append.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/fs.h>
#include <sys/ioctl.h>
#endif

#include "base/sc_alloc.h"
#include "io/sc_file.h"

#ifndef O_DIRECT
#define O_DIRECT 0
#endif

/* Files whose writes do not bypass the page cache, or are changed on the way (encrypted, journalled, inline,
 * compressed, verified), and files that must not be written in place. */
#define ODD_FLAGS 0x10104834u /* FS_{COMPR,IMMUTABLE,APPEND,ENCRYPT,JOURNAL_DATA,VERITY,INLINE_DATA}_FL */

static uint64_t
to_block(uint64_t n)
{
    return (n + SC_BLOCK_NBYTES - 1) & ~(uint64_t)(SC_BLOCK_NBYTES - 1);
}

uint64_t
sc_append_room(uint64_t data_nbytes, uint64_t index_nbytes)
{
    return to_block(data_nbytes + index_nbytes);
}

static bool
means_refused(int error)
{
    return sc_file_call_refused(error) || error == ETXTBSY || error == ENOENT;
}

bool
sc_append_is_odd(int fd)
{
#ifdef FS_IOC_GETFLAGS
    int flags = 0;

    return ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && ((unsigned)flags & ODD_FLAGS);
#else
    (void)fd;
    return false;
#endif
}

/* Open the shard for writing; it must be as it was seen, and have no other name. This is the look that proves that no program
 * without a lock has changed it. The journal of an update in place has changed its times, and has proved it before. */
static enum sc_status
open_same(const struct sc_append *append, int flags, int *fd, bool *refused, struct sc_where *where)
{
    enum sc_status status;
    struct stat st;

    *fd = sc_file_open_now(append->path, O_RDWR | flags);
    if (*fd < 0) {
        *refused = means_refused(errno);
        return *refused ? SC_OK : sc_file_open_failed(append->path, where);
    }
    status = sc_file_check_seen(*fd, append->seen, !append->is_marked, &st, where);
    if (!status)
        *refused = st.st_nlink != (append->is_marked ? 2 : 1) || sc_append_is_odd(*fd);
    return status;
}

/* Write up to two parts, one behind the other, with one call. A killed process has written all of it or nothing; any other
 * problem shows in the result. */
static ssize_t
write_once(int fd, const char *path, const struct iovec parts[2], uint64_t offset)
{
    uint64_t n = parts[0].iov_len + parts[1].iov_len;
    unsigned n_interrupts = 0;
    ssize_t r;

    do {
        struct iovec first = parts[0], second = parts[1];
        uint64_t limit = n;

        if (!sc_file_allows("pwrite_once", path, &limit)) {
            r = -1;
            continue;
        }
        first.iov_len = (size_t)min_u64(first.iov_len, limit);
        second.iov_len = (size_t)min_u64(second.iov_len, limit - first.iov_len);
        if (first.iov_len)
            r = pwritev(fd, (struct iovec[]){ first, second }, 2, (off_t)offset);
        else
            r = pwrite(fd, second.iov_base, second.iov_len, (off_t)offset);
    } while (r < 0 && sc_file_interrupted(&n_interrupts));
    return r;
}

/* Write one part with one call; a short write is a failure. It has no errno; the cause is a lack of space. */
static enum sc_status
write_all(int fd, const char *path, const uint8_t *src, size_t n, uint64_t offset, struct sc_where *where)
{
    ssize_t r = write_once(fd, path, (struct iovec[2]){ { 0 }, { (void *)(uintptr_t)src, n } }, offset);

    if (r >= 0 && (size_t)r == n)
        return SC_OK;
    if (r >= 0)
        errno = ENOSPC;
    return sc_file_error(where, "pwrite");
}

/* Make sure that all written bytes have arrived; with `sync`, on the disk. */
static enum sc_status
barrier(int fd, const struct sc_append *append, struct sc_where *where)
{
    return sc_file_flush(fd, append->path, append->sync ? SC_SYNC_DATA : SC_SYNC_NONE, where);
}

/* Restore the old size, where the old index is the last thing in the file. Try twice: while the file is larger it
 * may have no index. The caller has an error to report already, so a second failure is not reported. */
static void
cut_back(int fd, const struct sc_append *append)
{
    struct sc_where ignored;

    if (sc_file_truncate(fd, append->path, append->seen->nbytes, &ignored))
        sc_file_truncate(fd, append->path, append->seen->nbytes, &ignored);
}

/* ---- direct ---- */

/* Reserve the blocks that the write needs. Without them it could stop half way for lack of space. */
static enum sc_status
reserve(int fd, const struct sc_append *append, uint64_t n, struct sc_where *where)
{
#ifdef FALLOC_FL_KEEP_SIZE
    unsigned n_interrupts = 0;
    int r;

    do
        r = sc_file_allows("fallocate", append->path, NULL)
                ? fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)append->data_offset, (off_t)n)
                : -1;
    while (r && sc_file_interrupted(&n_interrupts));
    if (r && !sc_file_call_refused(errno))
        return sc_file_error(where, "fallocate");
#else
    (void)fd, (void)append, (void)n, (void)where;
#endif
    return SC_OK;
}

/* The write bypasses the page cache, so the next read of the end of the file would wait for the disk: let the kernel
 * read it ahead. */
static void
fetch_end(int fd, uint64_t end, uint64_t n)
{
#ifdef POSIX_FADV_WILLNEED
    posix_fadvise(fd, (off_t)(end - n), (off_t)n, POSIX_FADV_WILLNEED);
#else
    (void)fd, (void)end, (void)n;
#endif
}

/* Some memory, such as that of a device, cannot be written past the page cache: write a copy of what is lent. */
static ssize_t
write_copy(int fd, const struct sc_append *append, const struct iovec parts[2])
{
    struct iovec copies[2] = { { sc_aligned_alloc(SC_BLOCK_NBYTES, parts[0].iov_len), parts[0].iov_len }, parts[1] };
    struct sc_where ignored;
    ssize_t r = -1;
    int error;

    cut_back(fd, append);
    errno = ENOMEM;
    if (!copies[0].iov_base)
        return -1;
    memcpy(copies[0].iov_base, parts[0].iov_base, parts[0].iov_len);
    if (!reserve(fd, append, parts[0].iov_len + parts[1].iov_len, &ignored))
        r = write_once(fd, append->path, copies, append->data_offset);
    error = errno;
    sc_free(copies[0].iov_base);
    errno = error;
    return r;
}

static enum sc_status
append_direct(int fd, const struct sc_append *append, bool *refused, struct sc_where *where)
{
    size_t n = (size_t)sc_append_room(append->data_nbytes, append->index_nbytes), tail = (size_t)append->data_nbytes;
    struct iovec parts[2] = { { (void *)(uintptr_t)append->lent, (size_t)append->lent_nbytes }, { append->data, n } };
    uint64_t total = append->lent_nbytes + n;
    enum sc_status status = reserve(fd, append, total, where);
    ssize_t r;

    memset(append->data + tail, 0, n - tail - (size_t)append->index_nbytes);
    memcpy(append->data + n - append->index_nbytes, append->index, (size_t)append->index_nbytes);
    if (!status) {
        r = write_once(fd, append->path, parts, append->data_offset);
        if (r < 0 && errno == EFAULT && append->lent_nbytes)
            r = write_copy(fd, append, parts);
        *refused = r < 0 && sc_file_call_refused(errno);
        if (r >= 0 && (uint64_t)r != total)
            errno = ENOSPC;
        if ((r < 0 && !*refused) || (r >= 0 && (uint64_t)r != total))
            status = sc_file_error(where, "pwrite");
    }
    if (!status && !*refused)
        status = barrier(fd, append, where);
    if (!status && !*refused)
        fetch_end(fd, append->data_offset + total, min_u64(total, to_block(append->index_nbytes) + SC_BLOCK_NBYTES));
    if (status || *refused)
        cut_back(fd, append); /* gives the blocks back, too */
    return status;
}

/* ---- leap ---- */

static enum sc_status
append_leap(int fd, const struct sc_append *append, struct sc_where *where)
{
    uint8_t copy[SC_BLOCK_NBYTES];
    size_t n = (size_t)append->index_nbytes;
    uint64_t end = to_block(append->data_offset + append->data_nbytes + n);
    enum sc_status status = sc_file_read_exactly(fd, copy, n, append->seen->nbytes - n, where);

    if (status)
        return status;
    status = write_all(fd, append->path, copy, n, end, where);
    if (!status)
        status = sc_file_write(fd, append->path, append->data, (size_t)append->data_nbytes, append->data_offset, where);
    if (!status)
        status = sc_file_write(fd, append->path, append->index, n, end - n, where);
    if (!status)
        status = sc_file_truncate(fd, append->path, end, where);
    if (!status)
        status = barrier(fd, append, where);
    if (status)
        cut_back(fd, append);
    return status;
}

/* ---- index ---- */

/* The size stays if nothing was appended, and the clock of the file may be so coarse that its time does, too. Then readers
 * could not tell the new state from the old one. A user who does not own the file has to rely on the clock. */
static void
name_state(int fd, const struct sc_append *append)
{
    struct sc_where ignored;
    struct sc_file_id id;

    if (!append->data_nbytes && !append->is_marked && !sc_file_identify_open(fd, &id, &ignored) && id.mtime_ns >= 0)
        (void)sc_file_set_mtime(fd, append->path, id.seen_ns > id.mtime_ns ? id.seen_ns : id.mtime_ns + 1);
}

static enum sc_status
append_index(int fd, const struct sc_append *append, struct sc_where *where)
{
    uint8_t old[SC_BLOCK_NBYTES];
    size_t n = (size_t)append->index_nbytes;
    enum sc_status status = sc_file_read_exactly(fd, old, n, 0, where);

    if (status)
        return status;
    status = sc_file_write(fd, append->path, append->data, (size_t)append->data_nbytes, append->data_offset, where);
    if (!status)
        status = barrier(fd, append, where);
    if (status) {
        cut_back(fd, append);
        return status;
    }
    status = write_all(fd, append->path, append->index, n, 0, where);
    if (!status)
        status = barrier(fd, append, where);
    if (!status)
        name_state(fd, append);
    if (status) {
        struct sc_where ignored;

        /* the new chunks stay: if the old index cannot be restored, the new one needs them */
        if (!sc_file_write(fd, append->path, old, n, 0, &ignored) &&
            !sc_file_flush(fd, append->path, SC_SYNC_NONE, &ignored))
            cut_back(fd, append);
    }
    return status;
}

/* True if the memory allows a write past the page cache. */
static bool
has_blocks(const struct sc_append *append)
{
    return ((uintptr_t)append->lent | append->lent_nbytes | (uintptr_t)append->data) % SC_BLOCK_NBYTES == 0;
}

enum sc_status
sc_append(const struct sc_append *append, enum sc_append_way way, bool *refused, struct sc_where *where)
{
    bool direct = way == SC_APPEND_DIRECT;
    enum sc_status status;
    int fd = -1;

    *refused = false;
    if (!direct && append->index_nbytes > SC_BLOCK_NBYTES)
        return SC_BAD_ARGUMENT;
    if (direct && (append->data_offset % SC_BLOCK_NBYTES || !O_DIRECT)) {
        *refused = true;
        return SC_OK;
    }
    if (direct && !has_blocks(append))
        return SC_BAD_ARGUMENT;
    status = open_same(append, direct ? O_DIRECT : 0, &fd, refused, where);
    if (!status && !*refused && direct)
        status = append_direct(fd, append, refused, where);
    else if (!status && !*refused)
        status = way == SC_APPEND_LEAP ? append_leap(fd, append, where) : append_index(fd, append, where);
    sc_file_close(fd); /* flushed, or cut back */
    return status;
}

/* ---- does it work here? ---- */

/* True if the page behind the first block is in the page cache: then the write did not bypass it. */
static bool
is_cached(int fd)
{
    unsigned char resident = 1;
    void *page = mmap(NULL, SC_BLOCK_NBYTES, PROT_READ, MAP_SHARED, fd, SC_BLOCK_NBYTES);
    bool known = page != MAP_FAILED && mincore(page, SC_BLOCK_NBYTES, &resident) == 0;

    if (page != MAP_FAILED)
        munmap(page, SC_BLOCK_NBYTES); /* a read-only mapping has nothing to write back */
    return !known || (resident & 1);
}

bool
sc_append_direct_works(const char *folder)
{
#if defined(__linux__) && defined(O_TMPFILE)
    int fd = sysconf(_SC_PAGESIZE) == (long)SC_BLOCK_NBYTES ? open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
    uint8_t tail[100] = { 0 };
    struct stat st;
    void *block;
    bool works;

    if (fd < 0)
        return false;
    if (!(block = sc_aligned_alloc(SC_BLOCK_NBYTES, SC_BLOCK_NBYTES))) {
        sc_file_close(fd);
        return false;
    }
    memset(block, 1, SC_BLOCK_NBYTES);
    works = pwrite(fd, tail, sizeof tail, 0) == (ssize_t)sizeof tail && fcntl(fd, F_SETFL, O_DIRECT) == 0 &&
            pwrite(fd, block, SC_BLOCK_NBYTES, SC_BLOCK_NBYTES) == (ssize_t)SC_BLOCK_NBYTES && !is_cached(fd) &&
            fstat(fd, &st) == 0 && st.st_size == 2 * (off_t)SC_BLOCK_NBYTES;
    sc_free(block);
    sc_file_close(fd); /* the file has no name and goes */
    return works;
#else
    (void)folder;
    return false;
#endif
}
