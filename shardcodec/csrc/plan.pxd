# plan.pxd - the C interface of csrc/plan: plans, open shards, the cache
# SPDX-License-Identifier: MIT

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shardcodec.csrc.base cimport c_bool, sc_cancel, sc_status, sc_where
from shardcodec.csrc.kernels cimport sc_carry, sc_entry, sc_index_extent
from shardcodec.csrc.chain cimport sc_box, sc_chain, sc_selection, sc_write_rules
from shardcodec.csrc.io cimport sc_append_way, sc_device_hint, sc_file_id, sc_file_version


cdef extern from "plan/sc_cache.h" nogil:
    int64_t SC_CACHE_GRAIN_NS

    struct sc_cache

    struct sc_opened

    struct sc_cached_index:
        uint64_t n_entries
        sc_entry *entries

    struct sc_chunks_info:
        uint64_t max_nbytes
        uint64_t nbytes
        uint64_t n_chunks
        uint64_t evictions

    uint64_t sc_chunks_total()

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
        sc_chunks_info chunks

    sc_status sc_cache_init()
    sc_cache *sc_cache_new(uint64_t max_nbytes, uint64_t max_files, uint64_t max_chunks_nbytes, int64_t grain_ns)
    void sc_cache_free(sc_cache *cache)
    void sc_cache_clear(sc_cache *cache)
    void sc_cache_drop(sc_cache *cache, const char *name)
    bint sc_cache_has(sc_cache *cache, const char *name, const sc_chain *shard)
    bint sc_cache_has_chunk(sc_cache *cache, const char *name, const sc_chain *object, const sc_box *box)
    uint64_t sc_cache_state(sc_cache *cache, const char *name, const sc_chain *shard)
    sc_cached_index *sc_cache_peek(sc_cache *cache, const char *name, const sc_chain *shard)
    void sc_cache_put(sc_cache *cache, const char *name, const sc_chain *shard, sc_cached_index *index)
    sc_cached_index *sc_cached_index_new(const sc_chain *shard, uint64_t n_notes)
    void sc_cached_index_release(sc_cached_index *index)
    void sc_cache_get_info(sc_cache *cache, sc_cache_info *info)


cdef extern from "plan/sc_engine.h" nogil:
    struct sc_source:
        const char *path
        const uint8_t *data
        uint64_t nbytes
        bint is_open
        bint is_on_disk
        int fd
        const sc_entry *entries
        uint64_t first
        bint fill_absent
        uint64_t state

    struct sc_io_rules:
        unsigned depth
        uint64_t latency_ns
        uint64_t max_nbytes

    uint64_t SC_IO_MEASURED
    uint64_t SC_IO_MAX_NBYTES

    struct sc_stats:
        uint64_t opens
        uint64_t reads
        uint64_t deep_reads
        uint64_t bytes_read
        uint64_t bytes_used
        uint64_t chunks_decoded
        uint64_t chunks_filled
        uint64_t chunks_encoded
        uint64_t bytes_written
        uint64_t index_hits
        uint64_t index_misses
        uint64_t file_hits
        uint64_t chunk_hits
        uint64_t chunk_misses
        uint64_t chunk_evictions
        uint64_t disk_hits
        uint64_t disk_bytes_read

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
        sc_io_rules io
        uint64_t max_gap_nbytes
        uint64_t group_nbytes
        bint allow_in_index
        sc_cache *cache
        bint immutable
        sc_device_hint *hint
        sc_cancel *cancel
        sc_stats stats
        uint64_t peak_nbytes

    sc_status sc_read(sc_read_plan *plan, sc_where *where)
    sc_status sc_read_index(const sc_chain *shard, const sc_source *source, bint allow_in_index,
                            const uint8_t *replaced, sc_entry *entries, uint64_t *shard_nbytes, uint64_t *n_bad,
                            sc_opened *file, sc_where *where)

    sc_status sc_read_kept(const sc_read_item *item, sc_cache *cache, const int64_t *dst_strides, uint8_t *is_there,
                           size_t n)

    uint64_t SC_UNKNOWN_NBYTES
    sc_status sc_plan_ranges(const sc_read_item *item, const sc_index_extent *extent, bint allow_in_index,
                             uint64_t max_gap_nbytes, uint64_t max_nbytes, sc_entry *ranges,
                             size_t capacity, size_t *n_ranges, sc_where *where)

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
        uint64_t inside[32]
        bint has_inside
        const sc_carry *carries
        size_t n_carries
        sc_entry *entries
        uint64_t data_offset
        const uint8_t *footer
        size_t footer_nbytes
        uint64_t alignment
        bint marks
        uint64_t header_nbytes
        const sc_file_id *seen
        sc_append_way append
        bint in_place
        bint onto_old
        bint only_new
        bint declined
        bint exists
        uint8_t *result
        uint64_t result_nbytes
        uint64_t result_capacity
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
        sc_io_rules io
        bint sync
        bint only_encodes
        bint tells_states
        bint allow_in_index
        sc_cancel *cancel
        sc_stats stats

    sc_status sc_write(sc_write_plan *plan, sc_where *where)

    void sc_totals_add(const sc_stats *part)
    void sc_totals_get(sc_stats *totals)
    void sc_totals_reset()


cdef extern from "plan/sc_input.h" nogil:
    struct sc_input:
        bint missing
        uint64_t nbytes
        sc_index_extent extent


cdef extern from "plan/sc_fetch.h" nogil:
    struct sc_fetch:
        sc_source source
        sc_input input
        const sc_entry *entries
        bint is_open
        sc_stats stats

    struct sc_fetch_batch:
        const uint64_t *positions
        size_t n
        uint64_t max_nbytes
        uint64_t max_gap_nbytes
        bint allow_in_index
        sc_io_rules io
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
    void sc_fetch_move(sc_fetch *to, sc_fetch *from_)
    sc_status sc_fetch_range(sc_fetch *fetch, uint64_t offset, size_t n, uint8_t *dst, sc_where *where)
    sc_status sc_fetch_chunks(sc_fetch *fetch, sc_fetch_batch *batch, sc_where *where)


cdef extern from "plan/sc_sums.h" nogil:
    struct sc_sum:
        uint32_t stored
        uint32_t computed

    sc_status sc_fetch_sums(sc_fetch *fetch, const sc_entry *ranges, size_t n, uint64_t max_nbytes, sc_sum *sums,
                            sc_where *where)


cdef extern from "plan/sc_scan.h" nogil:
    struct sc_scan_plan "sc_scan":
        const sc_chain *shard
        const sc_source *sources
        size_t n_sources
        bint allow_in_index
        unsigned n_threads
        sc_io_rules io
        sc_device_hint *hint
        sc_cancel *cancel
        uint64_t *sizes

    sc_status sc_scan(sc_scan_plan *scan, sc_where *where)


cdef extern from "plan/sc_text_read.h" nogil:
    struct sc_text_sink:
        void (*begin)(sc_text_sink *sink, void *owner) noexcept nogil
        c_bool (*put)(sc_text_sink *sink, void *element, const uint8_t *data, size_t nbytes) noexcept nogil
        void (*end)(sc_text_sink *sink) noexcept nogil

    struct sc_text_box:
        sc_box part
        uint8_t *first
        int64_t strides[32]
        void *owner

    struct sc_text_chunk:
        const uint8_t *src
        size_t nbytes
        uint64_t shape[32]
        const sc_text_box *boxes
        size_t n_boxes

    struct sc_text_plan:
        const sc_chain *chain
        bint is_text
        const sc_text_chunk *chunks
        size_t n_chunks
        sc_text_sink *sink
        unsigned n_threads
        sc_cancel *cancel

    sc_status sc_text_read(const sc_text_plan *plan, sc_where *where)

    struct sc_text_place:
        uint64_t address
        uint64_t nbytes

    struct sc_text_arena:
        sc_text_sink sink

    void sc_text_arena_begin(sc_text_arena *arena)
    void sc_text_arena_free(sc_text_arena *arena)
    void sc_text_offsets(const sc_text_place *places, size_t n, int64_t *offsets)
    void sc_text_join(const sc_text_place *places, size_t n, uint8_t *dst)
