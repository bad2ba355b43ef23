/* sc_text_read.h - elements of any length out of many encoded chunks, with several threads
 *
 *     chunk --codecs--> bytes, checked and split --> for each element of its boxes: sink->put(place of the element, its bytes)
 *
 * Chunks are decoded in parallel. One thread at a time puts elements, because a memory of texts has one end.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_TEXT_READ_H
#define SC_TEXT_READ_H

#include "base/sc_cancel.h"
#include "chain/sc_texts.h"

/* Where elements go. `owner` is that of the box. */
struct sc_text_sink {
    void (*begin)(struct sc_text_sink *sink, void *owner);
    bool (*put)(struct sc_text_sink *sink, void *element, const uint8_t *bytes, size_t nbytes); /* false: no memory */
    void (*end)(struct sc_text_sink *sink);
};

/* A part of a chunk, and the place of its first element. strides: bytes from one element to the next, by logical axis. */
struct sc_text_box {
    struct sc_box part;
    uint8_t *first;
    int64_t strides[SC_MAX_NDIM];
    void *owner;
};

/* An encoded chunk. shape: logical; it may be smaller than that of the chain. The boxes lie inside. */
struct sc_text_chunk {
    const uint8_t *src;
    size_t nbytes;
    uint64_t shape[SC_MAX_NDIM];
    const struct sc_text_box *boxes;
    size_t n_boxes;
};

struct sc_text_plan {
    const struct sc_chain *chain; /* rank, permutation and bytes -> bytes codecs */
    bool is_text;
    const struct sc_text_chunk *chunks;
    size_t n_chunks;
    struct sc_text_sink *sink;
    unsigned n_threads;
    struct sc_cancel *cancel;
};

/* Run a plan. On failure where->shard is the number of the first bad chunk; elements before it may have been put. */
enum sc_status sc_text_read(const struct sc_text_plan *plan, struct sc_where *where);

/* ---- elements as addresses and sizes, in memory that grows */

struct sc_text_place {
    uint64_t address;
    uint64_t nbytes;
};

struct sc_text_block;

/* A sink whose elements are places of copies, valid until sc_text_arena_free(). Set everything to zero, then begin. */
struct sc_text_arena {
    struct sc_text_sink sink;
    struct sc_text_block *blocks;
    uint8_t *next;
    size_t n_free, block_nbytes;
};

void sc_text_arena_begin(struct sc_text_arena *arena);
void sc_text_arena_free(struct sc_text_arena *arena);

/* Set offsets[0..n]: where each text begins if all lie one behind the other, and their end. */
void sc_text_offsets(const struct sc_text_place *places, size_t n, int64_t *offsets);

/* Copy texts one behind the other. */
void sc_text_join(const struct sc_text_place *places, size_t n, uint8_t *dst);

#endif
