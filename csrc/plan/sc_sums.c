/* sc_sums.c - checksums of many ranges of one shard (see sc_sums.h)
 * SPDX-License-Identifier: MIT */
#include "plan/sc_sums.h"

#include "kernels/sc_crc32c.h"

/* Bytes of a read. They stay in the second-level cache of a core until they are checked. */
#define PIECE_NBYTES ((uint64_t)1 << 18)
#define MIN_PIECE_NBYTES ((uint64_t)1 << 14)

/* Reads end at a multiple of this, so that the next one begins at a page. */
#define PAGE_NBYTES ((uint64_t)1 << 12)

/* Unused bytes between ranges that are read to save another read. */
#define MAX_GAP_NBYTES ((uint64_t)1 << 14)

/* The bytes of the object that are in memory: [low, high). */
struct piece {
    struct sc_fetch *fetch;
    struct sc_buffer buffer;
    uint64_t most, low, high;
};

/* Return where a read from `offset`, in the first of n ranges, ends: behind the ranges that follow closely, or earlier if that is
 * more than the largest read. */
static uint64_t
read_end(const struct sc_entry *ranges, size_t n, uint64_t offset, uint64_t most)
{
    uint64_t end = ranges[0].offset + ranges[0].nbytes;

    for (size_t i = 1; i < n && end - offset < most; i++) {
        const struct sc_entry *next = &ranges[i];

        if (next->offset < offset || (next->offset > end && next->offset - end > MAX_GAP_NBYTES))
            break;
        end = max_u64(end, next->offset + next->nbytes);
    }
    return end - offset <= most ? end : (offset + most) & ~(PAGE_NBYTES - 1);
}

/* Make the byte at `offset` of the first of n ranges available. */
static enum sc_status
load(struct piece *piece, const struct sc_entry *ranges, size_t n, uint64_t offset, struct sc_where *where)
{
    enum sc_status status;

    if (offset >= piece->low && offset < piece->high)
        return SC_OK;
    piece->low = offset;
    piece->high = read_end(ranges, n, offset, piece->most);
    status = sc_fetch_range(piece->fetch, offset, (size_t)(piece->high - offset), piece->buffer.data, where);
    if (status)
        piece->high = offset;
    return status;
}

static enum sc_status
sum_range(struct piece *piece, const struct sc_entry *ranges, size_t n, struct sc_sum *sum, struct sc_where *where)
{
    uint64_t at = ranges[0].offset, end = at + ranges[0].nbytes, body_end = end - SC_SUM_NBYTES;
    uint8_t stored[SC_SUM_NBYTES];

    sum->computed = 0;
    while (at < end) {
        enum sc_status status = load(piece, ranges, n, at, where);
        const uint8_t *bytes = piece->buffer.data + (at - piece->low);
        uint64_t stop = min_u64(piece->high, end);

        if (status)
            return status;
        if (at < body_end) {
            stop = min_u64(stop, body_end);
            sum->computed = sc_crc32c_extend(sum->computed, bytes, (size_t)(stop - at));
        } else {
            memcpy(stored + (at - body_end), bytes, (size_t)(stop - at));
        }
        at = stop;
    }
    sum->stored = load_le32(stored);
    return SC_OK;
}

/* The bytes are in memory already. */
static void
sum_in_memory(const uint8_t *object, const struct sc_entry *range, struct sc_sum *sum)
{
    const uint8_t *bytes = object + range->offset;
    uint64_t n = range->nbytes - SC_SUM_NBYTES;

    *sum = (struct sc_sum){ load_le32(bytes + n), sc_crc32c_extend(0, bytes, (size_t)n) };
}

/* Return the first range that does not lie inside the object, or is too short for a checksum; n if there is none. */
static size_t
first_bad(const struct sc_entry *ranges, size_t n, uint64_t object_nbytes)
{
    size_t i = 0;

    while (i < n && ranges[i].nbytes >= SC_SUM_NBYTES && ranges[i].offset <= object_nbytes &&
           ranges[i].nbytes <= object_nbytes - ranges[i].offset)
        i++;
    return i;
}

/* Return the number of sums; less than n on failure. */
static size_t
sum_ranges(struct piece *piece, const struct sc_entry *ranges, size_t n, struct sc_sum *sums, enum sc_status *status,
           struct sc_where *where)
{
    const struct sc_input *input = &piece->fetch->input;

    for (size_t i = 0; i < n; i++) {
        if (input->fd < 0)
            sum_in_memory(piece->fetch->source.data, &ranges[i], &sums[i]);
        else
            *status = sum_range(piece, &ranges[i], n - i, &sums[i], where);
        if (*status)
            return i;
    }
    return n;
}

enum sc_status
sc_fetch_sums(struct sc_fetch *fetch, const struct sc_entry *ranges, size_t n, uint64_t max_nbytes, struct sc_sum *sums,
              struct sc_where *where)
{
    struct piece piece = { .fetch = fetch, .most = max_u64(MIN_PIECE_NBYTES, min_u64(max_nbytes, PIECE_NBYTES)) };
    enum sc_status status = SC_OK;
    size_t i = first_bad(ranges, n, fetch->input.nbytes);

    sc_where_clear(where);
    if (i < n) {
        where->detail = "the range does not lie inside the object, or is too short for a checksum";
        where->entry = i;
        return SC_BAD_ARGUMENT;
    }
    if (fetch->input.fd >= 0)
        status = sc_buffer_reserve(&piece.buffer, (size_t)piece.most);
    if (!status)
        i = sum_ranges(&piece, ranges, n, sums, &status, where);
    if (status)
        where->entry = i;
    sc_buffer_free(&piece.buffer);
    return status;
}
