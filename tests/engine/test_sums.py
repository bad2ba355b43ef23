# test_sums.py - checksums of many ranges of one shard
# SPDX-License-Identifier: MIT
"""`OpenShard.sums` finds the stored and the computed CRC-32C of each range, as a checksum of its bytes alone does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import letters_spec

from shardcodec import ShardFormatError, _native
from shardcodec.access.compiled_chains import compiled
from shardcodec.checksum import crc32c

MOST = 1 << 20
PIECE = 1 << 18  # bytes of the largest read
CHAIN = compiled(letters_spec().chain)
INDEX = b"\xff" * 16 * CHAIN.n_chunks


def shard(body: bytes) -> bytes:
    return body + INDEX + crc32c(INDEX).to_bytes(4, "little")


def sums(opened: Any, ranges: list[tuple[int, int]], max_nbytes: int = MOST) -> list[tuple[int, int]]:
    found = np.empty((len(ranges), 2), dtype=np.uint32)
    wanted = np.array(ranges, dtype=np.uint64).reshape(-1, 2)
    opened.sums(wanted, found, max_nbytes=max_nbytes)
    return [(stored, computed) for stored, computed in found.tolist()]


def naive(data: bytes, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    parts = [data[offset : offset + nbytes] for offset, nbytes in ranges]
    return [(int.from_bytes(part[-4:], "little"), crc32c(part[:-4])) for part in parts]


@pytest.fixture(params=["file", "memory"])
def opened_as(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def opened(data: bytes) -> Any:
        if request.param == "memory":
            return _native.OpenShard(CHAIN, data)
        (tmp_path / "shard").write_bytes(data)
        return _native.OpenShard(CHAIN, str(tmp_path / "shard"))

    return opened


RANDOM = np.random.default_rng(3).bytes(3 * PIECE + 5000)


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(0, 4)],
        [(0, 5), (5, 4), (9, 100)],
        [(i * 1000, 1000) for i in range(700)],
        [
            (3, PIECE - n) for n in range(-5, 6)
        ],  # the checksum lies across the end of a read, and they overlap
        [(n, PIECE - 4096 + 5) for n in range(4090, 4102)],
        [(0, len(RANDOM)), (7, 2 * PIECE), (7, 10)],
        [(2 * PIECE, 100), (0, 100), (PIECE, 100)],  # they do not ascend
        [(0, 100), (PIECE // 2, 100), (3 * PIECE, 5000)],  # with gaps
    ],
)
@pytest.mark.parametrize("max_nbytes", [1, MOST])
def test_sums_are_those_of_the_bytes(opened_as: Any, ranges: list[tuple[int, int]], max_nbytes: int) -> None:
    data = shard(RANDOM)
    assert sums(opened_as(data), ranges, max_nbytes) == naive(data, ranges)


def test_random_ranges(opened_as: Any) -> None:
    data = shard(RANDOM)
    rng = np.random.default_rng(4)
    offsets = np.sort(rng.integers(0, len(data) - 4, 300))
    ranges = [(int(i), int(min(len(data) - i, 4 + rng.exponential(20_000)))) for i in offsets]
    assert sums(opened_as(data), ranges) == naive(data, ranges)


@pytest.mark.parametrize("bad", [(0, 3), (10_000, 4), (99, 10_000), (2**64 - 1, 2**64 - 1), (1, 2**64 - 1)])
def test_impossible_range_is_refused(opened_as: Any, bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="range does not lie inside the object, or is too short"):
        sums(opened_as(shard(b"x" * 100)), [(0, 100), bad])


def test_wrong_buffers_are_refused(opened_as: Any) -> None:
    opened = opened_as(shard(b"x" * 100))
    ranges = np.array([[0, 100]], dtype=np.uint64)
    with pytest.raises(ValueError, match="expected a buffer of 1 numbers"):
        opened.sums(ranges, np.empty(4, np.uint32), max_nbytes=MOST)
    with pytest.raises(BufferError):
        opened.sums(ranges, bytes(8), max_nbytes=MOST)
    opened.close()
    with pytest.raises(ValueError, match="expected an open shard"):
        opened.sums(ranges, np.empty(2, np.uint32), max_nbytes=MOST)


def test_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(shard(RANDOM))
    opened = _native.OpenShard(CHAIN, str(tmp_path / "shard"))
    os.truncate(tmp_path / "shard", 100)
    with pytest.raises(ShardFormatError, match="changed"):
        sums(opened, [(0, len(RANDOM))])
