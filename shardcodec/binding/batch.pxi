# batch.pxi - what reading and writing both need: the items of a plan, its boxes, its statistics
# SPDX-License-Identifier: MIT

cdef class Batch:
    """Python objects that a plan's pointers rely on, and the array that it fills or reads."""

    cdef View array
    cdef list keep
    cdef list paths
    cdef dict kept # by number of the item: what its new object keeps of the old one's memory
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
                raise ValueError(f"axis {axes[a]} of an array of rank {self.array.view.ndim}")

    cdef int array_strides(self, int64_t *strides) except -1:
        cdef int a
        for a in range(self.ndim):
            strides[a] = self.array.view.strides[self.axes[a]] if self.axes[a] >= 0 else 0
        return 0

    cdef int read_source(self, object source, sc_source *out) except -1:
        """str: a file; int: an open one; None: no object; Fetched: a range of a shard; else a buffer with the bytes."""
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
        elif isinstance(source, str):
            path = path_bytes(source)
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
        """A box inside the chunk: nothing below relies on the caller for that."""
        cdef uint64_t last
        cdef int a
        if chain.ndim != self.ndim:
            raise ValueError(f"chain of rank {chain.ndim} in a batch of rank {self.ndim}")
        read_numbers(start, self.ndim, box.start)
        read_numbers(count, self.ndim, box.count)
        for a in range(self.ndim):
            box.step[a] = 1 if step is None else step[a]
            if box.step[a] < 1 or box.count[a] < 1 or box.start[a] >= chain.shape[a]:
                raise ValueError(f"axis {a}: no box from {box.start[a]} of {box.count[a]} by {box.step[a]} "
                                 f"in {chain.shape[a]}")
            last = (chain.shape[a] - 1 - box.start[a]) // <uint64_t>box.step[a]
            if box.count[a] - 1 > last:
                raise ValueError(f"axis {a}: box from {box.start[a]} of {box.count[a]} by {box.step[a]} "
                                 f"leaves {chain.shape[a]}")
        return 0

    cdef uint8_t *first_element(self, const sc_box *box, object at, bint broadcast, size_t itemsize) except NULL:
        """Address of the box's first element in the array, all of whose elements lie inside it."""
        cdef Py_buffer *view = &self.array.view
        cdef uint8_t *p = <uint8_t *>view.buf
        cdef uint64_t position
        cdef int a
        if <size_t>view.itemsize != itemsize:
            raise ValueError(f"array has elements of {view.itemsize} bytes, the chunks of {itemsize}")
        for a in range(self.ndim):
            if self.axes[a] < 0:
                if box.count[a] != 1 and not broadcast:
                    raise ValueError(f"axis {a} of the box has {box.count[a]} elements, but is not in the array")
                continue
            position = at[a]
            if position > <uint64_t>view.shape[self.axes[a]] or \
                    box.count[a] > <uint64_t>view.shape[self.axes[a]] - position:
                raise ValueError(f"axis {a}: elements {position} to {position + box.count[a]} of an array with "
                                 f"{view.shape[self.axes[a]]}")
            p += <int64_t>position * view.strides[self.axes[a]]
        return p


    cdef int read_parts(self, sc_chain *chain, object parts, bint broadcast, const int64_t *strides, sc_box *box,
                        const sc_selection **selection, uint8_t **first) except -1:
        """What of an object, and where in the array that is: a `Box` or one of the kinds of `Pick`.

        With `broadcast` the array is repeated along axes that it lacks.
        """
        cdef Pick other
        if len(parts) == 4:
            start, count, step, at = parts
            self.read_box(chain, start, count, step, box)
            selection[0] = NULL
            first[0] = self.first_element(box, at, broadcast, chain.itemsize)
            return 0
        if chain.ndim != self.ndim:
            raise ValueError(f"chain of rank {chain.ndim} in a batch of rank {self.ndim}")
        if <size_t>self.array.view.itemsize != chain.itemsize:
            raise ValueError(f"array has elements of {self.array.view.itemsize} bytes, the chunks of {chain.itemsize}")
        other = Pick(len(parts))
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


cdef class Pick:
    """A selection that is more than one box (csrc/chain/sc_selection.h): nothing below relies on the caller for its numbers.

    Told apart by how many things they consist of; positions are buffers of unsigned 64-bit numbers, which nobody may
    change before the call is over:

    6: lists (start, count, step or None, at, froms, tos): as a box, but axes with a list have count[a] positions
       froms[a] in ascending order, and these places tos[a] in the array from at[a] on, None: one after the other.
    3: points (at, froms, to): positions along each axis, and places in an array of rank 1 from `at` on.
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
            raise ValueError(f"{len(froms)} and {len(tos)} lists for {batch.ndim} axes")
        # a box of the axes without a list, and of one element along the others
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
                    raise ValueError(f"axis {a} of the lists has {self.box.count[a]} elements, but is not in the array")
                continue
            place = at[a]
            limit = <uint64_t>array.shape[axis] - min(place, <uint64_t>array.shape[axis])
            if tos[a] is not None and froms[a] is None:
                raise ValueError(f"axis {a} has a list of places and none of positions")
            if tos[a] is not None:
                self.selection.to[a] = self.positions(tos[a], self.box.count[a], limit, False, a)
            elif self.box.count[a] > limit:
                raise ValueError(f"axis {a}: elements {place} to {place + self.box.count[a]} of an array with "
                                 f"{array.shape[axis]}")
            offset += <int64_t>place * array.strides[axis]
        return offset

    cdef int64_t read_points(self, Batch batch, sc_chain *chain, object points, bint broadcast) except? -1:
        cdef Py_buffer *array = &batch.array.view
        cdef View view
        cdef uint64_t limit, place
        cdef int a
        place, froms, to = points
        if batch.ndim == 0 or len(froms) != batch.ndim:
            raise ValueError(f"points of rank {len(froms)} in objects of rank {batch.ndim}")
        view = View(froms[0])
        self.selection.kind = SC_SELECTION_POINTS
        self.selection.n = view.nbytes() // 8
        for a in range(batch.ndim):
            self.selection.places_from[a] = self.positions(froms[a], self.selection.n, chain.shape[a], False, a)
        if array.ndim == 0 and broadcast:
            return 0
        if array.ndim != 1:
            raise ValueError(f"points go to an array of rank 1, not {array.ndim}")
        limit = <uint64_t>array.shape[0] - min(place, <uint64_t>array.shape[0])
        if to is not None:
            self.selection.to[0] = self.positions(to, self.selection.n, limit, False, 0)
        elif self.selection.n > limit:
            raise ValueError(f"elements {place} to {place + self.selection.n} of an array with {array.shape[0]}")
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
            raise ValueError(f"{view.nbytes()} bytes are no rows of {width} numbers")
        self.selection.n = view.nbytes() // (8 * width)
        self.selection.rows = view.words(self.selection.n * width)
        self.keep.append(view)
        with nogil:
            bad = sc_rows_check(&self.selection, chain, batch.axes, shape, broadcast)
        if bad < self.selection.n:
            raise ValueError(f"box {bad} leaves the object of shape {[chain.shape[b] for b in range(chain.ndim)]} "
                             f"or the array of shape {[array.shape[b] for b in range(array.ndim)]}")
        return 0

    cdef const uint64_t *positions(self, object numbers, uint64_t n, uint64_t limit, bint ascend, int axis) except NULL:
        cdef View view = View(numbers)
        cdef const uint64_t *words = view.words(n)
        cdef uint64_t bad
        if n == 0:
            raise ValueError(f"axis {axis}: no positions")
        with nogil:
            bad = sc_positions_check(words, n, limit, ascend)
        if bad < n:
            raise ValueError(f"axis {axis}: position {words[bad]} (number {bad}) is not below {limit}"
                             f"{' or not in ascending order' if ascend else ''}")
        self.keep.append(view)
        return words

    def __cinit__(self, int n_fields):
        if n_fields not in (1, 3, 6):
            raise ValueError(f"a selection of {n_fields} things")
        self.keep = []


cdef dict stats_dict(const sc_stats *stats):
    return {"opens": stats.opens, "reads": stats.reads, "bytes_read": stats.bytes_read,
            "bytes_used": stats.bytes_used, "chunks_decoded": stats.chunks_decoded,
            "chunks_filled": stats.chunks_filled, "chunks_encoded": stats.chunks_encoded,
            "bytes_written": stats.bytes_written, "index_hits": stats.index_hits,
            "index_misses": stats.index_misses, "file_hits": stats.file_hits}


def totals():
    """What all plans of this process have done, and what `totals_add` said of work done elsewhere."""
    cdef sc_stats stats
    sc_totals_get(&stats)
    return stats_dict(&stats)


def totals_add(*, uint64_t reads=0, uint64_t bytes_read=0, uint64_t index_hits=0, uint64_t index_misses=0):
    """Count requests that went through a store's own calls."""
    cdef sc_stats stats
    memset(&stats, 0, sizeof(stats))
    stats.reads, stats.bytes_read, stats.index_hits, stats.index_misses = reads, bytes_read, index_hits, index_misses
    sc_totals_add(&stats)


def totals_reset():
    """Begin to count anew."""
    sc_totals_reset()
