# requests.py - objects that are reached by requests, and how many of these are under way
# SPDX-License-Identifier: MIT
"""What the layers above ask of a store that answers requests, and the bounds they keep.

A surface adapts the stores of its library to `Remote`. An `Answer` may say more than its bytes: the size of the object,
and a name of its state (an entity tag), to which a later request can be bound. So an object that is exchanged between
two requests is noticed instead of being read half old, half new.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["Answer", "ByteBudget", "Changed", "ConditionalRemote", "Limits", "OwnBytes", "Remote"]


class OwnBytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of an object, in memory that nothing else uses: a new object may be made of it, which destroys the old one."""

    @classmethod
    def of_size(cls, nbytes: int) -> OwnBytes:
        """Return so many bytes, not set."""
        return np.empty(nbytes, dtype=np.uint8).view(cls)


class Answer(NamedTuple):
    """What came back.

    Attributes
    ----------
    data : ndarray of uint8
        As many bytes of those asked for as the object has.
    nbytes : int or None
        Size of the whole object, where the store tells.
    version
        Names this state of the object, where the store tells and can bind a request to it; else None.
    """

    data: Any
    nbytes: int | None = None
    version: Any = None


class Changed(Exception):
    """The object is not in the state any more that a request was bound to."""


class Remote(Protocol):
    """A store. Every call answers None for an object that does not exist, and lets errors of the store pass."""

    async def get(self, key: str) -> Answer | None:
        """All of an object."""

    async def get_range(self, key: str, start: int, end: int, version: Any = None) -> Answer | None:
        """Bytes [start, end) of an object; raises `Changed` when it is not in that state."""

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """The last bytes of an object; all of a shorter one."""


class ConditionalRemote(Remote, Protocol):
    """A store that writes an object only if it is as it was read."""

    async def put(self, key: str, data: Any, expected: Answer | None) -> Any:
        """Store an object if it is in the state of that answer (None: if there is none); else raise `Changed`.

        The object is a buffer, or a tuple of buffers that are stored one behind the other. An answer without a version
        sets no condition; the user is warned of that. Returns the version of what was stored.
        """

    async def replace(self, key: str, data: Any) -> Any:
        """Store an object, whatever is there. Returns the version of what was stored."""


class Limits(NamedTuple):
    """What a call may have under way, and what a request is worth.

    Attributes
    ----------
    n_requests : int
        Requests at a time.
    max_gap_nbytes : int
        So many bytes are asked for in vain rather than wait for one round trip more.
    max_nbytes : int
        Up to this size ranges become one.
    budget_nbytes : int
        Bytes that are asked for or wait to be decoded, at a time; a single larger request goes alone.
    free_gap_nbytes : int
        So many bytes are asked for in vain rather than by one request more that is under way with others.
    n_objects : int, optional
        Requests for whole objects at a time; as many as any, where nothing is said.
    """

    n_requests: int
    max_gap_nbytes: int = 1 << 20
    max_nbytes: int = 16 << 20
    budget_nbytes: int = 256 << 20
    free_gap_nbytes: int = 16 << 10
    n_objects: int | None = None

    def share_nbytes(self, n_objects: int) -> int:
        """Bytes in vain that are worth a round trip of one object, when so many are read together."""
        share = self.max_gap_nbytes // max(1, min(n_objects, self.n_requests))
        return max(share, min(self.free_gap_nbytes, self.max_gap_nbytes))


class ByteBudget:
    """Bytes that may be held at a time, by the coroutines of one event loop."""

    def __init__(self, nbytes: int) -> None:
        self._most = self._free = max(1, nbytes)
        self._waiting: list[asyncio.Future[None]] = []

    @contextlib.asynccontextmanager
    async def hold(self, nbytes: int) -> AsyncIterator[None]:
        """Wait until so many are free; more than there are in all count as all."""
        nbytes = min(nbytes, self._most)
        while self._free < nbytes:
            freed = asyncio.get_running_loop().create_future()
            self._waiting.append(freed)
            await freed
        self._free -= nbytes
        try:
            yield
        finally:
            self._free += nbytes
            waiting, self._waiting = self._waiting, []
            for future in waiting:  # each looks again
                if not future.done():
                    future.set_result(None)
