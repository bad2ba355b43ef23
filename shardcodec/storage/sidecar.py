# sidecar.py - a cache file for the sizes of inner chunks
# SPDX-License-Identifier: MIT
"""A cache file for the sizes of inner chunks."""

from __future__ import annotations

import itertools
import json
import logging
import os
import struct
import zlib
from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np

from .. import native
from ..errors import ShardFileError
from .files import check_name, open_file
from .whole_file import put_file

__all__ = ["Sidecar"]

# The sizes of an object are stored with its lasting state (size and entity tag, or size and times of a file). A caller
# passes the current one, so stale sizes are never used. A file that is lost, damaged, or of another array only costs the
# requests that it would have saved.
#
#     "shardst1"  crc32c of all that follows, 4 bytes  size of the table, 4 bytes
#     table: JSON {"of": .., "objects": [[key, state, itemsize, nbytes], ..]}
#     of each object in turn: a zlib stream of nbytes bytes: the sizes + 1 (0: absent), the lowest byte of all sizes first
#
# The file is always replaced as a whole, so the last of several concurrent writers determines its content.
MAGIC = b"shardst1"
HEAD = struct.Struct("<8sII")

# Larger files are neither written nor read.
MAX_NBYTES = 256 << 20

Sizes = np.ndarray[Any, np.dtype[np.uint64]]

_log = logging.getLogger("shardcodec")


class _PackedSizes(NamedTuple):
    """The compressed sizes of one shard's inner chunks, and the state of the object that they belong to."""

    state: str
    itemsize: int
    packed: bytes


class Sidecar:
    """A file with the sizes of the inner chunks of an array's shards, for `chunk_state`; without offsets it serves no read.

    identity: name of the array and of the layout of its indexes; a file of another identity is ignored. max_nbytes: bound of
    the file; the least recently used objects are evicted first. ShardFileError: the path is a FIFO, a socket or a device.
    """

    def __init__(
        self, path: str | os.PathLike[str], identity: str, n_chunks: int, max_nbytes: int = MAX_NBYTES
    ) -> None:
        # a link stays one when the file is replaced
        self._path = os.path.realpath(check_name(os.fspath(path)))
        self._identity = identity
        self._n_chunks = n_chunks
        self._max_nbytes = max_nbytes
        self._is_changed = False
        self._kept: dict[str, _PackedSizes] = {}  # the most recently used last
        try:
            self._kept = self._load()
        except ShardFileError:
            raise
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            self._is_changed = True  # `save` replaces the file
            _log.warning("%s: expected a cache file, this one is ignored: %s", self._path, error)

    def _load(self) -> dict[str, _PackedSizes]:
        """Read the file; raise an error if it is not a cache of this array. Without a file the cache is empty."""
        if os.path.isdir(self._path):
            raise ValueError("it is a folder")
        if (opened := open_file(self._path)) is None:
            return {}
        with opened as file:
            data = file.read(self._max_nbytes + 1)
        if len(data) > self._max_nbytes:
            raise ValueError(f"it has more than {self._max_nbytes} bytes")
        if len(data) < HEAD.size:
            raise ValueError(f"it has {len(data)} bytes")
        magic, crc, n_table = HEAD.unpack_from(data)
        if magic != MAGIC:
            raise ValueError("it is another kind of file")
        if crc != native.load().crc32c(memoryview(data)[12:]):
            raise ValueError("its checksum is wrong")
        begin = HEAD.size + n_table
        table = json.loads(data[HEAD.size : begin])
        if table["of"] != self._identity:
            raise ValueError("it is about another array")
        cached = {}
        for key, state, itemsize, nbytes in table["objects"]:
            cached[str(key)] = _PackedSizes(str(state), int(itemsize), data[begin : begin + nbytes])
            begin += nbytes
        return cached

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str, state: str | None) -> Sizes | None:
        """Return the sizes of an object's inner chunks, 2^64-1 for an absent one; None if not cached for this state."""
        packed = self._kept.get(key)
        if packed is None or state is None or packed.state != state:
            return None
        sizes = self._unpack(packed)
        if sizes is None:
            _log.warning("%s: the sizes of %r are damaged and are ignored", self._path, key)
            del self._kept[key]
            self._is_changed = True
            return None
        self._kept[key] = self._kept.pop(key)
        return sizes

    def _unpack(self, sizes: _PackedSizes) -> Sizes | None:
        """Return the sizes of inner chunks; None if the compressed sizes are damaged."""
        nbytes = sizes.itemsize * self._n_chunks
        if sizes.itemsize not in (1, 2, 4, 8):
            return None
        try:
            data = zlib.decompressobj().decompress(sizes.packed, nbytes + 1)
        except zlib.error:
            return None
        if len(data) != nbytes:
            return None
        planes = np.frombuffer(data, dtype=np.uint8).reshape(sizes.itemsize, self._n_chunks)
        numbers = np.ascontiguousarray(planes.T).view(f"<u{sizes.itemsize}").reshape(-1)
        return numbers.astype(np.uint64) - np.uint64(1)  # 0 becomes 2^64-1

    def put(self, key: str, state: str | None, sizes: Sizes) -> None:
        """Cache the sizes of an object's inner chunks in memory, until `save`; 2^64-1 stands for an absent one.

        Do nothing without a state, because stale sizes could not be detected.
        """
        if state is None:
            return
        numbers = sizes + np.uint64(1)
        highest = int(numbers.max(initial=0))
        itemsize = next(n for n in (1, 2, 4, 8) if highest < 1 << 8 * n)
        planes = numbers.astype(f"<u{itemsize}").view(np.uint8).reshape(-1, itemsize).T
        self._kept.pop(key, None)
        self._kept[key] = _PackedSizes(state, itemsize, zlib.compress(planes.tobytes(), 1))
        self._is_changed = True

    def keep_only(self, keys: Container[str]) -> None:
        """Remove the sizes of all objects except `keys`, the objects that still exist, from the cache."""
        for key in [key for key in self._kept if key not in keys]:
            del self._kept[key]
            self._is_changed = True

    def save(self) -> None:
        """Write the cache to its file if the cache has changed since it was loaded or saved.

        A new file replaces the old one in one step, so readers see one of the two; it is not synced to disk. The cached
        sizes that another process has saved meanwhile are lost. If the file cannot be written, the error is logged and
        not raised, the old file stays, and the next `save` does nothing unless the cache changes again.
        """
        if not self._is_changed:
            return
        self._is_changed = False
        chosen, table = self._chosen()
        body = b"".join([struct.pack("<I", len(table)), table, *(kept.packed for _, kept in chosen)])
        crc = native.load().crc32c(body)
        try:
            if not os.path.isdir(os.path.dirname(self._path)):
                raise FileNotFoundError("its folder does not exist")
            put_file(self._path, [MAGIC + struct.pack("<I", crc), body])
        except (OSError, ShardFileError) as error:
            _log.warning("cannot write the cache %s: %s", self._path, error)

    def _chosen(self) -> tuple[list[tuple[str, _PackedSizes]], bytes]:
        """Return the objects to write, the most recently used first, and their table as JSON.

        Objects that do not fit into ``max_nbytes`` are left out.
        """
        last_first = list(reversed(self._kept.items()))
        rows = [json.dumps([key, kept.state, kept.itemsize, len(kept.packed)]) for key, kept in last_first]
        head, tail = f'{{"of": {json.dumps(self._identity)}, "objects": [', "]}"
        nbytes = itertools.accumulate(
            (len(row) + 2 + len(kept.packed) for row, (_, kept) in zip(rows, last_first, strict=True)),
            initial=HEAD.size + len(head) + len(tail),
        )
        n = max(0, sum(total <= self._max_nbytes for total in nbytes) - 1)
        return last_first[:n], (head + ", ".join(rows[:n]) + tail).encode()
