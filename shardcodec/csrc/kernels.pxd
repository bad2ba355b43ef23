# kernels.pxd - the C interface of csrc/kernels: CRC-32C, index, order and strided copies
# SPDX-License-Identifier: MIT

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shardcodec.csrc.base cimport sc_buffer, sc_status, sc_where


cdef extern from "kernels/sc_crc32c.h" nogil:
    uint32_t sc_crc32c_extend(uint32_t crc, const uint8_t *p, size_t n)
    uint32_t sc_crc32c_turned(const uint8_t *p, size_t n)
    uint32_t sc_crc32c_copy(uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n)
    uint32_t sc_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t nbytes_b)
    void sc_crc32c_init()
    size_t sc_crc32c_n_impls()
    const char *sc_crc32c_impl_name(size_t i)
    bint sc_crc32c_impl_usable(size_t i)
    uint32_t sc_crc32c_extend_impl(size_t i, uint32_t crc, const uint8_t *p, size_t n)
    uint32_t sc_crc32c_copy_impl(size_t i, uint32_t crc, uint8_t *dst, const uint8_t *src, size_t n)
    size_t sc_crc32c_chosen()


cdef extern from "kernels/sc_index.h" nogil:
    struct sc_entry:
        uint64_t offset
        uint64_t nbytes

    struct sc_index_extent:
        uint64_t offset
        uint64_t nbytes
        uint64_t shard_nbytes

    uint64_t SC_ABSENT
    void sc_index_decode(const uint8_t *src, sc_entry *entries, size_t n, bint big_endian)
    void sc_index_encode(const sc_entry *entries, uint8_t *dst, size_t n, bint big_endian)
    sc_status sc_index_check(const sc_entry *entries, size_t n, const sc_index_extent *extent, bint allow_in_index,
                             sc_where *where)
    void sc_index_by_offset(const sc_entry *entries, size_t n, uint64_t *order, uint64_t *scratch, size_t *n_out)
    void sc_index_overlaps(const sc_entry *entries, const uint64_t *order, size_t n, uint64_t (*pairs)[2],
                           size_t capacity, size_t *n_found)
    struct sc_index_sums:
        uint64_t n_stored
        uint64_t first
        uint64_t end
        uint64_t offset_bits
        uint64_t nbytes_bits
        uint64_t left_nbytes
    struct sc_carry:
        uint64_t source_offset "from"
        uint64_t nbytes
        uint64_t to
    uint64_t sc_index_pack(sc_entry *entries, const uint64_t *order, size_t n, uint64_t at, uint64_t alignment,
                           sc_carry *runs, size_t *n_runs)
    void sc_index_sum_up(const sc_entry *entries, size_t n, const uint8_t *dropped, sc_entry *left, sc_index_sums *sums)
    void sc_index_gaps(const sc_entry *entries, const uint64_t *order, size_t n, const sc_index_extent *extent,
                       sc_entry *gaps, size_t capacity, size_t *n_found)


cdef extern from "kernels/sc_present.h" nogil:
    struct sc_place:
        int ndim
        uint64_t grid[32]
        uint8_t key[128]

    void sc_present_mark(const sc_entry *entries, uint64_t first, uint64_t end, uint8_t *flags)
    uint64_t sc_present_next(const uint8_t *flags, uint64_t at, uint64_t end)
    void sc_place_go_to(sc_place *place, uint64_t position)


cdef extern from "kernels/sc_order.h" nogil:
    enum sc_order:
        SC_ORDER_MORTON
        SC_ORDER_LEXICOGRAPHIC
        SC_ORDER_COLEXICOGRAPHIC

    struct sc_order_iter:
        pass

    sc_status sc_order_begin(sc_order_iter *it, sc_order order, int ndim, const uint64_t *grid, const uint64_t *first,
                             const uint64_t *last)
    size_t sc_order_next(sc_order_iter *it, uint64_t *positions, size_t capacity)


cdef extern from "kernels/sc_strided.h" nogil:
    struct sc_swap_field:
        uint32_t offset
        uint32_t unit
        uint32_t count

    struct sc_swap:
        size_t n_fields
        const sc_swap_field *fields

    struct sc_copy:
        pass

    void sc_copy_prepare(sc_copy *copy, int ndim, const uint64_t *shape, const int64_t *dst_strides,
                         const int64_t *src_strides, size_t itemsize, const sc_swap *swap)
    void sc_copy_run(const sc_copy *copy, uint8_t *dst, const uint8_t *src)
    void sc_fill(uint8_t *dst, int ndim, const uint64_t *shape, const int64_t *strides, const uint8_t *fill,
                 size_t itemsize)
    bint sc_all_equal(const uint8_t *p, size_t n_items, const uint8_t *fill, size_t itemsize)
    void sc_swap_items(uint8_t *p, size_t n_items, size_t itemsize, const sc_swap *swap)


cdef extern from "kernels/sc_vlen.h" nogil:
    void sc_vlen_begin(sc_buffer *buffer, size_t *used, uint32_t n)
    sc_status sc_vlen_add(sc_buffer *buffer, size_t *used, const uint8_t *bytes, size_t nbytes)
    size_t sc_utf8_span(const uint8_t *bytes, size_t nbytes)
