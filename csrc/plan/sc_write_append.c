/* sc_write_append.c - the end of an update in the shard's own file (see sc_append.h)
 *
 * SPDX-License-Identifier: MIT */
#include "io/sc_append.h"
#include "plan/sc_write_impl.h"

/* True if the update changes nothing, such as erasing an inner chunk that is absent. */
static bool
changes_nothing(const struct sc_write_object *object)
{
    const struct sc_write_item *item = object->item;
    size_t nbytes = (size_t)item->chain->n_chunks * sizeof *item->old_entries;

    return !item->result_nbytes && item->old_entries && memcmp(item->old_entries, object->entries, nbytes) == 0;
}

enum sc_status
sc_write_object_append(struct sc_writer *writer, struct sc_write_object *object, bool is_marked)
{
    struct sc_write_item *item = object->item;
    struct sc_append append = { .path = item->path,
                                .old_fd = object->old_fd,
                                .old_nbytes = item->old.nbytes,
                                .data = object->result.data,
                                .data_offset = item->data_offset,
                                .data_nbytes = item->result_nbytes,
                                .index = object->index.data,
                                .index_nbytes = item->chain->index.nbytes,
                                .sync = writer->run->plan->sync,
                                .is_marked = is_marked };

    if (!is_marked && changes_nothing(object))
        return SC_OK;
    return sc_append(&append, item->append, &item->declined, &writer->where);
}
