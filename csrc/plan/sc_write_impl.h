/* sc_write_impl.h - structures and steps of writing; for sc_write*.c only
 *
 * Each file calls only files of lower lines:
 *
 *     sc_write.c             a plan: its threads, and one object from begin to commit
 *     sc_write_chunks.c      the inner chunks of one object: claim, encode, place, write
 *     sc_write_carry.c       what a new object keeps of the old one
 *     sc_write_inplace.c     the end of an update that overwrites inner chunks
 *     sc_write_append.c      the end of an update that appends
 *     sc_write_batch.c       encode one batch of inner chunks
 *     sc_write_tail.c        layout of the bytes behind the last inner chunk
 *     sc_write_object.c      where the bytes of an object go
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_WRITE_IMPL_H
#define SC_WRITE_IMPL_H

#include "base/sc_team.h"
#include "chain/sc_walk.h"
#include "chain/sc_worker.h"
#include "io/sc_file.h"
#include "io/sc_newfile.h"
#include "plan/sc_engine.h"

/* How many batches of one object may be encoded before the first of them has its place. */
#define SC_WRITE_WINDOW 8u

/* Some inner chunks, encoded one after the other. */
struct sc_write_batch {
    struct sc_buffer bytes;
    size_t used;
    uint64_t number;
    size_t n;
    size_t first; /* of the encoded chunks that are given, if there are such */
    uint64_t *positions; /* in the index */
    uint64_t *sizes; /* SC_ABSENT: left out */
    struct sc_write_batch *next;
};

/* New bytes for slots, held until all are there. */
struct sc_slots {
    struct sc_buffer places; /* n pairs: offset in the file, nbytes */
    struct sc_buffer bytes; /* one behind the other */
    size_t n, used;
};

/* An object that is written. Each thread of a run has one and owns it; the others help to encode its batches. */
struct sc_write_object {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ready;
    bool failed;
    unsigned helpers;

    size_t item_no;
    struct sc_write_item *item;
    struct sc_newfile file;
    int old_fd;
    struct sc_walk walk; /* of the box */
    struct sc_touches touches; /* of the selection */
    struct sc_order_iter order;
    const struct sc_encoded *given; /* encoded chunks that have no place yet */
    size_t n_given, next_given;
    struct sc_buffer given_memory;
    size_t batch_chunks;
    uint64_t batch_nbytes;
    bool all_claimed;
    uint64_t n_claimed, n_placed;
    struct sc_write_batch *window[SC_WRITE_WINDOW];
    uint64_t at; /* where the next batch goes */
    struct sc_entry *entries;
    struct sc_buffer entries_memory, index, result;
    struct sc_slots slots; /* in_place: what overwrites old bytes */
};

/* One run of a plan. */
struct sc_write_run {
    struct sc_write_plan *plan;
    struct sc_failure failure;
    struct sc_team team;
    struct sc_write_object *objects; /* one for each member of the team */
    size_t batch_capacity; /* positions that every batch has room for */
    pthread_mutex_t mutex;
    struct sc_write_batch *free_batches; /* under the mutex, as are the counters */
    struct sc_stats stats;
    atomic_bool staged; /* the staging folder was used */
    atomic_bool journals; /* for undo journals */
};

/* One thread in one run. */
struct sc_writer {
    struct sc_write_run *run;
    struct sc_worker *worker;
    struct sc_stats stats;
    struct sc_where where;
};

/* The object is made in memory, or, when bytes are appended to one, what will be appended is: from data_offset on. */
static inline bool
in_memory(const struct sc_write_object *object)
{
    return !object->item->path || object->item->append != SC_APPEND_NOT || object->item->in_place;
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

/* onto_old: the memory of the old object, in which the new one is made. */
static inline uint8_t *
old_memory(const struct sc_write_item *item)
{
    return (uint8_t *)(uintptr_t)item->old.data;
}

/* ---- sc_write_object.c ---- */

/* True if an earlier object has failed or the plan was cancelled: the result of this object does not count. */
bool sc_write_object_stopped(const struct sc_write_run *run, const struct sc_write_object *object);

/* Put new bytes where they go: into the new file, into memory, or aside for their slot. */
enum sc_status sc_write_object_put(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src,
                                   size_t n, uint64_t offset);

/* Begin the new file, unless it is begun. That is done with its first byte: an object that turns out empty leaves no trace. */
enum sc_status sc_write_object_begin_file(struct sc_writer *writer, struct sc_write_object *object);

/* ---- sc_write_tail.c ---- */

/* What comes between the last new inner chunk and the index. */
#define SC_MARK_NBYTES 56u
struct sc_tail {
    size_t mark_nbytes; /* 0: no mark */
    uint8_t mark[SC_MARK_NBYTES];
    uint64_t mark_at, footer_at, end;
};

/* Lay it out; false: the update puts no index behind the last inner chunk, so that all of it stays where it is. */
bool sc_write_object_tail(const struct sc_write_object *object, struct sc_tail *tail);

/* ---- sc_write_batch.c ---- */

/* A batch with room for run->batch_capacity chunks, from the free ones; NULL: no memory. */
struct sc_write_batch *sc_write_batch_take(struct sc_write_run *run);
void sc_write_batch_put(struct sc_write_run *run, struct sc_write_batch *batch);
void sc_write_batch_free(struct sc_write_batch *batch);

/* Encode the inner chunks at batch->positions, one after the other, or take them from the caller if they are encoded
 * already. A failure is noted. Inner chunks behind it, in C order, are left out from then on; those before it may fail too,
 * and count more. */
void sc_write_batch_encode(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch *batch);

/* Encode an object that is one chunk. *nbytes = SC_ABSENT when nothing is to be stored. */
enum sc_status sc_write_batch_encode_whole(struct sc_writer *writer, struct sc_write_object *object,
                                           struct sc_write_batch *batch, uint64_t *nbytes);

/* ---- sc_write_append.c and sc_write_inplace.c ---- */

/* Append what is in object->result to the shard's file, and the new index, which is in object->index. */
enum sc_status sc_write_object_append(struct sc_writer *writer, struct sc_write_object *object, bool is_marked);

/* Overwrite the slots with the new bytes that were put aside for them, and append the rest. */
enum sc_status sc_write_object_overwrite(struct sc_writer *writer, struct sc_write_object *object);

/* ---- sc_write_carry.c ---- */

/* Copy what the new object keeps of the old one, and what of the given encoded chunks has its place there. */
enum sc_status sc_write_object_carry(struct sc_writer *writer, struct sc_write_object *object);

/* onto_old: move together what is kept. All inner chunks are encoded by then, so the replaced bytes are not needed. */
void sc_write_object_pack_old(struct sc_write_object *object);

/* ---- sc_write_chunks.c ---- */

/* Encode one batch of the object, place and write what can be. False: nothing is left to claim. */
bool sc_write_object_work(struct sc_writer *writer, struct sc_write_object *object);

#endif
