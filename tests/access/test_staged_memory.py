# test_staged_memory.py - memory that codecs without native code take
# SPDX-License-Identifier: MIT
"""Chunks between a store and a codec are bounded by the option ``staging_nbytes``."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import bits, random_array
from staged_codecs import INNER, TurnedAtOnce, make
from zarr.codecs import BytesCodec
from zarr.registry import register_codec
from zarr.storage import LocalStore, MemoryStore

import shardcodec


class Counted(TurnedAtOnce):
    """A codec that counts the bytes of the decoded chunks that are still alive."""

    live = 0
    most = 0
    mutex = threading.Lock()

    def to_dict(self) -> Any:
        return {"name": "counted", "configuration": {}}

    def _decode_sync(self, data: Any, spec: Any) -> Any:
        import weakref

        decoded = np.frombuffer(data.to_bytes()[::-1], dtype=np.uint8)
        holder = decoded.view(_Tracked)
        with Counted.mutex:
            Counted.live += holder.nbytes
            Counted.most = max(Counted.most, Counted.live)
        weakref.finalize(holder, Counted.release, holder.nbytes)
        return spec.prototype.buffer.from_array_like(holder)

    @classmethod
    def release(cls, nbytes: int) -> None:
        with cls.mutex:
            cls.live -= nbytes

    async def _decode_single(self, data: Any, spec: Any) -> Any:
        return self._decode_sync(data, spec)


class _Tracked(np.ndarray):  # type: ignore[type-arg]
    """An array with weak references."""


register_codec("counted", Counted)


@pytest.mark.parametrize("threads", [1, 3])
def test_decoded_chunks_are_released_early(threads: int) -> None:
    store = MemoryStore()
    array = make(store, [BytesCodec(), Counted()], shape=(512, 512), chunks=(512, 512), inner=(32, 32))
    values = random_array((512, 512), "int32")
    array[...] = values
    Counted.most = 0
    with shardcodec.options(threads=threads, staging_nbytes=64 << 10):
        assert bits(array[...]) == bits(values)
    assert 0 < Counted.most <= max(32 << 10, threads * 4096)


def test_encoded_chunks_are_fetched_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the budget is for encoded chunks that wait for the codec; they are fetched in several steps."""
    from shardcodec.access.staged import read

    array = make(
        LocalStore(tmp_path / "a"), INNER["at once"](), shape=(256, 256), chunks=(256, 256), inner=(16, 16)
    )
    values = random_array((256, 256), "int32")
    array[...] = values
    waiting: list[int] = []
    decode_all = read._Reader.decode_all

    def record(self: Any) -> None:
        waiting.append(sum(piece.data.nbytes for piece in self.pieces))
        decode_all(self)

    monkeypatch.setattr(read._Reader, "decode_all", record)
    with shardcodec.options(staging_nbytes=20 << 10):
        assert bits(array[...]) == bits(values)
    assert sum(waiting) == values.nbytes
    assert max(waiting) <= 10 << 10
