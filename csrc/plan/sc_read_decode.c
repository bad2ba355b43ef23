/* sc_read_decode.c - read a group of inner chunks, decode them, copy what is wanted into the array
 *
 * In a deep run (sc_depth.h) the thread has a worker only between the read and the end of the group.
 *
 * If the cache keeps inner chunks (sc_chunks.h), those of a group that it has are copied first, and only the others are read. Each of
 * these is decoded into the memory of the cache, and copied from there.
 *
 * SPDX-License-Identifier: MIT */
#include "plan/sc_read_impl.h"

/* True for an uncompressed chunk that is wanted whole and has the same layout in the array: it is read straight into it. */
static bool
reads_in_place(const struct sc_read_object *object, const struct sc_chain *chain, const struct sc_box *part,
               const int64_t *strides)
{
    return object->input.fd >= 0 && !chain->inner && !chain->n_ops && !chain->swap.n_fields &&
           sc_box_is_whole(chain, part->count) && sc_chain_has_layout(chain, strides);
}

/* A range of the object that is read when the first of its tasks is decoded. */
struct span {
    uint64_t low, high;
    const uint8_t *bytes;
    bool alone; /* of one task */
};

static struct span
span_of(const struct sc_read_object *object, size_t begin, size_t end)
{
    struct span span = { object->input.fd < 0 ? 0 : object->tasks[begin].offset, 0, NULL, end - begin == 1 };

    for (size_t i = begin; i < end; i++) /* by offset */
        span.high = max_u64(span.high, object->tasks[i].offset + object->tasks[i].nbytes);
    return span;
}

void
sc_read_end_decoding(struct sc_reader *reader)
{
    sc_seat_end_work(&reader->seat);
    leave_room(reader);
}

/* Read the bytes of a group. In a deep run the thread has no worker meanwhile. After a failure the next task of the group tries
 * again. */
static enum sc_status
fetch_group(struct sc_reader *reader, const struct sc_read_object *object, struct span *span)
{
    uint64_t n = span->high - span->low;
    enum sc_status status;

    if (object->input.fd >= 0 && !object->input.whole && SC_UNLIKELY(!reader->seat.worker)) {
        enter_room(reader, n);
        reader->stats.deep_reads++;
    }
    status =
        sc_input_fetch(&object->input, span->low, n, reader->seat.io, &span->bytes, &reader->stats, &reader->where);
    if (!status)
        status = sc_seat_begin_work(&reader->seat);
    if (SC_UNLIKELY(status)) {
        span->bytes = NULL;
        leave_room(reader);
    }
    return status;
}

/* Of an object in the cache on a local disk: SC_CHANGED if these are not the bytes of the task. */
static enum sc_status
check_bytes(struct sc_reader *reader, const struct sc_read_object *object, const struct sc_read_task *t,
            const uint8_t *bytes)
{
    return SC_LIKELY(!object->slots) ? SC_OK : sc_read_disk_check(reader, object, t, bytes);
}

/* Return the encoded bytes of a task. Its neighbours are read with it. */
static enum sc_status
fetch_task(struct sc_reader *reader, const struct sc_read_object *object, const struct sc_read_task *t,
           struct span *span, const uint8_t **bytes)
{
    enum sc_status status = span->bytes ? SC_OK : fetch_group(reader, object, span);

    if (status)
        return status;
    *bytes = span->bytes + (t->offset - span->low);
    return check_bytes(reader, object, t, *bytes);
}

/* ---- chunks in the cache ---- */

/* Not while the file is updated in place: its bytes may then be of two states. */
static bool
uses_cache(const struct sc_read_object *object)
{
    return object->state && !object->input.is_changing;
}

/* Memory for a chunk costs little where its bytes were requested. */
static bool
is_remote(const struct sc_read_object *object)
{
    return object->item->source.entries != NULL;
}

static struct sc_chunk_key
key_of(const struct sc_read_object *object, const struct sc_read_task *t)
{
    return (struct sc_chunk_key){ object->state, chunk_of(object)->number, t->entry };
}

/* If the cache has the chunk, or wants it, leave it in *kept, which the caller holds. at_once: it wants it in any case. */
static enum sc_status
keep_chunk(struct sc_reader *reader, const struct sc_read_object *object, const struct sc_read_task *t,
           const uint8_t *bytes, bool at_once, struct sc_kept_chunk **kept)
{
    const struct sc_chain *chunk = chunk_of(object);
    struct sc_chunks *chunks = sc_cache_chunks(reader->run->plan->cache);
    struct sc_chunk_key key = key_of(object, t);
    enum sc_cache_answer answer;
    enum sc_status status;

    answer = sc_chunks_claim(chunks, &key, chunk->nbytes, at_once, kept, &reader->stats.chunk_evictions);
    if (answer == SC_CACHE_HIT)
        reader->stats.chunks_decoded--; /* another thread has done it */
    if (answer != SC_CACHE_LOAD)
        return SC_OK;
    status = sc_chain_decode_all(chunk, reader->seat.worker, chunk != chain_of(object), bytes, (size_t)t->nbytes,
                                 (*kept)->elements, &reader->where);
    sc_chunks_loaded(chunks, &key, *kept, !status);
    if (status) {
        sc_kept_chunk_release(*kept);
        *kept = NULL;
    }
    return status;
}

/* Copy a box of a chunk in the cache. */
static void
copy_box(struct sc_reader *reader, const struct sc_read_object *object, const uint8_t *elements,
         const struct sc_box *part, uint8_t *dst, const int64_t *strides)
{
    const struct sc_chain *chunk = chunk_of(object);
    uint64_t low, high;

    sc_chain_hull(chunk, part, &low, &high);
    sc_chain_scatter_hull(chunk, reader->seat.worker, chunk != chain_of(object), elements + low, part, dst, strides);
}

/* ---- one chunk ---- */

/* Decode one box of a chunk straight into the array. kept: the chunk, if the cache has it. */
static enum sc_status
decode_box(struct sc_reader *reader, struct sc_read_object *object, const struct sc_read_task *t, struct span *span,
           struct sc_kept_chunk *kept, const struct sc_box *part, int64_t offset, const int64_t *strides)
{
    const struct sc_chain *shard = chain_of(object), *inner = chunk_of(object);
    struct sc_kept_chunk *new = NULL;
    const uint8_t *bytes;
    enum sc_status status;

    if (kept) {
        copy_box(reader, object, kept->elements, part, object->item->dst + offset, strides);
        return SC_OK;
    }
    if (span->alone && reads_in_place(object, inner, part, strides)) {
        reader->stats.deep_reads += !reader->seat.worker && !object->input.whole;
        bytes = object->item->dst + offset;
        status = sc_input_read(&object->input, object->item->dst + offset, t->nbytes, t->offset, &reader->stats,
                               &reader->where);
        return status ? status : check_bytes(reader, object, t, bytes);
    }
    status = fetch_task(reader, object, t, span, &bytes);
    if (status)
        return status;
    if (is_narrow(inner, t)) {
        sc_chain_scatter_hull(inner, reader->seat.worker, inner != shard, bytes, part, object->item->dst + offset,
                              strides);
        return SC_OK;
    }
    if (uses_cache(object)) {
        bool at_once = is_remote(object) || (!sc_chain_has_parts(inner) && !sc_box_is_whole(inner, part->count));

        status = keep_chunk(reader, object, t, bytes, at_once, &new);
    }
    if (!status && !new)
        status = sc_chain_decode(inner, reader->seat.worker, inner != shard, bytes, (size_t)t->nbytes, part,
                                 object->item->dst + offset, strides, &reader->where);
    else if (!status)
        copy_box(reader, object, new->elements, part, object->item->dst + offset, strides);
    sc_kept_chunk_release(new);
    return status;
}

/* Describe the elements of a chunk of which only the wanted bytes were read. */
static void
view_narrow(const struct sc_chunk_selection *at, const uint8_t *bytes, struct sc_view *view)
{
    const struct sc_chain *chunk = at->chunk;
    uint64_t low = 0, high;

    sc_selection_bytes(at, &low, &high);
    view->data = (uint8_t *)(uintptr_t)bytes;
    view->offset = -(int64_t)low;
    view->swap = &chunk->swap;
    memcpy(view->strides, chunk->strides, sizeof view->strides);
}

/* Describe the elements of a chunk in the cache. */
static void
view_kept(const struct sc_chain *chunk, struct sc_kept_chunk *kept, struct sc_view *view)
{
    view->data = kept->elements;
    view->offset = 0;
    view->swap = &chunk->swap;
    memcpy(view->strides, chunk->strides, sizeof view->strides);
}

/* Decode a chunk once and move its selected elements to the array. kept: the chunk, if the cache has it. */
static enum sc_status
decode_selected(struct sc_reader *reader, struct sc_read_object *object, const struct sc_read_task *t,
                struct span *span, struct sc_kept_chunk *kept)
{
    const struct sc_chain *shard = chain_of(object);
    struct sc_kept_chunk *new = NULL;
    int64_t strides[SC_MAX_NDIM], offset;
    struct sc_chunk_selection at;
    struct sc_view view;
    struct sc_box part;
    const uint8_t *bytes;
    enum sc_status status = SC_OK;

    if (sc_chain_is_shard(shard))
        sc_selection_in_entry(&at, object->item->selection, shard, &object->touches, t->entry);
    else
        sc_selection_in_object(&at, object->item->selection, shard);
    if (sc_selection_is_box(&at, &part, strides, &offset))
        return decode_box(reader, object, t, span, kept, &part, offset, strides);
    if (!kept)
        status = fetch_task(reader, object, t, span, &bytes);
    if (!status && !kept && uses_cache(object) && !is_narrow(at.chunk, t))
        status = keep_chunk(reader, object, t, bytes, is_remote(object) || !sc_chain_has_parts(at.chunk), &new);
    if (!status && (kept || new)) {
        view_kept(at.chunk, kept ? kept : new, &view);
    } else if (!status && is_narrow(at.chunk, t)) {
        view_narrow(&at, bytes, &view);
    } else if (!status) {
        if (sc_chain_has_parts(at.chunk))
            sc_selection_hull(&at, &part);
        status = sc_chain_view(at.chunk, reader->seat.worker, at.chunk != shard, bytes, (size_t)t->nbytes, &part, &view,
                               &reader->where);
    }
    if (!status)
        sc_selection_move(&at, &view, object->item->dst, false);
    sc_kept_chunk_release(new);
    return status;
}

/* Bring the wanted elements of a chunk into the array: from `kept`, or, if that is NULL, from its bytes in `span`. */
static enum sc_status
decode_task(struct sc_reader *reader, struct sc_read_object *object, const struct sc_read_task *t, struct span *span,
            struct sc_kept_chunk *kept)
{
    const struct sc_chain *shard = chain_of(object);
    uint64_t c[SC_MAX_NDIM];
    struct sc_box part;
    int64_t offset;

    if (object->item->selection)
        return decode_selected(reader, object, t, span, kept);
    if (!sc_chain_is_shard(shard))
        return decode_box(reader, object, t, span, kept, &object->item->box, 0, reader->run->plan->dst_strides);
    sc_walk_coordinates(shard, t->entry, c);
    /* never false, because the box touches the listed chunk */
    sc_walk_cut(&object->walk, shard->inner, c, &part, &offset);
    return decode_box(reader, object, t, span, kept, &part, offset, object->walk.strides);
}

bool
sc_read_object_is_kept(const struct sc_reader *reader, const struct sc_read_object *object,
                       const struct sc_read_task *t)
{
    struct sc_chunk_key key = key_of(object, t);

    return uses_cache(object) && sc_chunks_has(sc_cache_chunks(reader->run->plan->cache), &key);
}

bool
sc_read_object_copy_kept(struct sc_reader *reader, struct sc_read_object *object, const struct sc_read_task *t)
{
    struct sc_chunk_key key = key_of(object, t);
    struct sc_kept_chunk *kept = sc_chunks_find(sc_cache_chunks(reader->run->plan->cache), &key);

    reader->stats.chunk_hits += kept != NULL;
    reader->stats.chunk_misses += kept == NULL;
    if (!kept)
        return false;
    (void)decode_task(reader, object, t, NULL, kept); /* it cannot fail */
    sc_kept_chunk_release(kept);
    return true;
}

/* Copy the chunks that the cache has; return where those begin, in the same order, that it has not. */
static size_t
copy_kept(struct sc_reader *reader, struct sc_read_object *object, size_t begin, size_t end)
{
    size_t n_missing = 0;

    if (sc_seat_begin_work(&reader->seat))
        return begin; /* without a worker nothing can be copied */
    for (size_t i = end; i-- > begin;) {
        struct sc_read_task t = object->tasks[i];

        if (sc_read_object_copy_kept(reader, object, &t))
            continue;
        n_missing++;
        object->tasks[i] = object->tasks[end - n_missing];
        object->tasks[end - n_missing] = t;
    }
    sc_seat_end_work(&reader->seat);
    return end - n_missing;
}

void
sc_read_object_decode(struct sc_reader *reader, struct sc_read_object *object, size_t begin, size_t end)
{
    struct sc_failure *failure = &reader->run->base.failure;
    struct span span;

    if (SC_UNLIKELY(uses_cache(object)))
        begin = copy_kept(reader, object, begin, end);
    if (begin == end)
        return;
    span = span_of(object, begin, end);
    /* The group is in file order. C order is faster in the array: chunks side by side along the last axis share cache
     * lines there. Without memory for the sort the order stays as it is. */
    if (end - begin > 1)
        (void)sort_tasks(object->tasks + begin, end - begin, true, &reader->sort_memory);
    for (size_t i = begin; i < end; i++) {
        const struct sc_read_task *t = &object->tasks[i];
        enum sc_status status;

        if (sc_failure_decides(failure, object->item_no, t->entry))
            continue;
        reader->stats.chunks_decoded++;
        reader->stats.bytes_used += t->nbytes;
        status = decode_task(reader, object, t, &span, NULL);
        if (status) {
            if (sc_chain_is_shard(chain_of(object)))
                reader->where.entry = t->entry;
            sc_failure_note(failure, status, &reader->where, object->item_no);
            sc_where_clear(&reader->where);
        }
    }
}
