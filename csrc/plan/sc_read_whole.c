/* sc_read_whole.c - read all bytes of a shard, and its index with them (see sc_engine.h)
 *
 * An index that is read first costs a call before the first inner chunk can be read. Where calls are costly it is read with
 * all other bytes instead, in ranges of the file at the same time, if the shard is small or wanted as a whole.
 *
 * SPDX-License-Identifier: MIT */
#include "plan/sc_read_impl.h"

/* Decoding begins when the last range is there, so more ranges would cost more time than the call saves. */
#define MAX_RANGES 8

/* True if all inner chunks are wanted, and the memory suffices for all of them. */
static bool
wants_all(const struct sc_reader *reader, const struct sc_read_object *object)
{
    const struct sc_read_item *item = object->item;

    return !item->selection && object->input.nbytes <= reader->run->plan->io.max_nbytes &&
           sc_touched_nbytes(item->chain, &item->box) >= item->chain->nbytes;
}

/* Return into how many ranges the file is divided; 0: only what is wanted is read. */
static size_t
n_ranges(const struct sc_reader *reader, const struct sc_read_object *object)
{
    const struct sc_source *source = &object->item->source;
    struct sc_cache *cache = reader->run->plan->cache;
    uint64_t nbytes = object->input.nbytes, worth = sc_depth_worth(object->latency_ns), n;

    if (SC_LIKELY(object->latency_ns < SC_LATENCY_DEEP_NS) || object->input.missing || !nbytes || object->slots ||
        !sc_chain_is_shard(chain_of(object)))
        return 0;
    n = max_u64(1, nbytes / max_u64(worth, reader->run->plan->group_nbytes));
    if (nbytes > worth && (n > MAX_RANGES || !wants_all(reader, object)))
        return 0;
    if (source->entries || (cache && source->path && sc_cache_has(cache, source->path, chain_of(object))))
        return 0; /* the index costs no call */
    return (size_t)n;
}

enum sc_status
sc_read_whole_begin(struct sc_reader *reader, struct sc_read_object *object)
{
    const struct sc_read_plan *plan = reader->run->plan;
    uint64_t nbytes = object->input.nbytes;
    size_t n = n_ranges(reader, object);
    enum sc_status status;

    if (SC_LIKELY(!n))
        return SC_OK;
    expect_calls(reader->run, object->latency_ns, n - 1);
    sc_seat_end_work(&reader->seat);
    if (reader->seat.worker && n > 1 && nbytes > plan->io.max_nbytes / reader->run->depth.most)
        return SC_OK; /* nothing bounds the bytes of a flat run, and each of its threads may read a shard */
    if (!reader->seat.worker) { /* a thread that holds a worker waits for nothing */
        object->room = nbytes + (plan->cache ? chain_of(object)->index.nbytes : 0); /* decoded for the cache */
        sc_depth_enter(&reader->run->depth, object->room, &object->whole);
    }
    status = sc_buffer_reserve(&object->whole, (size_t)nbytes);
    if (status)
        return status;
    object->n_ranges = object->failed_range = n;
    object->range_nbytes = nbytes / n + (nbytes % n != 0);
    object->whole_status = SC_OK;
    return SC_OK;
}

void
sc_read_whole_range(struct sc_reader *reader, struct sc_read_object *object, size_t i)
{
    uint64_t offset = i * object->range_nbytes, n = min_u64(object->range_nbytes, object->input.nbytes - offset);
    enum sc_status status;

    reader->stats.deep_reads += !reader->seat.worker;
    status = sc_input_read(&object->input, object->whole.data + offset, n, offset, &reader->stats, &reader->where);
    if (!status)
        return;
    pthread_mutex_lock(&object->shared.mutex);
    if (i < object->failed_range) { /* so that errors do not depend on timing */
        object->failed_range = i;
        object->whole_status = status;
        object->whole_where = reader->where;
    }
    pthread_mutex_unlock(&object->shared.mutex);
}

enum sc_status
sc_read_whole_end(struct sc_reader *reader, struct sc_read_object *object)
{
    if (object->whole_status)
        reader->where = object->whole_where;
    else
        object->input.whole = object->whole.data;
    return object->whole_status;
}
