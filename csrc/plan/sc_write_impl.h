/* sc_write_impl.h - what the halves of writing share: encoding units, and making objects of them; for sc_write*.c only
 * SPDX-License-Identifier: MIT */
#ifndef SC_WRITE_IMPL_H
#define SC_WRITE_IMPL_H

#include "base/sc_crew.h"
#include "plan/sc_engine.h"
#include "io/sc_file.h"
#include "io/sc_newfile.h"
#include "chain/sc_walk.h"
#include "chain/sc_worker.h"

/* How many units of one object may be encoded before the first of them has its place. */
#define WINDOW 8u

/* Some inner chunks, encoded one after the other. */
struct unit {
    struct sc_buffer bytes;
    size_t used;
    uint64_t number;
    size_t n;
    size_t first;        /* of the encoded chunks that are given, if there are such */
    uint64_t *positions; /* in the index */
    uint64_t *sizes;     /* SC_ABSENT: left out */
    struct unit *next;
};

/* New bytes for slots, held until all are there. */
struct slots {
    struct sc_buffer places; /* n pairs: offset in the file, nbytes */
    struct sc_buffer bytes;  /* one behind the other */
    size_t n, used;
};

struct bench {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ready;
    bool failed;
    unsigned guests;

    size_t item_no;
    struct sc_write_item *item;
    struct sc_newfile file;
    int old_fd;
    struct sc_walk walk; /* of the box */
    struct sc_touches touches; /* of the pick */
    struct sc_order_iter order;
    const struct sc_encoded *given; /* encoded chunks that have no place yet */
    size_t n_given, next_given;
    struct sc_buffer given_memory;
    size_t unit_chunks;
    uint64_t unit_nbytes;
    bool all_claimed;
    uint64_t n_claimed, n_placed;
    struct unit *window[WINDOW];
    uint64_t at; /* where the next unit goes */
    struct sc_entry *entries;
    struct sc_buffer entries_memory, index, result;
    struct slots slots; /* in_place: what overwrites old bytes */
};

struct run {
    struct sc_write_plan *plan;
    struct sc_failure failure;
    struct sc_crew crew;
    struct bench *benches; /* one for each member of the crew */
    size_t unit_capacity;  /* positions that every unit has room for */
    pthread_mutex_t mutex;
    struct unit *free_units; /* under the mutex, as are the counters */
    struct sc_stats stats;
    atomic_bool staged;   /* the staging folder was used */
    atomic_bool journals; /* for undo journals */
};

struct writer {
    struct run *run;
    struct sc_worker *worker;
    struct sc_stats stats;
    struct sc_where where;
};

/* The object is made in memory, or, when bytes are appended to one, what will be appended is: from data_offset on. */
static inline bool
in_memory(const struct bench *bench)
{
    return !bench->item->path || bench->item->append != SC_APPEND_NOT || bench->item->in_place;
}

/* The object is updated in its own file: what is in memory is what comes behind its bytes. */
static inline bool
in_own_file(const struct sc_write_item *item)
{
    return item->append != SC_APPEND_NOT || item->in_place;
}

/* The result is no whole object, but what comes from data_offset on. */
static inline bool
is_tail(const struct sc_write_item *item)
{
    return in_own_file(item) || item->onto_old;
}

/* onto_old: the old object's memory, which is the new one's from now on. */
static inline uint8_t *
old_memory(const struct sc_write_item *item)
{
    return (uint8_t *)(uintptr_t)item->old.data;
}

/* Is there no use in going on with the object: an earlier one has failed, or the plan is cancelled? */
bool sc_bench_stopped(const struct run *run, const struct bench *bench);

/* Put new bytes where they go: into the new file, into memory, or aside for their slot. */
enum sc_status sc_bench_put(struct writer *writer, struct bench *bench, const uint8_t *src, size_t n, uint64_t offset);

/* Begin the new file, unless it is. That is done with its first byte: an object that turns out empty leaves no trace. */
enum sc_status sc_bench_begin_file(struct writer *writer, struct bench *bench);

/* Copy what the new object keeps of the old one, and what of the given encoded chunks has its place there. */
enum sc_status sc_bench_carry(struct writer *writer, struct bench *bench);

/* onto_old: move together what is kept. All inner chunks are encoded by then, so that nobody needs what was replaced. */
void sc_bench_pack_old(struct bench *bench);

/* Encode one unit of the bench, place and write what can be. False: nothing is left to claim. */
bool sc_bench_work(struct writer *writer, struct bench *bench);

/* Append what is in bench->result to the shard's file, and the new index, which is in bench->index. */
enum sc_status sc_bench_append(struct writer *writer, struct bench *bench, bool is_marked);

/* Keep bytes that shall overwrite a slot; overwrite all of them, and append the rest. */
enum sc_status sc_slots_add(struct slots *slots, const uint8_t *src, size_t n, uint64_t offset);
enum sc_status sc_bench_overwrite(struct writer *writer, struct bench *bench);

/* What comes between the last new inner chunk and the index. */
#define SC_MARK_NBYTES 56u
struct tail {
    size_t mark_nbytes; /* 0: no mark */
    uint8_t mark[SC_MARK_NBYTES];
    uint64_t mark_at, footer_at, end;
};

/* Lay it out; false: the update puts no index behind the last inner chunk, so that all of it stays where it is. */
bool sc_bench_tail(const struct bench *bench, struct tail *tail);

/* A unit with room for run->unit_capacity chunks, from the free ones; NULL: no memory. */
struct unit *sc_unit_take(struct run *run);
void sc_unit_put(struct run *run, struct unit *unit);
void sc_unit_free(struct unit *unit);

/* Encode the inner chunks at unit->positions, one after the other, or take them from the caller where they are encoded. A failure is noted; inner chunks behind it, in C order,
 * are left out from then on, those before it may fail too and count more. */
void sc_unit_encode(struct writer *writer, struct bench *bench, struct unit *unit);

/* Encode an object that is one chunk. *nbytes = SC_ABSENT when nothing is to be stored. */
enum sc_status sc_unit_encode_whole(struct writer *writer, struct bench *bench, struct unit *unit, uint64_t *nbytes);

#endif
