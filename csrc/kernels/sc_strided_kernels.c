/* sc_strided_kernels.c - the loops of a prepared copy (see sc_strided.h)
 *
 * Inner chunks are small: copying 64 rows of 8 bytes takes less time than 64 calls of memcpy. So each kernel is a whole
 * copy, all loops in one function, with the size of a row as a constant:
 *
 *     for each index of the outer axes          (the fourth axis from the inside on; seldom any)
 *         for i for j for k                     (a copy of fewer axes has leading ones of extent 1)
 *             move_row(dst + ..., src + ...)
 *
 * The loops are written once; KERNEL makes a function for each constant.
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_strided_kernels.h"

#include "base/sc_cpu.h"
#include "kernels/sc_strided_move.h"

static ALWAYS_INLINE void
run_rows(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src, enum sc_move_kind how, size_t size)
{
    const int a = copy->ndim - 3;
    const uint64_t n0 = copy->shape[a], n1 = copy->shape[a + 1], n2 = copy->shape[a + 2];
    const int64_t d0 = copy->dst_strides[a], d1 = copy->dst_strides[a + 1], d2 = copy->dst_strides[a + 2];
    const int64_t s0 = copy->src_strides[a], s1 = copy->src_strides[a + 1], s2 = copy->src_strides[a + 2];
    uint64_t index[SC_MAX_NDIM];

    for (int i = 0; i < a; i++)
        index[i] = 0;
    do {
        for (int64_t i = 0; i < (int64_t)n0; i++)
            for (int64_t j = 0; j < (int64_t)n1; j++)
                for (int64_t k = 0; k < (int64_t)n2; k++)
                    move_row(copy, dst + i * d0 + j * d1 + k * d2, src + i * s0 + j * s1 + k * s2, how, size);
    } while (SC_UNLIKELY(a > 0) && step_outer(copy, 3, index, &dst, &src));
}

KERNEL(rows_1, run_rows, MOVE_EXACT, 1)
KERNEL(rows_2, run_rows, MOVE_EXACT, 2)
KERNEL(rows_4, run_rows, MOVE_EXACT, 4)
KERNEL(rows_8, run_rows, MOVE_EXACT, 8)
KERNEL(rows_16, run_rows, MOVE_EXACT, 16)
KERNEL(rows_32, run_rows, MOVE_EXACT, 32)
KERNEL(rows_64, run_rows, MOVE_EXACT, 64)
KERNEL(rows_2_to_4, run_rows, MOVE_PAIR, 2)
KERNEL(rows_4_to_8, run_rows, MOVE_PAIR, 4)
KERNEL(rows_8_to_16, run_rows, MOVE_PAIR, 8)
KERNEL(rows_16_to_32, run_rows, MOVE_PAIR, 16)
KERNEL(rows_32_to_64, run_rows, MOVE_PAIR, 32)
KERNEL(rows_64_to_128, run_rows, MOVE_PAIR, 64)
KERNEL(rows_any, run_rows, MOVE_ANY, 0)
KERNEL(rows_fields, run_rows, MOVE_FIELDS, 0)
KERNEL(rows_spread, run_rows, MOVE_SPREAD, 0)
KERNEL(rows_streamed, run_rows, MOVE_STREAM, 0)
KERNEL(items_swap_2, run_rows, MOVE_SWAP_ITEM, 2)
KERNEL(items_swap_4, run_rows, MOVE_SWAP_ITEM, 4)
KERNEL(items_swap_8, run_rows, MOVE_SWAP_ITEM, 8)
KERNEL(rows_swap_2, run_rows, MOVE_SWAP, 2)
KERNEL(rows_swap_4, run_rows, MOVE_SWAP, 4)
KERNEL(rows_swap_8, run_rows, MOVE_SWAP, 8)

#if defined(SC_ARCH_X86_64)
#define KERNEL_AVX2(name, loops, how, size) SC_TARGET("avx2") KERNEL(name, loops, how, size)

KERNEL_AVX2(rows_swap_2_avx2, run_rows, MOVE_SWAP, 2)
KERNEL_AVX2(rows_swap_4_avx2, run_rows, MOVE_SWAP, 4)
KERNEL_AVX2(rows_swap_8_avx2, run_rows, MOVE_SWAP, 8)
#endif

/* ---- the choice ---- */

static sc_copy_fn *
plain_kernel(size_t row_nbytes)
{
    static const struct {
        size_t nbytes;
        sc_copy_fn *exact, *to_twice;
    } kernels[] = {
        { 1, rows_1, NULL },
        { 2, rows_2, rows_2_to_4 },
        { 4, rows_4, rows_4_to_8 },
        { 8, rows_8, rows_8_to_16 },
        { 16, rows_16, rows_16_to_32 },
        { 32, rows_32, rows_32_to_64 },
        { 64, rows_64, rows_64_to_128 },
    };

    for (size_t i = 0; i < SC_ARRAY_SIZE(kernels); i++) {
        if (row_nbytes == kernels[i].nbytes)
            return kernels[i].exact;
        if (row_nbytes < 2 * kernels[i].nbytes)
            return kernels[i].to_twice;
    }
    return rows_any;
}

static sc_copy_fn *
swapped_kernel(size_t row_nbytes, enum sc_swap_kind swap)
{
    if (row_nbytes == (size_t)swap)
        return swap == SC_SWAP_2 ? items_swap_2 : swap == SC_SWAP_4 ? items_swap_4 : items_swap_8;
#if defined(SC_ARCH_X86_64)
    if (sc_cpu_features() & SC_CPU_AVX2)
        return swap == SC_SWAP_2 ? rows_swap_2_avx2 : swap == SC_SWAP_4 ? rows_swap_4_avx2 : rows_swap_8_avx2;
#endif
    return swap == SC_SWAP_2 ? rows_swap_2 : swap == SC_SWAP_4 ? rows_swap_4 : rows_swap_8;
}

static bool
is_one_element(const struct sc_copy *copy)
{
    for (int a = 0; a < copy->ndim; a++)
        if (copy->src_strides[a])
            return false;
    return true;
}

/* True for a fill that is larger than a cache, in rows of more than a few cache lines. */
static bool
is_streamed(const struct sc_copy *copy)
{
    uint64_t nbytes = copy->row_nbytes;

    for (int a = 0; a < copy->ndim; a++)
        nbytes *= copy->shape[a];
    return copy->row_nbytes >= STREAM_ROW_NBYTES && copy->itemsize <= PATTERN_NBYTES && nbytes >= STREAM_NBYTES;
}

/* A fill: one row is made first, and copied to the others if rows are short or the fill is large. */
static void
rows_spread_or_copied(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src)
{
    const bool streamed = is_streamed(copy);
    struct sc_copy first = *copy;
    uint8_t row[PATTERN_NBYTES];

    if ((copy->row_nbytes > sizeof row && !streamed) || !is_one_element(copy)) {
        rows_spread(copy, dst, src);
        return;
    }
    if (copy->row_nbytes > sizeof row)
        first.row_nbytes = sizeof row / copy->itemsize * copy->itemsize;
    spread_row(&first, row, src);
    if (!streamed) {
        plain_kernel(copy->row_nbytes)(copy, dst, row);
        return;
    }
    rows_streamed(copy, dst, row);
#if defined(SC_ARCH_X86_64)
    _mm_sfence(); /* order the stores before any sign to other threads that they are done */
#endif
}

sc_copy_fn *
sc_strided_rows_kernel(size_t row_nbytes, enum sc_swap_kind swap)
{
    if (swap == SC_SWAP_NONE)
        return plain_kernel(row_nbytes);
    return swap == SC_SWAP_MIXED ? rows_fields : swapped_kernel(row_nbytes, swap);
}

sc_copy_fn *
sc_strided_spread_kernel(void)
{
    return rows_spread_or_copied;
}
