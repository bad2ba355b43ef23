# requests.py - answers of stores, and limits of concurrent requests
# SPDX-License-Identifier: MIT
"""Answers to requests, and the limits of callers.

Besides its bytes, an `Answer` may have the size of the object and the name of its state (an entity tag). A later request can
be bound to that state, so a reader detects an object that was replaced between two requests, instead of mixing old and new
bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from ..compat import coalescing, config

__all__ = [
    "MAX_GAP_NBYTES",
    "Answer",
    "Changed",
    "Limits",
    "OwnBytes",
    "Remote",
    "limits_of_zarr",
    "max_requests",
    "n_concurrent",
]

# Local files: bytes that cost less to read than another system call.
MAX_GAP_NBYTES = 16 << 10

# zarr works on `async.concurrency` objects at a time, and requests this number of ranges of each.
RANGES_PER_OBJECT = 10


class OwnBytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of an object in memory with a single owner, so that a new object may reuse and overwrite it."""

    @classmethod
    def of_size(cls, nbytes: int) -> OwnBytes:
        """Return an uninitialised array of this many bytes."""
        return np.empty(nbytes, dtype=np.uint8).view(cls)


class Answer(NamedTuple):
    """The answer to a request.

    Attributes
    ----------
    data : ndarray of uint8
        The requested bytes, as far as the object has them.
    nbytes : int or None
        Size of the whole object in bytes, if the store reports it.
    version
        Name of this state of the object, if the store reports it and can bind a request to it; else None.
    """

    data: Any
    nbytes: int | None = None
    version: Any = None


class Changed(Exception):
    """The object is no longer in the state that a request was bound to."""


class Remote(Protocol):
    """The requests of a store. Each returns None for an object that does not exist, and raises the store's errors.

    Attributes
    ----------
    budget_name : str or None
        Name of the store. Calls with one name share their limits (`storage.budget`); None: each call has its own.
    """

    @property
    def budget_name(self) -> str | None: ...

    async def get(self, key: str) -> Answer | None:
        """Return all of an object."""

    async def get_range(self, key: str, start: int, end: int, version: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; raise `Changed` if it is not in the state `version`."""

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object, or all of a shorter one."""


class Limits(NamedTuple):
    """The limits of concurrent requests, and the value of a request in bytes.

    `n_requests` and `budget_nbytes` count the requests and bytes of all calls to one store (`Remote.budget_name`) in this
    process; `n_objects` those of one call.

    Attributes
    ----------
    n_requests : int
        Maximum number of concurrent requests.
    max_gap_nbytes : int
        Extra bytes that are worth one round trip less.
    max_nbytes : int
        Maximum size of a merged range.
    budget_nbytes : int
        Maximum bytes that are requested or wait for decoding at a time; a single larger request runs alone.
    free_gap_nbytes : int
        Extra bytes that are worth one concurrent request less.
    n_objects : int, optional
        Maximum number of concurrent requests for whole objects; ``n_requests`` by default.
    """

    n_requests: int
    max_gap_nbytes: int = 1 << 20
    max_nbytes: int = 16 << 20
    budget_nbytes: int = 256 << 20
    free_gap_nbytes: int = 16 << 10
    n_objects: int | None = None

    def share_nbytes(self, n_objects: int) -> int:
        """Return the extra bytes that are worth a round trip of one object, if this many objects are read together."""
        share = self.max_gap_nbytes // max(1, min(n_objects, self.n_requests))
        return max(share, min(self.free_gap_nbytes, self.max_gap_nbytes))


def n_concurrent() -> int:
    """Return the number of objects that zarr's configuration permits to be requested at a time."""
    return max(1, int(config.get("async.concurrency")))


def max_requests() -> int:
    """Return the maximum number of concurrent requests of all calls to one store."""
    return RANGES_PER_OBJECT * n_concurrent()


def limits_of_zarr(spec: Any, *, near: bool) -> Limits:
    """Return the limits of zarr's configuration.

    Parameters
    ----------
    spec : ArraySpec
        Its configuration has zarr's bounds of merged ranges.
    near : bool
        A request costs as little as one to a local file, so few extra bytes are worth another request.
    """
    max_gap_nbytes, max_nbytes = coalescing(spec)
    n_objects = n_concurrent()
    limits = Limits(max_requests(), max_gap_nbytes, max_nbytes, n_objects=n_objects)
    if near:
        max_gap_nbytes = min(max_gap_nbytes, MAX_GAP_NBYTES)
        limits = limits._replace(max_gap_nbytes=max_gap_nbytes, free_gap_nbytes=max_gap_nbytes)
    return limits
