# own_writes.py - writes by zarr's own pipeline, stored by `storage.replace`
# SPDX-License-Identifier: MIT
"""Writes of arrays that the engine does not encode: zarr's pipeline encodes, and the engine stores the objects.

zarr reads the old object, makes the new one and stores it, without a check whether another writer has stored the object
meanwhile. So one of two updates that both find no object would be lost. Here zarr gets a store that captures the new
objects. `storage.replace` then stores them by the rules of all our writes, and lets zarr repeat the work if another
writer was faster.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..compat import StorePath, WrapperStore
from ..options import NOTHING, Options
from ..storage import process_locks
from ..storage.file_locks import NO_FILE
from ..storage.kinds import is_zarr_store, store_of
from ..storage.lock_reach import refuse_store
from ..storage.replace import replace
from ..storage.runner import ON_LOOP, Runner
from ..storage.store import UNCHANGED, Outcome, Store, StoredObject

__all__ = ["write_own"]

_Write = Callable[[Sequence[Any]], Awaitable[None]]


class CaptureStore(WrapperStore[Any]):
    """A store that reads from another store and captures writes and deletions.

    there: from the keys of files that exist, as their locks show, to their paths: LocalStore takes the ENOENT of a stale
    directory entry for a missing object. kept: from keys to the captured buffers; None for a deletion.
    """

    def __init__(self, store: Any, there: Mapping[str, str] = NOTHING) -> None:
        super().__init__(store)
        self._there = there
        self.kept: dict[str, Any] = {}

    async def get(self, key: str, *arguments: Any, **named: Any) -> Any:
        return self._checked(key, await super().get(key, *arguments, **named))

    def get_sync(self, key: str, **named: Any) -> Any:
        return self._checked(key, super().get_sync(key, **named))  # type: ignore[misc]

    def _checked(self, key: str, answer: Any) -> Any:
        if answer is None and key in self._there:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self._there[key])
        return answer

    async def set(self, key: str, value: Any) -> None:
        self.kept[key] = value

    def set_sync(self, key: str, value: Any) -> None:
        self.kept[key] = value

    async def delete(self, key: str) -> None:
        self.kept[key] = None

    def delete_sync(self, key: str) -> None:
        self.kept[key] = None


async def write_own(batch: Sequence[Any], write: _Write, options: Options) -> None:
    """Write a batch of `CodecPipeline.write` with zarr's own pipeline; `write` is its coroutine function for a part of the batch.

    LockScopeError: ``locking`` is "cluster", and the store is reached by requests: this work sets no conditions.
    """
    targets = [item[0] for item in batch if isinstance(item[0], StorePath)]
    if len(targets) < len(batch) or not all(is_zarr_store(target.store) for target in targets):
        async with process_locks.table().hold_async(await ON_LOOP.call(_lock_names, targets, inline=False)):
            await write(batch)
        return
    by_store: dict[int, list[Any]] = {}
    for item in batch:
        by_store.setdefault(id(item[0].store), []).append(item)
    for own in by_store.values():
        store = store_of(own[0][0].store).with_prototype(own[0][1].prototype)
        if options.locking == "cluster" and not store.is_near:
            raise refuse_store(own[0][0].path, "zarr's own pipeline writes without conditions")
        await replace(store, [target.path for target, *_ in own], _ZarrsObjects(store, own, write), options)


def _lock_names(targets: Sequence[StorePath]) -> list[str]:
    return [name for target in targets for name in store_of(target.store).lock_names([target.path])]


class _ZarrsObjects:
    """A `Maker` of objects that zarr's own pipeline writes into a `CaptureStore`."""

    keeps_emptied = False

    def __init__(self, store: Store, batch: Sequence[Any], write: _Write) -> None:
        self._store = store
        self._batch = batch
        self._write = write

    def begin(self) -> None:
        """Do nothing: the batch is known."""

    def needs_old(self, position: int) -> bool:
        """Return False: zarr reads the stored object itself."""
        return False

    def nbytes(self, position: int) -> int:
        return 8 * math.prod(map(int, self._batch[position][1].shape))

    async def make(self, stored: Sequence[StoredObject], runner: Runner) -> Outcome:
        items = [self._batch[old.position] for old in stored]
        there = {
            item[0].path: self._store.source(item[0].path)
            for item, old in zip(items, stored, strict=True)
            if old.file is not None and old.file is not NO_FILE
        }
        captured = CaptureStore(items[0][0].store, there)
        await self._write([(StorePath(captured, target.path), *rest) for target, *rest in items])
        kept = [captured.kept.get(target.path, UNCHANGED) for target, *_ in items]
        return Outcome([new if new is None or new is UNCHANGED else new.as_numpy_array() for new in kept])
