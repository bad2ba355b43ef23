# chain.pxd - the C interface of csrc/chain: compiled chains and selections
# SPDX-License-Identifier: MIT

from libc.stdint cimport int64_t, uint8_t, uint64_t

from shardcodec.csrc.base cimport sc_status, sc_where
from shardcodec.csrc.kernels cimport sc_entry, sc_order, sc_swap
from shardcodec.csrc.codecs cimport sc_op


cdef extern from "chain/sc_chain.h" nogil:
    enum:
        SC_MAX_OPS

    struct sc_index_layout:
        bint at_start
        bint big_endian
        unsigned n_checksums
        uint64_t nbytes
        bint in_c_order
        uint64_t half_stride
        uint64_t strides[32]

    struct sc_chain:
        int ndim
        size_t itemsize
        uint64_t shape[32]
        int perm[32]
        uint64_t n_items
        uint64_t nbytes
        sc_swap swap
        uint8_t *fill
        uint8_t *fill_stored
        bint nan_fills
        bint nan_big_endian
        bint opaque
        size_t n_ops
        sc_op ops[8]
        const sc_chain *inner
        uint64_t grid[32]
        uint64_t n_chunks
        sc_index_layout index

    struct sc_box:
        uint64_t start[32]
        uint64_t count[32]
        int64_t step[32]

    struct sc_write_rules:
        sc_order order
        bint write_empty
        bint keep_empty

    sc_status sc_chain_prepare(sc_chain *chain)
    size_t sc_chain_bound(const sc_chain *chain)
    bint sc_chain_has_fixed_size(const sc_chain *chain)
    bint sc_chain_is_plain(const sc_chain *chain)
    void sc_chain_nbytes_limits(const sc_chain *chain, uint64_t *least, uint64_t *most)
    bint sc_index_must_be_sound(const sc_chain *shard)
    sc_status sc_index_verify(const sc_index_layout *index, const uint8_t *stored, sc_where *where)
    void sc_index_store(const sc_chain *shard, const sc_entry *entries, uint8_t *stored)
    void sc_index_load(const sc_chain *shard, const uint8_t *pairs, sc_entry *entries)


cdef extern from "chain/sc_worker.h" nogil:
    struct sc_worker

    sc_status sc_worker_init()
    sc_worker *sc_worker_take()
    void sc_worker_put(sc_worker *worker)
    void sc_worker_drop_free()


cdef extern from "chain/sc_texts.h" nogil:
    sc_status sc_texts_encode(const sc_chain *chain, sc_worker *worker, const uint8_t *data, size_t n, uint8_t **encoded,
                              size_t *encoded_nbytes, sc_where *where)


cdef extern from "chain/sc_walk.h" nogil:
    uint64_t sc_box_nbytes(const sc_chain *chain, const sc_box *box)
    uint64_t sc_touched_nbytes(const sc_chain *object, const sc_box *box)


cdef extern from "chain/sc_selection.h" nogil:
    enum sc_selection_kind:
        SC_SELECTION_BOXES
        SC_SELECTION_LISTS
        SC_SELECTION_POINTS

    struct sc_selection:
        sc_selection_kind kind
        size_t n
        const uint64_t *rows
        const sc_box *box
        const uint64_t *places_from "from"[32]
        const uint64_t *to[32]
        const int64_t *strides
        int array_ndim
        int64_t array_strides[32]

    uint64_t sc_positions_check(const uint64_t *positions, uint64_t n, uint64_t limit, bint ascend)
    size_t sc_rows_check(const sc_selection *selection, const sc_chain *object, const int *axes,
                         const uint64_t *array_shape, bint repeat)
