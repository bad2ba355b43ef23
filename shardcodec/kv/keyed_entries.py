# keyed_entries.py - write the entries of one shard by key
# SPDX-License-Identifier: MIT
"""`KeyedEntries`: the entries of a shard as a dictionary, and with conditions and generations. `KeyedReader` reads them.

Each operation has two forms: a method with the suffix ``_sync`` and a coroutine (`AsyncMethods`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from ..access.shard_change import Found
from .arguments import ConditionFailed, condition_of, is_there, pairs_of, range_of, value_of
from .async_api import AsyncMethods
from .base_object import Renew
from .keyed_reader import ALL, KeyedReader
from .keys import Key, KeyRange
from .results import FAILED, NO_VALUE, Stamp
from .write_buffer import WriteBuffer

__all__ = ["KeyedEntries"]


class KeyedEntries(KeyedReader, AsyncMethods, MutableMapping[Key, bytes]):
    """Common base of a store and of its views in transactions; subclasses set the attributes."""

    # ---- a dictionary

    def __setitem__(self, key: Key, value: Any) -> None:
        self.write_sync(key, value)

    def __delitem__(self, key: Key) -> None:
        """Delete an entry.

        Raises
        ------
        KeyError
            The entry does not exist.
        """
        position = self._position(key)
        existed: list[bool] = []

        def check(found: Found) -> None:
            existed[:] = [is_there(found.shard, position)]

        self._store_one(position, None, check)
        if not existed[-1]:
            raise KeyError(key)

    def clear(self) -> None:
        """Delete all entries whose keys start with `path`, in one write.

        Raises
        ------
        ShardFormatError, ChecksumError
            The shard is damaged and other entries must be kept; it is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``lock_timeout``.
        """
        self.delete_range_sync(ALL)

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Store several values in one write, as `dict.update`.

        Parameters
        ----------
        other : mapping or iterable of pairs, optional
            Keys without `path`, and values; text is stored as UTF-8. A value of None deletes the entry. If a key occurs
            several times, the last value is stored.
        **more
            More values; the name is the key.

        Raises
        ------
        ValueError
            One of the keys is not a key of the grid; nothing was written.
        TypeError
            A key is neither bytes-like nor str, or a value is neither bytes-like, str nor None; nothing was written.
        ShardFormatError, ChecksumError
            An entry that the write would carry over is damaged; the shard is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``lock_timeout``.
        """
        pairs = [*pairs_of(other), *more.items()]
        self._store_all([(self._position(key), value_of(value)) for key, value in pairs])

    def _store_all(self, writes: Sequence[tuple[int, bytes | None]]) -> None:
        pending = WriteBuffer()
        for position, value in writes:
            pending.write(position, value)
        if pending:
            self._entries.store(pending)

    # ---- writing

    def write_sync(self, key: Key, value: Any, *, if_equal: bytes | str | None = None) -> Stamp:
        """Store a value, or delete the entry if the value is None.

        Parameters
        ----------
        key : bytes or str
            Key of the entry, without `path`.
        value : bytes-like, str or None
            The new value; text is stored as UTF-8.
        if_equal : bytes or "absent", optional
            Condition: write only if the shard has this generation. "absent" or `NO_VALUE`: write only if the entry
            does not exist.

        Returns
        -------
        Stamp
            The new state of the shard. Its generation is `FAILED` (empty) if the condition did not hold; nothing was
            written then.

        Raises
        ------
        ValueError
            No entry of the grid has this key, or `if_equal` is `FAILED` or `UNNAMED`, which identify no state.
        TypeError
            `key` or `value` is neither bytes-like nor str, or `if_equal` is not a condition.
        ShardFormatError, ChecksumError
            An entry that the write would carry over is damaged; the shard is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``lock_timeout``.
        """
        position, data = self._position(key), value_of(value)
        condition = condition_of(if_equal)

        def check(found: Found) -> None:
            if condition == NO_VALUE:
                if is_there(found.shard, position):
                    raise ConditionFailed
            elif found.generation != condition:
                raise ConditionFailed

        try:
            generation = self._store_one(position, data, None if condition is None else check)
            return Stamp(generation, time.time())
        except ConditionFailed:
            return Stamp(FAILED, time.time())

    def _store_one(self, position: int, value: bytes | None, check: Callable[[Found], None] | None) -> bytes:
        pending = WriteBuffer()
        pending.write(position, value)
        return self._entries.store(pending, check)

    def delete_sync(self, key: Key, *, if_equal: bytes | str | None = None) -> Stamp:
        """Delete an entry if it exists.

        Parameters
        ----------
        key : bytes or str
            Key of the entry, without `path`.
        if_equal : bytes or "absent", optional
            Condition, as in `write_sync`.

        Returns
        -------
        Stamp
            The new state of the shard. Its generation is `FAILED` (empty) if the condition did not hold; nothing was
            deleted then.

        Raises
        ------
        ValueError, TypeError, ShardFormatError, ChecksumError, LockError
            As `write_sync`.
        """
        return self.write_sync(key, None, if_equal=if_equal)

    def delete_range_sync(self, range: KeyRange) -> None:  # noqa: A002
        """Delete all entries of a range in one write.

        Parameters
        ----------
        range : KeyRange or pair of keys
            Range to delete. The bounds are compared byte by byte and need not be keys.

        Raises
        ------
        TypeError
            `range` is neither a `KeyRange` nor a pair of keys.
        ShardFormatError, ChecksumError
            An entry that the write would carry over is damaged; the shard is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``lock_timeout``.
        """
        first, end = self._grid.span(range_of(range))
        if first < end:
            pending = WriteBuffer()
            pending.clear(first, end)
            self._entries.store(pending)

    def exchange(self, positions: Sequence[int], renew: Renew) -> bytes:
        """Replace values by new ones that `renew` makes from them, in one atomic write; see `Entries.exchange`."""
        return self._entries.exchange(positions, renew)
