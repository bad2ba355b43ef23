/* sc_write_batch.c - encode some inner chunks into memory (see sc_engine.h)
 *
 * An inner chunk that the box covers completely is encoded straight from the array of the caller. For one that it
 * covers in part, the old content is decoded first (or the fill value taken), and the box laid over it.
 *
 * SPDX-License-Identifier: MIT */

#include "plan/sc_write_impl.h"

#include "base/sc_alloc.h"

void
sc_write_batch_free(struct sc_write_batch *batch)
{
    sc_buffer_free(&batch->bytes);
    sc_free(batch->positions);
    sc_free(batch->sizes);
    sc_free(batch);
}

struct sc_write_batch *
sc_write_batch_take(struct sc_write_run *run)
{
    struct sc_write_batch *batch;

    pthread_mutex_lock(&run->base.mutex);
    batch = run->free_batches;
    if (batch)
        run->free_batches = batch->next;
    pthread_mutex_unlock(&run->base.mutex);
    if (batch)
        return batch;
    batch = sc_calloc(1, sizeof *batch);
    if (!batch)
        return NULL;
    batch->positions = sc_malloc(run->batch_capacity * sizeof *batch->positions);
    batch->sizes = sc_malloc(run->batch_capacity * sizeof *batch->sizes);
    if (!batch->positions || !batch->sizes) {
        sc_write_batch_free(batch);
        return NULL;
    }
    return batch;
}

void
sc_write_batch_put(struct sc_write_run *run, struct sc_write_batch *batch)
{
    pthread_mutex_lock(&run->base.mutex);
    batch->next = run->free_batches;
    run->free_batches = batch;
    pthread_mutex_unlock(&run->base.mutex);
}

/* ---- one chunk ---- */

static void
whole_box(const struct sc_chain *chain, struct sc_box *box)
{
    for (int a = 0; a < chain->ndim; a++) {
        box->start[a] = 0;
        box->count[a] = chain->shape[a];
        box->step[a] = 1;
    }
}

/* The part of a chunk that comes from the caller's array: a box or a selection. */
struct given {
    const struct sc_chunk_selection *at; /* NULL: the box */
    struct sc_box box;
    const uint8_t *src;
    const int64_t *strides; /* of the array, by axis of the chunk */
    int64_t selection_strides[SC_MAX_NDIM];
    bool spares_old; /* a damaged old chunk counts as absent: what is not given lies outside of the array */
};

/* True if a chunk is given whole, so its old content is not needed. A selection of several parts never counts as
 * whole. */
static bool
is_whole(const struct given *given, const struct sc_chain *chain)
{
    return !given->at && sc_box_is_whole(chain, given->box.count);
}

/* True if all elements of a chunk at grid coordinates c (NULL: the object is one chunk) that lie within the array are
 * given. Of several parts only the caller knows, whose `inside` then has no elements. */
static bool
gives_inside(const struct given *given, const struct sc_write_item *item, const struct sc_chain *chain,
             const uint64_t *c)
{
    if (!item->has_inside)
        return false;
    for (int a = 0; a < chain->ndim; a++) {
        uint64_t inside = item->inside[c ? item->chain->perm[a] : a], begin = c ? c[a] * chain->shape[a] : 0;

        if (inside <= begin)
            continue;
        if (given->at || given->box.start[a] > 0 || (given->box.step[a] > 1 && inside - begin > 1))
            return false;
        if (given->box.count[a] < chain->shape[a] && given->box.count[a] < inside - begin)
            return false;
    }
    return true;
}

static void
give_selected(struct given *given, const struct sc_chunk_selection *at, const uint8_t *src)
{
    int64_t offset;
    bool is_box = sc_selection_is_box(at, &given->box, given->selection_strides, &offset);

    given->at = is_box ? NULL : at;
    given->src = is_box ? src + offset : src;
    given->strides = given->selection_strides;
}

/* True if a failure shows damage of an old chunk that is not needed; then forget it. */
static bool
is_spared(struct sc_writer *writer, const struct given *given, enum sc_status *status)
{
    if (!*status || !given->spares_old || !sc_status_is_damage(*status))
        return false;
    sc_where_clear(&writer->where);
    *status = SC_OK;
    return true;
}

/* Lay the given elements over the old content of the chunk, or over the fill value. The new chunk is in
 * worker->merge, in C order. */
static enum sc_status
merge_chunk(struct sc_writer *writer, const struct sc_chain *chain, unsigned level, const uint8_t *old,
            uint64_t old_nbytes, const struct given *given)
{
    struct sc_buffer *merge = &writer->seat.worker->merge;
    int64_t part_strides[SC_MAX_NDIM], first = 0;
    enum sc_status status = sc_buffer_reserve(merge, (size_t)chain->nbytes);
    struct sc_view view = { .data = merge->data };
    struct sc_box whole;
    struct sc_copy copy;

    if (status)
        return status;
    sc_chain_c_strides(chain, chain->shape, view.strides);
    whole_box(chain, &whole);
    if (old)
        status = sc_chain_decode(chain, writer->seat.worker, level, old, (size_t)old_nbytes, &whole, merge->data,
                                 view.strides, &writer->where);
    if (is_spared(writer, given, &status))
        old = NULL;
    if (!old)
        sc_chain_fill(chain, whole.count, merge->data, view.strides);
    if (status)
        return status;
    if (given->at) {
        sc_selection_move(given->at, &view, (uint8_t *)(uintptr_t)given->src, true);
        return SC_OK;
    }
    for (int a = 0; a < chain->ndim; a++) {
        first += (int64_t)given->box.start[a] * view.strides[a];
        part_strides[a] = view.strides[a] * given->box.step[a];
    }
    sc_copy_prepare(&copy, chain->ndim, given->box.count, part_strides, given->strides, chain->itemsize, NULL);
    sc_copy_run(&copy, merge->data + first, given->src);
    return SC_OK;
}

/* Return the old encoded bytes of a range of the object: in memory, or read into writer->seat.io. */
static enum sc_status
fetch_old(struct sc_writer *writer, const struct sc_write_object *object, uint64_t offset, uint64_t nbytes,
          const uint8_t **bytes)
{
    enum sc_status status;

    if (object->old_fd < 0) {
        *bytes = object->item->old.data + offset;
        return SC_OK;
    }
    sc_seat_end_work(&writer->seat);
    status = sc_buffer_reserve(writer->seat.io, (size_t)nbytes);
    if (status)
        return status;
    *bytes = writer->seat.io->data;
    writer->stats.reads++;
    writer->stats.bytes_read += nbytes;
    return sc_file_read_exactly(object->old_fd, writer->seat.io->data, (size_t)nbytes, offset, &writer->where);
}

/* Encode a chunk and append it to the batch. Elements that are not given come from the old bytes, if there are any. */
static enum sc_status
encode_chunk(struct sc_writer *writer, struct sc_write_batch *batch, const struct sc_chain *chain, unsigned level,
             const struct given *given, const uint8_t *old, uint64_t old_nbytes, uint64_t *nbytes)
{
    size_t bound = sc_chain_bound(chain);
    const int64_t *src_strides = given->strides;
    const uint8_t *src = given->src;
    int64_t strides[SC_MAX_NDIM];
    enum sc_status status;

    if (!bound)
        return sc_chain_too_large(chain, &writer->where);
    status = sc_seat_begin_work(&writer->seat);
    if (status)
        return status;
    if (!is_whole(given, chain)) {
        status = merge_chunk(writer, chain, level, old, old_nbytes, given);
        if (status)
            return status;
        src = writer->seat.worker->merge.data;
        sc_chain_c_strides(chain, chain->shape, strides);
        src_strides = strides;
    }
    status = sc_buffer_extend(&batch->bytes, batch->used, bound);
    if (status)
        return status;
    status = sc_chain_encode(chain, writer->seat.worker, level, src, src_strides, &writer->run->plan->rules,
                             batch->bytes.data + batch->used, bound, nbytes, &writer->where);
    if (!status && *nbytes != SC_ABSENT)
        batch->used += (size_t)*nbytes;
    writer->stats.chunks_encoded++;
    return status;
}

static enum sc_status
encode_inner(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch *batch, size_t i)
{
    const struct sc_chain *shard = object->item->chain;
    const struct sc_entry *old_entries = object->item->old_entries;
    uint64_t position = batch->positions[i], c[SC_MAX_NDIM], old_nbytes = 0;
    const struct sc_write_item *item = object->item;
    struct given given;
    const uint8_t *old = NULL;
    enum sc_status status;
    struct sc_chunk_selection at;
    int64_t offset;

    sc_walk_coordinates(shard, position, c);
    if (item->selection) {
        sc_selection_in_entry(&at, item->selection, shard, &object->touches, position);
        give_selected(&given, &at, item->src);
    } else {
        sc_walk_cut(&object->walk, shard->inner, c, &given.box, &offset);
        given.src = item->src + offset;
        given.strides = object->walk.strides;
        given.at = NULL;
    }
    given.spares_old = gives_inside(&given, item, shard->inner, c);
    if (old_entries && !sc_entry_is_absent(old_entries[position]) && !is_whole(&given, shard->inner)) {
        old_nbytes = old_entries[position].nbytes;
        status = sc_chain_check_nbytes(shard->inner, old_nbytes, &writer->where);
        if (!status)
            status = fetch_old(writer, object, old_entries[position].offset, old_nbytes, &old);
        if (is_spared(writer, &given, &status))
            old = NULL;
        if (status)
            return status;
    }
    return encode_chunk(writer, batch, shard->inner, 1, &given, old, old_nbytes, &batch->sizes[i]);
}

/* Copy the given encoded chunks side by side, so that neighbours are written at once. A single one is not copied. */
static enum sc_status
take_encoded(const struct sc_write_object *object, struct sc_write_batch *batch)
{
    const struct sc_encoded *chunks = object->given + batch->first;
    uint64_t nbytes = 0;

    for (size_t i = 0; i < batch->n; i++) {
        batch->sizes[i] = chunks[i].nbytes;
        nbytes += chunks[i].nbytes;
    }
    if (batch->n == 1) {
        batch->lent = chunks[0].bytes;
        batch->used = (size_t)nbytes;
        return nbytes > PTRDIFF_MAX ? SC_NO_MEMORY : SC_OK;
    }
    if (nbytes > PTRDIFF_MAX || sc_buffer_reserve(&batch->bytes, (size_t)nbytes))
        return SC_NO_MEMORY;
    for (size_t i = 0; i < batch->n; i++) {
        if (!chunks[i].nbytes)
            continue;
        memcpy(batch->bytes.data + batch->used, chunks[i].bytes, (size_t)chunks[i].nbytes);
        batch->used += (size_t)chunks[i].nbytes;
    }
    return SC_OK;
}

void
sc_write_batch_encode(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch *batch)
{
    struct sc_failure *failure = &writer->run->base.failure;

    batch->used = 0;
    batch->lent = NULL;
    if (object->item->encoded) {
        enum sc_status status = take_encoded(object, batch);

        if (status) {
            batch->n = 0;
            sc_failure_note(failure, status, &writer->where, object->item_no);
        }
        return;
    }
    for (size_t i = 0; i < batch->n; i++) {
        enum sc_status status;

        batch->sizes[i] = SC_ABSENT;
        if (sc_failure_decides(failure, object->item_no, batch->positions[i]))
            continue;
        status = encode_inner(writer, object, batch, i);
        if (status) {
            batch->sizes[i] = SC_ABSENT;
            writer->where.entry = batch->positions[i];
            sc_failure_note(failure, status, &writer->where, object->item_no);
            sc_where_clear(&writer->where);
        }
    }
    sc_seat_end_work(&writer->seat);
}

enum sc_status
sc_write_batch_encode_whole(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch *batch,
                            uint64_t *nbytes)
{
    const struct sc_write_item *item = object->item;
    const struct sc_chain *chain = item->chain;
    bool has_old = object->old_fd >= 0 || item->old.data;
    uint64_t old_nbytes = item->old.nbytes;
    struct given given = { .box = item->box, .src = item->src, .strides = writer->run->plan->src_strides };
    const uint8_t *old = NULL;
    struct sc_chunk_selection at;

    if (item->selection) {
        sc_selection_in_object(&at, item->selection, chain);
        give_selected(&given, &at, item->src);
    }
    given.spares_old = gives_inside(&given, item, chain, NULL);
    if (has_old && !is_whole(&given, chain)) {
        enum sc_status status = sc_chain_check_nbytes(chain, old_nbytes, &writer->where);

        if (!status)
            status = fetch_old(writer, object, 0, old_nbytes, &old);
        if (is_spared(writer, &given, &status))
            old = NULL;
        if (status)
            return status;
    }
    batch->used = 0;
    return encode_chunk(writer, batch, chain, 0, &given, old, old_nbytes, nbytes);
}
