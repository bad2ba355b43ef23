# edits.py - edits of one shard
# SPDX-License-Identifier: MIT
"""`Edit`: a change of the values of one shard, applied to a `Draft` of them; `put`, `put_if_absent` and `erase` make edits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..access.opened_shard import OpenedShard
from ..errors import ShardError
from .read import with_keys

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Draft", "Edit", "NothingChanged", "erase", "put", "put_if_absent"]


class NothingChanged(Exception):
    """Raised by `Batch.renewed` to leave the object unchanged."""


class Draft:
    """A stored shard with edits on top. Chunks are read only when an edit asks for them.

    new: changed chunks by position; None for an erased one.
    """

    def __init__(self, shard: Callable[[], OpenedShard], chain: Chain, key: str) -> None:
        self._shard = shard
        self._chain = chain
        self._key = key
        self.new: dict[int, Any] = {}

    def exists(self, position: int) -> bool:
        """Return True if the chunk exists."""
        if position in self.new:
            return self.new[position] is not None
        return self._entry(position) is not None

    def value(self, position: int) -> Any:
        """Return the bytes of a chunk; None if it is absent."""
        if position in self.new:
            return self.new[position]
        entry = self._entry(position)
        return None if entry is None else self._shard().range(*entry)

    def _entry(self, position: int) -> tuple[int, int] | None:
        try:
            shard = self._shard()
            return None if shard.missing else shard.entry(position)
        except ShardError as error:
            raise with_keys(error, self._chain, self._key) from None


class Edit:
    """An edit of one shard: a function from the stored shard to new chunks.

    apply: takes a `Draft` and returns the new chunks by position (None erases a chunk). It may be called several times, in any
    thread; if it raises, the shard is unchanged. blind: positions that are set independently of the stored shard; empty if
    `apply` reads the draft. nbytes: bytes to write, estimated. given: new chunks by position, if they do not depend on the
    stored shard. narrowed: takes positions and returns the edit of these chunks only, with a copy of its bytes. An edit with
    neither `given` nor `narrowed` cannot be buffered.
    """

    def __init__(
        self,
        apply: Callable[[Draft], Mapping[int, Any]],
        blind: Collection[int] = (),
        nbytes: int = 0,
        *,
        given: Mapping[int, Any] | None = None,
        narrowed: Callable[[Collection[int]], Edit] | None = None,
    ) -> None:
        self.apply = apply
        self.blind = blind
        self.nbytes = nbytes
        self.given = given
        self.narrowed = narrowed

    def begin(self) -> None:
        """Compute `blind` and `nbytes`. Called when the lock of the shard is held."""


def put(chunks: Mapping[int, Any]) -> Edit:
    """Return the edit that sets chunks; None erases a chunk."""
    nbytes = sum(memoryview(data).nbytes for data in chunks.values() if data is not None)
    return Edit(lambda _: chunks, chunks.keys(), nbytes, given=chunks)


def put_if_absent(position: int, data: Any) -> Edit:
    """Return the edit that sets a chunk if it is absent."""
    return Edit(lambda draft: {} if draft.exists(position) else {position: data}, (), memoryview(data).nbytes)


def erase(positions: Sequence[int]) -> Edit:
    """Return the edit that erases the existing ones of some chunks."""
    return Edit(lambda draft: {p: None for p in positions if draft.exists(p)}, given=dict.fromkeys(positions))
