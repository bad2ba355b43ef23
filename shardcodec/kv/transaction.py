# transaction.py - writes to one or several shards that are stored together, or not at all
# SPDX-License-Identifier: MIT
"""Transactions.

What is written in a transaction is held in memory and seen by those who read through it; nobody else sees it before the
commit, which writes each shard once. Of several shards each is changed as a whole, but one after the other, unless
their base can change them as one (`ShardObject.realm`), or the transaction is to be atomic, and then it must.

Source: TensorStore, `Transaction`; requirements KV-50 to KV-54.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

from ..access.shard_change import Found, change_all
from ..access.shard_object import UNKNOWN
from ..errors import ConflictError
from ..storage.tasks import to_its_end
from .arguments import is_there
from .entries import Entries
from .write_buffer import Pending

__all__ = ["Member", "Transaction"]


class Member:
    """One shard's part in a transaction.

    Attributes
    ----------
    entries : Entries
    pending : Pending
    expected : bytes or None
        Generation that the shard must be of at commit, because of what was read or of a condition; None: any.
    absent : set of int
        Positions of entries that must not exist at commit.
    generation : bytes
        That of the shard after the commit.
    """

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.pending = Pending()
        self.expected: bytes | None = None
        self.absent: set[int] = set()
        self.generation = UNKNOWN

    def expect(self, generation: bytes) -> None:
        """Rest on a state of the shard.

        Raises
        ------
        ConflictError
            The transaction rests on another one already.
        """
        if self.expected is not None and self.expected != generation:
            raise self._conflict(generation)
        self.expected = generation

    def check(self, found: Found) -> None:
        """Refuse a shard that is not as the transaction expects it."""
        if self.expected is not None:
            self.expect(found.generation)
        if any(is_there(found.shard, position) for position in self.absent):
            raise self._conflict(found.generation)

    @property
    def is_conditional(self) -> bool:
        """Whether `check` has anything to look at."""
        return self.expected is not None or bool(self.absent)

    def _conflict(self, actual: bytes) -> ConflictError:
        return ConflictError(
            f"shard {self.entries.key!r}: Generation mismatch: the transaction rests on a state that is not the present one",
            shard=self.entries.key,
            expected=self.expected,
            actual=actual,
        )


class Transaction:
    """Writes that are stored together.

    Parameters
    ----------
    atomic : bool
        Several shards must change as one. Only some bases can do that (shards in one MemoryStore, entries of one outer
        shard); for others the second shard is refused.
    repeatable_read : bool
        What was read must still hold at commit; reads are refused where the store names no states of its objects.

    Notes
    -----
    A with block commits at its end, and aborts when it is left by an exception.

    Examples
    --------
    >>> with Transaction() as t:
    ...     a.with_transaction(t)[key] = b"one"
    ...     b.with_transaction(t)[key] = b"two"
    """

    def __init__(self, *, atomic: bool = False, repeatable_read: bool = False) -> None:
        self.atomic = atomic
        self.repeatable_read = repeatable_read
        self._members: dict[str, Member] = {}
        self._joined: dict[Entries, Member] = {}
        self._state = "open"
        self.mutex = threading.RLock()

    @property
    def open(self) -> bool:
        """Whether it takes writes."""
        return self._state == "open"

    @property
    def aborted(self) -> bool:
        """Whether it has come to nothing."""
        return self._state == "aborted"

    @property
    def committed(self) -> bool:
        """Whether its writes are stored."""
        return self._state == "committed"

    def member(self, entries: Entries) -> Member:
        """Return a shard's part, for use while `mutex` is held.

        Raises
        ------
        ValueError
            The transaction is over; or it is atomic, and this shard cannot change together with the others; or the shard takes
            part with another grid or index.
        """
        self._check_open()
        member = self._joined.get(entries)
        if member is None:
            member = self._joined[entries] = self._member_for(entries)
        return member

    def _member_for(self, entries: Entries) -> Member:
        identity = entries.target.identity
        member = self._members.get(identity)
        if member is None:
            self._check_realm(entries)
            member = self._members[identity] = Member(entries)
        elif member.entries.layout != entries.layout:
            raise ValueError(
                f"shard {entries.key!r} takes part in the transaction with another grid or index"
            )
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
        """Forget everything that was written."""
        with self.mutex:
            if self.open:
                self._state = "aborted"
                self._members.clear()
                self._joined.clear()

    def commit_sync(self) -> None:
        """Store what was written.

        Raises
        ------
        ConflictError
            A shard is not in the state any more on which the transaction rests.
        ValueError
            It is over already.
        Exception
            A shard could not be written. If the transaction is not atomic, those before it are.
        """
        with self.mutex:
            self._check_open()
            self._state = "aborted"  # unless all goes well
            for group in self._groups():
                _store(group)
            self._members.clear()
            self._joined.clear()
            self._state = "committed"

    async def commit(self) -> None:
        """As `commit_sync`, without blocking the event loop."""
        await to_its_end(asyncio.to_thread(self.commit_sync))

    def _groups(self) -> list[list[Member]]:
        """Members that change together, in ascending order of their names; checks without writes come first."""
        groups: dict[Any, list[Member]] = {}
        for identity, member in sorted(self._members.items()):
            if member.pending or member.expected is not None:
                realm = member.entries.target.realm
                groups.setdefault(identity if realm is None else ("realm", realm), []).append(member)
        return sorted(groups.values(), key=lambda group: any(member.pending for member in group))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self.open:
            self.commit_sync()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self.open:
            await self.commit()


def _store(group: list[Member]) -> None:
    if len(group) == 1 or not any(member.pending for member in group):
        for member in group:
            _store_one(member)
        return
    writing = [member for member in group if member.pending]
    for member in group:
        if not member.pending:
            _verify(member)
    targets = [
        (m.entries.target, m.entries.chain, m.entries.decision(m.pending, m.check, keep=True))
        for m in writing
    ]
    for member in writing:
        member.entries.settle()
    generations = change_all(targets, writing[0].entries.options())
    for member, generation in zip(writing, generations, strict=True):
        member.generation = generation


def _store_one(member: Member) -> None:
    if member.pending:
        check = member.check if member.is_conditional else None
        member.generation = member.entries.store(member.pending, check)
    else:
        _verify(member)


def _verify(member: Member) -> None:
    generation = member.entries.look(lambda shard: shard.generation)
    if member.expected is not None:
        member.expect(generation)
