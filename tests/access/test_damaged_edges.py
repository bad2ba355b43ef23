# test_damaged_edges.py - what is written whole needs nothing of a damaged object
# SPDX-License-Identifier: MIT
"""Writes of all elements that an object at the edge of an array has within the array replace the object, also a damaged one.

The engine read the old object for the elements beyond the edge, which have no meaning: a torn shard at the edge could never be
replaced, so plates with one shard for each image stayed damaged for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pairs import pairs
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.codecs.numcodecs import BZ2

import shardcodec
from shardcodec import ChecksumError, CodecError, ShardFormatError, open_array

SHAPE = 14, 5
VALUES = np.arange(70, dtype="i4").reshape(SHAPE) + 1

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain v2": {"zarr_format": 2, "chunks": (8, 4)},
    "plain v3": {"chunks": (8, 4), "compressors": [ZstdCodec(checksum=True)]},
    "shards": {"chunks": (4, 2), "shards": (8, 4)},
    "shards with checksums": {"chunks": (4, 2), "shards": (8, 4), "compressors": [Crc32cCodec()]},
    "index at start": {
        "chunks": (8, 4),
        "serializer": ShardingCodec(
            chunk_shape=(4, 2), codecs=[BytesCodec(), ZstdCodec(checksum=True)], index_location="start"
        ),
        "compressors": None,
    },
    "staged": {"chunks": (4, 2), "shards": (8, 4), "compressors": [BZ2()]},
    "text": {"dtype": "str", "chunks": (4, 2), "shards": (8, 4), "compressors": [ZstdCodec(checksum=True)]},
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def new(path: Path, layout: str) -> np.ndarray[Any, Any]:
    """Make an array with other elements; return the elements to write."""
    array = zarr.create_array(path, **{"shape": SHAPE, "dtype": "i4", **LAYOUTS[layout]})
    array[...] = (VALUES + 100).astype(array.dtype)
    return VALUES.astype(array.dtype)


def edges(path: Path) -> list[Path]:
    """Return the objects at the edge: below, at the right and in the corner."""
    names = ("1/0", "0/1", "1/1") if (path / "zarr.json").exists() else ("1.0", "0.1", "1.1")
    return [path / "c" / name if (path / "zarr.json").exists() else path / name for name in names]


Damage = Callable[[bytes, str], bytes]


def torn(stored: bytes, layout: str) -> bytes:
    return stored[: len(stored) // 2]


def empty(stored: bytes, layout: str) -> bytes:
    return b""


def flipped(stored: bytes, layout: str) -> bytes:
    """Change all inner chunks, and not the index of 4 entries."""
    if layout.startswith("plain"):
        return bytes(byte ^ 255 for byte in stored)
    if layout == "index at start":
        return stored[:68] + bytes(byte ^ 255 for byte in stored[68:])
    return bytes(byte ^ 255 for byte in stored[:-68]) + stored[-68:]


def by_zarr(path: Path, values: Any) -> None:
    zarr.open_array(path, mode="r+")[...] = values


def by_attached(path: Path, values: Any) -> None:
    shardcodec.attach(zarr.open_array(path, mode="r+"))[...] = values


def by_handle(path: Path, values: Any) -> None:
    open_array(path, mode="r+")[...] = values


def by_objects(path: Path, values: Any) -> None:
    array = open_array(path, mode="r+")
    for at in (0, 8):
        array[at : at + 8, :4], array[at : at + 8, 4:] = values[at : at + 8, :4], values[at : at + 8, 4:]


def by_boxes(path: Path, values: Any) -> None:
    open_array(path, mode="r+").write_boxes([(0, 0), (7, 0)], np.stack([values[:7], values[7:]]))


def by_lists(path: Path, values: Any) -> None:
    order = np.random.default_rng(1).permutation(14)
    open_array(path, mode="r+").oindex[order, :] = values[order]


def by_coordinates(path: Path, values: Any) -> None:
    open_array(path, mode="r+").vindex[np.divmod(np.arange(70), 5)] = values.reshape(-1)


def by_lists_of_zarr(path: Path, values: Any) -> None:
    rows, columns = np.random.default_rng(2).permutation(14), np.arange(5)
    zarr.open_array(path, mode="r+").oindex[rows, columns] = values[rows]


def by_mask_of_zarr(path: Path, values: Any) -> None:
    zarr.open_array(path, mode="r+").set_mask_selection(np.ones(SHAPE, dtype=bool), values.reshape(-1))


def by_blocks_of_writes(path: Path, values: Any) -> None:
    with shardcodec.group_writes():
        for array in (zarr.open_array(path, mode="r+"), open_array(path, mode="r+")):
            for at in range(14):
                array[at : at + 1] = values[at : at + 1]


def by_stream(path: Path, values: Any) -> None:
    with shardcodec.stream(path, start=0) as frames:
        for frame in values:
            frames.append(frame)


WAYS: list[Callable[[Path, Any], None]] = [
    by_zarr,
    by_attached,
    by_handle,
    by_objects,
    by_boxes,
    by_lists,
    by_coordinates,
    by_lists_of_zarr,
    by_mask_of_zarr,
    by_blocks_of_writes,
    by_stream,
]


def name_of(value: Any) -> str:
    return value if isinstance(value, str) else value.__name__


def stored_over(path: Path, layout: str, damage: Damage, write: Callable[[Path, Any], None]) -> None:
    """Damage the objects at the edge, write, and compare all elements."""
    values = new(path, layout)
    for file in edges(path):
        file.write_bytes(damage(file.read_bytes(), layout))
    shardcodec.enable()
    try:
        write(path, values)
        assert (zarr.open_array(path)[...] == values).all()
    finally:
        shardcodec.disable()


@pairs("write, layout, damage", WAYS, list(LAYOUTS), [torn, empty, flipped], ids=name_of)
def test_objects_that_are_written_whole_are_replaced(
    damage: Damage, write: Callable[[Path, Any], None], layout: str, tmp_path: Path
) -> None:
    if write is by_stream and layout == "text":
        pytest.skip("a stream takes elements of a fixed size")
    if write is by_blocks_of_writes and layout == "text":
        pytest.skip("texts are not buffered: each write is a part of a shard")
    if layout == "staged" and write not in (by_zarr, by_attached, by_lists_of_zarr, by_mask_of_zarr):
        pytest.skip("open_array needs native codecs")
    stored_over(tmp_path, layout, damage, write)


@layouts
def test_inner_chunks_that_are_written_whole_are_replaced(layout: str, tmp_path: Path) -> None:
    """Also in a shard of which other inner chunks stay."""

    def by_inner_chunks(path: Path, values: Any) -> None:
        for array in (open_array(path, mode="r+"), shardcodec.attach(zarr.open_array(path, mode="r+"))):
            for row, column in np.ndindex(4, 3):
                box = slice(row * 4, row * 4 + 4), slice(column * 2, column * 2 + 2)
                array[box] = values[box]

    if layout not in ("plain v2", "plain v3", "staged"):
        stored_over(tmp_path, layout, flipped, by_inner_chunks)


@layouts
@pytest.mark.parametrize("damage", [torn, flipped])
def test_a_part_of_a_damaged_object_is_refused(damage: Damage, layout: str, tmp_path: Path) -> None:
    if layout == "staged":
        pytest.skip("open_array needs native codecs")
    values = new(tmp_path, layout)
    below = edges(tmp_path)[0]
    below.write_bytes(damage(below.read_bytes(), layout))
    stored = below.read_bytes()
    array = open_array(tmp_path, mode="r+")
    with pytest.raises((ChecksumError, CodecError, ShardFormatError)):
        array[9:14, :4] = values[9:14, :4]
    with pytest.raises((ChecksumError, CodecError, ShardFormatError)):
        array.write_boxes([(8, 0), (10, 0)], np.stack([values[8:11, :4]] * 2))
    with pytest.raises(shardcodec.ShardError), shardcodec.group_writes():
        array[8:14, :3] = values[8:14, :3]
    assert below.read_bytes() == stored


def test_rows_that_were_appended_meanwhile_keep_a_damaged_shard(tmp_path: Path) -> None:
    """zarr says of lists of positions not that they end where the array does, so the engine looks: the array that was opened may be old."""
    values = new(tmp_path, "shards")
    shardcodec.enable()
    try:
        array = zarr.open_array(tmp_path, mode="r+")
        zarr.open_array(tmp_path, mode="r+").append(values[:1])
        below = edges(tmp_path)[0]
        below.write_bytes(stored := below.read_bytes()[:40])
        with pytest.raises(ShardFormatError):
            array.oindex[np.arange(14), np.arange(5)] = values
        assert below.read_bytes() == stored
    finally:
        shardcodec.disable()
