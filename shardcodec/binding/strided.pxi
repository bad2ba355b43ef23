# strided.pxi - strided copies
# SPDX-License-Identifier: MIT

cdef class Swap:
    """The fields of an element that are reversed between stored and native order."""

    cdef sc_swap swap

    def __cinit__(self, fields, size_t itemsize):
        cdef sc_swap_field *memory
        cdef size_t i, n = len(fields)
        memory = <sc_swap_field *>calloc(n + 1, sizeof(sc_swap_field))
        if memory == NULL:
            raise MemoryError
        self.swap.fields = memory
        self.swap.n_fields = n
        for i in range(n):
            memory[i].offset, memory[i].unit, memory[i].count = fields[i]
            if not memory[i].unit or <uint64_t>memory[i].offset + <uint64_t>memory[i].unit * memory[i].count > itemsize:
                raise ValueError(f"swap field {fields[i]!r} is not inside an element of {itemsize} bytes")

    def __dealloc__(self):
        free(<void *>self.swap.fields)


cdef int check_box(View view, int64_t offset, int ndim, const uint64_t *shape, const int64_t *strides,
                   size_t itemsize) except -1:
    """Raise unless every element of the box lies inside the buffer."""
    cdef object low = offset, high = offset
    cdef int a
    for a in range(ndim):
        if shape[a] == 0:
            return 0
        if strides[a] < 0:
            low += strides[a] * <object>(shape[a] - 1)
        else:
            high += strides[a] * <object>(shape[a] - 1)
    if low < 0 or high + itemsize > view.nbytes():
        raise ValueError(f"expected a box inside the buffer of {view.nbytes()} bytes, got bytes {low} to {high + itemsize}")
    return 0


cdef int read_strides(object numbers, int ndim, int64_t *out) except -1:
    cdef int i
    if len(numbers) != ndim:
        raise ValueError(f"expected {ndim} strides, one per axis, got {len(numbers)}")
    for i in range(ndim):
        out[i] = numbers[i]
    return 0


def copy_elements(dst, src):
    """Copy an array to another of the same shape and itemsize, with any strides; the two must not share memory."""
    cdef View to = View(dst, PyBUF_WRITABLE | PyBUF_STRIDES), source = View(src, PyBUF_STRIDES)
    cdef int ndim = to.view.ndim, a
    cdef uint64_t extents[32]
    cdef int64_t to_strides[32]
    cdef int64_t from_strides[32]
    cdef sc_copy copy
    if ndim > SC_MAX_NDIM or source.view.ndim != ndim or source.view.itemsize != to.view.itemsize:
        raise ValueError(f"expected rank {ndim} (at most {SC_MAX_NDIM}) and elements of {to.view.itemsize} bytes, got "
                         f"rank {source.view.ndim} and elements of {source.view.itemsize} bytes")
    for a in range(ndim):
        if source.view.shape[a] != to.view.shape[a]:
            raise ValueError(f"axis {a}: expected {to.view.shape[a]} elements, got {source.view.shape[a]}")
        extents[a] = to.view.shape[a]
        to_strides[a], from_strides[a] = to.view.strides[a], source.view.strides[a]
    if to.nbytes() == 0:
        return
    with nogil:
        sc_copy_prepare(&copy, ndim, extents, to_strides, from_strides, to.view.itemsize, NULL)
        sc_copy_run(&copy, to.data(), source.data())


def fill(dst, int64_t dst_offset, strides, shape, pattern):
    """Set every element of a box to `pattern`."""
    cdef int ndim = read_rank(shape)
    cdef View to = View(dst, PyBUF_WRITABLE), value = View(pattern)
    cdef uint64_t extents[32]
    cdef int64_t to_strides[32]
    read_numbers(shape, ndim, extents)
    read_strides(strides, ndim, to_strides)
    check_box(to, dst_offset, ndim, extents, to_strides, value.nbytes())
    with nogil:
        sc_fill(to.data() + dst_offset, ndim, extents, to_strides, value.data(), value.nbytes())


def all_equal(data, pattern):
    """Return True if `data` consists of repetitions of `pattern`."""
    cdef View source = View(data), value = View(pattern)
    if value.nbytes() == 0 or source.nbytes() % value.nbytes():
        raise ValueError(f"expected whole elements of {value.nbytes()} bytes, got {source.nbytes()} bytes")
    return bool(sc_all_equal(source.data(), source.nbytes() // value.nbytes(), value.data(), value.nbytes()))
