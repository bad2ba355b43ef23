/* sc_scan.h - the indexes of many shards in one call, and nothing else of them
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_SCAN_H
#define SC_SCAN_H

#include "plan/sc_engine.h"

struct sc_scan {
    const struct sc_chain *shard;
    const struct sc_source *sources; /* files, or objects in memory; their member `entries` is ignored */
    size_t n_sources;
    bool allow_in_index;
    unsigned n_threads;
    struct sc_io_rules io;
    struct sc_device_hint *hint; /* of the array; may be NULL */
    struct sc_cancel *cancel;

    /* out */
    uint64_t *sizes; /* n_chunks for each source, one after the other: encoded sizes in C order, SC_ABSENT for none */
};

/* Scan the indexes. Every entry is checked against the size of its object. On failure where->shard is the lowest bad
 * one. */
enum sc_status sc_scan(struct sc_scan *scan, struct sc_where *where);

#endif
