# test_live_readers.py - reading a shard that another process updates all the time
# SPDX-License-Identifier: MIT
"""What readers without locks see: each inner chunk whole, and for ours never an error."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ours, quiet, zarrs_view
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import shardcodec
from shardcodec.storage import filesystem

SECONDS = 1.0
WAYS = [
    ("replace", "end", True),
    ("append", "end", True),
    ("append", "end", False),
    ("append", "start", True),
]


def make(folder: Path, location: str) -> Any:
    codec = ShardingCodec(chunk_shape=(8, 8), codecs=[BytesCodec(), Crc32cCodec()], index_location=location)
    with quiet():
        zarr.create_array(
            folder,
            shape=(64, 64),
            chunks=(64, 64),
            dtype="int32",
            fill_value=0,
            serializer=codec,
            compressors=None,
        )
    array = ours(folder)
    array[...] = 1
    return array


@contextmanager
def writer(folder: Path, strategy: str) -> Iterator[None]:
    """A process that writes one number after the other into two inner chunks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            array = ours(folder)
            # packing moves inner chunks, and zarr fails when that happens between its two looks
            with shardcodec.options(write_strategy=strategy, threads=1, compact=False):
                for value in range(2, 1_000_000):
                    array[8:16, 8:24] = value
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(("strategy", "location", "direct"), WAYS)
def test_readers_see_whole_inner_chunks(
    tmp_path: Path, strategy: str, location: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_known", {})
    if not direct:
        monkeypatch.setattr(filesystem, "DIRECT_TYPES", frozenset())
    array = make(tmp_path / "a", location)
    theirs = zarrs_view(array)
    last = 1
    failures = reads = 0
    with writer(tmp_path / "a", strategy):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            found = array[4:20, 4:28]
            first, second = found[4:12, 4:12], found[4:12, 12:20]
            assert (first == first[0, 0]).all() and (second == second[0, 0]).all()
            assert last <= first[0, 0], "what was seen is not unseen"
            last = int(first[0, 0])
            rest = np.ones(found.shape, dtype=bool)
            rest[4:12, 4:20] = False
            assert (found[rest] == 1).all()
            reads += 1
            try:
                cell = theirs[8:16, 8:16]
            except (
                Exception
            ):  # zarr reads from where the index began to the end of the file, which may be further by now
                failures += 1
            else:
                assert (cell == cell[0, 0]).all()
    assert last > 2 and reads > 10
    if strategy == "replace":
        assert failures == 0
