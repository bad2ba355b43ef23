/* sc_fetch.h - inner chunks of one shard as they are stored: checked, fetched, not decoded
 *
 * For callers that decode by themselves, or do not decode. The object stays open between calls, so all that is fetched
 * belongs to the index that was read, also when the file is replaced meanwhile.
 * SPDX-License-Identifier: MIT */
#ifndef SC_FETCH_H
#define SC_FETCH_H

#include "io/sc_undo.h"
#include "plan/sc_cache.h"
#include "plan/sc_engine.h"

struct sc_fetch {
    const struct sc_chain *shard;
    struct sc_source source;
    struct sc_cache *cache; /* NULL: none */
    struct sc_opened file; /* its id: what it was when it was opened */
    int fd;          /* of the file; -1: in memory */
    bool missing;    /* there is no such object */
    uint64_t nbytes; /* of the object */
    struct sc_undo undo;  /* it was being changed in place, and is read as it was before */
    struct sc_index_extent extent;
    const struct sc_entry *entries; /* n_chunks in C order, not checked unless the source brought them */
    struct sc_cached_index *index; /* held; NULL: the source brought the entries */
    struct sc_stats stats; /* of this shard until it is ended, then a part of the totals */
};

/* Open the object of `source`, whose paths and buffers must outlive this, and read its index, a file's through the cache
 * where there is one. End it in any case. */
enum sc_status sc_fetch_begin(struct sc_fetch *fetch, const struct sc_chain *shard, const struct sc_source *source,
                              struct sc_cache *cache, struct sc_where *where);
void sc_fetch_end(struct sc_fetch *fetch);

/* Which state of the file the index belongs to; false: it is no file. */
bool sc_fetch_version(const struct sc_fetch *fetch, struct sc_file_version *version);

/* Check all entries where nothing else tells that one is wrong (sc_index_must_be_sound). The calls below do so, too. */
enum sc_status sc_fetch_check(const struct sc_fetch *fetch, bool allow_in_index, struct sc_where *where);

/* Where an inner chunk is, checked; absent if it is. */
enum sc_status sc_fetch_entry(const struct sc_fetch *fetch, uint64_t position, bool allow_in_index,
                              struct sc_entry *entry, struct sc_where *where);

/* Bytes of the object as they are, whatever they mean; the range lies inside it. */
enum sc_status sc_fetch_range(struct sc_fetch *fetch, uint64_t offset, size_t n, uint8_t *dst, struct sc_where *where);

/* What one call fetches. */
struct sc_fetch_batch {
    const uint64_t *positions; /* in the index, C order over the grid */
    size_t n;
    uint64_t max_nbytes;     /* as many from the first on as fit, but at least one */
    uint64_t max_gap_nbytes; /* ranges this close share one read */
    bool allow_in_index;

    /* out */
    size_t n_taken;
    struct sc_entry *places; /* by position: where in `bytes`; absent; or SC_ELSEWHERE with nbytes 0: not in a source
                                 * that is a part of the object */
    uint8_t *bytes; /* malloc'ed; NULL where the source is in memory: the places are in its data then */
    uint64_t nbytes;
};

#define SC_ELSEWHERE SC_ABSENT

/* Every entry that is taken has been checked; on failure where->entry is the one, or the lowest one when several
 * positions of rising order are bad. */
enum sc_status sc_fetch_chunks(struct sc_fetch *fetch, struct sc_fetch_batch *batch, struct sc_where *where);

#endif
