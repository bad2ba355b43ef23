# open_shard.pxi - an open shard: its index and its encoded inner chunks
# SPDX-License-Identifier: MIT

cdef bytes version_bytes(const sc_file_version *version):
    """Return the five words that identify a state of a file; empty for a missing file."""
    return PyBytes_FromStringAndSize(<const char *>version, sizeof(sc_file_version)) if version.inode else b""


def read_encoded(Chain chain, bytes path, uint64_t position, Cache cache=None, *, bint allow_in_index=False):
    """Return the stored bytes of one inner chunk of a local shard, in one call instead of an `OpenShard`.

    Returns None if the inner chunk or the file does not exist.
    """
    cdef bytes result = None
    cdef sc_source source
    cdef sc_fetch held
    cdef sc_entry entry
    cdef sc_where where
    cdef sc_status status
    if not chain.is_shard:
        raise ValueError("expected the chain of a shard: only a shard has an index")
    memset(&source, 0, sizeof(sc_source))
    source.path = path_chars(path)
    try:
        with nogil:
            status = sc_fetch_begin(&held, &chain.chain, &source, NULL if cache is None else cache.cache, &where)
        if status == SC_OK and not held.input.missing:
            status = sc_fetch_entry(&held, position, allow_in_index, &entry, &where)
            if status == SC_OK and not (entry.offset == SC_ABSENT and entry.nbytes == SC_ABSENT):
                result = fetched_range(&held, entry.offset, entry.nbytes, &status, &where)
    finally:
        with nogil:
            sc_fetch_end(&held)
    where.shard = 0
    raise_status(status, &where, [path])
    return result


cdef bytes fetched_range(sc_fetch *held, uint64_t offset, uint64_t nbytes, sc_status *status, sc_where *where):
    cdef bytes result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>nbytes)
    cdef uint8_t *dst = <uint8_t *>PyBytes_AsString(result)
    with nogil:
        status[0] = sc_fetch_range(held, offset, nbytes, dst, where)
    return result


@cython.no_gc_clear  # the garbage collector must leave what __dealloc__ needs
cdef class OpenShard:
    """A shard whose index has been read; it returns inner chunks as they are stored (csrc/plan/sc_fetch.h).

    chain: None opens an object with any content, without an index: `range`, `sums` and `state` read it.
    source: as for `read`. The object stays open until `close`, so fetched bytes belong to that index.
    cache: searched first for the index of a file.
    """

    cdef sc_fetch held
    cdef Batch batch
    cdef Chain chain
    cdef Cache cache
    cdef object memory
    cdef int n_at_work
    cdef bint is_begun

    def __cinit__(self, Chain chain, source, Cache cache=None):
        cdef sc_source place_
        cdef sc_where where
        cdef sc_status status
        cdef const sc_chain *shard = NULL if chain is None else &chain.chain
        if chain is not None and not chain.is_shard:
            raise ValueError("expected the chain of a shard: only a shard has an index")
        self.cache = cache
        self.batch = Batch(b"", PyBUF_SIMPLE, ())
        self.batch.read_source(source, &place_)
        if isinstance(source, Fetched):
            self.memory = (<Fetched>source).memory
        elif source is not None and not isinstance(source, (str, int)):
            self.memory = memoryview(source).cast("B")
        self.chain = chain
        self.is_begun = True
        with nogil:
            status = sc_fetch_begin(&self.held, shard, &place_, NULL if cache is None else cache.cache, &where)
        where.shard = 0
        raise_status(status, &where, self.batch.paths)

    def __dealloc__(self):
        if self.is_begun:
            self.end()

    def close(self):
        """Close the file. Later fetches raise."""
        cdef bint is_idle
        with cython.critical_section(self):
            is_idle = self.n_at_work == 0
            if is_idle:
                self.end()
        if not is_idle:
            raise ValueError("expected an idle shard, but another thread is fetching from it")

    cdef int end(self) except -1:
        """Close the file without the GIL; other threads find the shard closed at once."""
        cdef sc_fetch ended
        sc_fetch_move(&ended, &self.held)
        with nogil:
            sc_fetch_end(&ended)
        return 0

    cdef int begin_work(self, bint needs_index=True) except -1:
        """Keep the file open until `end_work`; raise if an index is needed and there is none."""
        cdef bint has_index
        with cython.critical_section(self):
            has_index = self.held.entries != NULL
            if has_index or not needs_index:
                self.n_at_work += 1
        if needs_index and not has_index:
            raise ValueError("expected an open shard with an index, but it is missing, closed, or opened without a chain")
        return 0

    cdef int begin_bytes(self) except -1:
        """Keep the object open until `end_work`, to read any of its bytes."""
        cdef bint has_bytes
        with cython.critical_section(self):
            has_bytes = self.held.is_open and self.held.source.entries == NULL
            if has_bytes:
                self.n_at_work += 1
        if not has_bytes:
            raise ValueError("expected an open shard with all its bytes, but it is missing, closed, or given in part")
        return 0

    cdef int end_work(self) except -1:
        with cython.critical_section(self):
            self.n_at_work -= 1
        return 0

    @property
    def missing(self):
        """True if the object does not exist."""
        return bool(self.held.input.missing)

    @property
    def nbytes(self):
        """Size of the object in bytes."""
        return self.held.input.nbytes

    @property
    def state(self):
        """Bytes that identify this state of the file among all its states; empty if the source is not a file."""
        cdef sc_file_version version
        cdef bint known
        self.begin_work(needs_index=False)
        with nogil:
            known = sc_fetch_version(&self.held, &version)
        self.end_work()
        return version_bytes(&version) if known else b""

    def entry(self, uint64_t position, *, bint allow_in_index=False):
        """Return the checked offset and size of an inner chunk; None if it is absent."""
        cdef sc_entry entry
        cdef sc_where where
        cdef sc_status status
        self.begin_work()
        status = sc_fetch_entry(&self.held, position, allow_in_index, &entry, &where)
        self.end_work()
        where.shard = 0
        raise_status(status, &where, self.batch.paths)
        return None if entry.offset == SC_ABSENT and entry.nbytes == SC_ABSENT else (entry.offset, entry.nbytes)

    def check(self, *, bint allow_in_index=False):
        """Check all entries if checksums cannot detect an invalid one. Reads of inner chunks do this themselves."""
        cdef sc_where where
        cdef sc_status status
        self.begin_work(needs_index=False)
        status = sc_fetch_check(&self.held, allow_in_index, &where)
        self.end_work()
        where.shard = 0
        raise_status(status, &where, self.batch.paths)

    def present(self, uint64_t first, uint64_t end):
        """Return one byte for each of the positions [first, end): 1 if its inner chunk exists, else 0."""
        self.begin_work()
        try:
            return marked(self.chain, self.held.entries, first, end)
        finally:
            self.end_work()

    @property
    def fills_absent(self):
        """True if this reader fills absent inner chunks; False for one of several ranges of a shard."""
        return self.held.source.entries == NULL or bool(self.held.source.fill_absent)

    @property
    def stats(self):
        return stats_dict(&self.held.stats)

    def entries(self, out, *, bint check=False, bint allow_in_index=False):
        """Copy the index to `out`, n_chunks pairs; with `check`, raise for the first invalid entry."""
        cdef View to = View(out, PyBUF_WRITABLE)
        cdef uint64_t n = self.chain.chain.n_chunks
        cdef uint64_t *words = to.words(2 * n)
        cdef sc_where where
        cdef sc_status status = SC_OK
        sc_where_clear(&where)
        self.begin_work()
        if check:
            status = sc_index_check(self.held.entries, n, &self.held.input.extent, allow_in_index, &where)
        memcpy(words, self.held.entries, n * sizeof(sc_entry))
        self.end_work()
        where.shard = 0
        raise_status(status, &where, self.batch.paths)

    def range(self, uint64_t offset, uint64_t nbytes):
        """Return bytes of the object, without interpreting them."""
        cdef bytes result
        cdef sc_where where
        cdef sc_status status = SC_OK
        self.begin_bytes()
        try:
            if offset > self.held.input.nbytes or nbytes > self.held.input.nbytes - offset:
                raise ValueError(f"expected a range inside the shard of {self.held.input.nbytes} bytes, got {nbytes} bytes at "
                                 f"offset {offset}")
            result = fetched_range(&self.held, offset, nbytes, &status, &where)
        finally:
            self.end_work()
        where.shard = 0
        raise_status(status, &where, self.batch.paths)
        return result

    def sums(self, ranges, out, *, uint64_t max_nbytes):
        """Compute the CRC-32C of ranges whose last four bytes are that checksum.

        ranges: (offset, nbytes) pairs of 64-bit numbers, inside the object; ascending ones share reads. out: as many pairs of
        32-bit numbers, the stored and the computed checksum. max_nbytes: memory for the bytes, at most 256 KiB are used.
        """
        cdef View wanted = View(ranges), to = View(out, PyBUF_WRITABLE)
        cdef size_t n = wanted.nbytes() // sizeof(sc_entry)
        cdef const sc_entry *entries = <const sc_entry *>wanted.words(2 * n)
        cdef sc_sum *sums = <sc_sum *>to.words(n)
        cdef sc_where where
        cdef sc_status status
        self.begin_bytes()
        try:
            with nogil:
                status = sc_fetch_sums(&self.held, entries, n, max_nbytes, sums, &where)
        finally:
            self.end_work()
        where.shard = 0
        raise_status(status, &where, self.batch.paths)

    def fetch(self, positions, places, *, uint64_t max_nbytes, uint64_t max_gap_nbytes=65536,
              bint allow_in_index=False, unsigned io_depth=0, io_latency=None):
        """Fetch inner chunks: the longest prefix of `positions` that fits into max_nbytes, but at least one.

        positions: 64-bit numbers, C order over the grid. places: as many (offset, nbytes) pairs, filled with the place of
        each inner chunk in the returned buffer; (2^64-1, 2^64-1): absent; (2^64-1, 0): not in this range of the shard.
        io_depth, io_latency: as for the function `read`.
        Returns (buffer, number of inner chunks fetched).
        """
        cdef View wanted = View(positions), to = View(places, PyBUF_WRITABLE)
        cdef sc_fetch_batch batch
        cdef sc_where where
        cdef sc_status status
        cdef uint64_t n = wanted.nbytes() // 8
        memset(&batch, 0, sizeof(batch))
        batch.positions, batch.n = wanted.words(n), n
        batch.places = <sc_entry *>to.words(2 * n)
        batch.max_nbytes, batch.max_gap_nbytes, batch.allow_in_index = max_nbytes, max_gap_nbytes, allow_in_index
        read_rules(&batch.io, io_depth, io_latency, SC_IO_MAX_NBYTES)
        self.begin_work()
        with nogil:
            status = sc_fetch_chunks(&self.held, &batch, &where)
        self.end_work()
        result = self.memory if batch.bytes == NULL else adopt(batch.bytes, batch.nbytes)
        where.shard = 0
        raise_status(status, &where, self.batch.paths)
        return (b"" if result is None else result), batch.n_taken
