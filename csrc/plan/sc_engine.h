/* sc_engine.h - plans: boxes and other selections of many shards, read or written by several threads in one call
 *
 * A plan is built with the GIL held and run without it. It names objects (a local file, or bytes in memory). For each object
 * it has the chain of codecs, a box of elements, and the place of these in the caller's array. Instead of the box there may be
 * a *selection*: several boxes, index lists, or points (sc_selection.h). An object is either a *shard* (its chain is
 * sharding_indexed and nothing follows), of which only the inner chunks under the box are touched, or a *whole*: a chunk of an
 * unsharded array, or a shard behind further codecs.
 *
 * How threads share a read. Each thread opens objects of its own, one at a time. It reads the index, checks the entries that
 * it needs and sorts them by offset. Neighbours in the file form a *group*: one pread, then decode and scatter. A thread that
 * finds no object left takes groups of shards that other threads have open.
 *
 *     thread 0   open 0  index  |group|group|group|group| close   open 2 ...
 *     thread 1   open 1  index  |group|group| close    steal: |group of 2|group of 2|
 *
 * So at most one object per thread is open, memory is the touched part of one index per thread plus scratch, and one
 * large shard is decoded by all threads as well as many small ones.
 *
 * Failures: the one in the lowest object of the plan is reported, whatever the timing; objects after it may be left out.
 * Within an object a bad entry of the index comes before anything in the chunks, and then the lowest inner chunk counts.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_ENGINE_H
#define SC_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sc_cancel.h"
#include "chain/sc_selection.h"
#include "io/sc_append.h"
#include "io/sc_file.h"
#include "plan/sc_cache.h"

/* Where an object's bytes are. */
struct sc_source {
    const char *path;    /* a local file; NULL: in memory */
    const uint8_t *data; /* in memory; NULL with path NULL: the object does not exist */
    uint64_t nbytes;
    bool is_open; /* fd is the file, whatever name it has by now; the caller's. path only names it in errors then */
    int fd;

    /* A shard whose index is known already: n_chunks entries in C order, checked. `data` then holds only bytes
     * [first, first + nbytes) of the object; inner chunks that do not lie inside are left for another plan, and absent
     * ones are filled only if fill_absent. So ranges that arrive one by one are decoded one by one. */
    const struct sc_entry *entries;
    uint64_t first;
    bool fill_absent;
};

/* What was done; adds up over the threads. */
struct sc_stats {
    uint64_t opens, reads, bytes_read;
    uint64_t bytes_used; /* encoded bytes that were decoded; what else was read are indexes and gaps */
    uint64_t chunks_decoded, chunks_filled, chunks_encoded, bytes_written;
    uint64_t index_hits, index_misses, file_hits; /* of the cache */
};

/* ---- reading ---- */

struct sc_read_item {
    const struct sc_chain *chain;
    struct sc_source source;
    struct sc_box box;
    uint8_t *dst;               /* the box's first element; with a selection: the array's */
    const struct sc_selection *selection; /* what is wanted where that is not one box; NULL: the box */
    bool missing;               /* out: the object does not exist, what was wanted of it was filled */
};

struct sc_read_plan {
    struct sc_read_item *items;
    size_t n_items;
    int64_t dst_strides[SC_MAX_NDIM]; /* bytes per selected element along each axis of the box */
    unsigned n_threads;
    uint64_t max_gap_nbytes;   /* ranges this close share one read */
    uint64_t group_nbytes;     /* decoded bytes of one group, about */
    bool allow_in_index;
    struct sc_cache *cache; /* for local files; may be NULL */
    bool immutable;         /* files that the cache holds open are used without a look at their names */
    struct sc_cancel *cancel; /* may be NULL */
    struct sc_stats stats;    /* out */
};

/* If a server declares a file handle stale (ESTALE: the file was replaced there), the whole plan is read again. */
enum sc_status sc_read(struct sc_read_plan *plan, struct sc_where *where);

/* Read and check whole indexes: entries (n_chunks of them, with room for the checksums of the stored index behind them)
 * in C order, each present one checked against the object's size, and its nbytes against what the chain can make of an
 * inner chunk. `replaced` (n_chunks flags, or NULL) names inner chunks that the caller replaces: a bad entry of
 * theirs becomes absent instead of being an error; *n_bad (or NULL) says how many, for what is stored is not what
 * `entries` says then. *shard_nbytes = SC_ABSENT when the object does not exist (entries are untouched then). */
enum sc_status sc_read_index(const struct sc_chain *shard, const struct sc_source *source, bool allow_in_index,
                             const uint8_t *replaced, struct sc_entry *entries, uint64_t *shard_nbytes, uint64_t *n_bad,
                             struct sc_where *where);

/* List the ranges of a shard that a box or selection needs from a remote store. The index is known (source.entries). Ranges
 * ascend. Those with gaps up to max_gap_nbytes become one, of at most max_nbytes. Up to `capacity` are stored, *n_ranges
 * counts all. Only entries that are needed are checked; on failure where->entry is the lowest bad one.
 * Of the item only chain, source.entries, box and selection are used.
 * Of an uncompressed chunk only what is wanted is asked for, unless the size of the object is SC_UNKNOWN_NBYTES: then the
 * answer must show that the chunk is there to its end. */
#define SC_UNKNOWN_NBYTES ((uint64_t)INT64_MAX)
enum sc_status sc_plan_ranges(const struct sc_read_item *item, const struct sc_index_extent *extent,
                              bool allow_in_index, uint64_t max_gap_nbytes, uint64_t max_nbytes,
                              struct sc_entry *ranges, size_t capacity, size_t *n_ranges, struct sc_where *where);

/* ---- writing ---- */

/* An inner chunk that is encoded already. */
struct sc_encoded {
    uint64_t position; /* in the index */
    const uint8_t *bytes;
    uint64_t nbytes;
};

struct sc_write_item {
    const struct sc_chain *chain;
    const char *path;           /* NULL: the new object is left in result */
    struct sc_box box;
    const uint8_t *src;         /* the box's first element in the caller's array; with a selection: the array's */
    const struct sc_selection *selection; /* what is given where that is not one box; NULL: the box */

    /* Shard: inner chunks instead of a box, each position once; they are laid out in this order. Their bytes are stored as
     * they are, of any size; what goes is absent from `entries`, and named nowhere. NULL: the box counts. */
    const struct sc_encoded *encoded;
    size_t n_encoded;

    /* What the new object keeps of the old one; decided by the caller, which holds the object's lock. */
    struct sc_source old; /* read for inner chunks that the box covers in part, and for the carried runs; the size of
                                 * a shard must be given, that of a whole in a file is measured */
    const struct sc_entry *old_entries; /* shard: its entries, checked; NULL: nothing to keep */
    const struct sc_carry *carries;
    size_t n_carries;
    struct sc_entry *entries; /* shard: in: what is carried, at its new offset, and slots that new chunks of that very
                                 * size shall take; out: the new index. n_chunks of them */
    uint64_t data_offset; /* shard: where the first new chunk goes */
    const uint8_t *footer; /* shard: bytes behind the last new chunk, before an index at the end */
    size_t footer_nbytes;
    uint64_t alignment; /* shard: new chunks begin at a multiple of this; 0: anywhere */
    bool marks; /* shard: a mark before the footer tells what is the user's (sc_write_tail.c) */
    uint64_t header_nbytes; /* for the mark */
    const struct sc_file_stamp *stamp; /* what the old file looked like when it was looked at; NULL: not known */
    enum sc_append_way
        append; /* shard: update it in its own file. Nothing is carried, no slot is used again, and the new
                                * chunks are held in memory until all are there */
    bool
        in_place; /* shard: new chunks that fit a slot which `entries` names overwrite it (one that belongs to no other chunk,
                    * nor touches the index), with an undo journal; the others are appended that way, if there is one */
    bool onto_old; /* shard without a path: old.data may be written to, and the new object is made of it: old.data up to
                    * data_offset, then the result. The runs lie side by side up to data_offset, in the order of the
                    * old object, and none is moved away from its beginning */
    bool only_new; /* there was no object when the caller looked: one that is there by now must not be replaced */

    /* out */
    bool declined; /* append or in_place, and this file does not allow that: nothing has been done */
    bool exists; /* only_new, and there is one: nothing has been done */
    uint8_t *result; /* malloc'ed; NULL when the object is empty: it was or is to be deleted */
    uint64_t result_nbytes;
    bool empty;
    struct sc_file_version made; /* the state of the file that this write has left there; inode 0: none */
};

struct sc_write_plan {
    struct sc_write_item *items;
    size_t n_items;
    int64_t src_strides[SC_MAX_NDIM];
    struct sc_write_rules rules;
    const char *staging; /* folder for temporary names (sc_staging.h); NULL: none */
    unsigned n_threads;
    uint64_t batch_nbytes; /* decoded bytes encoded at a time, about */
    bool sync;
    bool allow_in_index; /* in nested shards that are decoded; the outermost entries are the caller's to check */
    struct sc_cancel *cancel; /* may be NULL; items that are finished stay, the others are as they were */
    struct sc_stats stats;
};

/* On failure the items before the failing one may have been written, each whole; the failing one is as it was. */
enum sc_status sc_write(struct sc_write_plan *plan, struct sc_where *where);

/* ---- both ---- */

/* The first failure in plan order, kept under a lock. */
struct sc_failure {
    _Atomic uint64_t shard; /* SC_NOWHERE: none; read without the lock to skip what comes after */
    struct sc_where where;
    enum sc_status status;
    pthread_mutex_t mutex;
};

void sc_failure_init(struct sc_failure *failure);
void sc_failure_note(struct sc_failure *failure, enum sc_status status, const struct sc_where *where, uint64_t shard);

/* After the last thread has left: the outcome of the plan. */
enum sc_status sc_failure_end(struct sc_failure *failure, struct sc_where *where);

/* True if there is a failure at or before this inner chunk: its result does not count. */
bool sc_failure_settles(struct sc_failure *failure, uint64_t shard, uint64_t entry);

/* True if there is a failure in an earlier object: the result of this one does not count. */
static inline bool
sc_failure_before(const struct sc_failure *failure, uint64_t shard)
{
    return SC_UNLIKELY(atomic_load_explicit(&failure->shard, memory_order_relaxed) < shard);
}

void sc_stats_add(struct sc_stats *total, const struct sc_stats *part);

/* What this process has done since it began, or since the last reset. Plans add to it when they end. */
void sc_totals_add(const struct sc_stats *part);
void sc_totals_get(struct sc_stats *totals);
void sc_totals_reset(void);

/* The number of threads that is worth its cost for so much decoded data in so many objects. At least 1. */
unsigned sc_threads_for(uint64_t nbytes, uint64_t n_objects, unsigned n_threads);

#endif
