# test_decode_queue.py - answers of a store are decoded together, and one by one if one of them is damaged
# SPDX-License-Identifier: MIT
"""Tests of `access.decode_queue` with shards of letters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers import LETTERS, letters, letters_spec, text_of

from shardcodec.access import read_remote
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.read import ObjectSelection
from shardcodec.access.read import read as read_now
from shardcodec.access.read_remote import DecodeQueue
from shardcodec.access.regions import Box
from shardcodec.errors import ChecksumError
from shardcodec.options import Options

CHAIN = compiled(letters_spec().chain)
DAMAGED = letters()[:-1] + b"?"

Read = Callable[..., Any]


def item(i: int, data: Any) -> ObjectSelection:
    return ObjectSelection(f"shard {i}", CHAIN, Box((0, 0), (4, 4), None, (4 * i, 0)), data)


def counting(sizes: list[int]) -> Read:
    """Return a read function that records how many items each call decodes."""

    def read(items: list[ObjectSelection], *into: Any) -> Any:
        sizes.append(len(items))
        return read_now(items, *into)

    return read


def decoded(sources: list[Any], read: Read, nbytes: int = 84) -> tuple[Any, list[Any]]:
    """Decode the shards one below the other; return the array and the result or error of each."""
    out = np.zeros((4 * len(sources), 4), "u1")

    async def run() -> list[Any]:
        queue = DecodeQueue(out, (0, 1), Options(threads=2), inline=False)
        work = (queue.decode(item(i, data), nbytes) for i, data in enumerate(sources))
        try:
            return await asyncio.gather(*work, return_exceptions=True)
        finally:
            await queue.end()

    with mock.patch.object(read_remote, "read", read):
        return out, asyncio.run(run())


def test_waiting_answers_are_decoded_together() -> None:
    sizes: list[int] = []
    out, results = decoded([letters()] * 7, counting(sizes))
    assert sizes == [7] and results == [None] * 7
    assert all(text_of(out[4 * i : 4 * i + 4]) == LETTERS for i in range(7))


def test_large_answers_are_decoded_one_by_one() -> None:
    def sizes_of(nbytes: int) -> list[int]:
        sizes: list[int] = []
        out, results = decoded([letters()] * 5, counting(sizes), nbytes)
        assert results == [None] * 5 and all(text_of(out[4 * i : 4 * i + 4]) == LETTERS for i in range(5))
        return sizes

    assert sizes_of(read_remote.BATCH_NBYTES + 1) == [1] * 5
    assert sizes_of(read_remote.BATCH_NBYTES // 2) == [2, 2, 1]


def test_damage_fails_only_the_damaged_shard() -> None:
    out, results = decoded([letters(), DAMAGED, letters(), DAMAGED], read_now)
    assert [type(result) for result in results] == [type(None), ChecksumError, type(None), ChecksumError]
    assert [getattr(result, "shard", None) for result in results] == [None, "shard 1", None, "shard 3"]
    assert all(text_of(out[4 * i : 4 * i + 4]) == LETTERS for i in (0, 2))


def test_other_errors_fail_the_whole_batch() -> None:
    def fail(*unused: Any) -> None:
        raise MemoryError

    _, results = decoded([letters(), letters()], fail)
    assert [type(result) for result in results] == [MemoryError] * 2


def test_end_waits_for_the_decoding_thread() -> None:
    began, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def slow(*unused: Any) -> None:
        began.set()
        may_end.wait(10)
        has_ended.set()

    async def run() -> None:
        queue = DecodeQueue(np.zeros((4, 4), "u1"), (0, 1), Options(threads=2), inline=False)
        first = asyncio.ensure_future(queue.decode(item(0, letters()), 84))
        while not began.is_set():
            await asyncio.sleep(0)
        second = asyncio.ensure_future(queue.decode(item(0, letters()), 84))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(may_end.set)
        await queue.end()
        assert has_ended.is_set()
        for one in (first, second):
            with pytest.raises(asyncio.CancelledError):
                await one

    with mock.patch.object(read_remote, "read", slow):
        asyncio.run(run())
