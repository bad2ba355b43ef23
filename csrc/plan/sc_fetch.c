/* sc_fetch.c - inner chunks as they are stored (see sc_fetch.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_fetch.h"

#include "base/sc_alloc.h"
#include "io/sc_latency.h"
#include "plan/sc_depth.h"
#include "plan/sc_run.h"

/* Largest read that includes bytes between chunks, in one thread. */
#define SPAN_NBYTES ((uint64_t)1 << 20)

/* Least size of a read where several wait at the same time, if the chunks have that many bytes. */
#define GROUP_NBYTES ((uint64_t)256 << 10)

/* Read bytes of inner chunks. If they have no checksums, make sure that they were not updated in place meanwhile. */
static enum sc_status
read_chunks(const struct sc_fetch *fetch, uint64_t offset, uint64_t n, uint8_t *dst, struct sc_stats *stats,
            struct sc_where *where)
{
    const struct sc_input *input = &fetch->input;
    enum sc_status status;

    if (input->fd < 0) {
        memcpy(dst, fetch->source.data + offset, (size_t)n);
        return SC_OK;
    }
    status = sc_input_read(input, dst, n, offset, stats, where);
    if (status || !input->is_watched)
        return status;
    status = sc_input_check(input, where);
    if (status != SC_CHANGED)
        return status;
    sc_where_clear(where);
    return sc_undo_read(fetch->source.path, input->fd, dst, (size_t)n, offset, where);
}

enum sc_status
sc_fetch_range(struct sc_fetch *fetch, uint64_t offset, size_t n, uint8_t *dst, struct sc_where *where)
{
    struct sc_stats stats = { 0 }; /* other threads may read too */
    enum sc_status status;

    sc_where_clear(where);
    status = read_chunks(fetch, offset, n, dst, &stats, where);
    sc_stats_add_shared(&fetch->stats, &stats);
    return status;
}

/* Load the whole index, through the cache if there is one. */
static enum sc_status
load_index(struct sc_fetch *fetch, struct sc_where *where)
{
    struct sc_buffer scratch = { 0 };
    enum sc_status status = sc_input_find_index(&fetch->input, NULL, &scratch, &fetch->stats, where);

    if (!status && !fetch->input.index)
        status = sc_input_read_index(&fetch->input, &scratch, &fetch->stats, where);
    if (!status)
        fetch->entries = fetch->input.index->entries;
    sc_buffer_free(&scratch);
    return status;
}

enum sc_status
sc_fetch_begin(struct sc_fetch *fetch, const struct sc_chain *shard, const struct sc_source *source,
               struct sc_cache *cache, struct sc_where *where)
{
    enum sc_status status;

    *fetch = (struct sc_fetch){ .source = *source, .entries = source->entries };
    sc_where_clear(where);
    status = sc_input_open(&fetch->input, shard, &fetch->source, cache, false, &fetch->stats, where);
    if (!status && source->is_open)
        status = sc_file_identify_open(fetch->input.fd, &fetch->input.file.id, where);
    if (!status && shard && !fetch->input.missing && !source->entries)
        status = load_index(fetch, where);
    fetch->is_open = !status && !fetch->input.missing;
    return status;
}

void
sc_fetch_end(struct sc_fetch *fetch)
{
    sc_input_close(&fetch->input);
    sc_totals_add(&fetch->stats);
    fetch->stats = (struct sc_stats){ 0 };
    fetch->is_open = false;
}

void
sc_fetch_move(struct sc_fetch *to, struct sc_fetch *from)
{
    *to = *from;
    to->input.source = &to->source;
    from->entries = NULL;
    from->is_open = false;
    from->input.fd = -1;
    from->input.file.kept = NULL;
    from->input.index = NULL;
    from->input.undo = (struct sc_undo){ 0 };
    from->stats = (struct sc_stats){ 0 };
}

bool
sc_fetch_version(const struct sc_fetch *fetch, struct sc_file_version *version)
{
    if (fetch->input.fd >= 0)
        sc_file_version_of(fetch->input.fd, &fetch->input.file.id, version);
    return fetch->input.fd >= 0;
}

enum sc_status
sc_fetch_check(const struct sc_fetch *fetch, bool allow_in_index, struct sc_where *where)
{
    sc_where_clear(where);
    if (allow_in_index || !fetch->input.index)
        return SC_OK;
    return sc_cached_index_check(fetch->input.index, fetch->input.chain, &fetch->input.extent, where);
}

static enum sc_status
find_entry(const struct sc_fetch *fetch, uint64_t position, bool allow_in_index, struct sc_entry *entry,
           struct sc_where *where)
{
    enum sc_status status = SC_OK;

    sc_where_clear(where);
    if (position >= fetch->input.chain->n_chunks) {
        where->detail = "no such inner chunk";
        return SC_BAD_ARGUMENT;
    }
    *entry = fetch->entries[position];
    if (sc_entry_is_absent(*entry))
        return SC_OK;
    if (!fetch->source.entries)
        status = sc_entry_check(*entry, &fetch->input.extent, allow_in_index, where);
    if (!status)
        status = sc_chain_check_nbytes(fetch->input.chain->inner, entry->nbytes, where);
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

/* Check positions until the batch is full. places get the entries of the object. */
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

/* Place the entries in the bytes of the source, which are a part of the object or all of it. */
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

/* How inner chunks are read together. */
struct limits {
    uint64_t exact_nbytes; /* of chunks that lie side by side */
    uint64_t span_nbytes; /* of a read that includes bytes between them */
    uint64_t max_gap_nbytes;
};

/* Entries that are read together: order[begin..end). They lie side by side (`exact`), or within a short range. */
struct span {
    uint64_t low, high, at; /* in the file; in batch->bytes */
    size_t begin, end;
    bool exact;
};

static struct span
next_span(const struct sc_fetch_batch *batch, const struct limits *limits, const uint64_t *order, size_t n,
          size_t begin)
{
    struct sc_entry e = batch->places[order[begin]];
    struct span span = { e.offset, e.offset + e.nbytes, 0, begin, begin + 1, true };

    for (; span.end < n; span.end++) {
        uint64_t high;
        bool exact;

        e = batch->places[order[span.end]];
        exact = span.exact && e.offset == span.high;
        if (e.offset > span.high && e.offset - span.high > limits->max_gap_nbytes)
            break;
        high = max_u64(span.high, e.offset + e.nbytes);
        if (high - span.low > (exact ? limits->exact_nbytes : limits->span_nbytes))
            break;
        span.high = high;
        span.exact = exact;
    }
    return span;
}

/* Reads of one batch, by several threads where a call costs a round trip. */
struct run {
    struct sc_fetch *fetch;
    struct sc_fetch_batch *batch;
    const uint64_t *order; /* of places, by offset */
    const struct span *spans;
    size_t n_spans;
    uint64_t latency_ns; /* of a call */
    struct sc_depth depth;
    struct sc_failure failure;
    atomic_size_t next;
    pthread_mutex_t mutex;
};

/* Read the entries of a span, one after the other into batch->bytes. */
static enum sc_status
read_span(struct run *run, const struct span *span, struct sc_buffer *between, struct sc_stats *stats,
          struct sc_where *where)
{
    struct sc_fetch_batch *batch = run->batch;
    uint64_t at = span->at;
    uint8_t *dst = batch->bytes + at;
    enum sc_status status = SC_OK;

    if (!span->exact) {
        status = sc_buffer_reserve(between, (size_t)(span->high - span->low));
        dst = between->data;
    }
    if (!status)
        status = read_chunks(run->fetch, span->low, span->high - span->low, dst, stats, where);
    for (size_t i = span->begin; !status && i < span->end; i++) {
        struct sc_entry *e = &batch->places[run->order[i]];

        if (!span->exact)
            memcpy(batch->bytes + at, between->data + (e->offset - span->low), (size_t)e->nbytes);
        e->offset = at;
        at += e->nbytes;
    }
    return status;
}

static void
run_thread(void *arg)
{
    struct run *run = arg;
    struct sc_buffer between = { 0 };
    struct sc_stats stats = { 0 };
    struct sc_where where;
    size_t i;

    while ((i = atomic_fetch_add(&run->next, 1)) < run->n_spans && !sc_failure_before(&run->failure, i)) {
        enum sc_status status;

        sc_where_clear(&where);
        stats.deep_reads += sc_depth_is_deep(&run->depth);
        status = read_span(run, &run->spans[i], &between, &stats, &where);
        if (status)
            sc_failure_note(&run->failure, status, &where, i);
    }
    sc_buffer_free(&between);
    pthread_mutex_lock(&run->mutex);
    sc_stats_add_shared(&run->fetch->stats, &stats);
    pthread_mutex_unlock(&run->mutex);
}

static enum sc_status
read_spans(struct run *run, struct sc_where *where)
{
    enum sc_status status;

    sc_failure_init(&run->failure);
    atomic_init(&run->next, 0);
    pthread_mutex_init(&run->mutex, NULL);
    sc_depth_expect(&run->depth, run->latency_ns, run->n_spans);
    sc_depth_run(&run->depth);
    pthread_mutex_destroy(&run->mutex);
    status = sc_failure_end(&run->failure, where);
    where->shard = SC_NOWHERE;
    return status;
}

/* Where a call is cheap, or one thread makes all of them, chunks side by side are one read. Else several threads read groups of
 * them. The caller holds all bytes of the batch anyway, so only bytes between chunks are bounded: one read for each thread. */
static struct limits
limits_of(struct run *run)
{
    const struct sc_fetch_batch *batch = run->batch;
    struct sc_read_sizes sizes = { GROUP_NBYTES, batch->max_gap_nbytes };

    if (SC_LIKELY(run->latency_ns < SC_LATENCY_DEEP_NS) || run->depth.most == 1)
        return (struct limits){ UINT64_MAX, SPAN_NBYTES, batch->max_gap_nbytes };
    sizes = sc_depth_sizes(&run->depth, run->latency_ns, batch->nbytes, sizes);
    sc_depth_bound(&run->depth, sizes.group_nbytes);
    return (struct limits){ sizes.group_nbytes, sizes.group_nbytes, sizes.max_gap_nbytes };
}

static enum sc_status
read_in_order(struct run *run, size_t n, struct sc_where *where)
{
    struct sc_buffer memory = { 0 };
    struct limits limits = limits_of(run);
    enum sc_status status = SC_OK;
    uint64_t at = 0;

    for (size_t i = 0; !status && i < n;) {
        struct span span = next_span(run->batch, &limits, run->order, n, i);

        span.at = at;
        for (; i < span.end; i++)
            at += run->batch->places[run->order[i]].nbytes;
        status = sc_buffer_extend(&memory, run->n_spans * sizeof span, sizeof span);
        if (!status)
            ((struct span *)(void *)memory.data)[run->n_spans++] = span;
    }
    run->spans = (const struct span *)(const void *)memory.data;
    if (!status)
        status = read_spans(run, where);
    sc_buffer_free(&memory);
    return status;
}

static enum sc_status
read_file(struct sc_fetch *fetch, struct sc_fetch_batch *batch, struct sc_where *where)
{
    uint64_t *order = sc_malloc((2 * batch->n_taken + 1) * sizeof *order);
    struct run run = { .fetch = fetch, .batch = batch, .order = order };
    enum sc_status status = SC_NO_MEMORY;
    size_t n;

    batch->bytes = sc_malloc((size_t)batch->nbytes + 1);
    if (order && batch->bytes) {
        sc_index_by_offset(batch->places, batch->n_taken, order, order + batch->n_taken, &n);
        run.latency_ns = sc_depth_latency(&batch->io, &fetch->input.file.id);
        sc_depth_init(&run.depth, &batch->io, 1, 1, run_thread, &run);
        status = read_in_order(&run, n, where);
        sc_depth_destroy(&run.depth);
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
    status = sc_fetch_check(fetch, batch->allow_in_index, where); /* even if `positions` is empty */
    if (status)
        return status;
    status = take(fetch, batch, where);
    if (status)
        return status;
    sc_stats_add_shared(&fetch->stats, &(struct sc_stats){ .bytes_used = batch->nbytes });
    if (fetch->input.fd >= 0)
        return read_file(fetch, batch, where);
    place_in_memory(fetch, batch);
    return SC_OK;
}
