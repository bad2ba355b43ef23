# shard_object.py - where the bytes of one shard are, and how they are replaced
# SPDX-License-Identifier: MIT
"""The store's side of `shardcodec.Shard`.

A `ShardObject` is a name under which a shard is or may be; an `OpenObject` is what was there when it was opened: index and
inner chunks that belong together, also when the object is replaced meanwhile.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from .. import native
from ..options import Options
from ..storage import file_locks, file_system, locks
from ..storage.index_cache import IndexCache

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "NO_OBJECT",
    "UNKNOWN",
    "FileObject",
    "Look",
    "Make",
    "MemoryObject",
    "NativeShard",
    "OpenObject",
    "Part",
    "ShardObject",
    "content_generation",
    "joined",
    "object_of",
    "register_objects",
]

# Bytes that name a state of an object, its generation: these two are of no object at all, and of one in a store that names
# no states. All others are equal only if nothing has changed.
NO_OBJECT = b"\x02"
UNKNOWN = b"\x04"

Entries = np.ndarray[Any, np.dtype[np.uint64]]

# From the old object (None: there is none) to the new one (None: no inner chunk is left). The flag asks for an object even
# then. Of a file the engine makes the new one: it gets what `file_locks.update` gives, and returns what that wants.
Make = Callable[[Any, bool], Any]

# Is told the generation of the old object before a `Make` is called, except for files: their `Make` sees the file itself.
Look = Callable[[bytes], None]


class Part(NamedTuple):
    """One object of several that are changed as one."""

    target: Any
    make: Make
    look: Look | None


# As zarr: a gap of this size is cheaper to fetch than another request, and a request is at most so large.
MAX_GAP_NBYTES = 1 << 20
MAX_RANGE_NBYTES = 16 << 20


class OpenObject(Protocol):
    """A shard, or nothing, as it was found."""

    @property
    def missing(self) -> bool:
        """Whether there is no object."""

    @property
    def nbytes(self) -> int:
        """Size of the object."""

    def check(self) -> None:
        """Check all entries where nothing else tells that one is wrong; whatever reads inner chunks does so by itself."""

    def entries(self, *, check: bool) -> Entries:
        """Return the index, checked or as it is stored."""

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        """Fetch inner chunks, as many from the first on as fit into max_nbytes, but at least one.

        `places` is filled with where in the returned buffer each one is, absent ones as in an index. Returns the buffer,
        and how many were taken.
        """

    def range(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the object, whatever they mean."""

    @property
    def generation(self) -> bytes:
        """What names this state of the object; see `NO_OBJECT` and `UNKNOWN`."""

    def entry(self, position: int) -> tuple[int, int] | None:
        """Return offset and size of an inner chunk, checked; None when it is absent."""

    def positions(self, first: int, end: int) -> Any:
        """Tell which of the inner chunks at positions [first, end) exist: a native `Positions`."""

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        """Return several ranges, each (offset, nbytes), as buffers; near ones are asked for together."""

    def confirm(self) -> None:
        """Raise `ShardFormatError` unless all that was told is of one state of the object, the present one when it was opened."""

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

    @property
    def identity(self) -> str:
        """Names the object, the same for whoever reaches it in this process."""

    @property
    def realm(self) -> Hashable:
        """Objects of one realm can be changed as one, by `update_all`; None: not this one."""

    @property
    def is_near(self) -> bool:
        """Whether the engine opens it itself, without requests."""

    @property
    def is_prompt(self) -> bool:
        """Whether a small read takes no round trip, so that it may be done on an event loop."""

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Look at what is there now; `cache` may have the index of this state of the object."""

    def open_whole(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """As `open`, for who wants all of it: then a store is asked once."""

    def update(self, make: Make, options: Options, look: Look | None = None, *, blind: bool = False) -> bytes:
        """Put another object in the place of what is there, which nobody else changes meanwhile.

        With `blind` the old object does not matter to `make`, so a store is not asked for it.

        Returns the generation of the new object; of a file, which `make` knows, `UNKNOWN`.
        """

    def update_all(self, parts: Sequence[Part], options: Options) -> list[bytes]:
        """Update objects of this realm, all or none; return their generations."""


class NativeShard:
    """A shard that the engine opens: a file, or bytes in memory."""

    def __init__(self, chain: Chain, source: Any, options: Options, cache: IndexCache | None = None) -> None:
        self._chain = chain
        self._allow_in_index = options.allow_in_index
        self._source = source
        self._shard = native.load().OpenShard(chain, source, None if cache is None else cache.native)

    @property
    def missing(self) -> bool:
        return bool(self._shard.missing)

    @property
    def nbytes(self) -> int:
        return int(self._shard.nbytes)

    @property
    def generation(self) -> bytes:
        if self.missing:
            return NO_OBJECT
        return bytes(self._shard.version) or content_generation(self._source)

    def check(self) -> None:
        self._shard.check(allow_in_index=self._allow_in_index)

    def entries(self, *, check: bool) -> Entries:
        out = np.empty((self._chain.n_chunks, 2), dtype=np.uint64)
        self._shard.entries(out, check=check, allow_in_index=self._allow_in_index)
        return out

    def entry(self, position: int) -> tuple[int, int] | None:
        return self._shard.entry(position, allow_in_index=self._allow_in_index)  # type: ignore[no-any-return]

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        return self._shard.fetch(  # type: ignore[no-any-return]
            positions, places, max_nbytes=max_nbytes, allow_in_index=self._allow_in_index
        )

    def positions(self, first: int, end: int) -> Any:
        return self._shard.positions(first, end)

    def range(self, offset: int, nbytes: int) -> bytes:
        return bytes(self._shard.range(offset, nbytes))

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        return [self.range(offset, nbytes) for offset, nbytes in wanted]

    def confirm(self) -> None:
        """What is open is one state."""

    def close(self) -> None:
        self._shard.close()


class FileObject:
    """A local file."""

    realm = None
    is_near = True

    def __init__(self, path: str, key: str | None = None) -> None:
        self.path: str | None = path
        self.key = path if key is None else key

    @property
    def identity(self) -> str:
        return os.path.realpath(str(self.path))

    @property
    def is_prompt(self) -> bool:
        return file_system.is_prompt(str(self.path))

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        return NativeShard(chain, self.path, options, cache)

    open_whole = open  # noqa: A003  # the method above

    def update(self, make: Make, options: Options, look: Look | None = None, *, blind: bool = False) -> bytes:
        keys = [self.identity]
        with locks.table().hold(keys):
            file_locks.update(keys[0], options, lambda fd: bool(make(fd, False)), name=self.path)
        return UNKNOWN

    def update_all(self, parts: Sequence[Part], options: Options) -> list[bytes]:
        raise NotImplementedError("files cannot be changed as one")


class MemoryObject:
    """Bytes in memory; a write makes new ones and leaves the old ones alone."""

    path: str | None = None
    realm = None
    is_near = True
    is_prompt = True

    def __init__(self, data: Any, key: str = "") -> None:
        self.key = key
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryObject, (None if self.data is None else bytes(self.data), self.key)

    @property
    def identity(self) -> str:
        return f"object:{id(self)}"

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        return NativeShard(chain, self.data, options)

    open_whole = open  # noqa: A003  # the method above

    def update(self, make: Make, options: Options, look: Look | None = None, *, blind: bool = False) -> bytes:
        with locks.table().hold([self.identity]):
            if look is not None:
                look(content_generation(self.data))
            self.data = make(self.data, False)
            return content_generation(self.data)

    def update_all(self, parts: Sequence[Part], options: Options) -> list[bytes]:
        raise NotImplementedError("each is by itself")


def content_generation(data: Any) -> bytes:
    """Name a state of an object in memory by its bytes."""
    return NO_OBJECT if data is None else hashlib.blake2b(data, digest_size=20).digest()


def joined(entries: Any) -> list[tuple[int, int]]:
    """Ranges of inner chunks, ascending, neighbours in one; each inner chunk lies in the last that begins before it.

    `entries` are pairs (offset, nbytes), in an array or any other collection.
    """
    if isinstance(entries, np.ndarray):
        entries = entries.tolist()
    ranges: list[tuple[int, int]] = []
    for offset, nbytes in sorted(entries):
        if ranges:
            first, size = ranges[-1]
            end = max(first + size, offset + nbytes)
            near = offset - (first + size) <= MAX_GAP_NBYTES and end - first <= MAX_RANGE_NBYTES
            if near or end == first + size:
                ranges[-1] = first, end - first
                continue
        ranges.append((offset, nbytes))
    return ranges


_find: Callable[[Any, str | None], ShardObject] | None = None


def register_objects(find: Callable[[Any, str | None], ShardObject]) -> None:
    """Say how the place that a store and a key name is found; for the surface that knows a library's stores."""
    global _find
    _find = find


def object_of(store: Any, key: str | None) -> ShardObject:
    """Return the place that a store and a key name.

    Raises
    ------
    TypeError
        Not a path, bytes, or a store of a library that is known.
    """
    if _find is None:
        raise TypeError(f"no library of stores is known that has {type(store).__name__}")
    return _find(store, key)
