# keyed_entries.py - the entries of one shard by key: read, listed, written
# SPDX-License-Identifier: MIT
"""`KeyedEntries`: `Entries` as a dictionary, and with byte ranges, conditions and generations.

Every operation exists twice, with the suffix ``_sync`` and as a coroutine (`Awaited`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..access.shard_change import Found
from ..access.shard_object import OpenObject, ShardObject
from ..errors import UnsupportedError
from .arguments import (
    ByteRange,
    ConditionFailed,
    TooLarge,
    byte_range_of,
    byte_ranges_of,
    condition_of,
    is_known,
    is_there,
    pairs_of,
    range_of,
    result_of,
    value_of,
)
from .async_api import Awaited
from .base_object import NestedObject, Renewed
from .entries import Entries
from .executor import Threads
from .keys import Grid, Key, KeyRange
from .listing import KeyList, no_positions
from .results import FAILED, NO_VALUE, ReadResult, Stamp
from .spec import Parsed
from .write_buffer import Pending

__all__ = ["KeyedEntries"]

ALL = KeyRange()


class KeyedEntries(Awaited, MutableMapping[Key, bytes]):
    """What a store and its views within transactions have in common; each sets the attributes."""

    _base: Any
    _entries: Entries
    _grid: Grid
    _threads: Threads
    _cache_pool: int | None
    _concurrency: int | None
    _value: Callable[[int], bytes | None]
    _position: Callable[[Key], int]

    # ---- what it is

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that `from_json` takes.

        Raises
        ------
        UnsupportedError
            The shard is in a zarr store that is not a folder.
        SpecError
            `path` is no UTF-8.
        """
        return self.parsed(self.path).to_json()

    def parsed(self, path: bytes) -> Parsed:
        """What its JSON says, with another path."""
        target = self._entries.target
        base: str | Parsed | None = target.path
        if isinstance(target, NestedObject):
            base = target.outer.parsed(target.outer.path + target.inner_key)
        if base is None:
            raise UnsupportedError(f"shard {target.key!r} is in a store that has no JSON", shard=target.key)
        return Parsed(base, self._entries.layout, path, self._cache_pool, self._concurrency)

    @property
    def base(self) -> Any:
        """Where the shard is, as it was given."""
        return self._base

    @property
    def target(self) -> ShardObject:
        """The shard as an object."""
        return self._entries.target

    def position_of(self, key: Key) -> int:
        """Return an entry's number, C order over the grid.

        Raises
        ------
        ValueError
            No entry has that key.
        """
        return self._position(key)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Entries along each axis."""
        return self._grid.shape

    @property
    def path(self) -> bytes:
        """What every key begins with."""
        return self._grid.prefix

    def __repr__(self) -> str:
        path = f", path={self.path!r}" if self.path else ""
        return f"<{type(self).__name__} {self._entries.key!r} of {self.grid_shape}{path}>"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    # ---- a dictionary

    def __getitem__(self, key: Key) -> bytes:
        value = self._value(self._position(key))
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Key, value: Any) -> None:
        self.write_sync(key, value)

    def __delitem__(self, key: Key) -> None:
        """Delete an entry.

        Raises
        ------
        KeyError
            There is none.
        """
        position = self._position(key)
        existed: list[bool] = []

        def check(found: Found) -> None:
            existed[:] = [is_there(found.shard, position)]

        self._store_one(position, None, check)
        if not existed[-1]:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        position = self._position(key)  # type: ignore[arg-type]
        return self._entries.look(lambda shard: is_there(shard, position))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.list_sync())

    def __len__(self) -> int:
        first, end = self._grid.span(ALL)
        return len(self._present(first, end))

    def clear(self) -> None:
        """Delete all entries, in one write."""
        self.delete_range_sync(ALL)

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Store many values in one write; no key is written unless all are keys. As for dictionaries."""
        pairs = [*pairs_of(other), *more.items()]
        self._store_all([(self._position(key), value_of(value)) for key, value in pairs])

    def _store_all(self, writes: Sequence[tuple[int, bytes | None]]) -> None:
        pending = Pending()
        for position, value in writes:
            pending.write(position, value)
        if pending:
            self._entries.store(pending)

    # ---- reading

    def read_sync(
        self,
        key: Key,
        *,
        byte_range: slice | None = None,
        if_not_equal: bytes | None = None,
        staleness_bound: float | None = None,
    ) -> ReadResult:
        """Read a value.

        Parameters
        ----------
        key : bytes or str
        byte_range : slice, optional
            A part of the value: ``slice(a, b)``, ``slice(a, None)``, or ``slice(-n, None)`` for its end.
        if_not_equal : bytes, optional
            A generation of the shard, which the caller knows already.
        staleness_bound : float, optional
            Seconds since the epoch: what was known then may be answered. Here it always is the present state, which costs
            a look at the file.

        Returns
        -------
        ReadResult

        Raises
        ------
        ValueError
            It is no key of the grid, or the value has no such bytes.
        ShardFormatError, ChecksumError
            The index, or this entry of it, is damaged.
        """
        return self._read_at_once(key, byte_range=byte_range, if_not_equal=if_not_equal)

    def _read_at_once(
        self,
        key: Key,
        *,
        byte_range: slice | None = None,
        if_not_equal: bytes | None = None,
        staleness_bound: float | None = None,
        most: int | None = None,
    ) -> ReadResult:
        """As `read_sync`, but raise `TooLarge` where more than so many bytes would be looked at."""
        part, position = byte_range_of(byte_range), self._position(key)

        def work(shard: OpenObject) -> ReadResult:
            if most is not None and self._entries.looks_at(shard, position, part) > most:
                raise TooLarge
            stamp = Stamp(shard.generation, time.time())
            if is_known(stamp.generation, if_not_equal):
                return ReadResult("unspecified", b"", stamp)
            return result_of(self._entries.value_in(shard, position, part), stamp)

        return self._entries.look(work)

    def read_many_sync(
        self,
        keys: Sequence[Key],
        *,
        byte_ranges: Sequence[slice | None] | None = None,
        if_not_equal: bytes | None = None,
    ) -> list[ReadResult]:
        """Read values of one state of the shard: one index, and near ranges together.

        Parameters
        ----------
        keys : sequence of bytes or str
        byte_ranges : sequence, optional
            For each key as in `read`.
        if_not_equal : bytes, optional
            As in `read`.

        Returns
        -------
        list of ReadResult
        """
        positions = self._grid.positions(keys)
        parts = byte_ranges_of(byte_ranges, len(positions))
        whole = parts is None and if_not_equal is None and self._is_all(positions)
        return self._entries.look(
            lambda shard: self._read_batch(shard, positions, parts, if_not_equal), whole=whole
        )

    def _read_batch(
        self,
        shard: OpenObject,
        positions: np.ndarray[Any, Any],
        parts: Sequence[ByteRange | None] | None,
        if_not_equal: bytes | None,
    ) -> list[ReadResult]:
        stamp = Stamp(shard.generation, time.time())
        if is_known(stamp.generation, if_not_equal):
            return [ReadResult("unspecified", b"", stamp)] * len(positions)
        return [result_of(value, stamp) for value in self._entries.values_in(shard, positions, parts)]

    def _is_all(self, positions: np.ndarray[Any, Any]) -> bool:
        return len(positions) >= self._grid.n and len(np.unique(positions)) == self._grid.n

    def list_sync(
        self,
        range: KeyRange | None = None,  # noqa: A002
        *,
        strip_prefix_length: int = 0,
    ) -> Sequence[bytes]:
        """List keys, in ascending order.

        Parameters
        ----------
        range : KeyRange or pair of keys, optional
            Any bounds: they are compared byte by byte. Default: all keys.
        strip_prefix_length : int
            So many bytes are left out at the beginning of each key.

        Returns
        -------
        KeyList
            A sequence that makes keys as they are taken; what is written later does not change it.
        """
        if strip_prefix_length < 0:
            raise ValueError(f"strip_prefix_length {strip_prefix_length} is negative")
        first, end = self._grid.span(ALL if range is None else range_of(range))
        skip = min(len(self._grid.prefix) + strip_prefix_length, self._grid.key_nbytes)
        return KeyList(self._present(first, end), skip)

    def _present(self, first: int, end: int) -> Any:
        """Positions of existing entries among [first, end), native."""
        if first >= end:
            return no_positions(self.grid_shape)
        return self._entries.look(lambda shard: self._entries.present(shard, first, end))

    # ---- writing

    def write_sync(self, key: Key, value: Any, *, if_equal: bytes | str | None = None) -> Stamp:
        """Store a value; None deletes it.

        Parameters
        ----------
        key : bytes or str
        value : bytes-like, str or None
        if_equal : bytes or "absent", optional
            Only if the shard is of that generation; "absent" or `NO_VALUE`: only if there is no such entry.

        Returns
        -------
        Stamp
            The new state; its generation is empty where the condition did not hold, and nothing was changed.

        Raises
        ------
        ValueError
            It is no key of the grid, or `if_equal` is empty, as generations are where the store names none.
        ShardFormatError, ChecksumError
            An entry that would have been carried over is damaged; the shard is as it was.
        LockError
            Another process writes to the shard, and did not end in time.
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
        pending = Pending()
        pending.write(position, value)
        return self._entries.store(pending, check)

    def delete_sync(self, key: Key, *, if_equal: bytes | str | None = None) -> Stamp:
        """Delete an entry; that there is none is no error. As `write_sync`."""
        return self.write_sync(key, None, if_equal=if_equal)

    def delete_range_sync(self, range: KeyRange) -> None:  # noqa: A002
        """Delete all entries of a range, a `KeyRange` or a pair of keys, in one write; the bounds may be any bytes."""
        first, end = self._grid.span(range_of(range))
        if first < end:
            pending = Pending()
            pending.clear(first, end)
            self._entries.store(pending)

    def exchange(self, positions: Sequence[int], renewed: Renewed) -> bytes:
        """Exchange values for others that are made of them; see `Entries.exchange`."""
        return self._entries.exchange(positions, renewed)
