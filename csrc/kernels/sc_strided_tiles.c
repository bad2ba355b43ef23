/* sc_strided_tiles.c - copies between transposed memory
 *
 * A transpose walks down the columns of one side, from cache line to cache line. In tiles of LINE x LINE bytes every
 * line is used completely before the next one. The lines of the destination come first: they have to be written back,
 * and in a large array their distance is a large power of two, so few of them fit into the cache at a time.
 *
 * Within a tile, blocks of 16 x 16 bytes are transposed in registers. Interleaving row i with row i + n/2 rotates the
 * number of an element (row, column) by one bit; log2(n) such steps exchange row and column.
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_strided_kernels.h"

#include "kernels/sc_strided_move.h"

enum { LINE = 64, VECTOR = 16 };

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAVE_SHUFFLE 1
#endif
#endif

#if defined(HAVE_SHUFFLE)

typedef uint8_t vector __attribute__((vector_size(VECTOR)));

#define SHUFFLE __builtin_shufflevector

/* Interleave the elements of a and b, from their lower and from their upper halves. */
static ALWAYS_INLINE void
interleave(vector a, vector b, vector *low, vector *high, size_t size)
{
    if (size == 1) {
        *low = SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        *high = SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    } else if (size == 2) {
        *low = SHUFFLE(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23);
        *high = SHUFFLE(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31);
    } else if (size == 4) {
        *low = SHUFFLE(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        *high = SHUFFLE(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    } else {
        *low = SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
        *high = SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
}

/* Rows of 16 bytes at src become columns at dst. */
static ALWAYS_INLINE void
turn_block(uint8_t *dst, int64_t dst_stride, const uint8_t *src, int64_t src_stride, enum sc_move_kind how, size_t size)
{
    const int n = (int)(VECTOR / size);
    vector rows[VECTOR], shuffled[VECTOR];

    for (int i = 0; i < n; i++)
        memcpy(&rows[i], src + i * src_stride, VECTOR);
    for (int stage = 1; stage < n; stage *= 2) {
        for (int i = 0; i < n / 2; i++)
            interleave(rows[i], rows[i + n / 2], &shuffled[2 * i], &shuffled[2 * i + 1], size);
        for (int i = 0; i < n; i++)
            rows[i] = shuffled[i];
    }
    for (int i = 0; i < n; i++) {
        if (how == MOVE_SWAP_ITEM)
            swap_block((uint8_t *)&rows[i], (uint8_t *)&rows[i], VECTOR, size);
        memcpy(dst + i * dst_stride, &rows[i], VECTOR);
    }
}

#else

static ALWAYS_INLINE void
turn_block(uint8_t *dst, int64_t dst_stride, const uint8_t *src, int64_t src_stride, enum sc_move_kind how, size_t size)
{
    const int64_t n = VECTOR / (int64_t)size, element = (int64_t)size;

    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            move_row(NULL, dst + i * dst_stride + j * element, src + j * src_stride + i * element, how, size);
}

#endif

/* The two innermost axes of a transpose: the source runs fastest along i, the destination along j. */
struct plane {
    int64_t ni, nj, dst_i, dst_j, src_i, src_j;
};

/* Transpose a tile in blocks, as far as they fit. */
static ALWAYS_INLINE void
move_tile(const struct sc_copy *copy, const struct plane *p, int64_t ni, int64_t nj, uint8_t *dst, const uint8_t *src,
          enum sc_move_kind how, size_t size)
{
    const int64_t side = VECTOR / (int64_t)size, element = (int64_t)size;
    const bool blocks = size < VECTOR && p->dst_j == element && p->src_i == element;
    const int64_t whole_i = blocks ? ni - ni % side : 0, whole_j = blocks ? nj - nj % side : 0;

    for (int64_t i = 0; i < whole_i; i += side)
        for (int64_t j = 0; j < whole_j; j += side)
            turn_block(dst + i * p->dst_i + j * element, p->dst_i, src + i * element + j * p->src_j, p->src_j, how,
                       size);
    for (int64_t i = 0; i < ni; i++)
        for (int64_t j = i < whole_i ? whole_j : 0; j < nj; j++)
            move_row(copy, dst + i * p->dst_i + j * p->dst_j, src + i * p->src_i + j * p->src_j, how, size);
}

static ALWAYS_INLINE void
run_tiles(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src, enum sc_move_kind how, size_t size)
{
    const int a = copy->ndim - 2;
    const struct plane p = {
        .ni = (int64_t)copy->shape[a],
        .nj = (int64_t)copy->shape[a + 1],
        .dst_i = copy->dst_strides[a],
        .dst_j = copy->dst_strides[a + 1],
        .src_i = copy->src_strides[a],
        .src_j = copy->src_strides[a + 1],
    };
    const int64_t side = LINE / (int64_t)size;
    uint64_t index[SC_MAX_NDIM];

    for (int i = 0; i < a; i++)
        index[i] = 0;
    do {
        for (int64_t i = 0; i < p.ni; i += side)
            for (int64_t j = 0; j < p.nj; j += side)
                move_tile(copy, &p, p.ni - i < side ? p.ni - i : side, p.nj - j < side ? p.nj - j : side,
                          dst + i * p.dst_i + j * p.dst_j, src + i * p.src_i + j * p.src_j, how, size);
    } while (step_outer(copy, 2, index, &dst, &src));
}

KERNEL(tiles_1, run_tiles, MOVE_EXACT, 1)
KERNEL(tiles_2, run_tiles, MOVE_EXACT, 2)
KERNEL(tiles_4, run_tiles, MOVE_EXACT, 4)
KERNEL(tiles_8, run_tiles, MOVE_EXACT, 8)
KERNEL(tiles_16, run_tiles, MOVE_EXACT, 16)
KERNEL(tiles_swap_2, run_tiles, MOVE_SWAP_ITEM, 2)
KERNEL(tiles_swap_4, run_tiles, MOVE_SWAP_ITEM, 4)
KERNEL(tiles_swap_8, run_tiles, MOVE_SWAP_ITEM, 8)

sc_copy_fn *
sc_strided_tiled_kernel(size_t itemsize, enum sc_swap_kind swap)
{
    if (swap == SC_SWAP_NONE) {
        switch (itemsize) {
        case 1:
            return tiles_1;
        case 2:
            return tiles_2;
        case 4:
            return tiles_4;
        case 8:
            return tiles_8;
        case 16:
            return tiles_16;
        default:
            return NULL;
        }
    }
    if (itemsize != (size_t)swap)
        return NULL;
    return swap == SC_SWAP_2 ? tiles_swap_2 : swap == SC_SWAP_4 ? tiles_swap_4 : tiles_swap_8;
}
