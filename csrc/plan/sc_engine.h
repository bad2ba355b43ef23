/* sc_engine.h - plans: boxes and other selections of many shards, read or written by several threads in one call
 *
 * A plan is built with the GIL held and run without it. It names objects (local files, or bytes in memory). For each
 * object it has the chain of codecs, a box of elements, and the place of these in the array of the caller. Instead of
 * the box there may be a *selection*: several boxes, index lists, or points (sc_selection.h). An object is either a
 * *shard* (its chain is sharding_indexed and nothing follows), of which only the inner chunks under the box are
 * touched, or a *whole*: a chunk of an unsharded array, or a shard behind further codecs.
 *
 * How threads share a read. Each thread opens objects of its own, one at a time. It reads the index, checks the entries that
 * it needs and sorts them by offset. Neighbours in the file form a *group*: one pread, then decode and scatter. A thread that
 * finds no object left takes groups of shards that other threads have open.
 *
 *     thread 0   open 0  index  |group|group|group|group| close   open 2 ...
 *     thread 1   open 1  index  |group|group| close    steal: |group of 2|group of 2|
 *
 * So each thread has at most one open object, memory is the touched part of one index per thread plus buffers, and all
 * threads decode one large shard as well as many small ones.
 *
 * Failures: the one in the lowest object of the plan is reported, independent of timing; objects after it may be
 * skipped. Within an object a bad entry of the index has precedence over anything in the chunks, and then the lowest
 * inner chunk counts.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_ENGINE_H
#define SC_ENGINE_H

#include "base/sc_cancel.h"
#include "chain/sc_selection.h"
#include "io/sc_append.h"
#include "io/sc_file.h"
#include "io/sc_latency.h"
#include "plan/sc_cache.h"

/* Where the bytes of an object are. */
struct sc_source {
    const char *path;    /* a local file; NULL: in memory */
    const uint8_t *data; /* in memory; NULL with path NULL: the object does not exist */
    uint64_t nbytes;
    /* fd is the file, even if it was renamed. It belongs to the caller; path only names it in errors. nbytes: its size, as the
     * caller has seen it; 0: it is asked. */
    bool is_open;
    int fd;
    bool is_on_disk; /* path is a file of the cache on a local disk (sc_read_disk.c); what it lacks counts as missing */

    /* A shard whose index is known: n_chunks entries in C order, checked. `data` then holds only bytes [first, first
     * + nbytes) of the object. Inner chunks outside this range are skipped, and absent ones are filled only if
     * fill_absent. So a plan can decode each range of a shard as it arrives. */
    const struct sc_entry *entries;
    uint64_t first;
    bool fill_absent;
    uint64_t state; /* the number of the cached index that it is; 0: its inner chunks are not cached */
};

/* How files are read where a call costs a round trip (sc_depth.h). */
struct sc_io_rules {
    unsigned
        depth; /* most threads of a call that read or wait; 0: as the latency suggests; n_threads or less: no more than these */
    uint64_t latency_ns; /* of a call; SC_IO_MEASURED: as measured on each file system (io/sc_latency.h) */
    uint64_t max_nbytes; /* bound of the encoded bytes that are in memory at a time */
};

#define SC_IO_MEASURED UINT64_MAX
#define SC_IO_MAX_NBYTES ((uint64_t)64 << 20)

/* Counters; the sum over all threads. */
struct sc_stats {
    uint64_t opens, reads, bytes_read;
    uint64_t deep_reads; /* of `reads`: by a run with more threads than decode */
    uint64_t bytes_used; /* of requested inner chunks; the rest: indexes, gaps, old chunks */
    uint64_t chunks_decoded, chunks_filled, chunks_encoded, bytes_written;
    uint64_t index_hits, index_misses, file_hits; /* of the cache */
    uint64_t chunk_hits, chunk_misses, chunk_evictions; /* of the inner chunks that it may keep */
    uint64_t disk_hits, disk_bytes_read; /* inner chunks from the cache on a local disk */
};

/* ---- reading ---- */

struct sc_read_item {
    const struct sc_chain *chain;
    struct sc_source source;
    struct sc_box box;
    uint8_t *dst; /* first element of the box; with a selection: of the array */
    const struct sc_selection *selection; /* used instead of the box; NULL: the box */
    bool missing; /* out: the object does not exist, so its part was filled */
};

struct sc_read_plan {
    struct sc_read_item *items;
    size_t n_items;
    int64_t dst_strides[SC_MAX_NDIM]; /* bytes per selected element along each axis of the box */
    unsigned n_threads; /* that decode */
    struct sc_io_rules io;
    uint64_t max_gap_nbytes; /* ranges with at most this gap share one read */
    uint64_t group_nbytes; /* decoded bytes of one group, about */
    bool allow_in_index;
    struct sc_cache *cache; /* for local files; may be NULL */
    bool immutable; /* files that the cache keeps open are used without a check of their names */
    struct sc_device_hint *hint; /* of the array; may be NULL */
    struct sc_cancel *cancel; /* may be NULL */

    /* out */
    struct sc_stats stats;
    uint64_t peak_nbytes; /* most encoded bytes in memory at a time, of those that io.max_nbytes bounds */
};

/* Run the plan. If a file handle is stale (ESTALE: the file was replaced on the server), the whole plan is read
 * again. */
enum sc_status sc_read(struct sc_read_plan *plan, struct sc_where *where);

/* Read a whole index and check it. entries: n_chunks in C order, with room for the checksums of the stored index behind
 * them. Each present entry is checked against the size of the object, and its nbytes against the possible sizes of an
 * inner chunk.
 *
 * file (or NULL): how it was opened; it is closed again.
 * replaced (n_chunks flags, or NULL): the inner chunks that the caller replaces. A bad entry of these becomes absent,
 * and the call succeeds; *n_bad (or NULL) counts them, because the stored index then differs from `entries`. *shard_nbytes
 * = SC_ABSENT: the object does not exist, and `entries` are unchanged. */
enum sc_status sc_read_index(const struct sc_chain *shard, const struct sc_source *source, bool allow_in_index,
                             const uint8_t *replaced, struct sc_entry *entries, uint64_t *shard_nbytes, uint64_t *n_bad,
                             struct sc_opened *file, struct sc_where *where);

/* Copy the inner chunks that a cache has of a shard in a remote store. The index is known (source.entries and source.state).
 * is_there: a flag for each touched inner chunk, n of them, in C order; those that were copied are set. */
enum sc_status sc_read_kept(const struct sc_read_item *item, struct sc_cache *cache, const int64_t *dst_strides,
                            uint8_t *is_there, size_t n);

/* List the ranges of a shard that a box or selection needs from a remote store. The index is known (source.entries).
 * Ranges ascend. Those with gaps up to max_gap_nbytes are joined, up to max_nbytes. Up to `capacity` are stored;
 * *n_ranges counts all. Only needed entries are checked; on failure where->entry is the lowest bad one. Of the item
 * only chain, source.entries, box and selection are used.
 *
 * Of an uncompressed chunk only the wanted bytes are listed, unless the size of the object is SC_UNKNOWN_NBYTES:
 * then the whole chunk is, so that the answer shows that the chunk is complete. */
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
    const char *path; /* NULL: the new object is left in result */
    struct sc_box box;
    const uint8_t *src; /* first element of the box in the array of the caller; with a selection: of the array */
    const struct sc_selection *selection; /* used instead of the box; NULL: the box */

    /* Shard: encoded inner chunks instead of a box, each position once; they are laid out in this order. Their bytes
     * are stored unchanged, of any size. Chunks that are erased are absent from `entries` and not listed here. NULL:
     * the box counts. */
    const struct sc_encoded *encoded;
    size_t n_encoded;

    /* What the new object keeps of the old one. The caller decides this and holds the lock of the object.
     *
     * old: read for inner chunks that the box covers in part, and for the carried runs. The caller gives the size of a
     * shard; that of a whole in a file is measured. */
    struct sc_source old;
    const struct sc_entry *old_entries; /* shard: its entries, checked; NULL: nothing to keep */
    /* Extents of the part of the object that lies within the array. Elements beyond it are kept from the old chunk only
     * if that can be decoded. */
    uint64_t inside[SC_MAX_NDIM];
    bool has_inside; /* false: the whole object lies within the array, or nobody knows */
    const struct sc_carry *carries;
    size_t n_carries;
    /* Shard: n_chunks of them. In: carried chunks at their new offsets, and slots for new chunks of exactly that size.
     * Out: the new index. */
    struct sc_entry *entries;
    uint64_t data_offset; /* shard: where the first new chunk goes */
    const uint8_t *footer; /* shard: bytes behind the last new chunk, before an index at the end */
    size_t footer_nbytes;
    uint64_t alignment; /* shard: new chunks begin at a multiple of this; 0: anywhere */
    bool
        marks; /* shard: write a mark before the footer that gives the sizes of header and footer (sc_write_commit.c) */
    uint64_t header_nbytes; /* for the mark */
    const struct sc_file_id *seen; /* the old file when the caller inspected it; NULL: unknown */
    /* Shard: update it in its own file. Nothing is carried, no slot is used again, and the new chunks stay in memory
     * until all are encoded. */
    enum sc_append_way append;
    /* Shard: new chunks that fit a slot of `entries` overwrite it, with an undo journal; the others are appended as
     * `append` says. A slot belongs to no other chunk and does not touch the index. */
    bool in_place;
    /* Shard without a path: the new object is made in old.data, which may be written: old.data up to data_offset,
     * then the result. The runs lie side by side up to data_offset, in the order of the old object, and no run moves
     * towards the end. */
    bool onto_old;
    bool only_new; /* there was no object when the caller looked: do not replace one that exists now */

    /* out */
    bool declined; /* append or in_place, and this file does not allow it: nothing has been done */
    bool exists; /* only_new, and an object exists: nothing has been done */
    uint8_t *result; /* malloc'ed; NULL: the object is empty, and was or has to be deleted */
    uint64_t result_nbytes, result_capacity;
    bool empty;
    struct sc_file_version
        made; /* tells_states: the state of the file after this write; inode 0: the file is missing */
};

struct sc_write_plan {
    struct sc_write_item *items;
    size_t n_items;
    int64_t src_strides[SC_MAX_NDIM];
    struct sc_write_rules rules;
    const char *staging; /* folder for temporary names (sc_staging.h); NULL: none */
    unsigned n_threads;
    uint64_t batch_nbytes; /* decoded bytes encoded at a time, about */
    struct sc_io_rules io; /* max_nbytes bounds the threads of a deep run; half of it bounds its pieces */
    bool sync;
    bool only_encodes; /* the new objects are stored by a later write */
    bool tells_states; /* look at each new file, for `made` */
    bool allow_in_index; /* for nested shards that are decoded; the caller checks the outermost entries */
    struct sc_cancel *cancel; /* may be NULL; finished items stay, the others are unchanged */
    struct sc_stats stats;
};

/* Run the plan. On failure the items before the failing one may have been written, each completely; the failing one
 * is unchanged. */
enum sc_status sc_write(struct sc_write_plan *plan, struct sc_where *where);

/* ---- statistics ---- */

/* Add one to another. */
void sc_stats_add(struct sc_stats *total, const struct sc_stats *part);

/* The same if several threads add to one total. */
void sc_stats_add_shared(struct sc_stats *total, const struct sc_stats *part);

/* The counters of this process since its start, or since the last reset. Each plan is added when it ends. */
void sc_totals_add(const struct sc_stats *part);
void sc_totals_get(struct sc_stats *totals);
void sc_totals_reset(void);

#endif
