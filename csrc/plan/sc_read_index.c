/* sc_read_index.c - the index of a shard that is read: all of it for the cache, or the part that a selection needs
 *
 * The checksum of the index is verified here. If inner chunks have checksums, an entry is checked when it is used. If they
 * have none, all entries are checked here (sc_index_must_be_sound()).
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_crc32c.h"
#include "plan/sc_read_impl.h"

/* Of a larger index only the window that a plan needs is held in memory. A block of it fits the cache of the
 * processor. */
#define INDEX_BLOCK_NBYTES ((size_t)256 << 10)

/* Return the words [*first, *end) of an index in C order that hold the pairs which the box or selection can touch. */
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

/* True if all entries must be valid before one of them is used. */
static bool
checks_all(const struct sc_reader *reader, const struct sc_read_object *object)
{
    return !reader->run->plan->allow_in_index && sc_index_must_be_sound(chain_of(object));
}

/* Check the pairs of one block. A bad pair is reported after the whole index was read, because a wrong checksum has
 * precedence. */
static void
check_block(const struct sc_reader *reader, const struct sc_read_object *object, const uint8_t *bytes, uint64_t at,
            uint64_t n, enum sc_status *found, struct sc_where *where)
{
    if (*found || !checks_all(reader, object))
        return;
    *found = sc_index_check_pairs(bytes, n / 16, chain_of(object)->index.big_endian, &object->input.extent, where);
    where->entry += at / 16;
}

/* In a deep run wait until n more bytes are within the bound. Bytes of a whole shard are counted already, and a thread that
 * holds room, or a worker, must not wait for more. */
static void
enter(struct sc_reader *reader, const struct sc_read_object *object, uint64_t n)
{
    if (SC_UNLIKELY(!reader->seat.worker) && !reader->room && object->input.fd >= 0 && !object->input.whole)
        enter_room(reader, n);
}

/* Enter before the cache lets this thread load the index: other threads, which may hold room, wait for one that loads. */
static void
enter_for_cache(struct sc_reader *reader, const struct sc_read_object *object)
{
    const struct sc_chain *shard = chain_of(object);
    struct sc_cache *cache = reader->run->plan->cache;
    const char *name = object->item->source.path;

    if (SC_UNLIKELY(!reader->seat.worker) && cache && name && sc_cache_wants(cache, name, shard))
        enter(reader, object, shard->index.in_c_order ? shard->index.nbytes : 2 * shard->index.nbytes);
}

/* Return how many bytes of an index are read at a time: whole pairs, because each block is checked alone. */
static uint64_t
block_nbytes(const struct sc_reader *reader, const struct sc_read_object *object)
{
    uint64_t worth = min_u64(sc_depth_worth(object->latency_ns), reader->run->plan->io.max_nbytes);

    return min_u64(max_u64(INDEX_BLOCK_NBYTES, worth / 16 * 16), chain_of(object)->index.pairs_nbytes);
}

/* Return the buffer for bytes of the index: in a deep run the one that has room. */
static struct sc_buffer *
buffer_of(struct sc_reader *reader, struct sc_read_object *object)
{
    return SC_LIKELY(reader->seat.worker != NULL) ? &object->index : reader->seat.io;
}

/* Find memory for a window, which is not empty, and for a block: in a deep run in one buffer. */
static enum sc_status
find_memory(struct sc_reader *reader, struct sc_read_object *object, uint64_t n_window, uint64_t n_block,
            uint8_t **window, uint8_t **block)
{
    struct sc_buffer *buffer = buffer_of(reader, object);
    uint64_t n_shared = buffer == reader->seat.io ? n_window : 0;
    enum sc_status status = sc_buffer_reserve(buffer, (size_t)(n_window + (n_shared ? n_block : 0)));

    if (!status && !n_shared)
        status = sc_buffer_reserve(reader->seat.io, (size_t)n_block);
    if (status)
        return status;
    *window = buffer->data;
    *block = reader->seat.io->data + n_shared;
    return SC_OK;
}

/* Read an index in blocks, verify its one checksum, and keep only the window. */
static enum sc_status
stream_index(struct sc_reader *reader, struct sc_read_object *object, uint64_t low, uint64_t high)
{
    const struct sc_index_layout *index = &chain_of(object)->index;
    uint64_t begin = object->input.extent.offset, most = block_nbytes(reader, object);
    enum sc_status status, found = SC_OK;
    struct sc_where bad = reader->where;
    uint8_t *window = NULL, *block;
    uint32_t crc = 0;

    status = find_memory(reader, object, high - low, most, &window, &block);
    for (uint64_t at = 0, n; !status && at < index->pairs_nbytes; at += n) {
        n = min_u64(most, index->pairs_nbytes - at);
        status = sc_input_read(&object->input, block, n, begin + at, &reader->stats, &reader->where);
        if (status)
            break;
        crc = sc_crc32c_extend(crc, block, (size_t)n);
        check_block(reader, object, block, at, n, &found, &bad);
        if (at < high && at + n > low) {
            uint64_t from = max_u64(at, low), to = min_u64(at + n, high);

            memcpy(window + (from - low), block + (from - at), (size_t)(to - from));
        }
    }
    if (!status)
        status = sc_input_read(&object->input, block, 4, begin + index->pairs_nbytes, &reader->stats, &reader->where);
    if (!status)
        status = sc_index_compare_checksum(block, crc, index->pairs_nbytes, &reader->where);
    if (!status && found) {
        reader->where = bad;
        status = found;
    }
    object->pairs = window;
    return status;
}

/* Read only the pairs of a large index that the box or selection can touch, and what its checksum needs. */
static enum sc_status
load_window(struct sc_reader *reader, struct sc_read_object *object)
{
    const struct sc_index_layout *index = &chain_of(object)->index;
    struct sc_input *input = &object->input;
    uint64_t end, n;

    index_window(object, &object->first_word, &end);
    n = 8 * (end - object->first_word);
    enter(reader, object, n + (index->n_checksums ? block_nbytes(reader, object) : 0));
    if (index->n_checksums)
        return stream_index(reader, object, 8 * object->first_word, 8 * end);
    /* checking all entries would take far longer than reading the window */
    return sc_input_fetch(input, input->extent.offset + 8 * object->first_word, n, buffer_of(reader, object),
                          &object->pairs, &reader->stats, &reader->where);
}

void
sc_read_object_drop_index(struct sc_reader *reader, struct sc_read_object *object)
{
    if (SC_LIKELY(!object->slots)) {
        sc_cached_index_release(object->input.index);
        object->input.index = NULL;
    }
    leave_room(reader);
}

enum sc_status
sc_read_object_load_index(struct sc_reader *reader, struct sc_read_object *object)
{
    const struct sc_index_layout *index = &chain_of(object)->index;
    struct sc_input *input = &object->input;
    enum sc_status status;

    enter_for_cache(reader, object);
    if (SC_UNLIKELY(object->slots != NULL))
        status = sc_read_disk_find_index(reader, object);
    else
        status = sc_input_find_index(input, reader->run->plan->cancel, buffer_of(reader, object), &reader->stats,
                                     &reader->where);
    if (status)
        return status;
    if (input->index)
        return checks_all(reader, object)
                   ? sc_cached_index_check(input->index, chain_of(object), &input->extent, &reader->where)
                   : SC_OK;
    if (index->in_c_order && index->n_checksums <= 1 && input->fd >= 0 && !input->whole &&
        index->nbytes > INDEX_BLOCK_NBYTES)
        return load_window(reader, object);
    enter(reader, object, index->nbytes);
    object->first_word = 0;
    status = sc_input_fetch(input, input->extent.offset, index->nbytes, buffer_of(reader, object), &object->pairs,
                            &reader->stats, &reader->where);
    if (!status)
        status = sc_index_verify(index, object->pairs, &reader->where);
    if (!status && checks_all(reader, object))
        status = sc_index_check_stored(chain_of(object), object->pairs, &input->extent, &reader->where);
    return status;
}

/* ---- indexes by themselves ---- */

/* Sizes are checked too, because a carried chunk is never decoded. A replaced entry may be invalid. But an update
 * must not turn a shard that readers refuse into one that they accept. */
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
fetch_stored(const struct sc_input *input, struct sc_entry *entries, struct sc_buffer *scratch, const uint8_t **stored,
             struct sc_stats *stats, struct sc_where *where)
{
    const struct sc_index_layout *index = &input->chain->index;

    if (input->fd < 0 || !index->in_c_order)
        return sc_input_fetch(input, input->extent.offset, index->nbytes, scratch, stored, stats, where);
    *stored = (const uint8_t *)entries;
    return sc_input_read(input, (uint8_t *)entries, index->nbytes, input->extent.offset, stats, where);
}

enum sc_status
sc_read_index(const struct sc_chain *shard, const struct sc_source *source, bool allow_in_index,
              const uint8_t *replaced, struct sc_entry *entries, uint64_t *shard_nbytes, uint64_t *n_bad,
              struct sc_opened *file, struct sc_where *where)
{
    struct sc_buffer scratch = { 0 };
    struct sc_stats uncounted = { 0 };
    struct sc_input input;
    enum sc_status status;
    const uint8_t *stored;
    uint64_t bad = 0;

    sc_where_clear(where);
    status = sc_input_open(&input, shard, source, NULL, false, &uncounted, where);
    *shard_nbytes = input.missing ? SC_ABSENT : input.nbytes;
    if (!status && !input.missing) {
        status = sc_index_locate(&shard->index, input.nbytes, &input.extent, where);
        if (!status)
            status = fetch_stored(&input, entries, &scratch, &stored, &uncounted, where);
        if (!status)
            status = sc_index_verify(&shard->index, stored, where);
        if (!status) {
            sc_index_load(shard, stored, entries);
            status = check_entries(shard, &input.extent, allow_in_index, replaced, entries, &bad, where);
        }
    }
    sc_input_close(&input);
    sc_buffer_free(&scratch);
    if (file)
        *file = input.file;
    if (n_bad)
        *n_bad = bad;
    return status;
}
