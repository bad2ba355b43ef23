# upload.py - a new object, written from its first to its last byte
# SPDX-License-Identifier: MIT
"""A new object, written from its first to its last byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ..compat import (
    on_zarrs_loop,
)
from . import process_locks
from .replace import forget
from .store import (
    Store,
    StreamedObject,
)

__all__ = ["Upload"]

# Bytes that are collected before the store gets them.
PIECE_NBYTES = 8 << 20


class Upload:
    """A new object that a thread outside of zarr's event loop writes while the store takes it (`Store.put_parts`).

    nbytes: at most so many. Calls must not overlap. Readers see the object after `commit`. Until then nothing is visible, and
    no lock is held.
    """

    def __init__(self, store: Store, key: str, nbytes: int) -> None:
        store.check_writable()
        self._store = store
        self._key = key
        self._nbytes = nbytes
        self._piece = bytearray()
        self._end = 0
        self._failure: BaseException | None = None
        self._next: asyncio.Queue[Any] | None = None
        self._task: asyncio.Task[Any] | None = None

    def write(self, data: Any, offset: int) -> None:
        """Copy bytes to an offset at or after the present end; zeros fill the gap.

        Raises the error of the store that has ended the upload, or OSError if an earlier write has failed, so that the upload
        is not complete.
        """
        view = memoryview(data).cast("B")
        assert offset >= self._end, "a store takes the bytes of a new object in order"
        self._check()
        try:
            if offset > self._end:
                self._append(memoryview(bytes(offset - self._end)))
            self._append(view)
        except BaseException as error:
            self._failure = error
            raise
        self._end = offset + view.nbytes

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(
                f"{self._store.describe(self._key)}: expected an upload without gaps, but a write to it has failed; "
                "write the shard again from its beginning"
            ) from self._failure

    def _append(self, view: memoryview) -> None:
        start = 0
        while start < view.nbytes:
            n = min(PIECE_NBYTES - len(self._piece), view.nbytes - start)
            self._piece += view[start : start + n]
            start += n
            if len(self._piece) == PIECE_NBYTES:
                piece, self._piece = self._piece, bytearray()
                on_zarrs_loop(self._offer(piece))

    def commit(self) -> None:
        """Store the rest and make the object visible, after other writers of this process have finished their updates.

        After an error of the store, the old object stays.
        """
        self._check()
        piece, self._piece = self._piece, bytearray()
        with process_locks.table().hold(self._store.lock_names([self._key])):
            try:
                on_zarrs_loop(self._finish(piece))
            finally:
                forget(self._store, [self._key])

    def abort(self) -> None:
        """Discard the new object; after `commit` do nothing."""
        self._piece = bytearray()
        if self._task is not None:
            on_zarrs_loop(self._give_up())

    async def _offer(self, piece: Any) -> None:
        """Wait until the store has taken a piece; raise if the upload has failed."""
        if self._task is None or self._next is None:
            self._next = asyncio.Queue(1)
            new = StreamedObject(self._pieces, self._nbytes)
            self._task = asyncio.ensure_future(self._store.put_parts(self._key, new))
        task, offer = self._task, asyncio.ensure_future(self._next.put(piece))
        await asyncio.wait([offer, task], return_when=asyncio.FIRST_COMPLETED)
        if not offer.done():
            offer.cancel()
            task.result()

    async def _pieces(self) -> AsyncGenerator[Any, None]:
        assert self._next is not None
        while (piece := await self._next.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def _finish(self, piece: bytearray) -> None:
        if piece:
            await self._offer(piece)
        await self._offer(None)
        if self._task is not None:
            await self._task

    async def _give_up(self) -> None:
        if self._task is None:
            return
        task = self._task
        if not task.done():
            await self._offer(ValueError("the new object was aborted while it was written"))
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # or asyncio reports it as not retrieved
