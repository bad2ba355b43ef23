/* fuzz_index.c - hostile index bytes: decode, check, sort, overlaps, gaps
 *
 * Besides memory errors it finds wrong results: a checked entry must lie inside the object, gaps must ascend and must
 * not touch an entry.
 * SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "kernels/sc_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_NBYTES 32
#define CAPACITY 8

static void
require(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static void *
allocate(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    require(p != NULL);
    return p;
}

static void
report(const struct sc_entry *entries, size_t n, const struct sc_index_extent *extent)
{
    uint64_t *order = allocate(n, sizeof *order), *scratch = allocate(n, sizeof *scratch);
    uint64_t pairs[CAPACITY][2], end = 0;
    struct sc_entry gaps[CAPACITY];
    size_t n_used, n_found;

    sc_index_by_offset(entries, n, order, scratch, &n_used);
    require(n_used <= n);
    for (size_t i = 1; i < n_used; i++)
        require(entries[order[i - 1]].offset <= entries[order[i]].offset);
    sc_index_overlaps(entries, order, n_used, pairs, CAPACITY, &n_found);
    for (size_t i = 0; i < n_found && i < CAPACITY; i++) {
        struct sc_entry a = entries[pairs[i][0]], b = entries[pairs[i][1]];

        require(a.offset < b.offset + b.nbytes && b.offset < a.offset + a.nbytes);
    }
    sc_index_gaps(entries, order, n_used, extent, gaps, CAPACITY, &n_found);
    for (size_t i = 0; i < n_found && i < CAPACITY; i++) {
        require(gaps[i].nbytes > 0 && gaps[i].offset >= end);
        end = gaps[i].offset + gaps[i].nbytes;
        require(end <= extent->shard_nbytes);
        for (size_t k = 0; k < n_used; k++) {
            struct sc_entry e = entries[order[k]];

            require(e.offset + e.nbytes <= gaps[i].offset || e.offset >= end);
        }
    }
    free(order);
    free(scratch);
}

/* The first 32 bytes describe the object, the rest are pairs; small numbers are as likely as huge ones. */
int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sc_index_extent extent;
    struct sc_entry *entries;
    struct sc_where where;
    uint8_t *again;
    bool big_endian, small, allow_in_index;
    size_t n;

    if (size < HEAD_NBYTES)
        return 0;
    big_endian = data[0] & 1;
    allow_in_index = data[0] & 2;
    small = data[0] & 4;
    extent.shard_nbytes = load_le64(data + 8) >> (small ? 56 : 1);
    extent.offset = load_le64(data + 16) % (extent.shard_nbytes + 1);
    extent.nbytes = load_le64(data + 24) % (extent.shard_nbytes - extent.offset + 1);
    n = (size - HEAD_NBYTES) / 16;

    entries = allocate(n, sizeof *entries);
    again = allocate(n, 16);
    sc_index_decode(data + HEAD_NBYTES, entries, n, big_endian);
    sc_index_encode(entries, again, n, big_endian);
    require(n == 0 || memcmp(again, data + HEAD_NBYTES, 16 * n) == 0);
    for (size_t i = 0; small && i < n; i++) {
        if (sc_entry_is_absent(entries[i]))
            continue;
        entries[i].offset >>= 56;
        entries[i].nbytes >>= 57;
    }
    sc_where_clear(&where);
    if (sc_index_check(entries, n, &extent, allow_in_index, &where)) {
        /* Overlaps and gaps must also work on the valid entries of a bad index, because repair uses them. */
        for (size_t i = 0; i < n; i++) {
            if (!sc_entry_is_absent(entries[i]) && sc_entry_check(entries[i], &extent, allow_in_index, &where))
                entries[i] = (struct sc_entry){ SC_ABSENT, SC_ABSENT };
        }
        require(sc_index_check(entries, n, &extent, allow_in_index, &where) == SC_OK);
    }
    report(entries, n, &extent);
    free(entries);
    free(again);
    return 0;
}
