/* sc_fetch.h - inner chunks of one shard as they are stored: checked, fetched, not decoded
 *
 * For callers that decode themselves, or do not decode. The object stays open between calls, so all fetched bytes
 * belong to the index that was read, even if the file is replaced meanwhile.
 * SPDX-License-Identifier: MIT */
#ifndef SC_FETCH_H
#define SC_FETCH_H

#include "plan/sc_input.h"

struct sc_fetch {
    struct sc_source source;
    struct sc_input input;          /* its index is NULL if the source has the entries, or without a chain */
    const struct sc_entry *entries; /* n_chunks in C order, not checked unless they are those of the source */
    bool is_open;                   /* false for a missing object, too */
    struct sc_stats stats;          /* of this shard; sc_fetch_end() adds them to the totals */
};

/* Open the object of `source` and read its index, that of a file through the cache if there is one. Paths and
 * buffers of the source must live as long as this. Call sc_fetch_end() in any case.
 *
 * shard: NULL to read bytes of any object; only sc_fetch_range(), sc_fetch_sums() and sc_fetch_version() may follow. */
enum sc_status sc_fetch_begin(struct sc_fetch *fetch, const struct sc_chain *shard, const struct sc_source *source,
                              struct sc_cache *cache, struct sc_where *where);
void sc_fetch_end(struct sc_fetch *fetch);

/* Move what is open from one place to another, so that its owner finds it closed before the close, which may take long. `from`
 * keeps the size of the object, and whether it is missing. */
void sc_fetch_move(struct sc_fetch *to, struct sc_fetch *from);

/* Return the state of the file to which the index belongs. False: the source is not a file. */
bool sc_fetch_version(const struct sc_fetch *fetch, struct sc_file_version *version);

/* Check all entries if nothing else detects a wrong one (sc_index_must_be_sound()). The calls below do so, too. */
enum sc_status sc_fetch_check(const struct sc_fetch *fetch, bool allow_in_index, struct sc_where *where);

/* Return the checked entry of an inner chunk; it may be absent. */
enum sc_status sc_fetch_entry(const struct sc_fetch *fetch, uint64_t position, bool allow_in_index,
                              struct sc_entry *entry, struct sc_where *where);

/* Read bytes of the object without a check; the range lies inside it. */
enum sc_status sc_fetch_range(struct sc_fetch *fetch, uint64_t offset, size_t n, uint8_t *dst, struct sc_where *where);

/* One call of sc_fetch_chunks(). */
struct sc_fetch_batch {
    const uint64_t *positions; /* in the index, C order over the grid */
    size_t n;
    uint64_t max_nbytes;     /* takes as many chunks from the first on as fit, but at least one */
    uint64_t max_gap_nbytes; /* ranges with at most this gap share one read */
    bool allow_in_index;
    struct sc_io_rules io;

    /* out */
    size_t n_taken;
    /* for each position: the place in `bytes`; absent; or SC_ELSEWHERE with nbytes 0: the source holds a part of the
     * object without this chunk */
    struct sc_entry *places;
    uint8_t *bytes; /* malloc'ed; NULL: the source is in memory, and the places are in its data */
    uint64_t nbytes;
};

#define SC_ELSEWHERE SC_ABSENT

/* Fetch a batch. Every entry that is taken has been checked. On failure where->entry is the bad one; if positions
 * ascend, the lowest bad one. */
enum sc_status sc_fetch_chunks(struct sc_fetch *fetch, struct sc_fetch_batch *batch, struct sc_where *where);

#endif
