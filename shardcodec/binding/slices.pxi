# slices.pxi - fast path for one box of one object, given as slices: small reads, and small buffered writes
# SPDX-License-Identifier: MIT

EVERYTHING = slice(None)


cdef bint read_slices(const sc_chain *chain, tuple chunk_selection, tuple array_selection, const Py_buffer *array,
                      sc_box *box, Py_ssize_t *offset, int64_t *strides) except -1:
    """Set a box of the chunk and its place in an array: the offset of its first element, and strides by axis of the chunk.

    Returns False if the selections are not slices and integers inside the chunk; the C code relies on these checks.
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
    """A reader for small reads of files with one chain, in the calling thread; its constructor prepares the plan once.

    max_nbytes: larger reads, in decoded bytes, and selections other than slices and integers are left to `read`.
    """

    cdef Chain chain
    cdef Cache cache
    cdef sc_read_plan settled
    cdef uint64_t max_nbytes

    def __init__(self, Chain chain, *, uint64_t max_nbytes, uint64_t max_gap_nbytes=65536, bint allow_in_index=False,
                 Cache cache=None, bint immutable=False, unsigned io_depth=0, io_latency=None):
        chain.refuse_opaque()
        read_settings(&self.settled, 1, max_gap_nbytes, max_nbytes, allow_in_index, cache, immutable, io_depth, io_latency,
                      SC_IO_MAX_NBYTES)
        self.settled.n_items = 1
        self.chain, self.cache, self.max_nbytes = chain, cache, max_nbytes

    def read(self, str path, chunk_selection, array_selection, out):
        """Read slices and positions of the chunk in the file to slices of an array.

        Returns True if the file exists, False if it does not and the array has been filled with the fill value, None if
        nothing has been read.
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
        """Return True for a small read; an index counts, unless it is cached.

        If the file has changed since, the read fetches the index all the same.
        """
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
    """A `SliceReader` for an array whose chunks are such files: a basic selection within one chunk.

    folder: prefix of the names of files, which are grid positions joined by the separator.
    empty: a callable that returns a new array of a shape and dtype, such as numpy.empty.
    """

    cdef int64_t shape[32]
    cdef bytes folder
    cdef char separator
    cdef object empty, dtype

    def __init__(self, Chain chain, *, shape, str folder, str separator, empty, dtype, **how):
        super().__init__(chain, **how)
        cdef int a
        if len(shape) != chain.chain.ndim or chain.chain.ndim == 0 or separator not in ("/", "."):
            raise ValueError(f"expected a shape of the chain's rank {chain.chain.ndim}, at least 1, and separator '/' or "
                             f"'.', got shape {shape} and separator {separator!r}")
        for a in range(chain.chain.ndim):
            self.shape[a] = shape[a]
        self.folder, self.separator, self.empty, self.dtype = path_bytes(folder), ord(separator), empty, dtype

    cdef bint find(self, selection, sc_box *box, int64_t *position, bint *kept) except -1:
        """Set the box of integers, slices and an ellipsis in its chunk, the position of this chunk, and the axes of the result.

        Returns False for any other selection, and for one that is empty or leaves the chunk or the array.
        """
        cdef const sc_chain *chain = &self.chain.chain
        cdef Py_ssize_t start, stop, step, count
        cdef tuple parts = selection if type(selection) is tuple else (selection,)
        cdef int a, n_parts = <int>len(parts), ellipsis = n_parts, n_filled, overflow = 0
        for a in range(n_parts):
            if parts[a] is Ellipsis:
                if ellipsis < n_parts:
                    return False
                ellipsis = a
        n_filled = chain.ndim - n_parts + (ellipsis < n_parts)  # axes of the ellipsis, or after the last part
        if n_filled < 0:
            return False
        for a in range(chain.ndim):
            if ellipsis <= a < ellipsis + n_filled:
                part = EVERYTHING
            else:
                part = parts[a] if a < ellipsis else parts[a - n_filled + 1]
            kept[a] = type(part) is slice
            if kept[a]:
                PySlice_Unpack(part, &start, &stop, &step)
                count = PySlice_AdjustIndices(<Py_ssize_t>self.shape[a], &start, &stop, step)
                if step < 1 or count < 1:
                    return False
            elif type(part) is int:
                start = <Py_ssize_t>PyLong_AsLongLongAndOverflow(part, &overflow)
                if start < 0:
                    start += <Py_ssize_t>self.shape[a]
                if overflow or not 0 <= start < self.shape[a]:
                    return False
                count = step = 1
            else:
                return False
            position[a] = start // <int64_t>chain.shape[a]
            start -= <Py_ssize_t>position[a] * <Py_ssize_t>chain.shape[a]
            if count > 1 and (<Py_ssize_t>chain.shape[a] - 1 - start) // step < count - 1:
                return False
            box.start[a] = <uint64_t>start
            box.count[a] = <uint64_t>count
            box.step[a] = <uint64_t>step if count > 1 else 1
        return True

    cdef bytes key(self, const int64_t *position):
        """Return the name of the file of a chunk, within the folder."""
        cdef char key[1024]  # 32 numbers of at most 19 digits
        cdef size_t n = 0
        cdef int a
        for a in range(self.chain.chain.ndim):
            n += <size_t>snprintf(&key[n], sizeof(key) - n, b"%c%lld", self.separator, <long long>position[a])
        return PyBytes_FromStringAndSize(&key[1], <Py_ssize_t>n - 1)

    def locate(self, selection):
        """Return where the elements of integers, slices and an ellipsis are; None unless they are in one chunk.

        Returns the name of the file within the folder, the axes of the array in the result (-1 for an integer), the shape of
        the result, and first element, number of elements and step by axis of the chunk.
        """
        cdef int ndim = self.chain.chain.ndim
        cdef int64_t position[32]
        cdef bint kept[32]
        cdef sc_box box
        cdef int a, axis = 0
        if not self.find(selection, &box, position, kept):
            return None
        axes, shape = [], []
        for a in range(ndim):
            axes.append(axis if kept[a] else -1)
            if kept[a]:
                axis += 1
                shape.append(box.count[a])
        return (
            self.key(position).decode(), tuple(axes), tuple(shape), tuple([box.start[a] for a in range(ndim)]),
            tuple([box.count[a] for a in range(ndim)]), tuple([box.step[a] for a in range(ndim)]),
        )

    def get(self, selection):
        """Return the elements of integers, slices and an ellipsis; None if nothing has been read."""
        cdef const sc_chain *chain = &self.chain.chain
        cdef sc_read_item item
        cdef int64_t position[32]
        cdef bint kept[32]
        cdef int64_t strides[32]
        cdef bytes path
        cdef View view
        cdef int a, axis = 0
        memset(&item, 0, sizeof(item))
        item.chain = chain
        if not self.find(selection, &item.box, position, kept):
            return None
        path = self.folder + self.key(position)
        item.source.path = PyBytes_AsString(path)
        if not self.is_small(&item):
            return None
        shape = tuple([item.box.count[a] for a in range(chain.ndim) if kept[a]])
        out = self.empty(shape, self.dtype)
        view = View(out, PyBUF_WRITABLE | PyBUF_STRIDES)
        if view.view.ndim != len(shape) or <size_t>view.view.itemsize != chain.itemsize:
            raise ValueError(f"expected a new array of rank {len(shape)} with elements of {chain.itemsize} bytes, got rank "
                             f"{view.view.ndim} and elements of {view.view.itemsize} bytes")
        for a in range(chain.ndim):
            strides[a] = 0
            if not kept[a]:
                continue
            if <uint64_t>view.view.shape[axis] != item.box.count[a]:
                raise ValueError(f"axis {axis}: expected {item.box.count[a]} elements, got {view.view.shape[axis]}")
            strides[a] = view.view.strides[axis]
            axis += 1
        item.dst = view.data()
        self.run(&item, strides)
        return out


cdef class ChunkSlices:
    """A copier of slices that cover exactly one inner chunk, from an array to separate memory."""

    cdef Chain chain

    def __init__(self, Chain chain):
        if not chain.is_shard:
            raise ValueError("expected the chain of a shard, got one without inner chunks")
        self.chain = chain

    def take(self, chunk_selection, array_selection, array, place):
        """Copy the elements that slices and integers select of an array to the memory of the inner chunk; return True.

        place: callable from the position of the inner chunk in the index to its array, with the axes of the shard.
        Returns False and copies nothing if the selection is not exactly one inner chunk.
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
            raise ValueError(f"expected an array of rank {chain.ndim} with elements of {chain.itemsize} bytes, got rank "
                             f"{to.view.ndim} and elements of {to.view.itemsize} bytes")
        for a in range(chain.ndim):
            if <uint64_t>to.view.shape[a] != box.count[a]:
                raise ValueError(f"axis {a}: expected {box.count[a]} elements, got {to.view.shape[a]}")
            to_strides[a] = to.view.strides[a]
        with nogil:
            sc_copy_prepare(&copy, chain.ndim, box.count, to_strides, from_strides, chain.itemsize, NULL)
            sc_copy_run(&copy, to.data(), source.data() + offset)
        return True
