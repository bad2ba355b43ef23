/* sc_strided.h - move boxes of elements between strided memory: scatter, gather, transpose, byte swap, fill, compare
 *
 * A copy is prepared once and run many times on boxes of one shape, since a shard has thousands of equal inner chunks.
 * Strides are in bytes and may be negative or zero; elements need no alignment.
 * SPDX-License-Identifier: MIT */
#ifndef SC_STRIDED_H
#define SC_STRIDED_H

#include "base/sc_status.h"

/* How the bytes of one element are reversed between stored and native order: n_fields runs, field f consists of
 * `count` units of `unit` bytes from `offset` on. n_fields == 0: no byte moves. Examples: a plain dtype of 4 bytes:
 * {0, 4, 1}; complex128: {0, 8, 2}; fixed_length_utf32 of 5: {0, 4, 5}; a struct: one for each numeric field. */
struct sc_swap_field {
    uint32_t offset, unit, count;
};
struct sc_swap {
    size_t n_fields;
    const struct sc_swap_field *fields; /* owned by the caller */
};

struct sc_copy {
    int ndim; /* after merging axes, the fastest last; leading axes of extent 1 make it 3 at least */
    uint64_t shape[SC_MAX_NDIM];
    int64_t dst_strides[SC_MAX_NDIM];
    int64_t src_strides[SC_MAX_NDIM];
    size_t itemsize;
    size_t row_nbytes; /* size of one row: contiguous on both sides, or one element repeated; else itemsize */
    const struct sc_swap *swap; /* NULL: none */
    void (*run)(const struct sc_copy *, uint8_t *dst, const uint8_t *src);
};

/* Drop axes of extent 1, merge the axes that are contiguous on both sides, order the rest so that the innermost one is
 * cheap, choose a kernel (rows of fixed small sizes, memcpy rows, single elements of 1, 2, 4, 8, 16 bytes, tiles for a
 * transpose, swapped units of 2, 4, 8 bytes, general fields). Any extent may be 0: running it does nothing.
 * `swap` may be NULL or empty and must outlive *copy. The two sides may not overlap; a swap of contiguous elements may
 * have the same memory on both sides. */
void sc_copy_prepare(struct sc_copy *copy, int ndim, const uint64_t *shape, const int64_t *dst_strides,
                     const int64_t *src_strides, size_t itemsize, const struct sc_swap *swap);

static inline void
sc_copy_run(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src)
{
    copy->run(copy, dst, src);
}

/* Set every element of a box to the itemsize bytes at `fill`. */
void sc_fill(uint8_t *dst, int ndim, const uint64_t *shape, const int64_t *strides, const uint8_t *fill,
             size_t itemsize);

/* True if n_items contiguous elements are bitwise equal to the itemsize bytes at `fill`. It stops at the first
 * difference. */
bool sc_all_equal(const uint8_t *p, size_t n_items, const uint8_t *fill, size_t itemsize);

/* True if all elements, floats of 2, 4 or 8 bytes, are a NaN of any sign and payload. */
bool sc_all_nan(const uint8_t *p, size_t n_items, size_t itemsize, bool big_endian);

/* Reverse units in place: n_items contiguous elements. */
void sc_swap_items(uint8_t *p, size_t n_items, size_t itemsize, const struct sc_swap *swap);

#endif
