/* sc_undo_check.c - checks of debug builds: an undo journal before it counts, and the shard after a roll back (see base/sc_check.h)
 *
 * The writer makes a journal, and a later writer applies it after a kill. So here the journal is read as that one would read it, and
 * compared with the shard, before the first byte of the shard changes.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/sc_check.h"

#ifdef SHARDCODEC_CHECKS

#include <fcntl.h>
#include <unistd.h>

#include "base/sc_alloc.h"
#include "io/sc_undo_impl.h"
#include "kernels/sc_crc32c.h"

#define BLOCK_NBYTES ((size_t)1 << 14)

/* The file has these bytes. A file that cannot be read ends here too: nothing else may shorten it under the lock. */
static void
check_bytes(int fd, const char *path, const struct sc_undo_run *run, const char *rule)
{
    uint8_t block[BLOCK_NBYTES];

    for (uint64_t done = 0; done < run->nbytes;) {
        ssize_t got = pread(fd, block, (size_t)min_u64(run->nbytes - done, sizeof block), (off_t)(run->offset + done));

        SC_CHECK(got > 0 && memcmp(block, run->bytes + done, (size_t)got) == 0, rule, .path = path, .entry = UINT64_MAX,
                 .offset = run->offset + done, .nbytes = run->nbytes - done, .limit = run->offset + run->nbytes);
        done += (uint64_t)got;
    }
}

static void
check_bounds(const struct sc_undo_change *change)
{
    uint64_t end = 0;

    for (size_t i = 0; i < change->n_runs; i++) {
        const struct sc_undo_run *run = &change->runs[i];

        SC_CHECK(run->offset >= end && run->offset <= change->seen->nbytes &&
                     run->nbytes <= change->seen->nbytes - run->offset,
                 "runs of a journal ascend inside the old shard", .path = change->path, .entry = UINT64_MAX,
                 .offset = run->offset, .nbytes = run->nbytes, .limit = change->seen->nbytes);
        end = run->offset + run->nbytes;
    }
}

/* The journal that is read from the disk describes this change of this shard, with the bytes that the shard has. */
static void
check_journal(const struct sc_undo_change *change, const struct sc_undo *undo, uint64_t inode)
{
    SC_CHECK(undo->inode == inode && undo->nbytes == change->seen->nbytes && undo->begun_ns == change->begun_ns &&
                 undo->n_runs == change->n_runs,
             "a journal names its shard, its size, its time and its runs", .path = change->path, .entry = UINT64_MAX,
             .offset = undo->inode, .nbytes = undo->nbytes, .limit = inode);
    for (size_t i = 0; i < undo->n_runs; i++) {
        const struct sc_undo_run *run = &undo->runs[i];

        SC_CHECK(run->offset == change->runs[i].offset && run->nbytes == change->runs[i].nbytes,
                 "a run of a journal is one that is overwritten", .path = change->path, .entry = UINT64_MAX,
                 .offset = run->offset, .nbytes = run->nbytes, .limit = change->runs[i].offset);
        check_bytes(change->fd, change->path, run, "a journal has the old bytes of the shard");
    }
}

static bool
has_checksum(const uint8_t *journal, size_t n)
{
    return n >= SC_UNDO_HEAD_NBYTES + 4 && load_le32(journal + n - 4) == sc_crc32c_extend(0, journal, n - 4);
}

void
sc_undo_check_published(const struct sc_undo_change *change)
{
    const char *name = change->place.names.journal;
    int fd = openat(change->place.folder, name, O_RDONLY | O_CLOEXEC);
    struct sc_undo undo = { 0 };
    struct stat st, shard;

    check_bounds(change);
    if (fd < 0 || fstat(fd, &st) || fstat(change->fd, &shard)) {
        sc_file_close(fd);
        return; /* another program has removed it */
    }
    undo.memory = sc_malloc((size_t)st.st_size + 1);
    if (undo.memory) {
        ssize_t got = pread(fd, undo.memory, (size_t)st.st_size, 0);

        SC_CHECK(got == st.st_size && has_checksum(undo.memory, (size_t)got), "a journal that has its name is whole",
                 .path = change->path, .entry = UINT64_MAX, .nbytes = (uint64_t)got, .limit = (uint64_t)st.st_size);
        if (sc_undo_parse(&undo, (uint64_t)got))
            check_journal(change, &undo, (uint64_t)shard.st_ino);
        else
            SC_CHECK(!undo.runs, "a journal that has its name can be read", .path = change->path, .entry = UINT64_MAX,
                     .nbytes = (uint64_t)got,
                     .limit = (uint64_t)st.st_size); /* else there was no memory for its runs */
    }
    sc_undo_free(&undo);
    sc_file_close(fd);
}

void
sc_undo_check_written(const struct sc_undo_change *change, size_t first)
{
    for (size_t i = first; i < change->n_runs; i++)
        check_bytes(change->fd, change->path, &change->runs[i], "an overwritten slot has its new bytes");
}

void
sc_undo_check_restored(int fd, const char *path, const struct sc_undo *undo)
{
    struct stat st;

    for (size_t i = 0; i < undo->n_runs; i++)
        check_bytes(fd, path, &undo->runs[i], "a shard that was rolled back has its old bytes");
    SC_CHECK(fstat(fd, &st) || (uint64_t)st.st_size == undo->nbytes, "a shard that was rolled back has its old size",
             .path = path, .entry = UINT64_MAX, .nbytes = (uint64_t)st.st_size, .limit = undo->nbytes);
}

#endif
