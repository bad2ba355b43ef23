/* sc_write_chunks.c - the inner chunks of one object: encoded by several threads, placed in their order (see sc_engine.h)
 *
 * Each thread writes one object at a time (struct sc_write_object); threads without an object help. The inner chunks are
 * encoded in *batches* of about batch_nbytes. Each batch is encoded by one thread, into memory of its own. Its place in the
 * file is known when all batches before it are encoded. So the file has the chosen order, whatever the number of threads:
 *
 *     encoded   [0][1]   [3]         a thread still encodes batch 2; batch 3 waits in the window, no thread waits
 *     placed    [0][1]               when 2 is encoded, its thread places and writes 2 and 3
 *
 * The window limits how far the encoding runs ahead, and so the memory. A thread prefers an object of its own to helping:
 * the kernel serialises writes to one file.
 *
 * Each thread does the first of these steps that is possible, again and again:
 *
 *     move     place the batches that have no gap before them, and write them
 *     write    a complete piece
 *     claim    a batch, and encode it
 *     wait     for another thread; never with a worker
 *
 * Where calls wait, the object is written in pieces (sc_write_file.c): a move then copies the batches into them, in one thread
 * at a time, and any thread writes a complete one. A thread claims a batch only if no complete piece waits for a thread, and if
 * there is memory or nothing of the object is on its way to the file. So the pieces are bounded, and the object goes on even if
 * those of other objects have all the memory.
 *
 * SPDX-License-Identifier: MIT */
#include "plan/sc_write_impl.h"

/* Claim as many of the given encoded chunks as make a batch, counted in bytes. */
static void
claim_encoded(struct sc_write_object *object, struct sc_write_batch *batch)
{
    uint64_t nbytes = 0;

    batch->first = object->next_given;
    while (batch->n < object->batch_chunks && object->next_given < object->n_given) {
        const struct sc_encoded *chunk = &object->given[object->next_given];

        if (batch->n && nbytes + chunk->nbytes > object->batch_nbytes)
            break;
        nbytes += chunk->nbytes;
        batch->positions[batch->n++] = chunk->position;
        object->next_given++;
    }
    object->all_claimed = object->next_given == object->n_given;
}

/* True if the box or selection has an element in this inner chunk of the range that is walked. */
static bool
is_touched(const struct sc_write_object *object, uint64_t position)
{
    const struct sc_chain *shard = object->item->chain;
    uint64_t c[SC_MAX_NDIM];
    struct sc_box part;
    int64_t offset;

    if (object->item->selection)
        return sc_touches_have(&object->touches, position);
    if (!object->walk.leaps)
        return true;
    sc_walk_coordinates(shard, position, c);
    return sc_walk_cut(&object->walk, shard->inner, c, &part, &offset);
}

/* Under the mutex of the object: take the positions of the next batch; n = 0: none is left. Chunks that a step skips
 * are dropped. */
static void
claim(struct sc_write_object *object, struct sc_write_batch *batch)
{
    batch->n = 0;
    if (object->item->encoded)
        claim_encoded(object, batch);
    while (!batch->n && !object->all_claimed) {
        size_t got = sc_order_next(&object->order, batch->positions, object->batch_chunks);

        object->all_claimed = got == 0;
        for (size_t i = 0; i < got; i++)
            if (is_touched(object, batch->positions[i]))
                batch->positions[batch->n++] = batch->positions[i];
    }
    batch->number = object->n_claimed;
    object->n_claimed += batch->n > 0;
}

/* True if a new chunk may take the slot of an old one. A reader with an old index reads as many bytes as that index
 * says. So a chunk of another size is allowed only if its checksum fails in such a reader. */
static bool
fits_slot(const struct sc_write_item *item, uint64_t slot_nbytes, uint64_t nbytes)
{
    if (item->in_place && sc_chain_is_checked(item->chain->inner))
        return nbytes <= slot_nbytes;
    return nbytes == slot_nbytes;
}

/* Under the mutex of the object: give each batch its place if all batches before it have one. The caller writes the
 * returned batches. */
static struct sc_write_batch *
place(struct sc_write_object *object)
{
    struct sc_write_batch *first = NULL, **link = &first, *batch;

    while ((batch = object->window[object->n_placed % SC_WRITE_WINDOW])) {
        uint64_t at = object->at, end = object->item->in_place ? object->item->old.nbytes : UINT64_MAX;

        object->window[object->n_placed % SC_WRITE_WINDOW] = NULL;
        object->n_placed++;
        for (size_t i = 0; i < batch->n; i++) {
            struct sc_entry *e = &object->entries[batch->positions[i]];

            if (batch->sizes[i] == SC_ABSENT) {
                *e = (struct sc_entry){ SC_ABSENT, SC_ABSENT };
                continue;
            }
            if (sc_entry_is_absent(*e) || !fits_slot(object->item, e->nbytes, batch->sizes[i])) {
                /* a chunk without bytes can be anywhere inside the shard, which may not grow to `at` */
                if (batch->sizes[i] && object->item->alignment)
                    at = (at + object->item->alignment - 1) / object->item->alignment * object->item->alignment;
                *e = (struct sc_entry){ batch->sizes[i] ? at : min_u64(at, end), batch->sizes[i] };
                at += batch->sizes[i];
            } /* otherwise the chunk has a slot already */
            e->nbytes = batch->sizes[i];
        }
        object->at = at;
        *link = batch;
        batch->next = NULL;
        link = &batch->next;
    }
    return first;
}

static void
note_failure(struct sc_writer *writer, struct sc_write_object *object, enum sc_status status)
{
    sc_failure_note(&writer->run->base.failure, status, &writer->where, object->item_no);
    pthread_mutex_lock(&object->shared.mutex);
    object->failed = true;
    pthread_cond_broadcast(&object->shared.changed);
    pthread_mutex_unlock(&object->shared.mutex);
}

/* Write some chunks of a batch. In pieces: *batch becomes NULL if a piece has taken the batch. */
static enum sc_status
put(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *bytes, size_t n, uint64_t offset,
    struct sc_write_batch **batch)
{
    bool is_all = n == (*batch)->used;

    if (!object->in_pieces)
        return sc_write_object_put(writer, object, bytes, n, offset);
    writer->stats.bytes_written += n;
    return sc_write_file_add(writer, object, bytes, n, offset, is_all ? batch : NULL);
}

/* Write the chunks of a placed batch; neighbours with one call. */
static enum sc_status
write_batch(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch **owned)
{
    const struct sc_write_batch *batch = *owned;
    const uint8_t *bytes = sc_write_batch_bytes(batch);
    uint64_t offset = 0;
    size_t n = 0;
    enum sc_status status = SC_OK;

    if (SC_CHECKS)
        sc_write_check_note_batch(object, batch);
    for (size_t i = 0; !status && i < batch->n; i++) {
        uint64_t to = object->entries[batch->positions[i]].offset;

        if (batch->sizes[i] == SC_ABSENT || !batch->sizes[i])
            continue;
        if (n && to != offset + n) {
            status = put(writer, object, bytes, n, offset, owned);
            bytes += n;
            n = 0;
        }
        if (!n)
            offset = to;
        n += (size_t)batch->sizes[i];
    }
    return status || !n ? status : put(writer, object, bytes, n, offset, owned);
}

/* Write placed batches. A result in memory may move when it grows, so this is done under the mutex. */
static void
write_batches(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch *batches)
{
    while (batches) {
        struct sc_write_batch *next = batches->next;
        bool memory = in_memory(object->item);
        enum sc_status status;

        if (memory)
            pthread_mutex_lock(&object->shared.mutex);
        status = write_batch(writer, object, &batches);
        if (memory)
            pthread_mutex_unlock(&object->shared.mutex);
        if (status)
            note_failure(writer, object, status);
        if (batches)
            sc_write_batch_put(writer->run, batches);
        batches = next;
    }
}

static void
give_back(struct sc_write_run *run, struct sc_write_batch *batches)
{
    while (batches) {
        struct sc_write_batch *next = batches->next;

        sc_write_batch_put(run, batches);
        batches = next;
    }
}

/* Encode a claimed batch, or leave it empty if the result does not count. */
static void
encode(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch *batch)
{
    if (sc_write_object_stopped(writer->run, object)) {
        batch->n = batch->used = 0; /* it still takes its place, or the other threads would wait for it */
        note_failure(writer, object, SC_CANCELLED);
    } else {
        sc_write_batch_encode(writer, object, batch);
    }
}

/* ---- inner chunks that are not copied ---- */

/* True if the box has whole inner chunks in a row, and they lie in the memory of the caller as they will lie in the file. *axis:
 * the one along which they follow each other. */
static bool
lie_as_stored(const struct sc_chain *inner, const struct sc_walk *walk, int *axis)
{
    uint64_t most = 1;

    *axis = 0;
    for (int a = 0; a < inner->ndim; a++) {
        uint64_t n = walk->end[a] - walk->first[a];

        if (walk->box.step[a] != 1 || walk->box.start[a] % inner->shape[a] ||
            walk->box.count[a] != n * inner->shape[a] || (n > 1 && most > 1))
            return false;
        if (n > 1)
            *axis = a;
        most = max_u64(most, n);
    }
    return sc_chain_has_layout(inner, walk->strides) &&
           (most == 1 || (uint64_t)walk->strides[*axis] * inner->shape[*axis] == inner->nbytes);
}

bool
sc_write_object_lend(struct sc_writer *writer, struct sc_write_object *object)
{
    struct sc_write_item *item = object->item;
    const struct sc_chain *shard = item->chain, *inner = shard->inner;
    const struct sc_walk *walk = &object->walk;
    uint64_t n, position;
    int axis;

    if (item->append != SC_APPEND_DIRECT || item->in_place || item->encoded || item->selection || item->alignment > 1 ||
        !writer->run->plan->rules.write_empty || !sc_chain_is_plain(inner) || inner->swap.n_fields ||
        (uintptr_t)item->src % SC_BLOCK_NBYTES || !lie_as_stored(inner, walk, &axis))
        return false;
    n = walk->end[axis] - walk->first[axis];
    if (n * inner->nbytes % SC_BLOCK_NBYTES)
        return false;
    position = sc_walk_entry(shard, walk->first);
    for (uint64_t i = 0; i < n; i++, position += shard->grid_strides[axis]) {
        object->entries[position] = (struct sc_entry){ object->at, inner->nbytes };
        if (SC_CHECKS)
            sc_write_check_note(object, position, item->src + i * inner->nbytes, inner->nbytes);
        object->at += inner->nbytes;
    }
    object->lent = item->src;
    object->lent_nbytes = item->result_nbytes = n * inner->nbytes;
    writer->stats.chunks_encoded += n;
    writer->stats.bytes_written += object->lent_nbytes;
    return true;
}

/* ---- steps ---- */

enum step { LEAVE, WAIT, MOVE, WRITE, CLAIM };

/* Under the mutex of the object: what a thread does next. */
static enum step
next_step(const struct sc_write_run *run, const struct sc_write_object *object)
{
    uint64_t n_unplaced = object->n_claimed - object->n_placed;

    if (!object->is_moving && object->window[object->n_placed % SC_WRITE_WINDOW])
        return MOVE; /* also after a failure: the batches are given back */
    if (object->failed)
        return LEAVE;
    if (object->pieces.first)
        return WRITE;
    if (object->all_claimed && (!object->in_pieces || (!n_unplaced && !object->is_moving)))
        return LEAVE; /* each thread writes what it has placed, so without pieces nothing is left for another one */
    if (object->all_claimed || n_unplaced >= SC_WRITE_WINDOW)
        return WAIT;
    return object->pieces.n_writing && sc_write_pieces_full(run) ? WAIT : CLAIM;
}

/* Under the mutex, after each step that may be the last one: if nothing is left to do, wake all waiting threads. */
static void
release_if_done(const struct sc_write_run *run, struct sc_write_object *object)
{
    if (next_step(run, object) == LEAVE)
        pthread_cond_broadcast(&object->shared.changed);
}

/* Under the mutex, which is released meanwhile: place the batches that have no gap before them, and write them, or copy them into
 * pieces. Only one thread at a time fills pieces. */
static void
move(struct sc_writer *writer, struct sc_write_object *object)
{
    struct sc_write_batch *placed;

    sc_seat_end_work(&writer->seat); /* the first bytes begin the file, which waits */
    object->is_moving = object->in_pieces;
    while ((placed = place(object))) {
        bool failed = object->failed;

        pthread_cond_broadcast(&object->shared.changed); /* the window has room */
        pthread_mutex_unlock(&object->shared.mutex);
        if (failed)
            give_back(writer->run, placed);
        else
            write_batches(writer, object, placed);
        pthread_mutex_lock(&object->shared.mutex);
    }
    object->is_moving = false;
    release_if_done(writer->run, object);
}

/* Encode a claimed batch, and move it if it is the next one. */
static void
add(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch *batch)
{
    encode(writer, object, batch);
    pthread_mutex_lock(&object->shared.mutex);
    object->window[batch->number % SC_WRITE_WINDOW] = batch;
    if (next_step(writer->run, object) == MOVE)
        move(writer, object);
    pthread_mutex_unlock(&object->shared.mutex);
}

/* Under the mutex: claim a batch. NULL: there is none, or no memory. */
static struct sc_write_batch *
claim_next(struct sc_write_run *run, struct sc_write_object *object, enum sc_status *status)
{
    struct sc_write_batch *batch = sc_write_batch_take(run);

    *status = batch ? SC_OK : SC_NO_MEMORY;
    if (!batch)
        return NULL;
    claim(object, batch);
    if (batch->n)
        return batch;
    sc_write_batch_put(run, batch);
    return NULL;
}

static void
write_piece(struct sc_writer *writer, struct sc_write_object *object, struct sc_piece *piece)
{
    enum sc_status status = sc_write_object_stopped(writer->run, object) ? SC_CANCELLED : SC_OK;

    sc_seat_end_work(&writer->seat);
    status = sc_write_file_piece(writer, object, piece, status);
    if (status)
        note_failure(writer, object, status);
}

bool
sc_write_object_work(struct sc_writer *writer, struct sc_write_object *object)
{
    struct sc_write_batch *batch = NULL;
    struct sc_piece *piece = NULL;
    enum sc_status status = SC_OK;
    enum step step;

    sc_where_clear(&writer->where);
    pthread_mutex_lock(&object->shared.mutex);
    while ((step = next_step(writer->run, object)) == WAIT) {
        sc_seat_end_work(&writer->seat); /* another thread may need the worker for the batch that is waited for */
        pthread_cond_wait(&object->shared.changed, &object->shared.mutex);
    }
    if (step == MOVE)
        move(writer, object);
    else if (step == WRITE)
        piece = sc_write_file_take(object);
    else if (step == CLAIM)
        batch = claim_next(writer->run, object, &status);
    if (step == WRITE || step == CLAIM)
        release_if_done(writer->run, object);
    pthread_mutex_unlock(&object->shared.mutex);

    if (piece)
        write_piece(writer, object, piece);
    else if (batch)
        add(writer, object, batch);
    else if (status)
        note_failure(writer, object, status);
    return step != LEAVE;
}

bool
sc_write_object_wants_help(const struct sc_write_run *run, const struct sc_write_object *object, bool later)
{
    enum step step = object->shared.is_open ? next_step(run, object) : LEAVE;

    return step != LEAVE && (later || step != WAIT);
}
