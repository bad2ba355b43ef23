/* sc_write_file.c - where the bytes of one object go: to its new file, to memory, or to a list of slots (see sc_engine.h)
 *
 * A new file is begun with its first byte, and written in pieces where calls wait.
 *
 * A *piece* is the part of a file between two multiples of run->piece_nbytes. Placed bytes are copied together until they fill
 * one. The thread that does so *moves* bytes: only one at a time, in the order of their places, so a complete piece has no
 * hole. Any thread may write a complete piece, at any time, because its place is fixed:
 *
 *     batches     [  0  ][    1    ][  2  ][     3     ][  4  ]
 *     pieces      [      0      |      1      |      2      |  open
 *                     written      waits for    is being
 *                                  a thread     written
 *
 * So each thread of the run can write a piece while other threads encode. The last piece stays open, until the
 * thread of the object adds the index to it. A batch of several pieces is not copied: it becomes one piece, from the first
 * multiple to the last one in it.
 *
 * Bytes that do not follow the ones before (an index at the start, an aligned inner chunk, a slot) begin another piece.
 *
 * SPDX-License-Identifier: MIT */
#include "base/sc_alloc.h"
#include "io/sc_closer.h"
#include "io/sc_latency.h"
#include "plan/sc_write_impl.h"

/* ---- the new file ---- */

static enum sc_status
begin(struct sc_writer *writer, struct sc_write_object *object)
{
    uint64_t begin_ns;
    enum sc_status status;

    if (object->file.fd >= 0)
        return SC_OK;
    sc_closer_wait(); /* not timed, nor is the making of folders: neither shows the cost of a call */
    begin_ns = sc_clock_ns();
    status = sc_newfile_begin(&object->file, object->item->path, writer->run->plan->staging, &writer->where);
    sc_write_expect_objects(writer, &writer->run->begins, sc_clock_ns() - begin_ns - object->file.folders_ns);
    return status;
}

enum sc_status
sc_write_file_begin(struct sc_writer *writer, struct sc_write_object *object)
{
    enum sc_status status;

    if (object->in_pieces)
        return begin(writer, object); /* only one thread at a time moves bytes; the others encode meanwhile */
    pthread_mutex_lock(&object->shared.mutex);
    status = begin(writer, object);
    pthread_mutex_unlock(&object->shared.mutex);
    return status;
}

/* ---- the memory of pieces ---- */

static struct sc_piece *
new_piece(struct sc_write_run *run)
{
    struct sc_piece *piece;

    pthread_mutex_lock(&run->base.mutex);
    piece = run->free_pieces;
    if (piece)
        run->free_pieces = piece->next;
    pthread_mutex_unlock(&run->base.mutex);
    return piece ? piece : sc_calloc(1, sizeof *piece);
}

static void
give_back(struct sc_write_run *run, struct sc_piece *piece)
{
    if (piece->batch)
        sc_write_batch_put(run, piece->batch);
    piece->batch = NULL;
    atomic_fetch_sub(&run->pieces_nbytes, piece->held_nbytes);
    piece->held_nbytes = 0;
    pthread_mutex_lock(&run->base.mutex);
    piece->next = run->free_pieces;
    run->free_pieces = piece;
    pthread_mutex_unlock(&run->base.mutex);
}

void
sc_write_file_free_pieces(struct sc_write_run *run)
{
    while (run->free_pieces) {
        struct sc_piece *piece = run->free_pieces;

        run->free_pieces = piece->next;
        sc_buffer_free(&piece->memory);
        sc_free(piece);
    }
}

/* ---- bytes become pieces ---- */

/* A piece is complete: let a thread write it. */
static void
complete(struct sc_write_object *object, struct sc_piece *piece)
{
    struct sc_pieces *pieces = &object->pieces;

    piece->next = NULL;
    pthread_mutex_lock(&object->shared.mutex);
    if (!pieces->first)
        pieces->last = &pieces->first;
    *pieces->last = piece;
    pieces->last = &piece->next;
    pthread_cond_broadcast(&object->shared.changed); /* pthread_cond_signal() of glibc before 2.41 may wake no thread */
    pthread_mutex_unlock(&object->shared.mutex);
}

static void
complete_open(struct sc_write_object *object)
{
    if (object->pieces.open)
        complete(object, object->pieces.open);
    object->pieces.open = NULL;
}

/* Open a piece that begins at `offset` and ends at the next multiple. */
static enum sc_status
open_piece(struct sc_write_run *run, struct sc_write_object *object, uint64_t offset, uint64_t nbytes)
{
    struct sc_piece *piece = new_piece(run);
    enum sc_status status = piece ? sc_buffer_reserve(&piece->memory, (size_t)nbytes) : SC_NO_MEMORY;

    if (status) {
        if (piece)
            give_back(run, piece);
        return status;
    }
    piece->bytes = piece->memory.data;
    piece->n = 0;
    piece->at = offset;
    piece->held_nbytes = nbytes;
    atomic_fetch_add(&run->pieces_nbytes, nbytes);
    object->pieces.open = piece;
    return SC_OK;
}

/* Copy bytes into the open piece, and into new ones. */
static enum sc_status
copy_in(struct sc_write_run *run, struct sc_write_object *object, const uint8_t *src, size_t n, uint64_t offset)
{
    uint64_t size = atomic_load_explicit(&run->piece_nbytes, memory_order_relaxed);

    while (n) {
        uint64_t left = size - offset % size;
        size_t part = (size_t)min_u64(n, left);
        struct sc_piece *piece;
        enum sc_status status = object->pieces.open ? SC_OK : open_piece(run, object, offset, left);

        if (status)
            return status;
        piece = object->pieces.open;
        memcpy(piece->memory.data + piece->n, src, part);
        piece->n += part;
        if (part == left)
            complete_open(object);
        src += part;
        offset += part;
        n -= part;
    }
    return SC_OK;
}

/* Make a piece of the memory of a batch. */
static enum sc_status
lend(struct sc_write_run *run, const uint8_t *src, size_t n, uint64_t offset, struct sc_write_batch **batch,
     struct sc_piece **piece)
{
    *piece = new_piece(run);
    if (!*piece)
        return SC_NO_MEMORY;
    (*piece)->bytes = src;
    (*piece)->n = n;
    (*piece)->at = offset;
    (*piece)->batch = *batch;
    *batch = NULL;
    return SC_OK;
}

enum sc_status
sc_write_file_add(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src, size_t n,
                  uint64_t offset, struct sc_write_batch **batch)
{
    struct sc_write_run *run = writer->run;
    const struct sc_piece *open = object->pieces.open;
    struct sc_piece *lent = NULL;
    enum sc_status status = begin(writer, object);
    uint64_t size;
    size_t head = n, whole = 0;

    if (status)
        return status;
    size = sc_write_piece_nbytes(run, object->file.fd);
    if (open && offset != open->at + open->n)
        complete_open(object);
    if (batch && n / 2 >= size) {
        head = (size_t)((size - offset % size) % size);
        whole = (size_t)((n - head) / size * size);
    }
    status = copy_in(run, object, src, head, offset);
    if (!status && whole)
        status = lend(run, src + head, whole, offset + head, batch, &lent);
    if (!status)
        status = copy_in(run, object, src + head + whole, n - head - whole, offset + head + whole);
    if (lent)
        complete(object, lent); /* from now on another thread may write it and use the batch again */
    return status;
}

/* ---- pieces are written ---- */

struct sc_piece *
sc_write_file_take(struct sc_write_object *object)
{
    struct sc_piece *piece = object->pieces.first;

    object->pieces.first = piece->next;
    object->pieces.n_writing++;
    return piece;
}

enum sc_status
sc_write_file_piece(struct sc_writer *writer, struct sc_write_object *object, struct sc_piece *piece,
                    enum sc_status status)
{
    if (!status)
        status = sc_file_write(object->file.fd, object->file.path, piece->bytes, piece->n, piece->at, &writer->where);
    give_back(writer->run, piece);
    pthread_mutex_lock(&object->shared.mutex);
    object->pieces.n_writing--;
    pthread_cond_broadcast(&object->shared.changed); /* threads may wait for the memory */
    pthread_mutex_unlock(&object->shared.mutex);
    return status;
}

/* Write the complete pieces in the thread of the object. */
static enum sc_status
write_complete(struct sc_writer *writer, struct sc_write_object *object)
{
    enum sc_status status = SC_OK;

    while (!status && object->pieces.first)
        status = sc_write_file_piece(writer, object, sc_write_file_take(object), SC_OK);
    return status;
}

enum sc_status
sc_write_file_flush(struct sc_writer *writer, struct sc_write_object *object)
{
    complete_open(object);
    return write_complete(writer, object);
}

enum sc_status
sc_write_file_put(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src, size_t n,
                  uint64_t offset)
{
    enum sc_status status;

    if (object->in_pieces && n < 2 * SC_MAX_PIECE_NBYTES) {
        status = sc_write_file_add(writer, object, src, n, offset, NULL);
        return status ? status : write_complete(writer, object);
    }
    status = sc_write_file_begin(writer, object);
    if (!status && object->in_pieces)
        status = sc_write_file_flush(writer, object);
    return status ? status : sc_file_write(object->file.fd, object->file.path, src, n, offset, &writer->where);
}

void
sc_write_file_drop(struct sc_write_run *run, struct sc_write_object *object)
{
    complete_open(object);
    while (object->pieces.first) {
        struct sc_piece *piece = object->pieces.first;

        object->pieces.first = piece->next;
        give_back(run, piece);
    }
}

/* ---- any target ---- */

bool
sc_write_object_stopped(const struct sc_write_run *run, const struct sc_write_object *object)
{
    return sc_failure_before(&run->base.failure, object->item_no) || sc_cancelled(run->plan->cancel);
}

/* Keep new bytes for a slot. Neighbours become one. */
static enum sc_status
add_slot(struct sc_slots *slots, const uint8_t *src, size_t n, uint64_t offset)
{
    const size_t pair_nbytes = 2 * sizeof(uint64_t);
    enum sc_status status = sc_buffer_extend(&slots->places, slots->n * pair_nbytes, pair_nbytes);
    uint64_t *place;

    if (!status)
        status = sc_buffer_extend(&slots->bytes, slots->used, n);
    if (status)
        return status;
    place = (uint64_t *)(void *)slots->places.data + 2 * slots->n;
    if (slots->n && place[-2] + place[-1] == offset) {
        place[-1] += n;
    } else {
        place[0] = offset;
        place[1] = n;
        slots->n++;
    }
    memcpy(slots->bytes.data + slots->used, src, n);
    slots->used += n;
    return SC_OK;
}

/* Add bytes to the result, at an offset in it. */
static enum sc_status
add_to_result(struct sc_write_object *object, const uint8_t *src, size_t n, uint64_t offset)
{
    size_t used = (size_t)(object->item->result_nbytes - object->lent_nbytes);

    offset -= object->lent_nbytes;
    if (offset > PTRDIFF_MAX - n)
        return SC_NO_MEMORY;
    if (offset + n > used) {
        enum sc_status status = sc_buffer_extend(&object->result, used, (size_t)offset + n - used);

        if (status)
            return status;
    }
    if (offset > used) /* an object must not show old memory of this process */
        memset(object->result.data + used, 0, (size_t)offset - used);
    memcpy(object->result.data + offset, src, n);
    object->item->result_nbytes = object->lent_nbytes + max_u64(used, offset + n);
    return SC_OK;
}

enum sc_status
sc_write_object_put(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src, size_t n,
                    uint64_t offset)
{
    writer->stats.bytes_written += n;
    if (!in_memory(object->item))
        return sc_write_file_put(writer, object, src, n, offset);
    if (object->item->in_place && offset < object->item->data_offset)
        return add_slot(&object->slots, src, n, offset);
    if (object->item->onto_old && offset < object->item->data_offset) {
        /* the index, or slots and the bytes behind them */
        size_t head = (size_t)min_u64(n, object->item->data_offset - offset);

        memcpy(old_memory(object->item) + offset, src, head);
        if (head == n)
            return SC_OK;
        src += head;
        offset += head;
        n -= head;
    }
    return add_to_result(object, src, n, is_tail(object->item) ? offset - object->item->data_offset : offset);
}
