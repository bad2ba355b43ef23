# buffered_edits.py - buffered changes of the chunks of one shard in a block of group_writes
# SPDX-License-Identifier: MIT
"""Buffered changes of chunks.

A chunk that was set or erased has a known new value; the last change counts. A change of a part of a chunk is applied
to the stored chunk when the shard is flushed, so parts that another process writes in the meantime are kept. The merged
view of such a chunk is cached for readers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..format.spec import ShardSpec
from .nested_shard import OpenedShard
from .write import Draft, Edit

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["BufferedEdits", "applier"]

# Memory for the bookkeeping of one buffered chunk, estimated.
CHUNK_NBYTES = 150


class _Found(NamedTuple):
    shard: OpenedShard


def applier(
    chain: Chain, key: str, change: Edit, shown: Mapping[int, bytes | None]
) -> Callable[[OpenedShard], Mapping[int, Any]]:
    """Return a function that applies a change to an opened shard with buffered chunks on top.

    Parameters
    ----------
    chain
        Compiled chain of the shard.
    key : str
        Key of the shard.
    change : Edit
        The change to apply.
    shown : mapping
        The buffered chunks by position; None for an erased one.

    Returns
    -------
    callable
        From an opened shard to the changed chunks by position.
    """

    def look(opened: OpenedShard) -> Mapping[int, Any]:
        draft = Draft(_Found(opened), chain, key)
        draft.new = dict(shown)
        return change.apply(draft)

    return look


class BufferedEdits:
    """Buffered writes of one shard through a transformer: chunks that were set, erased or changed in part.

    Parameters
    ----------
    spec : ShardSpec
        Layout of the shard.

    Attributes
    ----------
    shown : dict
        Changed chunks as readers see them, by position; None for an erased one.
    """

    def __init__(self, spec: ShardSpec) -> None:
        self.kind: Hashable = spec
        self._n_chunks = spec.n_chunks
        self.shown: dict[int, bytes | None] = {}
        self._certain: set[int] = set()
        self._parts: list[tuple[frozenset[int], Edit]] = []
        self._nbytes = 0
        self._store: Callable[[Edit], Awaitable[None]] | None = None

    @property
    def nbytes(self) -> int:
        """Memory that the buffered changes take, in bytes."""
        return self._nbytes

    @property
    def is_complete(self) -> bool:
        """True if every chunk is set or erased, so that the stored shard is not needed."""
        return len(self._certain) == self._n_chunks

    def add(self, change: Edit, shown: Mapping[int, Any], store: Callable[[Edit], Awaitable[None]]) -> None:
        """Add a change to the buffer.

        Parameters
        ----------
        change : Edit
            The change.
        shown : mapping
            Its chunks as readers see them after the change, by position.
        store : callable
            Coroutine function that stores all buffered changes in one write.
        """
        if change.part is None:
            self._certain.update(shown)
            self._drop_parts(shown)
        elif rest := frozenset(shown) - self._certain:
            part = change.part(rest)
            self._parts.append((rest, part))
            self._nbytes += part.nbytes + CHUNK_NBYTES
        for position, data in shown.items():
            old = self.shown.get(position)
            new = None if data is None else bytes(data)
            self._nbytes += len(new or b"") - len(old or b"") + CHUNK_NBYTES * (position not in self.shown)
            self.shown[position] = new
        self._store = store

    def _drop_parts(self, given: Mapping[int, Any]) -> None:
        """Drop buffered parts of chunks that were set or erased later."""
        kept = []
        for positions, part in self._parts:
            rest = positions.difference(given)
            if rest == positions:
                kept.append((positions, part))
                continue
            self._nbytes -= part.nbytes + CHUNK_NBYTES
            if rest and part.part is not None:
                part = part.part(rest)
                self._nbytes += part.nbytes + CHUNK_NBYTES
                kept.append((rest, part))
        self._parts = kept

    async def flush(self) -> None:
        """Store all buffered changes in one write."""
        assert self._store is not None
        await self._store(self._change())

    def _change(self) -> Edit:
        given = {position: self.shown[position] for position in self._certain}
        nbytes = sum(len(data) for data in given.values() if data is not None)
        if self.is_complete:
            return Edit(lambda _: given, given, nbytes)

        def apply(draft: Draft) -> Mapping[int, Any]:
            for _, part in self._parts:
                draft.new.update(part.apply(draft))
            for position, data in given.items():
                if data is not None or draft.exists(position):
                    draft.new[position] = data
            return draft.new

        return Edit(apply, (), nbytes + sum(part.nbytes for _, part in self._parts))
