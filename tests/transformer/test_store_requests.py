# test_store_requests.py - readers that run in step, with one call to the store for all of them
# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from zarr.abc.store import RangeByteRequest, SuffixByteRequest

from shardcodec.storage.store import Answer, ObjectChanged
from shardcodec.transformer.store_requests import BatchedRemote, in_step

REMOTE = BatchedRemote()


class Store:
    """A store that records each call and answers with the first bytes of keys."""

    def __init__(self, *changed: str) -> None:
        self.calls: list[list[Any]] = []
        self.changed = changed

    async def __call__(self, requests: Sequence[Any]) -> list[Answer | ObjectChanged | None]:
        self.calls.append([key for key, *_ in requests])
        return [self.answer(*request) for request in requests]

    def answer(self, key: str, wanted: Any, state: Any) -> Answer | ObjectChanged | None:
        if key in self.changed and state is not None:
            return ObjectChanged(key)
        data = np.frombuffer(key.encode(), "u1")
        match wanted:
            case RangeByteRequest(start, end):
                data = data[start:end]
            case SuffixByteRequest(suffix):
                data = data[-suffix:]
        return None if key == "absent" else Answer(data)


def text(answer: Answer | None) -> str:
    return "-" if answer is None else bytes(answer.data).decode()


async def index_then_ranges(key: str, n_ranges: int) -> str:
    found = [await REMOTE.get_suffix(key, 1)]
    found += await REMOTE.get_ranges(key, [(i, 1) for i in range(n_ranges)])
    return "".join(map(text, found))


async def whole(key: str) -> str:
    return text(await REMOTE.get(key))


async def test_readers_in_step_share_calls() -> None:
    store = Store()
    readers = [index_then_ranges("abc", 2), whole("xyz"), index_then_ranges("def", 0), whole("absent")]
    assert await in_step(readers, store) == ["cab", "xyz", "f", "-"]
    assert store.calls == [["abc", "xyz", "def", "absent"], ["abc", "abc"]]


async def test_no_reader_makes_no_call() -> None:
    store = Store()
    assert await in_step([], store) == []
    assert store.calls == []


async def test_reader_without_requests_makes_no_call() -> None:
    async def reader() -> int:
        return len(await REMOTE.get_ranges("abc", []))

    store = Store()
    assert await in_step([reader()], store) == [0]
    assert store.calls == []


async def test_changed_object_is_reported_to_its_reader_only() -> None:
    async def bound(key: str) -> str:
        try:
            return text(await REMOTE.get_range(key, 0, 2, "state"))
        except ObjectChanged:
            return text(await REMOTE.get_range(key, 0, 3))

    store = Store("abc")
    assert await in_step([bound("abc"), bound("def")], store) == ["abc", "de"]
    assert store.calls == [["abc", "def"], ["abc"]]


async def test_error_of_the_first_reader_is_raised_and_the_others_are_closed() -> None:
    closed = []

    async def reader(number: int) -> None:
        try:
            await REMOTE.get("abc")
            if number:
                raise ValueError(number)
            await REMOTE.get("def")
        finally:
            closed.append(number)

    store = Store()
    with pytest.raises(ValueError, match="1"):
        await in_step([reader(0), reader(1), reader(2)], store)
    assert sorted(closed) == [0, 1, 2]
    assert len(store.calls) == 1


async def test_error_of_the_store_closes_all_readers() -> None:
    closed = []

    async def reader(number: int) -> None:
        try:
            await REMOTE.get("abc")
        finally:
            closed.append(number)

    async def fail(requests: Sequence[Any]) -> list[Answer | ObjectChanged | None]:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await in_step([reader(0), reader(1)], fail)
    assert closed == [0, 1]
