# keyed_entries.py - read, list and write the entries of one shard by key
# SPDX-License-Identifier: MIT
"""`KeyedEntries`: the entries of a shard as a dictionary, and with byte ranges, conditions and generations.

Each operation has two forms: a method with the suffix ``_sync`` and a coroutine (`Awaited`).
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
    """Common base of a store and of its views in transactions; subclasses set the attributes."""

    _base: Any
    _entries: Entries
    _grid: Grid
    _threads: Threads
    _cache_pool: int | None
    _concurrency: int | None
    _value: Callable[[int], bytes | None]
    _position: Callable[[Key], int]

    # ---- description

    def to_json(self) -> dict[str, Any]:
        """Return the JSON from which `ShardedKeyValueStore.from_json` opens this store.

        Returns
        -------
        dict
            A specification for TensorStore's driver ``zarr3_sharding_indexed``.

        Raises
        ------
        UnsupportedError
            The shard is in a zarr store that is not a local folder.
        SpecError
            `path` is not UTF-8, so JSON cannot hold it.
        """
        return self.parsed(self.path).to_json()

    def parsed(self, path: bytes) -> Parsed:
        """Return the parsed JSON of this store with another path; raises as `to_json`."""
        target = self._entries.target
        base: str | Parsed | None = target.path
        if isinstance(target, NestedObject):
            base = target.outer.parsed(target.outer.path + target.inner_key)
        if base is None:
            raise UnsupportedError(
                f"shard {target.key!r}: expected a local file to describe as JSON, got an object in another store",
                shard=target.key,
            )
        return Parsed(base, self._entries.layout, path, self._cache_pool, self._concurrency)

    @property
    def base(self) -> Any:
        """The argument `base` of the constructor: where the shard is."""
        return self._base

    @property
    def target(self) -> ShardObject:
        """The object that contains the shard."""
        return self._entries.target

    def position_of(self, key: Key) -> int:
        """Return the position of an entry, its number in C order over the grid.

        Parameters
        ----------
        key : bytes or str
            Key of the entry, without `path`.

        Returns
        -------
        int
            At least 0 and less than the number of entries of the grid. The entry need not exist.

        Raises
        ------
        ValueError
            No entry of the grid has this key.
        TypeError
            `key` is neither bytes-like nor str.
        """
        return self._position(key)

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of entries along each axis."""
        return self._grid.shape

    @property
    def path(self) -> bytes:
        """Common start of all keys, which callers leave out."""
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
            The entry does not exist.
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
            Keys and values. A value of None deletes the entry.
        **more
            More values; the name is the key.

        Raises
        ------
        ValueError
            No entry of the grid has one of the keys; nothing was written.
        TypeError
            A key or a value is neither bytes-like nor str; nothing was written.
        ShardFormatError, ChecksumError
            An entry that the write would carry over is damaged; the shard is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``lock_timeout``.
        """
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
            Key of the entry, without `path`.
        byte_range : slice, optional
            Bytes of the value to read: ``slice(a, b)``, ``slice(a, None)``, or ``slice(-n, None)`` for the last n
            bytes.
        if_not_equal : bytes, optional
            A generation that the caller knows. The value is not read if the shard still has this generation.
        staleness_bound : float, optional
            Ignored; it is accepted for compatibility with TensorStore. Each read checks the present state of the shard.

        Returns
        -------
        ReadResult
            State ``"value"``, ``"missing"`` or, because of `if_not_equal`, ``"unspecified"``.

        Raises
        ------
        ValueError
            No entry of the grid has this key, or the value is shorter than `byte_range`.
        TypeError
            `key` is neither bytes-like nor str, or `byte_range` is not a slice of integers.
        ShardFormatError, ChecksumError
            The index, or the index entry of this key, is damaged.
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
        """Read as `read_sync`, but raise `TooLarge` if the read must look at more than `most` bytes."""
        part, position = byte_range_of(byte_range), self._position(key)

        def work(shard: OpenObject) -> ReadResult:
            if most is not None and self._entries.nbytes_to_read(shard, position, part) > most:
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
        """Read several values, all from one state of the shard. The index is read once, and close ranges are read together.

        Parameters
        ----------
        keys : sequence of bytes or str
            Keys of the entries, without `path`.
        byte_ranges : sequence of (slice or None), optional
            For each key the bytes to read, as in `read_sync`; None stands for the whole value.
        if_not_equal : bytes, optional
            As in `read_sync`.

        Returns
        -------
        list of ReadResult
            In the order of `keys`.

        Raises
        ------
        ValueError
            No entry of the grid has one of the keys, a value is shorter than its range, or the numbers of keys and
            ranges differ.
        TypeError
            A key is neither bytes-like nor str, or a range is not a slice of integers.
        ShardFormatError, ChecksumError
            The index, or the index entry of one of the keys, is damaged.
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
        """List the keys of existing entries in ascending order.

        Parameters
        ----------
        range : KeyRange or pair of keys, optional
            Range to list. The bounds are compared byte by byte and need not be keys. Default: all keys.
        strip_prefix_length : int
            Number of bytes that are left out at the start of each key.

        Returns
        -------
        KeyList
            A lazy snapshot: later writes do not change it.

        Raises
        ------
        ValueError
            `strip_prefix_length` is negative.
        TypeError
            `range` is neither a `KeyRange` nor a pair of keys.
        ShardFormatError, ChecksumError
            The index is damaged.
        """
        if strip_prefix_length < 0:
            raise ValueError(f"strip_prefix_length: expected 0 or more, got {strip_prefix_length}")
        first, end = self._grid.span(ALL if range is None else range_of(range))
        skip = min(len(self._grid.prefix) + strip_prefix_length, self._grid.key_nbytes)
        return KeyList(self._present(first, end), skip)

    def _present(self, first: int, end: int) -> Any:
        """Return the positions of existing entries among [first, end) as native `Positions`."""
        if first >= end:
            return no_positions(self.grid_shape)
        return self._entries.look(lambda shard: self._entries.present(shard, first, end))

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
        pending = Pending()
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
            pending = Pending()
            pending.clear(first, end)
            self._entries.store(pending)

    def exchange(self, positions: Sequence[int], renewed: Renewed) -> bytes:
        """Replace values by new ones made from them; see `Entries.exchange`."""
        return self._entries.exchange(positions, renewed)
