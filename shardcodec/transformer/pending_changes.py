# pending_changes.py - changes of a shard that wait for the end of a block of group_writes
# SPDX-License-Identifier: MIT
"""Changes of chunks, gathered.

Of a chunk that was set or erased it is certain what becomes of it; the last change counts. A part that was laid over a
stored chunk is laid over what is stored when the shard is: so the parts of that chunk that another process writes
meanwhile are kept. How such a chunk looks until then is remembered too, for those who read it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..format.spec import ShardSpec
from .nested_shard import Opened
from .write import Change, Draft

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["HeldShard", "changed"]

# What it takes to remember a chunk, about.
CHUNK_NBYTES = 150


class _Opened(NamedTuple):
    shard: Opened


def changed(
    chain: Chain, key: str, change: Change, shown: Mapping[int, bytes | None]
) -> Callable[[Opened], Mapping[int, Any]]:
    """Return what tells, of an opened shard with these chunks over it, what a change makes of it."""

    def look(opened: Opened) -> Mapping[int, Any]:
        draft = Draft(_Opened(opened), chain, key)
        draft.new = dict(shown)
        return change.apply(draft)

    return look


class HeldShard:
    """Changes of one shard.

    Parameters
    ----------
    spec : ShardSpec
        How the shard is laid out.

    Attributes
    ----------
    shown : dict
        How chunks look, by position; None: there is none.
    """

    def __init__(self, spec: ShardSpec) -> None:
        self.kind: Hashable = spec
        self._n_chunks = spec.n_chunks
        self.shown: dict[int, bytes | None] = {}
        self._certain: set[int] = set()
        self._parts: list[tuple[frozenset[int], Change]] = []
        self._nbytes = 0
        self._store: Callable[[Change], Awaitable[None]] | None = None

    @property
    def nbytes(self) -> int:
        """Memory that is held."""
        return self._nbytes

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is given, so that what is stored does not matter."""
        return len(self._certain) == self._n_chunks

    def take(
        self, change: Change, shown: Mapping[int, Any], store: Callable[[Change], Awaitable[None]]
    ) -> None:
        """Take over a change.

        Parameters
        ----------
        change : Change
        shown : mapping
            How its chunks look behind it.
        store : callable
            Stores all changes as one.
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
        """Forget parts of chunks that have been set or erased since."""
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

    async def store(self) -> None:
        """Store all that was taken over."""
        assert self._store is not None
        await self._store(self._change())

    def _change(self) -> Change:
        given = {position: self.shown[position] for position in self._certain}
        nbytes = sum(len(data) for data in given.values() if data is not None)
        if self.is_complete:
            return Change(lambda _: given, given, nbytes)

        def apply(draft: Draft) -> Mapping[int, Any]:
            for _, part in self._parts:
                draft.new.update(part.apply(draft))
            for position, data in given.items():
                if data is not None or draft.exists(position):
                    draft.new[position] = data
            return draft.new

        return Change(apply, (), nbytes + sum(part.nbytes for _, part in self._parts))
