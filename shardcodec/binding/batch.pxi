# batch.pxi - common to reading and writing: the items of a plan, its selections, its counters
# SPDX-License-Identifier: MIT

cdef class Batch:
    """The array that a plan fills or reads, and strong references to the objects behind the plan's pointers."""

    cdef View array
    cdef list keep
    cdef list paths
    cdef dict kept # by number of the item: the old object's memory that its new object reuses
    cdef int ndim
    cdef int axes[32]

    def __cinit__(self, array, int flags, axes):
        cdef int a
        self.array = View(array, flags | PyBUF_STRIDES)
        self.keep = []
        self.paths = []
        self.kept = {}
        self.ndim = read_rank(axes)
        for a in range(self.ndim):
            self.axes[a] = axes[a]
            if not -1 <= self.axes[a] < self.array.view.ndim:
                raise ValueError(f"expected an axis of an array of rank {self.array.view.ndim}, or -1, got {axes[a]}")

    cdef int array_strides(self, int64_t *strides) except -1:
        cdef int a
        for a in range(self.ndim):
            strides[a] = self.array.view.strides[self.axes[a]] if self.axes[a] >= 0 else 0
        return 0

    cdef int read_source(self, object source, sc_source *out) except -1:
        """Read the source of an item.

        str: the path of a file; a tuple of one: that of a file of the cache on a local disk; int: a file descriptor; None: no object; Fetched: a range of a shard; otherwise a
        buffer with the bytes of the object.
        """
        cdef View view
        cdef Fetched part
        memset(out, 0, sizeof(sc_source))
        if source is None:
            self.paths.append(b"")
        elif isinstance(source, Fetched):
            part = source
            self.keep.append(part)
            self.paths.append(b"")
            out[0] = part.source
        elif isinstance(source, int):
            self.paths.append(source)
            out.is_open, out.fd = True, source
        elif isinstance(source, (str, tuple)):
            out.is_on_disk = isinstance(source, tuple)
            path = path_bytes(source[0] if out.is_on_disk else source)
            self.paths.append(path)
            out.path = path_chars(path)
        else:
            view = View(source)
            self.keep.append(view)
            self.paths.append(b"")
            out.data, out.nbytes = view.data(), view.nbytes()
            if out.data == NULL:
                out.data = <const uint8_t *>b""
        return 0

    cdef const char *read_folder(self, object folder) except? NULL:
        if folder is None:
            return NULL
        self.keep.append(encoded := path_bytes(folder))
        return path_chars(encoded)

    cdef int read_box(self, const sc_chain *chain, object start, object count, object step, sc_box *box) except -1:
        """Read a box and check that it lies inside the chunk; the C code relies on this check."""
        cdef uint64_t last
        cdef int a
        if chain.ndim != self.ndim:
            raise ValueError(f"expected a chain of the rank of the batch, {self.ndim}, got rank {chain.ndim}")
        read_numbers(start, self.ndim, box.start)
        read_numbers(count, self.ndim, box.count)
        for a in range(self.ndim):
            box.step[a] = 1 if step is None else step[a]
            if box.step[a] < 1 or box.count[a] < 1 or box.start[a] >= chain.shape[a]:
                raise ValueError(f"axis {a}: expected a box within {chain.shape[a]} elements, got start {box.start[a]}, "
                                 f"count {box.count[a]}, step {box.step[a]}")
            last = (chain.shape[a] - 1 - box.start[a]) // <uint64_t>box.step[a]
            if box.count[a] - 1 > last:
                raise ValueError(f"axis {a}: expected a box within {chain.shape[a]} elements, got start {box.start[a]}, "
                                 f"count {box.count[a]}, step {box.step[a]}")
        return 0

    cdef uint8_t *first_element(self, const sc_box *box, object at, bint broadcast, size_t itemsize) except NULL:
        """Return the address of the box's first element in the array; raise unless the array contains the whole box."""
        cdef Py_buffer *view = &self.array.view
        cdef uint8_t *p = <uint8_t *>view.buf
        cdef uint64_t position
        cdef int a
        if <size_t>view.itemsize != itemsize:
            raise ValueError(f"array: expected elements of {itemsize} bytes, as the chunks have, got {view.itemsize}")
        for a in range(self.ndim):
            if self.axes[a] < 0:
                if box.count[a] != 1 and not broadcast:
                    raise ValueError(f"axis {a} of the box is not in the array: expected 1 element, got {box.count[a]}")
                continue
            position = at[a]
            if position > <uint64_t>view.shape[self.axes[a]] or \
                    box.count[a] > <uint64_t>view.shape[self.axes[a]] - position:
                raise ValueError(f"axis {a}: expected at most {view.shape[self.axes[a]]} elements of the array, got "
                                 f"elements {position} to {position + box.count[a]}")
            p += <int64_t>position * view.strides[self.axes[a]]
        return p


    cdef int read_selection(self, sc_chain *chain, object parts, bint broadcast, const int64_t *strides, sc_box *box,
                        const sc_selection **selection, uint8_t **first) except -1:
        """Read the selection of an object and its place in the array: a box, or one of the kinds of `Selection`.

        With `broadcast`, the array is repeated along axes that it lacks.
        """
        cdef Selection other
        if len(parts) == 4:
            start, count, step, at = parts
            self.read_box(chain, start, count, step, box)
            selection[0] = NULL
            first[0] = self.first_element(box, at, broadcast, chain.itemsize)
            return 0
        if chain.ndim != self.ndim:
            raise ValueError(f"expected a chain of the rank of the batch, {self.ndim}, got rank {chain.ndim}")
        if <size_t>self.array.view.itemsize != chain.itemsize:
            raise ValueError(f"array: expected elements of {chain.itemsize} bytes, as the chunks have, got "
                             f"{self.array.view.itemsize}")
        other = Selection(len(parts))
        other.selection.strides = strides
        first[0] = <uint8_t *>self.array.view.buf
        if len(parts) == 6:
            first[0] += other.read_lists(self, chain, parts, broadcast)
        elif len(parts) == 3:
            first[0] += other.read_points(self, chain, parts, broadcast)
        else:
            other.read_boxes(self, chain, parts, broadcast)
        self.keep.append(other)
        selection[0] = &other.selection
        return 0


cdef class Selection:
    """A selection of more than one box (csrc/chain/sc_selection.h); the C code relies on the checks of its numbers here.

    The number of fields tells the kind. Positions are buffers of unsigned 64-bit numbers; the caller must not change
    them before the call returns:

    6: lists (start, count, step or None, at, froms, tos): a box, except that an axis with a list has count[a] positions
       froms[a] in ascending order. tos[a] are their places in the array, relative to at[a]; None: contiguous places.
    3: points (at, froms, to): positions along each axis, and places in an array of rank 1, relative to `at`.
    1: boxes (rows,): in each row start, count and step by axis of the object, then the place by axis of the array.
    """

    cdef sc_selection selection
    cdef sc_box box
    cdef list keep

    cdef int64_t read_lists(self, Batch batch, sc_chain *chain, object lists, bint broadcast) except? -1:
        cdef Py_buffer *array = &batch.array.view
        cdef int64_t offset = 0
        cdef uint64_t limit, place
        cdef int a, axis
        start, count, step, at, froms, tos = lists
        if len(froms) != batch.ndim or len(tos) != batch.ndim:
            raise ValueError(f"expected {batch.ndim} lists of positions and of places, got {len(froms)} and {len(tos)}")
        # a box along the axes without a list, and one element along the other axes
        batch.read_box(chain, [0 if froms[a] is not None else start[a] for a in range(batch.ndim)],
                       [1 if froms[a] is not None else count[a] for a in range(batch.ndim)], step, &self.box)
        self.selection.kind = SC_SELECTION_LISTS
        self.selection.box = &self.box
        for a in range(batch.ndim):
            if froms[a] is not None:
                self.box.count[a] = count[a]
                self.box.step[a] = 1
                self.selection.places_from[a] = self.positions(froms[a], self.box.count[a], chain.shape[a], True, a)
            axis = batch.axes[a]
            if axis < 0:
                if self.box.count[a] != 1 and not broadcast:
                    raise ValueError(f"axis {a} of the lists is not in the array: expected 1 element, got "
                                     f"{self.box.count[a]}")
                continue
            place = at[a]
            limit = <uint64_t>array.shape[axis] - min(place, <uint64_t>array.shape[axis])
            if tos[a] is not None and froms[a] is None:
                raise ValueError(f"axis {a}: expected a list of positions with the list of places, got none")
            if tos[a] is not None:
                self.selection.to[a] = self.positions(tos[a], self.box.count[a], limit, False, a)
            elif self.box.count[a] > limit:
                raise ValueError(f"axis {a}: expected at most {array.shape[axis]} elements of the array, got elements "
                                 f"{place} to {place + self.box.count[a]}")
            offset += <int64_t>place * array.strides[axis]
        return offset

    cdef int64_t read_points(self, Batch batch, sc_chain *chain, object points, bint broadcast) except? -1:
        cdef Py_buffer *array = &batch.array.view
        cdef View view
        cdef uint64_t limit, place
        cdef int a
        place, froms, to = points
        if batch.ndim == 0 or len(froms) != batch.ndim:
            raise ValueError(f"expected points of the objects' rank {batch.ndim}, at least 1, got rank {len(froms)}")
        view = View(froms[0])
        self.selection.kind = SC_SELECTION_POINTS
        self.selection.n = view.nbytes() // 8
        for a in range(batch.ndim):
            self.selection.places_from[a] = self.positions(froms[a], self.selection.n, chain.shape[a], False, a)
        if array.ndim == 0 and broadcast:
            return 0
        if array.ndim != 1:
            raise ValueError(f"points: expected an array of rank 1, got rank {array.ndim}")
        limit = <uint64_t>array.shape[0] - min(place, <uint64_t>array.shape[0])
        if to is not None:
            self.selection.to[0] = self.positions(to, self.selection.n, limit, False, 0)
        elif self.selection.n > limit:
            raise ValueError(f"expected at most {array.shape[0]} elements of the array, got elements {place} to "
                             f"{place + self.selection.n}")
        self.selection.array_ndim = 1
        self.selection.array_strides[0] = array.strides[0]
        return <int64_t>place * array.strides[0]

    cdef int read_boxes(self, Batch batch, sc_chain *chain, object boxes, bint broadcast) except -1:
        cdef Py_buffer *array = &batch.array.view
        cdef View view
        cdef uint64_t shape[32]
        cdef size_t width, bad
        cdef int b
        rows, = boxes
        view = View(rows)
        self.selection.kind = SC_SELECTION_BOXES
        self.selection.array_ndim = array.ndim
        for b in range(array.ndim):
            shape[b] = <uint64_t>array.shape[b]
            self.selection.array_strides[b] = array.strides[b]
        width = 3 * <size_t>batch.ndim + <size_t>array.ndim
        if width == 0 or view.nbytes() == 0 or view.nbytes() % (8 * width):
            raise ValueError(f"expected rows of {width} numbers of 8 bytes, got {view.nbytes()} bytes")
        self.selection.n = view.nbytes() // (8 * width)
        self.selection.rows = view.words(self.selection.n * width)
        self.keep.append(view)
        with nogil:
            bad = sc_rows_check(&self.selection, chain, batch.axes, shape, broadcast)
        if bad < self.selection.n:
            raise ValueError(f"box {bad} is not inside the object of shape {[chain.shape[b] for b in range(chain.ndim)]} "
                             f"or the array of shape {[array.shape[b] for b in range(array.ndim)]}")
        return 0

    cdef const uint64_t *positions(self, object numbers, uint64_t n, uint64_t limit, bint ascend, int axis) except NULL:
        cdef View view = View(numbers)
        cdef const uint64_t *words = view.words(n)
        cdef uint64_t bad
        if n == 0:
            raise ValueError(f"axis {axis}: expected at least one position, got none")
        with nogil:
            bad = sc_positions_check(words, n, limit, ascend)
        if bad < n:
            raise ValueError(f"axis {axis}: expected positions less than {limit}{', in ascending order' if ascend else ''}"
                             f", got position {words[bad]} (number {bad})")
        self.keep.append(view)
        return words

    def __cinit__(self, int n_fields):
        if n_fields not in (1, 3, 6):
            raise ValueError(f"expected a selection of 1, 3, 4 or 6 fields, got {n_fields}")
        self.keep = []


cdef dict stats_dict(const sc_stats *stats):
    return {"opens": stats.opens, "reads": stats.reads, "deep_reads": stats.deep_reads, "bytes_read": stats.bytes_read,
            "bytes_used": stats.bytes_used, "chunks_decoded": stats.chunks_decoded,
            "chunks_filled": stats.chunks_filled, "chunks_encoded": stats.chunks_encoded,
            "bytes_written": stats.bytes_written, "index_hits": stats.index_hits,
            "index_misses": stats.index_misses, "file_hits": stats.file_hits, "chunk_hits": stats.chunk_hits,
            "chunk_misses": stats.chunk_misses, "chunk_evictions": stats.chunk_evictions, "disk_hits": stats.disk_hits,
            "disk_bytes_read": stats.disk_bytes_read}


def totals():
    """Return the counters of all plans of this process, plus the counts given to `totals_add`."""
    cdef sc_stats stats
    sc_totals_get(&stats)
    return stats_dict(&stats)


def totals_add(*, uint64_t reads=0, uint64_t bytes_read=0, uint64_t index_hits=0, uint64_t index_misses=0):
    """Count requests that the Python layer made through a store."""
    cdef sc_stats stats
    memset(&stats, 0, sizeof(stats))
    stats.reads, stats.bytes_read, stats.index_hits, stats.index_misses = reads, bytes_read, index_hits, index_misses
    sc_totals_add(&stats)


def totals_reset():
    """Set all counters to zero."""
    sc_totals_reset()
