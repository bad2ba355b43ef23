# bench_crc32c.py - how fast is a checksum?
# SPDX-License-Identifier: MIT
"""CRC-32C through Python, against google_crc32c in the same run.

Parameters
----------
nbytes
    64 bytes: the index of a shard with 4 inner chunks. 4 KiB: 256 of them. 32 KiB to 1 MiB: inner chunks, in
    the processor's caches. 64 MiB: larger than the caches, so limited by memory.
kind
    "aligned": an array that starts on a cache line, as the engine's own buffers do. "bytes": a Python ``bytes``
    object, which is not aligned, and which Python passes faster than an array.

How to read the results: the same data are summed repeatedly, so all but 64 MiB come from a cache. A chunk that was just
read from a file is in the cache too; any other one is limited by memory in every implementation. At 64 bytes the
benchmark mostly measures a call from Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shardcodec import _native as native

Checksum = Callable[[Any], int]

KIB, MIB = 1 << 10, 1 << 20
SIZES = [64, 1 * KIB, 4 * KIB, 32 * KIB, 256 * KIB, 1 * MIB, 64 * MIB]


def name_of(nbytes: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit}-{name}"
    return f"{nbytes}-B"


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return random bytes that begin on a cache line; read-only, because google_crc32c accepts nothing else."""
    room = np.random.default_rng(nbytes).integers(0, 256, nbytes + 64, dtype=np.uint8)
    first = -room.ctypes.data % 64
    data = room[first : first + nbytes]
    data.setflags(write=False)
    return data


def google_crc32c() -> Checksum:
    google = pytest.importorskip("google_crc32c")
    if google.implementation != "c":
        pytest.skip("google_crc32c without its C extension is no peer")
    return google.value


def check_then_time(benchmark: Any, checksum: Checksum, data: Any) -> None:
    """Check the result against the portable code, which uses no special instruction; then time it."""
    assert checksum(data) == native.crc32c(data, impl="portable")
    benchmark.extra_info["bytes"] = len(data)
    benchmark.extra_info["chosen"] = native.crc32c_chosen()
    benchmark(checksum, data)


@pytest.mark.parametrize("nbytes", SIZES, ids=name_of)
@pytest.mark.parametrize("kind", ["aligned", "bytes"])
@pytest.mark.parametrize("peer", ["shardcodec", "google_crc32c"])
def bench_crc32c(benchmark: Any, peer: str, kind: str, nbytes: int) -> None:
    """Time the default call of a user: the chosen variant, no options."""
    checksum = native.crc32c if peer == "shardcodec" else google_crc32c()
    data = aligned(nbytes)
    benchmark.group = f"crc32c {name_of(nbytes)} {kind}"
    check_then_time(benchmark, checksum, data if kind == "aligned" else data.tobytes())


@pytest.mark.parametrize("nbytes", [n for n in SIZES if 4 * KIB <= n <= MIB], ids=name_of)
@pytest.mark.parametrize("impl", native.crc32c_implementations())
def bench_crc32c_variants(benchmark: Any, impl: str, nbytes: int) -> None:
    """Time each variant. Not at 64 bytes, where the search for its name would be most of the time."""
    benchmark.group = f"crc32c variants {name_of(nbytes)}"
    check_then_time(benchmark, partial(native.crc32c, impl=impl), aligned(nbytes))


@pytest.mark.parametrize("nbytes", [n for n in SIZES if n >= 4 * KIB], ids=name_of)
@pytest.mark.parametrize("how", ["one pass", "copy, then crc"])
def bench_crc32c_copy(benchmark: Any, how: str, nbytes: int) -> None:
    """Time the copy with checksum, which reads the data once instead of twice."""
    src = aligned(nbytes)
    dst = aligned(nbytes)
    dst.setflags(write=True)  # filled, so its pages exist

    def copy_then_sum() -> int:
        dst[:] = src
        return native.crc32c(dst)

    run = partial(native.crc32c_copy, dst, src) if how == "one pass" else copy_then_sum
    assert run() == native.crc32c(src, impl="portable")
    assert (dst == src).all()
    benchmark.extra_info["bytes"] = nbytes
    benchmark.group = f"crc32c copy {name_of(nbytes)}"
    benchmark(run)


@pytest.mark.parametrize("nbytes", [64 * KIB, 10**12], ids=["64-KiB", "1-TB"])
def bench_crc32c_combine(benchmark: Any, nbytes: int) -> None:
    """Time the combination of two checksums: one shift for each bit set in the length, at most 31."""
    benchmark(native.crc32c_combine, 0x12345678, 0x9ABCDEF0, nbytes)
