# base.pxd - the C interface of csrc/base: status codes, processor features, facts of the build, the thread pool, cancellation
# SPDX-License-Identifier: MIT

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "base/sc_common.h" nogil:
    ctypedef unsigned char c_bool "bool"
    enum:
        SC_MAX_NDIM


cdef extern from "base/sc_alloc.h" nogil:
    void *malloc "sc_malloc" (size_t nbytes)
    void *calloc "sc_calloc" (size_t n, size_t size)
    void free "sc_free" (void *memory)


cdef extern from "base/sc_status.h" nogil:
    enum sc_status:
        SC_OK
        SC_NO_MEMORY
        SC_BAD_ARGUMENT
        SC_DST_TOO_SMALL
        SC_TOO_SHORT
        SC_HALF_EMPTY
        SC_BAD_RANGE
        SC_IN_INDEX
        SC_BAD_LENGTH
        SC_CHANGED
        SC_INDEX_CHECKSUM
        SC_CHUNK_CHECKSUM
        SC_CODEC_DATA
        SC_CODEC_ENCODE
        SC_VLEN
        SC_IO
        SC_NOT_A_FILE
        SC_CANCELLED

    struct sc_where:
        uint64_t shard
        uint64_t entry
        uint64_t level
        uint64_t nested_entry
        uint64_t offset
        uint64_t nbytes
        uint64_t limit
        uint64_t expected
        uint64_t actual
        uint64_t element
        uint8_t value[8]
        int type
        int other_type
        const char *codec
        const char *detail
        int64_t library_code
        bint in_index
        int sys_errno
        const char *call

    uint64_t SC_NOWHERE
    void sc_where_clear(sc_where *where)
    const char *sc_status_name(sc_status status)


cdef extern from "base/sc_buffer.h" nogil:
    struct sc_buffer:
        uint8_t *data
        size_t capacity

    sc_status sc_buffer_grow(sc_buffer *buffer, size_t used, size_t n)
    void sc_buffer_free(sc_buffer *buffer)
    void sc_buffer_keep(int64_t nbytes)
    sc_status sc_buffer_init()


cdef extern from "base/sc_cpu.h" nogil:
    void sc_cpu_init()
    uint32_t sc_cpu_features()
    uint32_t sc_cpu_detected()
    const char *sc_cpu_override(c_bool *valid)
    const char *sc_cpu_feature_name(unsigned i)


cdef extern from "base/sc_build.h" nogil:
    struct sc_build:
        const char *libraries
        const char *sanitizer
        const char *compiler
        c_bool is_abi3
        c_bool is_optimised
        c_bool has_assertions
        c_bool has_checks

    sc_build sc_build_facts()


cdef extern from "base/sc_pool.h" nogil:
    sc_status sc_pool_init()
    unsigned sc_pool_size()


cdef extern from "base/sc_cancel.h" nogil:
    struct sc_cancel:
        pass

    void sc_cancel_init(sc_cancel *cancel, bint (*poll)(void *) noexcept, void *arg)
    void sc_cancel_stop(sc_cancel *cancel)
    bint sc_cancelled(sc_cancel *cancel)
