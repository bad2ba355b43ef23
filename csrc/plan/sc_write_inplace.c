/* sc_write_inplace.c - the end of an update that overwrites inner chunks where they are (see sc_undo.h)
 *
 * New chunks lie in memory: those that have a slot in object->slots, the others in object->result, as when they are appended.
 * Which journal guards what:
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
#include "io/sc_undo.h"
#include "plan/sc_write_impl.h"

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
    return sc_undo_commit(change, done, &writer->where);
}

/* Overwrite runs; the first n_guarded are overwritten by the append that follows. */
static enum sc_status
overwrite(struct sc_writer *writer, struct sc_write_object *object, const struct sc_undo_run *runs, size_t n,
          size_t n_guarded)
{
    struct sc_write_item *item = object->item;
    const struct sc_write_plan *plan = writer->run->plan;
    struct sc_undo_change change = { .path = item->path,
                                     .old_fd = object->old_fd,
                                     .nbytes = item->old.nbytes,
                                     .runs = runs,
                                     .n_runs = n,
                                     .sync = plan->sync };
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
        return SC_OK;
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
