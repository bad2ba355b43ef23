# present.pxi - which inner chunks exist in a shard, and their keys
# SPDX-License-Identifier: MIT


def present_keys(tuple grid_shape, flags, uint64_t first, size_t skip):
    """Return the keys of flagged positions in ascending order, each without its first `skip` bytes (csrc/kernels/sc_present.h).

    flags: one byte for each position from `first` on; 0 leaves the position out.
    """
    cdef View view = View(flags)
    cdef const uint8_t *marks = <const uint8_t *>view.data()
    cdef uint64_t n = view.nbytes(), at = 0, n_keys = 0
    cdef sc_place place
    cdef object n_positions = 1
    cdef Py_ssize_t width
    cdef list keys
    memset(&place, 0, sizeof(place))
    place.ndim = read_rank(grid_shape)
    read_numbers(grid_shape, place.ndim, place.grid)
    for extent in grid_shape:
        if not 1 <= extent < 1 << 32:
            raise ValueError(f"expected a grid with extents from 1 to 2^32 - 1, got {grid_shape}")
        n_positions *= extent
    if first > n_positions or n > n_positions - first:
        raise ValueError(f"expected flags of at most {n_positions} positions, got those from {first} to {<object>first + n}")
    if skip > 4 * <size_t>place.ndim:
        raise ValueError(f"expected skip at most {4 * place.ndim}, the bytes of a key, got {skip}")
    width = 4 * place.ndim - <Py_ssize_t>skip
    for at in range(n):
        n_keys += marks[at] != 0
    keys = PyList_New(<Py_ssize_t>n_keys)
    at = 0
    for i in range(<Py_ssize_t>n_keys):
        at = sc_present_next(marks, at, n)
        sc_place_go_to(&place, first + at)
        key = PyBytes_FromStringAndSize(<const char *>place.key + skip, width)
        Py_INCREF(key)
        PyList_SetItem(keys, i, key)
        at += 1
    return keys


cdef bytes marked(Chain chain, const sc_entry *entries, uint64_t first, uint64_t end):
    """Return one byte for each of the positions [first, end): 1 if its inner chunk exists, else 0."""
    cdef bytes flags
    cdef uint8_t *to
    if first > end or end > chain.chain.n_chunks:
        raise ValueError(f"expected first <= end <= {chain.chain.n_chunks}, got first {first} and end {end}")
    flags = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(end - first))
    to = <uint8_t *>PyBytes_AsString(flags)
    with nogil:
        sc_present_mark(entries, first, end, to)
    return flags


def index_present(Chain chain, entries, uint64_t first, uint64_t end):
    """Return flags as `OpenShard.present` does, for an index in memory: n_chunks pairs."""
    cdef View view = View(entries)
    return marked(chain, <const sc_entry *>view.words(2 * chain.chain.n_chunks), first, end)
