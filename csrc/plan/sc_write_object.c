/* sc_write_object.c - where the bytes of one object go: to the new file, to memory, or to a list of slots (see sc_engine.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_write_impl.h"

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
