# open_shard.pxi - one shard held open: its index and its encoded inner chunks
# SPDX-License-Identifier: MIT

cdef bytes version_bytes(const sc_file_version *version):
    """Five words that name a state of a file; empty where there is none."""
    return PyBytes_FromStringAndSize(<const char *>version, sizeof(sc_file_version)) if version.inode else b""


def read_encoded(Chain chain, bytes path, uint64_t position, Cache cache=None, *, bint allow_in_index=False):
    """One inner chunk of a shard in a file as it is stored: all that `OpenShard` would do for it, in one call.

    None when it, or the file, does not exist.
    """
    cdef bytes result = None
    cdef sc_source source
    cdef sc_fetch held
    cdef sc_entry entry
    cdef sc_where where
    cdef sc_status status
    if not chain.is_shard:
        raise ValueError("only a shard has an index")
    memset(&source, 0, sizeof(sc_source))
    source.path = path_chars(path)
    try:
        with nogil:
            status = sc_fetch_begin(&held, &chain.chain, &source, NULL if cache is None else cache.cache, &where)
        if status == SC_OK and not held.missing:
            status = sc_fetch_entry(&held, position, allow_in_index, &entry, &where)
            if status == SC_OK and not (entry.offset == SC_ABSENT and entry.nbytes == SC_ABSENT):
                result = fetched_range(&held, entry.offset, entry.nbytes, &status, &where)
    finally:
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


cdef class OpenShard:
    """A shard whose index has been read, and whose inner chunks can be had as they are stored (csrc/plan/sc_fetch.h).

    source: as for `read`. The object stays open, so what is fetched belongs to that index; `close` ends it.
    cache: a file's index is looked for there first.
    """

    cdef sc_fetch held
    cdef Batch batch
    cdef Chain chain
    cdef Cache cache
    cdef object memory
    cdef int n_at_work

    def __cinit__(self, Chain chain, source, Cache cache=None):
        cdef sc_source place_
        cdef sc_where where
        cdef sc_status status
        if not chain.is_shard:
            raise ValueError("only a shard has an index")
        self.cache = cache
        self.batch = Batch(b"", PyBUF_SIMPLE, ())
        self.batch.read_source(source, &place_)
        if isinstance(source, Fetched):
            self.memory = (<Fetched>source).memory
        elif source is not None and not isinstance(source, (str, int)):
            self.memory = memoryview(source).cast("B")
        self.chain = chain
        with nogil:
            status = sc_fetch_begin(&self.held, &chain.chain, &place_, NULL if cache is None else cache.cache, &where)
        where.shard = 0
        raise_status(status, &where, self.batch.paths)

    def __dealloc__(self):
        if self.chain is not None:
            sc_fetch_end(&self.held)

    def close(self):
        """Let go of the file. Nothing can be fetched afterwards."""
        if self.n_at_work:
            raise ValueError("another thread is fetching from this shard")
        sc_fetch_end(&self.held)
        self.held.entries = NULL

    @property
    def missing(self):
        """Is there no such object?"""
        return bool(self.held.missing)

    @property
    def nbytes(self):
        """Size of the object."""
        return self.held.nbytes

    @property
    def version(self):
        """Bytes that name this state of the file among all that it ever had; empty for what is in no file."""
        cdef sc_file_version version
        return version_bytes(&version) if sc_fetch_version(&self.held, &version) else b""

    def entry(self, uint64_t position, *, bint allow_in_index=False):
        """Offset and size of an inner chunk, checked; None when it is absent."""
        cdef sc_entry entry
        cdef sc_where where
        if self.held.entries == NULL:
            raise ValueError("there is no index: the shard is missing or closed")
        cdef sc_status status = sc_fetch_entry(&self.held, position, allow_in_index, &entry, &where)
        where.shard = 0
        raise_status(status, &where, self.batch.paths)
        return None if entry.offset == SC_ABSENT and entry.nbytes == SC_ABSENT else (entry.offset, entry.nbytes)

    def check(self, *, bint allow_in_index=False):
        """Check all entries where nothing else tells that one is wrong. What reads inner chunks does so by itself."""
        cdef sc_where where
        cdef sc_status status = sc_fetch_check(&self.held, allow_in_index, &where)
        where.shard = 0
        raise_status(status, &where, self.batch.paths)

    def positions(self, uint64_t first, uint64_t end):
        """Which of the inner chunks at positions [first, end) exist: `Positions`."""
        if self.held.entries == NULL:
            raise ValueError("there is no index: the shard is missing or closed")
        self.n_at_work += 1
        try:
            return marked(self.chain, self.held.entries, first, end)
        finally:
            self.n_at_work -= 1

    @property
    def fills_absent(self):
        """Are absent inner chunks this reader's business? Not with a range among others."""
        return self.held.source.entries == NULL or bool(self.held.source.fill_absent)

    @property
    def stats(self):
        return stats_dict(&self.held.stats)

    def entries(self, out, *, bint check=False, bint allow_in_index=False):
        """Copy the index to `out`, n_chunks pairs; with `check`, raise for the first entry that cannot be true."""
        cdef View to = View(out, PyBUF_WRITABLE)
        cdef uint64_t n = self.chain.chain.n_chunks
        cdef uint64_t *words = to.words(2 * n)
        cdef sc_where where
        cdef sc_status status = SC_OK
        if self.held.entries == NULL:
            raise ValueError("there is no index: the shard is missing or closed")
        sc_where_clear(&where)
        if check:
            status = sc_index_check(self.held.entries, n, &self.held.extent, allow_in_index, &where)
        memcpy(words, self.held.entries, n * sizeof(sc_entry))
        where.shard = 0
        raise_status(status, &where, self.batch.paths)

    def range(self, uint64_t offset, uint64_t nbytes):
        """Bytes of the object, whatever they mean."""
        cdef bytes result
        cdef sc_where where
        cdef sc_status status = SC_OK
        if self.held.entries == NULL or self.held.source.entries != NULL:
            raise ValueError("the shard is missing, closed, or only a part of it is here")
        if offset > self.held.nbytes or nbytes > self.held.nbytes - offset:
            raise ValueError(f"{nbytes} bytes at offset {offset} of a shard of {self.held.nbytes}")
        self.n_at_work += 1
        try:
            result = fetched_range(&self.held, offset, nbytes, &status, &where)
        finally:
            self.n_at_work -= 1
        where.shard = 0
        raise_status(status, &where, self.batch.paths)
        return result

    def fetch(self, positions, places, *, uint64_t max_nbytes, uint64_t max_gap_nbytes=65536,
              bint allow_in_index=False):
        """Fetch inner chunks, as many from the first on as fit into max_nbytes, but at least one.

        positions: numbers of 64 bits, C order over the grid. places: as many (offset, nbytes) pairs, filled with where
        in the returned buffer each one is: (2^64-1, 2^64-1) absent; (2^64-1, 0) not in this range of the shard.
        Returns (buffer, how many were taken).
        """
        cdef View wanted = View(positions), to = View(places, PyBUF_WRITABLE)
        cdef sc_fetch_batch batch
        cdef sc_where where
        cdef sc_status status
        cdef uint64_t n = wanted.nbytes() // 8
        if self.held.entries == NULL:
            raise ValueError("there is no index: the shard is missing or closed")
        memset(&batch, 0, sizeof(batch))
        batch.positions, batch.n = wanted.words(n), n
        batch.places = <sc_entry *>to.words(2 * n)
        batch.max_nbytes, batch.max_gap_nbytes, batch.allow_in_index = max_nbytes, max_gap_nbytes, allow_in_index
        self.n_at_work += 1
        with nogil:
            status = sc_fetch_chunks(&self.held, &batch, &where)
        self.n_at_work -= 1
        result = self.memory if batch.bytes == NULL else adopt(batch.bytes, batch.nbytes)
        where.shard = 0
        raise_status(status, &where, self.batch.paths)
        return (b"" if result is None else result), batch.n_taken
