/* sc_depth.h - many reads of one call at a time, while few threads decode
 *
 * Where a call costs a round trip, the threads that decode would wait for most of the time. So a run gets more threads
 * there: readers of the pool (base/sc_pool.h). All threads do the same work, with two limits:
 *
 *     wait for room -> read a group -> wait for a worker -> decode -> give both back
 *     (max_nbytes)                     (n_threads)
 *
 * A thread decodes only while it holds a worker, and a run has one for each of its n_threads. So never more than n_threads
 * compute, and they do not wait as long as data has arrived. The bytes of groups that are being read, or that wait for a
 * worker, are bounded, and so are the bytes of indexes until the inner chunks that they name are listed. A thread holds room
 * for one group or one index at a time. While it has room it waits for a worker, or for another thread that reads an index for
 * the cache, and a thread that does either waits for nothing. So threads cannot wait for each other in a circle.
 *
 * A run begins flat: with n_threads, each of which keeps a worker. It becomes deep when the first of its files turns out to
 * be on a file system where a call costs more than SC_LATENCY_DEEP_NS (io/sc_latency.h), and stays so to its end.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_DEPTH_H
#define SC_DEPTH_H

#include <stdatomic.h>

#include "base/sc_pool.h"
#include "chain/sc_worker.h"
#include "plan/sc_engine.h"

struct sc_depth {
    const struct sc_io_rules *rules;
    struct sc_device_hint *hint; /* of the array; may be NULL */
    struct sc_device_hint place; /* the file system of the files of this run: all are of one array */
    atomic_bool is_placed; /* a thread has looked for it */
    unsigned n_threads; /* that decode at the same time */
    unsigned n_flat; /* threads that take part from the beginning */
    bool allow_in_index; /* of the plan: entries of nested shards may overlap their index */
    unsigned most; /* most threads that may ever join the run: it has a place for each in its lists */
    struct sc_pool_job job;
    atomic_bool is_deep;

    pthread_mutex_t mutex;
    pthread_cond_t has_worker, has_room;
    unsigned n_members; /* threads that were asked for, the caller included */
    uint64_t n_calls; /* that are known to be needed */
    struct sc_worker *free;
    unsigned n_workers; /* free ones and borrowed ones */
    uint64_t nbytes, peak_nbytes; /* of groups that are in memory */
    struct sc_spare *spare; /* their memory, between groups */
    uint64_t spare_nbytes;
};

/* Prepare a run of fn(arg). n_threads decode at the same time; n_flat of them take part from the beginning. */
void sc_depth_init(struct sc_depth *depth, const struct sc_io_rules *rules, unsigned n_threads, unsigned n_flat,
                   void (*fn)(void *arg), void *arg);
void sc_depth_destroy(struct sc_depth *depth);

/* Return the cost of a call on the file system of this file, in nanoseconds: as the rules say, or as measured. */
uint64_t sc_depth_latency(const struct sc_io_rules *rules, const struct sc_file_id *id);

/* Return the expected cost of a call before the first object of a run is opened: as the rules say, or as measured where the array
 * was before. 0: unknown, or the object is in memory. */
uint64_t sc_depth_expected(const struct sc_depth *depth, const struct sc_source *first);

/* Return the cost of a call on the file system of a source that was opened as `file`; 0: unknown, or it is in memory. A missing
 * file counts as on the file system of the other files of the run, or of the array before. If there were none, its folder is
 * looked at, which is one more call. */
uint64_t sc_depth_learn(struct sc_depth *depth, const struct sc_source *source, const struct sc_opened *file);

/* Return how many bytes may be read in place of a call of this cost: reading and copying move half a byte per nanosecond. At
 * most SC_DEPTH_MAX_WORTH. */
#define SC_DEPTH_MAX_WORTH ((uint64_t)4 << 20)
static inline uint64_t
sc_depth_worth(uint64_t latency_ns)
{
    return min_u64(latency_ns / 2, SC_DEPTH_MAX_WORTH);
}

/* The reads of an object: its inner chunks are read in groups of about group_nbytes, with gaps of at most max_gap_nbytes. */
struct sc_read_sizes {
    uint64_t group_nbytes, max_gap_nbytes;
};

/* Return the sizes for `nbytes` of an object where a call costs so much. They are those of a flat run, or larger where calls are
 * costly. But each thread that decodes gets two groups, the memory suffices for one in each thread, and a call that waits beside
 * others costs only its share. */
struct sc_read_sizes sc_depth_sizes(const struct sc_depth *depth, uint64_t latency_ns, uint64_t nbytes,
                                    struct sc_read_sizes flat);

/* Each thread of the run holds so many bytes all the time: let fewer threads join if they are too many together. */
void sc_depth_bound(struct sc_depth *depth, uint64_t nbytes_of_thread);

/* Run fn(arg) in the first n_flat threads, and in those that join later; return when all have left it. */
void sc_depth_run(struct sc_depth *depth);

/* n more calls of this cost are needed. If it is high, let more threads join. */
void sc_depth_expect(struct sc_depth *depth, uint64_t latency_ns, uint64_t n_calls);

static inline bool
sc_depth_is_deep(const struct sc_depth *depth)
{
    return SC_UNLIKELY(atomic_load_explicit(&depth->is_deep, memory_order_relaxed));
}

/* Wait until a group of n bytes fits. One that is larger than the bound waits until it is alone. The thread that leaves gives up
 * its buffer, which becomes empty, and a thread that enters with an empty one gets such memory. So there is memory for the groups
 * that are in it at the same time, not for the largest group of each thread. */
void sc_depth_enter(struct sc_depth *depth, uint64_t n, struct sc_buffer *buffer);
void sc_depth_leave(struct sc_depth *depth, uint64_t n, struct sc_buffer *buffer);

/* ---- one thread of a run ---- */

/* What a thread computes and reads with. In a flat run it keeps a worker; in a deep run it has one only while it decodes or
 * encodes. */
struct sc_seat {
    struct sc_depth *depth;
    struct sc_worker *worker;
    struct sc_buffer
        *io; /* bytes as they lie in a file: the memory of the worker in a flat run, of the thread in a deep one */
    struct sc_buffer own_io;
};

/* Begin and end to take part. Only `depth` is set. */
enum sc_status sc_seat_take(struct sc_seat *seat);
void sc_seat_leave(struct sc_seat *seat);

/* Have a worker for the next step, which may wait until another thread gives one back. SC_NO_MEMORY: there is none. */
enum sc_status sc_seat_begin_work(struct sc_seat *seat);

/* If the run is deep, give the worker back: other threads compute while this one reads, writes or waits. */
void sc_seat_give_back(struct sc_seat *seat);
static inline void
sc_seat_end_work(struct sc_seat *seat)
{
    if (sc_depth_is_deep(seat->depth))
        sc_seat_give_back(seat);
}

#endif
