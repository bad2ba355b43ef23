/* sc_strided_move.h - the innermost level of a strided copy: one row or one element
 *
 * Included by the files that put loops around it. move_row() is called with constants for how and size, so that each
 * kernel holds one case of it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef SC_STRIDED_MOVE_H
#define SC_STRIDED_MOVE_H

#include "kernels/sc_strided_kernels.h"

#if defined(SC_ARCH_X86_64)
#include <emmintrin.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* A kernel of given loops and constants. */
#define KERNEL(name, loops, how, size)                                             \
    static void name(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src) \
    {                                                                              \
        loops(copy, dst, src, how, size);                                          \
    }

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

static inline void
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

static inline void
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
static inline void
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
        memset(dst, pattern[0], nbytes); /* decides when to write past the cache */
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
static inline void
spread_doubling(uint8_t *dst, size_t itemsize, size_t nbytes)
{
    size_t have = itemsize, period;

    for (; have < nbytes && have < 4096; have *= 2)
        memcpy(dst + have, dst, have < nbytes - have ? have : nbytes - have);
    for (period = have; have < nbytes; have += period)
        memcpy(dst + have, dst, period < nbytes - have ? period : nbytes - have);
}

static inline void
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

/* ---- fills that no cache holds ----
 *
 * An ordinary store first reads the cache line that it then overwrites. A fill of many megabytes leaves the cache
 * before its reader comes anyway. On fresh pages, cleared and no longer in the cache, that read costs as much as all
 * the rest: 58 ms for 256 MiB instead of 31 (rows of 512 bytes, EPYC). Rows begin anywhere; their whole cache lines
 * are stored past the caches. */

enum { PATTERN_NBYTES = 1024, LINE_NBYTES = 64, STREAM_ROW_NBYTES = 256 };
#define STREAM_NBYTES ((uint64_t)1 << 20)

static ALWAYS_INLINE void
stream_pattern(uint8_t *dst, const uint8_t *src, size_t nbytes)
{
#if defined(SC_ARCH_X86_64)
    size_t i = min_u64(nbytes, (LINE_NBYTES - (uintptr_t)dst % LINE_NBYTES) % LINE_NBYTES);

    memcpy(dst, src, i);
    for (; i + LINE_NBYTES <= nbytes; i += LINE_NBYTES)
        for (size_t j = i; j < i + LINE_NBYTES; j += sizeof(__m128i))
            _mm_stream_si128((__m128i *)(void *)(dst + j), _mm_loadu_si128((const __m128i *)(const void *)(src + j)));
    memcpy(dst + i, src + i, nbytes - i);
#else
    memcpy(dst, src, nbytes);
#endif
}

/* Elements of at most PATTERN_NBYTES bytes, of which src holds as many as go into that. */
static ALWAYS_INLINE void
stream_row(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src)
{
    const size_t nbytes = copy->row_nbytes;
    size_t period = nbytes;

    if (nbytes > PATTERN_NBYTES)
        period = PATTERN_NBYTES / copy->itemsize * copy->itemsize;
    for (size_t at = 0; at < nbytes; at += period)
        stream_pattern(dst + at, src, period < nbytes - at ? period : nbytes - at);
}

/* ---- a row ---- */

enum sc_move_kind {
    MOVE_EXACT,     /* size bytes */
    MOVE_PAIR,      /* row_nbytes, from size to 2 size: two moves that overlap */
    MOVE_ANY,       /* row_nbytes */
    MOVE_SWAP_ITEM, /* one unit of size bytes */
    MOVE_SWAP,      /* row_nbytes in units of size bytes */
    MOVE_FIELDS,
    MOVE_SPREAD,
    MOVE_STREAM, /* row_nbytes from a pattern, past the caches */
};

/* how and size are constants wherever this is called. Only MOVE_SWAP... and MOVE_FIELDS may have dst == src. */
static ALWAYS_INLINE void
move_row(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src, enum sc_move_kind how, size_t size)
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
    case MOVE_STREAM:
        stream_row(copy, dst, src);
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

#endif
