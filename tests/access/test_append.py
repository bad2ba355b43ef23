# test_append.py - the write strategy "append": when it applies, what it leaves in the file, when the shard is packed
# SPDX-License-Identifier: MIT
"""Updates of a shard inside its own file. Killed updates are tested in tests/faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import (
    WORDS,
    assemble,
    bits,
    create,
    letters_index_nbytes,
    ours,
    random_array,
    shard_path,
    text_of,
    zarrs_view,
)
from zarr.codecs import ZstdCodec

import shardcodec
from shardcodec.access.placement import ABSENT, BLOCK_NBYTES, Facts, place_behind, way_to_append
from shardcodec.storage import file_systems

USUAL: dict[str, Any] = {
    "index_nbytes": 148,
    "index_at_start": False,
    "index_checksum": True,
    "new_nbytes": 1000,
    "n_links": 1,
    "appends": True,
    "direct": False,
    "sync": False,
}


@pytest.mark.parametrize(
    ("facts", "way"),
    [
        ({}, "leap"),
        ({"direct": True}, "direct"),
        ({"direct": True, "sync": True, "index_nbytes": 1 << 24}, "direct"),
        ({"direct": True, "n_links": 2}, None),
        ({"appends": False}, None),
        ({"appends": False, "direct": True}, None),
        ({"appends": False, "index_at_start": True}, None),
        ({"direct": True, "new_nbytes": 1 << 30}, None),
        ({"direct": True, "index_checksum": False}, "direct"),
        ({"sync": True}, None),
        ({"index_nbytes": BLOCK_NBYTES}, "leap"),
        ({"index_nbytes": BLOCK_NBYTES + 1}, None),
        ({"index_at_start": True}, "index"),
        ({"index_at_start": True, "direct": True}, "index"),
        ({"index_at_start": True, "index_checksum": False}, None),
        ({"index_at_start": True, "index_nbytes": BLOCK_NBYTES}, "index"),
        ({"index_at_start": True, "index_nbytes": BLOCK_NBYTES + 1}, None),
        ({"index_at_start": True, "sync": True}, "index"),
        ({"index_at_start": True, "sync": True, "index_nbytes": 513}, None),
    ],
)
def test_way_to_append_depends_on_the_facts(facts: dict[str, Any], way: str | None) -> None:
    assert way_to_append(Facts(**(USUAL | facts))) == way


def entries(*pairs: tuple[int, int]) -> Any:
    return np.array(pairs, dtype=np.uint64)


@pytest.mark.parametrize(("way", "offset"), [("leap", 1_100_000), ("direct", 1_101_824)])
def test_appended_chunks_start_after_the_old_object(way: str, offset: int) -> None:
    old = entries((0, 500_000), (500_000, 599_952))
    sizes: dict[str, Any] = {"shard_nbytes": 1_100_000, "index_nbytes": 48, "index_at_start": False}
    placement = place_behind(old, np.array([False, True]), way=way, dead_share=0.7, **sizes)
    assert placement is not None
    assert placement.data_offset == offset
    assert placement.entries.tolist() == [[0, 500_000], [int(ABSENT), int(ABSENT)]]
    # the dead share is reached: the shard is packed
    assert place_behind(old, np.array([False, True]), way=way, dead_share=0.5, **sizes) is None


def test_append_does_not_overwrite_chunks_inside_an_index_at_the_start() -> None:
    old = entries((10, 20), (52, 10))
    sizes: dict[str, Any] = {"shard_nbytes": 62, "index_nbytes": 52, "index_at_start": True}
    assert place_behind(old, np.array([False, True]), way="index", **sizes) is None
    assert place_behind(old, np.array([True, False]), way="index", **sizes) is not None


def appending(folder: Path, **arguments: Any) -> Any:
    array = create(folder / "a", **({"compressors": ZstdCodec(level=1)} | arguments))
    return shardcodec.attach(array, write_strategy="append", strict=True)


@pytest.mark.parametrize("direct", [True, False])
def test_append_keeps_inode_and_old_bytes(
    tmp_path: Path, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems, "_known", {})
    if not direct:
        monkeypatch.setattr(file_systems, "DIRECT_TYPES", frozenset())
    array = appending(tmp_path)
    expected = random_array((16, 24), array.dtype)
    array[...] = expected
    path = shard_path(array)
    for seed in range(10):
        before, inode = path.read_bytes(), path.stat().st_ino
        array[1:6, 2:4] = expected[1:6, 2:4] = random_array((5, 2), array.dtype, seed)
        assert path.stat().st_ino == inode
        assert path.read_bytes()[: len(before)] == before or not direct
        assert bits(zarrs_view(array)[...]) == bits(expected)
        assert bits(array[...]) == bits(expected)


def test_dead_bytes_are_packed_unless_compact_is_off(tmp_path: Path) -> None:
    sizes = {}
    for compact in (True, False):
        folder = tmp_path / str(compact)
        folder.mkdir()
        array = appending(folder)
        array[...] = 1
        with shardcodec.options(compact=compact):
            for value in range(40):
                array[0, 0] = value
        sizes[compact] = shard_path(array).stat().st_size
        assert zarrs_view(array)[0, 0] == 39
    assert sizes[True] <= 20 * BLOCK_NBYTES < 39 * BLOCK_NBYTES < sizes[False]


def test_write_without_a_change_appends_nothing(tmp_path: Path) -> None:
    array = appending(tmp_path)
    array[:4, :3] = 1
    before = shard_path(array).read_bytes()
    array[5, 5] = -1  # the fill value, written to an absent inner chunk
    assert shard_path(array).read_bytes() == before


def test_a_state_has_its_own_time_if_only_the_index_has_changed(tmp_path: Path) -> None:
    """The size stays, and the clock of a file system may stand still between two updates: readers saw the old index.

    So an update of the index alone gives the file a time that is not that of the file system's clock, which ctime shows.
    """
    shards = {"shape": (4, 4), "index_location": "start"}
    array = appending(
        tmp_path, shape=(4, 4), chunks=(2, 2), shards=shards, dtype="uint8", fill_value=46, compressors=None
    )
    array[...] = 1
    first = letters_index_nbytes()
    # An update of a shard with an inner chunk in its index writes no mark.
    entries_of_file = [(first, 4), (0, 4), (first + 4, 4), (first + 8, 4)]
    shard_path(array).write_bytes(assemble(b"".join(WORDS[1:]), entries_of_file, at_start=True))
    before = shard_path(array).stat()
    with shardcodec.options(allow_in_index=True):
        array[:2, 2:] = 46
    after = shard_path(array).stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert after.st_mtime_ns > before.st_mtime_ns
    assert after.st_mtime_ns != after.st_ctime_ns
    assert text_of(zarrs_view(array)[...]) == "one. .... two. tres"


def test_symbolic_link_is_followed_and_its_target_appended_to(tmp_path: Path) -> None:
    array = appending(tmp_path)
    array[...] = 1
    shard_path(array).rename(tmp_path / "shard")
    shard_path(array).symlink_to(tmp_path / "shard")
    inode = (tmp_path / "shard").stat().st_ino
    array[0, 0] = 2
    assert (tmp_path / "shard").stat().st_ino == inode
    assert zarrs_view(array)[0, 0] == 2


def test_write_strategy_is_not_stored_in_the_metadata(tmp_path: Path) -> None:
    array = appending(tmp_path)
    array[...] = 1
    assert "append" not in (tmp_path / "a/zarr.json").read_text()
    again = ours(tmp_path / "a")
    inode = shard_path(array).stat().st_ino
    again[0, 0] = 2
    assert shard_path(array).stat().st_ino != inode
