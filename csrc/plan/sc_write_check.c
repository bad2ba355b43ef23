/* sc_write_check.c - checks of debug builds: a shard before it is written, and as it was stored (see base/sc_check.h)
 *
 * Before: each entry of the new index lies inside the object, new inner chunks touch neither each other nor the header, the tail
 * or the index, and kept ones have their old size.
 *
 * After, before the new file gets its name or the journal goes: the stored index is read again, gives the same entries and has
 * the right checksum; the bytes of each new inner chunk have the checksum that they had when they were encoded, and the bytes of
 * each kept one are those of the old object.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/sc_check.h"

#ifdef SHARDCODEC_CHECKS

#include <unistd.h>

#include "base/sc_alloc.h"
#include "kernels/sc_crc32c.h"
#include "plan/sc_write_impl.h"

#define BLOCK_NBYTES ((size_t)1 << 14)
#define IS_NEW ((uint64_t)1 << 32)

/* ---- the bytes of new inner chunks ---- */

enum sc_status
sc_write_check_begin(struct sc_write_object *object)
{
    size_t n = (size_t)object->item->chain->n_chunks * sizeof *object->sums;
    enum sc_status status = sc_buffer_reserve(&object->sums_memory, n);

    if (status)
        return status;
    object->sums = (uint64_t *)(void *)object->sums_memory.data;
    memset(object->sums, 0, n);
    return SC_OK;
}

void
sc_write_check_note(struct sc_write_object *object, uint64_t position, const uint8_t *bytes, uint64_t nbytes)
{
    SC_CHECK(position < object->item->chain->n_chunks, "an inner chunk has a place in the grid",
             .path = object->item->path, .entry = position, .nbytes = nbytes, .limit = object->item->chain->n_chunks);
    object->sums[position] = IS_NEW | sc_crc32c_extend(0, bytes, (size_t)nbytes);
}

void
sc_write_check_note_batch(struct sc_write_object *object, const struct sc_write_batch *batch)
{
    const uint8_t *bytes = sc_write_batch_bytes(batch);

    for (size_t i = 0; i < batch->n; i++) {
        if (batch->sizes[i] == SC_ABSENT)
            continue;
        sc_write_check_note(object, batch->positions[i], bytes, batch->sizes[i]);
        bytes += batch->sizes[i];
    }
}

static bool
is_new(const struct sc_write_object *object, uint64_t i)
{
    return (object->sums[i] & IS_NEW) != 0;
}

/* ---- before ---- */

/* An entry lies inside the object; a new one not in the index, and a kept one has the size of the old one. */
static void
check_entry(const struct sc_write_object *object, uint64_t i, const struct sc_index_extent *extent)
{
    const struct sc_write_item *item = object->item;
    struct sc_entry e = object->entries[i];
    struct sc_where where;

    SC_CHECK(sc_entry_check(e, extent, !is_new(object, i), &where) == SC_OK,
             "an entry lies inside the shard and outside of the index", .path = item->path, .entry = i,
             .offset = e.offset, .nbytes = e.nbytes, .limit = extent->shard_nbytes);
    if (is_new(object, i))
        return;
    SC_CHECK(item->old_entries && item->old_entries[i].nbytes == e.nbytes,
             "a kept inner chunk has the size that it had", .path = item->path, .entry = i, .offset = e.offset,
             .nbytes = e.nbytes, .limit = item->old_entries ? item->old_entries[i].nbytes : 0);
    SC_CHECK(!in_own_file(item) || item->old_entries[i].offset == e.offset,
             "an update in the shard's own file moves no kept inner chunk", .path = item->path, .entry = i,
             .offset = e.offset, .nbytes = e.nbytes, .limit = item->old_entries[i].offset);
}

/* No new inner chunk shares a byte with another one. Old ones may overlap each other: other programs write such shards. */
static void
check_apart(const struct sc_write_object *object)
{
    size_t n = (size_t)object->item->chain->n_chunks, n_stored, furthest = 0;
    uint64_t *order = sc_malloc(2 * n * sizeof *order), end = 0;

    if (!order)
        return;
    sc_index_by_offset(object->entries, n, order, order + n, &n_stored);
    for (size_t k = 0; k < n_stored; k++) {
        struct sc_entry e = object->entries[order[k]];

        SC_CHECK(e.offset >= end || (!is_new(object, order[k]) && !is_new(object, furthest)),
                 "a new inner chunk overlaps no other one", .path = object->item->path, .entry = order[k],
                 .offset = e.offset, .nbytes = e.nbytes, .limit = end);
        if (e.offset + e.nbytes > end) {
            end = e.offset + e.nbytes;
            furthest = (size_t)order[k];
        }
    }
    sc_free(order);
}

void
sc_write_check_before(struct sc_write_object *object, const struct sc_tail *tail)
{
    const struct sc_write_item *item = object->item;
    const struct sc_index_layout *index = &item->chain->index;
    uint64_t nbytes = !tail ? item->old.nbytes : tail->end + (index->at_start ? 0 : index->nbytes);
    uint64_t end = tail ? tail->mark_at : nbytes, first = (index->at_start ? index->nbytes : 0) + item->header_nbytes;
    struct sc_index_extent extent;
    struct sc_where where;

    if (!tail && item->result_nbytes)
        return; /* what has no slot cannot be appended: the update is declined */
    SC_CHECK(sc_index_locate(index, nbytes, &extent, &where) == SC_OK, "a shard has room for its index",
             .path = item->path, .entry = UINT64_MAX, .nbytes = nbytes, .limit = index->nbytes);
    for (uint64_t i = 0; i < item->chain->n_chunks; i++) {
        struct sc_entry e = object->entries[i];

        if (sc_entry_is_absent(e))
            continue;
        check_entry(object, i, &extent);
        SC_CHECK(!is_new(object, i) || !e.nbytes || (e.offset >= first && e.offset + e.nbytes <= end),
                 "a new inner chunk lies behind the header and before the tail", .path = item->path, .entry = i,
                 .offset = e.offset, .nbytes = e.nbytes, .limit = end);
    }
    check_apart(object);
    object->mark_at = tail && tail->mark_nbytes ? tail->mark_at : 0;
}

/* ---- after ---- */

/* An object as it was stored: an open file; or the memory of the old object up to `split`, and the result behind it. */
struct stored {
    const char *path;
    int fd;
    const uint8_t *old, *bytes;
    uint64_t split, nbytes;
};

static void
load(const struct stored *stored, uint8_t *dst, size_t n, uint64_t offset)
{
    size_t done = 0;

    SC_CHECK(offset <= stored->nbytes && n <= stored->nbytes - offset, "stored bytes lie inside the object",
             .path = stored->path, .entry = UINT64_MAX, .offset = offset, .nbytes = n, .limit = stored->nbytes);
    while (done < n) {
        uint64_t at = offset + done;
        ssize_t got;

        if (stored->fd >= 0) {
            got = pread(stored->fd, dst + done, n - done, (off_t)at);
            SC_CHECK(got > 0, "written bytes can be read again", .path = stored->path, .entry = UINT64_MAX,
                     .offset = at, .nbytes = n - done, .limit = stored->nbytes);
        } else {
            bool is_old = at < stored->split;

            got = (ssize_t)(is_old ? min_u64(n - done, stored->split - at) : n - done);
            memcpy(dst + done, is_old ? stored->old + at : stored->bytes + (at - stored->split), (size_t)got);
        }
        done += (size_t)got;
    }
}

static uint32_t
sum_of(const struct stored *stored, uint64_t offset, uint64_t nbytes)
{
    uint8_t block[BLOCK_NBYTES];
    uint32_t sum = 0;

    for (uint64_t done = 0; done < nbytes;) {
        size_t n = (size_t)min_u64(nbytes - done, sizeof block);

        load(stored, block, n, offset + done);
        sum = sc_crc32c_extend(sum, block, n);
        done += n;
    }
    return sum;
}

/* The index as it is stored: at the place where readers look for it, with a right checksum, and with the entries. */
static void
check_index(const struct sc_write_object *object, const struct stored *stored)
{
    const struct sc_chain *shard = object->item->chain;
    struct sc_index_extent extent = { 0 };
    struct sc_entry *entries = sc_malloc((size_t)shard->index.pairs_nbytes);
    uint8_t *bytes = sc_malloc((size_t)shard->index.nbytes);
    struct sc_where where;

    SC_CHECK(sc_index_locate(&shard->index, stored->nbytes, &extent, &where) == SC_OK, "a stored shard has an index",
             .path = stored->path, .entry = UINT64_MAX, .nbytes = stored->nbytes, .limit = shard->index.nbytes);
    if (entries && bytes) {
        load(stored, bytes, (size_t)extent.nbytes, extent.offset);
        SC_CHECK(sc_index_verify(&shard->index, bytes, &where) == SC_OK, "the stored index has its checksum",
                 .path = stored->path, .entry = UINT64_MAX, .offset = extent.offset, .nbytes = extent.nbytes,
                 .limit = stored->nbytes);
        sc_index_load(shard, bytes, entries);
        for (uint64_t i = 0; i < shard->n_chunks; i++)
            SC_CHECK(entries[i].offset == object->entries[i].offset && entries[i].nbytes == object->entries[i].nbytes,
                     "a stored entry is the one that was written", .path = stored->path, .entry = i,
                     .offset = entries[i].offset, .nbytes = entries[i].nbytes, .limit = object->entries[i].offset);
    }
    sc_free(entries);
    sc_free(bytes);
}

/* The mark before the footer (sc_write_commit.c), as access/user_bytes.py reads it. */
static void
check_mark(const struct sc_write_object *object, const struct stored *stored)
{
    const struct sc_index_layout *index = &object->item->chain->index;
    uint8_t mark[SC_MARK_NBYTES];

    if (!object->mark_at)
        return;
    load(stored, mark, sizeof mark, object->mark_at);
    SC_CHECK(load_le64(mark + 16) == object->mark_at &&
                 load_le64(mark + 24) == stored->nbytes - (index->at_start ? 0 : index->nbytes) &&
                 load_le64(mark + 40) == object->item->footer_nbytes &&
                 load_le32(mark + 52) == sc_crc32c_extend(0, mark, 52),
             "a mark says where it is and where the footer ends, with a checksum", .path = stored->path,
             .entry = UINT64_MAX, .offset = object->mark_at, .nbytes = load_le64(mark + 24), .limit = stored->nbytes);
}

/* The old object, if its bytes are still there. */
static bool
has_old(const struct sc_write_object *object, struct stored *old)
{
    const struct sc_write_item *item = object->item;

    *old = (struct stored){
        .path = item->path, .fd = object->old_fd, .bytes = item->old.data, .nbytes = item->old.nbytes
    };
    return !in_own_file(item) && !item->onto_old && item->old_entries && (old->fd >= 0 || old->bytes);
}

static void
check_chunks(const struct sc_write_object *object, const struct stored *stored)
{
    const struct sc_write_item *item = object->item;
    struct stored old;
    bool knows_old = has_old(object, &old);

    for (uint64_t i = 0; i < item->chain->n_chunks; i++) {
        struct sc_entry e = object->entries[i];

        if (sc_entry_is_absent(e))
            continue;
        if (is_new(object, i))
            SC_CHECK(sum_of(stored, e.offset, e.nbytes) == (uint32_t)object->sums[i],
                     "a stored inner chunk has the bytes that were encoded", .path = stored->path, .entry = i,
                     .offset = e.offset, .nbytes = e.nbytes, .limit = stored->nbytes);
        else if (knows_old)
            SC_CHECK(sum_of(stored, e.offset, e.nbytes) == sum_of(&old, item->old_entries[i].offset, e.nbytes),
                     "a kept inner chunk has the bytes of the old one", .path = stored->path, .entry = i,
                     .offset = e.offset, .nbytes = e.nbytes, .limit = item->old_entries[i].offset);
    }
}

static void
check_stored(const struct sc_write_object *object, const struct stored *stored)
{
    check_index(object, stored);
    check_mark(object, stored);
    check_chunks(object, stored);
}

void
sc_write_check_file(const struct sc_write_object *object, int fd)
{
    struct stored stored = { .path = object->item->path, .fd = fd };
    struct stat st;

    if (fstat(fd, &st))
        return;
    stored.nbytes = (uint64_t)st.st_size;
    check_stored(object, &stored);
}

void
sc_write_check_memory(const struct sc_write_object *object)
{
    const struct sc_write_item *item = object->item;
    struct stored stored = { .fd = -1, .bytes = object->result.data, .nbytes = item->result_nbytes };

    if (item->onto_old) {
        stored.old = item->old.data;
        stored.split = item->data_offset;
        stored.nbytes += item->data_offset;
    }
    check_stored(object, &stored);
}

#endif
