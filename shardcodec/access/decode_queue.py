# decode_queue.py - decode answers of a store while others are under way
# SPDX-License-Identifier: MIT
"""`DecodeQueue`: decodes answers of a store into an array, in another thread.

An *answer* is the bytes that a store returned for one request: a whole object, or a range of it. To hand each answer to the
thread by itself would often take longer than to decode it. So one native plan runs at a time. It decodes all answers that
arrived since the last plan began: few at first, more if decoding is slower than the store. A large answer gets a plan of its
own, so that its memory is freed before other answers are decoded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ShardError
from ..options import Options
from ..storage.waiting import in_thread
from .read import ReadItem, read

__all__ = ["DecodeQueue"]

# A plan takes queued answers up to this number of bytes, or one answer.
BATCH_NBYTES = 8 << 20


class _Queued(NamedTuple):
    """A queued item, the size of its answer in bytes, and the future that `DecodeQueue.decode` awaits."""

    item: ReadItem
    nbytes: int
    done: asyncio.Future[None]


class DecodeQueue:
    """A queue of the answers that one call decodes into one array.

    Parameters
    ----------
    out, axes, options
        The array, and how it is filled: as for `read`.
    inline : bool
        Decode in the thread of the event loop, without the queue, because the call has little to decode.
    """

    def __init__(
        self, out: np.ndarray[Any, Any], axes: Sequence[int], options: Options, *, inline: bool
    ) -> None:
        self._into = out, axes, options
        self._inline = inline
        self._queue: deque[_Queued] = deque()
        self._task: asyncio.Task[None] | None = None

    async def decode(self, item: ReadItem, nbytes: int) -> None:
        """Decode one answer into the array of the queue; return when its elements are there.

        Parameters
        ----------
        item : ReadItem
            The wanted elements. Its source is the answer: the bytes of the object, a native ``Fetched`` with a range of
            it, or None for an object that does not exist.
        nbytes : int
            Size of the answer in bytes, which limits how many answers one plan takes.

        Raises
        ------
        ShardFormatError, ChecksumError, CodecError
            The bytes of this answer are damaged. Other answers are still decoded.
        CancelledError
            `end` was called.
        """
        if self._inline:
            read([item], *self._into)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Queued(item, nbytes, done))
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        await done

    async def end(self) -> None:
        """Cancel the calls of `decode` that wait; return when no thread writes to the array any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._queue:
                batch = self._next_batch()
                try:
                    await self._read(batch)
                finally:
                    _cancel(batch)
        finally:
            self._task = None
            _cancel(self._queue)

    def _next_batch(self) -> list[_Queued]:
        batch = [self._queue.popleft()]
        left = BATCH_NBYTES - batch[0].nbytes
        while self._queue and self._queue[0].nbytes <= left:
            batch.append(self._queue.popleft())
            left -= batch[-1].nbytes
        return batch

    async def _read(self, batch: Sequence[_Queued]) -> None:
        wanted = [one for one in batch if not one.done.cancelled()]
        if not wanted:
            return
        try:
            await in_thread(read, [one.item for one in wanted], *self._into)
        except Exception as error:  # noqa: BLE001  # `decode` raises it
            if len(wanted) == 1 or not isinstance(error, ShardError):
                _finish(wanted, error)
            else:
                for one in wanted:  # one by one, so that only the damaged items get an error
                    await self._read([one])
        else:
            _finish(wanted, None)


def _finish(batch: Iterable[_Queued], error: Exception | None) -> None:
    for one in batch:
        if one.done.done():
            continue
        if error is None:
            one.done.set_result(None)
        else:
            one.done.set_exception(error)


def _cancel(batch: Iterable[_Queued]) -> None:
    for one in batch:
        one.done.cancel()
