# present.pxi - the set of inner chunks that exist in a shard, and their keys
# SPDX-License-Identifier: MIT

cdef enum:
    BLOCK_KEYS = 512  # made at a time by an iterator


cdef class Positions:
    """An immutable set of positions in a grid, among [first, end) (csrc/kernels/sc_present.h).

    bits: eight bytes for each 64 positions; the lowest bit of the first byte is the first position.
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
                raise ValueError(f"expected a grid with extents from 1 to 2^32 - 1, got {grid_shape}")
            n_positions *= extent
        if not first <= end <= n_positions:
            raise ValueError(f"expected 0 <= first <= end <= {n_positions}, got first {first} and end {end}")
        if <uint64_t>len(bits) != 8 * sc_present_nwords(first, end):
            raise ValueError(f"expected {8 * sc_present_nwords(first, end)} bytes for positions {first} to {end}, got "
                             f"{len(bits)}")
        self.grid_shape, self.bits = grid_shape, bits
        self.before = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(8 * sc_present_nblocks(first, end)))
        self.set.first, self.set.end = first, end
        self.set.bits = <const uint8_t *>PyBytes_AsString(bits)
        if not sc_present_count(&self.set, <uint64_t *>PyBytes_AsString(self.before)):
            raise ValueError(f"expected only positions less than {end}, got bits of later ones")

    def __reduce__(self):
        return Positions, (self.grid_shape, self.set.first, self.set.end, self.bits)

    def __len__(self):
        return <Py_ssize_t>self.set.n

    @property
    def first(self):
        """Lower bound of the members."""
        return self.set.first

    @property
    def end(self):
        """Upper bound of the members, exclusive."""
        return self.set.end

    def position(self, uint64_t rank):
        """Return the member of this rank: `rank` members come before it."""
        if rank >= self.set.n:
            raise IndexError(f"expected a rank less than {self.set.n}, got {rank}")
        return sc_present_position(&self.set, rank)

    def find(self, bytes key not None):
        """Return the rank of the member with this key; None if the key is invalid or not of a member."""
        cdef uint64_t rank
        if len(key) != 4 * self.set.ndim:
            return None
        return rank if sc_present_find(&self.set, <const uint8_t *>PyBytes_AsString(key), &rank) else None

    def key(self, size_t skip, uint64_t rank):
        """Return the key of the member of this rank, without its first `skip` bytes."""
        cdef bytes key
        if rank >= self.set.n or skip > 4 * <size_t>self.set.ndim:
            raise IndexError(f"expected a rank less than {self.set.n} and skip at most {4 * self.set.ndim}, got rank {rank} "
                             f"and skip {skip}")
        key = PyBytes_FromStringAndSize(NULL, 4 * self.set.ndim - <Py_ssize_t>skip)
        sc_present_keys(&self.set, rank, 1, 1, skip, <uint8_t *>PyBytes_AsString(key))
        return key

    cdef int check_run(self, size_t skip, object first, object n, object step) except -1:
        """Raise unless the set has n members at these ranks and a key has `skip` bytes."""
        if skip > 4 * <size_t>self.set.ndim:
            raise ValueError(f"expected skip at most {4 * self.set.ndim}, the bytes of a key, got {skip}")
        if n < 0 or (n and not (0 <= first < self.set.n and 0 <= first + (n - 1) * step < self.set.n)) or not step:
            raise IndexError(f"expected ranks within {self.set.n} members, got {n} ranks from {first} with step {step}")
        return 0

    def packed(self, size_t skip, first, n, step):
        """Return the concatenated keys, without their first `skip` bytes, of the n members of ranks first, first + step, ..."""
        cdef bytes keys
        self.check_run(skip, first, n, step)
        keys = PyBytes_FromStringAndSize(NULL, n * (4 * self.set.ndim - <Py_ssize_t>skip))
        if n:
            sc_present_keys(&self.set, first, step if n > 1 else 1, n, skip, <uint8_t *>PyBytes_AsString(keys))
        return keys

    def keys(self, size_t skip, first, n, step):
        """Iterate over the keys that `packed` returns."""
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
    """An iterator over keys; it keeps a block of keys as raw bytes and makes each bytes object on demand."""

    cdef Positions positions
    cdef size_t skip, width
    cdef uint64_t rank, left  # rank of the first member that is not in the block, and number of such members
    cdef int64_t step
    cdef uint8_t *block
    cdef const uint8_t *next  # next key in the block; n_made keys start here
    cdef size_t n_made

    def __dealloc__(self):
        PyMem_Free(self.block)

    def __iter__(self):
        return self

    @cython.critical_section
    def __length_hint__(self):
        return self.left + self.n_made

    @cython.critical_section
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
        raise ValueError(f"expected first <= end <= {chain.chain.n_chunks}, got first {first} and end {end}")
    bits = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(8 * sc_present_nwords(first, end)))
    to = <uint8_t *>PyBytes_AsString(bits)
    with nogil:
        sc_present_mark(entries, first, end, to)
    return Positions(chain.grid_shape, first, end, bits)


def index_positions(Chain chain, entries, uint64_t first, uint64_t end):
    """Return `Positions` as `OpenShard.positions` does, for an index in memory: n_chunks pairs."""
    cdef View view = View(entries)
    return marked(chain, <const sc_entry *>view.words(2 * chain.chain.n_chunks), first, end)
