# codec_update.py - one object of a zarr store, exchanged for another that is made of it
# SPDX-License-Identifier: MIT
"""What `StoreObject.update` does, for coroutines: an update under locks, or under a condition, by what the store offers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Protocol

from ..access.conditional_write import exchange
from ..access.read import INLINE_NBYTES
from ..compat import StorePath, buffer_from, default_buffer_prototype
from ..options import Options
from ..storage import file_locks, locks, remote_indexes
from ..storage.tasks import to_its_end
from .remotes import conditional_remote_for
from .stores import (
    check_writable,
    index_names,
    is_local,
    is_memory,
    is_prompt,
    local_path,
    lock_keys_async,
    stored_bytes,
)

__all__ = ["Unchanged", "Work", "update", "update_held"]


class Unchanged(Exception):
    """What `Work` raises to leave the object as it is."""


class Work(Protocol):
    """Makes an object of the one before.

    Attributes
    ----------
    new_nbytes : int
        About as many bytes are written; a small object is made on the event loop itself.
    needs_old : bool
        Whether the old object matters. If not, it is not fetched, and stands for None.
    """

    @property
    def new_nbytes(self) -> int: ...

    @property
    def needs_old(self) -> bool: ...

    def begin(self) -> None:
        """Called when the object is ours, on the event loop; the attributes count from then on. Perhaps several times."""

    def __call__(self, old: Any, keep_empty: bool) -> Any:
        """As an `access.shard_object.Make`, in any thread; perhaps several times."""


async def update(target: StorePath, work: Work, options: Options) -> None:
    """Put another object in the place of what is there, which nobody else changes meanwhile.

    Raises
    ------
    LockError
        Others have written it all the time.
    Exception
        Whatever the work or the store raises.
    """
    check_writable(target.store)
    names = await lock_keys_async([target])
    async with locks.table().hold_async(names):
        await update_held(target, names[0], work, options)


async def update_held(target: StorePath, name: str, work: Work, options: Options) -> None:
    """As `update`, of an object whose lock in the table, under that name, is held already."""
    try:
        if is_local(target.store):
            await _update_local(target, name, work, options)
        elif is_memory(target.store):
            await _update_memory(target, work, options)
        else:
            await _update_remote(target, work, options)
    except Unchanged:
        return
    finally:
        if not is_local(target.store) and not is_memory(target.store):
            remote_indexes.drop(index_names([target]))


async def _run(
    work: Work, old: Any, keep_empty: bool, old_nbytes: int, options: Options, *, prompt: bool = True
) -> Any:
    if prompt and work.new_nbytes + old_nbytes <= INLINE_NBYTES and options.durability == "rename":
        return work(old, keep_empty)
    return await to_its_end(asyncio.to_thread(work, old, keep_empty))


async def _update_local(target: StorePath, path: str, work: Work, options: Options) -> None:
    prompt = is_prompt(target.store)

    async def write(fd: int | None) -> bool:
        work.begin()
        old_nbytes = 0
        if prompt and fd is not None and fd != file_locks.NO_FILE:
            old_nbytes = os.fstat(fd).st_size
        return bool(await _run(work, fd, False, old_nbytes, options, prompt=prompt))

    await file_locks.update_async(path, options, write, name=local_path(target), prompt=prompt)


async def _update_memory(target: StorePath, work: Work, options: Options) -> None:
    work.begin()
    prototype = default_buffer_prototype()
    old = stored_bytes(target, prototype) if work.needs_old else None
    new = await _run(work, old, False, 0 if old is None else old.nbytes, options)
    store: Any = target.store
    if new is None:
        store.delete_sync(target.path)
    else:
        store.set_sync(target.path, buffer_from(prototype, new))


async def _update_remote(target: StorePath, work: Work, options: Options) -> None:
    work.begin()
    prototype = default_buffer_prototype()
    remote = conditional_remote_for(target.store)
    if remote is not None and work.needs_old:

        async def renew(_: Sequence[int], olds: Sequence[Any]) -> list[Any]:
            (old,) = olds
            if old is None:
                return [await _run(work, None, False, 0, options)]
            return [await _run(work, old.data, True, old.data.nbytes, options)]

        await exchange([target.path], renew, options, remote, 1)
        return
    keeps = not target.store.supports_deletes  # an emptied shard: zip files do not let go of one
    buffer = await target.get(prototype=prototype) if work.needs_old or keeps else None
    old = None if buffer is None else buffer.as_numpy_array()
    new = await _run(work, old, keeps and old is not None, 0 if old is None else old.nbytes, options)
    if new is None:
        await target.delete()
    else:
        await target.set(buffer_from(prototype, new))
