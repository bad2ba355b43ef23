/* sc_order.c - the order in which a writer lays inner chunks into a shard
 *
 * Morton rank, as zarr-python writes shards: take bit 0 of each coordinate, axis 0 first, then bit 1 of each, and so
 * on. An axis of extent c needs only (c - 1).bit_length() bits and drops out after these. They are the bits of the
 * rank, lowest first. On a 3 x 5 grid axis 0 has two bits and axis 1 has three:
 *
 *              axis 1 ->
 *     axis 0    0   2   8  10 | 16         rank bit 0: axis 0, bit 0        bit 3: axis 1, bit 1
 *       |       1   3   9  11 | 17         rank bit 1: axis 1, bit 0        bit 4: axis 1, bit 2
 *       v       4   6  12  14 | 20         rank bit 2: axis 0, bit 1
 *              ---------------
 *               5   7  13  15              ranks outside the grid; the numbers 18, 19, 21 ... lie outside as well
 *
 * The simple method is to count the rank up, decode it and skip positions outside of the grid; for 33^3 that is six
 * ranks of seven. Another simple method is to sort all inner chunks by rank.
 *
 * Here the rank is read as a path from the root of a binary tree. Its top bit splits the grid in two along one axis,
 * the next bit splits each half, and so on. A subtree is a box, one interval per axis, and only the interval of the
 * axis that was just split can lie outside of the sub-grid. So one comparison decides whether a child contains a wanted
 * position. A child without one is never entered, and each descent ends at a wanted position.
 *
 * The lowest six bits are not walked. They form a block of 64 positions (4 x 4 x 4 on three axes) that is the same
 * everywhere: position = base + within[rank]. A block at the edge has a 64-bit mask, computed by comparing all 64
 * coordinates of an axis with the edge at once, one bit of the number at a time. The mask is also the only state needed
 * if the array of the caller is full in the middle of a block.
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_order.h"

#define BLOCK (1 << SC_ORDER_BLOCK_BITS)

/* The ranks within a block whose bit k is set. */
static const uint64_t ranks_with_bit[SC_ORDER_BLOCK_BITS] = {
    0xAAAAAAAAAAAAAAAA, 0xCCCCCCCCCCCCCCCC, 0xF0F0F0F0F0F0F0F0,
    0xFF00FF00FF00FF00, 0xFFFF0000FFFF0000, 0xFFFFFFFF00000000,
};

/* The ranks within a block; fewer than 64 if the grid itself is smaller. */
static uint64_t
all_ranks(const struct sc_order_iter *it)
{
    return UINT64_MAX >> (BLOCK - (1 << it->n_block_bits));
}

/* ---- Morton ---- */

/* Return the ranks of the block whose coordinate along `axis`, counted from the corner of the block, is below limit
 * < side. */
static uint64_t
ranks_below(const struct sc_order_iter *it, int axis, uint64_t limit)
{
    uint64_t below = 0, equal = UINT64_MAX; /* in the bits seen so far */

    for (int k = it->n_block_bits - 1; k >= 0; k--) {
        if (it->bits[k].axis != axis)
            continue;
        if (limit >> it->bits[k].bit & 1) {
            below |= equal & ~ranks_with_bit[k];
            equal &= ranks_with_bit[k];
        } else {
            equal &= ~ranks_with_bit[k];
        }
    }
    return below;
}

/* Return the ranks of the block at c that lie in the sub-grid; never 0. */
static uint64_t
block_mask(const struct sc_order_iter *it)
{
    uint64_t mask = all_ranks(it);

    for (int a = 0; a < it->ndim; a++) {
        uint64_t room = it->last[a] - it->c[a];

        if (SC_UNLIKELY(room + 1 < it->sides[a]))
            mask &= ranks_below(it, a, room + 1);
        if (SC_UNLIKELY(it->c[a] < it->first[a]))
            mask &= ~ranks_below(it, a, it->first[a] - it->c[a]);
    }
    return mask;
}

/* Descend from a subtree that is split by bit k - 1 to its first block. Enter the lower child unless it ends before
 * the sub-grid begins. In that case the upper child does not, since one of the two reaches into the sub-grid. */
static void
descend(struct sc_order_iter *it, int k)
{
    while (--k >= it->n_block_bits) {
        int a = it->bits[k].axis, bit = it->bits[k].bit;

        if (it->c[a] + ((uint64_t)1 << bit) <= it->first[a]) {
            it->c[a] += (uint64_t)1 << bit;
            it->base += it->strides[a] << bit;
        }
    }
}

/* Climb out of upper children until an upper sibling begins inside the sub-grid, and go down into that. */
static bool
next_block(struct sc_order_iter *it)
{
    for (int k = it->n_block_bits; k < it->n_bits; k++) {
        int a = it->bits[k].axis, bit = it->bits[k].bit;
        uint64_t half = (uint64_t)1 << bit;

        if (it->c[a] & half) {
            it->c[a] -= half;
            it->base -= it->strides[a] << bit;
        } else if (it->c[a] + half <= it->last[a]) {
            it->c[a] += half;
            it->base += it->strides[a] << bit;
            descend(it, k);
            it->mask = block_mask(it);
            return true;
        }
    }
    return false;
}

/* Write as many positions of the current block as fit. */
static size_t
take_from_block(struct sc_order_iter *it, uint64_t *positions, size_t capacity)
{
    const uint64_t base = it->base;
    uint64_t mask = it->mask;
    size_t n = 0;

    if (SC_LIKELY(mask == UINT64_MAX && capacity >= BLOCK)) {
        for (int i = 0; i < BLOCK; i++)
            positions[i] = base + it->within[i];
        it->mask = 0;
        return BLOCK;
    }
    for (; mask && n < capacity; mask &= mask - 1)
        positions[n++] = base + it->within[__builtin_ctzll(mask)];
    it->mask = mask;
    return n;
}

static size_t
next_morton(struct sc_order_iter *it, uint64_t *positions, size_t capacity)
{
    size_t n = 0;

    while (n < capacity) {
        if (!it->mask && (it->done || !next_block(it))) {
            it->done = true;
            break;
        }
        n += take_from_block(it, positions + n, capacity - n);
    }
    return n;
}

static int
n_bits_of(uint64_t extent)
{
    return extent > 1 ? 64 - __builtin_clzll(extent - 1) : 0;
}

static void
begin_morton(struct sc_order_iter *it, const uint64_t *grid)
{
    it->n_bits = 0;
    for (int bit = 0; bit < 63; bit++)
        for (int a = 0; a < it->ndim; a++)
            if (bit < n_bits_of(grid[a])) {
                it->bits[it->n_bits].axis = (uint8_t)a;
                it->bits[it->n_bits++].bit = (uint8_t)bit;
            }
    it->n_block_bits = it->n_bits < SC_ORDER_BLOCK_BITS ? it->n_bits : SC_ORDER_BLOCK_BITS;

    for (int a = 0; a < it->ndim; a++) {
        it->c[a] = 0;
        it->sides[a] = 1;
    }
    it->within[0] = 0;
    for (int k = 0; k < it->n_block_bits; k++) {
        int a = it->bits[k].axis;

        for (int i = 0; i < 1 << k; i++)
            it->within[(1 << k) + i] = it->within[i] + (it->strides[a] << it->bits[k].bit);
        it->sides[a] *= 2;
    }
    it->base = 0;
    descend(it, it->n_bits);
    it->mask = block_mask(it);
}

/* ---- by rows: the k-th fastest axis is the k-th last (lexicographic) or the k-th (colexicographic) ---- */

static int
axis_by_speed(const struct sc_order_iter *it, int k)
{
    return it->order == SC_ORDER_LEXICOGRAPHIC ? it->ndim - 1 - k : k;
}

static void
begin_row(struct sc_order_iter *it)
{
    int a = axis_by_speed(it, 0);

    it->at = it->base;
    it->left = it->ndim ? it->last[a] - it->first[a] + 1 : 1;
}

static bool
next_row(struct sc_order_iter *it)
{
    for (int k = 1; k < it->ndim; k++) {
        int a = axis_by_speed(it, k);

        if (it->c[a] < it->last[a]) {
            it->c[a]++;
            it->base += it->strides[a];
            begin_row(it);
            return true;
        }
        it->base -= (it->c[a] - it->first[a]) * it->strides[a];
        it->c[a] = it->first[a];
    }
    return false;
}

static size_t
next_by_rows(struct sc_order_iter *it, uint64_t *positions, size_t capacity)
{
    const uint64_t stride = it->ndim ? it->strides[axis_by_speed(it, 0)] : 0;
    size_t n = 0;

    while (n < capacity) {
        size_t count;

        if (!it->left && (it->done || !next_row(it))) {
            it->done = true;
            break;
        }
        count = (size_t)min_u64(it->left, capacity - n);
        for (size_t i = 0; i < count; i++)
            positions[n + i] = it->at + i * stride;
        it->at += count * stride;
        it->left -= count;
        n += count;
    }
    return n;
}

static void
begin_by_rows(struct sc_order_iter *it)
{
    it->base = 0;
    for (int a = 0; a < it->ndim; a++) {
        it->c[a] = it->first[a];
        it->base += it->first[a] * it->strides[a];
    }
    begin_row(it);
}

/* ---- both ---- */

enum sc_status
sc_order_begin(struct sc_order_iter *it, enum sc_order order, int ndim, const uint64_t *grid, const uint64_t *first,
               const uint64_t *last)
{
    uint64_t n = 1;

    if (ndim < 0 || ndim > SC_MAX_NDIM || (unsigned)order > SC_ORDER_COLEXICOGRAPHIC)
        return SC_BAD_ARGUMENT;
    for (int a = ndim - 1; a >= 0; a--) {
        if (first[a] > last[a] || last[a] >= grid[a])
            return SC_BAD_ARGUMENT;
        it->first[a] = first[a];
        it->last[a] = last[a];
        it->strides[a] = n;
        if (!mul_fits(n, grid[a], &n) || n > (uint64_t)1 << 63)
            return SC_BAD_ARGUMENT;
    }
    it->order = order;
    it->ndim = ndim;
    it->done = false;
    if (order == SC_ORDER_MORTON)
        begin_morton(it, grid);
    else
        begin_by_rows(it);
    return SC_OK;
}

size_t
sc_order_next(struct sc_order_iter *it, uint64_t *positions, size_t capacity)
{
    return it->order == SC_ORDER_MORTON ? next_morton(it, positions, capacity) : next_by_rows(it, positions, capacity);
}
