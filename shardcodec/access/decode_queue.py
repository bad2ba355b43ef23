# decode_queue.py - decoding what comes from a store, while more comes
# SPDX-License-Identifier: MIT
"""Answers of a store, decoded into an array.

One thread hop for each answer would cost more than many of them take to decode. So there is one native plan at a time,
with what has come since the last began: few answers at first, more when decoding is what others wait for. Those that are
large go by themselves, so that their memory is free again before others are decoded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import ShardError
from ..options import Options
from ..storage.tasks import in_thread
from .read import ReadItem, read

__all__ = ["Arrivals"]

# Where answers wait, a plan takes as many as have so many bytes, or one.
BATCH_NBYTES = 8 << 20

Waiting = tuple[ReadItem, int, asyncio.Future[None]]


class Arrivals:
    """What one call decodes.

    Parameters
    ----------
    out, axes, options
        As for `read`.
    inline : bool
        It is so little in all that it is done on the event loop.
    """

    def __init__(
        self, out: np.ndarray[Any, Any], axes: Sequence[int], options: Options, *, inline: bool
    ) -> None:
        self._into = out, axes, options
        self._inline = inline
        self._waiting: deque[Waiting] = deque()
        self._work: asyncio.Task[None] | None = None

    async def decode(self, item: ReadItem, nbytes: int) -> None:
        """Return when an item with so many bytes of an answer is decoded.

        Raises
        ------
        ShardFormatError, ChecksumError, CodecError
            Its bytes are damaged. Others are not touched by that.
        """
        if self._inline:
            read([item], *self._into)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, nbytes, done))
        if self._work is None:
            self._work = asyncio.ensure_future(self._work_off())
        await done

    async def end(self) -> None:
        """Return when nothing is written to the array any more; who waits for an item then is cancelled."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _work_off(self) -> None:
        try:
            while self._waiting:
                batch = self._next()
                try:
                    await self._read(batch)
                finally:
                    _cancel(batch)
        finally:
            self._work = None
            _cancel(self._waiting)

    def _next(self) -> list[Waiting]:
        batch = [self._waiting.popleft()]
        left = BATCH_NBYTES - batch[0][1]
        while self._waiting and self._waiting[0][1] <= left:
            batch.append(self._waiting.popleft())
            left -= batch[-1][1]
        return batch

    async def _read(self, batch: Sequence[Waiting]) -> None:
        wanted = [one for one in batch if not one[-1].cancelled()]
        if not wanted:
            return
        try:
            await in_thread(read, [item for item, *_ in wanted], *self._into)
        except Exception as error:  # noqa: BLE001 (whose it is, it is told)
            if len(wanted) == 1 or not isinstance(error, ShardError):
                _tell(wanted, error)
            else:
                for one in wanted:  # each its own
                    await self._read([one])
        else:
            _tell(wanted, None)


def _tell(some: Iterable[Waiting], error: Exception | None) -> None:
    for *_, done in some:
        if done.done():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def _cancel(some: Iterable[Waiting]) -> None:
    for *_, done in some:
        done.cancel()
