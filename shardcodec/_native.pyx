# _native.pyx - the one extension module: buffers and numbers in, C calls without the GIL, exceptions out
# SPDX-License-Identifier: MIT
#
# No policy and no loop over inner chunks lives here. A function checks what it was given against the buffers it was
# given, drops the GIL, calls, and maps a status to an exception in one table (`raise_status`). It speaks the buffer
# protocol and not the numpy C API, so that one binary serves every Python from 3.11 on (stable ABI).
#
# Sections follow the headers: errors, buffers, kernels, chains, reading, writing, locks, files.

from cpython.buffer cimport (PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, Py_buffer, PyBuffer_FillInfo, PyBuffer_Release,
                             PyObject_GetBuffer)
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from shardcodec.csrc cimport *

import os
from threading import get_ident, main_thread

from shardcodec.errors import ChecksumError, CodecError, ShardFormatError

ctypedef uint64_t pair[2]


# ---- errors --------------------------------------------------------------------------------------------------------


class Cancelled(Exception):
    """A plan was told to stop."""


cdef object known(uint64_t value):
    return None if value == SC_NOWHERE else value


cdef str text(const char *s):
    return None if s == NULL else s.decode("ascii")


cdef str place(const sc_where *at):
    """'nested inner chunk 3 of ' when the trouble lies below the shard itself."""
    if at.level == 0:
        return ""
    if at.nested_entry == SC_NOWHERE:
        return f"in the shard nested at level {at.level}: "
    return f"in inner chunk {at.nested_entry} of the shard nested at level {at.level}: "


cdef object format_error(sc_status status, const sc_where *at):
    cdef str where = place(at)
    if status == SC_TOO_SHORT:
        return ShardFormatError(
            f"{where}object of {at.nbytes} bytes is too short to hold its index of {at.limit}",
            nbytes=at.nbytes, limit=at.limit, level=at.level, entry=known(at.entry))
    if status == SC_HALF_EMPTY:
        return ShardFormatError(
            f"{where}index entry has offset {at.offset} and nbytes {at.nbytes}: either both or neither may be 2^64-1",
            entry=known(at.entry), offset=at.offset, nbytes=at.nbytes, limit=at.limit, level=at.level)
    if status == SC_BAD_RANGE:
        return ShardFormatError(
            f"{where}index entry claims {at.nbytes} bytes at offset {at.offset}, but the shard has {at.limit} bytes",
            entry=known(at.entry), offset=at.offset, nbytes=at.nbytes, limit=at.limit, level=at.level)
    if status == SC_IN_INDEX:
        return ShardFormatError(
            f"{where}index entry claims {at.nbytes} bytes at offset {at.offset}, which touches the index "
            f"({at.actual} bytes at offset {at.expected})",
            entry=known(at.entry), offset=at.offset, nbytes=at.nbytes, limit=at.limit, expected=at.expected,
            actual=at.actual, level=at.level)
    if status == SC_BAD_LENGTH:
        return ShardFormatError(
            f"{where}chunk has {'more' if at.actual == SC_NOWHERE else at.actual} bytes where {at.expected} are due",
            entry=known(at.entry), expected=at.expected, actual=known(at.actual), level=at.level)
    return ShardFormatError(
        f"{where}file has {at.nbytes} bytes where {at.limit} were expected, or other times: it was changed while it was "
        f"in use",
        entry=known(at.entry), nbytes=at.nbytes, limit=at.limit, level=at.level)


cdef object checksum_error(sc_status status, const sc_where *at):
    cdef str what = "index" if status == SC_INDEX_CHECKSUM else "chunk"
    return ChecksumError(
        f"{place(at)}checksum of the {what} is 0x{at.actual:08x}, but 0x{at.expected:08x} is stored",
        entry=known(at.entry), expected=at.expected, actual=at.actual, level=at.level, codec="crc32c")


cdef object codec_error(sc_status status, const sc_where *at):
    cdef str codec = text(at.codec) or "codec"
    cdef str detail = text(at.detail) or ("cannot encode" if status == SC_CODEC_ENCODE else "malformed data")
    return CodecError(
        f"{place(at)}{codec}: {detail} ({at.nbytes} bytes, library code {at.library_code})",
        entry=known(at.entry), codec=codec, nbytes=at.nbytes, library_code=at.library_code, level=at.level)


cdef int raise_status(sc_status status, const sc_where *at, object paths=None) except -1:
    """The one table from statuses to exceptions. `error.shard` is the position in the plan."""
    cdef object error
    if status == SC_OK:
        return 0
    if status == SC_NO_MEMORY:
        raise MemoryError("shardcodec: no memory for scratch or for an encoded chunk")
    if status == SC_CANCELLED:
        raise Cancelled
    if status == SC_BAD_ARGUMENT:
        raise ValueError(f"{text(at.codec) or 'engine'}: {text(at.detail) or 'argument out of range'}")
    if status == SC_IO:
        path = None
        if paths is not None and at.shard != SC_NOWHERE:
            path = os.fsdecode(paths[at.shard])
        error = OSError(at.sys_errno, f"{os.strerror(at.sys_errno)} [{text(at.call)}]", path)
        raise error
    if status in (SC_INDEX_CHECKSUM, SC_CHUNK_CHECKSUM):
        error = checksum_error(status, at)
    elif status in (SC_CODEC_DATA, SC_CODEC_ENCODE):
        error = codec_error(status, at)
    elif SC_TOO_SHORT <= status <= SC_CHANGED:
        error = format_error(status, at)
    else:
        raise SystemError(f"unmapped status {text(sc_status_name(status))} ({<int>status})")
    if at.shard != SC_NOWHERE:
        error.shard = at.shard
    raise error


# ---- buffers -------------------------------------------------------------------------------------------------------


cdef class Bytes:
    """Memory that C code allocated; readable through the buffer protocol, freed with its last view."""

    cdef uint8_t *data
    cdef Py_ssize_t nbytes

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.nbytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.nbytes, 1, flags)


cdef Bytes adopt(uint8_t *data, uint64_t nbytes):
    cdef Bytes owner = Bytes.__new__(Bytes)
    owner.data = data
    owner.nbytes = <Py_ssize_t>nbytes
    return owner


cdef class View:
    """A buffer held for the length of a call."""

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
        """The buffer as n unsigned 64-bit numbers."""
        if self.view.len % 8 or <uint64_t>self.view.len // 8 != n:
            raise ValueError(f"buffer has {self.view.len} bytes where {n} numbers of 8 bytes are due")
        if <size_t>self.view.buf % 8:
            raise ValueError("buffer of 64-bit numbers is not aligned")
        return <uint64_t *>self.view.buf


cdef int read_numbers(object numbers, int ndim, uint64_t *out) except -1:
    cdef int i
    if len(numbers) != ndim:
        raise ValueError(f"{ndim} numbers are due, got {len(numbers)}: {numbers!r}")
    for i in range(ndim):
        out[i] = <uint64_t>numbers[i]
    return 0


cdef int read_rank(object shape) except -1:
    cdef Py_ssize_t n = len(shape)
    if n > SC_MAX_NDIM:
        raise ValueError(f"rank {n} is more than {SC_MAX_NDIM}")
    return <int>n


# ---- kernels: processor, crc32c ------------------------------------------------------------------------------------


cdef tuple feature_names(uint32_t bits):
    cdef unsigned i
    return tuple(text(sc_cpu_feature_name(i)) for i in range(32)
                 if bits >> i & 1 and sc_cpu_feature_name(i) != NULL)


def cpu_features():
    """What the processor has, what is used, and what SHARDCODEC_CPU said."""
    cdef c_bool valid = True
    cdef const char *override = sc_cpu_override(&valid)
    return {
        "detected": feature_names(sc_cpu_detected()),
        "used": feature_names(sc_cpu_features()),
        "override": text(override),
        "override_valid": bool(valid),
    }


cdef size_t find_impl(str impl) except? 0xFFFF:
    cdef size_t i
    for i in range(sc_crc32c_n_impls()):
        if text(sc_crc32c_impl_name(i)) == impl:
            if not sc_crc32c_impl_usable(i):
                raise ValueError(f"this processor cannot run the crc32c variant {impl!r}")
            return i
    raise ValueError(f"no crc32c variant {impl!r}")


def crc32c_implementations():
    """Names of the variants that this processor can run, fastest first."""
    cdef size_t i
    return [text(sc_crc32c_impl_name(i)) for i in range(sc_crc32c_n_impls()) if sc_crc32c_impl_usable(i)]


def crc32c_chosen():
    """Name of the variant in use."""
    return text(sc_crc32c_impl_name(sc_crc32c_chosen()))


# Below this many bytes a checksum is quicker than giving the GIL away.
cdef enum:
    RELEASE_NBYTES = 16384


def crc32c(data, uint32_t value=0, *, impl=None):
    """CRC-32C of `data`, extending `value`; see `shardcodec.checksum`."""
    cdef Py_buffer view
    cdef uint32_t crc
    cdef size_t i
    if impl is not None:
        i = find_impl(impl)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if impl is not None:
        crc = sc_crc32c_extend_impl(i, value, <const uint8_t *>view.buf, <size_t>view.len)
    elif view.len < RELEASE_NBYTES:
        crc = sc_crc32c_extend(value, <const uint8_t *>view.buf, <size_t>view.len)
    else:
        with nogil:
            crc = sc_crc32c_extend(value, <const uint8_t *>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return crc


def crc32c_copy(dst, src, uint32_t value=0, *, impl=None):
    """Copy `src` to the start of `dst` and return its CRC-32C, in one pass."""
    cdef View to = View(dst, PyBUF_WRITABLE), source = View(src)
    cdef size_t n = source.nbytes(), i
    cdef uint32_t crc
    if n > to.nbytes():
        raise ValueError(f"{n} bytes do not fit into {to.nbytes()}")
    if to.data() < source.data() + n and source.data() < to.data() + n:
        raise ValueError("source and destination overlap")
    if impl is not None:
        i = find_impl(impl)
        return sc_crc32c_copy_impl(i, value, to.data(), source.data(), n)
    with nogil:
        crc = sc_crc32c_copy(value, to.data(), source.data(), n)
    return crc


def crc32c_combine(uint32_t a, uint32_t b, uint64_t nbytes_b):
    """CRC-32C of two byte strings joined, from theirs and the length of the second."""
    return sc_crc32c_combine(a, b, nbytes_b)


# ---- kernels: order and index --------------------------------------------------------------------------------------


cdef sc_order order_of(str name) except *:
    if name == "morton":
        return SC_ORDER_MORTON
    if name == "lexicographic":
        return SC_ORDER_LEXICOGRAPHIC
    if name == "colexicographic":
        return SC_ORDER_COLEXICOGRAPHIC
    raise ValueError(f"order must be 'morton', 'lexicographic' or 'colexicographic', not {name!r}")


def order(out, grid_shape, str name="morton", first=None, last=None):
    """Write the positions of (a box of) a grid in the given order to `out`; return how many there are."""
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
            raise ValueError(f"axis {a}: box from {low[a]} to {high[a]} is not inside {grid[a]} inner chunks")
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
        raise ValueError(f"room for {capacity} positions is too little")
    return n


cdef uint64_t count_pairs(View data) except? 0xFFFFFFFFFFFFFFFF:
    if data.nbytes() % 16:
        raise ValueError(f"{data.nbytes()} bytes are no whole number of (offset, nbytes) pairs")
    return data.nbytes() // 16


def index_decode(data, out, *, bint big_endian=False):
    """Stored pairs to native ones."""
    cdef View source = View(data), to = View(out, PyBUF_WRITABLE)
    cdef uint64_t n = count_pairs(source)
    cdef sc_entry *entries = <sc_entry *>to.words(2 * n)
    with nogil:
        sc_index_decode(source.data(), entries, n, big_endian)


def index_encode(entries, out, *, bint big_endian=False):
    """Native pairs to stored ones."""
    cdef View source = View(entries), to = View(out, PyBUF_WRITABLE)
    cdef uint64_t n = count_pairs(source)
    cdef const sc_entry *pairs = <const sc_entry *>source.words(2 * n)
    if to.nbytes() != 16 * n:
        raise ValueError(f"{to.nbytes()} bytes where {16 * n} are due")
    with nogil:
        sc_index_encode(pairs, to.data(), n, big_endian)


def index_check(entries, uint64_t shard_nbytes, uint64_t index_offset, uint64_t index_nbytes, *,
                bint allow_in_index=False):
    """Raise ShardFormatError for the first entry that cannot be true."""
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
    """Positions of the entries by offset."""

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


def index_overlaps(entries, *, size_t capacity=1024):
    """Pairs of entries whose ranges share a byte (at most `capacity` of them), and how many there are."""
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
    """Ranges (offset, nbytes) that nothing refers to (at most `capacity` of them), and how many there are."""
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


# ---- kernels: strided copies ---------------------------------------------------------------------------------------


cdef class Swap:
    """Fields of an element that are reversed between stored and native order."""

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
    """Every element of the box lies inside the buffer."""
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
        raise ValueError(f"box reaches from byte {low} to {high + itemsize} of a buffer of {view.nbytes()}")
    return 0


cdef int read_strides(object numbers, int ndim, int64_t *out) except -1:
    cdef int i
    if len(numbers) != ndim:
        raise ValueError(f"{ndim} strides are due, got {len(numbers)}")
    for i in range(ndim):
        out[i] = numbers[i]
    return 0


def strided_copy(dst, int64_t dst_offset, dst_strides, src, int64_t src_offset, src_strides, shape, size_t itemsize,
                 swap=()):
    """Copy a box of elements between two buffers; strides and offsets in bytes."""
    cdef int ndim = read_rank(shape)
    cdef View to = View(dst, PyBUF_WRITABLE), source = View(src)
    cdef Swap fields = Swap(swap, itemsize)
    cdef uint64_t extents[32]
    cdef int64_t to_strides[32]
    cdef int64_t from_strides[32]
    cdef sc_copy copy
    read_numbers(shape, ndim, extents)
    read_strides(dst_strides, ndim, to_strides)
    read_strides(src_strides, ndim, from_strides)
    check_box(to, dst_offset, ndim, extents, to_strides, itemsize)
    check_box(source, src_offset, ndim, extents, from_strides, itemsize)
    with nogil:
        sc_copy_prepare(&copy, ndim, extents, to_strides, from_strides, itemsize, &fields.swap)
        sc_copy_run(&copy, to.data() + dst_offset, source.data() + src_offset)


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
    """Is `data` nothing but repetitions of `pattern`?"""
    cdef View source = View(data), value = View(pattern)
    if value.nbytes() == 0 or source.nbytes() % value.nbytes():
        raise ValueError(f"{source.nbytes()} bytes are no whole number of elements of {value.nbytes()}")
    return bool(sc_all_equal(source.data(), source.nbytes() // value.nbytes(), value.data(), value.nbytes()))


def swap_items(buffer, size_t itemsize, swap):
    """Reverse units of contiguous elements in place."""
    cdef View to = View(buffer, PyBUF_WRITABLE)
    cdef Swap fields = Swap(swap, itemsize)
    if itemsize == 0 or to.nbytes() % itemsize:
        raise ValueError(f"{to.nbytes()} bytes are no whole number of elements of {itemsize}")
    sc_swap_items(to.data(), to.nbytes() // itemsize, itemsize, &fields.swap)


# ---- kernels: codecs -----------------------------------------------------------------------------------------------

CODECS = {"crc32c": SC_CODEC_CRC32C, "zstd": SC_CODEC_ZSTD, "gzip": SC_CODEC_GZIP, "zlib": SC_CODEC_ZLIB,
          "lz4": SC_CODEC_LZ4, "blosc": SC_CODEC_BLOSC}
COMPRESSORS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


cdef int read_op(sc_op *op, str name, dict params) except -1:
    cdef dict known_params = {"level": 1, "checksum": False, "compressor": "lz4", "shuffle": "noshuffle", "typesize": 1,
                              "blocksize": 0}
    unknown = set(params) - set(known_params)
    if name not in CODECS or unknown:
        raise ValueError(f"codec {name!r} with unknown parameters {sorted(unknown)}" if unknown
                         else f"no native codec {name!r}")
    known_params.update(params)
    memset(op, 0, sizeof(sc_op))
    op.codec = <sc_codec_id><int>CODECS[name]
    op.level = known_params["level"]
    op.checksum = known_params["checksum"]
    op.compressor = COMPRESSORS.index(known_params["compressor"])
    op.shuffle = SHUFFLES.index(known_params["shuffle"])
    op.typesize = known_params["typesize"]
    op.blocksize = known_params["blocksize"]
    return 0


def codec_encode(str name, data, **params):
    """Encode `data` with one codec, as a chain would."""
    cdef View source = View(data)
    cdef sc_op op
    read_op(&op, name, params)
    return run_codec(&op, source, True, 0)


def codec_decode(str name, data, size_t max_nbytes, **params):
    """Decode `data` with one codec to at most `max_nbytes`."""
    cdef View source = View(data)
    cdef sc_op op
    read_op(&op, name, params)
    return run_codec(&op, source, False, max_nbytes)


cdef bytes run_codec(const sc_op *op, View source, bint encode, size_t max_nbytes):
    cdef const sc_codec *codec = sc_codec_get(op.codec)
    cdef sc_codec_state *state
    cdef uint8_t *out
    cdef size_t capacity, n = 0
    cdef sc_status status
    cdef sc_where where
    if codec == NULL:
        raise ValueError("crc32c is part of a chain; use crc32c()")
    capacity = codec.bound(op, source.nbytes()) if encode else max_nbytes
    if encode and capacity == 0:
        raise ValueError(f"{text(codec.name)} cannot take {source.nbytes()} bytes")
    state = sc_codec_state_new()
    out = <uint8_t *>malloc(capacity + 1)
    try:
        if state == NULL or out == NULL:
            raise MemoryError
        sc_where_clear(&where)
        with nogil:
            if encode:
                status = codec.encode(op, state, source.data(), source.nbytes(), out, capacity, &n, &where)
            else:
                status = codec.decode(op, state, source.data(), source.nbytes(), out, capacity, &n, &where)
        if status == SC_DST_TOO_SMALL:
            raise CodecError(f"{text(codec.name)}: more than {max_nbytes} bytes", codec=text(codec.name),
                             limit=max_nbytes)
        raise_status(status, &where)
        return PyBytes_FromStringAndSize(<const char *>out, <Py_ssize_t>n)
    finally:
        free(out)
        sc_codec_state_free(state)


# ---- chains --------------------------------------------------------------------------------------------------------


cdef class Chain:
    """The codecs of an array, compiled (csrc/sc_chain.h). Arguments are what `shardcodec.format.chain.lower` returns.

    `stage` is carried along for the layers above: what encodes the chunks of an opaque chain.
    """

    cdef sc_chain chain
    cdef Swap swap
    cdef readonly Chain inner
    cdef readonly tuple shape
    cdef readonly tuple perm
    cdef readonly tuple grid_shape  # inner chunks along each stored axis; empty for a leaf
    cdef readonly object stage

    def __cinit__(self, *, shape, size_t itemsize, swap, perm, bytes fill, ops, inner=None, index=None,
                  bint opaque=False, stage=None):
        cdef sc_chain *c = &self.chain
        cdef int a
        cdef size_t i
        c.ndim = read_rank(shape)
        c.itemsize = itemsize
        read_numbers(shape, c.ndim, c.shape)
        if len(perm) != c.ndim:
            raise ValueError(f"permutation {perm!r} is not of rank {c.ndim}")
        for a in range(c.ndim):
            c.perm[a] = perm[a]
        self.swap = Swap(swap, itemsize)
        c.swap = self.swap.swap
        self.set_fill(fill)
        if len(ops) > SC_MAX_OPS:
            raise ValueError(f"{len(ops)} codecs in a row are more than {SC_MAX_OPS}")
        c.n_ops = len(ops)
        c.opaque = opaque
        self.stage = stage
        for i in range(c.n_ops):
            read_op(&c.ops[i], ops[i][0], ops[i][1])
        if inner is not None:
            self.inner = inner if isinstance(inner, Chain) else Chain(**inner)
            c.inner = &self.inner.chain
            self.set_index(**index)
        if sc_chain_prepare(c) != SC_OK:
            raise ValueError(f"chain of shape {tuple(shape)} is no valid one")
        self.shape = tuple(c.shape[a] for a in range(c.ndim))
        self.perm = tuple(c.perm[a] for a in range(c.ndim))
        self.grid_shape = () if self.inner is None else tuple(c.grid[a] for a in range(c.ndim))

    cdef int set_fill(self, bytes fill) except -1:
        cdef sc_chain *c = &self.chain
        if <size_t>len(fill) != c.itemsize or c.itemsize == 0:
            raise ValueError(f"fill value has {len(fill)} bytes, an element {c.itemsize}")
        c.fill = <uint8_t *>malloc(2 * c.itemsize)
        if c.fill == NULL:
            raise MemoryError
        c.fill_stored = c.fill + c.itemsize
        memcpy(c.fill, PyBytes_AsString(fill), c.itemsize)
        memcpy(c.fill_stored, c.fill, c.itemsize)
        sc_swap_items(c.fill_stored, 1, c.itemsize, &c.swap)
        return 0

    def __dealloc__(self):
        free(self.chain.fill)

    def set_index(self, *, bint at_start, bint big_endian, unsigned n_checksums, perm=None):
        """How the index is stored; only for use by the constructor."""
        cdef sc_chain *c = &self.chain
        cdef int a, axis
        cdef uint64_t stride = 1
        cdef list shape
        c.index.at_start = at_start
        c.index.big_endian = big_endian
        c.index.n_checksums = n_checksums
        c.index.in_c_order = perm is None or list(perm) == list(range(c.ndim + 1))
        if c.index.in_c_order:
            return
        if sorted(perm) != list(range(c.ndim + 1)):
            raise ValueError(f"index transpose {perm!r} is no permutation of {c.ndim + 1} axes")
        shape = [-(-<object>c.shape[c.perm[a]] // self.inner.shape[a]) for a in range(c.ndim)] + [2]
        for axis in reversed(perm):
            if axis == c.ndim:
                c.index.half_stride = stride
            else:
                c.index.strides[axis] = stride
            stride *= <uint64_t>shape[axis]

    cdef int refuse_opaque(self) except -1:
        if self.is_opaque:
            raise ValueError("there is no native code for all codecs of this chain")
        return 0

    @property
    def itemsize(self):
        return self.chain.itemsize

    @property
    def is_shard(self):
        """Are inner chunks reachable one by one?"""
        return self.chain.inner != NULL and self.chain.n_ops == 0

    @property
    def is_opaque(self):
        """Do codecs take part that are not ours? Then the chain only finds inner chunks."""
        return bool(self.chain.opaque if self.inner is None else self.inner.is_opaque)

    @property
    def n_chunks(self):
        return self.chain.n_chunks if self.inner is not None else 1

    @property
    def fill(self):
        """The fill value as it is in the caller's memory."""
        return PyBytes_FromStringAndSize(<const char *>self.chain.fill, <Py_ssize_t>self.chain.itemsize)

    @property
    def fixed_nbytes(self):
        """Size of every encoded chunk of a leaf without compressor; None otherwise."""
        cdef size_t i
        if self.inner is not None or self.chain.opaque:
            return None
        for i in range(self.chain.n_ops):
            if self.chain.ops[i].codec != SC_CODEC_CRC32C:
                return None
        return self.chain.nbytes + 4 * self.chain.n_ops

    @property
    def index_nbytes(self):
        return self.chain.index.nbytes if self.inner is not None else 0

    @property
    def nbytes(self):
        """Decoded."""
        return self.chain.nbytes

    @property
    def index_checksums(self):
        return self.chain.index.n_checksums

    @property
    def index_at_start(self):
        return bool(self.chain.index.at_start)


cdef class Fetched:
    """A range of a shard's bytes, with the shard's index: an item's source for ranges that arrive one by one.

    entries: n_chunks pairs, checked. data: bytes of the shard from `first` on, None for none.
    """

    cdef sc_source source
    cdef View entries, data
    cdef object memory

    def __cinit__(self, Chain chain, entries, data, uint64_t first, *, bint fill_absent):
        if not chain.is_shard:
            raise ValueError("only a shard has an index")
        self.entries = View(entries)
        self.source.entries = <const sc_entry *>self.entries.words(2 * chain.chain.n_chunks)
        self.source.first = first
        self.source.fill_absent = fill_absent
        if data is not None:
            self.data = View(data)
            self.memory = memoryview(data).cast("B")
            self.source.data, self.source.nbytes = self.data.data(), self.data.nbytes()


# ---- stopping a plan, and what is kept between plans ---------------------------------------------------------------


cdef bint ask_python(void *arg) noexcept with gil:
    """Has a signal arrived whose handler raises?"""
    cdef Cancel cancel = <Cancel>arg
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        cancel.caught = error
        return True
    return False


cdef class Cancel:
    """Tells plans to stop; they then raise `Cancelled`."""

    cdef sc_cancel cancel
    cdef object caught

    def __cinit__(self):
        sc_cancel_init(&self.cancel, NULL, NULL)

    def stop(self):
        """To be called by any thread."""
        sc_cancel_stop(&self.cancel)

    @property
    def stopped(self):
        return bool(sc_cancelled(&self.cancel))

    cdef int raise_caught(self) except -1:
        caught, self.caught = self.caught, None
        if caught is not None:
            raise caught
        return 0


cdef Cancel entered(Cancel cancel):
    """Where nobody else can stop a plan, the main thread looks for signals itself: Ctrl-C raises KeyboardInterrupt."""
    if cancel is None:
        cancel = Cancel()
        if get_ident() == main_thread().ident:
            sc_cancel_init(&cancel.cancel, ask_python, <void *>cancel)
    return cancel


cdef class CachedIndex:
    """A decoded index held by a view: read-only pairs (offset, nbytes), one for each inner chunk."""

    cdef sc_cached_index *index

    def __dealloc__(self):
        sc_cached_index_release(self.index)

    def __len__(self):
        return self.index.n_entries

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.index.entries, <Py_ssize_t>(16 * self.index.n_entries), 1, flags)


cdef bytes cache_name(str name):
    """The name as C has it; one with a zero byte, which no path has, is spelled out in digits."""
    cdef bytes encoded = os.fsencode(name)
    return encoded if b"\0" not in encoded else b"\x01" + encoded.hex().encode()


cdef class Cache:
    """Decoded indexes and open files that readers keep between calls (csrc/sc_cache.h)."""

    cdef sc_cache *cache

    def __cinit__(self, uint64_t max_nbytes, uint64_t max_files=0, int64_t grain_ns=SC_CACHE_GRAIN_NS):
        self.cache = sc_cache_new(max_nbytes, max_files, grain_ns)
        if self.cache == NULL:
            raise MemoryError

    def __dealloc__(self):
        sc_cache_free(self.cache)

    def get(self, str name, Chain chain):
        """The index of an object in no file; None when it is not kept."""
        cdef CachedIndex found
        cdef bytes encoded = cache_name(name)
        cdef sc_cached_index *index = sc_cache_peek(self.cache, PyBytes_AsString(encoded), &chain.chain)
        if index == NULL:
            return None
        found = CachedIndex.__new__(CachedIndex)
        found.index = index
        return found

    def put(self, str name, Chain chain, entries):
        """Keep the index of an object in no file: n_chunks pairs, copied."""
        cdef View view = View(entries)
        cdef uint64_t *pairs = view.words(2 * chain.chain.n_chunks)
        cdef bytes encoded = cache_name(name)
        cdef sc_cached_index *index
        if not chain.is_shard:
            raise ValueError("only a shard has an index")
        index = sc_cached_index_new(chain.chain.n_chunks)
        if index == NULL:
            return
        memcpy(index.entries, pairs, view.nbytes())
        sc_cache_put(self.cache, PyBytes_AsString(encoded), &chain.chain, index)
        sc_cached_index_release(index)

    def drop(self, str name):
        """Forget an object."""
        cdef bytes encoded = cache_name(name)
        sc_cache_drop(self.cache, PyBytes_AsString(encoded))

    def clear(self):
        """Forget all."""
        sc_cache_clear(self.cache)

    def info(self):
        """Sizes and counters."""
        cdef sc_cache_info info
        sc_cache_get_info(self.cache, &info)
        return info


# ---- reading and writing: what both need ---------------------------------------------------------------------------


cdef class Batch:
    """Python objects that a plan's pointers rely on, and the array that it fills or reads."""

    cdef View array
    cdef list keep
    cdef list paths
    cdef int ndim
    cdef int axes[32]

    def __cinit__(self, array, int flags, axes):
        cdef int a
        self.array = View(array, flags | PyBUF_STRIDES)
        self.keep = []
        self.paths = []
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
            self.paths.append(b"")
            out.is_open, out.fd = True, source
        elif isinstance(source, str):
            path = os.fsencode(source)
            self.paths.append(path)
            out.path = PyBytes_AsString(path)
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
        self.keep.append(encoded := os.fsencode(folder))
        return PyBytes_AsString(encoded)

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
                        const sc_pick **pick, uint8_t **first) except -1:
        """What of an object, and where in the array that is: a `Box` or one of the kinds of `Pick`.

        With `broadcast` the array is repeated along axes that it lacks.
        """
        cdef Pick other
        if len(parts) == 4:
            start, count, step, at = parts
            self.read_box(chain, start, count, step, box)
            pick[0] = NULL
            first[0] = self.first_element(box, at, broadcast, chain.itemsize)
            return 0
        if chain.ndim != self.ndim:
            raise ValueError(f"chain of rank {chain.ndim} in a batch of rank {self.ndim}")
        if <size_t>self.array.view.itemsize != chain.itemsize:
            raise ValueError(f"array has elements of {self.array.view.itemsize} bytes, the chunks of {chain.itemsize}")
        other = Pick(len(parts))
        other.pick.strides = strides
        first[0] = <uint8_t *>self.array.view.buf
        if len(parts) == 6:
            first[0] += other.read_lists(self, chain, parts, broadcast)
        elif len(parts) == 3:
            first[0] += other.read_points(self, chain, parts, broadcast)
        else:
            other.read_boxes(self, chain, parts, broadcast)
        self.keep.append(other)
        pick[0] = &other.pick
        return 0


cdef class Pick:
    """A selection that is more than one box (csrc/sc_pick.h): nothing below relies on the caller for its numbers.

    Told apart by how many things they consist of; positions are buffers of unsigned 64-bit numbers, which nobody may
    change before the call is over:

    6: lists (start, count, step or None, at, froms, tos): as a box, but axes with a list have count[a] positions
       froms[a] in ascending order, and these places tos[a] in the array from at[a] on, None: one after the other.
    3: points (at, froms, to): positions along each axis, and places in an array of rank 1 from `at` on.
    1: boxes (rows,): in each row start, count and step by axis of the object, then the place by axis of the array.
    """

    cdef sc_pick pick
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
        self.pick.kind = SC_PICK_LISTS
        self.pick.box = &self.box
        for a in range(batch.ndim):
            if froms[a] is not None:
                self.box.count[a] = count[a]
                self.box.step[a] = 1
                self.pick.places_from[a] = self.positions(froms[a], self.box.count[a], chain.shape[a], True, a)
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
                self.pick.to[a] = self.positions(tos[a], self.box.count[a], limit, False, a)
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
        self.pick.kind = SC_PICK_POINTS
        self.pick.n = view.nbytes() // 8
        for a in range(batch.ndim):
            self.pick.places_from[a] = self.positions(froms[a], self.pick.n, chain.shape[a], False, a)
        if array.ndim == 0 and broadcast:
            return 0
        if array.ndim != 1:
            raise ValueError(f"points go to an array of rank 1, not {array.ndim}")
        limit = <uint64_t>array.shape[0] - min(place, <uint64_t>array.shape[0])
        if to is not None:
            self.pick.to[0] = self.positions(to, self.pick.n, limit, False, 0)
        elif self.pick.n > limit:
            raise ValueError(f"elements {place} to {place + self.pick.n} of an array with {array.shape[0]}")
        self.pick.array_ndim = 1
        self.pick.array_strides[0] = array.strides[0]
        return <int64_t>place * array.strides[0]

    cdef int read_boxes(self, Batch batch, sc_chain *chain, object boxes, bint broadcast) except -1:
        cdef Py_buffer *array = &batch.array.view
        cdef View view
        cdef uint64_t shape[32]
        cdef size_t width, bad
        cdef int b
        rows, = boxes
        view = View(rows)
        self.pick.kind = SC_PICK_BOXES
        self.pick.array_ndim = array.ndim
        for b in range(array.ndim):
            shape[b] = <uint64_t>array.shape[b]
            self.pick.array_strides[b] = array.strides[b]
        width = 3 * <size_t>batch.ndim + <size_t>array.ndim
        if width == 0 or view.nbytes() == 0 or view.nbytes() % (8 * width):
            raise ValueError(f"{view.nbytes()} bytes are no rows of {width} numbers")
        self.pick.n = view.nbytes() // (8 * width)
        self.pick.rows = view.words(self.pick.n * width)
        self.keep.append(view)
        with nogil:
            bad = sc_rows_check(&self.pick, chain, batch.axes, shape, broadcast)
        if bad < self.pick.n:
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


# ---- reading -------------------------------------------------------------------------------------------------------


def read(items, out, axes, *, unsigned n_threads=1, uint64_t max_gap_nbytes=65536, uint64_t group_nbytes=262144,
         bint allow_in_index=False, Cache cache=None, bint immutable=False, Cancel cancel=None):
    """Read parts of many objects into one array. immutable: no file changes while the cache has it open.

    items: sequence of (chain, source, parts). Parts are a box (start, count, step or None, at), where `at` is the place of
    its first element in the array, by axis of the chunk; or one of the kinds of `Pick`. axes: which axis of `out` each
    axis of the chunk is, -1 for none.
    Returns ([positions of objects that do not exist], counters).
    """
    cdef Batch batch = Batch(out, PyBUF_WRITABLE, axes)
    cdef size_t n = len(items), i = 0
    cdef sc_read_plan plan
    cdef sc_read_item *item
    cdef sc_where where
    cdef sc_status status
    cdef Chain chain
    memset(&plan, 0, sizeof(plan))
    plan.items = <sc_read_item *>calloc(n + 1, sizeof(sc_read_item))
    if plan.items == NULL:
        raise MemoryError
    try:
        batch.array_strides(plan.dst_strides)
        for chain, source, parts in items:
            item = &plan.items[i]
            item.chain = &chain.chain
            chain.refuse_opaque()
            batch.keep.append(chain)
            batch.read_source(source, &item.source)
            batch.read_parts(&chain.chain, parts, False, plan.dst_strides, &item.box, &item.pick, &item.dst)
            i += 1
        plan.n_items = n
        plan.n_threads = n_threads
        plan.max_gap_nbytes = max_gap_nbytes
        plan.group_nbytes = group_nbytes
        plan.allow_in_index = allow_in_index
        plan.immutable = immutable
        if cache is not None:
            plan.cache = cache.cache
        cancel = entered(cancel)
        plan.cancel = &cancel.cancel
        with nogil:
            status = sc_read(&plan, &where)
        cancel.raise_caught()
        raise_status(status, &where, batch.paths)
        return [i for i in range(n) if plan.items[i].missing], stats_dict(&plan.stats)
    finally:
        free(plan.items)


def read_index(Chain chain, source, out, *, replaced=None, bint allow_in_index=False):
    """Read and check the index of a shard into `out`, n_chunks pairs; return the size of the object, None without one.

    replaced: n_chunks flags. Where one is set, a bad entry becomes absent instead of being an error.
    """
    cdef Batch batch = Batch(b"", PyBUF_SIMPLE, ())
    cdef View to = View(out, PyBUF_WRITABLE), flags
    cdef const uint8_t *flags_data = NULL
    cdef sc_source place_
    cdef sc_entry *entries
    cdef sc_where where
    cdef sc_status status
    cdef uint64_t shard_nbytes = 0
    if chain.inner is None:
        raise ValueError("only a shard has an index")
    entries = <sc_entry *>to.words(2 * chain.chain.n_chunks)
    batch.read_source(source, &place_)
    if replaced is not None:
        flags = View(replaced)
        if flags.nbytes() != chain.chain.n_chunks:
            raise ValueError(f"{flags.nbytes()} flags for {chain.chain.n_chunks} inner chunks")
        flags_data = flags.data()
    with nogil:
        status = sc_read_index(&chain.chain, &place_, allow_in_index, flags_data, entries, &shard_nbytes, &where)
    where.shard = 0
    raise_status(status, &where, batch.paths)
    return known(shard_nbytes)


# No object is larger; bounds a range where the size of the object is not known.
cdef uint64_t MAX_OBJECT_NBYTES = SC_UNKNOWN_NBYTES


def plan_ranges(Chain chain, entries, parts, out, axes, *, shard_nbytes=None, uint64_t max_gap_nbytes,
                uint64_t max_nbytes, bint allow_in_index=False):
    """Ranges (offset, nbytes) of a shard to fetch for parts of it, as in `read`; its size need not be known."""
    cdef Batch batch = Batch(out, PyBUF_WRITABLE, axes)
    cdef View view = View(entries)
    cdef sc_read_item item
    cdef sc_entry *ranges = NULL
    cdef sc_index_extent extent
    cdef int64_t strides[32]
    cdef sc_where where
    cdef sc_status status
    cdef size_t n = 0, capacity = 64, i
    if not chain.is_shard:
        raise ValueError("only a shard has ranges")
    memset(&item, 0, sizeof(item))
    item.chain = &chain.chain
    item.source.entries = <const sc_entry *>view.words(2 * chain.chain.n_chunks)
    batch.array_strides(strides)
    batch.read_parts(&chain.chain, parts, False, strides, &item.box, &item.pick, &item.dst)
    extent.shard_nbytes = MAX_OBJECT_NBYTES if shard_nbytes is None else shard_nbytes
    extent.nbytes = chain.chain.index.nbytes
    if extent.shard_nbytes < extent.nbytes:
        raise ValueError(f"shard of {extent.shard_nbytes} bytes cannot hold its index of {extent.nbytes}")
    extent.offset = 0 if chain.chain.index.at_start else extent.shard_nbytes - extent.nbytes
    sc_where_clear(&where)
    try:
        while True:
            free(ranges)
            ranges = <sc_entry *>malloc(capacity * sizeof(sc_entry))
            if ranges == NULL:
                raise MemoryError
            with nogil:
                status = sc_plan_ranges(&item, &extent, allow_in_index, max_gap_nbytes, max_nbytes, ranges, capacity,
                                        &n, &where)
            raise_status(status, &where)
            if n <= capacity:
                return [(ranges[i].offset, ranges[i].nbytes) for i in range(n)]
            capacity = n
    finally:
        free(ranges)


def load_index(Chain chain, stored, out):
    """Decode a stored index, checksums checked, into `out`, n_chunks pairs."""
    cdef View source = View(stored), to = View(out, PyBUF_WRITABLE)
    cdef sc_entry *entries
    cdef sc_where where
    cdef sc_status status
    if chain.inner is None:
        raise ValueError("only a shard has an index")
    sc_where_clear(&where)
    entries = <sc_entry *>to.words(2 * chain.chain.n_chunks)
    if source.nbytes() != chain.chain.index.nbytes:
        where.nbytes, where.limit, where.in_index = source.nbytes(), chain.chain.index.nbytes, True
        raise_status(SC_TOO_SHORT, &where)
    with nogil:
        status = sc_index_verify(&chain.chain.index, source.data(), &where)
        if status == SC_OK:
            sc_index_load(&chain.chain, source.data(), entries)
    raise_status(status, &where)


def scan(Chain chain, sources, sizes, *, unsigned n_threads=1, bint allow_in_index=False, Cancel cancel=None):
    """Read and check the indexes of many shards; fill `sizes` with n_chunks encoded sizes for each, 2^64-1 for absent.

    sources: as for `read`, without ranges of shards.
    """
    cdef Batch batch = Batch(b"", PyBUF_SIMPLE, ())
    cdef View to = View(sizes, PyBUF_WRITABLE)
    cdef size_t n = len(sources), i = 0
    cdef sc_source *places = NULL
    cdef sc_scan_plan plan
    cdef sc_where where
    cdef sc_status status
    if chain.inner is None:
        raise ValueError("only a shard has an index")
    memset(&plan, 0, sizeof(plan))
    plan.sizes = to.words(n * chain.chain.n_chunks)
    places = <sc_source *>calloc(n + 1, sizeof(sc_source))
    if places == NULL:
        raise MemoryError
    try:
        for source in sources:
            batch.read_source(source, &places[i])
            i += 1
        cancel = entered(cancel)
        plan.shard, plan.sources, plan.n_sources = &chain.chain, places, n
        plan.allow_in_index, plan.n_threads, plan.cancel = allow_in_index, n_threads, &cancel.cancel
        with nogil:
            status = sc_scan(&plan, &where)
        cancel.raise_caught()
        raise_status(status, &where, batch.paths)
    finally:
        free(places)


def store_index(Chain chain, entries, out):
    """Encode n_chunks pairs, in C order, as the index is stored, with its checksums."""
    cdef View source = View(entries), to = View(out, PyBUF_WRITABLE)
    cdef const sc_entry *pairs
    if chain.inner is None:
        raise ValueError("only a shard has an index")
    pairs = <const sc_entry *>source.words(2 * chain.chain.n_chunks)
    if to.nbytes() != chain.chain.index.nbytes:
        raise ValueError(f"{to.nbytes()} bytes where {chain.chain.index.nbytes} are due")
    with nogil:
        sc_index_store(&chain.chain, pairs, to.data())


# ---- encoded inner chunks -------------------------------------------------------------------------------------------


cdef class OpenShard:
    """A shard whose index has been read, and whose inner chunks can be had as they are stored (csrc/sc_fetch.h).

    source: as for `read`. The object stays open, so what is fetched belongs to that index; `close` ends it.
    """

    cdef sc_fetch held
    cdef Batch batch
    cdef Chain chain
    cdef object memory
    cdef int n_at_work

    def __cinit__(self, Chain chain, source):
        cdef sc_source place_
        cdef sc_where where
        cdef sc_status status
        if not chain.is_shard:
            raise ValueError("only a shard has an index")
        self.chain = chain
        self.batch = Batch(b"", PyBUF_SIMPLE, ())
        self.batch.read_source(source, &place_)
        if isinstance(source, Fetched):
            self.memory = (<Fetched>source).memory
        elif source is not None and not isinstance(source, (str, int)):
            self.memory = memoryview(source).cast("B")
        with nogil:
            status = sc_fetch_begin(&self.held, &chain.chain, &place_, &where)
        where.shard = 0
        raise_status(status, &where, self.batch.paths)

    def __dealloc__(self):
        if self.chain is not None:
            sc_fetch_end(&self.held)

    def close(self):
        """Let go of the file. Nothing can be fetched afterwards."""
        if self.n_at_work:
            raise ValueError("another thread is fetching from this shard")
        sc_fetch_end(&self.held)
        self.held.entries = NULL

    @property
    def missing(self):
        """Is there no such object?"""
        return bool(self.held.missing)

    @property
    def nbytes(self):
        """Size of the object."""
        return self.held.nbytes

    @property
    def fills_absent(self):
        """Are absent inner chunks this reader's business? Not with a range among others."""
        return self.held.source.entries == NULL or bool(self.held.source.fill_absent)

    @property
    def stats(self):
        return stats_dict(&self.held.stats)

    def entries(self, out, *, bint check=False, bint allow_in_index=False):
        """Copy the index to `out`, n_chunks pairs; with `check`, raise for the first entry that cannot be true."""
        cdef View to = View(out, PyBUF_WRITABLE)
        cdef uint64_t n = self.chain.chain.n_chunks
        cdef uint64_t *words = to.words(2 * n)
        cdef sc_where where
        cdef sc_status status = SC_OK
        if self.held.entries == NULL:
            raise ValueError("there is no index: the shard is missing or closed")
        sc_where_clear(&where)
        if check:
            status = sc_index_check(self.held.entries, n, &self.held.extent, allow_in_index, &where)
        memcpy(words, self.held.entries, n * sizeof(sc_entry))
        where.shard = 0
        raise_status(status, &where, self.batch.paths)

    def range(self, uint64_t offset, uint64_t nbytes):
        """Bytes of the object, whatever they mean."""
        cdef bytes result
        cdef uint8_t *dst
        cdef sc_where where
        cdef sc_status status
        if self.held.entries == NULL or self.held.source.entries != NULL:
            raise ValueError("the shard is missing, closed, or only a part of it is here")
        if offset > self.held.nbytes or nbytes > self.held.nbytes - offset:
            raise ValueError(f"{nbytes} bytes at offset {offset} of a shard of {self.held.nbytes}")
        result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>nbytes)
        dst = <uint8_t *>PyBytes_AsString(result)
        self.n_at_work += 1
        with nogil:
            status = sc_fetch_range(&self.held, offset, nbytes, dst, &where)
        self.n_at_work -= 1
        where.shard = 0
        raise_status(status, &where, self.batch.paths)
        return result

    def fetch(self, positions, places, *, uint64_t max_nbytes, uint64_t max_gap_nbytes=65536,
              bint allow_in_index=False):
        """Fetch inner chunks, as many from the first on as fit into max_nbytes, but at least one.

        positions: numbers of 64 bits, C order over the grid. places: as many (offset, nbytes) pairs, filled with where
        in the returned buffer each one is: (2^64-1, 2^64-1) absent; (2^64-1, 0) not in this range of the shard.
        Returns (buffer, how many were taken).
        """
        cdef View wanted = View(positions), to = View(places, PyBUF_WRITABLE)
        cdef sc_fetch_batch batch
        cdef sc_where where
        cdef sc_status status
        cdef uint64_t n = wanted.nbytes() // 8
        if self.held.entries == NULL:
            raise ValueError("there is no index: the shard is missing or closed")
        memset(&batch, 0, sizeof(batch))
        batch.positions, batch.n = wanted.words(n), n
        batch.places = <sc_entry *>to.words(2 * n)
        batch.max_nbytes, batch.max_gap_nbytes, batch.allow_in_index = max_nbytes, max_gap_nbytes, allow_in_index
        self.n_at_work += 1
        with nogil:
            status = sc_fetch_chunks(&self.held, &batch, &where)
        self.n_at_work -= 1
        result = self.memory if batch.bytes == NULL else adopt(batch.bytes, batch.nbytes)
        where.shard = 0
        raise_status(status, &where, self.batch.paths)
        return (b"" if result is None else result), batch.n_taken


# ---- writing -------------------------------------------------------------------------------------------------------


# Ways to append, as `access.placement` names them.
APPEND_WAYS = {"direct": SC_APPEND_DIRECT, "leap": SC_APPEND_LEAP, "index": SC_APPEND_INDEX}


def direct_append_works(str folder):
    """Does one write append as a whole here? To be asked only of file systems of which that is known (csrc/sc_append.h)."""
    cdef bytes name = os.fsencode(folder)
    cdef const char *chars = PyBytes_AsString(name)
    cdef bint works
    with nogil:
        works = sc_append_direct_works(chars)
    return bool(works)


FAULTS = {"count": SC_FAULT_COUNT, "kill": SC_FAULT_KILL, "error": SC_FAULT_ERROR, "short": SC_FAULT_SHORT,
          "torn": SC_FAULT_TORN}


def set_fault(uint64_t n, str action, uint64_t value=0):
    """For tests: what shall happen at the n-th call that changes a file system (csrc/sc_fault.h)."""
    sc_fault_arm(n, <sc_fault_action><int>FAULTS[action], value)


def end_fault():
    """For tests: no fault any more; the names of the calls since `set_fault`."""
    cdef uint64_t n = sc_fault_disarm()
    cdef const char *call
    names = []
    for i in range(n):
        call = sc_fault_call(i)
        if call == NULL:
            break
        names.append(text(call))
    return names


cdef class Stamp:
    cdef sc_file_stamp stamp

    def __cinit__(self, uint64_t nbytes, int64_t mtime_ns, int64_t ctime_ns):
        self.stamp.nbytes, self.stamp.mtime_ns, self.stamp.ctime_ns = nbytes, mtime_ns, ctime_ns


cdef int read_old(Batch batch, object old, sc_write_item *item) except -1:
    """(source, nbytes, entries or None, carries or None, new entries or None, data_offset or None, stamp or None, append).

    See sc_write_item. A source of None: there was no object, and one that is there by now must not be replaced.
    """
    cdef View view
    cdef uint64_t n = item.chain.n_chunks
    cdef size_t i
    cdef Stamp seen
    source, nbytes, old_entries, carries, entries, data_offset, stamp, append = old
    batch.read_source(source, &item.old)
    batch.paths.pop()
    if source is None:
        item.only_new = True
    if append is not None:
        if append not in APPEND_WAYS or old_entries is None or entries is None or carries is not None or \
                not item.old.is_open or item.path == NULL or <uint64_t>data_offset < <uint64_t>nbytes:
            raise ValueError(f"cannot append in this way: {append!r}")
        item.append = APPEND_WAYS[append]
    if item.old.is_open:
        item.old.nbytes = 0 if nbytes is None else nbytes
    if stamp is not None:
        seen = Stamp(*stamp)
        batch.keep.append(seen)
        item.stamp = &seen.stamp
    if data_offset is not None:
        item.data_offset = data_offset
    if old_entries is not None:
        view = View(old_entries)
        batch.keep.append(view)
        item.old_entries = <const sc_entry *>view.words(2 * n)
    if entries is not None:
        view = View(entries, PyBUF_WRITABLE)
        batch.keep.append(view)
        item.entries = <sc_entry *>view.words(2 * n)
    if carries is not None:
        view = View(carries)
        batch.keep.append(view)
        item.n_carries = view.nbytes() // sizeof(sc_carry)
        item.carries = <const sc_carry *>view.words(3 * item.n_carries)
        for i in range(item.n_carries):
            if item.carries[i].source_offset > item.old.nbytes or \
                    item.carries[i].nbytes > item.old.nbytes - item.carries[i].source_offset:
                raise ValueError(f"carried run of {item.carries[i].nbytes} bytes at {item.carries[i].source_offset} "
                                 f"is not inside the old object of {item.old.nbytes}")
    return 0


def write(items, value, axes, *, str order="morton", bint write_empty=False, bint keep_empty=False, bint sync=False,
          bint allow_in_index=False, staging=None, unsigned n_threads=1, uint64_t unit_nbytes=524288,
          Cancel cancel=None):
    """Write parts of one array into many objects.

    items: sequence of (chain, path or None, parts, old or None); parts as for `read`. With a path the file is replaced
    (or removed when nothing is left in it), else the new object comes back.
    staging: folder for temporary names. Returns ([Bytes of the new object, None when it is empty or in a file],
    counters, ([positions of items that were to be made but exist], [of those whose file cannot be appended to]));
    nothing has been done with these.
    """
    cdef Batch batch = Batch(value, PyBUF_SIMPLE, axes)
    cdef size_t n = len(items), i = 0
    cdef sc_write_plan plan
    cdef sc_write_item *item
    cdef sc_source target
    cdef Chain chain
    cdef uint8_t *src
    memset(&plan, 0, sizeof(plan))
    plan.rules.order = order_of(order)
    plan.items = <sc_write_item *>calloc(n + 1, sizeof(sc_write_item))
    if plan.items == NULL:
        raise MemoryError
    try:
        batch.array_strides(plan.src_strides)
        for chain, path, parts, old in items:
            item = &plan.items[i]
            item.chain = &chain.chain
            chain.refuse_opaque()
            batch.keep.append(chain)
            if path is not None and not isinstance(path, str):
                raise TypeError(f"path must be str or None, not {type(path).__name__}")
            batch.read_source(path, &target)
            item.path = target.path
            batch.read_parts(&chain.chain, parts, True, plan.src_strides, &item.box, &item.pick, &src)
            item.src = src
            item.data_offset = chain.chain.index.nbytes if chain.inner is not None and chain.chain.index.at_start else 0
            if old is not None:
                read_old(batch, old, item)
            i += 1
        plan.n_items = n
        plan.rules.write_empty = write_empty
        plan.rules.keep_empty = keep_empty
        plan.sync = sync
        plan.allow_in_index = allow_in_index
        plan.staging = batch.read_folder(staging)
        plan.n_threads = n_threads
        plan.unit_nbytes = unit_nbytes
        return run_write(&plan, batch, cancel)
    finally:
        free_write(&plan, n)


cdef tuple run_write(sc_write_plan *plan, Batch batch, Cancel cancel):
    """Run a complete plan; what `write` returns."""
    cancel = entered(cancel)
    plan.cancel = &cancel.cancel
    cdef sc_where where
    cdef sc_status status
    cdef size_t i
    with nogil:
        status = sc_write(plan, &where)
    results = []
    for i in range(plan.n_items):
        if plan.items[i].result != NULL:
            results.append(adopt(plan.items[i].result, plan.items[i].result_nbytes))
            plan.items[i].result = NULL
        else:
            results.append(None)
    cancel.raise_caught()
    raise_status(status, &where, batch.paths)
    return results, stats_dict(&plan.stats), (
        [i for i in range(plan.n_items) if plan.items[i].exists],
        [i for i in range(plan.n_items) if plan.items[i].declined],
    )


cdef void free_write(sc_write_plan *plan, size_t n) noexcept:
    cdef size_t i
    for i in range(n):
        free(plan.items[i].result)
    free(plan.items)


cdef class Encoded:
    """Inner chunks that are encoded already: positions in the index, and a buffer (or None: absent) for each."""

    cdef sc_encoded *chunks
    cdef size_t n
    cdef list keep

    def __cinit__(self, Chain chain, positions, buffers):
        cdef uint64_t n_chunks = chain.chain.n_chunks
        cdef View view
        cdef size_t i = 0
        if not chain.is_shard:
            raise ValueError("inner chunks of this chain cannot be stored one by one")
        self.n = len(positions)
        if self.n != <size_t>len(buffers):
            raise ValueError(f"{self.n} positions, but {len(buffers)} buffers")
        self.keep = []
        self.chunks = <sc_encoded *>calloc(self.n + 1, sizeof(sc_encoded))
        if self.chunks == NULL:
            raise MemoryError
        for position, buffer in zip(positions, buffers):
            self.chunks[i].position = position
            if self.chunks[i].position >= n_chunks:
                raise ValueError(f"inner chunk {position} of a shard of {n_chunks}")
            if buffer is not None:
                view = View(buffer)
                self.keep.append(view)
                self.chunks[i].bytes, self.chunks[i].nbytes = view.data(), view.nbytes()
                if self.chunks[i].bytes == NULL:
                    self.chunks[i].bytes = <const uint8_t *>b""
            i += 1

    def __dealloc__(self):
        free(self.chunks)


def write_encoded(items, *, bint keep_empty=False, bint sync=False, staging=None, unsigned n_threads=1,
                  uint64_t unit_nbytes=524288, Cancel cancel=None):
    """Write encoded inner chunks into many shards.

    items: sequence of (chain, path or None, positions, buffers, old or None, footer or None); the chunks are laid out in
    this order, each position occurs once, the footer comes behind them. Otherwise as `write`.
    """
    cdef Batch batch = Batch(b"", PyBUF_SIMPLE, ())
    cdef size_t n = len(items), i = 0
    cdef sc_write_plan plan
    cdef sc_write_item *item
    cdef sc_source target
    cdef Encoded encoded
    cdef View view
    cdef Chain chain
    memset(&plan, 0, sizeof(plan))
    plan.items = <sc_write_item *>calloc(n + 1, sizeof(sc_write_item))
    if plan.items == NULL:
        raise MemoryError
    try:
        for chain, path, positions, buffers, old, footer in items:
            item = &plan.items[i]
            encoded = Encoded(chain, positions, buffers)
            batch.keep.append((chain, encoded))
            if path is not None and not isinstance(path, str):
                raise TypeError(f"path must be str or None, not {type(path).__name__}")
            batch.read_source(path, &target)
            item.chain = &chain.chain
            item.path = target.path
            item.encoded, item.n_encoded = encoded.chunks, encoded.n
            if footer is not None:
                view = View(footer)
                batch.keep.append(view)
                item.footer, item.footer_nbytes = view.data(), view.nbytes()
            item.data_offset = chain.chain.index.nbytes if chain.chain.index.at_start else 0
            if old is not None:
                read_old(batch, old, item)
            i += 1
        plan.n_items = n
        plan.rules.keep_empty = keep_empty
        plan.sync = sync
        plan.staging = batch.read_folder(staging)
        plan.n_threads = n_threads
        plan.unit_nbytes = unit_nbytes
        return run_write(&plan, batch, cancel)
    finally:
        free_write(&plan, n)


# ---- locks ---------------------------------------------------------------------------------------------------------


LOCK_OUTCOMES = {SC_LOCK_HELD: "held", SC_LOCK_NO_FILE: "no file", SC_LOCK_BUSY: "busy",
                 SC_LOCK_UNSUPPORTED: "unsupported", SC_LOCK_DENIED: "denied"}


cdef class FileLock:
    """The lock of one file against other processes (csrc/sc_lock.h); given back when the object goes, at the latest."""

    cdef sc_lock lock

    def __cinit__(self):
        self.lock.fd = -1

    def __dealloc__(self):
        sc_lock_release(&self.lock)

    def try_acquire(self, str path):
        """Take the lock if nobody has it: "held", "no file", "busy", "unsupported" or "denied"."""
        cdef bytes name = os.fsencode(path)
        cdef const char *chars = PyBytes_AsString(name)
        cdef sc_lock_outcome outcome
        cdef sc_status status
        cdef sc_where where
        if self.lock.fd >= 0:
            raise ValueError("it is held already")
        with nogil:
            status = sc_lock_try(&self.lock, chars, &outcome, &where)
        where.shard = 0
        raise_status(status, &where, [name])
        return LOCK_OUTCOMES[outcome]

    def release(self):
        """Give it back; nothing when it is not held, or is the parent process's."""
        with nogil:
            sc_lock_release(&self.lock)

    @property
    def fd(self):
        """Descriptor of the locked file; -1 when it is not held."""
        return self.lock.fd


def file_locks_held():
    """Number of files that this process holds locks of."""
    return sc_lock_count()


# ---- a file in the making ------------------------------------------------------------------------------------------


cdef class NewFile:
    """A file that takes its place when it is whole (csrc/sc_newfile.h); forgotten with the object, unless committed.

    Several threads may write at a time; commit and abort are for one, when the others are done.

    staging: folder for temporary names. shared: it has a name from the start, so that other processes can join it
    with (path, temp, staging or None, n_made) of that file: that makes a shared one too, which the object does not forget.
    """

    cdef sc_newfile file
    cdef bytes path, temp, staging
    cdef bint joined
    cdef int n_writing

    def __cinit__(self, str path, *, str staging=None, bint shared=False, str temp=None, unsigned n_made=0):
        cdef const char *chars
        cdef const char *temp_chars = NULL
        cdef const char *staging_chars = NULL
        cdef sc_where where
        cdef sc_status status
        self.file.fd = -1
        self.path = os.fsencode(path)
        chars = PyBytes_AsString(self.path)
        self.joined = temp is not None
        if staging is not None:
            self.staging = os.fsencode(staging)
            staging_chars = PyBytes_AsString(self.staging)
        if self.joined:
            self.temp = os.fsencode(temp)
            temp_chars = PyBytes_AsString(self.temp)
        sc_where_clear(&where)
        with nogil:
            if temp_chars != NULL:
                status = sc_newfile_join(&self.file, chars, temp_chars, staging_chars, n_made, &where)
            elif shared:
                status = sc_newfile_begin_shared(&self.file, chars, staging_chars, &where)
            else:
                status = sc_newfile_begin(&self.file, chars, staging_chars, &where)
        self.settle(status, &where)

    def __dealloc__(self):
        cdef sc_where where
        if self.file.fd < 0:
            return
        if self.joined:
            sc_newfile_leave(&self.file, False, &where)
        else:
            self.forget()

    cdef void forget(self) noexcept nogil:
        """Of the file, all but the staging folder is gone."""
        sc_newfile_abort(&self.file)
        if self.file.staged:
            sc_staging_leave(self.file.staging)

    @property
    def place(self):
        """(path, temp, staging or None, n_made), for others to join."""
        self.check_open()
        return (os.fsdecode(self.file.path), None if self.file.temp == NULL else os.fsdecode(self.file.temp),
                os.fsdecode(self.staging) if self.file.staged else None, self.file.n_made)

    cdef int settle(self, sc_status status, sc_where *where) except -1:
        where.shard = 0
        return raise_status(status, where, [self.path])

    cdef int check_open(self) except -1:
        if self.file.fd < 0:
            raise ValueError("the file has been committed or aborted")
        return 0

    cdef int check_idle(self) except -1:
        """The descriptor must not be closed under a writer: its number may be another file's next."""
        self.check_open()
        if self.n_writing:
            raise ValueError("another thread is writing to the file")
        return 0

    def write(self, data, uint64_t offset):
        """Write bytes at an offset."""
        cdef View source = View(data)
        cdef sc_where where
        cdef sc_status status
        self.check_open()
        if offset > MAX_OBJECT_NBYTES - source.nbytes():
            raise ValueError(f"{source.nbytes()} bytes at offset {offset} are beyond any file")
        sc_where_clear(&where)
        self.n_writing += 1
        with nogil:
            status = sc_file_write(self.file.fd, self.file.path, source.data(), source.nbytes(), offset, &where)
        self.n_writing -= 1
        self.settle(status, &where)

    def truncate(self, uint64_t nbytes):
        """Make it so long."""
        cdef sc_where where
        cdef sc_status status
        self.check_open()
        if nbytes > MAX_OBJECT_NBYTES:
            raise ValueError(f"{nbytes} bytes are beyond any file")
        sc_where_clear(&where)
        with nogil:
            status = sc_newfile_truncate(&self.file, nbytes, &where)
        self.settle(status, &where)

    def commit(self, *, bint sync=False, bint only_new=False):
        """Give it its name, in place of what had it; with `sync` it is on disk then. The file is closed then.

        only_new: nothing is replaced; False, and the file is as it was, when there is something.
        """
        cdef sc_where where
        cdef sc_status status
        cdef c_bool taken = False
        self.check_idle()
        sc_where_clear(&where)
        with nogil:
            status = sc_newfile_commit(&self.file, sync, &taken if only_new else NULL, &where)
            if not taken:
                self.forget()
        self.settle(status, &where)
        return not taken

    def leave(self, *, bint sync=False):
        """Let go of a shared file, and leave it to the others; with `sync`, what was written is on disk then."""
        cdef sc_where where
        cdef sc_status status
        self.check_idle()
        sc_where_clear(&where)
        with nogil:
            status = sc_newfile_leave(&self.file, sync, &where)
        self.settle(status, &where)

    def abort(self):
        """Forget it; nothing after a commit."""
        if self.file.fd >= 0:
            self.check_idle()
            with nogil:
                self.forget()


# ---- the module ----------------------------------------------------------------------------------------------------


def pool_size():
    """Helper threads that exist in this process."""
    return sc_pool_size()


def library_version(str library):
    """Version of a linked library ("zstd", "lz4", "zlib-ng", "blosc2"), None for an unknown name."""
    return text(sc_codec_library_version(library.encode()))


cdef int start() except -1:
    cdef const char *what = NULL
    sc_cpu_init()
    sc_crc32c_init()
    if sc_pool_init() != SC_OK or sc_worker_init() != SC_OK or sc_lock_init() != SC_OK or sc_cache_init() != SC_OK:
        raise MemoryError("cannot install fork handlers")
    if sc_codec_selftest(&what) != SC_OK:
        raise ImportError(f"shardcodec was built against a version of {text(what)} that behaves otherwise than declared")
    return 0


start()
