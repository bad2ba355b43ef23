# test_shard_handle.py - handles on one shard: opened, handed on, let go of
# SPDX-License-Identifier: MIT
"""`open_shard` and the life of what it returns; what a handle reads and writes is in test_shard.py."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path

import pytest
from helpers import RAW, letters, letters_spec
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import ShardSpec, open_shard


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode"):
        open_shard(letters(), None, letters_spec(), mode="w")
    with pytest.raises(ValueError, match="key"):
        open_shard(MemoryStore(), None, letters_spec())
    with pytest.raises(TypeError, match="expected a path"):
        open_shard(5, None, letters_spec())
    with pytest.raises(TypeError, match="no option"):
        open_shard(letters(), None, letters_spec(), colour="red")
    with pytest.raises(TypeError, match="ShardSpec, not dict"):
        open_shard(letters(), None, {})  # type: ignore[arg-type]
    with pytest.raises(shardcodec.UnsupportedError):
        open_shard(b"", None, ShardSpec((4, 4), (2, 2), "uint8", 0, RAW, after=["crc32c"]))
    store = LocalStore(tmp_path, read_only=True)
    with pytest.raises(ValueError, match="read-only"):
        open_shard(store, "c/0", letters_spec(), mode="r+")
    assert not open_shard(store, "c/0", letters_spec()).exists


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_handle_goes_to_another_process(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_context_manager_closes(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(letters())
    with open_shard(tmp_path, "shard", letters_spec()) as shard:
        assert shard.exists
        assert "shard" in repr(shard)
    (tmp_path / "shard").unlink()
    assert not shard.exists


def test_a_forgotten_handle_holds_nothing(tmp_path: Path) -> None:
    """What it opened is closed with its last reference, not when cycles are collected: descriptors are few."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("/proc is not there")
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
