/* sc_read_impl.h - structures and steps of reading; for sc_read*.c only
 *
 * Each file calls only files of lower lines:
 *
 *     sc_read.c              a plan: its threads, and the pieces of one object
 *     sc_read_plan.c         which inner chunks of an object are to be read
 *     sc_read_decode.c       the bytes of inner chunks, and their elements
 *     sc_read_fill.c         what does not exist: the fill value
 *     sc_read_index.c        the index of a shard
 *     sc_read_disk.c         an object in the cache on a local disk
 *     sc_depth.c             more threads where a call costs a round trip
 *     sc_input.c             open an object, read bytes of it, close it
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_READ_IMPL_H
#define SC_READ_IMPL_H

#include "base/sc_radix.h"
#include "chain/sc_walk.h"
#include "io/sc_latency.h"
#include "plan/sc_depth.h"
#include "plan/sc_input.h"
#include "plan/sc_run.h"

/* Filling is cheaper than decoding, and large boxes are cheaper still: so many groups are filled at a time. */
#define SC_FILL_GROUPS 16

/* One inner chunk that is present: its bytes, or, of an uncompressed one, the bytes that hold the wanted elements. */
struct sc_read_task {
    uint64_t offset, nbytes, entry;
};

/* An object that is read: a shard, or one chunk. Each thread of a run owns one. */
struct sc_read_object {
    struct sc_shared shared;

    size_t item_no;
    struct sc_read_item *item;
    struct sc_input input;
    uint64_t latency_ns; /* of a call on its file system */
    struct sc_read_sizes sizes; /* as in the plan; more where calls are costly */
    struct sc_buffer whole; /* all bytes, if they are read before the index is known */
    uint64_t room; /* bytes in `whole` that are counted by sc_depth_enter() */
    uint64_t range_nbytes; /* of each range that is read into `whole`; the last one may be shorter */
    size_t n_ranges, next_range;
    size_t failed_range; /* the first one that could not be read; n_ranges: none; under the mutex of `shared` */
    enum sc_status whole_status; /* of failed_range */
    struct sc_where whole_where;
    const int64_t *strides; /* of the array, by axis of the object */
    struct sc_walk walk; /* of the box; unused with a selection */
    struct sc_touches touches; /* of the selection */
    uint64_t state; /* under which the cache keeps its inner chunks; 0: it does not */
    struct sc_buffer index; /* stored pairs, from word first_word on; unused if the input has the whole index */
    uint64_t first_word;
    const uint8_t *pairs;

    struct sc_buffer slots_memory;
    const uint8_t *slots; /* of an object in the cache on a local disk; NULL: it is not there */
    bool lacks; /* an inner chunk that is wanted is not there */
    uint64_t changed_ns; /* mtime of the file; 0: so recent that another change could have the same */

    struct sc_buffer tasks_memory, absent_memory, sort_memory;
    struct sc_read_task *tasks; /* by offset; but see n_kept */
    uint64_t *absent; /* positions in the index */
    size_t n_kept; /* the first tasks, again by offset: the cache had their chunks when they were listed */
    size_t n_tasks, next_task, n_absent, next_absent;
    size_t n_parts, next_part;
};

/* Threads of a run. More than the pool has are never useful. */
#define SC_READ_MAX_THREADS 256u
_Static_assert(SC_READ_MAX_THREADS >= SC_POOL_MAX_READERS, "each reader of the pool may join");

/* One run of a plan. */
struct sc_read_run {
    struct sc_run base;
    struct sc_read_plan *plan;
    struct sc_depth depth;
    atomic_bool is_expected; /* the objects of the plan were told to `depth` */
    struct sc_read_object
        *_Atomic objects[SC_READ_MAX_THREADS]; /* one for each thread that has joined; the others: NULL */
};

/* One thread in one run. */
struct sc_reader {
    struct sc_read_run *run;
    struct sc_seat seat; /* in a deep run its own buffer has memory only while the thread has room */
    uint64_t room; /* bytes that are counted by sc_depth_enter(): of an index, or of the group in `seat.io` */
    struct sc_buffer sort_memory;
    struct sc_stats stats;
    struct sc_where where;
};

static inline const struct sc_chain *
chain_of(const struct sc_read_object *object)
{
    return object->item->chain;
}

static inline const struct sc_chain *
chunk_of(const struct sc_read_object *object)
{
    return sc_chain_is_shard(chain_of(object)) ? chain_of(object)->inner : chain_of(object);
}

/* True if only the wanted bytes of the chunk were read. Its size has been checked before. */
static inline bool
is_narrow(const struct sc_chain *chain, const struct sc_read_task *t)
{
    return !chain->n_ops && !chain->inner && t->nbytes < chain->nbytes;
}

/* Sort tasks by offset, or by entry. */
static inline enum sc_status
sort_tasks(struct sc_read_task *tasks, size_t n, bool by_entry, struct sc_buffer *scratch)
{
    uint64_t *records = (uint64_t *)(void *)tasks;

    return by_entry ? sc_radix_sort(records, n, 3, 2, scratch) : sc_radix_sort(records, n, 3, 0, scratch);
}

/* In a deep run wait for room, and memory, for bytes of the file. The thread has neither a worker nor room. */
static inline void
enter_room(struct sc_reader *reader, uint64_t n)
{
    sc_depth_enter(&reader->run->depth, n, &reader->seat.own_io);
    reader->room = n;
}

static inline void
leave_room(struct sc_reader *reader)
{
    if (SC_LIKELY(!reader->room))
        return;
    sc_depth_leave(&reader->run->depth, reader->room, &reader->seat.own_io);
    reader->room = 0;
}

/* n_calls more calls of this cost may wait at the same time. */
static inline void
expect_calls(struct sc_read_run *run, uint64_t latency_ns, uint64_t n_calls)
{
    if (SC_LIKELY(latency_ns < SC_LATENCY_DEEP_NS))
        return;
    sc_team_grow(&run->base.team, run->depth.most);
    sc_depth_expect(&run->depth, latency_ns, n_calls);
}

/* Calls for one object follow each other until its index is known, so each object of the plan is one call at a time. */
static inline void
expect_objects(struct sc_read_run *run, uint64_t latency_ns)
{
    if (SC_UNLIKELY(latency_ns >= SC_LATENCY_DEEP_NS) && !atomic_exchange(&run->is_expected, true))
        expect_calls(run, latency_ns, run->plan->n_items);
}

/* ---- sc_read_whole.c ---- */

/* If all bytes of the object are to be read before its index is known, divide them into ranges, n_ranges > 0. Each range is
 * read by any thread. After the last one its owner ends this; from then on the object is in memory. */
enum sc_status sc_read_whole_begin(struct sc_reader *reader, struct sc_read_object *object);
void sc_read_whole_range(struct sc_reader *reader, struct sc_read_object *object, size_t i);
enum sc_status sc_read_whole_end(struct sc_reader *reader, struct sc_read_object *object);

/* ---- sc_read_disk.c ---- */

/* After the object was opened: if its source is in the cache on a local disk, read the head and the slots. input->missing: the file
 * is of no use. */
enum sc_status sc_read_disk_open(struct sc_reader *reader, struct sc_read_object *object);

/* True if the bytes of an inner chunk have been compared since the file changed, so that parts of them may be read. */
bool sc_read_disk_was_compared(const struct sc_read_object *object, uint64_t entry);

/* As sc_input_find_index(): take the index from the cache in memory, or from the file. */
enum sc_status sc_read_disk_find_index(struct sc_reader *reader, struct sc_read_object *object);

/* Note that an inner chunk is wanted. At the end of the plan the whole object counts as missing if one is not there. */
void sc_read_disk_note(struct sc_read_object *object, uint64_t entry);
void sc_read_disk_end_plan(struct sc_read_object *object);

/* Compare the bytes of an inner chunk with its slot, unless that was done. SC_CHANGED: they are torn. */
enum sc_status sc_read_disk_check(struct sc_reader *reader, const struct sc_read_object *object,
                                  const struct sc_read_task *t, const uint8_t *bytes);

/* ---- sc_read_index.c ---- */

/* Take the index from the cache, or read it, or read the needed part of it. */
enum sc_status sc_read_object_load_index(struct sc_reader *reader, struct sc_read_object *object);

/* Release the index, after the tasks are listed or listing them has failed. That of an object on the disk has notes for later. */
void sc_read_object_drop_index(struct sc_reader *reader, struct sc_read_object *object);

/* ---- sc_read_fill.c ---- */

/* Fill missing elements: part i of n of all that the plan wants of an object; absent[begin..end) of a shard. */
void sc_read_object_fill_part(struct sc_reader *reader, const struct sc_read_object *object, size_t i, size_t n);
void sc_read_object_fill_absent(struct sc_reader *reader, const struct sc_read_object *object, size_t begin,
                                size_t end);

/* ---- sc_read_decode.c ---- */

/* Decode tasks[begin..end), which are one group. After a failure inner chunks behind it, in C order, are skipped. Those
 * before it still count: the lowest failure is reported. */
void sc_read_object_decode(struct sc_reader *reader, struct sc_read_object *object, size_t begin, size_t end);

/* True if the cache has a chunk. */
bool sc_read_object_is_kept(const struct sc_reader *reader, const struct sc_read_object *object,
                            const struct sc_read_task *t);

/* Copy a chunk if the cache has it; false: it has not. The thread has a worker. */
bool sc_read_object_copy_kept(struct sc_reader *reader, struct sc_read_object *object, const struct sc_read_task *t);

/* The bytes of a group are no longer needed. In a deep run other threads get their room, and the worker. */
void sc_read_end_decoding(struct sc_reader *reader);

/* ---- sc_read_plan.c ---- */

/* Open the object. No other thread sees it yet. */
enum sc_status sc_read_object_open(struct sc_reader *reader, struct sc_read_object *object);

/* List what is to be done. */
enum sc_status sc_read_object_plan(struct sc_reader *reader, struct sc_read_object *object);

/* Close the object and give back its room. */
void sc_read_object_close(struct sc_read_run *run, struct sc_read_object *object);

/* Free the memory of its lists. */
void sc_read_object_free(struct sc_read_object *object);

#endif
