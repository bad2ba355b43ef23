# for_tests.pxi - names that only tests use: faults, and single steps of kernels and codecs
# SPDX-License-Identifier: MIT
#
# They are in each wheel. A fault is in the static variables of csrc/io/sc_fault.c, and the hooks that it sets in those of other
# files. A module of its own would have other copies of them all. It would reach those of this binary only through a pointer that this
# binary gives away, which is a switch as well, and a binary without a switch is not the one that the tests have run on.

FAULTS = {"count": SC_FAULT_COUNT, "kill": SC_FAULT_KILL, "error": SC_FAULT_ERROR, "short": SC_FAULT_SHORT,
          "torn": SC_FAULT_TORN, "stop": SC_FAULT_STOP}


def set_fault(uint64_t n, str action, uint64_t value=0):
    """Set the fault at the n-th call that changes a file system, for tests (csrc/io/sc_fault.h)."""
    sc_fault_arm(n, <sc_fault_action><int>FAULTS[action], value)


def end_fault():
    """Remove the fault, for tests; return the names of the calls since `set_fault`."""
    cdef uint64_t n = sc_fault_disarm()
    cdef const char *call
    names = []
    for i in range(n):
        call = sc_fault_call(i)
        if call == NULL:
            break
        names.append(text(call))
    return names


def set_memory_fault(uint64_t n, bint and_all_after=False):
    """Fail the n-th allocation of C code, for tests; with `and_all_after`, also all later ones."""
    sc_worker_drop_free()
    sc_fault_arm_memory(n, and_all_after)


def end_memory_fault():
    """Remove the memory fault, for tests; return (allocations requested, allocations alive, bytes alive, most
    bytes alive at a time)."""
    sc_worker_drop_free()
    cdef sc_fault_memory seen = sc_fault_disarm_memory()
    return seen.n_asked, seen.n_live, seen.live_nbytes, seen.peak_nbytes


def reset_latencies():
    """Forget all estimates."""
    sc_latency_reset()


def pool_size():
    """Return the number of helper threads in this process."""
    return sc_pool_size()


def index_decode(data, out, *, bint big_endian=False):
    """Convert stored pairs to native pairs."""
    cdef View source = View(data), to = View(out, PyBUF_WRITABLE)
    cdef uint64_t n = count_pairs(source)
    cdef sc_entry *entries = <sc_entry *>to.words(2 * n)
    with nogil:
        sc_index_decode(source.data(), entries, n, big_endian)


def index_encode(entries, out, *, bint big_endian=False):
    """Convert native pairs to stored pairs."""
    cdef View source = View(entries), to = View(out, PyBUF_WRITABLE)
    cdef uint64_t n = count_pairs(source)
    cdef const sc_entry *pairs = <const sc_entry *>source.words(2 * n)
    if to.nbytes() != 16 * n:
        raise ValueError(f"out: expected {16 * n} bytes, got {to.nbytes()}")
    with nogil:
        sc_index_encode(pairs, to.data(), n, big_endian)


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


def swap_items(buffer, size_t itemsize, swap):
    """Reverse units of contiguous elements in place."""
    cdef View to = View(buffer, PyBUF_WRITABLE)
    cdef Swap fields = Swap(swap, itemsize)
    if itemsize == 0 or to.nbytes() % itemsize:
        raise ValueError(f"expected whole elements of {itemsize} bytes, got {to.nbytes()} bytes")
    sc_swap_items(to.data(), to.nbytes() // itemsize, itemsize, &fields.swap)


def codec_decode(str name, data, size_t max_nbytes, **params):
    """Decode `data` with one codec to at most `max_nbytes` bytes."""
    cdef View source = View(data)
    cdef sc_op op
    read_op(&op, name, params)
    return run_codec(&op, source, False, max_nbytes)
