/* sc_worker.h - what one thread needs while it works on a plan: buffers and codec contexts
 *
 * A worker is taken from a free list at the start of a run and put back at its end, so contexts and scratch are made
 * once and serve every later call, whichever thread makes it.
 * SPDX-License-Identifier: MIT */
#ifndef SC_WORKER_H
#define SC_WORKER_H

#include "base/sc_buffer.h"
#include "chain/sc_chain.h"

/* The copy prepared last: boxes of thousands of inner chunks have one shape. */
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
    struct sc_buffer merge; /* decoded elements in C order: what a partial write is laid on, or what is selected from */
    bool allow_in_index; /* of the plan: entries of nested shards may overlap their index */
    struct sc_worker *next;
};

/* NULL: no memory. */
struct sc_worker *sc_worker_take(void);
void sc_worker_put(struct sc_worker *worker);

/* Free those that wait for a plan. */
void sc_worker_drop_free(void);

/* Install the fork handlers. Once, at import. */
enum sc_status sc_worker_init(void);

#endif
