/* sc_index.c - the index of a shard (see sc_index.h): decode, encode, check, sort, overlaps, gaps, sums
 *
 * Whatever an index claims comes from disk. Sums of its numbers are formed only where they are known to fit, or are
 * held at 2^64-1 where they do not.
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_index.h"

#include "base/sc_cpu.h"

/* Eight bits at a time: the counts of one digit fit the first-level cache beside the data that is moved. */
#define DIGIT_BITS 8
#define N_DIGITS (64 / DIGIT_BITS)
#define RADIX (1 << DIGIT_BITS)

/* ---- decode, encode ---- */

void
sc_index_decode(const uint8_t *src, struct sc_entry *entries, size_t n, bool big_endian)
{
    if (big_endian) {
        for (size_t i = 0; i < n; i++)
            entries[i] = (struct sc_entry){ load_be64(src + 16 * i), load_be64(src + 16 * i + 8) };
    } else {
        for (size_t i = 0; i < n; i++)
            entries[i] = (struct sc_entry){ load_le64(src + 16 * i), load_le64(src + 16 * i + 8) };
    }
}

void
sc_index_encode(const struct sc_entry *entries, uint8_t *dst, size_t n, bool big_endian)
{
    if (big_endian) {
        for (size_t i = 0; i < n; i++) {
            store_be64(dst + 16 * i, entries[i].offset);
            store_be64(dst + 16 * i + 8, entries[i].nbytes);
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            store_le64(dst + 16 * i, entries[i].offset);
            store_le64(dst + 16 * i + 8, entries[i].nbytes);
        }
    }
}

/* ---- check ---- */

/* True if two ranges share a byte. It compares the distance of the offsets, never an end, which could overflow. */
static bool
share_a_byte(struct sc_entry a, struct sc_entry b)
{
    if (!a.nbytes || !b.nbytes)
        return false;
    return a.offset < b.offset ? b.offset - a.offset < a.nbytes : a.offset - b.offset < b.nbytes;
}

enum sc_status
sc_entry_judge(struct sc_entry e, const struct sc_index_extent *extent, bool allow_in_index, struct sc_where *where)
{
    const struct sc_entry index = { extent->offset, extent->nbytes };
    enum sc_status status;

    if (SC_UNLIKELY(e.offset == SC_ABSENT || e.nbytes == SC_ABSENT))
        status = SC_HALF_EMPTY;
    else if (SC_UNLIKELY(e.nbytes > extent->shard_nbytes || e.offset > extent->shard_nbytes - e.nbytes))
        status = SC_BAD_RANGE;
    else if (SC_UNLIKELY(!allow_in_index && share_a_byte(e, index)))
        status = SC_IN_INDEX;
    else
        return SC_OK;

    where->offset = e.offset;
    where->nbytes = e.nbytes;
    where->limit = extent->shard_nbytes;
    where->expected = extent->offset;
    where->actual = extent->nbytes;
    return status;
}

/* The highest bit of the result is set if one of these pairs may be wrong. Every number of a true pair is below 2^63, so a
 * difference below 0 has this bit. The loop has no branch, so compilers make vectors of it. */
static inline __attribute__((always_inline)) uint64_t
suspicion(const uint8_t *pairs, size_t n, bool big_endian, uint64_t first, uint64_t end)
{
    uint64_t found = 0;

    for (size_t i = 0; i < n; i++) {
        uint64_t offset = big_endian ? load_be64(pairs + 16 * i) : load_le64(pairs + 16 * i);
        uint64_t nbytes = big_endian ? load_be64(pairs + 16 * i + 8) : load_le64(pairs + 16 * i + 8);
        uint64_t room = end - nbytes, present = ~(offset & nbytes); /* 0: both are 2^64-1 */

        found |= (offset | nbytes | room | (room - offset) | (offset - first)) & (present | (0 - present));
    }
    return found;
}

#ifdef SC_ARCH_X86_64
SC_TARGET("avx2") static uint64_t suspicion_avx2(const uint8_t *pairs, size_t n, uint64_t first, uint64_t end)
{
    return suspicion(pairs, n, false, first, end);
}
#endif

static uint64_t
suspicion_of(const uint8_t *pairs, size_t n, bool big_endian, uint64_t first, uint64_t end)
{
    if (big_endian)
        return suspicion(pairs, n, true, first, end);
#ifdef SC_ARCH_X86_64
    if (sc_cpu_features() & SC_CPU_AVX2)
        return suspicion_avx2(pairs, n, first, end);
#endif
    return suspicion(pairs, n, false, first, end);
}

enum sc_status
sc_index_check_pairs(const uint8_t *pairs, size_t n, bool big_endian, const struct sc_index_extent *extent,
                     struct sc_where *where)
{
    uint64_t first = extent->offset ? 0 : extent->nbytes;
    uint64_t end = extent->offset ? extent->offset : extent->shard_nbytes;
    uint64_t found = suspicion_of(pairs, n, big_endian, first, end);

    for (size_t i = 0; found >> 63 && i < n; i++) { /* pairs without bytes are suspected without need */
        struct sc_entry e;
        enum sc_status status;

        sc_index_decode(pairs + 16 * i, &e, 1, big_endian);
        status = sc_entry_is_absent(e) ? SC_OK : sc_entry_check(e, extent, false, where);
        if (status) {
            where->entry = i;
            return status;
        }
    }
    return SC_OK;
}

enum sc_status
sc_index_check(const struct sc_entry *entries, size_t n, const struct sc_index_extent *extent, bool allow_in_index,
               struct sc_where *where)
{
    if (!allow_in_index)
        return sc_index_check_pairs((const uint8_t *)entries, n, SC_IS_BIG_ENDIAN, extent, where);
    for (size_t i = 0; i < n; i++) {
        enum sc_status status;

        if (sc_entry_is_absent(entries[i]))
            continue;
        status = sc_entry_check(entries[i], extent, true, where);
        if (status) {
            where->entry = i;
            return status;
        }
    }
    return SC_OK;
}

/* ---- sort ----
 *
 * A least-significant-digit radix sort, stable, so that equal offsets stay in order of position. Shards are written in
 * Morton order, hence offsets are a permutation more often than not, and sorting positions by a key that
 * is fetched through them misses the cache in every step. An offset and a position rarely need 64 bits together (a
 * shard of 1 TiB with 2^24 inner chunks just does), so the two are packed into one slot where they fit. */

struct sort {
    const struct sc_entry *entries;
    size_t n;
    unsigned position_bits; /* packed: slot = offset << position_bits | position; else 0: slot = position */
    uint64_t counts[N_DIGITS][RADIX];
};

/* Return the number of bits of `max`. */
static unsigned
n_bits_of(uint64_t max)
{
    return max ? 64 - (unsigned)__builtin_clzll(max) : 0;
}

/* List the positions of entries that have bytes. True: their offsets ascend already. *all_bits: the bitwise or of
 * the offsets. */
static bool
list_present(const struct sc_entry *entries, size_t n, uint64_t *order, size_t *n_out, uint64_t *all_bits)
{
    uint64_t previous = 0;
    bool ascending = true;
    size_t m = 0;

    *all_bits = 0;
    for (size_t i = 0; i < n; i++) {
        struct sc_entry e = entries[i];

        if (sc_entry_is_absent(e) || !e.nbytes)
            continue;
        ascending = ascending && previous <= e.offset;
        previous = e.offset;
        *all_bits |= e.offset;
        order[m++] = i;
    }
    *n_out = m;
    return ascending;
}

/* Count all digits of all offsets in one pass, and pack the slots if they are to be packed. */
static void
count_digits(struct sort *sort, uint64_t *order)
{
    memset(sort->counts, 0, sizeof sort->counts);
    for (size_t i = 0; i < sort->n; i++) {
        uint64_t offset = sort->entries[order[i]].offset;

        if (sort->position_bits)
            order[i] |= offset << sort->position_bits;
        for (int d = 0; d < N_DIGITS; d++, offset >>= DIGIT_BITS)
            sort->counts[d][offset & (RADIX - 1)]++;
    }
}

/* Turn counts into places. Return false if all offsets have the same digit, so the pass can be skipped. */
static bool
place_digits(struct sort *sort, int d)
{
    uint64_t place = 0;

    for (int value = 0; value < RADIX; value++) {
        uint64_t count = sort->counts[d][value];

        if (count == sort->n)
            return false;
        sort->counts[d][value] = place;
        place += count;
    }
    return true;
}

static void
move_by_digit(struct sort *sort, int d, const uint64_t *from, uint64_t *to)
{
    const unsigned shift = sort->position_bits + DIGIT_BITS * (unsigned)d;
    uint64_t *places = sort->counts[d];

    if (sort->position_bits) {
        for (size_t i = 0; i < sort->n; i++)
            to[places[from[i] >> shift & (RADIX - 1)]++] = from[i];
    } else {
        for (size_t i = 0; i < sort->n; i++)
            to[places[sort->entries[from[i]].offset >> shift & (RADIX - 1)]++] = from[i];
    }
}

void
sc_index_by_offset(const struct sc_entry *entries, size_t n, uint64_t *order, uint64_t *scratch, size_t *n_out)
{
    struct sort sort = { .entries = entries };
    uint64_t *from = order, *to = scratch, all_bits, mask;

    if (list_present(entries, n, order, &sort.n, &all_bits)) {
        *n_out = sort.n;
        return;
    }
    *n_out = sort.n;
    sort.position_bits = n_bits_of(n); /* at least 1, as n > 1 here */
    if (sort.position_bits + n_bits_of(all_bits) > 64)
        sort.position_bits = 0;
    mask = sort.position_bits ? ((uint64_t)1 << sort.position_bits) - 1 : UINT64_MAX;

    count_digits(&sort, order);
    for (int d = 0; d < N_DIGITS; d++) {
        uint64_t *swap = from;

        if (!place_digits(&sort, d))
            continue;
        move_by_digit(&sort, d, from, to);
        from = to;
        to = swap;
    }
    for (size_t i = 0; i < sort.n; i++)
        order[i] = from[i] & mask; /* may be in place */
}

/* ---- overlaps, gaps ---- */

/* Return the first byte after a range. Checked entries cannot overflow; for others it is at most 2^64-1. */
static uint64_t
end_of(struct sc_entry e)
{
    uint64_t end;

    return add_fits(e.offset, e.nbytes, &end) ? end : UINT64_MAX;
}

void
sc_index_overlaps(const struct sc_entry *entries, const uint64_t *order, size_t n, uint64_t (*pairs)[2],
                  size_t capacity, size_t *n_found)
{
    uint64_t furthest = 0; /* position of the range that reaches furthest so far, and its end */
    uint64_t end = 0;

    *n_found = 0;
    for (size_t i = 0; i < n; i++) {
        struct sc_entry e = entries[order[i]];

        if (e.offset < end) {
            if (*n_found < capacity) {
                pairs[*n_found][0] = furthest;
                pairs[*n_found][1] = order[i];
            }
            ++*n_found;
        }
        if (end_of(e) > end) {
            end = end_of(e);
            furthest = order[i];
        }
    }
}

/* Find the gaps between ascending ranges. */
struct sweep {
    uint64_t end; /* all bytes before this one are done */
    uint64_t shard_nbytes;
    struct sc_entry *gaps;
    size_t capacity, n_found;
};

static void
sweep_over(struct sweep *sweep, struct sc_entry range)
{
    uint64_t offset = min_u64(range.offset, sweep->shard_nbytes);

    if (offset > sweep->end) {
        if (sweep->n_found < sweep->capacity)
            sweep->gaps[sweep->n_found] = (struct sc_entry){ sweep->end, offset - sweep->end };
        sweep->n_found++;
    }
    sweep->end = max_u64(sweep->end, min_u64(end_of(range), sweep->shard_nbytes));
}

void
sc_index_gaps(const struct sc_entry *entries, const uint64_t *order, size_t n, const struct sc_index_extent *extent,
              struct sc_entry *gaps, size_t capacity, size_t *n_found)
{
    const struct sc_entry index = { extent->offset, extent->nbytes };
    struct sweep sweep = { .shard_nbytes = extent->shard_nbytes, .gaps = gaps, .capacity = capacity };
    size_t i = 0;

    for (; i < n && entries[order[i]].offset < index.offset; i++)
        sweep_over(&sweep, entries[order[i]]);
    if (index.nbytes)
        sweep_over(&sweep, index);
    for (; i < n; i++)
        sweep_over(&sweep, entries[order[i]]);
    sweep_over(&sweep, (struct sc_entry){ extent->shard_nbytes, 0 });
    *n_found = sweep.n_found;
}

/* ---- sums ---- */

void
sc_index_sum_up(const struct sc_entry *entries, size_t n, const uint8_t *dropped, struct sc_entry *left,
                struct sc_index_sums *sums)
{
    struct sc_index_sums s = { .first = UINT64_MAX };

    for (size_t i = 0; i < n; i++) {
        struct sc_entry e = entries[i];
        bool gone = e.offset == SC_ABSENT || (dropped && dropped[i]);

        if (e.offset != SC_ABSENT && e.nbytes) {
            s.n_stored++;
            s.first = min_u64(s.first, e.offset);
            s.end = max_u64(s.end, end_of(e));
            s.offset_bits |= e.offset;
            s.nbytes_bits |= e.nbytes;
        }
        if (!gone && !add_fits(s.left_nbytes, e.nbytes, &s.left_nbytes))
            s.left_nbytes = UINT64_MAX;
        if (left)
            left[i] = gone ? (struct sc_entry){ SC_ABSENT, SC_ABSENT } : e;
    }
    *sums = s;
}

/* ---- packing ---- */

uint64_t
sc_index_pack(struct sc_entry *entries, const uint64_t *order, size_t n, uint64_t at, uint64_t alignment,
              struct sc_carry *runs, size_t *n_runs)
{
    size_t m = 0;

    for (size_t i = 0; i < n; i++) {
        struct sc_entry *e = &entries[order[i]];
        struct sc_carry *last = &runs[m];

        at = (at + alignment - 1) & ~(alignment - 1);
        if (m && last[-1].from + last[-1].nbytes == e->offset && last[-1].to + last[-1].nbytes == at)
            last[-1].nbytes += e->nbytes;
        else
            runs[m++] = (struct sc_carry){ e->offset, e->nbytes, at };
        e->offset = at;
        at += e->nbytes;
    }
    *n_runs = m;
    return at;
}
