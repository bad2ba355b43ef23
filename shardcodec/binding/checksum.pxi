# checksum.pxi - processor features and crc32c
# SPDX-License-Identifier: MIT

cdef tuple feature_names(uint32_t bits):
    cdef unsigned i
    return tuple(text(sc_cpu_feature_name(i)) for i in range(32)
                 if bits >> i & 1 and sc_cpu_feature_name(i) != NULL)


def cpu_features():
    """Return the features of the processor, the features in use, and the value of SHARDCODEC_CPU."""
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
                raise ValueError(f"expected one of {crc32c_implementations()}, got crc32c variant {impl!r}, which this "
                                 f"processor cannot run")
            return i
    raise ValueError(f"expected one of {crc32c_implementations()}, got crc32c variant {impl!r}")


def crc32c_implementations():
    """Return the names of the variants that this processor can run."""
    cdef size_t i
    return [text(sc_crc32c_impl_name(i)) for i in range(sc_crc32c_n_impls()) if sc_crc32c_impl_usable(i)]


def crc32c_chosen():
    """Return the name of the variant in use."""
    return text(sc_crc32c_impl_name(sc_crc32c_chosen()))


# Smaller inputs keep the GIL: to release and take it costs 60 ns, an eighth of the time for 32 KiB, and up to a switch
# interval (5 ms) if other threads want it. Those threads wait at most 2 us here, or 45 us with the portable code.
cdef enum:
    RELEASE_NBYTES = 131072


cdef object sum_of(data, uint32_t value, impl):
    cdef Py_buffer view
    cdef uint32_t crc
    cdef size_t i = 0
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


def crc32c(data, uint32_t value=0, *, impl=None):
    return sum_of(data, value, impl)


# Under the stable ABI of 3.11, a Cython function receives its arguments in a tuple, which takes 26 of the 66 ns of a
# call for 64 bytes. So Python gets a hand-written function as crc32c: fast path for `data` alone, otherwise the function
# above.
_crc32c_of_any_arguments = crc32c


cdef PyObject *crc32c_fast(PyObject *module, PyObject **args, Py_ssize_t n, PyObject *names) except NULL:
    cdef Py_ssize_t i
    if n == 1 and names == NULL:
        result = sum_of(<object>args[0], 0, None)
    else:
        named = () if names == NULL else <tuple>names
        result = _crc32c_of_any_arguments(*[<object>args[i] for i in range(n)],
                                          **{name: <object>args[n + i] for i, name in enumerate(named)})
    Py_INCREF(result)
    return <PyObject *>result


cdef PyMethodDef crc32c_method
crc32c_method.ml_name = "crc32c"
crc32c_method.ml_meth = <PyCFunction><void *>crc32c_fast
crc32c_method.ml_flags = METH_FASTCALL | METH_KEYWORDS
crc32c_method.ml_doc = (b"crc32c(data, value=0, *, impl=None)\n--\n\n"
                        b"CRC-32C of `data`, extending `value`; see `shardcodec.checksum`.")
crc32c = PyCFunction_NewEx(&crc32c_method, NULL, <PyObject *>__name__)


def crc32c_copy(dst, src, uint32_t value=0, *, impl=None):
    """Copy `src` to the start of `dst` and return its CRC-32C, in one pass."""
    cdef View to = View(dst, PyBUF_WRITABLE), source = View(src)
    cdef size_t n = source.nbytes(), i
    cdef uint32_t crc
    if n > to.nbytes():
        raise ValueError(f"expected a destination of at least {n} bytes, got {to.nbytes()}")
    if to.data() < source.data() + n and source.data() < to.data() + n:
        raise ValueError("expected separate buffers, but source and destination overlap")
    if impl is not None:
        i = find_impl(impl)
        return sc_crc32c_copy_impl(i, value, to.data(), source.data(), n)
    with nogil:
        crc = sc_crc32c_copy(value, to.data(), source.data(), n)
    return crc


def crc32c_combine(uint32_t a, uint32_t b, uint64_t nbytes_b):
    """Return the CRC-32C of two concatenated byte strings, from their checksums and the length of the second."""
    return sc_crc32c_combine(a, b, nbytes_b)


def crc32c_turned(data, offsets, sizes):
    """Return the CRC-32C of the last four bytes and then of the others, of pieces of `data`, as uint32; offsets and sizes are uint64."""
    cdef View source = View(data), places = View(offsets), lengths = View(sizes)
    cdef size_t n = lengths.nbytes() // 8, i
    cdef uint64_t *at = places.words(n)
    cdef uint64_t *nbytes = lengths.words(n)
    crcs = bytearray(4 * n)
    cdef View to = View(crcs, PyBUF_WRITABLE)
    cdef uint32_t *out = <uint32_t *>to.data()
    for i in range(n):
        if nbytes[i] > source.nbytes() or at[i] > source.nbytes() - nbytes[i]:
            raise ValueError(f"expected pieces within {source.nbytes()} bytes, got {nbytes[i]} bytes at {at[i]}")
    with nogil:
        for i in range(n):
            out[i] = sc_crc32c_turned(source.data() + <size_t>at[i], <size_t>nbytes[i])
    return crcs
