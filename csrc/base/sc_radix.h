/* sc_radix.h - a stable sort of small records by one number in them
 *
 * A record is `words` 64-bit numbers, one of which is the key. It sorts by eight bits at a time. Digits that all keys
 * share are skipped, and records that are in order already, the usual case, cost one pass. Both numbers are constants
 * at each call, so the compiler makes one sort for each kind of record.
 * SPDX-License-Identifier: MIT */
#ifndef SC_RADIX_H
#define SC_RADIX_H

#include "base/sc_buffer.h"

static inline enum sc_status
sc_radix_sort(uint64_t *records, size_t n, const size_t words, const size_t key, struct sc_buffer *scratch)
{
    uint64_t *from = records, *to, any = 0, all = UINT64_MAX;
    bool ascending = true;
    enum sc_status status;

    for (size_t i = 0; i < n; i++) {
        uint64_t k = records[i * words + key];

        any |= k;
        all &= k;
        ascending = ascending && (!i || records[(i - 1) * words + key] <= k);
    }
    if (ascending)
        return SC_OK;
    status = sc_buffer_reserve(scratch, n * words * sizeof *records);
    if (status)
        return status;
    to = (uint64_t *)(void *)scratch->data;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        size_t starts[256] = { 0 }, sum = 0;
        uint64_t *swap;

        if (((any ^ all) >> shift & 255) == 0)
            continue;
        for (size_t i = 0; i < n; i++)
            starts[from[i * words + key] >> shift & 255]++;
        for (size_t d = 0; d < 256; d++) {
            size_t count = starts[d];

            starts[d] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++)
            memcpy(to + words * starts[from[i * words + key] >> shift & 255]++, from + i * words,
                   words * sizeof *records);
        swap = from;
        from = to;
        to = swap;
    }
    if (from != records)
        memcpy(records, from, n * words * sizeof *records);
    return SC_OK;
}

#endif
