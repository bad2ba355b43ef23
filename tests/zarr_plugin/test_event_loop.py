# test_event_loop.py - which thread does the work of a read
# SPDX-License-Identifier: MIT
"""A read that takes some milliseconds stays on zarr's event loop only where nobody else needs that loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, ours
from zarr.core.sync import sync

from shardcodec import compat
from shardcodec.zarr_plugin import read_request


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread of each engine call from now on, as "loop" or "other"."""
    found: list[str] = []
    read = read_request.read

    def noted(*arguments: Any) -> list[int]:
        try:
            asyncio.get_running_loop()
            found.append("loop")
        except RuntimeError:
            found.append("other")
        return read(*arguments)

    monkeypatch.setattr(read_request, "read", noted)
    monkeypatch.setattr(compat, "_crowded_until", 0.0)
    return found


@pytest.fixture
def array(tmp_path: Path) -> Any:
    """4 MiB in four shards: no small read, and far from a long one."""
    made = create(
        tmp_path, shape=(2048, 2048), shards=(1024, 1024), chunks=(256, 256), dtype="i1", compressors=None
    )
    made[:] = np.broadcast_to(np.arange(2048).astype("i1"), made.shape)
    return ours(tmp_path)


def test_a_call_alone_is_served_on_zarrs_loop(array: Any, threads: list[str]) -> None:
    assert array[:].sum() == array[:].sum()
    assert threads == ["loop", "loop"]


def test_calls_side_by_side_leave_the_loop_free_and_so_do_those_soon_after(
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


def test_a_loop_of_the_users_own_is_left_free(array: Any, threads: list[str]) -> None:
    assert asyncio.run(array.async_array.getitem(slice(None))).shape == array.shape
    assert threads == ["other"]


def test_what_takes_longer_goes_to_another_thread(
    array: Any, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_request, "MOST_ALONE_NBYTES", array.nbytes - 1)
    assert array[:].shape == array.shape
    assert threads == ["other"]


def test_a_thread_that_comes_meanwhile_is_served_too(array: Any, threads: list[str]) -> None:
    results: list[int] = []
    others = [threading.Thread(target=lambda: results.append(int(array[:].sum()))) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert results == [int(array[:].sum())] * 4
