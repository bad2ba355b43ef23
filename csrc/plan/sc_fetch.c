/* sc_fetch.c - inner chunks as they are stored (see sc_fetch.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_fetch.h"

#include "base/sc_alloc.h"
#include "chain/sc_worker.h"
#include "io/sc_file.h"

/* A read that also takes in bytes between chunks is no larger than this. */
#define SPAN_NBYTES ((uint64_t)1 << 20)

static enum sc_status
read_bytes(struct sc_fetch *fetch, uint64_t offset, uint64_t n, uint8_t *dst, struct sc_where *where)
{
    enum sc_status status;

    if (fetch->fd < 0) {
        memcpy(dst, fetch->source.data + offset, (size_t)n);
        return SC_OK;
    }
    fetch->stats.reads++;
    fetch->stats.bytes_read += n;
    status = sc_file_read_exactly(fetch->fd, dst, (size_t)n, offset, where);
    if (!status && fetch->undo.path)
        sc_undo_overlay(&fetch->undo, offset, n, dst);
    return status;
}

/* Of chunks without a checksum nothing else would tell that they were changed in place meanwhile. */
static enum sc_status
read_chunks(struct sc_fetch *fetch, uint64_t offset, uint64_t n, uint8_t *dst, struct sc_where *where)
{
    enum sc_status status = read_bytes(fetch, offset, n, dst, where);

    if (status || fetch->fd < 0 || fetch->source.is_open || sc_chain_is_checked(fetch->shard->inner))
        return status;
    status = sc_undo_check(fetch->source.path, fetch->fd, &fetch->undo, &fetch->file.id, where);
    if (status != SC_CHANGED)
        return status;
    sc_where_clear(where);
    return sc_undo_read(fetch->source.path, fetch->fd, dst, (size_t)n, offset, where);
}

enum sc_status
sc_fetch_range(struct sc_fetch *fetch, uint64_t offset, size_t n, uint8_t *dst, struct sc_where *where)
{
    sc_where_clear(where);
    return read_chunks(fetch, offset, n, dst, where);
}

static enum sc_status
read_index(struct sc_fetch *fetch, struct sc_where *where)
{
    const struct sc_chain *shard = fetch->shard;
    uint8_t *memory = NULL, *stored = NULL;
    enum sc_status status;

    fetch->index = sc_cached_index_new(shard);
    if (fetch->index)
        stored = sc_cached_index_stored(fetch->index, shard);
    if (fetch->index && !stored)
        stored = memory = sc_malloc((size_t)shard->index.nbytes);
    status = stored ? SC_OK : SC_NO_MEMORY;
    if (!status)
        status = read_bytes(fetch, fetch->extent.offset, shard->index.nbytes, stored, where);
    if (!status)
        status = sc_index_verify(&shard->index, stored, where);
    if (!status)
        sc_cached_index_fill(fetch->index, shard, stored, &fetch->extent);
    sc_free(memory);
    return status;
}

static enum sc_status
load_index(struct sc_fetch *fetch, struct sc_where *where)
{
    const struct sc_chain *shard = fetch->shard;
    enum sc_status status = sc_index_locate(&shard->index, fetch->nbytes, &fetch->extent, where);
    enum sc_cache_answer answer = SC_CACHE_PASS;

    if (status)
        return status;
    if (fetch->cache && fetch->fd >= 0 && !fetch->source.is_open && !fetch->undo.path) { /* the cache goes by names */
        answer = sc_cache_get(fetch->cache, fetch->source.path, &fetch->file.id, shard, NULL, &fetch->index);
        *(answer == SC_CACHE_HIT ? &fetch->stats.index_hits : &fetch->stats.index_misses) += 1;
    }
    if (answer != SC_CACHE_HIT)
        status = read_index(fetch, where);
    if (answer == SC_CACHE_LOAD)
        sc_cache_loaded(fetch->cache, fetch->source.path, &fetch->file.id, shard, status ? NULL : fetch->index);
    if (!status)
        fetch->entries = fetch->index->entries;
    return status;
}

static enum sc_status
open_file(struct sc_fetch *fetch, struct sc_where *where)
{
    const struct sc_source *source = &fetch->source;
    enum sc_status status;

    if (source->is_open) {
        status = sc_file_share(source->fd, &fetch->fd, &fetch->nbytes, where);
        return status ? status : sc_file_identify_open(fetch->fd, &fetch->file.id, where);
    }
    if (!source->path)
        return SC_OK;
    status = sc_cache_open(fetch->cache, source->path, false, &fetch->file, &fetch->stats.opens,
                           &fetch->stats.file_hits, where);
    fetch->fd = fetch->file.fd;
    if (!status && fetch->fd >= 0 && fetch->file.id.n_links > 1)
        status = sc_undo_find(source->path, fetch->fd, &fetch->undo, &fetch->file.id, where);
    fetch->nbytes = fetch->undo.path ? fetch->undo.nbytes : fetch->file.id.nbytes;
    return status;
}

enum sc_status
sc_fetch_begin(struct sc_fetch *fetch, const struct sc_chain *shard, const struct sc_source *source,
               struct sc_cache *cache, struct sc_where *where)
{
    enum sc_status status;

    *fetch = (struct sc_fetch){ .shard = shard, .source = *source, .cache = cache, .fd = -1, .nbytes = source->nbytes };
    sc_where_clear(where);
    if (source->entries) {
        fetch->entries = source->entries;
        return SC_OK;
    }
    status = open_file(fetch, where);
    if (status)
        return status;
    fetch->missing = fetch->fd < 0 && !source->data;
    return fetch->missing ? SC_OK : load_index(fetch, where);
}

void
sc_fetch_end(struct sc_fetch *fetch)
{
    if (fetch->source.is_open)
        sc_file_close(fetch->fd);
    else if (fetch->fd >= 0)
        sc_cache_close(fetch->cache, &fetch->file);
    fetch->fd = -1;
    sc_undo_free(&fetch->undo);
    sc_totals_add(&fetch->stats);
    fetch->stats = (struct sc_stats){ 0 };
    sc_cached_index_release(fetch->index);
    fetch->index = NULL;
}

bool
sc_fetch_version(const struct sc_fetch *fetch, struct sc_file_version *version)
{
    if (fetch->fd >= 0)
        sc_file_version_of(fetch->fd, &fetch->file.id, version);
    return fetch->fd >= 0;
}

enum sc_status
sc_fetch_check(const struct sc_fetch *fetch, bool allow_in_index, struct sc_where *where)
{
    sc_where_clear(where);
    if (allow_in_index || !fetch->index)
        return SC_OK;
    return sc_cached_index_check(fetch->index, fetch->shard, &fetch->extent, where);
}

static enum sc_status
find_entry(const struct sc_fetch *fetch, uint64_t position, bool allow_in_index, struct sc_entry *entry,
           struct sc_where *where)
{
    enum sc_status status = SC_OK;

    sc_where_clear(where);
    if (position >= fetch->shard->n_chunks) {
        where->detail = "no such inner chunk";
        return SC_BAD_ARGUMENT;
    }
    *entry = fetch->entries[position];
    if (sc_entry_is_absent(*entry))
        return SC_OK;
    if (!fetch->source.entries)
        status = sc_entry_check(*entry, &fetch->extent, allow_in_index, where);
    if (!status)
        status = sc_chain_check_nbytes(fetch->shard->inner, entry->nbytes, where);
    if (status)
        where->entry = position;
    return status;
}

enum sc_status
sc_fetch_entry(const struct sc_fetch *fetch, uint64_t position, bool allow_in_index, struct sc_entry *entry,
               struct sc_where *where)
{
    enum sc_status status = sc_fetch_check(fetch, allow_in_index, where);

    return status ? status : find_entry(fetch, position, allow_in_index, entry, where);
}

/* Check positions until the batch is full; places hold entries of the object afterwards. */
static enum sc_status
take(const struct sc_fetch *fetch, struct sc_fetch_batch *batch, struct sc_where *where)
{
    for (size_t i = 0; i < batch->n; i++) {
        struct sc_entry e;
        enum sc_status status = find_entry(fetch, batch->positions[i], batch->allow_in_index, &e, where);

        if (status)
            return status;
        if (!sc_entry_is_absent(e)) {
            if (i && e.nbytes > batch->max_nbytes - min_u64(batch->nbytes, batch->max_nbytes))
                break;
            batch->nbytes += e.nbytes;
        }
        batch->places[i] = e;
        batch->n_taken = i + 1;
    }
    return SC_OK;
}

/* The source's bytes are a part of the object, or all of it. */
static void
place_in_memory(const struct sc_fetch *fetch, struct sc_fetch_batch *batch)
{
    const struct sc_source *source = &fetch->source;

    for (size_t i = 0; i < batch->n_taken; i++) {
        struct sc_entry *e = &batch->places[i];

        if (sc_entry_is_absent(*e))
            continue;
        if (!e->nbytes)
            e->offset = 0;
        else if (e->offset >= source->first && e->nbytes <= source->nbytes &&
                 e->offset - source->first <= source->nbytes - e->nbytes)
            e->offset -= source->first;
        else
            *e = (struct sc_entry){ SC_ELSEWHERE, 0 };
    }
}

/* Entries that are read at once. They lie side by side, or together span little. */
struct span {
    uint64_t low, high;
    size_t end;
    bool exact;
};

static struct span
next_span(const struct sc_fetch_batch *batch, const uint64_t *order, size_t n, size_t begin)
{
    struct sc_entry e = batch->places[order[begin]];
    struct span span = { e.offset, e.offset + e.nbytes, begin + 1, true };

    for (; span.end < n; span.end++) {
        e = batch->places[order[span.end]];
        if (!span.exact || e.offset != span.high) {
            if (e.offset > span.high && e.offset - span.high > batch->max_gap_nbytes)
                break;
            if (max_u64(span.high, e.offset + e.nbytes) - span.low > SPAN_NBYTES)
                break;
            span.exact = false;
        }
        span.high = max_u64(span.high, e.offset + e.nbytes);
    }
    return span;
}

/* Read the entries at places[order[..]], which rise, one behind the other into batch->bytes. */
static enum sc_status
read_in_order(struct sc_fetch *fetch, struct sc_fetch_batch *batch, const uint64_t *order, size_t n,
              struct sc_where *where)
{
    struct sc_buffer between = { 0 };
    enum sc_status status = SC_OK;
    uint64_t at = 0;

    for (size_t i = 0; !status && i < n;) {
        struct span span = next_span(batch, order, n, i);
        uint8_t *dst = batch->bytes + at;

        if (!span.exact) {
            status = sc_buffer_reserve(&between, (size_t)(span.high - span.low));
            dst = between.data;
        }
        if (!status)
            status = read_chunks(fetch, span.low, span.high - span.low, dst, where);
        for (; !status && i < span.end; i++) {
            struct sc_entry *e = &batch->places[order[i]];

            if (!span.exact)
                memcpy(batch->bytes + at, between.data + (e->offset - span.low), (size_t)e->nbytes);
            e->offset = at;
            at += e->nbytes;
        }
    }
    sc_buffer_free(&between);
    return status;
}

static enum sc_status
read_file(struct sc_fetch *fetch, struct sc_fetch_batch *batch, struct sc_where *where)
{
    uint64_t *order = sc_malloc((2 * batch->n_taken + 1) * sizeof *order);
    enum sc_status status = SC_NO_MEMORY;
    size_t n;

    batch->bytes = sc_malloc((size_t)batch->nbytes + 1);
    if (order && batch->bytes) {
        sc_index_by_offset(batch->places, batch->n_taken, order, order + batch->n_taken, &n);
        status = read_in_order(fetch, batch, order, n, where);
    }
    for (size_t i = 0; i < batch->n_taken; i++)
        if (!batch->places[i].nbytes)
            batch->places[i].offset = 0;
    sc_free(order);
    return status;
}

enum sc_status
sc_fetch_chunks(struct sc_fetch *fetch, struct sc_fetch_batch *batch, struct sc_where *where)
{
    enum sc_status status;

    sc_where_clear(where);
    batch->n_taken = 0;
    batch->nbytes = 0;
    batch->bytes = NULL;
    status = sc_fetch_check(fetch, batch->allow_in_index, where); /* also if no position is named */
    if (status)
        return status;
    status = take(fetch, batch, where);
    if (status)
        return status;
    fetch->stats.bytes_used += batch->nbytes;
    if (fetch->fd >= 0)
        return read_file(fetch, batch, where);
    place_in_memory(fetch, batch);
    return SC_OK;
}
