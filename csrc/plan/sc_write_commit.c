/* sc_write_commit.c - the end of an update in the shard's own file: its tail, an append, and slots that are overwritten
 *
 * The bytes of the user lie behind the last inner chunk, and a mark describes them:
 *
 *     [inner chunks][mark][zeros][footer][index]
 *
 * The format cannot distinguish a footer from the bytes of an inner chunk that was erased, nor a header from those of
 * one that was replaced. So every write of a shard with a header, a footer or an alignment leaves a mark. So does an
 * update that leaves dead bytes, because it writes behind them or keeps their offsets (access/user_bytes.py does so for
 * new shards, and reads marks). No index refers to the bytes of the mark, so every reader skips it. The footer stays
 * the last thing before the index, where programs that know its size look for it. The zeros make a write past the page
 * cache end with a block.
 *
 *     bytes  0 to 16   "shardcodec tail" and the version, 1
 *           16 to 24   where the mark is, from the beginning of the object
 *           24 to 32   where the footer ends: the index begins, or, if it is at the start, the object ends
 *           32 to 40   size of the header
 *           40 to 48   size of the footer
 *           48 to 52   alignment of inner chunks
 *           52 to 56   CRC-32C of bytes 0 to 52
 *
 * All numbers are little-endian. A mark is valid only for the object that it was written for: if another program
 * carried it along, the footer no longer ends at the offset in the mark. The footer may hold a copy of a mark, which
 * then has another place.
 *
 * An append is one call of sc_append.h. For an update in place (sc_undo.h) the new chunks lie in memory: those that have a slot
 * in object->slots, the others in object->result, as when they are appended. Which journal guards what:
 *
 *     no slot, something to append      as strategy append: no journal
 *     slots, index as it was            the slots
 *     slots, another index              slots and old index, which is overwritten too
 *     slots, and something to append    the slots, and an old index at the start; what is appended goes with the old size
 *     neither                           the old index, where it changes: inner chunks are erased
 *
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "base/sc_alloc.h"
#include "io/sc_append.h"
#include "io/sc_undo.h"
#include "kernels/sc_crc32c.h"
#include "plan/sc_write_impl.h"

/* ---- the tail ---- */

static const char magic[16] = "shardcodec tail\001";

static void
store_mark(const struct sc_write_item *item, struct sc_tail *tail)
{
    uint8_t *p = tail->mark;

    memcpy(p, magic, sizeof magic);
    store_le64(p + 16, tail->mark_at);
    store_le64(p + 24, tail->end);
    store_le64(p + 32, item->header_nbytes);
    store_le64(p + 40, item->footer_nbytes);
    store_le32(p + 48, (uint32_t)item->alignment);
    store_le32(p + 52, sc_crc32c_extend(0, p, 52));
}

/* True if the update of a shard's own file writes behind the end of the file. */
static bool
goes_behind(const struct sc_write_object *object)
{
    const struct sc_write_item *item = object->item;

    if (item->append == SC_APPEND_NOT)
        return false;
    if (item->result_nbytes)
        return true;
    return !object->slots.n &&
           memcmp(item->old_entries, object->entries, (size_t)item->chain->n_chunks * sizeof *item->old_entries) != 0;
}

bool
sc_write_object_tail(const struct sc_write_object *object, struct sc_tail *tail)
{
    const struct sc_write_item *item = object->item;
    uint64_t behind = item->footer_nbytes + (item->chain->index.at_start ? 0 : item->chain->index.nbytes);

    if (in_own_file(item) && !goes_behind(object))
        return false;
    tail->mark_nbytes = item->marks ? SC_MARK_NBYTES : 0;
    tail->mark_at = object->at;
    tail->footer_at = object->at + tail->mark_nbytes;
    if (item->marks && in_own_file(item) && !item->chain->index.at_start)
        tail->footer_at = (tail->footer_at + behind + SC_BLOCK_NBYTES - 1) / SC_BLOCK_NBYTES * SC_BLOCK_NBYTES - behind;
    tail->end = tail->footer_at + item->footer_nbytes;
    if (tail->mark_nbytes)
        store_mark(item, tail);
    return true;
}

/* ---- append ---- */

/* True if the update changes nothing, such as erasing an inner chunk that is absent. */
static bool
changes_nothing(const struct sc_write_object *object)
{
    const struct sc_write_item *item = object->item;
    size_t nbytes = (size_t)item->chain->n_chunks * sizeof *item->old_entries;

    return !item->result_nbytes && item->old_entries && memcmp(item->old_entries, object->entries, nbytes) == 0;
}

/* Nothing is to be written. Make sure that this was decided on the shard as it is. */
static enum sc_status
check_old(struct sc_writer *writer, const struct sc_write_object *object)
{
    return sc_file_check_seen(object->old_fd, &object->old_id, true, NULL, &writer->where);
}

enum sc_status
sc_write_object_append(struct sc_writer *writer, struct sc_write_object *object, bool is_marked)
{
    struct sc_write_item *item = object->item;
    struct sc_append append = { .path = item->path,
                                .seen = &object->old_id,
                                .lent = object->lent,
                                .lent_nbytes = object->lent_nbytes,
                                .data_offset = item->data_offset,
                                .data_nbytes = item->result_nbytes - object->lent_nbytes,
                                .index = object->index.data,
                                .index_nbytes = item->chain->index.nbytes,
                                .sync = writer->run->plan->sync,
                                .is_marked = is_marked };
    enum sc_status status = SC_OK;

    if (!is_marked && changes_nothing(object))
        return check_old(writer, object);
    if (item->append == SC_APPEND_DIRECT)
        status = sc_buffer_grow(&object->result, (size_t)append.data_nbytes,
                                (size_t)sc_append_room(append.data_nbytes, append.index_nbytes));
    if (status)
        return status;
    append.data = object->result.data;
    status = sc_append(&append, item->append, &item->declined, &writer->where);
    if (SC_CHECKS && !is_marked && !status && !item->declined)
        sc_write_check_file(object, object->old_fd);
    return status;
}

/* ---- overwrite slots ---- */

static int
by_offset(const void *a, const void *b)
{
    const struct sc_undo_run *x = a, *y = b;

    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Return the runs of the slots, ascending, and with `with_index` the index at its place in the old file. */
static struct sc_undo_run *
runs_of(const struct sc_write_object *object, bool with_index, size_t *n)
{
    const struct sc_slots *slots = &object->slots;
    const struct sc_write_item *item = object->item;
    const struct sc_index_layout *index = &item->chain->index;
    const uint64_t *places = (const uint64_t *)(const void *)slots->places.data;
    const uint8_t *bytes = slots->bytes.data;
    struct sc_undo_run *runs = sc_malloc((slots->n + 1) * sizeof *runs);

    for (size_t i = 0; runs && i < slots->n; i++) {
        runs[i] = (struct sc_undo_run){ places[2 * i], places[2 * i + 1], bytes };
        bytes += places[2 * i + 1];
    }
    *n = slots->n;
    if (runs && with_index)
        runs[(*n)++] = (struct sc_undo_run){ index->at_start ? 0 : item->old.nbytes - index->nbytes, index->nbytes,
                                             object->index.data };
    if (runs)
        qsort(runs, *n, sizeof *runs, by_offset);
    return runs;
}

/* True if slots and index do not overlap. The caller guarantees this; it is checked again, because an overlap would
 * destroy data. */
static bool
are_apart(const struct sc_undo_run *runs, size_t n, uint64_t shard_nbytes)
{
    uint64_t end = 0;

    for (size_t i = 0; i < n; i++) {
        if (runs[i].offset < end || runs[i].offset > shard_nbytes || runs[i].nbytes > shard_nbytes - runs[i].offset)
            return false;
        end = runs[i].offset + runs[i].nbytes;
    }
    return true;
}

/* The journal exists: make the whole change, or return an error. */
static enum sc_status
carry_out(struct sc_writer *writer, struct sc_write_object *object, struct sc_undo_change *change, size_t n_guarded,
          bool *done)
{
    enum sc_status status = sc_undo_write(change, n_guarded, &writer->where);

    *done = false;
    for (size_t i = n_guarded; i < change->n_runs; i++)
        writer->stats.bytes_written += change->runs[i].nbytes;
    if (!status && object->item->result_nbytes)
        status = sc_write_object_append(writer, object, true);
    if (status || object->item->declined)
        return status;
    if (SC_CHECKS)
        sc_write_check_file(object, object->old_fd);
    return sc_undo_commit(change, done, &writer->where);
}

/* Overwrite runs; the first n_guarded are overwritten by the append that follows. */
static enum sc_status
overwrite(struct sc_writer *writer, struct sc_write_object *object, const struct sc_undo_run *runs, size_t n,
          size_t n_guarded)
{
    struct sc_write_item *item = object->item;
    const struct sc_write_plan *plan = writer->run->plan;
    struct sc_undo_change change = {
        .path = item->path, .seen = &object->old_id, .runs = runs, .n_runs = n, .sync = plan->sync
    };
    bool done = false;
    enum sc_status status = sc_undo_begin(&change, &item->declined, &writer->where);

    if (!status && !item->declined)
        status = carry_out(writer, object, &change, n_guarded, &done);
    if (!done)
        sc_undo_roll_back(&change);
    sc_undo_end(&change);
    return status;
}

enum sc_status
sc_write_object_overwrite(struct sc_writer *writer, struct sc_write_object *object)
{
    struct sc_write_item *item = object->item;
    const struct sc_chain *shard = item->chain;
    bool appends = item->result_nbytes > 0, changes_index, guards_index;
    size_t n, index_nbytes = (size_t)shard->n_chunks * sizeof *object->entries;
    struct sc_undo_run *runs;
    enum sc_status status = SC_OK;

    if (!object->slots.n && item->append != SC_APPEND_NOT)
        return sc_write_object_append(writer, object, false);
    if (appends && item->append == SC_APPEND_NOT) {
        item->declined = true;
        return SC_OK;
    }
    changes_index = memcmp(item->old_entries, object->entries, index_nbytes) != 0;
    if (!object->slots.n && !changes_index)
        return check_old(writer, object);
    /* an append writes the index itself: it keeps an old index at the end, and adds a new one */
    guards_index = changes_index && (!appends || shard->index.at_start);
    runs = runs_of(object, guards_index, &n);
    if (!runs)
        return SC_NO_MEMORY;
    item->declined = !are_apart(runs, n, item->old.nbytes);
    if (!item->declined)
        status = overwrite(writer, object, runs, n, appends && guards_index);
    sc_free(runs);
    return status;
}
