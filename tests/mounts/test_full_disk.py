# test_full_disk.py - errors that a file system reports only when a file is closed
# SPDX-License-Identifier: MIT
"""A network file system may take every byte and say at the close that the disk is full. Each write asks before its bytes count.

The mount answers ENOSPC to FLUSH and drops what was written, as NFS does when a quota is exceeded. zarr itself raises then, and
keeps what there was; so must every write of shardcodec.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import bytes_of_files, checked, create
from mounts.fuse import FILE_SYSTEM, Mount, mount
from spec_json import LITTLE

import shardcodec
from shardcodec import ShardSpec, ShardWriter
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.storage import file_systems, files

SPEC = ShardSpec((32, 48), (8, 8), "uint16", 0, [LITTLE])


@pytest.fixture(params=["named", "nameless"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mount]:
    """With temporary names, as NFS; and with files that have none until they are whole."""
    nameless = request.param == "nameless"
    with mount(tmp_path / "backing", tmp_path / "mounted", tmpfile=nameless, exchange=nameless) as mounted:
        yield mounted


def stored(mounted: Mount) -> dict[str, bytes]:
    """Return all files of the server of a mount."""
    return bytes_of_files(mounted.path.with_name("backing"))


def is_refused(mounted: Mount, write: Callable[[], None], name: str) -> None:
    """The write raises ENOSPC, names the file, and has changed nothing; once there is room it succeeds."""
    before = stored(mounted)
    mounted.fail("flush", errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        write()
    assert caught.value.errno == errno.ENOSPC
    assert os.path.basename(caught.value.filename) == name
    assert mounted.failed()["flush"] > 0
    assert stored(mounted) == before
    mounted.heal()
    write()


def with_strategy(array: Any, strategy: str, value: int) -> None:
    with shardcodec.options(write_strategy=strategy):
        array[2:9, 2:9] = value


@pytest.mark.parametrize("at_start", [False, True], ids=["end", "start"])
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_partial_write(disk: Mount, monkeypatch: pytest.MonkeyPatch, strategy: str, at_start: bool) -> None:
    """No journal is left either."""
    for types in ("APPEND_TYPES", "LOCAL_TYPES"):
        monkeypatch.setattr(file_systems, types, getattr(file_systems, types) | {FILE_SYSTEM})
    array = checked(disk.path / "a", at_start=at_start, shape=(8, 12))
    array[...] = 1
    is_refused(disk, lambda: with_strategy(array, strategy, 5), "0")
    assert (array[2:8, 2:9] == 5).all() and array[0, 0] == 1
    assert [name for name in stored(disk) if "shardcodec" in name] == []


def test_new_shard(disk: Mount) -> None:
    array = create(disk.path / "a", shape=(8, 12))
    is_refused(disk, lambda: array.__setitem__(..., 7), "0")
    assert (array[...] == 7).all()


def test_group_writes(disk: Mount) -> None:
    array = create(disk.path / "a", shape=(8, 12))
    array[...] = 1

    def write() -> None:
        with shardcodec.group_writes():
            array[0:4, 0:3] = 2
            array[4:8, 0:3] = 3

    before = stored(disk)
    disk.fail("flush", errno.ENOSPC)
    with pytest.raises((OSError, shardcodec.GroupWriteError)) as caught:
        write()
    error = caught.value if isinstance(caught.value, OSError) else caught.value.__cause__
    assert isinstance(error, OSError) and error.errno == errno.ENOSPC
    assert stored(disk) == before
    disk.heal()
    write()
    assert array[0, 0] == 2 and array[7, 0] == 3


@pytest.mark.parametrize("exists", [False, True])
def test_shard_writer(disk: Mount, exists: bool) -> None:
    path = disk.path / "shard"
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    if exists:
        with ShardWriter(path, SPEC) as writer:
            writer.write_chunk((0, 0), values)

    def write() -> None:
        with ShardWriter(path, SPEC) as writer:
            writer.write_chunk((1, 1), values)

    is_refused(disk, write, "shard")
    assert (shardcodec.open_shard(path, None, SPEC).read_chunks([(1, 1)])[0] == values).all()


@pytest.mark.parametrize("who", ["a rank", "the last one"])
def test_shared_shard_writer(disk: Mount, who: str) -> None:
    """A rank learns of it when it closes its part; the one that commits when it commits. The shard does not appear."""
    path = disk.path / "shard"
    values = np.arange(64, dtype=np.uint16).reshape(8, 8)
    token = ShardWriter.create(path, SPEC)
    part, last = ShardWriter.join(token), ShardWriter.join(token)
    part.write_chunk((0, 0), values)
    if who == "the last one":
        part.close()
        last.write_chunk((0, 1), values)
    disk.fail("flush", errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        part.close() if who == "a rank" else last.commit([(0, 0), (0, 1)])
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert not path.exists()
    disk.heal()
    last.abort()
    assert "shard" not in stored(disk)


def test_beginning_a_shared_shard(disk: Mount) -> None:
    """The size that it gets, and the header, are written before any rank joins."""
    path = disk.path / "shard"
    disk.fail("flush", errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        ShardWriter.create(path, SPEC, header=b"head")
    assert caught.value.errno == errno.ENOSPC
    assert stored(disk) == {}


@pytest.mark.parametrize("exists", [False, True])
def test_key_value_store(disk: Mount, exists: bool) -> None:
    store = ShardedKeyValueStore(disk.path / "shard", grid_shape=(4,), index_codecs=[LITTLE])
    key = bytes(4)
    if exists:
        store[key] = b"old"

    def write() -> None:
        store[key] = b"new"

    is_refused(disk, write, "shard")
    assert store[key] == b"new"


def test_cache_of_chunk_state(
    disk: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A cache that cannot be written is no error, but it is logged, and the old one stays."""
    monkeypatch.setattr(files, "GRAIN_NS", -1 << 62)
    array = create(tmp_path / "a", shape=(8, 12))
    array[...] = 1
    cache = disk.path / "sizes"
    shardcodec.chunk_state(array, cache=cache)
    before = stored(disk)
    array[0:4, 0:3] = -1
    disk.fail("flush", errno.ENOSPC)
    state = shardcodec.chunk_state(array, cache=cache)
    assert state.exists.sum() == 7
    assert "cannot write the cache" in caplog.text
    assert stored(disk) == before


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_fsync(disk: Mount, error: int) -> None:
    array = create(disk.path / "a", shape=(8, 12))
    array[...] = 1
    before = stored(disk)
    disk.fail("fsync", error)
    with shardcodec.options(durability="fsync"), pytest.raises(OSError) as caught:
        array[0:4, 0:3] = 2
    assert caught.value.errno == error
    assert stored(disk) == before
    disk.heal()
    assert (array[...] == 1).all()


def test_other_clients_see_no_half_written_shard(tmp_path: Path) -> None:
    """Where bytes arrive only at the close, a name that comes first shows an empty shard: a slow close makes that visible."""
    backing = tmp_path / "backing"
    with mount(backing, tmp_path / "mounted", write_back=True) as mounted:
        array = create(mounted.path / "a", shape=(8, 12))
        shard, sizes = backing / "a" / "c" / "0" / "0", set()
        array[...] = 0
        nbytes = shard.stat().st_size
        mounted.delay("flush", 0.05)
        writer = threading.Thread(target=lambda: [array.__setitem__(..., value) for value in (1, 2)])
        writer.start()
        while writer.is_alive():
            sizes.add(shard.stat().st_size)
        writer.join()
        mounted.delay("flush", 0)
        assert sizes == {nbytes}
        assert (zarr.open_array(backing / "a", mode="r")[...] == 2).all()
