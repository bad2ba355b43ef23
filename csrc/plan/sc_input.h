/* sc_input.h - an object that is open for reading: a file or bytes in memory, and the index of a shard
 *
 * Plans (sc_read*.c) and open shards (sc_fetch.c) read through this. A file may be updated in place meanwhile, with an undo
 * journal (io/sc_undo.h): it is then read in its old state.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_INPUT_H
#define SC_INPUT_H

#include "io/sc_undo.h"
#include "plan/sc_cache.h"
#include "plan/sc_engine.h"

struct sc_input {
    const struct sc_source *source;
    const struct sc_chain *chain;
    struct sc_cache *cache; /* NULL: none */
    struct sc_opened file;  /* its id: the state of the file when it was opened */
    int fd;                 /* of the file; -1: in memory, or missing */
    bool missing;           /* the object does not exist */
    uint64_t nbytes;        /* size of the object */
    uint64_t base; /* where the object begins in the file: not at 0 in the cache on a local disk */
    struct sc_undo undo; /* journal of a file that was being updated in place when it was opened */
    bool is_watched; /* a file without checksums of inner chunks: only sc_input_check() detects an update in place */
    bool is_changing; /* such an update was detected: each read makes sure that its bytes are of one state */
    const uint8_t
        *whole; /* all bytes of the file, if its user has read them; NULL: none. Unused while it is_changing */
    struct sc_index_extent extent;
    struct sc_cached_index *index; /* the whole index; NULL: not loaded */
};

/* Open the object of `source`, which must live as long as this. Close it in any case.
 *
 * chain: NULL for the bytes of an object with any content, which may be a shard.
 * cache: for files and their indexes; may be NULL.
 * immutable: the caller promises that files never change. */
enum sc_status sc_input_open(struct sc_input *input, const struct sc_chain *chain, const struct sc_source *source,
                             struct sc_cache *cache, bool immutable, struct sc_stats *stats, struct sc_where *where);
void sc_input_close(struct sc_input *input);

/* Read n bytes of the file. */
enum sc_status sc_input_read(const struct sc_input *input, uint8_t *dst, uint64_t n, uint64_t offset,
                             struct sc_stats *stats, struct sc_where *where);

/* Return n bytes of the object at `offset`: a pointer into memory, or the bytes read into `buffer`. The caller has checked the
 * range against the size. */
enum sc_status sc_input_fetch(const struct sc_input *input, uint64_t offset, uint64_t n, struct sc_buffer *buffer,
                              const uint8_t **bytes, struct sc_stats *stats, struct sc_where *where);

/* After reads of a watched file: SC_CHANGED if it was updated in place since it was opened. */
enum sc_status sc_input_check(const struct sc_input *input, struct sc_where *where);

/* Locate the index (input->extent) and take it from the cache (input->index). If the cache asks for it, read it into the cache.
 * input->index stays NULL if the cache does not keep it. `scratch` is used for an index that is not in C order. */
enum sc_status sc_input_find_index(struct sc_input *input, struct sc_cancel *cancel, struct sc_buffer *scratch,
                                   struct sc_stats *stats, struct sc_where *where);

/* Of an object that is one chunk: take the empty index from the cache (input->index), which names the state of the object. */
void sc_input_find_state(struct sc_input *input, struct sc_cancel *cancel);

/* Read and verify the whole index, located before, into input->index. */
enum sc_status sc_input_read_index(struct sc_input *input, struct sc_buffer *scratch, struct sc_stats *stats,
                                   struct sc_where *where);

#endif
