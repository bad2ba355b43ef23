# test_no_threads.py - the system refuses to start a thread
# SPDX-License-Identifier: MIT
"""A limit of processes or memory (`ulimit -u`, a cgroup) refuses threads; the calling thread then does the work itself."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardcodec
from shardcodec import kv, tools
from shardcodec.storage import event_loop
from shardcodec.storage.event_loop import Threads, in_thread


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def test_work_of_a_coroutine_is_done_by_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    refuse(monkeypatch)
    monkeypatch.setattr(event_loop, "_pools", {})
    assert loop.run_until_complete(in_thread(threading.get_ident)) == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        loop.run_until_complete(in_thread(divmod, 1, 0))
    loop.close()


def test_work_of_a_pool_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool keeps work for which it could not start a thread, and its other thread takes it later."""
    begun, may_end, calls = threading.Event(), threading.Event(), []

    def wait() -> None:
        begun.set()
        may_end.wait()

    with Threads(2) as pool:
        first = pool.submit(wait)
        begun.wait()
        refuse(monkeypatch)
        second = pool.submit(calls.append, threading.get_ident())
        assert second.done()
        error = pool.submit(divmod, 1, 0).exception(0)
        assert isinstance(error, ZeroDivisionError)
        may_end.set()
        first.result()
    assert calls == [threading.get_ident()]


@pytest.fixture
def group(tmp_path: Path) -> zarr.Group:
    group = zarr.create_group(tmp_path / "a.zarr")
    for name in ("a", "b"):
        array = group.create_array(name, shape=(16, 16), chunks=(2, 2), shards=(4, 4), dtype="int32")
        array[:] = np.arange(256).reshape(16, 16)
    return group


def test_tools_work_in_the_calling_thread(
    group: zarr.Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "a.zarr")
    refuse(monkeypatch)
    assert tools.inspect(place, threads=4).n_arrays == 2
    assert tools.verify(place, level="decode", threads=4).n_findings == 0
    assert tools.convert(place, tmp_path / "b.zarr", shards=(8, 8), threads=4).is_complete
    assert tools.compact(place, to=str(tmp_path / "c.zarr"), threads=4).n_shards == 32
    new = str(tmp_path / "b.zarr/a")
    assert tools.verify(f"{place}/a", level="decode", against=new, threads=4).n_findings == 0


def test_codecs_of_zarr_work_in_the_calling_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarr.codecs.numcodecs import BZ2

    values = np.arange(4096, dtype="int32").reshape(64, 64)
    make: Any = zarr.create_array
    with shardcodec.enable(threads=4):
        array = make(
            tmp_path / "a.zarr", data=values, chunks=(8, 8), shards=(64, 64), compressors=[BZ2(level=1)]
        )
        refuse(monkeypatch)
        array[:] = values + 1
        assert (array[:] == values + 1).all()


def test_coroutines_of_a_key_value_store_work_in_the_calling_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    store = kv.ShardedKeyValueStore(
        str(tmp_path / "shard"), grid_shape=(4,), index_codecs=codecs, data_copy_concurrency=2
    )
    refuse(monkeypatch)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(store.write_async(b"\0\0\0\1", b"value"))
    assert loop.run_until_complete(store.read_async(b"\0\0\0\1")).value == b"value"
    assert loop.run_until_complete(store.list_async()) == [b"\0\0\0\1"]
    loop.close()
