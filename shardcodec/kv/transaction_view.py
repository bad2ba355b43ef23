# transaction_view.py - a key-value store in a transaction
# SPDX-License-Identifier: MIT
"""`BoundStore`: a store in a transaction. Writes are buffered until the commit; reads see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from ..access.shard_object import OpenObject
from ..errors import ConflictError, UnsupportedError
from .arguments import (
    ByteRange,
    byte_range_of,
    byte_ranges_of,
    condition_of,
    is_there,
    range_of,
    result_of,
    value_of,
)
from .keyed_entries import KeyedEntries
from .keys import Key, KeyRange
from .listing import no_positions, positions_among
from .results import FAILED, NO_VALUE, PENDING, UNNAMED, ReadResult, Stamp
from .transaction import Member, Transaction

__all__ = ["BoundStore", "Transactional"]

T = TypeVar("T")


class _Unnamed(Exception):
    """The store does not identify states of the shard."""


class Transactional(KeyedEntries):
    """A key-value store that can take part in transactions."""

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
        >>> with store.transaction() as t:
        ...     t[key] = b"value"
        """
        return self.with_transaction(Transaction(atomic=atomic, repeatable_read=repeatable_read))


class BoundStore(Transactional):
    """A view of a key-value store in a transaction.

    Reads see the buffered writes of the transaction; other readers see these after the commit. Stamps are those of
    the stored state. A buffered write has no generation before the commit; its stamp has `PENDING`.

    Parameters
    ----------
    store : Transactional
        The store.
    transaction : Transaction
        The transaction.

    Attributes
    ----------
    store : Transactional
        The store outside of the transaction.
    bound_to : Transaction
        The transaction.
    """

    def __init__(self, store: Transactional, transaction: Transaction) -> None:
        for name, value in vars(store).items():
            setattr(self, name, value)
        self.store = store
        self.bound_to: Transaction = transaction

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("cannot pickle a store that is bound to a transaction; pickle its attribute `store`")

    # ---- reading

    def _look(self, member: Member, work: Callable[[OpenObject], T]) -> T:
        """Call `work` with the stored shard. With repeatable_read the shard must not have changed since the last call."""

        def checked(shard: OpenObject) -> T:
            found = work(shard)
            if self.bound_to.repeatable_read:
                if shard.generation == UNNAMED:
                    raise _Unnamed
                shard.confirm()
                member.expect(shard.generation)
            return found

        try:
            return self._entries.look(checked)
        except ConflictError:
            self.bound_to.abort()
            raise
        except _Unnamed:
            key = self._entries.key
            raise UnsupportedError(
                f"shard {key!r}: its store does not identify states of its objects, so repeatable_read is not possible",
                shard=key,
            ) from None

    def _read(self, position: int, part: ByteRange | None, if_not_equal: bytes | None) -> ReadResult:
        with self.bound_to.mutex:
            member = self.bound_to.member(self._entries)
            is_pending, value = member.pending.find(position)
            if is_pending:
                return self._pending_result(position, value, part)
            return self._look(member, lambda shard: self._read_one(shard, position, part, if_not_equal))

    def _pending_result(self, position: int, value: bytes | None, part: ByteRange | None) -> ReadResult:
        own = None if value is None else self._entries.cut(position, value, part)
        return result_of(own, Stamp(PENDING, time.time()))

    def __getitem__(self, key: Key) -> bytes:
        found = self._read(self._position(key), None, None)
        if found.state == "missing":
            raise KeyError(key)
        return found.value

    def __contains__(self, key: object) -> bool:
        position = self._position(key)  # type: ignore[arg-type]
        with self.bound_to.mutex:
            member = self.bound_to.member(self._entries)
            is_pending, value = member.pending.find(position)
            if is_pending:
                return value is not None
            return self._look(member, lambda shard: is_there(shard, position))

    def read_sync(
        self,
        key: Key,
        *,
        byte_range: slice | None = None,
        if_not_equal: bytes | None = None,
        staleness_bound: float | None = None,
    ) -> ReadResult:
        """Read a value; see `KeyedEntries.read_sync`. The generation of a buffered value is `PENDING`."""
        part = byte_range_of(byte_range)
        return self._read(self._position(key), part, if_not_equal)

    async def read(self, key: Key, **how: Any) -> ReadResult:
        """Read a value in a thread, as `read_sync`: another thread may hold the lock of the transaction during its commit."""
        return await self._executor.run(self.read_sync, key, **how)

    def read_many_sync(
        self,
        keys: Sequence[Key],
        *,
        byte_ranges: Sequence[slice | None] | None = None,
        if_not_equal: bytes | None = None,
    ) -> list[ReadResult]:
        """Read several values; see `KeyedEntries.read_many_sync`. The generation of a buffered value is `PENDING`."""
        positions = self._grid.positions(keys)
        parts = byte_ranges_of(byte_ranges, len(positions))
        with self.bound_to.mutex:
            member = self.bound_to.member(self._entries)
            found: list[Any] = []
            for i, position in enumerate(positions.tolist()):
                is_pending, value = member.pending.find(position)
                part = None if parts is None else parts[i]
                found.append(self._pending_result(position, value, part) if is_pending else None)
            rest = [i for i, result in enumerate(found) if result is None]
            if rest:
                wanted = None if parts is None else [parts[i] for i in rest]
                stored = self._look(
                    member, lambda shard: self._read_batch(shard, positions[rest], wanted, if_not_equal)
                )
                for i, result in zip(rest, stored, strict=True):
                    found[i] = result
            return found

    def _present(self, first: int, end: int) -> Any:
        if first >= end:
            return no_positions(self.grid_shape)
        with self.bound_to.mutex:
            member = self.bound_to.member(self._entries)
            exist = self._look(member, self._entries.exist)
            member.pending.overlay(exist)
        return positions_among(self.grid_shape, exist, first, end)

    # ---- writing

    def __setitem__(self, key: Key, value: Any) -> None:
        position = self._position(key)
        data = value_of(value)
        with self.bound_to.mutex:
            self.bound_to.member(self._entries).pending.write(position, data)

    def _store_all(self, writes: Sequence[tuple[int, bytes | None]]) -> None:
        with self.bound_to.mutex:
            pending = self.bound_to.member(self._entries).pending
            for position, data in writes:
                pending.write(position, data)

    def write_sync(self, key: Key, value: Any, *, if_equal: bytes | str | None = None) -> Stamp:
        """Buffer a value until the transaction commits; None deletes the entry.

        Parameters
        ----------
        key : bytes or str
            Key of the entry, without `path`.
        value : bytes-like, str or None
            The new value; text is stored as UTF-8.
        if_equal : bytes or "absent", optional
            Condition, as in `KeyedEntries.write_sync`. It is checked now, and again at commit.

        Returns
        -------
        Stamp
            Its generation is `PENDING`, or `FAILED` if the condition does not hold now; nothing is buffered then.

        Raises
        ------
        ValueError
            No entry of the grid has this key, `if_equal` identifies no state, or the transaction does not accept this
            write (see `Transaction.member`).
        TypeError
            `key` or `value` is neither bytes-like nor str, or `if_equal` is not a condition.
        ConflictError
            The transaction requires another state of the shard than `if_equal`.
        """
        position = self._position(key)
        data = value_of(value)
        condition = condition_of(if_equal)
        with self.bound_to.mutex:
            member = self.bound_to.member(self._entries)
            if condition is not None and not self._holds(member, position, condition):
                return Stamp(FAILED, time.time())
            member.pending.write(position, data)
        return Stamp(PENDING, time.time())

    def _holds(self, member: Member, position: int, condition: bytes) -> bool:
        is_pending, value = member.pending.find(position)
        if condition == NO_VALUE and is_pending:
            return value is None

        def work(shard: OpenObject) -> tuple[bytes, bool]:
            return shard.generation, is_there(shard, position)

        generation, exists = self._look(member, work)
        if condition == NO_VALUE:
            if not exists:
                member.absent.add(position)
            return not exists
        if generation == condition:
            member.expect(generation)
        return generation == condition

    def __delitem__(self, key: Key) -> None:
        if key not in self:
            raise KeyError(key)
        self.write_sync(key, None)

    def delete_range_sync(self, range: KeyRange) -> None:  # noqa: A002
        """Delete all entries of a range when the transaction commits.

        Parameters
        ----------
        range : KeyRange or pair of keys
            As in `KeyedEntries.delete_range_sync`.

        Raises
        ------
        TypeError
            `range` is neither a `KeyRange` nor a pair of keys.
        ValueError
            The transaction does not accept this write (see `Transaction.member`).
        """
        first, end = self._grid.span(range_of(range))
        if first < end:
            with self.bound_to.mutex:
                member = self.bound_to.member(self._entries)
                member.pending.clear(first, end)

    # ---- commit and abort

    def commit_sync(self) -> None:
        """Store all buffered writes; raises as `Transaction.commit_sync`."""
        self.bound_to.commit_sync()

    async def commit(self) -> None:
        """Store all buffered writes without blocking the event loop; raises as `Transaction.commit_sync`."""
        await self.bound_to.commit()

    def abort(self) -> None:
        """Discard all buffered writes of the transaction."""
        self.bound_to.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bound_to.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.bound_to.__aexit__(kind, error, trace)
