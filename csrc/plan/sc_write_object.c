/* sc_write_object.c - where the bytes of one object go: to the new file, to memory, or to a list of slots (see sc_engine.h)
 * SPDX-License-Identifier: MIT */
#include "io/sc_latency.h"
#include "plan/sc_write_impl.h"

bool
sc_write_object_stopped(const struct sc_write_run *run, const struct sc_write_object *object)
{
    return sc_failure_before(&run->base.failure, object->item_no) || sc_cancelled(run->plan->cancel);
}

enum sc_status
sc_write_object_begin_file(struct sc_writer *writer, struct sc_write_object *object)
{
    enum sc_status status = SC_OK;

    pthread_mutex_lock(&object->shared.mutex);
    if (object->file.fd < 0) {
        uint64_t begin = sc_clock_ns();

        status = sc_newfile_begin(&object->file, object->item->path, writer->run->plan->staging, &writer->where);
        sc_write_expect_objects(writer, &writer->run->begins, sc_clock_ns() - begin);
    }
    pthread_mutex_unlock(&object->shared.mutex);
    return status;
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

static enum sc_status
write_file(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src, size_t n, uint64_t offset)
{
    enum sc_status status = sc_write_object_begin_file(writer, object);

    return status ? status : sc_file_write(object->file.fd, object->file.path, src, n, offset, &writer->where);
}

/* Under the mutex: write the first n pending bytes. */
static enum sc_status
write_pending(struct sc_writer *writer, struct sc_write_object *object, size_t n)
{
    struct sc_pending *pending = &object->pending;
    enum sc_status status = n ? write_file(writer, object, pending->bytes.data, n, pending->at) : SC_OK;

    pending->n = status ? 0 : pending->n - n;
    pending->at += n;
    if (pending->n)
        memmove(pending->bytes.data, pending->bytes.data + n, pending->n);
    return status;
}

/* Under the mutex: add bytes, and write all pieces that are complete. */
static enum sc_status
add_pending(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src, size_t n, uint64_t offset)
{
    struct sc_pending *pending = &object->pending;
    enum sc_status status = SC_OK;
    uint64_t end = offset + n;

    if (pending->n && offset != pending->at + pending->n)
        status = write_pending(writer, object, pending->n);
    if (!status && !pending->n)
        pending->at = offset;
    if (!status)
        status = sc_buffer_extend(&pending->bytes, pending->n, n);
    if (status)
        return status;
    memcpy(pending->bytes.data + pending->n, src, n);
    pending->n += n;
    end -= end % SC_PIECE_NBYTES;
    return end > pending->at ? write_pending(writer, object, (size_t)(end - pending->at)) : SC_OK;
}

static enum sc_status
put_in_file(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src, size_t n, uint64_t offset)
{
    enum sc_status status;

    if (SC_LIKELY(!sc_depth_is_deep(&writer->run->depth)) || n >= SC_PIECE_NBYTES)
        return write_file(writer, object, src, n, offset);
    pthread_mutex_lock(&object->pending.mutex);
    status = add_pending(writer, object, src, n, offset);
    pthread_mutex_unlock(&object->pending.mutex);
    return status;
}

enum sc_status
sc_write_object_flush(struct sc_writer *writer, struct sc_write_object *object)
{
    enum sc_status status;

    pthread_mutex_lock(&object->pending.mutex);
    status = write_pending(writer, object, object->pending.n);
    pthread_mutex_unlock(&object->pending.mutex);
    return status;
}

enum sc_status
sc_write_object_put(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src, size_t n,
                    uint64_t offset)
{
    writer->stats.bytes_written += n;
    if (!in_memory(object))
        return put_in_file(writer, object, src, n, offset);
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
    if (is_tail(object->item))
        offset -= object->item->data_offset;
    if (offset > PTRDIFF_MAX - n)
        return SC_NO_MEMORY;
    if (offset + n > object->item->result_nbytes) {
        size_t used = (size_t)object->item->result_nbytes;
        enum sc_status status = sc_buffer_extend(&object->result, used, (size_t)offset + n - used);

        if (status)
            return status;
    }
    if (offset > object->item->result_nbytes) /* an object must not show old memory of this process */
        memset(object->result.data + object->item->result_nbytes, 0, (size_t)(offset - object->item->result_nbytes));
    memcpy(object->result.data + offset, src, n);
    object->item->result_nbytes = max_u64(object->item->result_nbytes, offset + n);
    return SC_OK;
}
