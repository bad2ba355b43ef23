# test_missing_names.py - shards whose only name is one that NFS gives to a file which is replaced while it is open
# SPDX-License-Identifier: MIT
"""While a shard was replaced on NFS it had no name for a moment, and other nodes read the fill value; for ever, if the machine of the
writer died then.

The folder is on a local file system that is taken for NFS.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, shard_path

import shardcodec
from shardcodec import _native
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.storage import absent, file_systems
from shardcodec.storage.staging import lock_folder

CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
SILLY = ".nfs00000000000a4c1200000003"


@pytest.fixture
def leased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take each file system for NFS, and wait a short time."""
    monkeypatch.setattr(file_systems, "LOCAL_TYPES", frozenset())
    monkeypatch.setattr(file_systems, "network_type", lambda folder: "nfs4")
    monkeypatch.setattr(absent, "SECONDS", 0.3)


@pytest.fixture
def array(tmp_path: Path, leased: None) -> Any:
    """Return an array of 2 x 2 shards of 4 inner chunks, all ones."""
    array = create(tmp_path / "a", shape=(16, 16), shards=(8, 8), chunks=(4, 4))
    array[...] = 1
    return array


READERS: dict[str, Callable[[Any, Path], Any]] = {
    "zarr": lambda array, path: array[:8, :8],
    "a small slice of zarr": lambda array, path: array[0, :2],
    "all of zarr": lambda array, path: array[...],
    "handle": lambda array, path: shardcodec.open_array(str(array.store.root))[:8, :8],
    "a small slice of a handle": lambda array, path: shardcodec.open_array(str(array.store.root))[0, :2],
    "attach": lambda array, path: shardcodec.attach(array)[0, :2],
    "shard": lambda array, path: shardcodec.open_shard(path, None, _spec(array)).header,
    "inner chunks": lambda array, path: shardcodec.open_shard(path, None, _spec(array)).read_chunks([(0, 0)]),
    "kv": lambda array, path: ShardedKeyValueStore(path, grid_shape=(2, 2), index_codecs=CODECS)[b"\0" * 8],
    "chunk_state": lambda array, path: shardcodec.chunk_state(array),
}


def _spec(array: Any) -> Any:
    return shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())


@pytest.mark.parametrize("reader", READERS)
def test_shard_without_its_name_is_an_error_and_not_the_fill_value(array: Any, reader: str) -> None:
    path = shard_path(array)
    path.rename(path.with_name(SILLY))
    with pytest.raises(shardcodec.ShardFileError) as caught:
        READERS[reader](array, path)
    assert str(path) in str(caught.value) and SILLY in str(caught.value)
    path.with_name(SILLY).rename(path)
    READERS[reader](array, path)


@pytest.mark.parametrize("reader", READERS)
def test_shard_that_has_only_a_second_name_is_an_error_and_not_the_fill_value(
    array: Any, reader: str
) -> None:
    """The client of a node that was cut off has removed the first one. Its writers have kept the second one (csrc/io/sc_kept.h)."""
    path = shard_path(array)
    folder = lock_folder(str(path))
    os.makedirs(folder, exist_ok=True)
    number = _native.shard_number(folder, str(path))
    second = Path(folder, f"kept-1-.shardcodec-{number:016x}-{1:016x}-1-1-0")
    path.rename(second)
    with pytest.raises(shardcodec.ShardFileError) as caught:
        READERS[reader](array, path)
    assert str(path) in str(caught.value) and second.name in str(caught.value)
    os.link(second, path)
    READERS[reader](array, path)


@pytest.mark.parametrize("reader", READERS)
def test_reader_waits_while_a_shard_is_replaced(
    array: Any, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absent, "SECONDS", 20.0)
    path = shard_path(array)
    path.rename(path.with_name(SILLY))

    def end() -> None:
        time.sleep(0.2)
        path.with_name(SILLY).rename(path)

    thread = threading.Thread(target=end)
    thread.start()
    READERS[reader](array, path)
    thread.join()


@pytest.mark.parametrize("reader", ["zarr", "handle", "attach"])
def test_shard_that_gets_its_name_before_its_folder_is_listed_is_read(
    array: Any, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader on NFS 3 had waited for 1.9 s and read the fill value: the shard, which the last attempt had not found, was in the list."""
    monkeypatch.setattr(absent, "SECONDS", 20.0)
    path = shard_path(array)
    path.rename(path.with_name(SILLY))
    real, n_lists = absent._list, 0

    def listed(folder: str) -> set[str]:
        nonlocal n_lists
        n_lists += 1
        if n_lists == 6:
            shutil.copy(path.with_name(SILLY), path)
        return real(folder)

    monkeypatch.setattr(absent, "_list", listed)
    assert np.all(READERS[reader](array, path) == 1)
    assert n_lists == 6


def test_writer_does_not_make_a_new_shard_beside_the_old_one(array: Any) -> None:
    """The writer of another node made a new shard, so the inner chunks that it did not write were lost."""
    path = shard_path(array)
    path.rename(path.with_name(SILLY))
    with pytest.raises(shardcodec.ShardFileError, match=SILLY):
        array[:4, :4] = 2
    assert not path.exists()
    path.with_name(SILLY).rename(path)
    array[:4, :4] = 2
    np.testing.assert_array_equal(array[:8, :8], np.kron([[2, 1], [1, 1]], np.ones((4, 4))))


def test_thousands_of_absent_shards_cost_one_list_of_each_folder(
    tmp_path: Path, leased: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = create(tmp_path / "a", shape=(4, 4000), shards=(2, 2), chunks=(1, 1))
    array[0, 0] = 1
    looked: list[str] = []
    monkeypatch.setattr(absent, "_list", lambda folder: looked.append(folder) or set())
    assert (array[...] != -1).sum() == 1
    assert sorted(os.path.basename(folder) for folder in looked) == [".shardcodec", "0", "1"]


def test_absent_shards_of_local_file_systems_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = create(tmp_path / "a")
    monkeypatch.setattr(_native, "look_at_folder", pytest.fail)
    assert (array[...] == -1).all()


def test_erased_shards_and_missing_folders_are_absent(array: Any) -> None:
    shard_path(array).unlink()
    assert (array[:8, :8] == -1).all() and (array[8:, 8:] == 1).all()
    array[...] = -1
    assert not shard_path(array).exists()
    assert (array[...] == -1).all()
