/* sc_strided.c - prepare a copy between strided memory: which axes remain, in which order, for which kernel
 *
 * The loops are in sc_strided_kernels.c. Here a box is brought into the cheapest form:
 *
 *     shape (8, 1, 32, 32) of 2 bytes            axes of extent 1 go
 *     dst strides 131072 . 512 2                 the rest by falling stride of the destination, which is thus written
 *     src strides   2048 .  64 2                 from front to back whatever the order of the caller's axes
 *     -> shape (8, 32) of rows of 64 bytes       neighbours that are one run on both sides merge; so does the row
 *
 * If the fastest axis of the source is not that of the destination, it becomes the second to last axis, and the two are
 * copied in tiles.
 *
 * SPDX-License-Identifier: MIT */
#include "kernels/sc_strided.h"

#include "kernels/sc_strided_kernels.h"

static uint64_t
magnitude(int64_t stride)
{
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

static void
run_nothing(const struct sc_copy *copy, uint8_t *dst, const uint8_t *src)
{
    (void)copy;
    (void)dst;
    (void)src;
}

/* Reduce the fields of a swap to one kind. Units of one byte, and runs without units, are not reversed. */
static enum sc_swap_kind
kind_of(const struct sc_swap *swap, size_t itemsize)
{
    uint64_t end = 0; /* of the fields so far, while they follow one another */
    uint32_t unit = 0;
    bool uniform = true;

    for (size_t f = 0; swap && f < swap->n_fields; f++) {
        struct sc_swap_field field = swap->fields[f];

        if (field.unit <= 1 || !field.count)
            continue;
        uniform = uniform && field.offset == end && (!unit || field.unit == unit);
        unit = field.unit;
        end = field.offset + (uint64_t)field.unit * field.count;
    }
    if (!unit)
        return SC_SWAP_NONE;
    if (uniform && end == itemsize && (unit == 2 || unit == 4 || unit == 8))
        return (enum sc_swap_kind)unit;
    return SC_SWAP_MIXED;
}

static void
move_axis(struct sc_copy *copy, int from, int to)
{
    const uint64_t extent = copy->shape[from];
    const int64_t dst_stride = copy->dst_strides[from], src_stride = copy->src_strides[from];
    const int step = from < to ? 1 : -1;

    for (int a = from; a != to; a += step) {
        copy->shape[a] = copy->shape[a + step];
        copy->dst_strides[a] = copy->dst_strides[a + step];
        copy->src_strides[a] = copy->src_strides[a + step];
    }
    copy->shape[to] = extent;
    copy->dst_strides[to] = dst_stride;
    copy->src_strides[to] = src_stride;
}

/* Axes of extent 2 and more, by falling stride of the destination. */
static void
sort_axes(struct sc_copy *copy, int ndim, const uint64_t *shape, const int64_t *dst_strides, const int64_t *src_strides)
{
    copy->ndim = 0;
    for (int a = 0; a < ndim; a++) {
        int last = copy->ndim, to = last;

        if (shape[a] == 1)
            continue;
        copy->shape[last] = shape[a];
        copy->dst_strides[last] = dst_strides[a];
        copy->src_strides[last] = src_strides[a];
        while (to > 0 && magnitude(copy->dst_strides[to - 1]) < magnitude(dst_strides[a]))
            to--;
        move_axis(copy, last, to);
        copy->ndim++;
    }
}

/* True if a step along the outer axis equals a walk along the whole inner one. */
static bool
is_one_run(int64_t outer_stride, int64_t inner_stride, uint64_t inner_extent)
{
    int64_t whole;

    return !__builtin_mul_overflow(inner_stride, inner_extent, &whole) && outer_stride == whole;
}

static void
merge_axes(struct sc_copy *copy)
{
    int last = 0; /* of the merged axes */

    for (int a = 1; a < copy->ndim; a++) {
        if (is_one_run(copy->dst_strides[last], copy->dst_strides[a], copy->shape[a]) &&
            is_one_run(copy->src_strides[last], copy->src_strides[a], copy->shape[a])) {
            copy->shape[last] *= copy->shape[a];
        } else {
            copy->shape[++last] = copy->shape[a];
        }
        copy->dst_strides[last] = copy->dst_strides[a];
        copy->src_strides[last] = copy->src_strides[a];
    }
    if (copy->ndim)
        copy->ndim = last + 1;
}

/* Put the axis along which the source runs fastest second to last; true when that is not the last axis already. */
static bool
pair_for_transpose(struct sc_copy *copy)
{
    int last = copy->ndim - 1, fastest = last;

    for (int a = 0; a < last; a++)
        if (copy->src_strides[a] && magnitude(copy->src_strides[a]) < magnitude(copy->src_strides[fastest]))
            fastest = a;
    if (fastest == last)
        return false;
    move_axis(copy, fastest, last - 1);
    return true;
}

/* Take the innermost axis into the row if it can be, and choose the kernel. */
static sc_copy_fn *
finish(struct sc_copy *copy, enum sc_swap_kind swap)
{
    const int last = copy->ndim - 1;
    const int64_t itemsize = (int64_t)copy->itemsize;
    sc_copy_fn *tiled;

    if (last >= 0 && copy->dst_strides[last] == itemsize) {
        const int64_t src_stride = copy->src_strides[last];

        if (src_stride == itemsize || src_stride == 0) {
            copy->row_nbytes *= (size_t)copy->shape[last];
            copy->ndim--;
        }
        if (src_stride == 0)
            return sc_strided_spread_kernel();
    }
    if (copy->row_nbytes == copy->itemsize && pair_for_transpose(copy)) {
        tiled = sc_strided_tiled_kernel(copy->itemsize, swap);
        if (tiled)
            return tiled;
    }
    return sc_strided_rows_kernel(copy->row_nbytes, swap);
}

/* The kernels have three loops; leading axes of extent 1 cost less than a kernel for each rank. */
static void
pad_axes(struct sc_copy *copy)
{
    while (copy->ndim < 3) {
        copy->shape[copy->ndim] = 1;
        copy->dst_strides[copy->ndim] = 0;
        copy->src_strides[copy->ndim] = 0;
        move_axis(copy, copy->ndim, 0);
        copy->ndim++;
    }
}

void
sc_copy_prepare(struct sc_copy *copy, int ndim, const uint64_t *shape, const int64_t *dst_strides,
                const int64_t *src_strides, size_t itemsize, const struct sc_swap *swap)
{
    const enum sc_swap_kind kind = kind_of(swap, itemsize);
    bool empty = itemsize == 0;

    copy->ndim = 0;
    copy->itemsize = itemsize;
    copy->row_nbytes = itemsize;
    copy->swap = kind == SC_SWAP_NONE ? NULL : swap;
    copy->run = run_nothing;
    for (int a = 0; a < ndim; a++)
        empty = empty || shape[a] == 0;
    if (empty)
        return;
    sort_axes(copy, ndim, shape, dst_strides, src_strides);
    merge_axes(copy);
    copy->run = finish(copy, kind);
    pad_axes(copy);
}

void
sc_fill(uint8_t *dst, int ndim, const uint64_t *shape, const int64_t *strides, const uint8_t *fill, size_t itemsize)
{
    const int64_t zeros[SC_MAX_NDIM] = { 0 };
    struct sc_copy copy;

    sc_copy_prepare(&copy, ndim, shape, strides, zeros, itemsize, NULL);
    sc_copy_run(&copy, dst, fill);
}

/* If the first element is the pattern and every byte equals the one an element later, so are all elements. */
bool
sc_all_equal(const uint8_t *p, size_t n_items, const uint8_t *fill, size_t itemsize)
{
    if (!n_items || !itemsize)
        return true;
    return !memcmp(p, fill, itemsize) && !memcmp(p, p + itemsize, (n_items - 1) * itemsize);
}

bool
sc_all_nan(const uint8_t *p, size_t n_items, size_t itemsize, bool big_endian)
{
    uint64_t infinity = itemsize == 2 ? 0x7c00u : itemsize == 4 ? 0x7f800000u : (uint64_t)0x7ff << 52;

    for (size_t i = 0; i < n_items; i++) {
        uint64_t bits = 0;

        for (size_t b = 0; b < itemsize; b++)
            bits = bits << 8 | p[i * itemsize + (big_endian ? b : itemsize - 1 - b)];
        if ((bits & (UINT64_MAX >> (65 - 8 * itemsize))) <= infinity)
            return false;
    }
    return true;
}

void
sc_swap_items(uint8_t *p, size_t n_items, size_t itemsize, const struct sc_swap *swap)
{
    const uint64_t shape = n_items;
    const int64_t stride = (int64_t)itemsize;
    struct sc_copy copy;

    if (kind_of(swap, itemsize) == SC_SWAP_NONE)
        return;
    sc_copy_prepare(&copy, 1, &shape, &stride, &stride, itemsize, swap);
    sc_copy_run(&copy, p, p);
}
