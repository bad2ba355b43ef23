# index.pxi - the order of inner chunks and the index
# SPDX-License-Identifier: MIT

cdef sc_order order_of(str name) except *:
    if name == "morton":
        return SC_ORDER_MORTON
    if name == "lexicographic":
        return SC_ORDER_LEXICOGRAPHIC
    if name == "colexicographic":
        return SC_ORDER_COLEXICOGRAPHIC
    raise ValueError(f"order: expected 'morton', 'lexicographic' or 'colexicographic', got {name!r}")


def order(out, grid_shape, str name="morton", first=None, last=None):
    """Write the positions of (a box of) a grid in the given order to `out`; return their number."""
    cdef int ndim = read_rank(grid_shape), a
    cdef uint64_t grid[32]
    cdef uint64_t low[32]
    cdef uint64_t high[32]
    cdef sc_order_iter it
    cdef sc_where where
    cdef View view = View(out, PyBUF_WRITABLE)
    cdef uint64_t capacity = view.nbytes() // 8, n = 0, spare
    cdef uint64_t *positions = view.words(capacity)
    cdef size_t got
    read_numbers(grid_shape, ndim, grid)
    for a in range(ndim):
        low[a] = 0
        high[a] = grid[a] - 1
    if first is not None:
        read_numbers(first, ndim, low)
    if last is not None:
        read_numbers(last, ndim, high)
    for a in range(ndim):
        if not low[a] <= high[a] < grid[a]:
            raise ValueError(f"axis {a}: box from {low[a]} to {high[a]} is not inside the grid of {grid[a]} inner chunks")
    sc_where_clear(&where)
    raise_status(sc_order_begin(&it, order_of(name), ndim, grid, low, high), &where)
    with nogil:
        while n < capacity:
            got = sc_order_next(&it, positions + n, capacity - n)
            if got == 0:
                break
            n += got
        spare = 1 if n < capacity else sc_order_next(&it, &spare, 1)
    if n == capacity and spare:
        raise ValueError(f"out: expected room for all positions, got room for {capacity}")
    return n


cdef uint64_t count_pairs(View data) except? 0xFFFFFFFFFFFFFFFF:
    if data.nbytes() % 16:
        raise ValueError(f"expected (offset, nbytes) pairs of 16 bytes, got {data.nbytes()} bytes")
    return data.nbytes() // 16


def index_check(entries, uint64_t shard_nbytes, uint64_t index_offset, uint64_t index_nbytes, *,
                bint allow_in_index=False):
    """Raise ShardFormatError for the first invalid entry."""
    cdef View source = View(entries)
    cdef uint64_t n = count_pairs(source)
    cdef const sc_entry *pairs = <const sc_entry *>source.words(2 * n)
    cdef sc_index_extent extent
    cdef sc_where where
    cdef sc_status status
    extent.offset, extent.nbytes, extent.shard_nbytes = index_offset, index_nbytes, shard_nbytes
    sc_where_clear(&where)
    with nogil:
        status = sc_index_check(pairs, n, &extent, allow_in_index, &where)
    raise_status(status, &where)


cdef class Sorted:
    """The positions of the entries that have bytes, sorted by offset."""

    cdef View source
    cdef const sc_entry *entries
    cdef uint64_t *order
    cdef uint64_t n
    cdef size_t n_present

    def __cinit__(self, entries):
        self.source = View(entries)
        self.n = count_pairs(self.source)
        self.entries = <const sc_entry *>self.source.words(2 * self.n)
        self.order = <uint64_t *>malloc(2 * (self.n + 1) * 8)
        if self.order == NULL:
            raise MemoryError
        with nogil:
            sc_index_by_offset(self.entries, self.n, self.order, self.order + self.n, &self.n_present)

    def __dealloc__(self):
        free(self.order)


def index_sums(entries, dropped=None, left=None):
    """Return (n_stored, first, end, offset_bits, nbytes_bits, left_nbytes) of struct sc_index_sums.

    dropped: a byte for each entry; nonzero drops the entry. left: filled with the remaining entries; dropped entries
    become absent.
    """
    cdef View source = View(entries), flags, to
    cdef uint64_t n = count_pairs(source)
    cdef const sc_entry *pairs = <const sc_entry *>source.words(2 * n)
    cdef const uint8_t *gone = NULL
    cdef sc_entry *rest = NULL
    cdef sc_index_sums sums
    if dropped is not None:
        flags = View(dropped)
        if flags.nbytes() != n:
            raise ValueError(f"dropped: expected {n} flags, one per entry, got {flags.nbytes()}")
        gone = flags.data()
    if left is not None:
        to = View(left, PyBUF_WRITABLE)
        rest = <sc_entry *>to.words(2 * n)
    with nogil:
        sc_index_sum_up(pairs, n, gone, rest, &sums)
    return sums.n_stored, sums.first, sums.end, sums.offset_bits, sums.nbytes_bits, sums.left_nbytes


def index_pack(entries, runs, uint64_t first, uint64_t alignment=1):
    """Pack inner chunks, starting at `first`, each at a multiple of `alignment`.

    entries: updated in place; entries without bytes do not change. runs: room for three numbers per inner chunk that has
    bytes; filled with the offset, size and new offset of each run of bytes that moves. Returns (number of runs, end of the
    last inner chunk).
    """
    cdef Sorted s = Sorted(entries)
    cdef View pairs = View(entries, PyBUF_WRITABLE), to = View(runs, PyBUF_WRITABLE)
    cdef sc_entry *moved = <sc_entry *>pairs.words(2 * s.n)
    cdef sc_carry *carries = <sc_carry *>to.words(to.nbytes() // 8)
    cdef size_t n = 0
    cdef uint64_t end
    if not alignment or alignment & (alignment - 1):
        raise ValueError(f"alignment: expected a power of two, got {alignment}")
    if to.nbytes() // sizeof(sc_carry) < s.n_present:
        raise ValueError(f"runs: expected room for {s.n_present} runs, got room for {to.nbytes() // sizeof(sc_carry)}")
    with nogil:
        end = sc_index_pack(moved, s.order, s.n_present, first, alignment, carries, &n)
    return n, end


def index_overlaps(entries, *, size_t capacity=1024):
    """Return pairs of entries whose ranges share a byte, at most `capacity`, and the number of all such pairs."""
    cdef Sorted s = Sorted(entries)
    cdef pair *pairs = <pair *>malloc((capacity + 1) * sizeof(pair))
    cdef size_t found = 0, i
    if pairs == NULL:
        raise MemoryError
    try:
        with nogil:
            sc_index_overlaps(s.entries, s.order, s.n_present, pairs, capacity, &found)
        return [(pairs[i][0], pairs[i][1]) for i in range(min(found, capacity))], found
    finally:
        free(pairs)


def index_gaps(entries, uint64_t shard_nbytes, uint64_t index_offset, uint64_t index_nbytes, *,
               size_t capacity=1024):
    """Return unreferenced ranges (offset, nbytes), at most `capacity`, and the number of all such ranges."""
    cdef Sorted s = Sorted(entries)
    cdef sc_entry *gaps = <sc_entry *>malloc((capacity + 1) * sizeof(sc_entry))
    cdef sc_index_extent extent
    cdef size_t found = 0, i
    if gaps == NULL:
        raise MemoryError
    extent.offset, extent.nbytes, extent.shard_nbytes = index_offset, index_nbytes, shard_nbytes
    try:
        with nogil:
            sc_index_gaps(s.entries, s.order, s.n_present, &extent, gaps, capacity, &found)
        return [(gaps[i].offset, gaps[i].nbytes) for i in range(min(found, capacity))], found
    finally:
        free(gaps)
