# present.pxi - which inner chunks of a shard exist, and their keys
# SPDX-License-Identifier: MIT

cdef enum:
    BLOCK_KEYS = 512  # made at a time by an iterator


cdef class Positions:
    """A set of positions in a grid, among [first, end) (csrc/kernels/sc_present.h); it never changes.

    bits: eight bytes for each 64 positions, the lowest bit of the first byte first.
    """

    cdef sc_present set
    cdef bytes before
    cdef readonly bytes bits
    cdef readonly tuple grid_shape

    def __cinit__(self, tuple grid_shape, uint64_t first, uint64_t end, bytes bits):
        cdef object n_positions = 1
        self.set.ndim = read_rank(grid_shape)
        read_numbers(grid_shape, self.set.ndim, self.set.grid)
        for extent in grid_shape:
            if not 1 <= extent < 1 << 32:
                raise ValueError(f"a grid of {grid_shape} has no keys")
            n_positions *= extent
        if not first <= end <= n_positions:
            raise ValueError(f"positions {first} to {end} of {n_positions}")
        if <uint64_t>len(bits) != 8 * sc_present_nwords(first, end):
            raise ValueError(f"{len(bits)} bytes are no bits of positions {first} to {end}")
        self.grid_shape, self.bits = grid_shape, bits
        self.before = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(8 * sc_present_nblocks(first, end)))
        self.set.first, self.set.end = first, end
        self.set.bits = <const uint8_t *>PyBytes_AsString(bits)
        if not sc_present_count(&self.set, <uint64_t *>PyBytes_AsString(self.before)):
            raise ValueError(f"there are bits of positions from {end} on")

    def __reduce__(self):
        return Positions, (self.grid_shape, self.set.first, self.set.end, self.bits)

    def __len__(self):
        return <Py_ssize_t>self.set.n

    @property
    def first(self):
        """No member is less."""
        return self.set.first

    @property
    def end(self):
        """All members are less."""
        return self.set.end

    def position(self, uint64_t rank):
        """The member that so many others come before."""
        if rank >= self.set.n:
            raise IndexError(f"{rank} of {self.set.n} positions")
        return sc_present_position(&self.set, rank)

    def find(self, bytes key not None):
        """How many members come before the one with this key; None: it is none, or it is no key."""
        cdef uint64_t rank
        if len(key) != 4 * self.set.ndim:
            return None
        return rank if sc_present_find(&self.set, <const uint8_t *>PyBytes_AsString(key), &rank) else None

    def key(self, size_t skip, uint64_t rank):
        """Key of the member that so many others come before, without its first `skip` bytes."""
        cdef bytes key
        if rank >= self.set.n or skip > 4 * <size_t>self.set.ndim:
            raise IndexError(f"{rank} of {self.set.n} positions, keys of {4 * self.set.ndim} bytes without {skip}")
        key = PyBytes_FromStringAndSize(NULL, 4 * self.set.ndim - <Py_ssize_t>skip)
        sc_present_keys(&self.set, rank, 1, 1, skip, <uint8_t *>PyBytes_AsString(key))
        return key

    cdef int check_run(self, size_t skip, object first, object n, object step) except -1:
        """Are there so many members at these distances, and so many bytes in a key?"""
        if skip > 4 * <size_t>self.set.ndim:
            raise ValueError(f"keys of {4 * self.set.ndim} bytes without {skip}")
        if n < 0 or (n and not (0 <= first < self.set.n and 0 <= first + (n - 1) * step < self.set.n)) or not step:
            raise IndexError(f"{n} of {self.set.n} positions, from {first} on by {step}")
        return 0

    def packed(self, size_t skip, first, n, step):
        """Keys of n members without their first `skip` bytes, one after the other: first, first + step, ... by rank."""
        cdef bytes keys
        self.check_run(skip, first, n, step)
        keys = PyBytes_FromStringAndSize(NULL, n * (4 * self.set.ndim - <Py_ssize_t>skip))
        if n:
            sc_present_keys(&self.set, first, step if n > 1 else 1, n, skip, <uint8_t *>PyBytes_AsString(keys))
        return keys

    def keys(self, size_t skip, first, n, step):
        """Iterate over the same keys."""
        cdef KeyIterator keys = KeyIterator.__new__(KeyIterator)
        self.check_run(skip, first, n, step)
        keys.positions, keys.skip, keys.width = self, skip, 4 * <size_t>self.set.ndim - skip
        keys.left = n
        if n:
            keys.rank, keys.step = first, step if n > 1 else 1
            keys.block = <uint8_t *>PyMem_Malloc(min(keys.left, <uint64_t>BLOCK_KEYS) * keys.width)
            if keys.block == NULL:
                raise MemoryError
        return keys


cdef class KeyIterator:
    """Keys of members, made when they are taken; what is kept is a block of them without their objects."""

    cdef Positions positions
    cdef size_t skip, width
    cdef uint64_t rank, left  # of the first that is not in the block, and how many are not
    cdef int64_t step
    cdef uint8_t *block
    cdef const uint8_t *next  # in the block, and how many from there on
    cdef size_t n_made

    def __dealloc__(self):
        PyMem_Free(self.block)

    def __iter__(self):
        return self

    def __length_hint__(self):
        return self.left + self.n_made

    def __next__(self):
        if not self.n_made:
            if not self.left:
                raise StopIteration
            self.fill()
        self.n_made -= 1
        self.next += self.width
        return PyBytes_FromStringAndSize(<const char *>self.next - self.width, <Py_ssize_t>self.width)

    cdef void fill(self) noexcept:
        cdef size_t n = min(self.left, <uint64_t>BLOCK_KEYS)
        sc_present_keys(&self.positions.set, self.rank, self.step, n, self.skip, self.block)
        self.next, self.n_made = self.block, n
        self.rank += <uint64_t>self.step * n
        self.left -= n


cdef Positions marked(Chain chain, const sc_entry *entries, uint64_t first, uint64_t end):
    cdef bytes bits
    cdef uint8_t *to
    if first > end or end > chain.chain.n_chunks:
        raise ValueError(f"positions {first} to {end} of {chain.chain.n_chunks}")
    bits = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(8 * sc_present_nwords(first, end)))
    to = <uint8_t *>PyBytes_AsString(bits)
    with nogil:
        sc_present_mark(entries, first, end, to)
    return Positions(chain.grid_shape, first, end, bits)


def index_positions(Chain chain, entries, uint64_t first, uint64_t end):
    """As `OpenShard.positions`, for an index that is in memory: n_chunks pairs."""
    cdef View view = View(entries)
    return marked(chain, <const sc_entry *>view.words(2 * chain.chain.n_chunks), first, end)
