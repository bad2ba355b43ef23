# array_write.py - write parts of one array into many objects
# SPDX-License-Identifier: MIT
"""Write a `Request`: `storage.replace` replaces its objects by new ones, which the engine encodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..options import Options
from ..storage.replace import replace, replace_blocking
from ..storage.runner import Runner
from ..storage.store import Made, Store, Stored, StreamedObject
from .array_request import Part, Request
from .new_shard_parts import new_shard_parts
from .read import INLINE_NBYTES, INLINE_OBJECTS
from .write import WriteItem, moved_nbytes, write

__all__ = ["PARTS_NBYTES", "write_request", "write_request_blocking"]

# The memory of a shard that is encoded while it is stored: pieces, and parts that are under way.
PARTS_NBYTES = 80 << 20


async def write_request(request: Request, options: Options) -> None:
    """Store the elements of a request.

    Raises
    ------
    ValueError
        The store is read-only.
    LockError
        Other writers changed an object during each attempt for ``lock_timeout``.
    ShardFormatError, ChecksumError, CodecError
        A stored object is damaged where its bytes must be kept; it is as it was.
    """
    await replace(request.store, [part.key for part in request.parts], _Elements(request, options), options)


def write_request_blocking(request: Request, options: Options) -> None:
    """Store the elements of a request, in a thread that does not run an event loop; raises as `write_request`."""
    replace_blocking(
        request.store, [part.key for part in request.parts], _Elements(request, options), options
    )


class _Elements:
    """A `Maker` of objects with the elements of a request."""

    keeps_emptied = False

    def __init__(self, request: Request, options: Options) -> None:
        self._request = request
        self._options = options

    def begin(self) -> None:
        """Do nothing: the elements are known."""

    def needs_old(self, position: int) -> bool:
        return not self._request.parts[position].replaces

    def nbytes(self, position: int) -> int:
        part = self._request.parts[position]
        if self._request.store.path(part.key) is not None:
            return 0  # the engine writes the file as it encodes
        chain = part.chain
        if self._parts(position) is not None:
            return PARTS_NBYTES
        return math.prod(chain.shape) * int(chain.itemsize)

    async def make(self, stored: Sequence[Stored], runner: Runner) -> Made:
        streamed = {
            i: parts for i, old in enumerate(stored) if (parts := self._parts(old.position)) is not None
        }
        if not streamed:
            return await self._make(stored, runner)
        rest = [i for i in range(len(stored)) if i not in streamed]
        objects: list[Any] = [streamed.get(i) for i in range(len(stored))]
        if rest:
            made = await self._make([stored[i] for i in rest], runner)
            for i, new in zip(rest, made.objects, strict=True):
                objects[i] = new
        return Made(objects)

    def _parts(self, position: int) -> StreamedObject | None:
        return new_shard_parts(self._request, self._request.parts[position], self._options)

    async def _make(self, stored: Sequence[Stored], runner: Runner) -> Made:
        store = self._request.store
        items = [_item(store, self._request.parts[old.position], old) for old in stored]
        is_inline = store.is_prompt and self._options.durability == "rename" and self._is_small(items)
        return await runner.call(self._write, items, stored, inline=is_inline)

    def _is_small(self, items: Sequence[WriteItem]) -> bool:
        """Return True if items may be written on the event loop: few objects, and few bytes to encode or copy."""
        if len(items) > INLINE_OBJECTS:
            return False
        total = 0
        for item in items:
            total += moved_nbytes(item, self._options)
            if total > INLINE_NBYTES:
                return False
        return True

    def _write(self, items: Sequence[WriteItem], stored: Sequence[Stored]) -> Made:
        request, options = self._request, self._options
        are_files = items[0].path is not None
        result = write(
            items,
            request.array,
            request.axes,
            options,
            write_empty=request.writes_empty,
            staging=request.store.staging(items[0].key) if are_files else None,
            retry_appeared=False,
        )
        news = result.objects
        emptied = [i for i, old in enumerate(stored) if old.keeps_empty and news[i] is None]
        if emptied:
            work = [items[i] for i in emptied]
            again = write(work, request.array, request.axes, options, keep_empty=True).objects
            for i, new in zip(emptied, again, strict=True):
                news[i] = new
        return Made(news, result.appeared, is_stored=are_files)


def _item(store: Store, part: Part, old: Stored) -> WriteItem:
    path = store.path(part.key)
    return WriteItem(part.chain, path, old.data, part.box, part.key, old.fd, complete=part.ends_at_edge)
