# test_shard_handle.py - handles of one shard: how they are opened, pickled and closed
# SPDX-License-Identifier: MIT
"""`open_shard` and the life of a handle; for its reads and writes see test_shard.py."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path

import pytest
import zarr
from helpers import RAW, create, letters, letters_spec, store_of
from zarr.storage import LocalStore, MemoryStore, ObjectStore

import shardcodec
from shardcodec import ShardSpec, open_shard
from shardcodec.compat import sync


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode"):
        open_shard(letters(), None, letters_spec(), mode="w")
    with pytest.raises(ValueError, match="key"):
        open_shard(MemoryStore(), None, letters_spec())
    with pytest.raises(TypeError, match="expected a path"):
        open_shard(5, None, letters_spec())
    with pytest.raises(TypeError, match="no option"):
        open_shard(letters(), None, letters_spec(), colour="red")
    with pytest.raises(TypeError, match=r"spec: expected a ShardSpec, got \{\}"):
        open_shard(letters(), None, {})  # type: ignore[arg-type]
    with pytest.raises(shardcodec.UnsupportedError):
        open_shard(b"", None, ShardSpec((4, 4), (2, 2), "uint8", 0, RAW, after=["crc32c"]))
    store = LocalStore(tmp_path, read_only=True)
    with pytest.raises(ValueError, match="read-only"):
        open_shard(store, "c/0", letters_spec(), mode="r+")
    assert not open_shard(store, "c/0", letters_spec()).exists


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_handle_is_pickled_to_another_process(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shard").write_bytes(letters())
    monkeypatch.chdir(tmp_path)
    for place in (("shard", None), (tmp_path, "shard"), (LocalStore(tmp_path), "shard"), (letters(), None)):
        shard = open_shard(*place, letters_spec(), mode=mode, write_strategy="append")  # type: ignore[arg-type]
        assert shard.state().any()
        data = pickle.dumps(shard)
        monkeypatch.chdir("/")
        again = pickle.loads(data)
        monkeypatch.chdir(tmp_path)
        assert (again.index == shard.index).all() and again.spec == shard.spec and again.key == shard.key
        if mode == "r":
            with pytest.raises(ValueError, match="reading only"):
                again.erase([(0, 0)])
        else:
            again.write_encoded([(0, 0)], [b"else"])
            assert again.read_encoded([(0, 0)]) == [b"else"]


def test_handles_on_an_object_store_are_pickled(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")
    store = ObjectStore(obstore.LocalStore(tmp_path))
    create(store)[...] = 5
    spec = ShardSpec.from_metadata(zarr.open_array(store).metadata.to_dict())
    shard = pickle.loads(pickle.dumps(open_shard(store, "c/0/0", spec, mode="r+")))
    shard.erase([(0, 0)])
    array = pickle.loads(pickle.dumps(shardcodec.open_array(store)))
    assert array[0, 0] == -1 and array[-1, -1] == 5


def test_opening_a_shard_creates_no_folder(tmp_path: Path) -> None:
    for read_only in (False, True):
        store = LocalStore(tmp_path / "none", read_only=read_only)
        assert not open_shard(store, "c/0", letters_spec()).exists
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_near_shard_opens_on_the_event_loop_of_zarr(kind: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path)

    async def is_there() -> bool:
        return open_shard(store, "c/0", letters_spec()).exists

    assert sync(is_there()) is False


def test_context_manager_closes_the_handle(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(letters())
    with open_shard(tmp_path, "shard", letters_spec()) as shard:
        assert shard.exists
        assert "shard" in repr(shard)
    (tmp_path / "shard").unlink()
    assert not shard.exists


def test_dropped_handle_closes_its_file(tmp_path: Path) -> None:
    """The file is closed with the last reference, not at the next garbage collection: descriptors are limited."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc/self/fd")
    (tmp_path / "shard").write_bytes(letters())

    def n_open() -> int:
        return sum(
            os.path.realpath(f"/proc/self/fd/{fd}").startswith(str(tmp_path))
            for fd in os.listdir("/proc/self/fd")
        )

    gc.disable()
    try:
        shard = open_shard(tmp_path, "shard", letters_spec())
        assert shard.exists and n_open() == 1
        del shard
        assert n_open() == 0
    finally:
        gc.enable()
