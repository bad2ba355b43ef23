/* sc_strided_kernels.c - the loops under a prepared copy (see sc_strided.h)
 *
 * Inner chunks are small: 64 rows of 8 bytes take less time than one call of memcpy per row would. So each kernel is a
 * whole copy, all loops in one function, with the size of a row as a constant in it:
 *
 *     for each index of the outer axes          (the fourth axis from the inside on; seldom any)
 *         for i for j for k                     (a copy of fewer axes has leading ones of extent 1)
 *             move_row(dst + ..., src + ...)    (how, size: constants, so one case of the switch is left)
 *
 * run_rows() and run_tiles() are these loops, written once; KERNEL stamps out a function for each constant.
 *
 * SPDX-License-Identifier: MIT */
#include "sc_strided_kernels.h"

#include "sc_cpu.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* ---- byte order ---- */

enum { SWAP_BLOCK = 32 }; /* one AVX2 register */

static ALWAYS_INLINE void
swap_unit(uint8_t *dst, const uint8_t *src, size_t unit)
{
    if (unit == 2) {
        uint16_t v;

        memcpy(&v, src, sizeof v);
        v = __builtin_bswap16(v);
        memcpy(dst, &v, sizeof v);
    } else if (unit == 4) {
        uint32_t v;

        memcpy(&v, src, sizeof v);
        v = __builtin_bswap32(v);
        memcpy(dst, &v, sizeof v);
    } else {
        uint64_t v;

        memcpy(&v, src, sizeof v);
        v = __builtin_bswap64(v);
        memcpy(dst, &v, sizeof v);
    }
}

/* Constant nbytes <= SWAP_BLOCK. All is read before anything is written, so that dst may be src and the compiler need
 * not ask: with AVX2 this becomes a load, a shuffle and a store. */
static ALWAYS_INLINE void
swap_block(uint8_t *dst, const uint8_t *src, size_t nbytes, size_t unit)
{
    uint8_t block[SWAP_BLOCK];

    memcpy(block, src, nbytes);
    for (size_t i = 0; i < nbytes; i += unit)
        swap_unit(block + i, block + i, unit);
    memcpy(dst, block, nbytes);
}

/* Constant unit: 2, 4 or 8. dst may be src. */
static ALWAYS_INLINE void
swap_row(uint8_t *dst, const uint8_t *src, size_t nbytes, size_t unit)
{
    for (; nbytes >= SWAP_BLOCK; nbytes -= SWAP_BLOCK, dst += SWAP_BLOCK, src += SWAP_BLOCK)
        swap_block(dst, src, SWAP_BLOCK, unit);
    if (nbytes >= SWAP_BLOCK / 2) {
        swap_block(dst, src, SWAP_BLOCK / 2, unit);
        nbytes -= SWAP_BLOCK / 2;
        dst += SWAP_BLOCK / 2;
        src += SWAP_BLOCK / 2;
    }
    for (; nbytes; nbytes -= unit, dst += unit, src += unit)
        swap_unit(dst, src, unit);
}

static void
reverse_bytes(uint8_t *p, size_t unit)
{
    for (size_t k = 0; k < unit / 2; k++) {
        uint8_t byte = p[k];

        p[k] = p[unit - 1 - k];
        p[unit - 1 - k] = byte;
    }
}

/* One field of n elements. */
static ALWAYS_INLINE void
swap_column(uint8_t *p, size_t n, size_t itemsize, size_t count, size_t unit)
{
    for (size_t i = 0; i < n; i++, p += itemsize)
        for (size_t k = 0; k < count; k++)
            swap_unit(p + k * unit, p + k * unit, unit);
}

static void
swap_fields(uint8_t *p, size_t n, size_t itemsize, const struct sc_swap *swap)
{
    for (size_t f = 0; f < swap->n_fields; f++) {
        const struct sc_swap_field field = swap->fields[f];
        uint8_t *first = p + field.offset;

        if (field.unit == 2) {
            swap_column(first, n, itemsize, field.count, 2);
        } else if (field.unit == 4) {
            swap_column(first, n, itemsize, field.count, 4);
        } else if (field.unit == 8) {
            swap_column(first, n, itemsize, field.count, 8);
        } else {
            for (size_t i = 0; i < n; i++)
                for (size_t k = 0; k < field.count; k++)
                    reverse_bytes(first + i * itemsize + k * field.unit, field.unit);
        }
    }
}

/* A few elements at a time, which stay in the first-level cache from field to field. dst may be src. */
static void
move_fields(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src)
{
    const size_t most = copy->itemsize < 4096 ? 4096 / copy->itemsize : 1;
    size_t n = copy->row_nbytes / copy->itemsize;

    while (n) {
        const size_t piece = n < most ? n : most, nbytes = piece * copy->itemsize;

        if (dst != src)
            memcpy(dst, src, nbytes);
        swap_fields(dst, piece, copy->itemsize, copy->swap);
        dst += nbytes;
        src += nbytes;
        n -= piece;
    }
}

/* ---- one element over a whole row ---- */

/* Element sizes that divide 16: a pattern of 16 bytes, and a last store that ends with the row. */
static ALWAYS_INLINE void
spread_pattern(uint8_t *dst, const uint8_t *element, size_t itemsize, size_t nbytes)
{
    uint8_t pattern[16];
    uint64_t low, high;

    for (size_t i = 0; i < 16; i += itemsize)
        memcpy(pattern + i, element, itemsize);
    memcpy(&low, pattern, 8);
    memcpy(&high, pattern + 8, 8);
    if (nbytes >= 128 && low == high && low == (low & 0xFF) * 0x0101010101010101) {
        memset(dst, pattern[0], nbytes); /* knows when to go round the cache */
        return;
    }
    if (nbytes >= 16) {
        for (size_t i = 0; i + 16 <= nbytes; i += 16)
            memcpy(dst + i, pattern, 16);
        memcpy(dst + nbytes - 16, pattern, 16);
        return;
    }
    for (size_t piece = 8; piece; piece /= 2) {
        if (nbytes & piece) {
            memcpy(dst, pattern, piece);
            dst += piece;
        }
    }
}

/* Any size: the row is its own pattern, doubled until it fills a page. dst holds the first element. */
static void
spread_doubling(uint8_t *dst, size_t itemsize, size_t nbytes)
{
    size_t have = itemsize, period;

    for (; have < nbytes && have < 4096; have *= 2)
        memcpy(dst + have, dst, have < nbytes - have ? have : nbytes - have);
    for (period = have; have < nbytes; have += period)
        memcpy(dst + have, dst, period < nbytes - have ? period : nbytes - have);
}

static void
spread_row(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src)
{
    const size_t itemsize = copy->itemsize, nbytes = copy->row_nbytes;
    uint8_t element[16];

    if (itemsize > 16 || 16 % itemsize) {
        memcpy(dst, src, itemsize);
        if (copy->swap)
            swap_fields(dst, 1, itemsize, copy->swap);
        spread_doubling(dst, itemsize, nbytes);
        return;
    }
    memcpy(element, src, itemsize);
    if (copy->swap)
        swap_fields(element, 1, itemsize, copy->swap);
    switch (itemsize) {
    case 1:
        spread_pattern(dst, element, 1, nbytes);
        break;
    case 2:
        spread_pattern(dst, element, 2, nbytes);
        break;
    case 4:
        spread_pattern(dst, element, 4, nbytes);
        break;
    case 8:
        spread_pattern(dst, element, 8, nbytes);
        break;
    default:
        spread_pattern(dst, element, 16, nbytes);
    }
}

/* ---- the loops ---- */

enum move {
    MOVE_EXACT,     /* size bytes */
    MOVE_PAIR,      /* row_nbytes, from size to 2 size: two moves that overlap */
    MOVE_ANY,       /* row_nbytes */
    MOVE_SWAP_ITEM, /* one unit of size bytes */
    MOVE_SWAP,      /* row_nbytes in units of size bytes */
    MOVE_FIELDS,
    MOVE_SPREAD,
};

/* how and size are constants wherever this is called. Only MOVE_SWAP... and MOVE_FIELDS may have dst == src. */
static ALWAYS_INLINE void
move_row(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src, enum move how, size_t size)
{
    const size_t row = copy->row_nbytes;

    switch (how) {
    case MOVE_EXACT:
        memcpy(dst, src, size);
        break;
    case MOVE_PAIR:
        memcpy(dst, src, size);
        memcpy(dst + row - size, src + row - size, size);
        break;
    case MOVE_ANY:
        memcpy(dst, src, row);
        break;
    case MOVE_SWAP_ITEM:
        swap_unit(dst, src, size);
        break;
    case MOVE_SWAP:
        swap_row(dst, src, row, size);
        break;
    case MOVE_FIELDS:
        move_fields(copy, dst, src);
        break;
    case MOVE_SPREAD:
        spread_row(copy, dst, src);
        break;
    }
}

/* Next index of the axes outside the n_inner innermost; false after the last. */
static ALWAYS_INLINE bool
step_outer(const struct sc_copy *copy, int n_inner, uint64_t *index, uint8_t **dst, const uint8_t **src)
{
    for (int a = copy->ndim - n_inner - 1; a >= 0; a--) {
        const int64_t back = (int64_t)index[a];

        if (index[a] + 1 < copy->shape[a]) {
            index[a]++;
            *dst += copy->dst_strides[a];
            *src += copy->src_strides[a];
            return true;
        }
        *dst -= back * copy->dst_strides[a];
        *src -= back * copy->src_strides[a];
        index[a] = 0;
    }
    return false;
}

static ALWAYS_INLINE void
run_rows(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src, enum move how, size_t size)
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

/* ---- the loops of a transpose ----
 *
 * It walks down the columns of one side, from cache line to cache line. In tiles of LINE x LINE bytes every line is
 * used up before it is left. Within a tile, blocks of 16 x 16 bytes are turned in registers: to interleave row i with
 * row i + n/2 is to rotate an element's number (row, column) by one bit, and log2(n) times that exchange the two. */

enum { LINE = 64, VECTOR = 16 };

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAVE_SHUFFLE 1
#endif
#endif

#if defined(HAVE_SHUFFLE)

typedef uint8_t vector __attribute__((vector_size(VECTOR)));

#define SHUFFLE __builtin_shufflevector

/* Elements of a and b in turn, from their lower and from their upper halves. */
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
turn_block(uint8_t *dst, int64_t dst_stride, const uint8_t *src, int64_t src_stride, enum move how, size_t size)
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
turn_block(uint8_t *dst, int64_t dst_stride, const uint8_t *src, int64_t src_stride, enum move how, size_t size)
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

/* All of a tile with blocks, as far as they fit. */
static ALWAYS_INLINE void
move_tile(const struct sc_copy *copy, const struct plane *p, int64_t ni, int64_t nj, uint8_t *dst, const uint8_t *src,
          enum move how, size_t size)
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
run_tiles(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src, enum move how, size_t size)
{
    const int a = copy->ndim - 2;
    const struct plane p = {
        .ni = (int64_t)copy->shape[a],    .nj = (int64_t)copy->shape[a + 1],
        .dst_i = copy->dst_strides[a],    .dst_j = copy->dst_strides[a + 1],
        .src_i = copy->src_strides[a],    .src_j = copy->src_strides[a + 1],
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

#define KERNEL(name, loops, how, size)                                                                                 \
    static void name(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src)                                     \
    {                                                                                                                  \
        loops(copy, dst, src, how, size);                                                                              \
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
KERNEL(items_swap_2, run_rows, MOVE_SWAP_ITEM, 2)
KERNEL(items_swap_4, run_rows, MOVE_SWAP_ITEM, 4)
KERNEL(items_swap_8, run_rows, MOVE_SWAP_ITEM, 8)
KERNEL(rows_swap_2, run_rows, MOVE_SWAP, 2)
KERNEL(rows_swap_4, run_rows, MOVE_SWAP, 4)
KERNEL(rows_swap_8, run_rows, MOVE_SWAP, 8)
KERNEL(tiles_1, run_tiles, MOVE_EXACT, 1)
KERNEL(tiles_2, run_tiles, MOVE_EXACT, 2)
KERNEL(tiles_4, run_tiles, MOVE_EXACT, 4)
KERNEL(tiles_8, run_tiles, MOVE_EXACT, 8)
KERNEL(tiles_16, run_tiles, MOVE_EXACT, 16)
KERNEL(tiles_swap_2, run_tiles, MOVE_SWAP_ITEM, 2)
KERNEL(tiles_swap_4, run_tiles, MOVE_SWAP_ITEM, 4)
KERNEL(tiles_swap_8, run_tiles, MOVE_SWAP_ITEM, 8)

#if defined(SC_ARCH_X86_64)
SC_TARGET("avx2") KERNEL(rows_swap_2_avx2, run_rows, MOVE_SWAP, 2)
SC_TARGET("avx2") KERNEL(rows_swap_4_avx2, run_rows, MOVE_SWAP, 4)
SC_TARGET("avx2") KERNEL(rows_swap_8_avx2, run_rows, MOVE_SWAP, 8)
#endif

/* ---- the choice ---- */

static const struct {
    size_t nbytes;
    sc_copy_fn *exact, *to_twice, *tiled;
} plain[] = {
    { 1, rows_1, NULL, tiles_1 },
    { 2, rows_2, rows_2_to_4, tiles_2 },
    { 4, rows_4, rows_4_to_8, tiles_4 },
    { 8, rows_8, rows_8_to_16, tiles_8 },
    { 16, rows_16, rows_16_to_32, tiles_16 },
    { 32, rows_32, rows_32_to_64, NULL },
    { 64, rows_64, rows_64_to_128, NULL },
};

static const struct {
    enum sc_swap_kind unit;
    sc_copy_fn *item, *tiled, *rows, *rows_avx2;
} swapped[] = {
#if defined(SC_ARCH_X86_64)
    { SC_SWAP_2, items_swap_2, tiles_swap_2, rows_swap_2, rows_swap_2_avx2 },
    { SC_SWAP_4, items_swap_4, tiles_swap_4, rows_swap_4, rows_swap_4_avx2 },
    { SC_SWAP_8, items_swap_8, tiles_swap_8, rows_swap_8, rows_swap_8_avx2 },
#else
    { SC_SWAP_2, items_swap_2, tiles_swap_2, rows_swap_2, rows_swap_2 },
    { SC_SWAP_4, items_swap_4, tiles_swap_4, rows_swap_4, rows_swap_4 },
    { SC_SWAP_8, items_swap_8, tiles_swap_8, rows_swap_8, rows_swap_8 },
#endif
};

static sc_copy_fn *
plain_kernel(size_t nbytes, bool tiled)
{
    for (size_t i = 0; i < SC_ARRAY_SIZE(plain); i++) {
        if (nbytes == plain[i].nbytes)
            return tiled ? plain[i].tiled : plain[i].exact;
        if (nbytes < 2 * plain[i].nbytes)
            return plain[i].to_twice;
    }
    return rows_any;
}

static sc_copy_fn *
swapped_kernel(size_t nbytes, bool tiled, enum sc_swap_kind swap)
{
    const size_t i = swap == SC_SWAP_2 ? 0 : swap == SC_SWAP_4 ? 1 : 2;

    if (tiled)
        return swapped[i].tiled;
    if (nbytes == (size_t)swapped[i].unit)
        return swapped[i].item;
    return sc_cpu_features() & SC_CPU_AVX2 ? swapped[i].rows_avx2 : swapped[i].rows;
}

bool
sc_strided_can_tile(size_t itemsize, enum sc_swap_kind swap)
{
    if (swap != SC_SWAP_NONE)
        return swap != SC_SWAP_MIXED && itemsize == (size_t)swap;
    return itemsize <= 16 && !(itemsize & (itemsize - 1));
}

sc_copy_fn *
sc_strided_kernel(const struct sc_copy *copy, enum sc_row_kind row, enum sc_swap_kind swap)
{
    if (row == SC_ROW_SPREAD)
        return rows_spread;
    if (swap == SC_SWAP_MIXED)
        return rows_fields;
    if (swap == SC_SWAP_NONE)
        return plain_kernel(copy->row_nbytes, row == SC_ROW_TILED);
    return swapped_kernel(copy->row_nbytes, row == SC_ROW_TILED, swap);
}
