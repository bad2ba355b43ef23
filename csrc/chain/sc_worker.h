/* sc_worker.h - buffers and codec contexts of one thread while it works on a plan
 *
 * A run takes workers from a free list and puts them back at its end. So contexts and buffers are made once and serve
 * all later calls, in any thread.
 * SPDX-License-Identifier: MIT */
#ifndef SC_WORKER_H
#define SC_WORKER_H

#include "base/sc_buffer.h"
#include "chain/sc_chain.h"

/* The last prepared copy: thousands of inner chunks have boxes of one shape. */
struct sc_copy_cache {
    const struct sc_chain *chain;
    bool gather;
    uint64_t count[SC_MAX_NDIM];
    int64_t step[SC_MAX_NDIM];
    int64_t strides[SC_MAX_NDIM]; /* of the array's side */
    struct sc_copy copy;
};

/* Scratch of one nesting level. */
struct sc_level {
    struct sc_buffer stage[2]; /* bytes between two codecs */
    struct sc_buffer chunk;    /* one decoded chunk in stored layout */
    struct sc_buffer entries;  /* index of a nested shard that is being encoded */
    struct sc_copy_cache cache;
};

struct sc_worker {
    struct sc_codec_state *codecs;
    struct sc_level levels[SC_MAX_DEPTH];
    struct sc_buffer io;    /* bytes as they lie in a file */
    struct sc_buffer merge; /* decoded elements in C order, for partial writes and selections */
    bool allow_in_index; /* of the plan: entries of nested shards may overlap their index */
    struct sc_worker *next;
};

/* NULL: no memory. */
struct sc_worker *sc_worker_take(void);
void sc_worker_put(struct sc_worker *worker);

/* Free the workers that no plan uses. */
void sc_worker_drop_free(void);

/* Install the fork handlers. Once, at import. */
enum sc_status sc_worker_init(void);

#endif
