# _native.pyx - the one extension module: buffers and numbers in, C calls without the GIL, exceptions out
# SPDX-License-Identifier: MIT
#
# The module has no policy and no loop over inner chunks. A function checks its numbers against its buffers, releases the
# GIL, calls C, and converts the status to an exception in one table (`raise_status`). It uses the buffer protocol instead
# of the numpy C API, so that one binary serves every Python from 3.11 on (stable ABI).
#
# In a free-threaded Python, critical sections of objects take the place of the GIL where a method relies on it.
#
# One module means one thread pool, one cache and one copy of each compressor. Its source is in binding/, one file per
# subject, included in the order of their dependencies.

cimport cython
from cpython.buffer cimport (PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE, Py_buffer, PyBuffer_FillInfo, PyBuffer_Release,
                             PyObject_GetBuffer)
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_New, PyList_SetItem
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.slice cimport PySlice_AdjustIndices, PySlice_Unpack
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy, memset, strlen

from shardcodec.csrc.base cimport *
from shardcodec.csrc.chain cimport *
from shardcodec.csrc.codecs cimport *
from shardcodec.csrc.io cimport *
from shardcodec.csrc.kernels cimport *
from shardcodec.csrc.plan cimport *

import os
import struct
import sys
from collections import namedtuple
from threading import get_ident, main_thread

from shardcodec.errors import ChecksumError, CodecError, LockError, ShardFileError, ShardFormatError


cdef extern from "Python.h":
    ctypedef PyObject *(*PyCFunction)(PyObject *, PyObject *)
    ctypedef struct PyMethodDef:
        const char *ml_name
        PyCFunction ml_meth
        int ml_flags
        const char *ml_doc
    int METH_FASTCALL
    int METH_KEYWORDS
    object PyCFunction_NewEx(PyMethodDef *method, PyObject *self, PyObject *module)
    int PyGC_Disable()
    int PyGC_Enable()


ctypedef uint64_t pair[2]

include "binding/errors.pxi"
include "binding/buffers.pxi"
include "binding/checksum.pxi"
include "binding/index.pxi"
include "binding/strided.pxi"
include "binding/chain.pxi"
include "binding/cache.pxi"
include "binding/batch.pxi"
include "binding/read.pxi"
include "binding/slices.pxi"
include "binding/present.pxi"
include "binding/open_shard.pxi"
include "binding/write.pxi"
include "binding/text.pxi"
include "binding/files.pxi"
include "binding/lock_table.pxi"
include "binding/for_tests.pxi"


def current_frames():
    """Return `sys._current_frames()`, without garbage collection.

    Before 3.11.9, Python can collect garbage in that call, and a finalizer gives other threads the GIL. One of them that starts a
    thread then keeps the GIL while it waits for the lock that the call holds, so the process stands still (CPython issue 106883).
    """
    function = sys._current_frames
    cdef bint was_enabled = PyGC_Disable()
    try:
        return function()
    finally:
        if was_enabled:
            PyGC_Enable()


def library_version(str library):
    """Return the version of a linked library ("zstd", "lz4", "zlib-ng", "blosc2"), None for an unknown name."""
    return text(sc_codec_library_version(library.encode()))


def build_facts():
    """Return how this binary was compiled; ``sanitizer`` is None without one."""
    cdef sc_build facts = sc_build_facts()
    return {
        "libraries": text(facts.libraries),
        "abi3": bool(facts.is_abi3),
        "optimised": bool(facts.is_optimised),
        "assertions": bool(facts.has_assertions),
        "checks": bool(facts.has_checks),
        "sanitizer": text(facts.sanitizer),
        "compiler": text(facts.compiler),
    }


cdef int start() except -1:
    cdef const char *what = NULL
    sc_cpu_init()
    sc_crc32c_init()
    # A fork takes the mutexes in the opposite order; a thread may hold a later one when it takes one of the first three.
    if (sc_fault_init() != SC_OK or sc_staging_init() != SC_OK or sc_buffer_init() != SC_OK or
            sc_pool_init() != SC_OK or sc_worker_init() != SC_OK or sc_lock_init() != SC_OK or sc_guard_init() != SC_OK or
            sc_cache_init() != SC_OK or sc_closer_init() != SC_OK):
        raise MemoryError("cannot install fork handlers")
    if sc_codec_selftest(&what) != SC_OK:
        raise ImportError(f"expected {text(what)} to behave as declared, but its self-test failed; rebuild shardcodec")
    return 0


start()
