# fallback.py - writes that are left to zarr's own code, under our locks
# SPDX-License-Identifier: MIT
"""What zarr writes itself, put in place by us.

zarr reads the old object of a LocalStore, makes the new one and gives it its name, whatever has that name by then: so two
writers that both find no object lose one of their updates, and no lock could be held on what is not there. Here zarr is
given a store that keeps what it is told to store; then that takes its place by the rules of all our writes, and what
another writer has made first is done again.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from operator import itemgetter
from typing import Any

from .. import native
from ..compat import StorePath, WrapperStore
from ..options import Options
from ..storage import file_locks, locks
from ..storage.tasks import to_its_end
from .stores import check_writable, is_local, is_prompt, local_path, lock_keys_async

__all__ = ["CapturedStore", "write_own"]

# About as many decoded bytes of objects at a time: the encoded ones are held in memory.
MEMORY_NBYTES = 128 << 20

Write = Callable[[Sequence[Any]], Awaitable[None]]


class CapturedStore(WrapperStore[Any]):
    """Reads go to the store; what is to be stored or deleted is kept.

    Parameters
    ----------
    there : collection of str
        Keys of objects that exist, by their locks. LocalStore takes the ENOENT of a stale directory entry for "no object".

    Attributes
    ----------
    kept : dict
        From keys to buffers; None for what is to be deleted.
    """

    def __init__(self, store: Any, there: Collection[str] = ()) -> None:
        super().__init__(store)
        self._there = there
        self.kept: dict[str, Any] = {}

    async def get(self, key: str, *arguments: Any, **named: Any) -> Any:
        found = await super().get(key, *arguments, **named)
        if found is None and key in self._there:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), local_path(StorePath(self._store, key)))
        return found

    async def set(self, key: str, value: Any) -> None:
        self.kept[key] = value

    def set_sync(self, key: str, value: Any) -> None:
        self.kept[key] = value

    async def delete(self, key: str) -> None:
        self.kept[key] = None

    def delete_sync(self, key: str) -> None:
        self.kept[key] = None


async def write_own(batch: Sequence[Any], write: Write, options: Options) -> None:
    """Let zarr store a batch.

    Parameters
    ----------
    batch : sequence
        As zarr passes it to `CodecPipeline.write`.
    write : callable
        zarr's own code: a coroutine function that stores a part of the batch.
    """
    targets = [item[0] for item in batch if isinstance(item[0], StorePath)]
    keys = await lock_keys_async(targets)
    async with locks.table().hold_async(keys):
        if len(targets) < len(batch) or not all(is_local(target.store) for target in targets):
            await write(batch)
        else:
            check_writable(targets[0].store)
            await _write_local(batch, keys, write, options)


async def _write_local(batch: Sequence[Any], paths: Sequence[str], write: Write, options: Options) -> None:
    left = _in_order(paths, batch)
    prompt = is_prompt(batch[0][0].store)
    deadline = time.monotonic() + options.lock_timeout
    patience = file_locks.patience_of(options)
    while left:
        some = left[: _n_at_a_time(item[1] for _, item in left)]
        exist: list[int] = []
        files = [local_path(item[0]) for _, item in some]
        try:
            async with file_locks.hold_async(
                [path for path, _ in some], options, files, prompt=prompt
            ) as held:
                moved = file_locks.MOVED in held
                if not moved:
                    some = some[: len(held)]
                    exist = await _write_locked([item for _, item in some], held, write, options)
        except OSError as error:  # what has been written already is written once more
            await asyncio.sleep(patience.pause(error))
            continue
        if moved:  # a link was erased while the lock of its target was waited for
            file_locks.check_deadline(deadline, left[0][0], options)
            left = _in_order(await lock_keys_async([item[0] for _, item in left]), [item for _, item in left])
            continue
        left = left[len(some) :]
        if exist:
            file_locks.check_deadline(deadline, some[exist[0]][0], options)
            left = sorted([some[i] for i in exist] + left, key=itemgetter(0))


def _in_order(paths: Sequence[str], batch: Sequence[Any]) -> list[tuple[str, Any]]:
    """Pair items with the paths of their files; in the order in which these are locked."""
    return sorted(zip(paths, batch, strict=True), key=itemgetter(0))


def _n_at_a_time(specs: Iterator[Any]) -> int:
    n = nbytes = 0
    for spec in specs:
        nbytes += math.prod(spec.shape) * 8
        if n and nbytes > MEMORY_NBYTES:
            break
        n += 1
    return n


async def _write_locked(
    batch: Sequence[Any], held: Sequence[int | None], write: Write, options: Options
) -> list[int]:
    """Return positions of objects that others have made meanwhile."""
    there = {
        item[0].path
        for item, fd in zip(batch, held, strict=True)
        if fd is not None and fd != file_locks.NO_FILE
    }
    store = CapturedStore(batch[0][0].store, there)
    await write([(StorePath(store, target.path), *rest) for target, *rest in batch])
    work = [
        (i, local_path(target), store.kept[target.path], held[i])
        for i, (target, *_) in enumerate(batch)
        if target.path in store.kept
    ]
    sync = options.durability == "fsync"
    return await to_its_end(
        asyncio.to_thread(lambda: [i for i, path, data, fd in work if not _settle(path, data, fd, sync)])
    )


def _settle(path: str, data: Any, fd: int | None, sync: bool) -> bool:
    """Put an object in its place, or remove it; False when it was to be new, and is not."""
    if data is None:
        if fd != file_locks.NO_FILE:
            native.load().remove_file(path, sync=sync)
        return True
    file = native.load().NewFile(path)
    try:
        file.write(data.as_numpy_array(), 0)
        return bool(file.commit(sync=sync, only_new=fd == file_locks.NO_FILE))
    finally:
        file.abort()
