/* sc_read_impl.h - what the two halves of reading share: finding out what there is to do, and doing it; for sc_read*.c only
 * SPDX-License-Identifier: MIT */
#ifndef SC_READ_IMPL_H
#define SC_READ_IMPL_H

#include "base/sc_crew.h"
#include "plan/sc_engine.h"
#include "base/sc_radix.h"
#include "io/sc_undo.h"
#include "chain/sc_walk.h"
#include "chain/sc_worker.h"

/* Filling is cheaper than decoding, and cheaper still in large boxes: so many groups are filled at a time. */
#define SC_FILL_GROUPS 16

/* One inner chunk that is present: its bytes, or, of an uncompressed one, those that hold what is wanted. */
struct task {
    uint64_t offset, nbytes, entry;
};

struct stall {
    pthread_mutex_t mutex;
    pthread_cond_t left;
    bool ready;
    unsigned guests; /* other threads at work on it */

    size_t item_no;
    struct sc_read_item *item;
    struct sc_opened file;
    int fd; /* of the file; -1: in memory, or nothing */
    uint64_t nbytes; /* of the object */
    struct sc_undo undo; /* of a file that is being changed in place: it is read as it was before */
    bool is_watched; /* nothing in the chunks would tell that they were changed during the read */
    bool is_changing; /* they were: each read makes sure that it is of one state */
    const int64_t *strides; /* of the array, by axis of the object */
    struct sc_walk walk; /* of the box; unused with a pick */
    struct sc_touches touches; /* of the pick */
    struct sc_index_extent extent;
    struct sc_buffer index; /* stored pairs, from word first_word on */
    uint64_t first_word;
    const uint8_t *pairs;
    struct sc_cached_index *known; /* the index from the cache, instead of pairs */

    struct sc_buffer tasks_memory, absent_memory, sort_memory;
    struct task *tasks; /* by offset */
    uint64_t *absent; /* positions in the index */
    size_t n_tasks, next_task, n_absent, next_absent;
    size_t n_parts, next_part;
};

struct run {
    struct sc_read_plan *plan;
    struct sc_failure failure;
    struct sc_crew crew;
    struct stall *stalls; /* one for each member of the crew */
    pthread_mutex_t mutex;
    struct sc_stats stats; /* under the mutex */
};

/* One thread in one run. */
struct reader {
    struct run *run;
    struct sc_worker *worker;
    struct sc_buffer sort_memory;
    struct sc_stats stats;
    struct sc_where where;
};

static inline const struct sc_chain *
chain_of(const struct stall *stall)
{
    return stall->item->chain;
}

/* An index read by itself has no plan, and no cache. */
static inline struct sc_cache *
cache_of(const struct reader *reader)
{
    return reader->run ? reader->run->plan->cache : NULL;
}

/* Open the object of stall->item and find out what there is to do; the stall is not shared yet. */
enum sc_status sc_stall_plan(struct reader *reader, struct stall *stall);
void sc_stall_close(struct reader *reader, struct stall *stall);
void sc_stall_free_memory(struct stall *stall);

/* The steps of that: open it; find the index, or the part of it that is needed. */
enum sc_status sc_stall_open(struct reader *reader, struct stall *stall);
enum sc_status sc_stall_load_index(struct reader *reader, struct stall *stall);

/* What does not exist has the fill value: part i of n of all that is wanted of an object; absent[begin..end) of a shard. */
void sc_stall_fill_part(struct reader *reader, const struct stall *stall, size_t i, size_t n);
void sc_stall_fill_absent(struct reader *reader, const struct stall *stall, size_t begin, size_t end);

/* n bytes of the file of the object. */
enum sc_status sc_stall_read(struct reader *reader, const struct stall *stall, uint8_t *dst, uint64_t n,
                             uint64_t offset);

/* Sort tasks by offset, or by entry. */
static inline enum sc_status
sort_tasks(struct task *tasks, size_t n, bool by_entry, struct sc_buffer *scratch)
{
    uint64_t *records = (uint64_t *)(void *)tasks;

    return by_entry ? sc_radix_sort(records, n, 3, 2, scratch) : sc_radix_sort(records, n, 3, 0, scratch);
}

/* n bytes of the object at `offset`: where they are, or read into `buffer`. The range has been checked against the size. */
enum sc_status sc_stall_fetch(struct reader *reader, const struct stall *stall, uint64_t offset, uint64_t n,
                              struct sc_buffer *buffer, const uint8_t **bytes);

#endif
