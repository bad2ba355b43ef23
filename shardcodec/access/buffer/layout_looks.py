# layout_looks.py - are buffered writes void, because their array is another one by now?
# SPDX-License-Identifier: MIT
"""Looks at the stored metadata of arrays with buffered writes.

A write that was buffered for one layout must not be stored in an array of another layout, and not in one that is gone.
Deletions in this process are seen at once (`ProcessBuffer.deleting`), those by other processes only here.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, Protocol

from ...storage.waiting import all_of

__all__ = ["LayoutGuard", "LayoutLooks"]

# A look counts for this many seconds: shards that leave the buffer one by one, because of its budget, share it.
LOOK_SECONDS = 1.0


class LayoutGuard(Protocol):
    """The array and the layout that writes were made for."""

    @property
    def name(self) -> str:
        """Name of the array for messages."""

    @property
    def identity(self) -> Hashable:
        """Equal for guards of one array and one layout, for which one look is enough."""

    async def look(self) -> Callable[[str], str | None]:
        """Look at the metadata as they are stored now, with one request.

        Returns a function that returns, for the key of an object, why writes to it are void; None if they are not.
        """


class _Look(NamedTuple):
    begun: float
    why_void: Callable[[str], str | None]


class LayoutLooks:
    """The looks of one buffer, and the writes that they have found void."""

    def __init__(self) -> None:
        self._looks: dict[Hashable, _Look] = {}
        self._n_void: Counter[tuple[str, str]] = Counter()

    def forget(self) -> None:
        """Look again at each array."""
        self._looks.clear()

    async def look_at(self, guards: Iterable[LayoutGuard]) -> None:
        """Look once at each array, before many tasks ask for it. Errors are those of `why_void`, later."""
        chosen = {guard.identity: guard for guard in guards}
        with contextlib.suppress(Exception):
            await all_of([self._look(guard) for guard in chosen.values()])

    async def why_void(self, guard: LayoutGuard, key: str) -> str | None:
        """Return why writes of an object are void; None if they are not. The caller drops void writes, which are counted."""
        why = (await self._look(guard)).why_void(key)
        if why is not None:
            self._n_void[guard.name, why] += 1
        return why

    async def _look(self, guard: LayoutGuard) -> _Look:
        look, now = self._looks.get(guard.identity), time.monotonic()
        if look is None or now - look.begun > LOOK_SECONDS:
            look = self._looks[guard.identity] = _Look(now, await guard.look())
        return look

    def report(self) -> None:
        """Warn of the writes that were void since the last report."""
        while self._n_void:
            (array, why), n = self._n_void.popitem()
            warnings.warn(
                f"group_writes: the buffered writes of {n} {'shard' if n == 1 else 'shards'} of {array} were dropped: {why}",
                RuntimeWarning,
                stacklevel=2,
            )
