/* sc_read_index.c - the index of a shard that is read: all of it for the cache, or the part that a selection needs
 *
 * The checksum of the index is verified here. If inner chunks have checksums, an entry is checked when it is used. If they
 * have none, all entries are checked here (sc_index_must_be_sound()).
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_crc32c.h"
#include "io/sc_file.h"
#include "plan/sc_read_impl.h"

/* Indexes above this are not held whole when one small window of them is wanted; blocks of it stay in the cache. */
#define INDEX_BLOCK_NBYTES ((size_t)256 << 10)

/* The pairs that the box or selection can touch lie in words [*first, *end) of an index in C order. */
static void
index_window(const struct sc_read_object *object, uint64_t *first, uint64_t *end)
{
    const struct sc_chain *shard = chain_of(object);
    uint64_t low = 0, high = 0;

    for (int a = 0; !object->item->selection && a < shard->ndim; a++) {
        low += object->walk.first[a] * shard->grid_strides[a];
        high += (object->walk.end[a] - 1) * shard->grid_strides[a];
    }
    if (object->item->selection) {
        low = object->touches.chunks[0].entry;
        high = object->touches.chunks[object->touches.n - 1].entry;
    }
    *first = 2 * low;
    *end = 2 * (high + 1);
}

/* True if all entries must be right before one of them is used. */
static bool
checks_all(const struct sc_reader *reader, const struct sc_read_object *object)
{
    return !reader->run->plan->allow_in_index && sc_index_must_be_sound(chain_of(object));
}

/* Check the pairs of one block. A bad pair is reported after the whole index was read: a wrong checksum counts more. */
static void
check_block(const struct sc_reader *reader, const struct sc_read_object *object, const uint8_t *bytes, uint64_t at,
            uint64_t n, enum sc_status *found, struct sc_where *where)
{
    if (*found || !checks_all(reader, object))
        return;
    *found = sc_index_check_pairs(bytes, n / 16, chain_of(object)->index.big_endian, &object->extent, where);
    where->entry += at / 16;
}

/* Read an index in blocks, checking its one checksum on the way, and keep only the window. */
static enum sc_status
stream_index(struct sc_reader *reader, struct sc_read_object *object, uint64_t first, uint64_t end)
{
    const struct sc_index_layout *index = &chain_of(object)->index;
    uint64_t low = 8 * first, high = 8 * end;
    struct sc_buffer *block = &reader->worker->io;
    enum sc_status status = sc_buffer_reserve(&object->index, (size_t)(high - low));
    enum sc_status found = SC_OK;
    struct sc_where bad = reader->where;
    const uint8_t *bytes;
    uint32_t crc = 0;

    for (uint64_t at = 0, n; !status && at < index->pairs_nbytes; at += n) {
        n = min_u64(INDEX_BLOCK_NBYTES, index->pairs_nbytes - at);
        status = sc_read_object_fetch(reader, object, object->extent.offset + at, n, block, &bytes);
        if (status)
            break;
        crc = sc_crc32c_extend(crc, bytes, (size_t)n);
        check_block(reader, object, bytes, at, n, &found, &bad);
        if (at < high && at + n > low) {
            uint64_t from = max_u64(at, low), to = min_u64(at + n, high);

            memcpy(object->index.data + (from - low), bytes + (from - at), (size_t)(to - from));
        }
    }
    if (!status)
        status = sc_read_object_fetch(reader, object, object->extent.offset + index->pairs_nbytes, 4, block, &bytes);
    if (!status && load_le32(bytes) != crc) {
        reader->where.expected = load_le32(bytes);
        reader->where.actual = crc;
        reader->where.nbytes = index->pairs_nbytes;
        reader->where.in_index = true;
        status = SC_INDEX_CHECKSUM;
    } else if (!status && found) {
        reader->where = bad;
        status = found;
    }
    object->pairs = object->index.data;
    object->first_word = first;
    return status;
}

/* Read and decode the index for all readers. It is kept even if entries are wrong: allow_in_index readers accept that. */
static enum sc_status
load_for_cache(struct sc_reader *reader, struct sc_read_object *object)
{
    const struct sc_chain *shard = chain_of(object);
    struct sc_cached_index *index = sc_cached_index_new(shard);
    enum sc_status status = index ? SC_OK : SC_NO_MEMORY;
    uint8_t *to = index ? sc_cached_index_stored(index, shard) : NULL;
    const uint8_t *stored = to;

    if (!status && to)
        status = sc_read_object_read(reader, object, to, shard->index.nbytes, object->extent.offset);
    else if (!status)
        status =
            sc_read_object_fetch(reader, object, object->extent.offset, shard->index.nbytes, &object->index, &stored);
    if (!status)
        status = sc_index_verify(&shard->index, stored, &reader->where);
    if (!status)
        sc_cached_index_fill(index, shard, stored, &object->extent);
    sc_cache_loaded(cache_of(reader), object->item->source.path, &object->file.id, shard, status ? NULL : index);
    if (status)
        sc_cached_index_release(index);
    else
        object->known = index;
    return status;
}

enum sc_status
sc_read_object_load_index(struct sc_reader *reader, struct sc_read_object *object)
{
    const struct sc_index_layout *index = &chain_of(object)->index;
    enum sc_status status = sc_index_locate(index, object->nbytes, &object->extent, &reader->where);
    enum sc_cache_answer answer = SC_CACHE_PASS;
    uint64_t first, end;

    if (status)
        return status;
    if (cache_of(reader) && object->fd >= 0 && !object->item->source.is_open &&
        !object->undo.path) { /* the cache goes by names */
        answer = sc_cache_get(cache_of(reader), object->item->source.path, &object->file.id, chain_of(object),
                              reader->run->plan->cancel, &object->known);
        *(answer == SC_CACHE_HIT ? &reader->stats.index_hits : &reader->stats.index_misses) += 1;
        if (answer == SC_CACHE_LOAD)
            status = load_for_cache(reader, object);
        if (!status && object->known && checks_all(reader, object))
            status = sc_cached_index_check(object->known, chain_of(object), &object->extent, &reader->where);
        if (answer != SC_CACHE_PASS)
            return status;
    }
    if (index->in_c_order && index->n_checksums <= 1 && object->fd >= 0 && index->nbytes > INDEX_BLOCK_NBYTES) {
        index_window(object, &first, &end);
        if (index->n_checksums)
            return stream_index(reader, object, first, end);
        object->first_word = first; /* to check all entries takes far longer than to read the window alone */
        return sc_read_object_fetch(reader, object, object->extent.offset + 8 * first, 8 * (end - first),
                                    &object->index, &object->pairs);
    }
    object->first_word = 0;
    status = sc_read_object_fetch(reader, object, object->extent.offset, index->nbytes, &object->index, &object->pairs);
    if (!status)
        status = sc_index_verify(index, object->pairs, &reader->where);
    if (!status && checks_all(reader, object))
        status = sc_index_check_stored(chain_of(object), object->pairs, &object->extent, &reader->where);
    return status;
}

/* ---- indexes by themselves ---- */

/* Lengths are checked too, because a chunk that is carried over is never decoded. A replaced entry may be damaged. But an
 * update must not turn a shard that readers refuse into one that they accept. */
static enum sc_status
check_entries(const struct sc_chain *shard, const struct sc_index_extent *extent, bool allow_in_index,
              const uint8_t *replaced, struct sc_entry *entries, uint64_t *n_bad, struct sc_where *where)
{
    bool forgives = allow_in_index || !sc_index_must_be_sound(shard);
    uint64_t least, most;

    sc_chain_nbytes_limits(shard->inner, &least, &most);
    for (uint64_t i = 0; i < shard->n_chunks; i++) {
        enum sc_status status;
        bool is_outside;

        if (sc_entry_is_absent(entries[i]))
            continue;
        status = sc_entry_check(entries[i], extent, allow_in_index, where);
        is_outside = status != SC_OK;
        if (!status && (entries[i].nbytes < least || entries[i].nbytes > most))
            status = sc_chain_check_nbytes(shard->inner, entries[i].nbytes, where);
        if (!status)
            continue;
        if (!replaced || !replaced[i] || (is_outside && !forgives)) {
            where->entry = i;
            return status;
        }
        entries[i] = (struct sc_entry){ SC_ABSENT, SC_ABSENT };
        (*n_bad)++;
        sc_where_clear(where);
    }
    return SC_OK;
}

/* Read a stored index, straight into `entries` if it is stored in that order. */
static enum sc_status
fetch_stored(struct sc_reader *reader, struct sc_read_object *object, uint64_t offset, struct sc_entry *entries,
             const uint8_t **stored)
{
    const struct sc_index_layout *index = &chain_of(object)->index;

    if (object->fd < 0 || !index->in_c_order)
        return sc_read_object_fetch(reader, object, offset, index->nbytes, &object->index, stored);
    *stored = (const uint8_t *)entries;
    return sc_read_object_read(reader, object, (uint8_t *)entries, index->nbytes, offset);
}

enum sc_status
sc_read_index(const struct sc_chain *shard, const struct sc_source *source, bool allow_in_index,
              const uint8_t *replaced, struct sc_entry *entries, uint64_t *shard_nbytes, uint64_t *n_bad,
              struct sc_where *where)
{
    struct sc_read_item item = { .chain = shard, .source = *source };
    struct sc_index_extent extent;
    struct sc_read_object object = { .item = &item, .fd = -1 };
    struct sc_reader reader = { 0 };
    enum sc_status status;
    const uint8_t *stored;
    uint64_t bad = 0;

    sc_where_clear(&reader.where);
    status = sc_read_object_open(&reader, &object);
    *shard_nbytes = item.missing ? SC_ABSENT : object.nbytes;
    if (!status && !item.missing) {
        status = sc_index_locate(&shard->index, object.nbytes, &extent, &reader.where);
        if (!status)
            status = fetch_stored(&reader, &object, extent.offset, entries, &stored);
        if (!status)
            status = sc_index_verify(&shard->index, stored, &reader.where);
        if (!status) {
            sc_index_load(shard, stored, entries);
            status = check_entries(shard, &extent, allow_in_index, replaced, entries, &bad, &reader.where);
        }
    }
    sc_read_object_close(&reader, &object);
    sc_buffer_free(&object.index);
    if (n_bad)
        *n_bad = bad;
    *where = reader.where;
    return status;
}
