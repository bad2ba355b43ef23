/* sc_chain.h - the codecs of one array, compiled: from stored bytes to elements and back
 *
 * A chain is the list `codecs` of Zarr metadata: transposes, then either `bytes` (a leaf) or `sharding_indexed` (with
 * an inner chain), then bytes -> bytes codecs. It is built once with the GIL held, never changes, and is shared by all
 * workers.
 *
 *     logical shape --perm--> stored shape --bytes/endian--> raw bytes --ops[0]--> ... --ops[n-1]--> encoded bytes     leaf
 *     logical shape --perm--> stored shape --grid of inner--> shard bytes --ops[0]--> ... --> encoded bytes           shard
 *
 * All transposes of a chain are one permutation. It only permutes strides, so it costs nothing in addition to the
 * scatter.
 * SPDX-License-Identifier: MIT */
#ifndef SC_CHAIN_H
#define SC_CHAIN_H

#include "kernels/sc_index.h"
#include "kernels/sc_order.h"
#include "kernels/sc_strided.h"
#include "codecs/sc_codec.h"

#define SC_MAX_OPS 8
#define SC_MAX_DEPTH 8
#define SC_MAX_ITEMSIZE (1u << 20)

struct sc_index_layout {
    bool at_start;
    bool big_endian;
    unsigned n_checksums; /* crc32c codecs behind the pairs, 4 bytes each */
    uint64_t pairs_nbytes; /* 16 per inner chunk */
    uint64_t nbytes;       /* of the stored index: the pairs and the checksums */
    /* A transposed index scatters its pairs: half h (0: offset, 1: nbytes) of inner chunk c lies at 8-byte word
     * h * half_stride + sum(c[axis] * strides[axis]). In C order half_stride is 1. */
    bool in_c_order;
    uint64_t half_stride;
    uint64_t strides[SC_MAX_NDIM];
};

struct sc_chain {
    uint64_t number; /* no other chain of this process has it */
    int ndim;
    unsigned depth; /* levels of sharding within; 0: leaf */
    size_t itemsize;
    uint64_t shape[SC_MAX_NDIM]; /* logical: as handed to this chain */
    int perm[SC_MAX_NDIM];       /* stored axis i is logical axis perm[i] */
    uint64_t stored_shape[SC_MAX_NDIM];
    int64_t strides[SC_MAX_NDIM]; /* of the decoded chunk in stored layout, by *logical* axis, in bytes */
    uint64_t n_items;
    uint64_t nbytes;     /* decoded; fits size_t */
    struct sc_swap swap; /* leaf: from stored to native byte order; if they are equal, n_fields is 0 */
    uint8_t *fill;       /* itemsize bytes, native order */
    uint8_t *fill_stored; /* the same in stored byte order */
    bool nan_fills;       /* leaf: elements are floats, and any NaN counts as the fill value, which is one */
    bool nan_big_endian;  /* the stored byte order of these floats */

    bool opaque; /* leaf: encoded by codecs outside of this library, to any size; never decoded or encoded here */
    size_t n_ops;
    size_t n_blockwise; /* leaf: if not 0, blocks of elements pass the first ops together, at least two */
    struct sc_op ops[SC_MAX_OPS];
    /* bounds[i]: upper limit of the bytes before ops[i]; the last one: of the encoded bytes. 0: cannot be encoded
     * whole */
    size_t bounds[SC_MAX_OPS + 1];

    const struct sc_chain *inner; /* NULL: leaf. Its logical axes are the stored axes of this chain */
    uint64_t grid[SC_MAX_NDIM]; /* shard: inner chunks along each *stored* axis; the last ones may be clipped */
    uint64_t grid_strides[SC_MAX_NDIM]; /* C order, in inner chunks */
    uint64_t n_chunks;
    struct sc_index_layout index;
};

/* A part of a chunk: along each axis `count` elements from `start` on, with distance `step`, which is positive. */
struct sc_box {
    uint64_t start[SC_MAX_NDIM];
    uint64_t count[SC_MAX_NDIM];
    int64_t step[SC_MAX_NDIM];
};

/* The part of a selection along one axis that lies in chunk c of the given extent: elements k0 .. k0 + count - 1 of
 * the selection, the first of them at position `at` within the chunk. count 0: no part (a step may skip a chunk). */
struct sc_cut {
    uint64_t k0, count, at;
};

static inline struct sc_cut
sc_axis_cut(uint64_t start, uint64_t count, int64_t step, uint64_t extent, uint64_t c)
{
    uint64_t low = c * extent, high = low + extent, k0, k1;

    if (SC_LIKELY(step == 1)) {
        uint64_t first = max_u64(low, start), last = min_u64(high, start + count);

        if (first >= last)
            return (struct sc_cut){ 0, 0, 0 };
        return (struct sc_cut){ first - start, last - first, first - low };
    }
    k0 = low <= start ? 0 : (low - start + (uint64_t)step - 1) / (uint64_t)step;
    k1 = high <= start ? 0 : min_u64(count, (high - start + (uint64_t)step - 1) / (uint64_t)step);
    if (k0 >= k1)
        return (struct sc_cut){ 0, 0, 0 };
    return (struct sc_cut){ k0, k1 - k0, start + k0 * (uint64_t)step - low };
}

/* Rules for the layout of new bytes that are not properties of the data, so metadata does not contain them. */
struct sc_write_rules {
    enum sc_order order;
    bool write_empty; /* store inner chunks that equal the fill value */
    bool keep_empty; /* make an object even if all its elements are the fill value */
};

/* Fill the derived members (strides, bounds, index size, ...) from shape, perm, itemsize, ops, inner and index. All
 * numbers are checked: SC_BAD_ARGUMENT for a violation of the format. The Python layer checks before, with better
 * messages. */
enum sc_status sc_chain_prepare(struct sc_chain *chain);

struct sc_worker;

/* Decode one encoded chunk of n bytes and scatter the elements of `box` into dst. `level` counts nesting, 0 for the object
 * itself. dst_strides: bytes per element of the box along each logical axis; an axis of count 1 may have any.
 * Everything the chain has a checksum for is checked, also when the box is small. Without one, blocks of a Blosc container
 * that the box does not touch are left alone. */
enum sc_status sc_chain_decode(const struct sc_chain *chain, struct sc_worker *worker, unsigned level,
                               const uint8_t *src, size_t n, const struct sc_box *box, uint8_t *dst,
                               const int64_t *dst_strides, struct sc_where *where);

/* Decode one encoded chunk of a leaf to chain->nbytes at `elements`, in stored layout and byte order. */
enum sc_status sc_chain_decode_all(const struct sc_chain *chain, struct sc_worker *worker, unsigned level,
                                   const uint8_t *src, size_t n, uint8_t *elements, struct sc_where *where);

/* The elements of a decoded chunk in memory: element (0, ..) at data + offset (outside of the memory if only a part
 * of the chunk is there), strides by logical axis, bytes to be reversed by `swap` (NULL: none). */
struct sc_view {
    uint8_t *data;
    int64_t offset;
    int64_t strides[SC_MAX_NDIM];
    const struct sc_swap *swap;
};

/* Decode one encoded chunk, at least its box `hull` (steps 1), and return a view of the elements: in the memory of
 * the worker or in src itself, valid until the next call. It checks what sc_chain_decode checks. */
enum sc_status sc_chain_view(const struct sc_chain *chain, struct sc_worker *worker, unsigned level, const uint8_t *src,
                             size_t n, const struct sc_box *hull, struct sc_view *view, struct sc_where *where);

/* True if an encoded chunk holds the elements as they are: no codec, no nested shard. */
bool sc_chain_is_plain(const struct sc_chain *chain);

/* True if a part of a chunk can be decoded with less work than the whole. If not, sc_chain_view ignores the hull. */
bool sc_chain_has_parts(const struct sc_chain *chain);

/* Return the range [*low, *high) of an encoded chunk that holds the box, if the chunk is plain. False: the whole
 * chunk is needed. */
bool sc_chain_hull(const struct sc_chain *chain, const struct sc_box *box, uint64_t *low, uint64_t *high);

/* Scatter a box whose hull is at src; otherwise as sc_chain_decode. */
void sc_chain_scatter_hull(const struct sc_chain *chain, struct sc_worker *worker, unsigned level, const uint8_t *src,
                           const struct sc_box *box, uint8_t *dst, const int64_t *dst_strides);

/* Encode a whole chunk from src (strides by logical axis) to dst, which has room for sc_chain_bound() bytes. *n =
 * SC_ABSENT if every element equals the fill value and the rules do not store such chunks. */
enum sc_status sc_chain_encode(const struct sc_chain *chain, struct sc_worker *worker, unsigned level,
                               const uint8_t *src, const int64_t *src_strides, const struct sc_write_rules *rules,
                               uint8_t *dst, size_t dst_capacity, uint64_t *n, struct sc_where *where);

/* Return the largest size of one encoded chunk. 0: it exceeds memory, or the limit of a codec (sc_chain_too_large). */
static inline size_t
sc_chain_bound(const struct sc_chain *chain)
{
    return chain->bounds[chain->n_ops];
}

/* Return the reason why sc_chain_bound() is 0: SC_CODEC_ENCODE with the codec, its input and its limit; else
 * SC_NO_MEMORY. */
enum sc_status sc_chain_too_large(const struct sc_chain *chain, struct sc_where *where);

/* True if `count` is the shape of the whole chunk. A box inside the chunk with as many elements as the chunk is the
 * chunk. */
static inline bool
sc_box_is_whole(const struct sc_chain *chain, const uint64_t *count)
{
    for (int a = 0; a < chain->ndim; a++)
        if (count[a] != chain->shape[a])
            return false;
    return true;
}

static inline uint64_t
sc_box_nbytes(const struct sc_chain *chain, const struct sc_box *box)
{
    uint64_t n = chain->itemsize;

    for (int a = 0; a < chain->ndim; a++)
        n *= box->count[a];
    return n;
}

/* Set the strides of a box of elements of this chain in C order; return its size in bytes. */
static inline uint64_t
sc_chain_c_strides(const struct sc_chain *chain, const uint64_t *count, int64_t *strides)
{
    uint64_t stride = chain->itemsize;

    for (int a = chain->ndim - 1; a >= 0; a--) {
        strides[a] = (int64_t)stride;
        stride *= count[a];
    }
    return stride;
}

/* True if `strides` (by logical axis) lay out the whole chunk as its stored form does. */
bool sc_chain_has_layout(const struct sc_chain *chain, const int64_t *strides);

/* Check the size of an encoded chunk before memory is taken for it: exactly where the size is fixed, else against a
 * few times our own bound. SC_BAD_LENGTH. */
enum sc_status sc_chain_check_nbytes(const struct sc_chain *chain, uint64_t nbytes, struct sc_where *where);

/* The same check for many chunks: a size passes if it is in [*least, *most]. */
void sc_chain_nbytes_limits(const struct sc_chain *chain, uint64_t *least, uint64_t *most);

/* True if the inner chunks of an object of this chain can be read one by one. They cannot behind codecs that follow
 * the sharding. */
static inline bool
sc_chain_is_shard(const struct sc_chain *chain)
{
    return chain->inner && !chain->n_ops;
}

/* True if a checksum at the end of each chunk detects that its bytes were changed while they were read. */
static inline bool
sc_chain_is_checked(const struct sc_chain *chain)
{
    for (size_t i = 0; i < chain->n_ops; i++)
        if (sc_codec_get(chain->ops[i].codec)->checksum)
            return true;
    return false;
}

/* True if all encoded chunks have one size, sc_chain_bound(). */
bool sc_chain_has_fixed_size(const struct sc_chain *chain);

/* Set the elements of a box of this chain's shape to the fill value. */
void sc_chain_fill(const struct sc_chain *chain, const uint64_t *count, uint8_t *dst, const int64_t *dst_strides);

/* Compare a stored CRC-32C of an index with that of the nbytes before it. */
enum sc_status sc_index_compare_checksum(const uint8_t *stored_checksum, uint32_t actual, uint64_t nbytes,
                                         struct sc_where *where);

/* Check all checksums that follow the pairs of a stored index. */
enum sc_status sc_index_verify(const struct sc_index_layout *index, const uint8_t *stored, struct sc_where *where);

/* True if nothing in the inner chunks detects that they are read from a wrong place. Then one wrong entry makes all
 * of them doubtful: a shard that lost its first bytes has a sound index, and perhaps only its last entry reaches too
 * far. */
static inline bool
sc_index_must_be_sound(const struct sc_chain *shard)
{
    return !sc_chain_is_checked(shard->inner);
}

/* Check all entries of a stored index; where->entry is the lowest bad one. */
enum sc_status sc_index_check_stored(const struct sc_chain *shard, const uint8_t *pairs,
                                     const struct sc_index_extent *extent, struct sc_where *where);

/* Return the pair of the inner chunk at grid coordinates c, from the bytes of the pairs; `pairs` starts at their
 * 8-byte word first_word. */
struct sc_entry sc_index_get(const struct sc_chain *shard, const uint8_t *pairs, uint64_t first_word,
                             const uint64_t *c);

/* Encode n_chunks entries in C order, checksums included: index.nbytes bytes. */
void sc_index_store(const struct sc_chain *shard, const struct sc_entry *entries, uint8_t *stored);

/* Decode the pairs to entries in C order. */
void sc_index_load(const struct sc_chain *shard, const uint8_t *pairs, struct sc_entry *entries);

/* Find the range of the index in a stored shard of that many bytes. SC_TOO_SHORT: the shard is too short to hold it. */
enum sc_status sc_index_locate(const struct sc_index_layout *index, uint64_t shard_nbytes,
                               struct sc_index_extent *extent, struct sc_where *where);

#endif
