# write_request.py - a request to store elements, carried out
# SPDX-License-Identifier: MIT
"""Writing through zarr's stores.

The locks of all objects of the request are held from the first look at the old objects until the new ones are in
place.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ..access.conditional_write import update
from ..access.read import INLINE_NBYTES, INLINE_OBJECTS
from ..access.write import WriteItem, moved_nbytes, write
from ..compat import buffer_from, config
from ..options import Options
from ..storage import file_locks, locks, remote_indexes
from ..storage.tasks import all_of, to_its_end
from .remotes import conditional_remote_for
from .request import Part, Request
from .stores import (
    check_writable,
    index_names,
    is_local,
    is_memory,
    is_prompt,
    local_path,
    lock_keys_async,
    staging,
    stored_bytes,
)

__all__ = ["run"]

# Decoded bytes of the objects that are encoded at a time where their bytes are held in memory.
MEMORY_NBYTES = 128 << 20


async def run(request: Request, options: Options) -> None:
    """Store the request's array."""
    if is_local(request.store) or is_memory(request.store):
        check_writable(request.store)  # every other store does so itself
    if not request.parts:
        return
    keys = await lock_keys_async([part.target for part in request.parts])
    async with locks.table().hold_async(keys):
        if is_local(request.store):
            await _write_local(request, keys, options)
        elif is_memory(request.store):
            for parts in _groups(request.parts):
                await _write_memory(request, parts, options)
        else:
            try:
                for parts in _groups(request.parts):
                    await _write_remote(request, parts, options)
            finally:
                remote_indexes.drop(index_names([part.target for part in request.parts]))


async def _run_engine(
    request: Request,
    parts: Sequence[Part],
    paths: Sequence[str] | None,
    olds: Sequence[Any] | None,
    options: Options,
    held: Sequence[int | None] | None = None,
    exist: list[int] | None = None,
) -> list[Any]:
    items = [
        WriteItem(
            part.chain,
            None if paths is None else paths[i],
            None if olds is None else olds[i],
            part.box,
            part.target.path,
            None if held is None else held[i],
        )
        for i, part in enumerate(parts)
    ]
    choices: dict[str, Any] = {
        "write_empty": bool(parts[0].spec.config.write_empty_chunks),
        "exist": exist,
    }

    def work() -> list[Any]:
        where = None if paths is None else staging(request.store)
        return write(items, request.array, request.axes, options, staging=where, **choices)

    prompt = paths is None or is_prompt(request.store)
    if prompt and options.durability == "rename" and _is_small(items, options):
        return work()
    return await to_its_end(asyncio.to_thread(work))  # the locks are ours until the files are whole


def _is_small(items: Sequence[WriteItem], options: Options) -> bool:
    """Tell whether items can be written at once, on the event loop: few objects, and few bytes encoded or copied."""
    if len(items) > INLINE_OBJECTS:
        return False
    total = 0
    for item in items:
        total += moved_nbytes(item, options)
        if total > INLINE_NBYTES:
            return False
    return True


def _groups(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Parts of a request, some at a time, so that their encoded objects fit the memory set aside for them."""
    group: list[Part] = []
    total = 0
    for part in parts:
        nbytes = math.prod(part.chain.shape) * int(part.chain.itemsize)
        if group and total + nbytes > MEMORY_NBYTES:
            yield group
            group, total = [], 0
        group.append(part)
        total += nbytes
    yield group


async def _write_local(request: Request, paths: Sequence[str], options: Options) -> None:
    left = sorted(zip(paths, request.parts, strict=True), key=lambda pair: pair[0])
    deadline = time.monotonic() + options.lock_timeout
    patience = file_locks.patience_of(options)
    prompt = is_prompt(request.store)
    while left:
        some: list[tuple[str, Part]] = []
        exist: list[int] = []
        files = [local_path(part.target) for _, part in left]
        try:
            async with file_locks.hold_async(
                [path for path, _ in left], options, files, prompt=prompt
            ) as held:
                moved = file_locks.MOVED in held
                if not moved:
                    some, left = left[: len(held)], left[len(held) :]
                    parts = [part for _, part in some]
                    await _run_engine(request, parts, files[: len(held)], None, options, held, exist)
        except OSError as error:  # what has been written already is written once more
            left = some + left
            await asyncio.sleep(patience.pause(error))
            continue
        if moved:  # a link was erased while the lock of its target was waited for
            file_locks.check_deadline(deadline, left[0][0], options)
            names = await lock_keys_async([part.target for _, part in left])
            left = sorted(zip(names, (part for _, part in left), strict=True), key=lambda pair: pair[0])
            continue
        # what others have made meanwhile has a lock now, to be taken in its turn
        if exist:
            file_locks.check_deadline(deadline, some[exist[0]][0], options)
        left = sorted([some[i] for i in exist] + left, key=lambda pair: pair[0])


async def _write_memory(request: Request, parts: Sequence[Part], options: Options) -> None:
    olds = [None if part.covers else stored_bytes(part.target, part.spec.prototype) for part in parts]
    store: Any = request.store
    for part, result in zip(parts, await _run_engine(request, parts, None, olds, options), strict=True):
        if result is None:
            store.delete_sync(part.target.path)
        else:
            store.set_sync(part.target.path, buffer_from(part.spec.prototype, result))


async def _write_remote(request: Request, parts: Sequence[Part], options: Options) -> None:
    concurrency = max(1, int(config.get("async.concurrency")))
    remote = conditional_remote_for(request.store)
    if remote is not None:
        check_writable(request.store)
        items = [
            WriteItem(part.chain, None, None, part.box, part.target.path) for part in parts if not part.covers
        ]
        empty = bool(parts[0].spec.config.write_empty_chunks)
        await update(items, request.array, request.axes, options, remote, concurrency, write_empty=empty)
        parts = [part for part in parts if part.covers]
        if not parts:
            return
    limit = asyncio.Semaphore(concurrency)

    async def get(part: Part) -> Any:
        if part.covers:
            return None
        async with limit:
            buffer = await part.target.get(prototype=part.spec.prototype)
        return None if buffer is None else buffer.as_numpy_array()

    async def put(part: Part, result: Any) -> None:
        async with limit:
            if result is None:
                await part.target.delete()
            else:
                await part.target.set(buffer_from(part.spec.prototype, result))

    olds = await all_of(get(part) for part in parts)
    results = await _run_engine(request, parts, None, olds, options)
    await all_of(put(part, result) for part, result in zip(parts, results, strict=True))
