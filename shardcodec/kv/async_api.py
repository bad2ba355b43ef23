# async_api.py - the coroutines of a store
# SPDX-License-Identifier: MIT
"""`AsyncMethods`: the coroutines of a store.

Each coroutine runs the method with the suffix ``_sync`` in a thread. Fast path: a small value that needs no network
request is read on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..access.read import INLINE_NBYTES
from ..storage import turns
from .arguments import TooLarge
from .entries import Entries
from .executor import Executor
from .keys import Key, KeyRange
from .results import ReadResult, Stamp

__all__ = ["AsyncMethods"]


class AsyncMethods:
    """Mixin that adds coroutines to a class with the methods ``..._sync``."""

    _entries: Entries
    _executor: Executor
    _read_at_once: Callable[..., ReadResult]
    read_sync: Callable[..., ReadResult]
    read_many_sync: Callable[..., list[ReadResult]]
    list_sync: Callable[..., Sequence[bytes]]
    write_sync: Callable[..., Stamp]
    delete_sync: Callable[..., Stamp]
    delete_range_sync: Callable[..., None]

    async def read(self, key: Key, **how: Any) -> ReadResult:
        """Read a value; see `KeyedEntries.read_sync` for Parameters, Returns and Raises."""
        if self._entries.can_read_inline:
            if turns.is_over():
                await turns.next_turn()
            with suppress(TooLarge):
                return self._read_at_once(key, **how, most=INLINE_NBYTES)
        return await self._executor.run(self.read_sync, key, **how)

    async def read_many(self, keys: Sequence[Key], **how: Any) -> list[ReadResult]:
        """Read values of one state of the shard; see `KeyedEntries.read_many_sync`."""
        return await self._executor.run(self.read_many_sync, keys, **how)

    async def list(
        self,
        range: KeyRange | None = None,  # noqa: A002
        *,
        strip_prefix_length: int = 0,
    ) -> Sequence[bytes]:
        """List keys in ascending order; see `KeyedEntries.list_sync`."""
        return await self._executor.run(self.list_sync, range, strip_prefix_length=strip_prefix_length)

    async def write(self, key: Key, value: Any, *, if_equal: bytes | str | None = None) -> Stamp:
        """Store a value, or delete it if it is None; see `KeyedEntries.write_sync`."""
        return await self._executor.run(self.write_sync, key, value, if_equal=if_equal)

    async def delete(self, key: Key, *, if_equal: bytes | str | None = None) -> Stamp:
        """Delete an entry if it exists; see `KeyedEntries.delete_sync`."""
        return await self._executor.run(self.delete_sync, key, if_equal=if_equal)

    async def delete_range(self, range: KeyRange) -> None:  # noqa: A002
        """Delete all entries of a range in one write; see `KeyedEntries.delete_range_sync`."""
        await self._executor.run(self.delete_range_sync, range)
