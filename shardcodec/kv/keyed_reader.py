# keyed_reader.py - describe, read and list the entries of one shard by key
# SPDX-License-Identifier: MIT
"""`KeyedReader`: the entries of a shard as a read-only dictionary, and with byte ranges and generations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..access.shard_object import OpenObject, ShardObject
from ..errors import UnsupportedError
from .arguments import (
    ByteRange,
    TooLarge,
    byte_range_of,
    byte_ranges_of,
    is_known,
    is_there,
    range_of,
    result_of,
)
from .base_object import NestedObject
from .entries import Entries
from .executor import Executor
from .keys import Grid, Key, KeyRange
from .listing import KeyList, no_positions
from .results import ReadResult, Stamp
from .spec import StoreSpec

__all__ = ["ALL", "KeyedReader"]

ALL = KeyRange()


class KeyedReader(Mapping[Key, bytes]):
    """The half of `KeyedEntries` that writes nothing; subclasses set the attributes."""

    _base: Any
    _entries: Entries
    _grid: Grid
    _executor: Executor
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
        return self.spec_with_path(self.path).to_json()

    def spec_with_path(self, path: bytes) -> StoreSpec:
        """Return the specification of this store, but with another `path` instead of its own.

        A store inside an entry of this one needs it to describe its base: there, `path` is the key of the entry.

        Parameters
        ----------
        path : bytes
            The path in the new specification.

        Returns
        -------
        StoreSpec

        Raises
        ------
        UnsupportedError
            The shard is in a zarr store that is not a local folder.
        """
        target = self._entries.target
        base: str | StoreSpec | None = target.path
        if isinstance(target, NestedObject):
            base = target.outer.spec_with_path(target.outer.path + target.inner_key)
        if base is None:
            raise UnsupportedError(
                f"shard {target.key!r}: expected a local file to describe as JSON, got an object in another store",
                shard=target.key,
            )
        return StoreSpec(base, self._entries.layout, path, self._cache_pool, self._concurrency)

    @property
    def base(self) -> Any:
        """Place of the shard: the argument `base` of the constructor, unchanged."""
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
        """Common start of all keys. Keys in arguments do not contain it; it is empty by default."""
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

    def __contains__(self, key: object) -> bool:
        position = self._position(key)  # type: ignore[arg-type]
        return self._entries.look(lambda shard: is_there(shard, position))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.list_sync())

    def __len__(self) -> int:
        first, end = self._grid.span(ALL)
        return len(self._present(first, end))

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
        """Read as `read_sync`, but raise `TooLarge` before the value is read if this takes more than `most` bytes.

        `Entries.nbytes_to_read` counts them: the bytes wanted of the value, or for an object in memory all its bytes.
        The index does not count. None means no limit.
        """
        part, position = byte_range_of(byte_range), self._position(key)

        def work(shard: OpenObject) -> ReadResult:
            if most is not None and self._entries.nbytes_to_read(shard, position, part) > most:
                raise TooLarge
            return self._read_one(shard, position, part, if_not_equal)

        return self._entries.look(work)

    def _read_one(
        self, shard: OpenObject, position: int, part: ByteRange | None, if_not_equal: bytes | None
    ) -> ReadResult:
        stamp = Stamp(shard.generation, time.time())
        if is_known(stamp.generation, if_not_equal):
            return ReadResult("unspecified", b"", stamp)
        return result_of(self._entries.value_in(shard, position, part), stamp)

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
