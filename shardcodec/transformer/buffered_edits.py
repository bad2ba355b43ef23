# buffered_edits.py - buffered edits of one shard in a block of group_writes
# SPDX-License-Identifier: MIT
"""`BufferedEdits`: the edits of one shard that a block of `group_writes` holds back.

A chunk that was set or erased has a known new value; the last edit counts. An edit of some bytes of a chunk is applied to the
stored chunk when the shard is flushed, so bytes that another process writes in the meantime are kept. The merged view of such
a chunk is cached for readers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..access.buffer.buffered import BufferedWrites
from ..access.opened_shard import OpenedShard
from ..format.spec import ShardSpec

if TYPE_CHECKING:
    from .._native import Chain
from .edits import Draft, Edit

__all__ = ["BufferedEdits", "applier"]

# Memory for the bookkeeping of one buffered chunk, estimated.
CHUNK_NBYTES = 150


def applier(
    chain: Chain, key: str, edit: Edit, shown: Mapping[int, bytes | None]
) -> Callable[[OpenedShard], Mapping[int, Any]]:
    """Return a function from an opened shard to its edited chunks by position; `shown` are the buffered chunks on top."""

    def look(opened: OpenedShard) -> Mapping[int, Any]:
        draft = Draft(lambda: opened, chain, key)
        draft.new = dict(shown)
        return edit.apply(draft)

    return look


class BufferedEdits(BufferedWrites):
    """Buffered writes of one shard through a transformer: chunks that were set, erased or edited.

    shown: changed chunks as readers see them, by position; None for an erased one.
    """

    def __init__(self, spec: ShardSpec) -> None:
        self.kind: ShardSpec = spec
        self._n_chunks = spec.n_chunks
        self.shown: dict[int, bytes | None] = {}
        self._certain: set[int] = set()
        self._partial: list[tuple[frozenset[int], Edit]] = []
        self._memory_nbytes = 0
        self._store: Callable[[Edit], Awaitable[None]] | None = None

    @property
    def memory_nbytes(self) -> int:
        """Memory that the buffered edits take, in bytes."""
        return self._memory_nbytes

    @property
    def is_complete(self) -> bool:
        """True if every chunk is set or erased, so that the stored shard is not needed."""
        return len(self._certain) == self._n_chunks

    def add(self, edit: Edit, shown: Mapping[int, Any], store: Callable[[Edit], Awaitable[None]]) -> None:
        """Add an edit.

        shown: its chunks as readers see them after the edit, by position. store: coroutine function that stores all buffered
        edits in one write.
        """
        if edit.narrowed is None:
            self._certain.update(shown)
            self._drop_overridden(shown)
        elif rest := frozenset(shown) - self._certain:
            mine = edit.narrowed(rest)
            self._partial.append((rest, mine))
            self._memory_nbytes += mine.nbytes + CHUNK_NBYTES
        for position, data in shown.items():
            old = self.shown.get(position)
            new = None if data is None else bytes(data)
            self._memory_nbytes += (
                len(new or b"") - len(old or b"") + CHUNK_NBYTES * (position not in self.shown)
            )
            self.shown[position] = new
        self._store = store

    def _drop_overridden(self, given: Mapping[int, Any]) -> None:
        """Drop partial edits of chunks that were set or erased later."""
        kept = []
        for positions, edit in self._partial:
            rest = positions.difference(given)
            if rest == positions:
                kept.append((positions, edit))
                continue
            self._memory_nbytes -= edit.nbytes + CHUNK_NBYTES
            if rest and edit.narrowed is not None:
                mine = edit.narrowed(rest)
                self._memory_nbytes += mine.nbytes + CHUNK_NBYTES
                kept.append((rest, mine))
        self._partial = kept

    async def flush(self) -> None:
        """Store all buffered edits in one write."""
        assert self._store is not None
        await self._store(self._edit())

    def _edit(self) -> Edit:
        given = {position: self.shown[position] for position in self._certain}
        nbytes = sum(len(data) for data in given.values() if data is not None)
        if self.is_complete:
            return Edit(lambda _: given, given, nbytes)

        def apply(draft: Draft) -> Mapping[int, Any]:
            for _, edit in self._partial:
                draft.new.update(edit.apply(draft))
            for position, data in given.items():
                if data is not None or draft.exists(position):
                    draft.new[position] = data
            return draft.new

        return Edit(apply, (), nbytes + sum(edit.nbytes for _, edit in self._partial))
