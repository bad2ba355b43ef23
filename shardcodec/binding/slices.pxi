# slices.pxi - basic selections, and the fast path for one box of one object: small reads, and small buffered writes
# SPDX-License-Identifier: MIT

EVERYTHING = slice(None)


cdef bint axis_box(object index, Py_ssize_t extent, int a, sc_box *box) except -1:
    """Set axis `a` of a box; return False for what `parse_selection` leaves to its twin in Python."""
    cdef Py_ssize_t start, stop, step, count
    cdef int overflow = 0
    if type(index) is slice:
        PySlice_Unpack(index, &start, &stop, &step)
        count = PySlice_AdjustIndices(extent, &start, &stop, step)
        if step < 1 or count < 1:
            return False
    elif type(index) is int:
        start = <Py_ssize_t>PyLong_AsLongLongAndOverflow(index, &overflow)
        if start < 0:
            start += extent
        if overflow or not 0 <= start < extent:
            return False
        count = step = 1
    else:
        return False
    box.start[a] = <uint64_t>start
    box.count[a] = <uint64_t>count
    box.step[a] = step if count > 1 else 1
    return True


cdef bint selected_box(object selection, int ndim, const uint64_t *shape, sc_box *box, bint *kept) except -1:
    """Set the box of a basic selection, and which axes the result has; False as from `parse_selection`."""
    cdef tuple indices = selection if type(selection) is tuple else (selection,)
    cdef int a, n = <int>len(indices), ellipsis = n, n_filled
    for a in range(n):
        if indices[a] is Ellipsis:
            if ellipsis < n:
                return False
            ellipsis = a
    n_filled = ndim - n + (ellipsis < n)  # axes of the ellipsis, or after the last index
    if n_filled < 0:
        return False
    for a in range(ndim):
        if ellipsis <= a < ellipsis + n_filled:
            index = EVERYTHING
        else:
            index = indices[a] if a < ellipsis else indices[a - n_filled + 1]
        kept[a] = type(index) is slice
        if not axis_box(index, <Py_ssize_t>shape[a], a, box):
            return False
    return True


cdef bint within_object(const sc_chain *chain, sc_box *box, int64_t *position) except -1:
    """Make a box of an array one of the object that has it, and set the position of the object; False if several have it."""
    cdef int a
    for a in range(chain.ndim):
        position[a] = <int64_t>(box.start[a] // chain.shape[a])
        box.start[a] -= <uint64_t>position[a] * chain.shape[a]
        if (chain.shape[a] - 1 - box.start[a]) // <uint64_t>box.step[a] < box.count[a] - 1:
            return False
    return True


cdef tuple selected_numbers(const sc_box *box, int ndim, const bint *kept):
    cdef int a
    start, count, step, axes, remaining = [], [], [], [], []
    for a in range(ndim):
        start.append(box.start[a])
        count.append(box.count[a])
        step.append(box.step[a])
        axes.append(len(remaining) if kept[a] else -1)
        if kept[a]:
            remaining.append(box.count[a])
    return tuple(start), tuple(count), tuple(step), tuple(axes), tuple(remaining)


def parse_selection(selection, shape):
    """Parse a basic selection, as `access.selection.parse_selection` does; return None for what is left to that function.

    That is an invalid selection, one without elements, and an integer of another type than int.

    Returns start, count and step by axis of the array; the axis of the result for each of them (-1 for an integer); and the
    shape of the result.
    """
    cdef uint64_t extents[32]
    cdef bint kept[32]
    cdef sc_box box
    cdef int ndim = read_rank(shape)
    read_numbers(shape, ndim, extents)
    if not selected_box(selection, ndim, extents, &box, kept):
        return None
    return selected_numbers(&box, ndim, kept)


def locate_selection(Chain chain, selection, shape):
    """Parse a basic selection within one object of an array; None also if it is in several.

    Returns the grid position of the object, and the numbers of `parse_selection` with the start in this object.
    """
    cdef uint64_t extents[32]
    cdef int64_t position[32]
    cdef bint kept[32]
    cdef sc_box box
    cdef int a, ndim = chain.chain.ndim
    read_numbers(shape, ndim, extents)
    if not selected_box(selection, ndim, extents, &box, kept) or not within_object(&chain.chain, &box, position):
        return None
    return tuple([position[a] for a in range(ndim)]), selected_numbers(&box, ndim, kept)


cdef bint read_slices(const sc_chain *chain, tuple chunk_selection, tuple array_selection, const Py_buffer *array,
                      sc_box *box, Py_ssize_t *offset, int64_t *strides) except -1:
    """Set a box of the chunk and its place in an array: the offset of its first element, and strides by axis of the chunk.

    Returns False if the selections are not slices and integers inside the chunk; the C code relies on these checks.
    """
    cdef Py_ssize_t first, end, by
    cdef int a, axis = 0
    if len(chunk_selection) != chain.ndim or <size_t>array.itemsize != chain.itemsize:
        return False
    offset[0] = 0
    for a in range(chain.ndim):
        index = chunk_selection[a]
        if not axis_box(index, <Py_ssize_t>chain.shape[a], a, box):
            return False
        strides[a] = 0
        if type(index) is slice:
            if axis >= array.ndim or axis >= len(array_selection) or type(array_selection[axis]) is not slice:
                return False
            PySlice_Unpack(array_selection[axis], &first, &end, &by)
            if by != 1 or first < 0 or end > array.shape[axis] or end - first != <Py_ssize_t>box.count[a]:
                return False
            offset[0] += first * array.strides[axis]
            strides[a] = array.strides[axis]
            axis += 1
    return axis == array.ndim


cdef class SliceReader:
    """A reader for small reads of files with one chain; its constructor prepares the plan once.

    max_nbytes: larger reads, in decoded bytes, and selections other than slices and integers are left to `read`.
    """

    cdef Chain chain
    cdef Cache cache
    cdef sc_read_plan fixed
    cdef uint64_t max_nbytes

    def __init__(self, Chain chain, *, uint64_t max_nbytes, uint64_t max_gap_nbytes=65536, bint allow_in_index=False,
                 Cache cache=None, bint immutable=False, unsigned io_depth=0, io_latency=None, unsigned n_threads=1,
                 uint64_t group_nbytes=262144):
        chain.refuse_opaque()
        read_settings(&self.fixed, n_threads, max_gap_nbytes, group_nbytes, allow_in_index, cache, immutable, io_depth, io_latency,
                      SC_IO_MAX_NBYTES)
        self.fixed.n_items = 1
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
        """Return True for a small read; an index counts, unless it is cached, and an inner chunk, unless it is.

        If the file has changed since, the read fetches and decodes them all the same.
        """
        if sc_touched_nbytes(item.chain, &item.box) > self.max_nbytes:
            return self.cache is not None and sc_box_nbytes(item.chain, &item.box) <= self.max_nbytes and \
                sc_cache_has_chunk(self.cache.cache, item.source.path, item.chain, &item.box)
        if not self.chain.is_shard or self.chain.chain.index.nbytes <= self.max_nbytes:
            return True
        return self.cache is not None and sc_cache_has(self.cache.cache, item.source.path, item.chain)

    cdef int run(self, sc_read_item *item, const int64_t *strides) except -1:
        cdef sc_read_plan plan = self.fixed
        cdef Cancel cancel = entered(None)
        cdef sc_where where
        cdef sc_status status
        plan.items = item
        plan.cancel = &cancel.cancel
        memcpy(plan.dst_strides, strides, sizeof(plan.dst_strides))
        with nogil:
            status = sc_read(&plan, &where)
        cancel.raise_caught()
        if status != SC_OK:
            if not item.source.is_on_disk:
                raise_status(status, &where, [item.source.path])
            item.missing = True  # nearly always the folder fails, or bytes in it are torn
        return 0


cdef class ArraySlices(SliceReader):
    """A `SliceReader` for an array whose chunks are such files: a basic selection within one chunk.

    In Python, dividing positions by the chunk shape and naming the file would cost as much as the read.

    lead: path of a file up to the first number of its grid position. between: the character between two numbers.
    on_disk: instead of both, a callable from a grid position to the path of the file in the cache on a local disk; None if that may
    not be read. Nothing is read if the file lacks something.
    empty: a callable that returns a new array of a shape and dtype, such as numpy.empty.
    """

    cdef uint64_t shape[32]
    cdef bytes lead
    cdef char between
    cdef object empty, dtype, on_disk

    def __init__(self, Chain chain, *, shape, str lead="", str between="/", on_disk=None, empty, dtype, **how):
        super().__init__(chain, **how)
        if chain.chain.ndim == 0:
            raise ValueError("expected a chain with at least one axis, got rank 0")
        read_numbers(shape, chain.chain.ndim, self.shape)
        self.lead, self.between, self.empty, self.dtype = path_bytes(lead), ord(between), empty, dtype
        self.on_disk = on_disk

    cdef bytes path(self, const int64_t *position):
        """Return the path of the file of a chunk; None if there is none that may be read."""
        cdef char numbers[1024]  # 32 numbers of at most 19 digits
        cdef size_t n = 0
        cdef int a
        if self.on_disk is not None:
            found = self.on_disk(tuple([position[a] for a in range(self.chain.chain.ndim)]))
            return None if found is None else path_bytes(found)
        for a in range(self.chain.chain.ndim):
            n += <size_t>snprintf(&numbers[n], sizeof(numbers) - n, b"%c%lld", self.between, <long long>position[a])
        return self.lead + PyBytes_FromStringAndSize(&numbers[1], <Py_ssize_t>n - 1)

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
        if not selected_box(selection, chain.ndim, self.shape, &item.box, kept):
            return None
        if not within_object(chain, &item.box, position):
            return None
        path = self.path(position)
        if path is None:
            return None
        item.source.path, item.source.is_on_disk = PyBytes_AsString(path), self.on_disk is not None
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
        return None if item.source.is_on_disk and item.missing else out


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
