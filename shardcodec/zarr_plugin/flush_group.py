# flush_group.py - what a block of `group_writes` has gathered of one object, stored
# SPDX-License-Identifier: MIT
"""`store`: an update under locks, or under a condition, by what the store offers. The caller holds the lock in the table."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..access.conditional_write import exchange
from ..access.flush import flush
from ..compat import buffer_from
from ..storage import file_locks, remote_indexes
from ..storage.tasks import to_its_end
from .pending import Entry, HeldEntry
from .remotes import conditional_remote_for
from .stores import (
    index_names,
    is_local,
    is_memory,
    is_prompt,
    local_path,
    lock_keys_async,
    staging_async,
    stored_bytes,
)

__all__ = ["store"]


async def store(entry: Entry | HeldEntry) -> None:
    """Store one object.

    Raises
    ------
    Exception
        Whatever the codecs or the store raise; the object is as it was.
    """
    if isinstance(entry, HeldEntry):
        await entry.gathered.store()
    elif is_local(entry.target.store):
        await _store_local(entry)
    elif is_memory(entry.target.store):
        await _store_memory(entry)
    else:
        try:
            await _store_remote(entry)
        finally:
            remote_indexes.drop(index_names([entry.target]))


async def _store_local(entry: Entry) -> None:
    async def write(old_fd: int | None) -> bool:
        exist: list[int] = []
        where = {"old_fd": old_fd, "staging": await staging_async(entry.target.store), "exist": exist}
        await _flush(entry, local_path(entry.target), None, **where)
        return not exist

    (path,) = await lock_keys_async([entry.target])  # where a link leads now
    name, prompt = local_path(entry.target), is_prompt(entry.target.store)
    await file_locks.update_async(path, entry.options, write, name=name, prompt=prompt)


async def _store_memory(entry: Entry) -> None:
    target, prototype = entry.target, entry.spec.prototype
    result = await _flush(entry, None, stored_bytes(target, prototype))
    store: Any = target.store
    if result is None:
        store.delete_sync(target.path)
    else:
        store.set_sync(target.path, buffer_from(prototype, result))


async def _store_remote(entry: Entry) -> None:
    target, prototype = entry.target, entry.spec.prototype
    remote = conditional_remote_for(target.store)
    if remote is not None:

        async def renew(_: Sequence[int], olds: Sequence[Any]) -> list[Any]:
            (old,) = olds
            if old is None:
                return [await _flush(entry, None, None)]
            return [await _flush(entry, None, old.data, keep_empty=True)]

        await exchange([target.path], renew, entry.options, remote, 1)
        return
    old = None if entry.gathered.is_complete else await target.get(prototype=prototype)
    result = await _flush(entry, None, None if old is None else old.as_numpy_array())
    if result is None:
        await target.delete()
    else:
        await target.set(buffer_from(prototype, result))


async def _flush(entry: Entry, path: str | None, old: Any, **choices: Any) -> Any:
    return await to_its_end(
        asyncio.to_thread(
            flush,
            entry.gathered,
            path,
            old,
            entry.target.path,
            entry.options,
            write_empty=bool(entry.spec.config.write_empty_chunks),
            **choices,
        )
    )
