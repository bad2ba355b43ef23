/* sc_write_impl.h - structures and steps of writing; for sc_write*.c only
 *
 * Each file calls only files of lower lines:
 *
 *     sc_write.c             a plan: its threads, and one object from begin to commit
 *     sc_write_chunks.c      the inner chunks of one object: claim, encode, place, write
 *     sc_write_carry.c       what a new object keeps of the old one
 *     sc_write_commit.c      the end of an update in the shard's own file: append, overwrite; the tail of any shard
 *     sc_write_file.c        where the bytes of an object go; its new file, written in pieces where calls wait
 *     sc_write_batch.c       encode one batch of inner chunks
 *     sc_write_check.c       checks of debug builds
 *     sc_write_depth.c       more threads where calls wait
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_WRITE_IMPL_H
#define SC_WRITE_IMPL_H

#include "base/sc_check.h"
#include "chain/sc_walk.h"
#include "io/sc_file.h"
#include "io/sc_newfile.h"
#include "plan/sc_depth.h"
#include "plan/sc_run.h"

/* Number of batches of one object that may be encoded before the first of them has its place. */
#define SC_WRITE_WINDOW 8u

/* Some inner chunks, encoded one after the other. */
struct sc_write_batch {
    struct sc_buffer bytes;
    const uint8_t *lent; /* the bytes of one given chunk; NULL: they are in the memory of the batch */
    size_t used;
    uint64_t number;
    size_t n;
    size_t first; /* index of its first chunk among the given encoded chunks */
    uint64_t *positions; /* in the index */
    uint64_t *sizes; /* SC_ABSENT: left out */
    struct sc_write_batch *next;
};

static inline const uint8_t *
sc_write_batch_bytes(const struct sc_write_batch *batch)
{
    return batch->lent ? batch->lent : batch->bytes.data;
}

/* Bytes of a new file that one call writes. */
struct sc_piece {
    struct sc_buffer memory;
    const uint8_t *bytes; /* in the memory of the piece, or of its batch */
    size_t n;
    uint64_t at; /* where they go */
    uint64_t held_nbytes; /* of memory, as counted in run->pieces_nbytes */
    struct sc_write_batch *batch; /* has the bytes; NULL: the piece has them */
    struct sc_piece *next;
};

/* The pieces of one object that are not written yet. */
struct sc_pieces {
    struct sc_piece *open; /* gets the next bytes; belongs to the thread that moves bytes */
    struct sc_piece *first, **last; /* complete ones, which any thread may write; under the mutex of the object */
    unsigned n_writing; /* under the mutex of the object */
};

/* New bytes for slots, held until all are encoded. */
struct sc_slots {
    struct sc_buffer places; /* n pairs: offset in the file, nbytes */
    struct sc_buffer bytes; /* one behind the other */
    size_t n, used;
};

/* Where calls wait, files are written in pieces of at least this size and with this alignment: the default stripe of Lustre,
 * and a part or a multiple of the blocks of other cluster file systems. A file system with larger blocks gets larger pieces. */
#define SC_PIECE_NBYTES ((uint64_t)1 << 20)
#define SC_MAX_PIECE_NBYTES ((uint64_t)4 << 20)

/* An object that is written. Each thread of a run owns one; other threads help to encode its batches. */
struct sc_write_object {
    struct sc_shared shared;
    bool failed; /* under the mutex of `shared` */

    size_t item_no;
    struct sc_write_item *item;
    struct sc_newfile file;
    int old_fd;
    struct sc_file_id old_id; /* of old_fd, if it is not -1 */
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
    const uint8_t *lent; /* the first bytes of the result, in the memory of the caller; the buffer has the rest */
    uint64_t lent_nbytes;
    struct sc_slots slots; /* in_place: new bytes that overwrite old ones */
    bool in_pieces; /* the new file is written in pieces */
    bool is_moving; /* a thread moves bytes into pieces; under the mutex of `shared` */
    struct sc_pieces pieces;
#ifdef SHARDCODEC_CHECKS
    struct sc_buffer sums_memory;
    uint64_t *sums; /* for each inner chunk: 0, or a flag and the checksum of its new bytes */
    uint64_t mark_at; /* where the mark of the tail is; 0: no mark is written */
#endif
};

#define SC_WRITE_MAX_THREADS 256u
_Static_assert(SC_WRITE_MAX_THREADS >= SC_POOL_MAX_READERS, "each reader of the pool may join");

/* How long a step of an object takes without encoding. */
struct sc_timed_step {
    atomic_uint n;
    _Atomic uint64_t least_ns;
};

/* One run of a plan. */
struct sc_write_run {
    struct sc_run base;
    struct sc_write_plan *plan;
    struct sc_depth depth;
    uint64_t n_calls; /* that write the files, about */
    uint64_t deep_ns; /* from this cost of a call on, more of them are worth making at a time */
    atomic_bool is_slow; /* calls that change the file system are known to wait, and `depth` was told so */
    struct sc_timed_step begins, commits; /* of files */
    _Atomic uint64_t piece_nbytes; /* size and alignment of pieces; 0: no file has been looked at */
    _Atomic uint64_t pieces_nbytes; /* memory of all pieces */
    struct sc_write_object
        *_Atomic objects[SC_WRITE_MAX_THREADS]; /* one for each thread that has joined; the others: NULL */
    size_t batch_capacity; /* number of positions in each batch */
    struct sc_write_batch *free_batches; /* under the mutex of `base` */
    struct sc_piece *free_pieces; /* under the mutex of `base` */
    atomic_bool staged; /* the staging folder was used */
};

/* One thread in one run. */
struct sc_writer {
    struct sc_write_run *run;
    unsigned number; /* in the team */
    struct sc_seat seat;
    struct sc_stats stats;
    struct sc_where where;
};

/* True if the object is updated in its own file: the memory then holds the bytes that are appended. */
static inline bool
in_own_file(const struct sc_write_item *item)
{
    return item->append != SC_APPEND_NOT || item->in_place;
}

/* True if the object, or the part from data_offset on that is appended to it, is made in memory. */
static inline bool
in_memory(const struct sc_write_item *item)
{
    return !item->path || in_own_file(item);
}

/* True if the result is not a whole object, but the part from data_offset on. */
static inline bool
is_tail(const struct sc_write_item *item)
{
    return in_own_file(item) || item->onto_old;
}

/* onto_old: return the memory of the old object, in which the new one is made. */
static inline uint8_t *
old_memory(const struct sc_write_item *item)
{
    return (uint8_t *)(uintptr_t)item->old.data;
}

/* ---- sc_write_file.c ---- */

/* True if an earlier object has failed or the plan was cancelled: the result of this object does not count. */
bool sc_write_object_stopped(const struct sc_write_run *run, const struct sc_write_object *object);

/* Write new bytes to the new file, to the result in memory, or to the list of slots. */
enum sc_status sc_write_object_put(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src,
                                   size_t n, uint64_t offset);

/* Begin the new file, if it is not begun. This happens with its first byte, so an object that becomes empty leaves
 * no trace. */
enum sc_status sc_write_file_begin(struct sc_writer *writer, struct sc_write_object *object);

/* Write bytes to the new file; or, in pieces, add them, and write the pieces that are complete. The latter only in the thread
 * of the object while no other thread helps. Many bytes are written by one call, because this thread would wait for each
 * piece. */
enum sc_status sc_write_file_put(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src, size_t n,
                                 uint64_t offset);

/* Add bytes to the pieces of the file, only in one thread at a time. *batch (or NULL): has exactly these bytes; it becomes NULL
 * if a piece has taken it and gives it back when it is written. */
enum sc_status sc_write_file_add(struct sc_writer *writer, struct sc_write_object *object, const uint8_t *src, size_t n,
                                 uint64_t offset, struct sc_write_batch **batch);

/* Under the mutex of the object: take the first complete piece. Every piece that is taken goes to sc_write_file_piece(). */
struct sc_piece *sc_write_file_take(struct sc_write_object *object);

/* Write a piece that was taken, unless `status` is a failure, and give its memory back. Return the status. */
enum sc_status sc_write_file_piece(struct sc_writer *writer, struct sc_write_object *object, struct sc_piece *piece,
                                   enum sc_status status);

/* Write all bytes that are not written yet. Only while no other thread helps. */
enum sc_status sc_write_file_flush(struct sc_writer *writer, struct sc_write_object *object);

/* Give back the pieces of an object that has failed. */
void sc_write_file_drop(struct sc_write_run *run, struct sc_write_object *object);

void sc_write_file_free_pieces(struct sc_write_run *run);

/* ---- sc_write_depth.c ---- */

/* Return about how many bytes the plan writes, and count the calls that this takes. */
uint64_t sc_write_count(struct sc_write_run *run);

/* Before the run: bound its threads. If calls are known to wait, let many pieces be written at a time from the beginning. */
void sc_write_expect_plan(struct sc_write_run *run);

/* A step of an object has taken so long. If its calls wait, let more objects be written at a time. */
void sc_write_expect_objects(struct sc_writer *writer, struct sc_timed_step *step, uint64_t ns);

/* The object needs the old bytes of up to n inner chunks. If reading waits, let more threads help with it. */
void sc_write_expect_reads(struct sc_writer *writer, struct sc_write_object *object, uint64_t n);

/* True if an object whose writing begins now is written in pieces. */
bool sc_write_uses_pieces(const struct sc_write_run *run);

/* Return the size and alignment of the pieces of the run, as the file system of this new file prefers. */
uint64_t sc_write_piece_nbytes(struct sc_write_run *run, int fd);

/* True if the pieces of the run have as many bytes as may be in memory. */
bool sc_write_pieces_full(const struct sc_write_run *run);

/* ---- sc_write_batch.c ---- */

/* Return a batch with room for run->batch_capacity chunks, from the free ones; NULL: no memory. */
struct sc_write_batch *sc_write_batch_take(struct sc_write_run *run);
void sc_write_batch_put(struct sc_write_run *run, struct sc_write_batch *batch);
void sc_write_batch_free(struct sc_write_batch *batch);

/* Encode the inner chunks at batch->positions, one after the other, or copy them if they are encoded already. A
 * failure is noted. From then on inner chunks behind it, in C order, are skipped; those before it may fail too and
 * have precedence. */
void sc_write_batch_encode(struct sc_writer *writer, struct sc_write_object *object, struct sc_write_batch *batch);

/* Encode an object that is one chunk. *nbytes = SC_ABSENT when nothing is to be stored. */
enum sc_status sc_write_batch_encode_whole(struct sc_writer *writer, struct sc_write_object *object,
                                           struct sc_write_batch *batch, uint64_t *nbytes);

/* ---- sc_write_commit.c ---- */

/* The bytes between the last new inner chunk and the index. */
#define SC_MARK_NBYTES 56u
struct sc_tail {
    size_t mark_nbytes; /* 0: no mark */
    uint8_t mark[SC_MARK_NBYTES];
    uint64_t mark_at, footer_at, end;
};

/* Lay out the tail. False: the update puts no index behind the last inner chunk, so the tail stays where it is. */
bool sc_write_object_tail(const struct sc_write_object *object, struct sc_tail *tail);

/* Append object->result and the new index, object->index, to the file of the shard. */
enum sc_status sc_write_object_append(struct sc_writer *writer, struct sc_write_object *object, bool is_marked);

/* Overwrite the slots with their new bytes, and append the rest. */
enum sc_status sc_write_object_overwrite(struct sc_writer *writer, struct sc_write_object *object);

/* ---- sc_write_check.c, for debug builds ---- */

enum sc_status sc_write_check_begin(struct sc_write_object *object);

/* Remember the bytes of new inner chunks. */
void sc_write_check_note(struct sc_write_object *object, uint64_t position, const uint8_t *bytes, uint64_t nbytes);
void sc_write_check_note_batch(struct sc_write_object *object, const struct sc_write_batch *batch);

/* Check all entries before they are stored. tail: NULL if the tail stays where it is. */
void sc_write_check_before(struct sc_write_object *object, const struct sc_tail *tail);

/* Read a shard again, from a file or from the result in memory, and compare it with what was decided. */
void sc_write_check_file(const struct sc_write_object *object, int fd);
void sc_write_check_memory(const struct sc_write_object *object);

/* ---- sc_write_carry.c ---- */

/* Copy the bytes that the new object keeps of the old one, and the given encoded chunks that have a slot among them. */
enum sc_status sc_write_object_carry(struct sc_writer *writer, struct sc_write_object *object);

/* onto_old: pack the kept chunks. All inner chunks are encoded by then, so the replaced bytes are not needed. */
void sc_write_object_pack_old(struct sc_write_object *object);

/* ---- sc_write_chunks.c ---- */

/* Do the next step of the object, for which the thread may have to wait. False: nothing is left to do. */
bool sc_write_object_work(struct sc_writer *writer, struct sc_write_object *object);

/* Place new inner chunks that lie in the memory of the caller as they will lie in the file, so that they are written from there.
 * False: they must be encoded, or copied. */
bool sc_write_object_lend(struct sc_writer *writer, struct sc_write_object *object);

/* Under the mutex of the object: true if another thread can help. `later`: also if it must first wait for another one. */
bool sc_write_object_wants_help(const struct sc_write_run *run, const struct sc_write_object *object, bool later);

#endif
