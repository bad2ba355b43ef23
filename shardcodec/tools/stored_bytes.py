# stored_bytes.py - the bytes of a stored object, whatever state its index is in
# SPDX-License-Identifier: MIT
"""`StoredBytes`: ranges of one object in any store. A `Shard` needs a valid index; the tools also read damaged shards.

All ranges belong to one state of the object where the store can name states. A file with a pending journal is read as
shardcodec's readers see it: in the state before the unfinished update.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from .. import native
from ..access.chunk_codec import byte_map
from ..access.read import is_changing
from ..compat import on_zarrs_loop
from ..errors import ShardError, ShardFormatError
from ..format.spec import ShardSpec
from ..storage.runner import run_blocking
from ..storage.store import Changed, Store

__all__ = [
    "BLOCK_NBYTES",
    "Buffer",
    "BytesPart",
    "StoredBytes",
    "lasting_state",
    "look_again",
    "open_object",
]

T = TypeVar("T")

Ranges = np.ndarray[Any, np.dtype[np.uint64]]
Sums = np.ndarray[Any, np.dtype[np.uint32]]

# Seconds before a file is looked at again that another writer may be changing. From the second pause on, a file that has not
# changed since the last look is taken for damaged.
_PAUSES = (0.002, 0.008, 0.03, 0.1)

# Bytes of an object in memory at a time.
BLOCK_NBYTES = 4 << 20

# The engine opens an object together with an index. An index of one entry without a checksum accepts any 16 bytes.
_ANY = ShardSpec(
    (1,), (1,), "uint8", 0, index_codecs=[{"name": "bytes", "configuration": {"endian": "little"}}]
)


class StoredBytes(Protocol):
    """The bytes of one object."""

    @property
    def nbytes(self) -> int:
        """Size of the object in bytes."""

    @property
    def state(self) -> bytes:
        """Name of the state of a file; empty if there is none."""

    def range(self, offset: int, nbytes: int) -> Any:
        """Return a range of the object as a buffer.

        Raises
        ------
        ShardFormatError
            Another writer has replaced the object meanwhile.
        """

    def checksums(self, ranges: Ranges, max_nbytes: int) -> Sums | None:
        """Compute the CRC-32C of ranges whose last four bytes are that checksum, without memory for the ranges.

        Parameters
        ----------
        ranges : ndarray of uint64, shape (n, 2)
            Offset and size of each range; ascending ones share reads.
        max_nbytes : int
            Memory for the bytes.

        Returns
        -------
        ndarray of uint32, shape (n, 2), or None
            Stored and computed checksum of each range; None if only `range` can read the object.
        """

    def close(self) -> None:
        """Close the object."""


class Buffer:
    """Bytes in memory."""

    state = b""

    def __init__(self, data: Any) -> None:
        self._view = memoryview(data).cast("B")

    @property
    def nbytes(self) -> int:
        return self._view.nbytes

    def range(self, offset: int, nbytes: int) -> Any:
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise ValueError(
                f"expected a range inside {self.nbytes} bytes, got {nbytes} bytes at offset {offset}"
            )
        return self._view[offset : offset + nbytes]

    def checksums(self, ranges: Ranges, max_nbytes: int) -> Sums | None:
        return None

    def close(self) -> None:
        """Do nothing."""


class BytesPart:
    """A range of another object, such as a nested shard in its inner chunk."""

    def __init__(self, whole: StoredBytes, offset: int, nbytes: int) -> None:
        self._whole, self._offset, self._nbytes = whole, offset, nbytes

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def state(self) -> bytes:
        return self._whole.state

    def range(self, offset: int, nbytes: int) -> Any:
        return self._whole.range(self._offset + offset, nbytes)

    def checksums(self, ranges: Ranges, max_nbytes: int) -> Sums | None:
        return self._whole.checksums(ranges + np.array([self._offset, 0], dtype=np.uint64), max_nbytes)

    def close(self) -> None:
        """Do nothing: the whole object stays open."""


class _Opened:
    """A file or bytes in memory, which the engine opens."""

    def __init__(self, shard: Any) -> None:
        self._shard = shard

    @property
    def nbytes(self) -> int:
        return int(self._shard.nbytes)

    @property
    def state(self) -> bytes:
        return bytes(self._shard.version)

    def range(self, offset: int, nbytes: int) -> Any:
        return self._shard.range(offset, nbytes) if nbytes else b""

    def checksums(self, ranges: Ranges, max_nbytes: int) -> Sums | None:
        found = np.empty((len(ranges), 2), dtype=np.uint32)
        self._shard.sums(np.ascontiguousarray(ranges), found, max_nbytes=max_nbytes)
        return found

    def close(self) -> None:
        self._shard.close()


class _Requested:
    """An object in a store of requests."""

    state = b""

    def __init__(self, store: Store, key: str, nbytes: int) -> None:
        self._store, self._key, self.nbytes = store, key, nbytes
        self._version: Any = None

    def range(self, offset: int, nbytes: int) -> Any:
        if not nbytes:
            return b""
        try:
            answer = on_zarrs_loop(self._store.get_range(self._key, offset, offset + nbytes, self._version))
        except Changed:
            answer = None
        found = 0 if answer is None else len(answer.data)
        if answer is None or found != nbytes or answer.nbytes not in (None, self.nbytes):
            raise ShardFormatError(
                f"shard {self._key!r}: expected {nbytes} bytes at offset {offset} of {self.nbytes}, got {found}: another "
                "writer has changed or removed the object; run the tool again",
                shard=self._key,
                offset=offset,
                nbytes=nbytes,
            )
        self._version = answer.version
        return memoryview(answer.data).cast("B")

    def checksums(self, ranges: Ranges, max_nbytes: int) -> Sums | None:
        return None

    def close(self) -> None:
        """Do nothing: a store of requests keeps no connection open."""


def open_object(store: Store, key: str) -> StoredBytes | None:
    """Open an object of any store.

    Parameters
    ----------
    store : Store
    key : str

    Returns
    -------
    StoredBytes or None
        None if the object does not exist.

    Raises
    ------
    OSError
        The object cannot be opened. `ShardFileError` for a FIFO or a device.
    """
    if not store.is_near:
        try:
            return _Requested(store, key, int(on_zarrs_loop(store.size(key))))
        except FileNotFoundError:
            return None
    source = store.source(key)
    try:
        opened = native.load().OpenShard(byte_map(_ANY), source)
    except ShardFormatError:
        return _short_object(store, key)
    except ShardError as error:
        raise error.with_context(shard=key) from None
    return None if opened.missing else _Opened(opened)


def _short_object(store: Store, key: str) -> StoredBytes | None:
    """Open an object that is too short for any index."""
    answer = run_blocking(store.get(key))
    return None if answer is None else Buffer(answer.data)


def look_again(path: str | None, look: Callable[[], T], is_whole: Callable[[T], bool]) -> T:
    """Look at a shard; look again while it seems damaged and its file has just been changed, as readers do.

    Parameters
    ----------
    path : str or None
        Its file; None for other stores, which replace objects in one step.
    look : callable
        Opens the shard, and returns what is found.
    is_whole : callable
        True for a result that shows no damage.
    """
    seen = None if path is None else _stamp(path)
    found = look()
    for i, pause in enumerate(_PAUSES):
        if path is None or is_whole(found) or not is_changing(path):
            break
        time.sleep(pause)
        now = _stamp(path)
        if i and now == seen:
            break
        seen = now
        found = look()
    return found


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def lasting_state(store: Store, key: str) -> str | None:
    """Return the name of the state of an object that is valid in all processes; None if there is none."""
    states = store.states_of([key])
    if states is not None:
        return states[0]
    if not store.has_lasting_states:
        return None
    answer = on_zarrs_loop(store.get_range(key, 0, 1))
    return (
        None
        if answer is None or answer.nbytes is None
        else store.lasting_state(answer.nbytes, answer.version)
    )
