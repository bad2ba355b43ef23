/* sc_sums.h - checksums of many ranges of one shard, without memory for the ranges
 *
 * Each byte is checked while it is in a cache of the processor: a range is read piece by piece, into one small buffer.
 * SPDX-License-Identifier: MIT */
#ifndef SC_SUMS_H
#define SC_SUMS_H

#include "plan/sc_fetch.h"

/* A range whose last SC_SUM_NBYTES bytes are the CRC-32C of those before it. */
struct sc_sum {
    uint32_t stored, computed;
};

#define SC_SUM_NBYTES 4

/* Find both checksums of n ranges. Ranges that ascend and lie side by side share reads. The
 * pieces of a range are read one after the other, so an update in place may come between them: read a range whose checksums differ
 * again, at once.
 *
 * max_nbytes: memory to use at most, if it is large enough to be useful.
 * Returns SC_BAD_ARGUMENT for a range that does not lie inside the object or is too short. On failure where->entry is the
 * range. */
enum sc_status sc_fetch_sums(struct sc_fetch *fetch, const struct sc_entry *ranges, size_t n, uint64_t max_nbytes,
                             struct sc_sum *sums, struct sc_where *where);

#endif
