# cache.pxi - stopping a plan, and what is kept between plans
# SPDX-License-Identifier: MIT

cdef bint ask_python(void *arg) noexcept with gil:
    """Has a signal arrived whose handler raises?"""
    cdef Cancel cancel = <Cancel>arg
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        cancel.caught = error
        return True
    return False


cdef class Cancel:
    """Tells plans to stop; they then raise `Cancelled`."""

    cdef sc_cancel cancel
    cdef object caught

    def __cinit__(self):
        sc_cancel_init(&self.cancel, NULL, NULL)

    def stop(self):
        """To be called by any thread."""
        sc_cancel_stop(&self.cancel)

    @property
    def stopped(self):
        return bool(sc_cancelled(&self.cancel))

    cdef int raise_caught(self) except -1:
        caught, self.caught = self.caught, None
        if caught is not None:
            raise caught
        return 0


cdef Cancel entered(Cancel cancel):
    """Where nobody else can stop a plan, the main thread looks for signals itself: Ctrl-C raises KeyboardInterrupt."""
    if cancel is None:
        cancel = Cancel()
        if get_ident() == main_thread().ident:
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
    """The name as C has it; one with a zero byte, which no path has, is spelled out in digits."""
    cdef bytes encoded = os.fsencode(name)
    return encoded if b"\0" not in encoded else b"\x01" + encoded.hex().encode()


cdef class Cache:
    """Decoded indexes and open files that readers keep between calls (csrc/plan/sc_cache.h)."""

    cdef sc_cache *cache

    def __cinit__(self, uint64_t max_nbytes, uint64_t max_files=0, int64_t grain_ns=SC_CACHE_GRAIN_NS):
        self.cache = sc_cache_new(max_nbytes, max_files, grain_ns)
        if self.cache == NULL:
            raise MemoryError

    def __dealloc__(self):
        sc_cache_free(self.cache)

    def get(self, str name, Chain chain):
        """The index of an object in no file; None when it is not kept."""
        cdef CachedIndex found
        cdef bytes encoded = cache_name(name)
        cdef sc_cached_index *index = sc_cache_peek(self.cache, PyBytes_AsString(encoded), &chain.chain)
        if index == NULL:
            return None
        found = CachedIndex.__new__(CachedIndex)
        found.index = index
        return found

    def put(self, str name, Chain chain, entries):
        """Keep the index of an object in no file: n_chunks pairs, copied."""
        cdef View view = View(entries)
        cdef uint64_t *pairs = view.words(2 * chain.chain.n_chunks)
        cdef bytes encoded = cache_name(name)
        cdef sc_cached_index *index
        if not chain.is_shard:
            raise ValueError("only a shard has an index")
        index = sc_cached_index_new(&chain.chain)
        if index == NULL:
            return
        memcpy(index.entries, pairs, view.nbytes())
        sc_cache_put(self.cache, PyBytes_AsString(encoded), &chain.chain, index)
        sc_cached_index_release(index)

    def drop(self, str name):
        """Forget an object."""
        cdef bytes encoded = cache_name(name)
        sc_cache_drop(self.cache, PyBytes_AsString(encoded))

    def clear(self):
        """Forget all."""
        sc_cache_clear(self.cache)

    def info(self):
        """Sizes and counters."""
        cdef sc_cache_info info
        sc_cache_get_info(self.cache, &info)
        return info
