# cache.pxi - cancellation of a plan, and the cache of indexes, inner chunks and open files
# SPDX-License-Identifier: MIT

cdef bint ask_python(void *arg) noexcept with gil:
    """Return True if a signal has arrived whose handler raises; keep its exception."""
    cdef Cancel cancel = <Cancel>arg
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        cancel.caught = error
        return True
    return False


cdef class Cancel:
    """A flag that stops the plans that listen to it; they then raise `Cancelled`."""

    cdef sc_cancel cancel
    cdef object caught

    def __cinit__(self):
        sc_cancel_init(&self.cancel, NULL, NULL)

    def stop(self):
        """Stop the plans; any thread may call this."""
        sc_cancel_stop(&self.cancel)

    @property
    def stopped(self):
        return bool(sc_cancelled(&self.cancel))

    cdef int raise_caught(self) except -1:
        caught, self.caught = self.caught, None
        if caught is not None:
            raise caught
        return 0


cdef object main_ident = main_thread().ident


def _note_main_thread():
    """Note the main thread of a forked child: its only thread."""
    global main_ident
    main_ident = get_ident()


os.register_at_fork(after_in_child=_note_main_thread)


cdef Cancel entered(Cancel cancel):
    """Return `native`, or a new one, with which the main thread checks for signals: Ctrl-C raises KeyboardInterrupt."""
    if cancel is None:
        cancel = Cancel()
        if get_ident() == main_ident:
            sc_cancel_init(&cancel.cancel, ask_python, <void *>cancel)
    return cancel


cdef class CachedIndex:
    """A decoded index held by a view: read-only pairs (offset, nbytes), one for each inner chunk."""

    cdef sc_cached_index *index

    def __dealloc__(self):
        sc_cached_index_release(self.index)

    def __len__(self):
        return self.index.n_entries

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.index.entries, <Py_ssize_t>(16 * self.index.n_entries), 1, flags)


cdef bytes cache_name(str name):
    """Return the name as C expects it; a name with a null byte, which no path has, is written in hexadecimal digits."""
    cdef bytes encoded = os.fsencode(name)
    return encoded if b"\0" not in encoded else b"\x01" + encoded.hex().encode()


cdef class Cache:
    """Decoded indexes, decoded inner chunks and open files that readers keep between calls (csrc/plan/sc_cache.h).

    Methods that only look up keep the GIL: the mutex of the cache is never held during input or output. n_drops: number of removals.
    """

    cdef sc_cache *cache
    cdef readonly uint64_t n_drops

    def __cinit__(self, uint64_t max_nbytes, uint64_t max_files=0, uint64_t max_chunks_nbytes=0,
                  int64_t grain_ns=SC_CACHE_GRAIN_NS):
        self.cache = sc_cache_new(max_nbytes, max_files, max_chunks_nbytes, grain_ns)
        if self.cache == NULL:
            raise MemoryError

    def __dealloc__(self):
        with nogil:  # closes files
            sc_cache_free(self.cache)

    def get(self, str name, Chain chain):
        """Return the index of an object that is not a local file; None if the cache does not have it."""
        cdef CachedIndex found
        cdef bytes encoded = cache_name(name)
        cdef sc_cached_index *index = sc_cache_peek(self.cache, PyBytes_AsString(encoded), &chain.chain)
        if index == NULL:
            return None
        found = CachedIndex.__new__(CachedIndex)
        found.index = index
        return found

    def state(self, str name, Chain chain):
        """Return the number of the cached index of an object that is not a local file; 0 if no inner chunks are cached under it."""
        cdef bytes encoded = cache_name(name)
        return sc_cache_state(self.cache, PyBytes_AsString(encoded), &chain.chain)

    def put(self, str name, Chain chain, entries, n_drops=None):
        """Store a copy of the index, n_chunks pairs, of an object that is not a local file; not if `n_drops` has changed since."""
        cdef View view = View(entries)
        cdef uint64_t *pairs = view.words(2 * chain.chain.n_chunks)
        cdef bytes encoded = cache_name(name)
        cdef sc_cached_index *index
        if not chain.is_shard:
            raise ValueError("expected the chain of a shard: only a shard has an index")
        index = sc_cached_index_new(&chain.chain, 0)
        if index == NULL:
            return
        memcpy(index.entries, pairs, view.nbytes())
        with cython.critical_section(self):
            if n_drops is None or n_drops == self.n_drops:  # no signal handler and no thread drops from here on
                sc_cache_put(self.cache, PyBytes_AsString(encoded), &chain.chain, index)
        sc_cached_index_release(index)

    @cython.critical_section
    def drop(self, str name):
        """Remove an object from the cache."""
        cdef bytes encoded = cache_name(name)
        cdef const char *chars = PyBytes_AsString(encoded)
        self.n_drops += 1  # before the removal, so that no index is put after it that was fetched before
        with nogil:
            sc_cache_drop(self.cache, chars)

    @cython.critical_section
    def clear(self):
        """Empty the cache."""
        self.n_drops += 1
        with nogil:
            sc_cache_clear(self.cache)

    def info(self):
        """Return the sizes and counters; those of inner chunks are a dict of their own, "chunks"."""
        cdef sc_cache_info info
        sc_cache_get_info(self.cache, &info)
        return info


def chunks_total():
    """Return the bytes of all inner chunks that the caches of this process keep."""
    return sc_chunks_total()
