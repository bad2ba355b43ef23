/* sc_read_impl.h - structures and steps of reading; for sc_read*.c only
 *
 * Each file calls only files of lower lines:
 *
 *     sc_read.c              a plan: its threads, and the pieces of one object
 *     sc_read_plan.c         which inner chunks of an object are to be read
 *     sc_read_fill.c         what does not exist: the fill value
 *     sc_read_index.c        the index of a shard
 *     sc_read_object.c       open an object, read bytes of it, close it
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_READ_IMPL_H
#define SC_READ_IMPL_H

#include "base/sc_radix.h"
#include "base/sc_team.h"
#include "chain/sc_walk.h"
#include "chain/sc_worker.h"
#include "io/sc_undo.h"
#include "plan/sc_engine.h"

/* Filling is cheaper than decoding, and cheaper still in large boxes: so many groups are filled at a time. */
#define SC_FILL_GROUPS 16

/* One inner chunk that is present: its bytes, or, of an uncompressed one, those that hold what is wanted. */
struct sc_read_task {
    uint64_t offset, nbytes, entry;
};

/* An object that is read: a shard, or one chunk. Each thread of a run has one and owns it. */
struct sc_read_object {
    pthread_mutex_t mutex;
    pthread_cond_t left;
    bool ready;
    unsigned helpers; /* other threads that work on it */

    size_t item_no;
    struct sc_read_item *item;
    struct sc_opened file;
    int fd; /* of the file; -1: in memory, or nothing */
    uint64_t nbytes; /* of the object */
    struct sc_undo undo; /* of a file that is being changed in place: it is read as it was before */
    bool is_watched; /* nothing in the chunks would tell that they were changed during the read */
    bool is_changing; /* they were: each read makes sure that it is of one state */
    const int64_t *strides; /* of the array, by axis of the object */
    struct sc_walk walk; /* of the box; unused with a selection */
    struct sc_touches touches; /* of the selection */
    struct sc_index_extent extent;
    struct sc_buffer index; /* stored pairs, from word first_word on */
    uint64_t first_word;
    const uint8_t *pairs;
    struct sc_cached_index *known; /* the index from the cache, instead of pairs */

    struct sc_buffer tasks_memory, absent_memory, sort_memory;
    struct sc_read_task *tasks; /* by offset */
    uint64_t *absent; /* positions in the index */
    size_t n_tasks, next_task, n_absent, next_absent;
    size_t n_parts, next_part;
};

/* One run of a plan. */
struct sc_read_run {
    struct sc_read_plan *plan;
    struct sc_failure failure;
    struct sc_team team;
    struct sc_read_object *objects; /* one for each member of the team */
    pthread_mutex_t mutex;
    struct sc_stats stats; /* under the mutex */
};

/* One thread in one run. */
struct sc_reader {
    struct sc_read_run *run;
    struct sc_worker *worker;
    struct sc_buffer sort_memory;
    struct sc_stats stats;
    struct sc_where where;
};

static inline const struct sc_chain *
chain_of(const struct sc_read_object *object)
{
    return object->item->chain;
}

/* An index read by itself has no plan, and no cache. */
static inline struct sc_cache *
cache_of(const struct sc_reader *reader)
{
    return reader->run ? reader->run->plan->cache : NULL;
}

/* Sort tasks by offset, or by entry. */
static inline enum sc_status
sort_tasks(struct sc_read_task *tasks, size_t n, bool by_entry, struct sc_buffer *scratch)
{
    uint64_t *records = (uint64_t *)(void *)tasks;

    return by_entry ? sc_radix_sort(records, n, 3, 2, scratch) : sc_radix_sort(records, n, 3, 0, scratch);
}

/* ---- sc_read_object.c ---- */

/* Open the object of object->item; object->item->missing tells whether there is one. Close it in any case. */
enum sc_status sc_read_object_open(struct sc_reader *reader, struct sc_read_object *object);
void sc_read_object_close(struct sc_reader *reader, struct sc_read_object *object);
void sc_read_object_free_memory(struct sc_read_object *object);

/* Read n bytes of the file of the object. */
enum sc_status sc_read_object_read(struct sc_reader *reader, const struct sc_read_object *object, uint8_t *dst,
                                   uint64_t n, uint64_t offset);

/* n bytes of the object at `offset`: where they are, or read into `buffer`. The range has been checked against the size. */
enum sc_status sc_read_object_fetch(struct sc_reader *reader, const struct sc_read_object *object, uint64_t offset,
                                    uint64_t n, struct sc_buffer *buffer, const uint8_t **bytes);

/* ---- sc_read_index.c ---- */

/* Find the index in the cache, or read it or the part of it that is needed. */
enum sc_status sc_read_object_load_index(struct sc_reader *reader, struct sc_read_object *object);

/* ---- sc_read_fill.c ---- */

/* Fill what does not exist: part i of n of all that is wanted of an object; absent[begin..end) of a shard. */
void sc_read_object_fill_part(struct sc_reader *reader, const struct sc_read_object *object, size_t i, size_t n);
void sc_read_object_fill_absent(struct sc_reader *reader, const struct sc_read_object *object, size_t begin,
                                size_t end);

/* ---- sc_read_plan.c ---- */

/* Open the object and list what is to be done. No other thread sees it yet. */
enum sc_status sc_read_object_plan(struct sc_reader *reader, struct sc_read_object *object);

#endif
