# read.pxi - reads of many objects, and of indexes
# SPDX-License-Identifier: MIT

cdef int read_rules(sc_io_rules *rules, unsigned depth, latency, uint64_t max_nbytes) except -1:
    """Set how files are read; latency: seconds of a call, None: as measured."""
    rules.depth, rules.max_nbytes, rules.latency_ns = depth, max_nbytes, SC_IO_MEASURED
    if latency is None:
        return 0
    if not 0 <= latency < float("inf"):
        raise ValueError(f"io_latency: expected a finite number of at least 0, got {latency!r}")
    rules.latency_ns = <uint64_t>min(1e9 * latency, 1e18)
    return 0


cdef int read_settings(sc_read_plan *plan, unsigned n_threads, uint64_t max_gap_nbytes, uint64_t group_nbytes,
                       bint allow_in_index, Cache cache, bint immutable, unsigned io_depth, io_latency,
                       uint64_t io_nbytes) except -1:
    """Set everything of a plan but its items."""
    memset(plan, 0, sizeof(sc_read_plan))
    plan.n_threads = n_threads
    read_rules(&plan.io, io_depth, io_latency, io_nbytes)
    plan.max_gap_nbytes = max_gap_nbytes
    plan.group_nbytes = group_nbytes
    plan.allow_in_index = allow_in_index
    plan.immutable = immutable
    if cache is not None:
        plan.cache = cache.cache
    return 0


cdef list run_read(sc_read_plan *plan, items, out, axes, Cancel cancel):
    """Run a plan that has its settings on these items; return the positions of objects that do not exist."""
    cdef Batch batch = Batch(out, PyBUF_WRITABLE, axes)
    cdef size_t n = len(items), i = 0
    cdef sc_read_item *item
    cdef sc_where where
    cdef sc_status status
    cdef Chain chain
    plan.items = <sc_read_item *>calloc(n + 1, sizeof(sc_read_item))
    if plan.items == NULL:
        raise MemoryError
    try:
        batch.array_strides(plan.dst_strides)
        for chain, source, parts in items:
            item = &plan.items[i]
            item.chain = &chain.chain
            chain.refuse_opaque()
            batch.keep.append(chain)
            batch.read_source(source, &item.source)
            batch.read_selection(&chain.chain, parts, False, plan.dst_strides, &item.box, &item.selection, &item.dst)
            plan.hint = &chain.hint
            i += 1
        plan.n_items = n
        cancel = entered(cancel)
        plan.cancel = &cancel.cancel
        with nogil:
            status = sc_read(plan, &where)
        cancel.raise_caught()
        raise_status(status, &where, batch.paths)
        return [i for i in range(n) if plan.items[i].missing]
    finally:
        free(plan.items)


def read(items, out, axes, *, unsigned n_threads=1, uint64_t max_gap_nbytes=65536, uint64_t group_nbytes=262144,
         bint allow_in_index=False, Cache cache=None, bint immutable=False, Cancel cancel=None, unsigned io_depth=0,
         io_latency=None, uint64_t io_nbytes=67108864):
    """Read parts of many objects into one array.

    items: sequence of (chain, source, parts). Parts are a box (start, count, step or None, at), where `at` is the place of
    its first element in the array, by axis of the chunk; or one of the kinds of `Selection`. axes: for each axis of the chunk,
    its axis in `out`, or -1. immutable: files do not change while the cache has them open.
    io_depth: threads that read where a call costs a round trip; 0: as the latency suggests. io_latency: seconds of a call;
    None: as measured. io_nbytes: bound of the encoded bytes in memory.
    Returns ([positions of objects that do not exist], counters).
    """
    cdef sc_read_plan plan
    read_settings(&plan, n_threads, max_gap_nbytes, group_nbytes, allow_in_index, cache, immutable, io_depth, io_latency,
                  io_nbytes)
    missing = run_read(&plan, items, out, axes, cancel)
    counters = stats_dict(&plan.stats)
    counters["peak_nbytes"] = plan.peak_nbytes
    return missing, counters


cdef class PlanReader:
    """`read` for many calls with the same settings, which are parsed once."""

    cdef Cache cache
    cdef sc_read_plan fixed

    def __init__(self, *, unsigned n_threads=1, uint64_t max_gap_nbytes=65536, uint64_t group_nbytes=262144,
                 bint allow_in_index=False, Cache cache=None, bint immutable=False, unsigned io_depth=0, io_latency=None,
                 uint64_t io_nbytes=67108864):
        read_settings(&self.fixed, n_threads, max_gap_nbytes, group_nbytes, allow_in_index, cache, immutable, io_depth,
                      io_latency, io_nbytes)
        self.cache = cache

    def read(self, items, out, axes, Cancel cancel=None):
        """Read parts of many objects into one array, as the function `read`; return the positions of objects that do not exist."""
        cdef sc_read_plan plan = self.fixed
        return run_read(&plan, items, out, axes, cancel)


def read_index(Chain chain, source, out, *, uint64_t nbytes=0, replaced=None, bint allow_in_index=False):
    """Read and check the index of a shard into `out`: n_chunks pairs, followed by room for its checksums.

    nbytes: size of an open file as the caller has seen it; 0: it is asked.
    replaced: n_chunks flags. If one is set, an invalid entry becomes absent instead of an error.
    Returns (size of the object or None if it does not exist, number of invalid entries).
    """
    cdef Batch batch = Batch(b"", PyBUF_SIMPLE, ())
    cdef View to = View(out, PyBUF_WRITABLE), flags
    cdef const uint8_t *flags_data = NULL
    cdef sc_source place_
    cdef sc_entry *entries
    cdef sc_where where
    cdef sc_status status
    cdef uint64_t shard_nbytes = 0, n_bad = 0
    if chain.inner is None:
        raise ValueError("expected the chain of a shard: only a shard has an index")
    if to.nbytes() != chain.chain.index.nbytes or <size_t>to.data() % 8:
        raise ValueError(f"out: expected {chain.chain.index.nbytes} bytes, aligned to 8, got {to.nbytes()} bytes")
    entries = <sc_entry *>to.data()
    batch.read_source(source, &place_)
    if place_.is_open:
        place_.nbytes = nbytes
    if replaced is not None:
        flags = View(replaced)
        if flags.nbytes() != chain.chain.n_chunks:
            raise ValueError(f"replaced: expected {chain.chain.n_chunks} flags, one per inner chunk, got {flags.nbytes()}")
        flags_data = flags.data()
    with nogil:
        status = sc_read_index(
            &chain.chain, &place_, allow_in_index, flags_data, entries, &shard_nbytes, &n_bad, NULL, &where
        )
    where.shard = 0
    raise_status(status, &where, batch.paths)
    return known(shard_nbytes), n_bad


# Upper bound of the size of an object; used if the size is unknown.
cdef uint64_t MAX_OBJECT_NBYTES = SC_UNKNOWN_NBYTES


def plan_ranges(Chain chain, entries, parts, out, axes, *, shard_nbytes=None, uint64_t max_gap_nbytes,
                uint64_t max_nbytes, bint allow_in_index=False):
    """Return the ranges (offset, nbytes) of a shard to fetch for parts of it, as in `read`; its size may be unknown."""
    cdef Batch batch = Batch(out, PyBUF_WRITABLE, axes)
    cdef View view = View(entries)
    cdef sc_read_item item
    cdef sc_entry *ranges = NULL
    cdef sc_index_extent extent
    cdef int64_t strides[32]
    cdef sc_where where
    cdef sc_status status
    cdef size_t n = 0, capacity = 64, i
    if not chain.is_shard:
        raise ValueError("expected the chain of a shard: only a shard has ranges")
    memset(&item, 0, sizeof(item))
    item.chain = &chain.chain
    item.source.entries = <const sc_entry *>view.words(2 * chain.chain.n_chunks)
    batch.array_strides(strides)
    batch.read_selection(&chain.chain, parts, False, strides, &item.box, &item.selection, &item.dst)
    extent.shard_nbytes = MAX_OBJECT_NBYTES if shard_nbytes is None else shard_nbytes
    extent.nbytes = chain.chain.index.nbytes
    if extent.shard_nbytes < extent.nbytes:
        raise ValueError(f"expected a shard of at least {extent.nbytes} bytes, the size of its index, got "
                         f"{extent.shard_nbytes}")
    extent.offset = 0 if chain.chain.index.at_start else extent.shard_nbytes - extent.nbytes
    sc_where_clear(&where)
    try:
        while True:
            free(ranges)
            ranges = <sc_entry *>malloc(capacity * sizeof(sc_entry))
            if ranges == NULL:
                raise MemoryError
            with nogil:
                status = sc_plan_ranges(&item, &extent, allow_in_index, max_gap_nbytes, max_nbytes, ranges, capacity,
                                        &n, &where)
            raise_status(status, &where)
            if n <= capacity:
                return [(ranges[i].offset, ranges[i].nbytes) for i in range(n)]
            capacity = n
    finally:
        free(ranges)


def copy_kept(Fetched part, Chain chain, parts, out, axes, is_there, Cache cache not None):
    """Copy the inner chunks of a shard that the cache has to the array, as `read` would; set their flags.

    part: a source without data, with the index and its state. is_there: a flag for each touched inner chunk, in C order.
    """
    cdef Batch batch = Batch(out, PyBUF_WRITABLE, axes)
    cdef View flags = View(is_there, PyBUF_WRITABLE)
    cdef sc_read_item item
    cdef int64_t strides[32]
    cdef sc_where where
    cdef sc_status status
    memset(&item, 0, sizeof(item))
    sc_where_clear(&where)
    where.detail = b"expected a flag for each touched inner chunk"
    item.chain = &chain.chain
    batch.read_source(part, &item.source)
    batch.array_strides(strides)
    batch.read_selection(&chain.chain, parts, False, strides, &item.box, &item.selection, &item.dst)
    with nogil:
        status = sc_read_kept(&item, cache.cache, strides, flags.data(), flags.nbytes())
    raise_status(status, &where)


def load_index(Chain chain, stored, out):
    """Check the checksums of a stored index and decode it into `out`, n_chunks pairs."""
    cdef View source = View(stored), to = View(out, PyBUF_WRITABLE)
    cdef sc_entry *entries
    cdef sc_where where
    cdef sc_status status
    if chain.inner is None:
        raise ValueError("expected the chain of a shard: only a shard has an index")
    sc_where_clear(&where)
    entries = <sc_entry *>to.words(2 * chain.chain.n_chunks)
    if source.nbytes() != chain.chain.index.nbytes:
        where.nbytes, where.limit, where.in_index = source.nbytes(), chain.chain.index.nbytes, True
        raise_status(SC_TOO_SHORT, &where)
    with nogil:
        status = sc_index_verify(&chain.chain.index, source.data(), &where)
        if status == SC_OK:
            sc_index_load(&chain.chain, source.data(), entries)
    raise_status(status, &where)


def scan(Chain chain, sources, sizes, *, unsigned n_threads=1, bint allow_in_index=False, Cancel cancel=None,
         unsigned io_depth=0, io_latency=None):
    """Read and check the indexes of many shards; fill `sizes` with n_chunks encoded sizes each, 2^64-1 for absent.

    sources: as for `read`, without ranges of shards. io_depth, io_latency: as for `read`.
    """
    cdef Batch batch = Batch(b"", PyBUF_SIMPLE, ())
    cdef View to = View(sizes, PyBUF_WRITABLE)
    cdef size_t n = len(sources), i = 0
    cdef sc_source *places = NULL
    cdef sc_scan_plan plan
    cdef sc_where where
    cdef sc_status status
    if chain.inner is None:
        raise ValueError("expected the chain of a shard: only a shard has an index")
    memset(&plan, 0, sizeof(plan))
    plan.sizes = to.words(n * chain.chain.n_chunks)
    places = <sc_source *>calloc(n + 1, sizeof(sc_source))
    if places == NULL:
        raise MemoryError
    try:
        for source in sources:
            batch.read_source(source, &places[i])
            i += 1
        read_rules(&plan.io, io_depth, io_latency, SC_IO_MAX_NBYTES)
        cancel = entered(cancel)
        plan.shard, plan.sources, plan.n_sources = &chain.chain, places, n
        plan.allow_in_index, plan.n_threads, plan.cancel = allow_in_index, n_threads, &cancel.cancel
        plan.hint = &chain.hint
        with nogil:
            status = sc_scan(&plan, &where)
        cancel.raise_caught()
        raise_status(status, &where, batch.paths)
    finally:
        free(places)


def store_index(Chain chain, entries, out):
    """Encode n_chunks pairs, in C order, to a stored index with its checksums."""
    cdef View source = View(entries), to = View(out, PyBUF_WRITABLE)
    cdef const sc_entry *pairs
    if chain.inner is None:
        raise ValueError("expected the chain of a shard: only a shard has an index")
    pairs = <const sc_entry *>source.words(2 * chain.chain.n_chunks)
    if to.nbytes() != chain.chain.index.nbytes:
        raise ValueError(f"out: expected {chain.chain.index.nbytes} bytes, got {to.nbytes()}")
    with nogil:
        sc_index_store(&chain.chain, pairs, to.data())
