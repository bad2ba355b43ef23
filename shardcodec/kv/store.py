# store.py - `ShardedKeyValueStore`, and the same store in a transaction
# SPDX-License-Identifier: MIT
"""`ShardedKeyValueStore`: the entries of one shard as keys and values. `BoundStore`: the same in a transaction.

Each operation has two forms: a method that blocks, and a coroutine with the suffix ``_async``, which runs this method in a thread.
This module translates keys to positions; `Entries` (in a transaction `BoundEntries`) works by position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from .. import native
from ..access.read import INLINE_NBYTES
from ..access.shard_object import ShardObject
from ..arguments import Renamed, check_argument, checked
from ..errors import UnsupportedError
from ..format.checks import as_int
from ..format.codecs import IndexLocation
from ..storage import turns
from ..storage.event_loop import Threads, in_thread, threads_for_locks
from ..storage.url_stores import is_url
from .base_object import NestedObject, object_of_base
from .entries import Entries, WriteBuffer
from .keys import (
    Grid,
    Key,
    KeyRange,
    ReadResult,
    Stamp,
    TooLarge,
    as_bytes,
    byte_range_of,
    byte_ranges_of,
    check_known,
    condition_of,
    pairs_of,
    range_of,
    value_of,
)
from .spec import Layout, StoreSpec, parse
from .transaction import BoundEntries, CommitAtEnd, Transaction

__all__ = ["BoundStore", "ShardedKeyValueStore"]

T = TypeVar("T")

# The method `list` hides the type in the annotations of later methods.
Keys: TypeAlias = list[bytes]
Results: TypeAlias = list[ReadResult]

ALL = KeyRange()


class ShardedKeyValueStore(Renamed, MutableMapping[Key, bytes]):
    """A key-value store over the entries of one shard.

    A key is the index of an entry along each axis of the grid, 32 bits each, most significant byte first. A value is
    any bytes, stored without encoding. The store is a dictionary: ``store[key]``, ``in``, ``del``, and iteration in
    ascending order of keys.

    Parameters
    ----------
    base : path-like, or tuple
        Where the shard is: the path of a local file, a URL (``s3://bucket/shard``), a pair of a zarr store or the URL of
        a folder and a key, or a pair of another `ShardedKeyValueStore` and a key.
    grid_shape : sequence of int
        Number of entries along each axis: up to 31 axes and 2^30 entries (KV-3).
    index_codecs : sequence
        As in Zarr metadata.
    index_location : {"end", "start"}
        End of the shard at which its index is.
    path : bytes or str
        Common start of all keys; callers leave it out (KV-12).
    cache_pool : int, optional
        Limit of the index cache in bytes. All stores of the process with the same number share one cache; 0 switches
        it off. Default: the option ``index_cache``.
    data_copy_concurrency : int, optional
        Maximum number of threads for the coroutines of this store. Default: the threads of the event loop.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.

    Raises
    ------
    SpecError
        Grid, codecs, location or a limit are wrong.
    TypeError
        `base` is neither a path nor such a pair, or `path` is neither bytes nor str; or there are options without a URL.
    ImportError
        No package is installed that can open the URL.
    ValueError
        The URL is malformed, or its store refuses the options.

    Notes
    -----
    Source: TensorStore, kvstore driver `zarr3_sharding_indexed`; requirements KV-1 to KV-58.

    Examples
    --------
    >>> codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, "crc32c"]
    >>> store = kv.ShardedKeyValueStore("values.shard", grid_shape=(2, 3), index_codecs=codecs)
    >>> store[struct.pack(">2I", 0, 1)] = b"value"
    >>> [struct.unpack(">2I", key) for key in store]
    [(0, 1)]
    """

    def __init__(
        self,
        base: Any,
        *,
        grid_shape: Sequence[int],
        index_codecs: Sequence[Any],
        index_location: IndexLocation = "end",
        path: bytes | str = b"",
        cache_pool: int | None = None,
        data_copy_concurrency: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if cache_pool is not None:
            as_int(cache_pool, "cache_pool", minimum=0)
        if data_copy_concurrency is not None:
            as_int(data_copy_concurrency, "data_copy_concurrency", minimum=1)
        layout = Layout.of(grid_shape, index_codecs, index_location)
        self._base, self._storage_options = base, storage_options
        target = object_of_base(base, ShardedKeyValueStore, storage_options)
        self._grid = Grid(layout.grid_shape, as_bytes(path, "path"))
        self._cache_pool = cache_pool
        self._concurrency = data_copy_concurrency
        self._pool: tuple[int, Threads] | None = None
        self.stored: Entries = Entries(target, layout, cache_pool)
        self._use(self.stored)

    def _use(self, entries: Entries | BoundEntries) -> None:
        self._entries = entries
        # bound methods, because a loop over keys calls them for each key
        self._value, self._position = entries.value, self._grid.position

    @classmethod
    @checked
    def from_json(cls, spec: Mapping[str, Any], *, base: Any = None) -> ShardedKeyValueStore:
        """Open the store that a JSON specification describes.

        Parameters
        ----------
        spec : mapping
            The JSON of TensorStore's driver ``zarr3_sharding_indexed``, also under the name
            ``zarr_sharding_indexed``. ``kvstore`` is another name of ``base``.
        base : path-like or tuple, optional
            Replaces the base of the JSON, as for the class. The JSON then needs no base.

        Returns
        -------
        ShardedKeyValueStore

        Raises
        ------
        SpecError
            A member is missing, wrong or unknown.
        UnsupportedError
            The base of the JSON is neither a local file nor an entry of another such store.
        TypeError
            `base` is neither a path nor a pair of a store and a key.
        """
        return _from_parsed(cls, parse(spec, needs_base=base is None), base)

    def __reduce__(self) -> tuple[Any, ...]:
        layout = self._entries.layout.to_json()
        rest: dict[str, Any] = {
            "path": self.path,
            "cache_pool": self._cache_pool,
            "data_copy_concurrency": self._concurrency,
            "storage_options": self._storage_options,
        }
        # the given path may be relative to the working folder of this process
        is_path = (
            not isinstance(self._base, tuple) and self.target.path is not None and not is_url(self._base)
        )
        base = self.target.path if is_path else self._base
        return partial(ShardedKeyValueStore, base, **layout, **rest), ()

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
        return _spec(self, self.path).to_json()

    @property
    def base(self) -> Any:
        """Place of the shard: the argument `base` of the constructor, unchanged."""
        return self._base

    @property
    def target(self) -> ShardObject:
        """The object that contains the shard."""
        return self._entries.target

    def position_of(self, key: Key) -> int:
        """Return the position of an entry, its number in C order over the grid; keys as `read` takes them."""
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

    def __getitem__(self, key: Key) -> bytes:
        value = self._value(self._position(key))
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self._entries.exists(self._position(key))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.list())

    def __len__(self) -> int:
        first, end = self._grid.span(ALL)
        return int(self._entries.present(first, end).sum()) if first < end else 0

    def __setitem__(self, key: Key, value: Any) -> None:
        self._entries.write(self._position(key), value_of(value))

    def __delitem__(self, key: Key) -> None:
        """Delete an entry.

        Raises
        ------
        KeyError
            The entry does not exist.
        """
        if not self._entries.remove(self._position(key)):
            raise KeyError(key)

    def clear(self) -> None:
        """Delete all entries whose keys start with `path`, in one write.

        Raises
        ------
        ShardFormatError, ChecksumError
            The shard is damaged and other entries must be kept; it is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        """
        self.delete_range(ALL)

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
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        """
        pending = WriteBuffer()
        for key, value in [*pairs_of(other), *more.items()]:
            pending.write(self._position(key), value_of(value))
        if pending:
            self._entries.store(pending)

    def read(
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
            State ``"value"``, ``"missing"`` or, because of `if_not_equal`, ``"unspecified"``. In a transaction the
            generation of a buffered value is `PENDING`.

        Raises
        ------
        ValueError
            No entry of the grid has this key, or the value is shorter than `byte_range`.
        TypeError
            `key` is neither bytes-like nor str, or `byte_range` is not a slice of integers.
        ShardFormatError, ChecksumError
            The index, or the index entry of this key, is damaged.
        """
        return self._read(key, byte_range, if_not_equal)

    def _read(
        self, key: Key, byte_range: slice | None, if_not_equal: bytes | None, most: int | None = None
    ) -> ReadResult:
        check_known(if_not_equal)
        bounds = byte_range_of(byte_range)  # before the key: TensorStore reports it first
        return self._entries.read(self._position(key), bounds, if_not_equal, most)

    def read_many(
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
            For each key the bytes to read, as in `read`; None stands for the whole value.
        if_not_equal : bytes, optional
            As in `read`.

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
        check_known(if_not_equal)
        positions = self._grid.positions(keys)
        ranges = byte_ranges_of(byte_ranges, len(positions))
        return self._entries.read_many(positions, ranges, if_not_equal)

    def list(
        self,
        range: KeyRange | None = None,  # noqa: A002
        *,
        strip_prefix_length: int = 0,
    ) -> list[bytes]:
        """List the keys of existing entries in ascending order.

        Parameters
        ----------
        range : KeyRange or pair of keys, optional
            Range to list. The bounds are compared byte by byte and need not be keys. Default: all keys.
        strip_prefix_length : int
            Number of bytes that are left out at the start of each key.

        Returns
        -------
        list of bytes

        Raises
        ------
        ValueError
            `strip_prefix_length` is negative.
        TypeError
            `range` is neither a `KeyRange` nor a pair of keys.
        ShardFormatError, ChecksumError
            The index is damaged.
        """
        check_argument("strip_prefix_length", strip_prefix_length, int)
        if strip_prefix_length < 0:
            raise ValueError(f"strip_prefix_length: expected 0 or more, got {strip_prefix_length}")
        first, end = self._grid.span(ALL if range is None else range_of(range))
        skip = min(len(self._grid.prefix) + strip_prefix_length, self._grid.key_nbytes)
        if first >= end:
            return []
        return native.load().present_keys(self.grid_shape, self._entries.present(first, end), first, skip)  # type: ignore[no-any-return]

    def write(self, key: Key, value: Any, *, if_equal: bytes | str | None = None) -> Stamp:
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
            written then. In a transaction the generation is `PENDING`, and a condition is checked now and at commit.

        Raises
        ------
        ValueError
            No entry of the grid has this key, or `if_equal` is `FAILED` or `UNNAMED`, which identify no state; or the
            transaction does not accept this write (see `Transaction.member`).
        TypeError
            `key` or `value` is neither bytes-like nor str, or `if_equal` is not a condition.
        ShardFormatError, ChecksumError
            An entry that the write would carry over is damaged; the shard is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        ConflictError
            The transaction requires another state of the shard than `if_equal`.
        """
        return self._entries.write(self._position(key), value_of(value), condition_of(if_equal))

    def delete(self, key: Key, *, if_equal: bytes | str | None = None) -> Stamp:
        """Delete an entry if it exists.

        Parameters
        ----------
        key : bytes or str
            Key of the entry, without `path`.
        if_equal : bytes or "absent", optional
            Condition, as in `write`.

        Returns
        -------
        Stamp
            The new state of the shard. Its generation is `FAILED` (empty) if the condition did not hold; nothing was
            deleted then.

        Raises
        ------
        ValueError, TypeError, ShardFormatError, ChecksumError, LockError
            As `write`.
        """
        return self.write(key, None, if_equal=if_equal)

    def delete_range(self, range: KeyRange) -> None:  # noqa: A002
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
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        """
        first, end = self._grid.span(range_of(range))
        if first < end:
            pending = WriteBuffer()
            pending.clear(first, end)
            self._entries.store(pending)

    async def read_async(
        self,
        key: Key,
        *,
        byte_range: slice | None = None,
        if_not_equal: bytes | None = None,
        staleness_bound: float | None = None,
    ) -> ReadResult:
        """Read a value; see `read`. A small value that needs no network request is read on the event loop."""
        if self._entries.can_read_inline:
            if turns.is_over():
                await turns.next_turn()
            with suppress(TooLarge):
                return self._read(key, byte_range, if_not_equal, INLINE_NBYTES)
        return await self._in_thread(self._read, key, byte_range, if_not_equal)

    async def read_many_async(
        self,
        keys: Sequence[Key],
        *,
        byte_ranges: Sequence[slice | None] | None = None,
        if_not_equal: bytes | None = None,
    ) -> Results:
        """Read values of one state of the shard; see `read_many`."""
        how = {"byte_ranges": byte_ranges, "if_not_equal": if_not_equal}
        return await self._in_thread(self.read_many, keys, **how)

    async def list_async(
        self,
        range: KeyRange | None = None,  # noqa: A002
        *,
        strip_prefix_length: int = 0,
    ) -> Keys:
        """List keys in ascending order; see `list`."""
        return await self._in_thread(self.list, range, strip_prefix_length=strip_prefix_length)

    async def write_async(self, key: Key, value: Any, *, if_equal: bytes | str | None = None) -> Stamp:
        """Store a value, or delete it if it is None; see `write`."""
        return await self._in_thread(self.write, key, value, if_equal=if_equal)

    async def delete_async(self, key: Key, *, if_equal: bytes | str | None = None) -> Stamp:
        """Delete an entry if it exists; see `delete`."""
        return await self._in_thread(self.delete, key, if_equal=if_equal)

    async def delete_range_async(self, range: KeyRange) -> None:  # noqa: A002
        """Delete all entries of a range in one write; see `delete_range`."""
        await self._in_thread(self.delete_range, range)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        return await in_thread(partial(work, *arguments, **keywords), pool=self._threads())

    def _threads(self) -> Executor:
        """Return the threads of this store, which start with its first coroutine, or those that all stores share."""
        if self._concurrency is None:
            return threads_for_locks()
        pid = os.getpid()
        if self._pool is None or self._pool[0] != pid:  # after a fork the pool has no threads
            self._pool = pid, Threads(self._concurrency, thread_name_prefix="shardcodec.kv")
        return self._pool[1]

    @checked
    def with_transaction(self, transaction: Transaction) -> BoundStore:
        """Return a view of this store in a transaction.

        Parameters
        ----------
        transaction : Transaction
            An open transaction.

        Returns
        -------
        BoundStore
            The view: writes are buffered until the transaction commits, and reads see them.
        """
        return BoundStore(self, transaction)

    @checked
    def transaction(self, *, atomic: bool = False, repeatable_read: bool = False) -> BoundStore:
        """Begin a new transaction on this store.

        Parameters
        ----------
        atomic, repeatable_read : bool
            As for `Transaction`.

        Returns
        -------
        BoundStore
            The view of this store in the transaction. As a with block it commits at its end; an exception that leaves
            the block aborts the transaction.

        Examples
        --------
        >>> codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, "crc32c"]
        >>> store = kv.ShardedKeyValueStore("values.shard", grid_shape=(3,), index_codecs=codecs)
        >>> with store.transaction() as t:
        ...     t[struct.pack(">I", 0)] = b"zero"
        ...     t[struct.pack(">I", 2)] = b"two"
        >>> len(store)
        2
        """
        return BoundStore(self, Transaction(atomic=atomic, repeatable_read=repeatable_read))


class BoundStore(CommitAtEnd, ShardedKeyValueStore):
    """A view of a key-value store in a transaction.

    `ShardedKeyValueStore.with_transaction` makes it. Reads see the buffered writes of the transaction; other readers see
    these after the commit. Stamps are those of the stored state. A buffered write has no generation before the commit;
    its stamp has `PENDING`.

    Parameters
    ----------
    store : ShardedKeyValueStore
    transaction : Transaction

    Attributes
    ----------
    store : ShardedKeyValueStore
        The store outside of the transaction.
    bound_to : Transaction
        The transaction.
    """

    def __init__(self, store: ShardedKeyValueStore, transaction: Transaction) -> None:
        vars(self).update(vars(store))
        self.store = store
        self.bound_to = transaction
        self._use(BoundEntries(store.stored, transaction))

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("cannot pickle a store that is bound to a transaction; pickle its attribute `store`")

    @property
    def _transaction(self) -> Transaction:
        return self.bound_to

    def commit(self) -> None:
        """Store all buffered writes; raises as `Transaction.commit`."""
        self.bound_to.commit()

    async def commit_async(self) -> None:
        """Store all buffered writes without blocking the event loop; raises as `Transaction.commit`."""
        await self.bound_to.commit_async()

    def abort(self) -> None:
        """Discard all buffered writes of the transaction."""
        self.bound_to.abort()


def _spec(store: ShardedKeyValueStore, path: bytes) -> StoreSpec:
    """Return the specification of a store with another `path`. For the base of a nested store, it is the key of the entry."""
    target = store.target
    base: str | StoreSpec | None = target.path
    if isinstance(target, NestedObject):
        base = _spec(target.outer, target.outer.path + target.inner_key)  # type: ignore[arg-type]
    if base is None:
        raise UnsupportedError(
            f"shard {target.key!r}: expected a local file to describe as JSON, got an object in another store",
            shard=target.key,
        )
    return StoreSpec(base, store._entries.layout, path, store._cache_pool, store._concurrency)


def _from_parsed(cls: type[ShardedKeyValueStore], parsed: StoreSpec, base: Any) -> ShardedKeyValueStore:
    if base is None and isinstance(parsed.base, StoreSpec):
        outer = _from_parsed(ShardedKeyValueStore, replace(parsed.base, path=b""), None)
        base = (outer, parsed.base.path)
    return cls(
        parsed.base if base is None else base,
        **parsed.layout.to_json(),
        path=parsed.path,
        cache_pool=parsed.cache_pool,
        data_copy_concurrency=parsed.data_copy_concurrency,
    )
