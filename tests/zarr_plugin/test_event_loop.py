# test_event_loop.py - the thread that does the work of a read
# SPDX-License-Identifier: MIT
"""A read of some milliseconds stays on zarr's event loop only if no other call needs the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, ours, run_checked
from zarr.core.sync import sync

from shardcodec import compat
from shardcodec.access import array_read


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record for each engine call whether it runs on the event loop ("loop") or in another thread ("other")."""
    found: list[str] = []
    read = array_read.read

    def noted(*arguments: Any) -> list[int]:
        try:
            asyncio.get_running_loop()
            found.append("loop")
        except RuntimeError:
            found.append("other")
        return read(*arguments)

    monkeypatch.setattr(array_read, "read", noted)
    monkeypatch.setattr(compat, "_crowded_until", 0.0)
    return found


@pytest.fixture
def array(tmp_path: Path) -> Any:
    """4 MiB in four shards: neither a small read nor a long one."""
    made = create(
        tmp_path, shape=(2048, 2048), shards=(1024, 1024), chunks=(256, 256), dtype="i1", compressors=None
    )
    made[:] = np.broadcast_to(np.arange(2048).astype("i1"), made.shape)
    return ours(tmp_path)


def test_single_call_runs_on_zarrs_loop(array: Any, threads: list[str]) -> None:
    assert array[:].sum() == array[:].sum()
    assert threads == ["loop", "loop"]


def test_concurrent_calls_and_the_next_calls_leave_the_loop_free(
    array: Any, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def both() -> Any:
        return await asyncio.gather(*(array.async_array.getitem(slice(None)) for _ in range(2)))

    one, other = sync(both())
    assert np.array_equal(one, other)
    assert threads == ["other", "other"]
    assert np.array_equal(array[:], one)
    assert threads == ["other"] * 3
    monkeypatch.setattr(compat.time, "monotonic", lambda: compat._crowded_until)
    assert np.array_equal(array[:], one)
    assert threads == ["other"] * 3 + ["loop"]


def test_users_event_loop_is_left_free(array: Any, threads: list[str]) -> None:
    assert asyncio.run(array.async_array.getitem(slice(None))).shape == array.shape
    assert threads == ["other"]


def test_long_read_runs_in_another_thread(
    array: Any, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_read, "MAX_ALONE_NBYTES", array.nbytes - 1)
    assert array[:].shape == array.shape
    assert threads == ["other"]


def test_concurrent_threads_are_all_served(array: Any, threads: list[str]) -> None:
    results: list[int] = []
    others = [threading.Thread(target=lambda: results.append(int(array[:].sum()))) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert results == [int(array[:].sum())] * 4


@pytest.mark.parametrize("direct", [False, True])
def test_threads_that_wait_for_codecs_leave_threads_to_them(tmp_path: Path, direct: bool) -> None:
    """A write waits in a thread for codecs of other packages, which need a thread themselves.

    Both took it from zarr's pool. If the writes had all of its threads, they waited for ever.
    """
    code = f"""
        import os, threading, numpy as np, zarr, shardcodec
        from zarr.codecs.numcodecs import BZ2
        zarr.config.set({{"threading.max_workers": 1}})
        os.environ["SHARDCODEC_DIRECT"] = "{direct}"
        shardcodec.enable()
        arrays = [
            zarr.create_array(
                {str(tmp_path)!r} + f"/{{n}}", shape=(64, 64), shards=(32, 32), chunks=(8, 8), dtype="i4", compressors=[BZ2()]
            )
            for n in range(3)
        ]
        values = np.arange(4096).reshape(64, 64)

        def use(array):
            for number in range(5):
                array[:] = values + number
                assert (array[:] == values + number).all()
            ended.append(array)

        ended = []
        threads = [threading.Thread(target=use, args=(array,), daemon=True) for array in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(ended) == 3, "they wait for each other"
    """
    run_checked(code)
