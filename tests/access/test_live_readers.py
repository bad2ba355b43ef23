# test_live_readers.py - reads of a shard that another process updates continuously
# SPDX-License-Identifier: MIT
"""Readers take no locks: each inner chunk is seen whole, and our readers never fail."""

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
from helpers import create, descriptor, ours, quiet, shard_path, zarrs_view
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import shardcodec
from shardcodec.storage import file_systems

SECONDS = 1.0
MAX_SECONDS = 60.0  # until the writer and the reader have done enough to be of use, on a slow machine
WAYS = [
    ("replace", "end", True),
    ("append", "end", True),
    ("append", "end", False),
    ("append", "start", True),
    ("in_place", "end", True),
    ("in_place", "start", True),
]


def goes_on(begin: float, last: int, reads: int) -> bool:
    seconds = time.monotonic() - begin
    return seconds < SECONDS or ((last <= 2 or reads <= 10) and seconds < MAX_SECONDS)


def make(folder: Path, location: str, *, checksum: bool = True, side: int = 8) -> Any:
    codecs: list[Any] = [BytesCodec(), Crc32cCodec()] if checksum else [BytesCodec()]
    codec = ShardingCodec(chunk_shape=(side, side), codecs=codecs, index_location=location)
    with quiet():
        create(
            folder,
            own=True,
            shape=(8 * side, 8 * side),
            chunks=(8 * side, 8 * side),
            fill_value=0,
            serializer=codec,
            shards=None,
        )
    array = ours(folder)
    array[...] = 1
    return array


@contextmanager
def writer(folder: Path, strategy: str, side: int = 8) -> Iterator[None]:
    """Start a process that writes increasing numbers into two inner chunks until the block ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            array = ours(folder)
            # packing moves inner chunks; zarr fails if that happens between its read of the index and of the chunk
            with shardcodec.options(write_strategy=strategy, threads=1, compact=False):
                for value in range(2, 1_000_000):
                    array[side : 2 * side, side : 3 * side] = value
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
    monkeypatch.setattr(file_systems, "_known", {})
    if not direct:
        monkeypatch.setattr(file_systems, "DIRECT_TYPES", frozenset())
    array = make(tmp_path / "a", location)
    theirs = zarrs_view(array)
    last = 1
    failures = reads = 0
    with writer(tmp_path / "a", strategy):
        begin = time.monotonic()
        while goes_on(begin, last, reads):
            found = array[4:20, 4:28]
            first, second = found[4:12, 4:12], found[4:12, 12:20]
            assert (first == first[0, 0]).all() and (second == second[0, 0]).all()
            assert last <= first[0, 0], "a later read returned an older value"
            last = int(first[0, 0])
            rest = np.ones(found.shape, dtype=bool)
            rest[4:12, 4:20] = False
            assert (found[rest] == 1).all()
            reads += 1
            try:
                cell = theirs[8:16, 8:16]
            except Exception:
                # zarr reads from the index to the end of the file, which may have grown meanwhile
                failures += 1
            else:
                assert (cell == cell[0, 0]).all()
    assert last > 2 and reads > 10
    if strategy == "replace":
        assert failures == 0


@pytest.mark.parametrize(("strategy", "location"), [(way[0], way[1]) for way in WAYS if way[0] != "replace"])
def test_shards_that_are_read_in_ranges_are_seen_in_whole_inner_chunks(
    tmp_path: Path, strategy: str, location: str
) -> None:
    """Inner chunks may be read before the index that says where they are (`csrc/plan/sc_read_whole.c`)."""
    array = make(tmp_path / "a", location, side=64)
    last, reads = 1, 0
    with (
        writer(tmp_path / "a", strategy, 64),
        shardcodec.options(io_latency=50e-6, io_depth=8, index_cache=0, threads=2),
    ):
        begin = time.monotonic()
        while goes_on(begin, last, reads):
            found = array[...]
            first, second = found[64:128, 64:128], found[64:128, 128:192]
            assert (first == first[0, 0]).all() and (second == second[0, 0]).all()
            # a read may see an update in place before its end, and the next one still finds the journal (docs/durability.md)
            assert last <= first[0, 0] or strategy == "in_place", "a later read returned an older value"
            last = int(first[0, 0])
            found[64:128, 64:192] = 1
            assert (found == 1).all()
            reads += 1
    assert last > 2 and reads > 10


def test_raw_chunks_overwritten_in_place_are_seen_whole(tmp_path: Path) -> None:
    """The bytes do not show a torn write; the journal and the times of the file do."""
    side = 128  # 64 KiB, so that writing takes some time
    array = make(tmp_path / "a", "end", checksum=False, side=side)
    with descriptor(tmp_path) as fd:
        if not file_systems.is_local(fd):
            pytest.skip("this file system does not support updates in place")
    box = np.s_[side : 2 * side, side : 3 * side]
    lean = shardcodec.open_array(tmp_path / "a")
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    inode = shard_path(array).stat().st_ino
    last = reads = 1
    with (
        writer(tmp_path / "a", "in_place", side),
        shardcodec.open_shard(shard_path(array), None, spec) as shard,
    ):
        begin = time.monotonic()
        while goes_on(begin, last, reads):
            for look in (
                lambda: array[box],
                lambda: lean[box],
                lambda: np.concatenate(list(shard.read_chunks([(1, 1), (1, 2)])), axis=1),
            ):
                found = look()
                first, second = found[:, :side], found[:, side:]
                assert (first == first[0, 0]).all() and (second == second[0, 0]).all()
                assert last <= first[0, 0], "a later read returned an older value"
                last = int(first[0, 0])
                reads += 1
    assert last > 2 and reads > 10
    assert shard_path(array).stat().st_ino == inode, "the updates were not in place"
