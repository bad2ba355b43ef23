# buffers.pxi - buffers of Python objects, held during a C call
# SPDX-License-Identifier: MIT

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(object text)  # as os.fsencode, without its Python call


cdef const char *path_chars(bytes encoded) except NULL:
    """Return a path as a C string; raise if it has a null byte, where C would cut it and use another file."""
    cdef const char *chars = PyBytes_AsString(encoded)
    if strlen(chars) != <size_t>len(encoded):
        raise ValueError(f"expected a path or key without null bytes, got {os.fsdecode(encoded)!r}")
    return chars


cdef bytes path_bytes(str path):
    """Return an encoded path; raise if it has a null byte."""
    cdef bytes encoded = PyUnicode_EncodeFSDefault(path)
    path_chars(encoded)
    return encoded


cdef class Bytes:
    """Memory that C code allocated, readable through the buffer protocol; freed with its last view."""

    cdef uint8_t *data
    cdef Py_ssize_t nbytes
    cdef size_t capacity

    def __dealloc__(self):
        cdef sc_buffer memory
        memory.data, memory.capacity = self.data, self.capacity
        sc_buffer_free(&memory)

    def __len__(self):
        return self.nbytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.nbytes, 1, flags)


cdef Bytes adopt(uint8_t *data, uint64_t nbytes, size_t capacity=0):
    cdef Bytes owner = Bytes.__new__(Bytes)
    owner.capacity = capacity
    owner.data = data
    owner.nbytes = <Py_ssize_t>nbytes
    return owner


cdef class View:
    """A buffer that is held for the duration of a call."""

    cdef Py_buffer view
    cdef bint held

    def __cinit__(self, obj, int flags=PyBUF_SIMPLE):
        PyObject_GetBuffer(obj, &self.view, flags)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    cdef uint8_t *data(self) noexcept nogil:
        return <uint8_t *>self.view.buf

    cdef size_t nbytes(self) noexcept nogil:
        return <size_t>self.view.len

    cdef uint64_t *words(self, uint64_t n) except? NULL:
        """Return the buffer as n unsigned 64-bit numbers."""
        if self.view.len % 8 or <uint64_t>self.view.len // 8 != n:
            raise ValueError(f"expected a buffer of {n} numbers of 8 bytes, got {self.view.len} bytes")
        if <size_t>self.view.buf % 8:
            raise ValueError("expected a buffer of 64-bit numbers aligned to 8 bytes, got one that is not aligned")
        return <uint64_t *>self.view.buf


cdef int read_numbers(object numbers, int ndim, uint64_t *out) except -1:
    cdef int i
    if len(numbers) != ndim:
        raise ValueError(f"expected {ndim} numbers, one per axis, got {len(numbers)}: {numbers!r}")
    for i in range(ndim):
        out[i] = <uint64_t>numbers[i]
    return 0


cdef int read_rank(object shape) except -1:
    cdef Py_ssize_t n = len(shape)
    if n > SC_MAX_NDIM:
        raise ValueError(f"expected at most {SC_MAX_NDIM} axes, got {n}")
    return <int>n
