# test_moved_links.py - a link that is moved while a writer waits for the lock of its old target
# SPDX-License-Identifier: MIT
"""Two threads write to one file. One of them came by a link that pointed to another file when its write started.

With `locking="thread"`, and on file systems without locks, only the locks of this process exclude the threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import zarr
from helpers import ours, quiet, zarrs_view
from staged_codecs import Turned
from zarr.registry import register_codec

import shardcodec
from shardcodec import group_writes
from shardcodec.zarr_plugin.request import Refusal

PATIENCE = 20.0  # longer than any test waits


class Gate:
    """Stop the writer of one value while it encodes and has the lock of its shard."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.set()


gates: dict[int, Gate] = {}


class Gated(Turned):
    """A codec that keeps the bytes and waits at a gate."""

    def to_dict(self) -> Any:
        return {"name": "gated", "configuration": {}}

    async def _decode_single(self, data: Any, spec: Any) -> Any:
        return data

    async def _encode_single(self, data: Any, spec: Any) -> Any:
        gate = gates.get(data.to_bytes()[0])
        if gate is not None:
            gate.reached.set()
            while not gate.opened.is_set():
                await asyncio.sleep(0.01)
        return data


register_codec("gated", Gated)


def new(folder: Path, compressors: Any = None) -> Any:
    """Create an array with one shard of ones, which has two inner chunks."""
    with quiet():
        zarr.create_array(folder, shape=(8,), chunks=(4,), shards=(8,), dtype="u1", compressors=compressors)
    array = ours(folder)
    array[:] = 1
    return array


def through_zarr(array: Any) -> None:
    array[:4] = 5


def through_a_handle(array: Any) -> None:
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    with shardcodec.open_shard(array.store.root, "c/0", spec, mode="r+") as handle:
        handle.write_chunks([(0,)], np.full((1, 4), 5, "u1"))


def through_the_codec(array: Any) -> None:
    with zarr.config.set({"codecs.sharding_indexed": "shardcodec.ShardingCodec"}):
        zarrs_view(array)[:4] = 5


def in_a_block(array: Any) -> None:
    with group_writes():
        array[:4] = 5


def decline(*_: Any) -> Any:
    raise Refusal("for a test")


def by_fallback(array: Any) -> None:
    array = ours(array.store, strict=False)
    array._async_array.codec_pipeline._prepare = decline
    array[:4] = 5


def write_second_chunk(array: Any, value: int) -> None:
    array[4:] = value


def point_to(link: Path, target: Path) -> None:
    link.with_name("next").symlink_to(target)
    os.replace(link.with_name("next"), link)


def started(write: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Start a thread that writes without locks of files."""

    def run() -> None:
        # with fsync the write does not run on zarr's event loop, which it would block here
        with shardcodec.options(locking="thread", durability="fsync"):
            write(*arguments)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "write", [through_zarr, in_a_block, through_a_handle, through_the_codec, by_fallback]
)
def test_write_through_a_moved_link_locks_the_new_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any], None]
) -> None:
    linked, link = new(tmp_path / "linked"), tmp_path / "linked/c/0"
    old, target = new(tmp_path / "old", Gated()), new(tmp_path / "target", Gated())
    point_to(link, tmp_path / "old/c/0")
    with Gate() as first, Gate() as second:
        monkeypatch.setitem(gates, 7, first)
        monkeypatch.setitem(gates, 8, second)
        threads = [started(write_second_chunk, old, 7)]
        assert first.reached.wait(PATIENCE)
        threads.append(started(write, linked))
        time.sleep(0.3)  # by now it waits for the lock of the old target
        point_to(link, tmp_path / "target/c/0")
        threads.append(started(write_second_chunk, target, 8))
        assert second.reached.wait(PATIENCE)
        first.opened.set()
        threads[1].join(0.3)  # it must wait for the lock of the new target
    for thread in threads:
        thread.join(PATIENCE)
    assert target[:].tolist() == [5, 5, 5, 5, 8, 8, 8, 8]
    assert old[:].tolist() == [1, 1, 1, 1, 7, 7, 7, 7]
    assert link.is_symlink()
