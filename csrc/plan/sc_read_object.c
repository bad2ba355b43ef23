/* sc_read_object.c - one object that is read: open it, read bytes of it, close it (see sc_engine.h)
 * SPDX-License-Identifier: MIT */
#include "io/sc_file.h"
#include "plan/sc_read_impl.h"

enum sc_status
sc_read_object_open(struct sc_reader *reader, struct sc_read_object *object)
{
    const struct sc_source *source = &object->item->source;
    enum sc_status status;

    object->fd = -1;
    object->is_watched = object->is_changing = false;
    if (source->is_open)
        return sc_file_share(source->fd, &object->fd, &object->nbytes, &reader->where);
    if (!source->path) {
        object->nbytes = source->nbytes;
        object->item->missing = !source->data && !source->entries;
        return SC_OK;
    }
    status = sc_cache_open(cache_of(reader), source->path, reader->run && reader->run->plan->immutable, &object->file,
                           &reader->stats.opens, &reader->stats.file_hits, &reader->where);
    object->fd = object->file.fd;
    object->item->missing = !status && object->fd < 0;
    if (!status && object->fd >= 0 && sc_chain_is_shard(chain_of(object))) {
        object->is_watched =
            !sc_chain_is_checked(chain_of(object)->inner) && !(reader->run && reader->run->plan->immutable);
        if (SC_UNLIKELY(object->file.id.n_links > 1))
            status = sc_undo_find(source->path, object->fd, &object->undo, &object->file.id, &reader->where);
    }
    object->nbytes = object->undo.path ? object->undo.nbytes : object->file.id.nbytes;
    return status;
}

void
sc_read_object_close(struct sc_reader *reader, struct sc_read_object *object)
{
    if (object->fd >= 0 && object->item->source.is_open)
        sc_file_close(object->fd);
    else if (object->fd >= 0)
        sc_cache_close(cache_of(reader), &object->file);
    object->fd = -1;
    sc_undo_free(&object->undo);
    sc_cached_index_release(object->known);
    object->known = NULL;
}

enum sc_status
sc_read_object_read(struct sc_reader *reader, const struct sc_read_object *object, uint8_t *dst, uint64_t n,
                    uint64_t offset)
{
    enum sc_status status;

    reader->stats.reads++;
    reader->stats.bytes_read += n;
    if (SC_UNLIKELY(object->is_changing))
        return sc_undo_read(object->item->source.path, object->fd, dst, (size_t)n, offset, &reader->where);
    status = sc_file_read_exactly(object->fd, dst, (size_t)n, offset, &reader->where);
    if (SC_UNLIKELY(object->undo.path != NULL) && !status)
        sc_undo_overlay(&object->undo, offset, n, dst);
    return status;
}

enum sc_status
sc_read_object_fetch(struct sc_reader *reader, const struct sc_read_object *object, uint64_t offset, uint64_t n,
                     struct sc_buffer *buffer, const uint8_t **bytes)
{
    enum sc_status status;

    if (object->fd < 0) {
        const uint8_t *data = object->item->source.data;

        *bytes = data ? data + offset : (const uint8_t *)""; /* NULL: only chunks of no bytes */
        return SC_OK;
    }
    status = sc_buffer_reserve(buffer, (size_t)n);
    if (status)
        return status;
    *bytes = buffer->data;
    return sc_read_object_read(reader, object, buffer->data, n, offset);
}

void
sc_read_object_free_memory(struct sc_read_object *object)
{
    sc_buffer_free(&object->index);
    sc_buffer_free(&object->tasks_memory);
    sc_buffer_free(&object->absent_memory);
    sc_buffer_free(&object->sort_memory);
    sc_touches_free(&object->touches);
}
