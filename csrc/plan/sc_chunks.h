/* sc_chunks.h - decoded inner chunks that readers keep between calls
 *
 * A chunk is known by the state of its object, its chain, and its position. The state is the number of an index in the cache of
 * indexes (sc_cache.h), which compares the object with it at each use. An object that has changed gets an index with another
 * number, so its old chunks are never found again, and are evicted in time.
 *
 *     find --> the elements   copy them, release them
 *          --> NULL           read the encoded bytes, then claim
 *     claim --> HIT           another thread was faster
 *           --> LOAD          decode all elements into it, then tell whether they are there
 *           --> PASS          decode what is wanted; nothing is kept
 *
 * A thread that has claimed a chunk waits for nothing until it has decoded it, so others that want it may wait for this thread.
 *
 * Which chunks stay: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023). A new chunk joins a short
 * queue, which has a tenth of the memory. At its end it moves to the main queue if it was used again; otherwise only its key stays
 * for a while, and a chunk that is wanted again meanwhile joins the main queue at once. So a scan passes through a tenth. A hit
 * only counts: it moves nothing.
 *
 * `find` takes no lock and allocates nothing (sc_kept_chunk.h says why that is safe). Rarely it overlooks a chunk whose entry is used
 * again at this moment; its bytes are then read, and `claim` finds it. Each look-up is a visit (sc_visits.h), and unused entries are freed only when none goes on. Claims hold a mutex, of which a large cache has several, never
 * while elements are decoded or copied.
 * SPDX-License-Identifier: MIT */
#ifndef SC_CHUNKS_H
#define SC_CHUNKS_H

#include "plan/sc_kept_chunk.h"

enum sc_cache_answer { SC_CACHE_HIT, SC_CACHE_LOAD, SC_CACHE_PASS };

struct sc_chunks;

struct sc_chunks_info {
    uint64_t max_nbytes, nbytes, n_chunks, evictions;
};

/* NULL: no memory. */
struct sc_chunks *sc_chunks_new(uint64_t max_nbytes);

/* Forget all chunks; those that were taken may still be in use. */
void sc_chunks_clear(struct sc_chunks *chunks);

/* No thread may use the cache or hold one of its chunks any more. */
void sc_chunks_free(struct sc_chunks *chunks);

/* Return a chunk, which the caller holds; NULL: it is not kept. */
struct sc_kept_chunk *sc_chunks_find(struct sc_chunks *chunks, const struct sc_chunk_key *key);

/* True if a chunk is kept. It is neither a hit nor a miss. */
bool sc_chunks_has(struct sc_chunks *chunks, const struct sc_chunk_key *key);

/* Get memory for a chunk that was not found. After HIT and LOAD the caller holds *chunk. at_once: keep the chunk at its first use.
 * *evictions grows by the number of chunks that were evicted for it. */
enum sc_cache_answer sc_chunks_claim(struct sc_chunks *chunks, const struct sc_chunk_key *key, uint64_t nbytes,
                                     bool at_once, struct sc_kept_chunk **chunk, uint64_t *evictions);

/* After LOAD: the elements are there, or could not be decoded. */
void sc_chunks_loaded(struct sc_chunks *chunks, const struct sc_chunk_key *key, struct sc_kept_chunk *chunk,
                      bool is_loaded);

void sc_chunks_get_info(struct sc_chunks *chunks, struct sc_chunks_info *info);

/* Bytes of all chunks that the caches of this process keep. */
uint64_t sc_chunks_total(void);

/* Hold all mutexes across fork(); in the child, make them new and forget all chunks. */
void sc_chunks_lock(struct sc_chunks *chunks);
void sc_chunks_unlock(struct sc_chunks *chunks);
void sc_chunks_renew(struct sc_chunks *chunks);

#endif
