/* sc_kept_chunk.h - decoded elements of an inner chunk that threads share
 *
 * A thread may come upon a chunk that is evicted at this moment, because it takes no lock. So a `struct sc_kept_chunk` is freed only while
 * no look-up goes on; before, it is used again, for other elements of another chunk. A thread holds a chunk once it has raised n_users from above
 * 0. Only then does it read which chunk it is:
 *
 *     new --> 0 users, then the key is written, then 2 users: the table of the cache, and the thread that decodes the elements
 *     hold --> one user more; NULL: it has no user, it is another chunk, or its elements are not decoded yet
 *     release --> one user less; the last one frees the elements
 *
 * This is the scheme of Linux's SLAB_TYPESAFE_BY_RCU, where the memory keeps its type and the reader compares after it has a reference.
 * SPDX-License-Identifier: MIT */
#ifndef SC_KEPT_CHUNK_H
#define SC_KEPT_CHUNK_H

#include <stdatomic.h>

#include "base/sc_common.h"

struct sc_chunk_key {
    uint64_t state, chain, position;
};

/* All elements of a chunk, as its chain stores them; never changed once they are loaded. */
struct sc_kept_chunk {
    atomic_uint n_users; /* 0: all below may change */
    atomic_bool is_loaded;
    struct sc_chunk_key key;
    uint64_t nbytes;
    uint8_t *elements;
    struct sc_kept_pool *pool;
    struct sc_kept_chunk *next; /* in a list of unused ones */
};

/* Chunks without elements. Any thread gives one back. Only one thread at a time takes one: the caller holds a mutex. */
struct sc_kept_pool {
    _Atomic(struct sc_kept_chunk *) unused;
    atomic_size_t n_unused;
};

/* Return memory for a chunk that will be decoded, from a list of chunks with elements if one has the size: most chunks of an array are
 * of one size, and new memory would have to be mapped. It has two users. NULL: no memory. */
struct sc_kept_chunk *sc_kept_chunk_new(struct sc_kept_pool *pool, struct sc_kept_chunk **unused,
                                        const struct sc_chunk_key *key, uint64_t nbytes);

struct sc_kept_chunk *sc_kept_chunk_hold(struct sc_kept_chunk *chunk, const struct sc_chunk_key *key);
void sc_kept_chunk_release(struct sc_kept_chunk *chunk);

/* As release, but the last user adds the chunk, with its elements, to a list. */
void sc_kept_chunk_release_to(struct sc_kept_chunk *chunk, struct sc_kept_chunk **unused);

/* Free the elements of a list. */
void sc_kept_chunks_give_back(struct sc_kept_chunk *unused);

/* Count the unused ones again, in a forked child: a thread of the parent may have been about to give one back. */
void sc_kept_pool_renew(struct sc_kept_pool *pool);

/* Free the unused ones. The caller holds the mutex, and no look-up that began before they were unused goes on. */
void sc_kept_pool_free(struct sc_kept_pool *pool);

#endif
