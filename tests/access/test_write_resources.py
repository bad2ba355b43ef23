# test_write_resources.py - memory and threads that a write takes
# SPDX-License-Identifier: MIT
"""Each program runs in its own process, so memory and threads of other tests do not count."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from helpers import run_checked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from /proc"),
    pytest.mark.skipif(
        bool(os.environ.get("SHARDCODEC_TEST_SANITIZER")),
        reason="a sanitizer keeps freed memory for a while",
    ),
]

PROGRAM = """
    import os, numpy as np, zarr
    import shardcodec
    from shardcodec import _native

    def status(name):
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

    folder, kind, threads = {arguments!r}
    # with a depth, further threads wait for a disk whose calls are slow, as on a busy machine
    os.environ["SHARDCODEC_IO_DEPTH"] = "1"
    shardcodec.enable(strict=True, threads=int(threads))
    array = zarr.create_array(folder, shape=(768, 256, 256), shards=(256, 256, 256), chunks=(32, 32, 32), dtype="uint16",
                              compressors=zarr.codecs.ZstdCodec(level=1))
    values = np.random.default_rng(0).integers(0, 50, array.shape, dtype="uint16")
    array[:32, :32, :32] = 1
    before = status("VmRSS:")
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    if kind == "buffered":
        with shardcodec.group_writes(16 << 20):
            for i in range(0, 768, 32):
                array[i:i + 32, :128] = values[i:i + 32, :128]
    else:
        array[:] = values
    print((status("VmHWM:") - before) >> 20, _native.pool_size())
"""


@pytest.mark.parametrize(("kind", "most_mib"), [("whole", 40), ("buffered", 80)])
def test_memory_beside_the_array_is_bounded(tmp_path: Path, kind: str, most_mib: int) -> None:
    """For an array of 96 MiB, the encoder holds a few units per thread; buffered writes stay within their budget."""
    done = run_checked(PROGRAM.format(arguments=(str(tmp_path / "a"), kind, "4")))
    peak_mib, _ = map(int, done.stdout.split())
    assert peak_mib <= most_mib


@pytest.mark.parametrize("threads", [1, 4])
def test_all_threads_take_part_in_a_write(tmp_path: Path, threads: int) -> None:
    """The pool creates no thread before it is needed."""
    done = run_checked(PROGRAM.format(arguments=(str(tmp_path / "a"), "whole", str(threads))))
    _, helpers = map(int, done.stdout.split())
    assert helpers == threads - 1
