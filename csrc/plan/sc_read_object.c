/* sc_read_object.c - one object that is read: open it, read bytes of it, close it (see sc_engine.h)
 * SPDX-License-Identifier: MIT */
#include "io/sc_file.h"
#include "plan/sc_read_impl.h"

enum sc_status
sc_stall_open(struct reader *reader, struct stall *stall)
{
    const struct sc_source *source = &stall->item->source;
    enum sc_status status;

    stall->fd = -1;
    stall->is_watched = stall->is_changing = false;
    if (source->is_open)
        return sc_file_share(source->fd, &stall->fd, &stall->nbytes, &reader->where);
    if (!source->path) {
        stall->nbytes = source->nbytes;
        stall->item->missing = !source->data && !source->entries;
        return SC_OK;
    }
    status = sc_cache_open(cache_of(reader), source->path, reader->run && reader->run->plan->immutable, &stall->file,
                           &reader->stats.opens, &reader->stats.file_hits, &reader->where);
    stall->fd = stall->file.fd;
    stall->item->missing = !status && stall->fd < 0;
    if (!status && stall->fd >= 0 && sc_chain_is_shard(chain_of(stall))) {
        stall->is_watched =
            !sc_chain_is_checked(chain_of(stall)->inner) && !(reader->run && reader->run->plan->immutable);
        if (SC_UNLIKELY(stall->file.id.n_links > 1))
            status = sc_undo_find(source->path, stall->fd, &stall->undo, &stall->file.id, &reader->where);
    }
    stall->nbytes = stall->undo.path ? stall->undo.nbytes : stall->file.id.nbytes;
    return status;
}

void
sc_stall_close(struct reader *reader, struct stall *stall)
{
    if (stall->fd >= 0 && stall->item->source.is_open)
        sc_file_close(stall->fd);
    else if (stall->fd >= 0)
        sc_cache_close(cache_of(reader), &stall->file);
    stall->fd = -1;
    sc_undo_free(&stall->undo);
    sc_cached_index_release(stall->known);
    stall->known = NULL;
}

enum sc_status
sc_stall_read(struct reader *reader, const struct stall *stall, uint8_t *dst, uint64_t n, uint64_t offset)
{
    enum sc_status status;

    reader->stats.reads++;
    reader->stats.bytes_read += n;
    if (SC_UNLIKELY(stall->is_changing))
        return sc_undo_read(stall->item->source.path, stall->fd, dst, (size_t)n, offset, &reader->where);
    status = sc_file_read_exactly(stall->fd, dst, (size_t)n, offset, &reader->where);
    if (SC_UNLIKELY(stall->undo.path != NULL) && !status)
        sc_undo_overlay(&stall->undo, offset, n, dst);
    return status;
}

enum sc_status
sc_stall_fetch(struct reader *reader, const struct stall *stall, uint64_t offset, uint64_t n, struct sc_buffer *buffer,
               const uint8_t **bytes)
{
    enum sc_status status;

    if (stall->fd < 0) {
        const uint8_t *data = stall->item->source.data;

        *bytes = data ? data + offset : (const uint8_t *)""; /* NULL: only chunks of no bytes */
        return SC_OK;
    }
    status = sc_buffer_reserve(buffer, (size_t)n);
    if (status)
        return status;
    *bytes = buffer->data;
    return sc_stall_read(reader, stall, buffer->data, n, offset);
}

void
sc_stall_free_memory(struct stall *stall)
{
    sc_buffer_free(&stall->index);
    sc_buffer_free(&stall->tasks_memory);
    sc_buffer_free(&stall->absent_memory);
    sc_buffer_free(&stall->sort_memory);
    sc_touches_free(&stall->touches);
}
