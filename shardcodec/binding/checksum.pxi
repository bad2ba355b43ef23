# checksum.pxi - the processor and crc32c
# SPDX-License-Identifier: MIT

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


# Below this many bytes the GIL is kept: giving it away and taking it back costs 60 ns, an eighth of what 32 KiB take, and
# a switch interval (5 ms) when others want it. What they wait for here is 2 us, 45 us with the portable code.
cdef enum:
    RELEASE_NBYTES = 131072


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
