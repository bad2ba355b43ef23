/* sc_write_depth.c - many objects and many pieces of a file at a time, while few threads encode (see sc_depth.h)
 *
 * A new file costs several calls that may wait: lstat(), open(), mkdir(), fsync(), close(), linkat(). They follow each other
 * within one object, so where they wait, more objects are written at a time. The calls that write one file do not depend on
 * each other, so more of them wait at a time, too (sc_write_file.c). A run learns that calls wait from the estimate for the
 * file system (io/sc_latency.h), or from the first steps of objects, if each of them takes long.
 *
 * SPDX-License-Identifier: MIT */
#include <sys/stat.h>

#include "base/sc_alloc.h"
#include "io/sc_latency.h"
#include "plan/sc_write_impl.h"

/* From this cost of a call on, several objects or pieces at a time are worth a change of threads. Calls that change a local
 * file system cost less, and sometimes as much by chance. Pieces are copied into new memory, too: 32 MiB in objects of 4 MiB took
 * 20 ms of processor time more. So a call has to cost 1 ns more for each 16 bytes of an object, but at most MOST_MORE_NS: where calls
 * cost so much, each write of a piece may wait as long. */
#define DEEP_NS ((uint64_t)100 * 1000)
#define NBYTES_PER_NS 16u
#define MOST_MORE_NS ((uint64_t)300 * 1000)

/* To begin or to commit a file takes at least so many calls. */
#define CALLS_PER_STEP 3u

/* One step may take long because its thread has lost the processor. */
#define ENOUGH_STEPS 2u

static void
expect(struct sc_write_run *run, uint64_t latency_ns, uint64_t n_calls)
{
    sc_team_grow(&run->base.team, run->depth.most);
    sc_depth_expect(&run->depth, latency_ns, n_calls);
}

/* Return the cost of a call on the file system of the staging folder, which is that of the store; 0: unknown. */
static uint64_t
latency_of(const struct sc_write_plan *plan)
{
    char *folder;
    struct stat st;
    bool found;

    if (plan->io.latency_ns != SC_IO_MEASURED)
        return plan->io.latency_ns;
    if (!plan->staging)
        return 0;
    folder = sc_file_folder_of(plan->staging); /* the staging folder itself exists only while it is used */
    found = folder && stat(folder, &st) == 0;
    sc_free(folder);
    return found ? sc_latency_of((uint64_t)st.st_dev) : 0;
}

/* ---- before the run ---- */

/* Estimate the work of an item. */
static uint64_t
item_nbytes(const struct sc_write_item *item)
{
    uint64_t nbytes = 0;

    if (item->selection)
        return sc_selection_nbytes(item->selection, item->chain);
    if (!item->encoded)
        return sc_box_nbytes(item->chain, &item->box);
    for (size_t i = 0; i < item->n_encoded; i++)
        nbytes += item->encoded[i].nbytes;
    return nbytes;
}

uint64_t
sc_write_count(struct sc_write_run *run)
{
    const struct sc_write_plan *plan = run->plan;
    uint64_t nbytes = 0;

    for (size_t i = 0; i < plan->n_items; i++) {
        const struct sc_write_item *item = &plan->items[i];
        uint64_t of_item = item_nbytes(item);
        uint64_t n_pieces = sc_chain_is_shard(item->chain) && !in_memory(item) ? of_item / SC_PIECE_NBYTES : 1;

        nbytes += of_item;
        run->n_calls += max_u64(n_pieces, 1);
    }
    run->deep_ns = DEEP_NS + min_u64(nbytes / max_u64(plan->n_items, 1) / NBYTES_PER_NS, MOST_MORE_NS);
    return nbytes;
}

/* Return about how many bytes a thread of the plan holds: an encoded batch, pieces, the old and the new index. */
static uint64_t
nbytes_of_thread(const struct sc_write_plan *plan)
{
    uint64_t index_nbytes = 0, chunk_nbytes = 0;

    for (size_t i = 0; i < plan->n_items; i++) {
        const struct sc_chain *chain = plan->items[i].chain;

        if (sc_chain_is_shard(chain)) {
            index_nbytes = max_u64(index_nbytes, chain->index.pairs_nbytes);
            chunk_nbytes = max_u64(chunk_nbytes, chain->inner->nbytes);
        } else {
            chunk_nbytes = max_u64(chunk_nbytes, chain->nbytes);
        }
    }
    chunk_nbytes = max_u64(plan->batch_nbytes, min_u64(chunk_nbytes, UINT64_MAX / 8));
    return 2 * (chunk_nbytes + min_u64(index_nbytes, UINT64_MAX / 8) + SC_PIECE_NBYTES);
}

void
sc_write_expect_plan(struct sc_write_run *run)
{
    uint64_t latency_ns = run->n_calls > 1 ? latency_of(run->plan) : 0;

    sc_depth_bound(&run->depth, nbytes_of_thread(run->plan));
    if (SC_LIKELY(latency_ns < run->deep_ns))
        return;
    atomic_store(&run->is_slow, true);
    expect(run, latency_ns, run->n_calls);
}

/* ---- during the run ---- */

void
sc_write_expect_objects(struct sc_writer *writer, struct sc_timed_step *step, uint64_t ns)
{
    struct sc_write_run *run = writer->run;
    const struct sc_io_rules *rules = &run->plan->io;
    size_t n_left = sc_team_left(&run->base.team);
    uint64_t least = atomic_load(&step->least_ns), latency_ns;
    unsigned n = atomic_fetch_add(&step->n, 1) + 1;

    while ((!least || ns < least) && !atomic_compare_exchange_weak(&step->least_ns, &least, ns))
        ;
    latency_ns =
        rules->latency_ns == SC_IO_MEASURED ? min_u64(ns, least ? least : ns) / CALLS_PER_STEP : rules->latency_ns;
    if (SC_LIKELY(latency_ns < run->deep_ns) || !n_left || n < ENOUGH_STEPS)
        return;
    if (!atomic_exchange(&run->is_slow, true))
        expect(run, latency_ns, run->base.team.n_members + n_left * (run->n_calls / run->plan->n_items));
}

void
sc_write_expect_reads(struct sc_writer *writer, struct sc_write_object *object, uint64_t n)
{
    uint64_t latency_ns = sc_depth_latency(&writer->run->plan->io, &object->old_id);

    if (SC_LIKELY(latency_ns < SC_LATENCY_DEEP_NS))
        return;
    expect(writer->run, latency_ns, n);
    if (sc_depth_is_deep(&writer->run->depth)) /* a flat run would write each inner chunk by itself */
        object->batch_chunks = 1; /* so that each is read by another thread */
}

/* ---- pieces ---- */

bool
sc_write_uses_pieces(const struct sc_write_run *run)
{
    return SC_UNLIKELY(atomic_load_explicit(&run->is_slow, memory_order_relaxed)) || sc_depth_is_deep(&run->depth);
}

/* The part of the memory of a run that its pieces may take; the rest is for batches and indexes. */
#define PART_OF_PIECES 2u

bool
sc_write_pieces_full(const struct sc_write_run *run)
{
    return atomic_load_explicit(&run->pieces_nbytes, memory_order_relaxed) >= run->plan->io.max_nbytes / PART_OF_PIECES;
}

/* Return the size of pieces for files with blocks of this size: SC_PIECE_NBYTES or more, at most `most`; a multiple of a block,
 * or else a part of one. */
static uint64_t
piece_nbytes_for(uint64_t block_nbytes, uint64_t most)
{
    uint64_t nbytes;

    if (!block_nbytes)
        return SC_PIECE_NBYTES;
    nbytes = (SC_PIECE_NBYTES + block_nbytes - 1) / block_nbytes * block_nbytes;
    if (nbytes <= most)
        return nbytes;
    for (uint64_t n_parts = 2; block_nbytes / n_parts >= SC_PIECE_NBYTES; n_parts++)
        if (block_nbytes % n_parts == 0 && block_nbytes / n_parts <= most)
            return block_nbytes / n_parts;
    return SC_PIECE_NBYTES;
}

uint64_t
sc_write_piece_nbytes(struct sc_write_run *run, int fd)
{
    uint64_t known = atomic_load(&run->piece_nbytes), n_files, most, nbytes;
    struct stat st;

    if (SC_LIKELY(known))
        return known;
    n_files = min_u64(run->plan->n_items, run->depth.most);
    /* each file has an open piece, and one that is written */
    most = run->plan->io.max_nbytes / PART_OF_PIECES / (2 * n_files);
    most = max_u64(min_u64(most, SC_MAX_PIECE_NBYTES), SC_PIECE_NBYTES);
    nbytes = piece_nbytes_for(fstat(fd, &st) == 0 && st.st_blksize > 0 ? (uint64_t)st.st_blksize : 0, most);
    /* a thread with another file may be first: then its answer counts */
    return atomic_compare_exchange_strong(&run->piece_nbytes, &known, nbytes) ? nbytes : known;
}
