# objects.py - where the bytes of one shard are, and how they are replaced
# SPDX-License-Identifier: MIT
"""The store's side of `shardcodec.Shard`.

A `ShardObject` is a name under which a shard is or may be; an `OpenObject` is what was there when it was opened: index and
inner chunks that belong together, also when the object is replaced meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from .. import native
from ..options import Options
from ..storage import filelocks, locks

__all__ = ["FileObject", "Make", "MemoryObject", "NativeShard", "OpenObject", "ShardObject"]

Entries = np.ndarray[Any, np.dtype[np.uint64]]

# From the old object (None: there is none) to the new one (None: no inner chunk is left). The flag asks for an object even
# then. Of a file the engine makes the new one: it gets what `filelocks.update` gives, and returns what that wants.
Make = Callable[[Any, bool], Any]


class OpenObject(Protocol):
    """A shard, or nothing, as it was found."""

    @property
    def missing(self) -> bool:
        """Whether there is no object."""

    @property
    def nbytes(self) -> int:
        """Size of the object."""

    def entries(self, *, check: bool) -> Entries:
        """Return the index, checked or as it is stored."""

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        """Fetch inner chunks, as many from the first on as fit into max_nbytes, but at least one.

        `places` is filled with where in the returned buffer each one is, absent ones as in an index. Returns the buffer,
        and how many were taken.
        """

    def range(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the object, whatever they mean."""

    def close(self) -> None:
        """Let go of it."""


class ShardObject(Protocol):
    """A place for a shard.

    Attributes
    ----------
    key : str
        How errors name it.
    path : str or None
        A file that the engine writes itself.
    """

    key: str
    path: str | None

    def open(self, chain: Any, options: Options) -> OpenObject:
        """Look at what is there now."""

    def update(self, make: Make, options: Options) -> None:
        """Put another object in the place of what is there, which nobody else changes meanwhile."""


class NativeShard:
    """A shard that the engine opens: a file, or bytes in memory."""

    def __init__(self, chain: Any, source: Any, options: Options) -> None:
        self._chain = chain
        self._allow_in_index = options.allow_in_index
        self._shard = native.load().OpenShard(chain, source)

    @property
    def missing(self) -> bool:
        return bool(self._shard.missing)

    @property
    def nbytes(self) -> int:
        return int(self._shard.nbytes)

    def entries(self, *, check: bool) -> Entries:
        out = np.empty((self._chain.n_chunks, 2), dtype=np.uint64)
        self._shard.entries(out, check=check, allow_in_index=self._allow_in_index)
        return out

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        return self._shard.fetch(  # type: ignore[no-any-return]
            positions, places, max_nbytes=max_nbytes, allow_in_index=self._allow_in_index
        )

    def range(self, offset: int, nbytes: int) -> bytes:
        return bytes(self._shard.range(offset, nbytes))

    def close(self) -> None:
        self._shard.close()


class FileObject:
    """A local file."""

    def __init__(self, path: str, key: str | None = None) -> None:
        self.path: str | None = path
        self.key = path if key is None else key

    def open(self, chain: Any, options: Options) -> OpenObject:
        return NativeShard(chain, self.path, options)

    def update(self, make: Make, options: Options) -> None:
        keys = [os.path.realpath(str(self.path))]
        with locks.table().hold(keys):
            filelocks.update(keys[0], options, lambda fd: bool(make(fd, False)))


class MemoryObject:
    """Bytes in memory; a write makes new ones and leaves the old ones alone."""

    path: str | None = None

    def __init__(self, data: Any, key: str = "") -> None:
        self.key = key
        self.data = data

    def open(self, chain: Any, options: Options) -> OpenObject:
        return NativeShard(chain, self.data, options)

    def update(self, make: Make, options: Options) -> None:
        with locks.table().hold([f"object:{id(self)}"]):
            self.data = make(self.data, False)
