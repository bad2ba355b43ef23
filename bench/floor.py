"""Build and call floor.c, the loop that all ratios refer to, and floor_keys.c, a list of keys."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from data import Array, Box, Case

CODECS = {"raw": 0, "zstd 1": 1, "gzip 1": 2, "blosc lz4 shuffle": 3}

# Blosc's clevel 5 is LZ4's acceleration 10 - 5.
LEVELS = {"raw": 0, "zstd 1": 1, "gzip 1": 1, "blosc lz4 shuffle": 5}

Triple = ctypes.c_uint64 * 3


class Plan(ctypes.Structure):
    """`struct floor_plan`."""

    _fields_ = [
        *((name, Triple) for name in ("array", "shard", "inner", "start", "count")),
        ("itemsize", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("codec", ctypes.c_int32),
        ("level", ctypes.c_int32),
        ("n_threads", ctypes.c_int32),
        ("root", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("n_rows", ctypes.c_uint64),
    ]


def archive() -> Path | None:
    """Find the static library in the blosc2 wheel, without importing the package."""
    spec = importlib.util.find_spec("blosc2")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "lib" / "libblosc2.a"
    return path if path.exists() else None


@cache
def library() -> ctypes.CDLL:
    """Compile floor.c and load it."""
    source = Path(__file__).with_name("floor.c")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "floor.so")
        command = [os.environ.get("CC", "cc"), "-std=c11", "-O3", "-march=native", "-shared", "-fPIC"]
        command += ["-fvisibility=hidden", "-Wl,--exclude-libs,ALL", "-o", str(target), str(source)]
        subprocess.run([*command, str(archive()), "-lpthread", "-ldl", "-lrt", "-lm"], check=True)
        return ctypes.CDLL(str(target))


@cache
def _keys() -> Any:
    """Compile floor_keys.c and load it."""
    source = Path(__file__).with_name("floor_keys.c")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "floor_keys.so")
        command = [os.environ.get("CC", "cc"), "-std=c11", "-O3", "-shared", "-fPIC", "-fvisibility=hidden"]
        include = f"-I{sysconfig.get_paths()['include']}"
        subprocess.run([*command, include, "-o", str(target), str(source)], check=True)
        found = ctypes.PyDLL(str(target))
    found.floor_keys.argtypes, found.floor_keys.restype = [ctypes.c_uint], ctypes.py_object
    return found


def keys(edge: int) -> list[bytes]:
    """Make a list of the keys of edge x edge entries."""
    return _keys().floor_keys(edge)  # type: ignore[no-any-return]


def _triple(values: Any, ahead: int) -> Any:
    values = tuple(values)
    return Triple(*(ahead,) * (3 - len(values)), *values)


def _run(call: Any, path: Path, case: Case, box: Box, data: Array, n_threads: int, **more: Any) -> None:
    plan = Plan(
        array=_triple(case.shape, 1),
        shard=_triple(case.shard, 1),
        inner=_triple(case.inner, 1),
        start=_triple((s.start for s in box), 0),
        count=_triple((s.stop - s.start for s in box), 1),
        itemsize=np.dtype(case.dtype).itemsize,
        rank=len(case.shape),
        codec=CODECS[case.codec],
        level=LEVELS[case.codec],
        n_threads=n_threads,
        root=os.fsencode(path),
        data=data.ctypes.data,
        **more,
    )
    failure = call(ctypes.byref(plan))
    if failure:
        raise OSError(failure, os.strerror(failure), str(path))


def read(path: Path, case: Case, box: Box, n_threads: int) -> Array:
    """Read a box into new memory, as the other peers do."""
    out = np.empty([s.stop - s.start for s in box], dtype=case.dtype)
    _run(library().floor_read, path, case, box, out, n_threads)
    return out


def read_rows(path: Path, case: Case, rows: Array, n_threads: int) -> Array:
    """Read rows in any order; inner chunks without such a row are skipped."""
    out = np.empty((len(rows), *case.shape[1:]), dtype=case.dtype)
    places = np.argsort(rows, kind="stable").astype(np.uint64)
    ascending = rows[places].astype(np.uint64)
    chosen = {"rows": ascending.ctypes.data, "places": places.ctypes.data, "n_rows": len(rows)}
    _run(library().floor_read, path, case, case.whole, out, n_threads, **chosen)
    return out


def write(path: Path, case: Case, values: Array, n_threads: int) -> None:
    """Write a whole array."""
    assert values.flags.c_contiguous
    assert values.shape == case.shape
    _run(library().floor_write, path, case, case.whole, values, n_threads)
