# transaction.py - writes to one or several shards that are committed together
# SPDX-License-Identifier: MIT
"""`Transaction`: writes to shards that are committed together. `BoundEntries`: the entries of a shard in one.

The writes of a transaction are buffered in memory. Reads through the transaction see them; other readers see them
after the commit, which writes each shard once. Each shard changes atomically. The commit writes shards one after the
other, unless their base can change them in one step (`ShardObject.realm`). A transaction with ``atomic=True`` accepts
several shards only on such a base.

Source: TensorStore, `Transaction`; requirements KV-50 to KV-54.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from ..access.opened_shard import UNKNOWN, OpenedShard
from ..access.shard_change import StoredShard, change_all
from ..access.shard_object import ShardObject
from ..arguments import Renamed, checked
from ..errors import ConflictError, UnsupportedError
from ..storage.event_loop import in_thread, threads_for_locks
from .entries import Entries, Flags, WriteBuffer
from .keys import FAILED, NO_VALUE, PENDING, UNNAMED, ByteRange, ReadResult, Stamp, is_there, result_of
from .spec import Layout

__all__ = ["BoundEntries", "Member", "Transaction"]

T = TypeVar("T")


class Member:
    """One shard in a transaction.

    expected: generation that the shard must have at commit, because of a repeatable read or a conditional write; None for any.
    absent: positions of entries that must not exist at commit, because they were written on this condition. generation: that
    after the commit.
    """

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.pending: WriteBuffer = WriteBuffer()
        self.expected: bytes | None = None
        self.absent: set[int] = set()
        self.generation = UNKNOWN

    def expect(self, generation: bytes) -> None:
        """Require that the shard has this generation at commit. ConflictError: the transaction requires another one already."""
        if self.expected is not None and self.expected != generation:
            raise self._conflict(generation)
        self.expected = generation

    def check(self, stored: StoredShard) -> None:
        """Raise `ConflictError` if the stored shard is not in the state that the transaction requires."""
        if self.expected is not None:
            self.expect(stored.generation)
        if any(is_there(stored.shard, position) for position in self.absent):
            raise self._conflict(stored.generation)

    @property
    def is_conditional(self) -> bool:
        """True if the commit depends on the stored shard, so that `check` is needed."""
        return self.expected is not None or bool(self.absent)

    def _conflict(self, actual: bytes) -> ConflictError:
        return ConflictError(
            f"shard {self.entries.key!r}: Generation mismatch: the shard has changed since the transaction read it; "
            "repeat the transaction",
            shard=self.entries.key,
            expected=self.expected,
            actual=actual,
        )


class CommitAtEnd(Renamed):
    """A with block that commits a transaction at its end; an exception that leaves the block aborts the transaction."""

    @property
    def _transaction(self) -> Transaction:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction = self._transaction
        if kind is not None:
            transaction.abort()
        elif transaction.open:
            transaction.commit()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction = self._transaction
        if kind is not None:
            transaction.abort()
        elif transaction.open:
            await transaction.commit_async()


class Transaction(CommitAtEnd):
    """Writes to one or several shards that are committed together.

    Parameters
    ----------
    atomic : bool
        Require that all shards change in one atomic step. Only some bases support this: shards in one MemoryStore,
        and entries of one outer shard. With other bases the second shard raises ValueError.
    repeatable_read : bool
        Require at commit that no shard has changed since the transaction read it. Reads raise UnsupportedError if the
        store does not identify states of its objects. With False, only conditional writes set such a requirement.

    Notes
    -----
    A with block commits at its end; an exception that leaves the block aborts the transaction.

    Examples
    --------
    >>> codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, "crc32c"]
    >>> key = struct.pack(">I", 1)
    >>> a, b = (kv.ShardedKeyValueStore(name, grid_shape=(3,), index_codecs=codecs) for name in ("a", "b"))
    >>> with kv.Transaction() as t:
    ...     a.with_transaction(t)[key] = b"one"
    ...     b.with_transaction(t)[key] = b"two"
    >>> a[key], b[key]
    (b'one', b'two')
    """

    @checked
    def __init__(self, *, atomic: bool = False, repeatable_read: bool = False) -> None:
        self.atomic = atomic
        self.repeatable_read = repeatable_read
        self._members: dict[str, Member] = {}
        self._joined: dict[Entries, Member] = {}
        self._state = "open"
        self.mutex: threading.RLock = threading.RLock()

    @property
    def _transaction(self) -> Transaction:
        return self

    @property
    def open(self) -> bool:
        """True until the transaction is committed or aborted."""
        return self._state == "open"

    @property
    def aborted(self) -> bool:
        """True if the transaction was aborted or its commit failed."""
        return self._state == "aborted"

    @property
    def committed(self) -> bool:
        """True if the writes are stored."""
        return self._state == "committed"

    def member(self, entries: Entries) -> Member:
        """Return the member of a shard. The caller holds `mutex`.

        Parameters
        ----------
        entries : Entries
            The entries of the shard.

        Returns
        -------
        Member
            A new member if the shard has none.

        Raises
        ------
        ValueError
            The transaction is committed or aborted, it is atomic and this shard cannot change together with the other
            ones, or it has this shard with another grid or index.
        """
        self._check_open()
        member = self._joined.get(
            entries
        )  # without the name for locks, which may take a call to the file system
        if member is not None:
            return member
        identity = entries.target.identity
        member = self._members.get(identity)
        if member is None:
            self._check_realm(entries)
            member = self._members[identity] = Member(entries)
        elif member.entries.layout != entries.layout:
            raise ValueError(
                f"shard {entries.key!r}: expected the grid and index that the shard has in this transaction already, "
                f"{member.entries.layout.to_json()}, got {entries.layout.to_json()}"
            )
        self._joined[entries] = member
        return member

    def _check_open(self) -> None:
        if not self.open:
            raise ValueError(f"Transaction not open ({self._state})")

    def _check_realm(self, entries: Entries) -> None:
        for other in self._members.values() if self.atomic else ():
            realm = entries.target.realm
            if realm is None or realm != other.entries.target.realm:
                self._state = "aborted"
                raise ValueError(
                    f"Cannot read/write shard {other.entries.key!r} and shard {entries.key!r} as single atomic transaction"
                )

    def abort(self) -> None:
        """Discard all buffered writes. Has no effect on a committed transaction."""
        with self.mutex:
            if self.open:
                self._state = "aborted"
                self._members.clear()
                self._joined.clear()

    def commit(self) -> None:
        """Store all buffered writes, and wait for the end. The transaction is aborted if this fails.

        If the transaction is not atomic, the shards before the failed one may already be stored.

        Raises
        ------
        ConflictError
            Another writer has changed a shard since a repeatable read, or a condition of a write no longer holds. The
            transaction can be repeated.
        ValueError
            The transaction is committed or aborted already.
        OSError, ShardError
            A shard could not be written, or its stored bytes are damaged. Other errors of the store are passed on.
        """
        with self.mutex:
            self._check_open()
            self._state = "aborted"  # stays so if a write raises
            for group in self._groups():
                _store_group(group)
            self._members.clear()
            self._joined.clear()
            self._state = "committed"

    async def commit_async(self) -> None:
        """Store all buffered writes as `commit` does, in another thread, so that the event loop is not blocked."""
        await in_thread(self.commit, pool=threads_for_locks())

    def _groups(self) -> list[list[Member]]:
        """Return groups of members to commit one after the other. The members of a group change in one step.

        Groups without writes, which are only checked, come first. Otherwise groups are in ascending order of names.
        """
        groups: dict[Any, list[Member]] = {}
        for identity, member in sorted(self._members.items()):
            if member.pending or member.expected is not None:
                realm = member.entries.target.realm
                groups.setdefault(identity if realm is None else ("realm", realm), []).append(member)
        return sorted(groups.values(), key=lambda group: any(member.pending for member in group))


def _store_group(group: list[Member]) -> None:
    """Check the members of a group without writes; store the others, several in one step."""
    writing = [member for member in group if member.pending]
    for member in group:
        if not member.pending:
            _verify_unchanged(member)
    if len(writing) == 1:
        (member,) = writing
        check = member.check if member.is_conditional else None
        member.generation = member.entries.store(member.pending, check)
    elif writing:
        changes = [
            (m.entries.target, m.entries.chain, partial(m.entries.decide, m.pending, m.check, keep=True))
            for m in writing
        ]
        for member in writing:
            member.entries.flush()
        generations = change_all(changes, writing[0].entries.options())
        for member, generation in zip(writing, generations, strict=True):
            member.generation = generation


def _verify_unchanged(member: Member) -> None:
    generation = member.entries.look(lambda shard: shard.generation)
    if member.expected is not None:
        member.expect(generation)


class _UnnamedState(Exception):
    """The store does not identify states of the shard."""


class BoundEntries:
    """The entries of a shard in a transaction: buffered writes over the stored entries.

    It has the methods of `Entries` that work by position.
    """

    can_read_inline = False  # another thread may hold the mutex of the transaction during its commit

    def __init__(self, entries: Entries, transaction: Transaction) -> None:
        self._stored = entries
        self._transaction = transaction

    @property
    def target(self) -> ShardObject:
        """The object that contains the shard."""
        return self._stored.target

    @property
    def layout(self) -> Layout:
        """Grid and index of the shard."""
        return self._stored.layout

    @property
    def key(self) -> str:
        """Name of the shard in errors."""
        return self._stored.key

    def value(self, position: int) -> bytes | None:
        """Return a value; None if it is absent."""
        result = self.read(position)
        return None if result.state == "missing" else result.value

    def read(
        self,
        position: int,
        byte_range: ByteRange | None = None,
        if_not_equal: bytes | None = None,
        most: int | None = None,
    ) -> ReadResult:
        """Read a value; the generation of a buffered value is `PENDING`. `most` is ignored, because no read is inline."""
        with self._transaction.mutex:
            member = self._transaction.member(self._stored)
            is_pending, value = member.pending.find(position)
            if is_pending:
                return self._pending_result(position, value, byte_range)
            return self._look(
                member, lambda shard: self._stored.read_in(shard, position, byte_range, if_not_equal)
            )

    def read_many(
        self,
        positions: np.ndarray[Any, Any],
        ranges: Sequence[ByteRange | None] | None = None,
        if_not_equal: bytes | None = None,
    ) -> list[ReadResult]:
        """Read several values; all stored values belong to one state of the shard."""
        with self._transaction.mutex:
            member = self._transaction.member(self._stored)
            results: list[Any] = []
            for i, position in enumerate(positions.tolist()):
                is_pending, value = member.pending.find(position)
                byte_range = None if ranges is None else ranges[i]
                results.append(self._pending_result(position, value, byte_range) if is_pending else None)
            rest = [i for i, result in enumerate(results) if result is None]
            if rest:
                stored_ranges = None if ranges is None else [ranges[i] for i in rest]
                stored = self._look(
                    member,
                    lambda shard: self._stored.read_many_in(
                        shard, positions[rest], stored_ranges, if_not_equal
                    ),
                )
                for i, result in zip(rest, stored, strict=True):
                    results[i] = result
            return results

    def _pending_result(self, position: int, value: bytes | None, byte_range: ByteRange | None) -> ReadResult:
        data = None if value is None else self._stored.cut(position, value, byte_range)
        return result_of(data, Stamp(PENDING, time.time()))

    def exists(self, position: int) -> bool:
        """Return True if an entry exists, buffered or stored."""
        with self._transaction.mutex:
            member = self._transaction.member(self._stored)
            is_pending, value = member.pending.find(position)
            if is_pending:
                return value is not None
            return self._look(member, lambda shard: is_there(shard, position))

    def present(self, first: int, end: int) -> Flags:
        """Return one flag for each of the positions [first, end)."""
        with self._transaction.mutex:
            member = self._transaction.member(self._stored)
            n = self._stored.n
            exist = self._look(member, lambda shard: self._stored.present_in(shard, 0, n))
            return member.pending.over(exist)[first:end]

    def _look(self, member: Member, work: Callable[[OpenedShard], T]) -> T:
        """Call `work` with the stored shard. With repeatable_read the shard must not have changed since the last call."""

        def checked(shard: OpenedShard) -> T:
            result = work(shard)
            if self._transaction.repeatable_read:
                if shard.generation == UNNAMED:
                    raise _UnnamedState
                shard.confirm()
                member.expect(shard.generation)
            return result

        try:
            return self._stored.look(checked)
        except ConflictError:
            self._transaction.abort()
            raise
        except _UnnamedState:
            raise UnsupportedError(
                f"shard {self.key!r}: its store does not identify states of its objects, so repeatable_read is not possible",
                shard=self.key,
            ) from None

    def write(self, position: int, value: bytes | None, condition: bytes | None = None) -> Stamp:
        """Buffer a value if the condition holds now; it is checked again at commit."""
        with self._transaction.mutex:
            member = self._transaction.member(self._stored)
            if condition is not None and not self._holds(member, position, condition):
                return Stamp(FAILED, time.time())
            member.pending.write(position, value)
        return Stamp(PENDING, time.time())

    def _holds(self, member: Member, position: int, condition: bytes) -> bool:
        is_pending, value = member.pending.find(position)
        if condition == NO_VALUE and is_pending:
            return value is None

        def work(shard: OpenedShard) -> tuple[bytes, bool]:
            return shard.generation, is_there(shard, position)

        generation, exists = self._look(member, work)
        if condition == NO_VALUE:
            if not exists:
                member.absent.add(position)
            return not exists
        if generation == condition:
            member.expect(generation)
        return generation == condition

    def remove(self, position: int) -> bool:
        """Buffer the deletion of an entry; return True if it existed."""
        with self._transaction.mutex:
            if not self.exists(position):
                return False
            self.write(position, None)
            return True

    def store(self, pending: WriteBuffer) -> None:
        """Add buffered writes to those of the transaction."""
        with self._transaction.mutex:
            self._transaction.member(self._stored).pending.add(pending)
