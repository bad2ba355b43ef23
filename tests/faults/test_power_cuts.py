# test_power_cuts.py - durability="fsync" when the file system is shut down under a writer
# SPDX-License-Identifier: MIT
"""A file system in a file, mounted as a loop device and shut down while a process writes to it.

Like a power cut, the shutdown discards everything that has not reached the device. Mounting it again replays the
journal. A write that has returned must be stored; a write in progress is stored completely or not at all.
"""

from __future__ import annotations

import os
import random
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from faults.loop_devices import formatted, mounted
from faults.real_cuts import shut_down
from helpers import ours, quiet, shard_path, zarrs_view
from workers import forked
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import shardcodec
from shardcodec.tools import compact, convert


def write_until_cut(folder: Path, strategy: str, first: int, report: int) -> None:
    """Write increasing numbers, and report the start and the end of each write."""
    array = ours(folder)
    with shardcodec.options(write_strategy=strategy, durability="fsync", threads=1):
        for value in range(first, first + 100_000):
            os.write(report, struct.pack("=ci", b"b", value))
            array[4:8, :4] = value
            os.write(report, struct.pack("=ci", b"d", value))


def reported(told: bytes, kind: bytes) -> list[int]:
    return [value for what, value in struct.iter_unpack("=ci", told) if what == kind]


def cut_while_writing(folder: Path, strategy: str, first: int, seconds: float) -> tuple[int, int]:
    """Return the last value that was started, and the last that was reported as stored before the cut.

    Reports after the cut do not count: the process survives it, and XFS then reports a folder as synced.
    """
    read_end, write_end = os.pipe()

    def work() -> None:
        os.close(read_end)
        write_until_cut(folder, strategy, first, write_end)

    pid = forked(work)
    os.close(write_end)
    time.sleep(seconds)
    before = os.read(read_end, 1 << 20)
    shut_down(folder)
    with os.fdopen(read_end, "rb") as pipe:
        after = pipe.read()
    os.waitpid(pid, 0)
    done = max(reported(before, b"d"), default=first - 1)
    return max(reported(before + after, b"b"), default=first - 1), done


def roll_back(array: zarr.Array[Any]) -> None:
    """Roll back the shard for readers other than shardcodec's, after a cut during an update in place."""
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    with shardcodec.open_shard(shard_path(array), None, spec, mode="r+") as shard:
        shard.roll_back()


@pytest.mark.slow
@pytest.mark.parametrize("grid", [4, pytest.param(18, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("location", ["end", pytest.param("start", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
@pytest.mark.parametrize("system", ["ext4", "xfs"])
def test_power_cut_loses_no_finished_write(
    tmp_path: Path, system: str, strategy: str, location: str, grid: int
) -> None:
    image, folder = formatted(tmp_path, system)
    side = 4 * grid
    with mounted(image, folder):
        codec = ShardingCodec(
            chunk_shape=(4, 4), codecs=[BytesCodec(), Crc32cCodec()], index_location=location
        )
        with quiet():
            array = zarr.create_array(
                folder / "a",
                shape=(side, side),
                chunks=(side, side),
                dtype="int32",
                fill_value=0,
                serializer=codec,
                compressors=None,
            )
        with shardcodec.options(durability="fsync"):
            ours(folder / "a")[...] = 1
        os.sync()
    del array
    value = 2  # 1 is stored
    chance = random.Random(0)
    for _ in range(6):
        with mounted(image, folder):
            begun, done = cut_while_writing(folder / "a", strategy, value, chance.uniform(0.1, 0.4))
        with mounted(image, folder):
            array = ours(folder / "a", mode="r+")
            found = array[...]
            roll_back(array)
            assert (zarrs_view(array)[...] == found).all()
            part = found[4:8, :4]
            assert (part == part[0, 0]).all()
            assert done <= part[0, 0] <= begun
            rest = np.ones_like(found, dtype=bool)
            rest[4:8, :4] = False
            assert (found[rest] == 1).all()
            value = int(part[0, 0]) + 1


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ext4", pytest.param("xfs", marks=pytest.mark.nightly)])
def test_power_cut_after_a_conversion_loses_nothing(tmp_path: Path, system: str) -> None:
    """Shards and copied objects are on the disk before the documents are."""
    values = np.arange(64 * 64, dtype="int32").reshape(64, 64)
    texts = np.array(["a", "bc", "d" * 5000], dtype=object)
    with quiet():
        group = zarr.create_group(tmp_path / "old")
        for name in ("moved", "encoded"):
            group.create_array(name, shape=(64, 64), chunks=(8, 8), dtype="int32")[...] = values
        group.create_array("copied", shape=(3,), dtype=str)[...] = texts
    image, folder = formatted(tmp_path, system)

    def work() -> None:
        with shardcodec.options(durability="fsync"):
            sharded: dict[str, Any] = {"shards": (16, 16)}
            encoded = sharded | {"codecs": ["bytes", "crc32c"]}
            for only, more in (("moved", sharded), ("encoded", encoded), ("copied", {})):
                convert(tmp_path / "old", folder / only, only=[only], **more)
        shut_down(folder)

    with mounted(image, folder):
        _, status = os.waitpid(forked(work), 0)
        assert status == 0
    with mounted(image, folder), quiet():
        for name in ("moved", "encoded"):
            assert (zarr.open_array(folder / name / name, mode="r")[...] == values).all()
        assert list(zarr.open_array(folder / "copied" / "copied", mode="r")[...]) == list(texts)


@pytest.mark.slow
@pytest.mark.parametrize("zarr_format", [3, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("system", ["ext4", "xfs"])
def test_power_cut_after_a_write_keeps_its_documents(tmp_path: Path, system: str, zarr_format: int) -> None:
    """The zarr.json of a new array had 0 bytes; on XFS that of an old one too, after a change of its attributes."""
    image, folder = formatted(tmp_path, system)
    values = np.arange(64, dtype="int32")
    layout: dict[str, Any] = {"chunks": (16,), "shards": (32,)} if zarr_format == 3 else {"chunks": (32,)}

    def work() -> None:
        with shardcodec.options(durability="fsync"):
            group = zarr.create_group(folder / "new/root", zarr_format=zarr_format)
            array = group.create_array("group/array", shape=(64,), dtype="int32", **layout)
            ours(array.store_path)[:] = values
            old = ours(folder / "old")
            old.attrs["units"] = "K"
            old.resize((65,))
            old[0] = 5
        shut_down(folder)

    with mounted(image, folder), quiet():
        zarr.create_array(folder / "old", shape=(64,), dtype="int32", zarr_format=zarr_format, **layout)[
            :
        ] = values
        os.sync()
        _, status = os.waitpid(forked(work), 0)
        assert status == 0
    with mounted(image, folder), quiet():
        assert (zarr.open_group(folder / "new/root", mode="r")["group/array"][:] == values).all()  # type: ignore[index]
        old = zarr.open_array(folder / "old", mode="r")
        assert (old.shape, old.attrs["units"], old[0], old[1]) == ((65,), "K", 5, 1)


@pytest.mark.slow
@pytest.mark.parametrize("order", [None, "lexicographic"])
def test_power_cut_after_a_compaction_in_place_loses_nothing(tmp_path: Path, order: str | None) -> None:
    """The old shards were on the disk. With the default durability the new ones that took their places were not."""
    image, folder = formatted(tmp_path, "ext4")
    with mounted(image, folder), quiet():
        array = zarr.create_array(folder / "a", shape=(64, 64), shards=(64, 64), chunks=(8, 8), dtype="int32")
        array[:] = 1
        for row in range(8):
            with shardcodec.options(compact=False):
                ours(folder / "a")[row] = np.arange(64) + row
        os.sync()
        size = shard_path(array).stat().st_size

        def work() -> None:
            compact(folder / "a", order=order)
            shut_down(folder)

        _, status = os.waitpid(forked(work), 0)
        assert status == 0
    with mounted(image, folder), quiet():
        assert (zarrs_view(array)[:8] == np.arange(64) + np.arange(8)[:, None]).all()
        assert shard_path(array).stat().st_size < size
