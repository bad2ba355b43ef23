/* sc_input.c - open an object, read bytes of it, read its index, close it (see sc_input.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_input.h"

#include "io/sc_latency.h"

enum sc_status
sc_input_open(struct sc_input *input, const struct sc_chain *chain, const struct sc_source *source,
              struct sc_cache *cache, bool immutable, struct sc_stats *stats, struct sc_where *where)
{
    enum sc_status status;

    *input = (struct sc_input){ .source = source, .chain = chain, .cache = cache, .fd = -1 };
    if (source->is_open) {
        input->nbytes = source->nbytes;
        status = sc_file_share(source->fd, &input->fd, where);
        return status || input->nbytes ? status : sc_file_size(input->fd, &input->nbytes, where);
    }
    if (!source->path) {
        input->nbytes = source->nbytes;
        input->missing = !source->data && !source->entries;
        return SC_OK;
    }
    if (source->is_on_disk) /* others remove and replace it: its name leads to the bytes that count */
        status = sc_cache_open(NULL, source->path, false, &input->file, &stats->opens, &stats->file_hits, where);
    else
        status = sc_cache_open(cache, source->path, immutable, &input->file, &stats->opens, &stats->file_hits, where);
    input->fd = input->file.fd;
    input->missing = !status && input->fd < 0;
    if (!status && input->fd >= 0 && (!chain || sc_chain_is_shard(chain))) {
        input->is_watched = (!chain || !sc_chain_is_checked(chain->inner)) && !immutable;
        if (SC_UNLIKELY(input->file.id.n_links > 1))
            status = sc_undo_find(source->path, input->fd, &input->undo, &input->file.id, where);
    }
    input->nbytes = input->undo.path ? input->undo.nbytes : input->file.id.nbytes;
    return status;
}

void
sc_input_close(struct sc_input *input)
{
    if (input->fd >= 0 && input->source->is_open)
        sc_file_close(input->fd);
    else if (input->fd >= 0)
        sc_cache_close(input->cache, &input->file);
    input->fd = -1;
    sc_undo_free(&input->undo);
    sc_cached_index_release(input->index);
    input->index = NULL;
}

static enum sc_status
read_timed(const struct sc_input *input, uint8_t *dst, uint64_t n, uint64_t offset, struct sc_where *where)
{
    uint64_t begin = sc_latency_begin();
    enum sc_status status = sc_file_read_exactly(input->fd, dst, (size_t)n, offset, where);

    if (!status)
        sc_latency_end(begin, input->file.id.device, n);
    return status;
}

static bool
has_whole(const struct sc_input *input)
{
    return input->whole && !input->is_changing;
}

enum sc_status
sc_input_read(const struct sc_input *input, uint8_t *dst, uint64_t n, uint64_t offset, struct sc_stats *stats,
              struct sc_where *where)
{
    enum sc_status status;

    if (SC_UNLIKELY(has_whole(input))) {
        memcpy(dst, input->whole + offset, (size_t)n);
        return SC_OK;
    }
    if (SC_LIKELY(!input->base)) {
        stats->reads++;
        stats->bytes_read += n;
    }
    if (SC_UNLIKELY(input->is_changing))
        return sc_undo_read(input->source->path, input->fd, dst, (size_t)n, offset, where);
    if (input->file.id.inode)
        status = read_timed(input, dst, n, input->base + offset, where);
    else
        status = sc_file_read_exactly(input->fd, dst, (size_t)n, offset, where);
    if (SC_UNLIKELY(input->undo.path != NULL) && !status)
        sc_undo_overlay(&input->undo, offset, n, dst);
    return status;
}

enum sc_status
sc_input_fetch(const struct sc_input *input, uint64_t offset, uint64_t n, struct sc_buffer *buffer,
               const uint8_t **bytes, struct sc_stats *stats, struct sc_where *where)
{
    enum sc_status status;

    if (input->fd < 0) {
        const uint8_t *data = input->source->data;

        *bytes = data ? data + offset : (const uint8_t *)""; /* NULL: only chunks of no bytes */
        return SC_OK;
    }
    if (SC_UNLIKELY(has_whole(input))) {
        *bytes = input->whole + offset;
        return SC_OK;
    }
    status = sc_buffer_reserve(buffer, (size_t)n);
    if (status)
        return status;
    *bytes = buffer->data;
    return sc_input_read(input, buffer->data, n, offset, stats, where);
}

enum sc_status
sc_input_check(const struct sc_input *input, struct sc_where *where)
{
    return sc_undo_check(input->source->path, input->fd, &input->undo, &input->file.id, where);
}

enum sc_status
sc_input_read_index(struct sc_input *input, struct sc_buffer *scratch, struct sc_stats *stats, struct sc_where *where)
{
    const struct sc_chain *shard = input->chain;
    struct sc_cached_index *index = sc_cached_index_new(shard, 0);
    uint64_t offset = input->extent.offset, nbytes = shard->index.nbytes;
    const uint8_t *stored;
    enum sc_status status;
    uint8_t *in_place;

    if (!index)
        return SC_NO_MEMORY;
    stored = in_place = sc_cached_index_stored(index, shard);
    if (in_place && input->fd >= 0)
        status = sc_input_read(input, in_place, nbytes, offset, stats, where);
    else
        status = sc_input_fetch(input, offset, nbytes, scratch, &stored, stats, where);
    if (!status)
        status = sc_index_verify(&shard->index, stored, where);
    if (status) {
        sc_cached_index_release(index);
        return status;
    }
    sc_cached_index_fill(index, shard, stored, &input->extent);
    input->index = index;
    return SC_OK;
}

/* True if the cache may have something of this state of the object. It identifies an object by its name, which a descriptor does
 * not have. */
static bool
is_known(const struct sc_input *input)
{
    return input->cache && input->fd >= 0 && !input->source->is_open && !input->undo.path;
}

void
sc_input_find_state(struct sc_input *input, struct sc_cancel *cancel)
{
    const struct sc_chain *chunk = input->chain;
    const char *name = input->source->path;

    if (!is_known(input) ||
        sc_cache_get(input->cache, name, &input->file.id, chunk, cancel, &input->index) != SC_CACHE_LOAD)
        return;
    input->index = sc_cached_index_new(chunk, 1);
    sc_cache_loaded(input->cache, name, &input->file.id, chunk, input->index);
}

enum sc_status
sc_input_find_index(struct sc_input *input, struct sc_cancel *cancel, struct sc_buffer *scratch, struct sc_stats *stats,
                    struct sc_where *where)
{
    const struct sc_chain *shard = input->chain;
    const char *name = input->source->path;
    enum sc_status status = sc_index_locate(&shard->index, input->nbytes, &input->extent, where);
    enum sc_cache_answer answer;

    if (status || !is_known(input))
        return status;
    answer = sc_cache_get(input->cache, name, &input->file.id, shard, cancel, &input->index);
    *(answer == SC_CACHE_HIT ? &stats->index_hits : &stats->index_misses) += 1;
    if (answer != SC_CACHE_LOAD)
        return SC_OK;
    status = sc_input_read_index(input, scratch, stats, where);
    sc_cache_loaded(input->cache, name, &input->file.id, shard, input->index); /* on failure NULL */
    return status;
}
