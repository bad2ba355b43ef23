# csrc.pxd - the C interface, as _native.pyx sees it: mirrors the headers of csrc/ and alone declares their functions
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
        const char *codec
        const char *detail
        int64_t library_code
        bint in_index
        int sys_errno
        const char *call

    uint64_t SC_NOWHERE
    void sc_where_clear(sc_where *where)
    const char *sc_status_name(sc_status status)


cdef extern from "base/sc_cpu.h" nogil:
    void sc_cpu_init()
    uint32_t sc_cpu_features()
    uint32_t sc_cpu_detected()
    const char *sc_cpu_override(c_bool *valid)
    const char *sc_cpu_feature_name(unsigned i)


cdef extern from "kernels/sc_crc32c.h" nogil:
    uint32_t sc_crc32c_extend(uint32_t crc, const uint8_t *p, size_t n)
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
    struct sc_present:
        uint64_t first
        uint64_t end
        uint64_t n
        const uint8_t *bits
        const uint64_t *before
        int ndim
        uint64_t grid[32]

    uint64_t sc_present_nwords(uint64_t first, uint64_t end)
    uint64_t sc_present_nblocks(uint64_t first, uint64_t end)
    void sc_present_mark(const sc_entry *entries, uint64_t first, uint64_t end, uint8_t *bits)
    bint sc_present_count(sc_present *set, uint64_t *before)
    uint64_t sc_present_position(const sc_present *set, uint64_t rank)
    bint sc_present_find(const sc_present *set, const uint8_t *key, uint64_t *rank)
    void sc_present_keys(const sc_present *set, uint64_t first, int64_t step, size_t n, size_t skip, uint8_t *keys)


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


cdef extern from "codecs/sc_codec.h" nogil:
    enum sc_codec_id:
        SC_CODEC_CRC32C
        SC_CODEC_ZSTD
        SC_CODEC_GZIP
        SC_CODEC_ZLIB
        SC_CODEC_LZ4
        SC_CODEC_BLOSC

    struct sc_op:
        sc_codec_id codec
        int level
        bint checksum
        int compressor
        int shuffle
        uint32_t typesize
        uint32_t blocksize

    struct sc_codec_state
    sc_codec_state *sc_codec_state_new()
    void sc_codec_state_free(sc_codec_state *state)

    struct sc_codec:
        const char *name
        size_t max_nbytes
        size_t (*bound)(const sc_op *op, size_t nbytes) noexcept nogil
        sc_status (*encode)(const sc_op *op, sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
                            size_t dst_capacity, size_t *dst_nbytes, sc_where *where) noexcept nogil
        sc_status (*decode)(const sc_op *op, sc_codec_state *state, const uint8_t *src, size_t src_nbytes, uint8_t *dst,
                            size_t dst_capacity, size_t *dst_nbytes, sc_where *where) noexcept nogil

    const sc_codec *sc_codec_get(sc_codec_id id)
    sc_status sc_codec_selftest(const char **what)
    const char *sc_codec_library_version(const char *library)


cdef extern from "chain/sc_chain.h" nogil:
    enum:
        SC_MAX_OPS

    struct sc_index_layout:
        bint at_start
        bint big_endian
        unsigned n_checksums
        uint64_t pairs_nbytes
        uint64_t nbytes
        bint in_c_order
        uint64_t half_stride
        uint64_t strides[32]

    struct sc_chain:
        int ndim
        unsigned depth
        size_t itemsize
        uint64_t shape[32]
        int perm[32]
        uint64_t n_items
        uint64_t nbytes
        sc_swap swap
        uint8_t *fill
        uint8_t *fill_stored
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
    bint sc_index_must_be_sound(const sc_chain *shard)
    sc_status sc_index_verify(const sc_index_layout *index, const uint8_t *stored, sc_where *where)
    void sc_index_store(const sc_chain *shard, const sc_entry *entries, uint8_t *stored)
    void sc_index_load(const sc_chain *shard, const uint8_t *pairs, sc_entry *entries)


cdef extern from "base/sc_pool.h" nogil:
    sc_status sc_pool_init()
    unsigned sc_pool_size()


cdef extern from "io/sc_closer.h" nogil:
    sc_status sc_closer_init()


cdef extern from "chain/sc_worker.h" nogil:
    sc_status sc_worker_init()
    void sc_worker_drop_free()


cdef extern from "chain/sc_walk.h" nogil:
    uint64_t sc_touched_nbytes(const sc_chain *object, const sc_box *box)


cdef extern from "io/sc_lock.h" nogil:
    enum sc_lock_outcome:
        SC_LOCK_HELD
        SC_LOCK_NO_FILE
        SC_LOCK_BUSY
        SC_LOCK_UNSUPPORTED
        SC_LOCK_DENIED

    struct sc_lock:
        int fd
        uint64_t n_links

    sc_status sc_lock_init()
    sc_status sc_lock_try(sc_lock *lock, const char *path, sc_lock_outcome *outcome, sc_where *where)
    void sc_lock_release(sc_lock *lock)
    unsigned sc_lock_count()


cdef extern from "io/sc_staging.h" nogil:
    void sc_staging_leave(const char *folder)
    void sc_staging_leave_all()


cdef extern from "io/sc_undo.h" nogil:
    sc_status sc_undo_settle(const char *path, int fd, char **folder, sc_where *where)


cdef extern from "io/sc_file.h" nogil:
    struct sc_file_stamp:
        uint64_t nbytes
        int64_t mtime_ns
        int64_t ctime_ns

    struct sc_file_version:
        uint64_t device
        uint64_t inode
        uint64_t number
        uint64_t nbytes
        int64_t mtime_ns

    sc_status sc_file_open(const char *path, int *fd, uint64_t *nbytes, sc_where *where)
    sc_status sc_file_remove(const char *path, bint sync, sc_where *where)
    sc_status sc_file_write(int fd, const char *path, const uint8_t *src, size_t n, uint64_t offset, sc_where *where)


cdef extern from "io/sc_newfile.h" nogil:
    struct sc_newfile:
        int fd
        char *path
        char *temp
        const char *staging
        bint staged
        unsigned n_made

    sc_status sc_newfile_begin(sc_newfile *file, const char *path, const char *staging, sc_where *where)
    sc_status sc_newfile_begin_shared(sc_newfile *file, const char *path, const char *staging, sc_where *where)
    sc_status sc_newfile_join(sc_newfile *file, const char *path, const char *temp, const char *staging, unsigned n_made,
                              sc_where *where)
    sc_status sc_newfile_leave(sc_newfile *file, bint sync, sc_where *where)
    void sc_newfile_disown(sc_newfile *file)
    sc_status sc_newfile_truncate(sc_newfile *file, uint64_t nbytes, sc_where *where)
    sc_status sc_newfile_commit(sc_newfile *file, bint sync, c_bool *taken, sc_file_version *made, sc_where *where)
    void sc_newfile_abort(sc_newfile *file)


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

cdef extern from "base/sc_cancel.h" nogil:
    struct sc_cancel:
        pass

    void sc_cancel_init(sc_cancel *cancel, bint (*poll)(void *) noexcept, void *arg)
    void sc_cancel_stop(sc_cancel *cancel)
    bint sc_cancelled(sc_cancel *cancel)


cdef extern from "plan/sc_cache.h" nogil:
    int64_t SC_CACHE_GRAIN_NS

    struct sc_cache

    struct sc_cached_index:
        uint64_t n_entries
        sc_entry *entries

    struct sc_cache_info:
        uint64_t max_nbytes
        uint64_t nbytes
        uint64_t n_indexes
        uint64_t hits
        uint64_t misses
        uint64_t evictions
        uint64_t max_files
        uint64_t n_files
        uint64_t file_hits
        uint64_t file_misses

    sc_status sc_cache_init()
    sc_cache *sc_cache_new(uint64_t max_nbytes, uint64_t max_files, int64_t grain_ns)
    void sc_cache_free(sc_cache *cache)
    void sc_cache_clear(sc_cache *cache)
    void sc_cache_drop(sc_cache *cache, const char *name)
    bint sc_cache_has(sc_cache *cache, const char *name, const sc_chain *shard)
    sc_cached_index *sc_cache_peek(sc_cache *cache, const char *name, const sc_chain *shard)
    void sc_cache_put(sc_cache *cache, const char *name, const sc_chain *shard, sc_cached_index *index)
    sc_cached_index *sc_cached_index_new(const sc_chain *shard)
    void sc_cached_index_release(sc_cached_index *index)
    void sc_cache_get_info(sc_cache *cache, sc_cache_info *info)


cdef extern from "io/sc_append.h" nogil:
    enum sc_append_way:
        SC_APPEND_NOT
        SC_APPEND_DIRECT
        SC_APPEND_LEAP
        SC_APPEND_INDEX

    bint sc_append_direct_works(const char *folder)


cdef extern from "io/sc_mount.h" nogil:
    uint64_t sc_mount_magic(int fd)


cdef extern from "io/sc_fault.h" nogil:
    enum sc_fault_action:
        SC_FAULT_COUNT
        SC_FAULT_KILL
        SC_FAULT_ERROR
        SC_FAULT_SHORT
        SC_FAULT_TORN

    void sc_fault_arm(uint64_t n, sc_fault_action action, uint64_t value)
    uint64_t sc_fault_disarm()
    const char *sc_fault_call(uint64_t n)

    struct sc_fault_memory:
        uint64_t n_asked
        uint64_t n_live
        uint64_t live_nbytes

    void sc_fault_arm_memory(uint64_t n, c_bool and_all_after)
    sc_fault_memory sc_fault_disarm_memory()


cdef extern from "plan/sc_engine.h" nogil:
    struct sc_source:
        const char *path
        const uint8_t *data
        uint64_t nbytes
        bint is_open
        int fd
        const sc_entry *entries
        uint64_t first
        bint fill_absent

    struct sc_stats:
        uint64_t opens
        uint64_t reads
        uint64_t bytes_read
        uint64_t bytes_used
        uint64_t chunks_decoded
        uint64_t chunks_filled
        uint64_t chunks_encoded
        uint64_t bytes_written
        uint64_t index_hits
        uint64_t index_misses
        uint64_t file_hits

    struct sc_read_item:
        const sc_chain *chain
        sc_source source
        sc_box box
        uint8_t *dst
        const sc_selection *selection
        bint missing

    struct sc_read_plan:
        sc_read_item *items
        size_t n_items
        int64_t dst_strides[32]
        unsigned n_threads
        uint64_t max_gap_nbytes
        uint64_t group_nbytes
        bint allow_in_index
        sc_cache *cache
        bint immutable
        sc_cancel *cancel
        sc_stats stats

    sc_status sc_read(sc_read_plan *plan, sc_where *where)
    sc_status sc_read_index(const sc_chain *shard, const sc_source *source, bint allow_in_index,
                            const uint8_t *replaced, sc_entry *entries, uint64_t *shard_nbytes, uint64_t *n_bad,
                            sc_where *where)

    uint64_t SC_UNKNOWN_NBYTES
    sc_status sc_plan_ranges(const sc_read_item *item, const sc_index_extent *extent, bint allow_in_index,
                             uint64_t max_gap_nbytes, uint64_t max_nbytes, sc_entry *ranges, size_t capacity, size_t *n_ranges, sc_where *where)

    struct sc_encoded:
        uint64_t position
        const uint8_t *bytes
        uint64_t nbytes

    struct sc_write_item:
        const sc_chain *chain
        const char *path
        sc_box box
        const uint8_t *src
        const sc_selection *selection
        const sc_encoded *encoded
        size_t n_encoded
        sc_source old
        const sc_entry *old_entries
        const sc_carry *carries
        size_t n_carries
        sc_entry *entries
        uint64_t data_offset
        const uint8_t *footer
        size_t footer_nbytes
        uint64_t alignment
        bint marks
        uint64_t header_nbytes
        const sc_file_stamp *stamp
        sc_append_way append
        bint in_place
        bint onto_old
        bint only_new
        bint declined
        bint exists
        uint8_t *result
        uint64_t result_nbytes
        bint empty
        sc_file_version made

    struct sc_write_plan:
        sc_write_item *items
        size_t n_items
        int64_t src_strides[32]
        sc_write_rules rules
        const char *staging
        unsigned n_threads
        uint64_t batch_nbytes
        bint sync
        bint allow_in_index
        sc_cancel *cancel
        sc_stats stats

    sc_status sc_write(sc_write_plan *plan, sc_where *where)

    void sc_totals_add(const sc_stats *part)
    void sc_totals_get(sc_stats *totals)
    void sc_totals_reset()


cdef extern from "plan/sc_fetch.h" nogil:
    struct sc_fetch:
        sc_source source
        bint missing
        uint64_t nbytes
        sc_index_extent extent
        const sc_entry *entries
        sc_stats stats

    struct sc_fetch_batch:
        const uint64_t *positions
        size_t n
        uint64_t max_nbytes
        uint64_t max_gap_nbytes
        bint allow_in_index
        size_t n_taken
        sc_entry *places
        uint8_t *bytes
        uint64_t nbytes

    sc_status sc_fetch_begin(sc_fetch *fetch, const sc_chain *shard, const sc_source *source, sc_cache *cache,
                             sc_where *where)
    sc_status sc_fetch_check(const sc_fetch *fetch, bint allow_in_index, sc_where *where)
    bint sc_fetch_version(const sc_fetch *fetch, sc_file_version *version)
    sc_status sc_fetch_entry(const sc_fetch *fetch, uint64_t position, bint allow_in_index, sc_entry *entry,
                             sc_where *where)
    void sc_fetch_end(sc_fetch *fetch)
    sc_status sc_fetch_range(sc_fetch *fetch, uint64_t offset, size_t n, uint8_t *dst, sc_where *where)
    sc_status sc_fetch_chunks(sc_fetch *fetch, sc_fetch_batch *batch, sc_where *where)


cdef extern from "plan/sc_scan.h" nogil:
    struct sc_scan_plan "sc_scan":
        const sc_chain *shard
        const sc_source *sources
        size_t n_sources
        bint allow_in_index
        unsigned n_threads
        sc_cancel *cancel
        uint64_t *sizes

    sc_status sc_scan(sc_scan_plan *scan, sc_where *where)
