/* sc_index.h - the index of a shard: one (offset, nbytes) pair per inner chunk
 *
 *     stored   [offset 0][nbytes 0][offset 1][nbytes 1] ... [offset n-1][nbytes n-1] [crc32c]*
 *              8 bytes each, little or big endian, inner chunks in C order over the shard's grid;
 *              both 2^64-1: the inner chunk is absent
 *
 * Source: Zarr v3 codec `sharding_indexed` 1.0, "Binary shard format".
 * SPDX-License-Identifier: MIT */
#ifndef SC_INDEX_H
#define SC_INDEX_H

#include "base/sc_status.h"

struct sc_entry {
    uint64_t offset; /* from the first byte of the shard, wherever the index lies */
    uint64_t nbytes;
};

#define SC_ABSENT UINT64_MAX

static inline bool
sc_entry_is_absent(struct sc_entry e)
{
    return e.offset == SC_ABSENT && e.nbytes == SC_ABSENT;
}

/* The range of the index: [offset, offset + nbytes) of an object of shard_nbytes bytes. */
struct sc_index_extent {
    uint64_t offset;
    uint64_t nbytes;
    uint64_t shard_nbytes;
};

/* Convert n stored pairs to native entries, and back. src/dst: 16 * n bytes, any alignment. Pairs may be decoded in
 * place (src == entries), otherwise they must not overlap entries. */
void sc_index_decode(const uint8_t *src, struct sc_entry *entries, size_t n, bool big_endian);
void sc_index_encode(const struct sc_entry *entries, uint8_t *dst, size_t n, bool big_endian);

/* The slow path of sc_entry_check(), which fills *where. */
enum sc_status sc_entry_judge(struct sc_entry e, const struct sc_index_extent *extent, bool allow_in_index,
                              struct sc_where *where);

/* Check one entry that is not absent: half-empty, range inside the object, not inside the index (unless
 * allow_in_index). offset + nbytes is never formed before it is known to fit. Zero-length ranges are legal, wherever in
 * [0, shard_nbytes]. On failure *where gets offset, nbytes, limit (and the index extent in expected/actual); entry is
 * left to the caller. */
static inline enum sc_status
sc_entry_check(struct sc_entry e, const struct sc_index_extent *extent, bool allow_in_index, struct sc_where *where)
{
    bool inside = e.offset != SC_ABSENT && e.nbytes != SC_ABSENT && e.nbytes <= extent->shard_nbytes &&
                  e.offset <= extent->shard_nbytes - e.nbytes;
    bool before = e.offset + e.nbytes <= extent->offset;
    bool behind = e.offset >= extent->offset && e.offset - extent->offset >= extent->nbytes;

    if (SC_LIKELY(inside && (before || behind))) /* as almost all are */
        return SC_OK;
    return sc_entry_judge(e, extent, allow_in_index, where);
}

/* Check every entry. On failure where->entry is the lowest bad one. Overlaps are not checked. */
enum sc_status sc_index_check(const struct sc_entry *entries, size_t n, const struct sc_index_extent *extent,
                              bool allow_in_index, struct sc_where *where);

/* The same for n stored pairs in C order, any alignment, with allow_in_index false. A fast pass over all of them
 * comes first. */
enum sc_status sc_index_check_pairs(const uint8_t *pairs, size_t n, bool big_endian,
                                    const struct sc_index_extent *extent, struct sc_where *where);

/* Sort positions of present, non-empty entries by (offset, position): order[] holds n slots, *n_out are used.
 * `entries` must have passed sc_index_check(). scratch: n more slots. No allocation; linear when offsets ascend. */
void sc_index_by_offset(const struct sc_entry *entries, size_t n, uint64_t *order, uint64_t *scratch, size_t *n_out);

/* Over positions sorted by sc_index_by_offset(): each range that shares a byte with an earlier one makes one pair
 * (a, b), b being that range and a the earlier one that reaches furthest. So a range that covers many others is paired
 * with each of them until one reaches further, and n equal ranges make n - 1 pairs: a hostile index cannot ask for n^2.
 * Up to `capacity` pairs are stored, in order of b; *n_found counts all. */
void sc_index_overlaps(const struct sc_entry *entries, const uint64_t *order, size_t n, uint64_t (*pairs)[2],
                       size_t capacity, size_t *n_found);

/* Over sorted positions: maximal ranges of [0, shard_nbytes) that neither an inner chunk nor the index covers, rising.
 * Up to `capacity` are stored; *n_found counts all. Overlaps are allowed. */
void sc_index_gaps(const struct sc_entry *entries, const uint64_t *order, size_t n,
                   const struct sc_index_extent *extent, struct sc_entry *gaps, size_t capacity, size_t *n_found);

/* Sums over an index, made in one pass. The entries need not be valid. */
struct sc_index_sums {
    uint64_t n_stored;                 /* number of entries with bytes; the members below describe these */
    uint64_t first, end; /* first byte and end of the bytes; 2^64-1 and 0 if there are none. An end is at most 2^64-1 */
    uint64_t offset_bits, nbytes_bits; /* or-ed */
    uint64_t left_nbytes; /* size of the entries that are left; at most 2^64-1 */
};

/* left: gets the n entries, with the dropped ones absent. dropped: n flags. Both may be NULL: nothing is dropped. */
void sc_index_sum_up(const struct sc_entry *entries, size_t n, const uint8_t *dropped, struct sc_entry *left,
                     struct sc_index_sums *sums);

/* A run of bytes that is carried from the old object without a change. */
struct sc_carry {
    uint64_t from, nbytes, to;
};

/* Pack inner chunks and keep their order: the n at order[], as sc_index_by_offset() sorts them, get new offsets from
 * `at` on, multiples of `alignment`, a power of two. runs: room for n; gets the runs of bytes to move, with
 * neighbours in both objects joined. Returns the end of the last chunk. */
uint64_t sc_index_pack(struct sc_entry *entries, const uint64_t *order, size_t n, uint64_t at, uint64_t alignment,
                       struct sc_carry *runs, size_t *n_runs);

#endif
