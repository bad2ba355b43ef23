# slices.pxi - one box of one object, given as slices: small reads, and small writes that are gathered, without detours
# SPDX-License-Identifier: MIT

EVERYTHING = slice(None)


cdef bint read_slices(const sc_chain *chain, tuple chunk_selection, tuple array_selection, const Py_buffer *array,
                      sc_box *box, Py_ssize_t *offset, int64_t *strides) except -1:
    """Fill in a box of the chunk, and where its elements are in an array: the first of them, and strides by axis of the chunk.

    False when the selections are none of ours. Nothing below relies on the caller.
    """
    cdef Py_ssize_t start, stop, step, first, end, by, n
    cdef int a, axis = 0
    if len(chunk_selection) != chain.ndim or <size_t>array.itemsize != chain.itemsize:
        return False
    offset[0] = 0
    for a in range(chain.ndim):
        part = chunk_selection[a]
        strides[a] = 0
        n = 1
        step = 1
        if type(part) is slice:
            if axis >= array.ndim or axis >= len(array_selection) or type(array_selection[axis]) is not slice:
                return False
            PySlice_Unpack(part, &start, &stop, &step)
            n = PySlice_AdjustIndices(<Py_ssize_t>chain.shape[a], &start, &stop, step)
            PySlice_Unpack(array_selection[axis], &first, &end, &by)
            if step < 1 or n < 1 or by != 1 or first < 0 or end > array.shape[axis] or end - first != n:
                return False
            offset[0] += first * array.strides[axis]
            strides[a] = array.strides[axis]
            axis += 1
        elif type(part) is int and 0 <= part < chain.shape[a]:
            start = part
        else:
            return False
        box.start[a] = <uint64_t>start
        box.count[a] = <uint64_t>n
        box.step[a] = step if n > 1 else 1
    return axis == array.ndim


cdef class SliceReader:
    """Small reads of files that have one chain, in the calling thread alone; all that does not change is settled here.

    max_nbytes: work of more decoded bytes is left to `read`, as is what is no box of slices and integers.
    """

    cdef Chain chain
    cdef Cache cache
    cdef sc_read_plan settled
    cdef uint64_t max_nbytes

    def __init__(self, Chain chain, *, uint64_t max_nbytes, uint64_t max_gap_nbytes=65536, bint allow_in_index=False,
                 Cache cache=None, bint immutable=False):
        chain.refuse_opaque()
        memset(&self.settled, 0, sizeof(sc_read_plan))
        self.settled.n_items = 1
        self.settled.n_threads = 1
        self.settled.max_gap_nbytes = max_gap_nbytes
        self.settled.group_nbytes = max_nbytes
        self.settled.allow_in_index = allow_in_index
        self.settled.immutable = immutable
        self.chain, self.cache, self.max_nbytes = chain, cache, max_nbytes
        if cache is not None:
            self.settled.cache = cache.cache

    def read(self, str path, chunk_selection, array_selection, out):
        """Read slices and positions of the chunk in the file to slices of an array.

        Returns whether the file exists, otherwise the fill value has been stored; None when nothing has been done.
        """
        cdef sc_read_item item
        cdef int64_t strides[32]
        cdef Py_ssize_t offset
        cdef View view
        if type(chunk_selection) is not tuple or type(array_selection) is not tuple:
            return None
        view = View(out, PyBUF_WRITABLE | PyBUF_STRIDES)
        memset(&item, 0, sizeof(item))
        item.chain = &self.chain.chain
        if not read_slices(item.chain, chunk_selection, array_selection, &view.view, &item.box, &offset, strides):
            return None
        item.dst = view.data() + offset
        encoded = path_bytes(path)
        item.source.path = path_chars(encoded)
        if not self.is_small(&item):
            return None
        self.run(&item, strides)
        return not item.missing

    cdef bint is_small(self, const sc_read_item *item) noexcept:
        """An index counts, unless it is in the cache; the file may be another by now, and then it is read after all."""
        if sc_touched_nbytes(item.chain, &item.box) > self.max_nbytes:
            return False
        if not self.chain.is_shard or self.chain.chain.index.nbytes <= self.max_nbytes:
            return True
        return self.cache is not None and sc_cache_has(self.cache.cache, item.source.path, item.chain)

    cdef int run(self, sc_read_item *item, const int64_t *strides) except -1:
        cdef sc_read_plan plan = self.settled
        cdef Cancel cancel = entered(None)
        cdef sc_where where
        cdef sc_status status
        plan.items = item
        plan.cancel = &cancel.cancel
        memcpy(plan.dst_strides, strides, sizeof(plan.dst_strides))
        with nogil:
            status = sc_read(&plan, &where)
        if status != SC_OK:
            cancel.raise_caught()
            raise_status(status, &where, [item.source.path])
        return 0


cdef class ArraySlices(SliceReader):
    """The same for an array that is cut into such files: slices and integers within one of them.

    folder: what comes before the names of files; they are made of grid positions with a separator between.
    empty: makes an array of a shape, as numpy.empty does with the dtype.
    """

    cdef int64_t shape[32]
    cdef bytes folder
    cdef char separator
    cdef object empty, dtype

    def __init__(self, Chain chain, *, shape, str folder, str separator, empty, dtype, **how):
        super().__init__(chain, **how)
        cdef int a
        if len(shape) != chain.chain.ndim or chain.chain.ndim == 0 or separator not in ("/", "."):
            raise ValueError(f"array of shape {shape} with separator {separator!r} and a chain of rank {chain.chain.ndim}")
        for a in range(chain.chain.ndim):
            self.shape[a] = shape[a]
        self.folder, self.separator, self.empty, self.dtype = path_bytes(folder), ord(separator), empty, dtype

    def get(self, selection):
        """Return what slices and integers select of the array; None when nothing has been done."""
        cdef const sc_chain *chain = &self.chain.chain
        cdef sc_read_item item
        cdef int64_t position[32]
        cdef bint kept[32]
        cdef Py_ssize_t start, stop, step
        cdef int64_t strides[32]
        cdef char key[1024]  # 32 numbers of at most 19 digits
        cdef tuple parts = selection if type(selection) is tuple else (selection,)
        cdef size_t n = 0
        cdef bytes path
        cdef View view
        cdef int a, axis = 0, n_parts = <int>len(parts)
        if n_parts > chain.ndim:
            return None
        memset(&item, 0, sizeof(item))
        item.chain = chain
        for a in range(chain.ndim):
            part = parts[a] if a < n_parts else EVERYTHING
            kept[a] = type(part) is slice
            if kept[a]:
                PySlice_Unpack(part, &start, &stop, &step)
                PySlice_AdjustIndices(<Py_ssize_t>self.shape[a], &start, &stop, step)
                if step != 1 or stop <= start:
                    return None
            elif type(part) is int and 0 <= part < self.shape[a]:
                start = part
                stop = start + 1
            else:
                return None
            position[a] = start // <int64_t>chain.shape[a]
            item.box.start[a] = <uint64_t>(start - position[a] * <int64_t>chain.shape[a])
            item.box.count[a] = <uint64_t>(stop - start)
            item.box.step[a] = 1
            if item.box.count[a] > chain.shape[a] - item.box.start[a]:
                return None
        for a in range(chain.ndim):
            n += <size_t>snprintf(&key[n], sizeof(key) - n, b"%c%lld", self.separator, <long long>position[a])
        path = self.folder + PyBytes_FromStringAndSize(&key[1], <Py_ssize_t>n - 1)
        item.source.path = PyBytes_AsString(path)
        if not self.is_small(&item):
            return None
        shape = tuple([item.box.count[a] for a in range(chain.ndim) if kept[a]])
        out = self.empty(shape, self.dtype)
        view = View(out, PyBUF_WRITABLE | PyBUF_STRIDES)
        if view.view.ndim != len(shape) or <size_t>view.view.itemsize != chain.itemsize:
            raise ValueError(f"array of rank {view.view.ndim} with elements of {view.view.itemsize} bytes")
        for a in range(chain.ndim):
            strides[a] = 0
            if not kept[a]:
                continue
            if <uint64_t>view.view.shape[axis] != item.box.count[a]:
                raise ValueError(f"axis {axis} has {view.view.shape[axis]} elements, not {item.box.count[a]}")
            strides[a] = view.view.strides[axis]
            axis += 1
        item.dst = view.data()
        self.run(&item, strides)
        return out


cdef class ChunkSlices:
    """Slices of a shard that are all of one inner chunk: copied from an array to memory of its own."""

    cdef Chain chain

    def __init__(self, Chain chain):
        if not chain.is_shard:
            raise ValueError("a chain without inner chunks")
        self.chain = chain

    def take(self, chunk_selection, array_selection, array, place):
        """Copy what slices and integers select of an array to where the inner chunk is kept.

        place: from the position of the inner chunk in the index to an array of its own, axes as those of the shard.
        False, and nothing done, when the slices are not all of one inner chunk, or no box at all.
        """
        cdef const sc_chain *chain = &self.chain.chain
        cdef int64_t from_strides[32]
        cdef int64_t to_strides[32]
        cdef uint64_t position = 0, extent
        cdef Py_ssize_t offset
        cdef sc_copy copy
        cdef sc_box box
        cdef View source, to
        cdef int a, i
        if type(chunk_selection) is not tuple or type(array_selection) is not tuple or chain.ndim == 0:
            return False
        source = View(array, PyBUF_STRIDES)
        if not read_slices(chain, chunk_selection, array_selection, &source.view, &box, &offset, from_strides):
            return False
        for i in range(chain.ndim):
            a = chain.perm[i]
            extent = chain.inner.shape[i]
            if box.count[a] != extent or box.step[a] != 1 or box.start[a] % extent:
                return False
            position = position * chain.grid[i] + box.start[a] // extent
        to = View(place(position), PyBUF_WRITABLE | PyBUF_STRIDES)
        if to.view.ndim != chain.ndim or <size_t>to.view.itemsize != chain.itemsize:
            raise ValueError(f"rank {to.view.ndim} and elements of {to.view.itemsize} bytes do not fit the chunk")
        for a in range(chain.ndim):
            if <uint64_t>to.view.shape[a] != box.count[a]:
                raise ValueError(f"axis {a} has {to.view.shape[a]} elements where {box.count[a]} are due")
            to_strides[a] = to.view.strides[a]
        with nogil:
            sc_copy_prepare(&copy, chain.ndim, box.count, to_strides, from_strides, chain.itemsize, NULL)
            sc_copy_run(&copy, to.data(), source.data() + offset)
        return True
