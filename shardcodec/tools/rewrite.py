# rewrite.py - a new shard from encoded inner chunks of an old one
# SPDX-License-Identifier: MIT
"""Copy encoded inner chunks from one shard to a new one, run by run, without decoding them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import native
from ..access.inner_chunks import coordinates
from ..access.opened_shard import OpenedShard
from ..access.shard_layout import header_and_footer
from ..access.shard_object import open_object
from ..access.shard_writer import ShardWriter
from ..errors import ConflictError, ShardFormatError, UnsupportedError
from ..format.spec import ShardSpec
from .backup import old_object
from .chunk_check import ChunkCheck, Level
from .damage.index_layout import Entries, is_absent
from .damage.index_search import IndexStatus, StoredIndex
from .memory import MemoryShare
from .targets import ShardTarget

__all__ = [
    "ChunkSink",
    "CollectedChunks",
    "CopiedChunks",
    "DecodedChunks",
    "ShardUserBytes",
    "copy_chunks",
    "encoded_chunks",
    "in_order_of_offset",
    "refuse_user_bytes",
    "replacing_writer",
    "runs",
    "stored_runs",
    "user_parts",
    "write_others",
]


class ChunkSink(Protocol):
    """Takes the encoded inner chunks of a new shard, as a `ShardWriter` does."""

    @property
    def grid_shape(self) -> tuple[int, ...]: ...

    def write_joined(self, coords: Any, sizes: Any, data: Any) -> None: ...

    def write_encoded(self, coords: Any, data: Any) -> None: ...


class DecodedChunks:
    """Passes encoded inner chunks to a writer, each after it was decoded: a shard with one that does not decode is not written.

    Parameters
    ----------
    writer : ChunkSink
    check : ChunkCheck
    shard : str
        Name of the shard, for errors.
    """

    def __init__(self, writer: ChunkSink, check: ChunkCheck, shard: str) -> None:
        self._writer, self._check, self._shard = writer, check, shard

    @property
    def grid_shape(self) -> tuple[int, ...]:
        return self._writer.grid_shape

    def write_joined(self, coords: Any, sizes: Any, data: Any) -> None:
        view, at = memoryview(data).cast("B"), 0
        for where, size in zip(coords, sizes, strict=True):
            self._decode(where, view[at : at + int(size)])
            at += int(size)
        self._writer.write_joined(coords, sizes, data)

    def write_encoded(self, coords: Any, data: Any) -> None:
        self._decode(coords, data)
        self._writer.write_encoded(coords, data)

    def _decode(self, coords: Sequence[int], data: Any) -> None:
        position = int(np.ravel_multi_index(tuple(coords), self.grid_shape))
        problem = self._check.problem(position, data, Level.DECODE)
        if problem is not None:
            raise ShardFormatError(
                f"shard {self._shard!r}: expected to copy a whole inner chunk {tuple(coords)}, but now it is damaged: "
                f"{problem.detail}; nothing was written",
                shard=self._shard,
                entry=position,
            )


class CollectedChunks:
    """Keeps encoded inner chunks in memory.

    Attributes
    ----------
    grid_shape : tuple of int
    chunks : dict
        From position to bytes.
    """

    def __init__(self, grid_shape: tuple[int, ...]) -> None:
        self.grid_shape = grid_shape
        self.chunks: dict[int, bytes] = {}

    def write_joined(self, coords: Any, sizes: Any, data: Any) -> None:
        view, at = memoryview(data).cast("B"), 0
        for where, size in zip(coords, sizes, strict=True):
            self.write_encoded(where, view[at : at + int(size)])
            at += int(size)

    def write_encoded(self, coords: Any, data: Any) -> None:
        self.chunks[int(np.ravel_multi_index(tuple(coords), self.grid_shape))] = bytes(data)


class ShardUserBytes(NamedTuple):
    """Header, footer and alignment of a shard."""

    header: bytes = b""
    footer: bytes = b""
    alignment: int = 1

    @property
    def has_any(self) -> bool:
        """True if a writer has set one of them."""
        return bool(self.header or self.footer or self.alignment > 1)


def user_parts(
    view: OpenedShard, found: StoredIndex, spec: ShardSpec, shard: ShardTarget, share: MemoryShare
) -> ShardUserBytes:
    """Return header, footer and alignment of a shard whose index is in its place.

    Without a mark of a writer, bytes before the first and behind the last inner chunk are taken for header and footer, as
    every packing does. Raise `UnsupportedError` if they are larger than the memory for them.
    """
    if found.entries is None or found.status is IndexStatus.ELSEWHERE or is_absent(found.entries).all():
        return ShardUserBytes()

    def read(low: int, n: int) -> bytes:
        share.check_fits(shard.name, "header or footer", n)
        return bytes(view.range(low, n))

    where = header_and_footer(spec, found.entries, view.nbytes, read)
    if where is None:
        return ShardUserBytes()
    header = read(where.where.first, where.header_nbytes)
    return ShardUserBytes(header, bytes(where.footer), where.alignment)


def in_order_of_offset(places: Entries) -> list[int]:
    """Return the positions of present inner chunks in the order of their offsets."""
    where = np.flatnonzero(~is_absent(places))
    return where[np.lexsort((where, places[where, 0]))].tolist()  # type: ignore[no-any-return]


# Encoded inner chunks that lie side by side: their coordinates in the new shard, their sizes, and their bytes.
ChunkRun = tuple[Any, Any, Any]


class CopiedChunks(NamedTuple):
    """Number and bytes of inner chunks that were copied; `crc` is the checksum of these bytes in the order of the new shard."""

    n_chunks: int
    nbytes: int
    crc: int | None


def copy_chunks(writer: ChunkSink, chunks: Iterable[ChunkRun], *, wants_crc: bool = False) -> CopiedChunks:
    """Copy encoded inner chunks to a new shard, in the order of the runs; nothing is decoded."""
    n = nbytes = crc = 0
    for coords, sizes, data in chunks:
        writer.write_joined(coords, sizes, data)
        n, nbytes = n + len(coords), nbytes + memoryview(data).nbytes
        if wants_crc:
            crc = native.load().crc32c(data, crc)
    return CopiedChunks(n, nbytes, crc if wants_crc else None)


def runs(places: np.ndarray[Any, Any], max_nbytes: int) -> Iterator[slice]:
    """Yield runs of consecutive ranges that follow one another without a gap.

    Parameters
    ----------
    places : ndarray of int, shape (n, 2)
        Offsets and sizes in bytes, in any order, which is kept.
    max_nbytes : int
        Bytes of a run; a larger range is a run of its own.
    """
    ends = places.sum(axis=1, dtype=places.dtype)
    breaks = np.flatnonzero(places[1:, 0] != ends[:-1]) + 1
    for low, high in itertools.pairwise([0, *breaks.tolist(), len(places)]):
        first = low
        while first < high:
            most = places.dtype.type(int(places[first, 0]) + max_nbytes)
            last = first + max(1, int(np.searchsorted(ends[first:high], most, side="right")))
            yield slice(first, last)
            first = last


def stored_runs(
    read: Callable[[int, int], Any],
    places: Entries,
    positions: Sequence[int],
    grid_shape: tuple[int, ...],
    name: str,
    share: MemoryShare,
) -> Iterator[ChunkRun]:
    """Yield inner chunks of a shard in the order of the given positions, read at most a block, or one chunk, at a time.

    `read` returns a range of the shard, and `name` is that of the shard, for errors.

    Raises
    ------
    UnsupportedError
        An inner chunk is larger than the memory for it.
    UnreadableObject
        The old shard cannot be read.
    """
    wanted = places[positions]
    for run in runs(wanted, share.block_nbytes):
        coords = [coordinates(position, grid_shape) for position in positions[run]]
        nbytes = int(wanted[run, 1].sum())
        share.check_fits(name, f"inner chunk {coords[0]}", nbytes)
        with old_object():
            data = read(int(wanted[run.start, 0]), nbytes)
        yield coords, wanted[run, 1], data


def write_others(writer: ChunkSink, chunks: Iterable[tuple[int, Any]]) -> None:
    """Write encoded inner chunks from elsewhere: pairs of position and bytes."""
    for position, data in chunks:
        writer.write_encoded(coordinates(position, writer.grid_shape), data)


def encoded_chunks(view: OpenedShard, places: Entries, positions: Sequence[int]) -> Mapping[int, bytes]:
    """Return inner chunks as bytes in memory."""
    found = {}
    for position in positions:
        offset, nbytes = (int(number) for number in places[position])
        found[position] = bytes(view.range(offset, nbytes))
    return found


def replacing_writer(
    shard: ShardTarget, view: OpenedShard, spec: ShardSpec, user: ShardUserBytes
) -> ShardWriter:
    """Return the writer of a new shard that replaces a local one, unless another writer changes that one meanwhile.

    Parameters
    ----------
    shard : ShardTarget
    view : OpenedShard
        The old shard, which stays open until the writer has committed.
    spec : ShardSpec
    user : ShardUserBytes

    Raises
    ------
    ConflictError
        From `ShardWriter.commit`: another writer has changed the shard; it is not replaced.
    """

    def confirm() -> None:
        now = open_object(shard.array.store, shard.key)
        state = b"" if now is None else now.generation
        if now is not None:
            now.close()
        if state != view.generation:
            raise ConflictError(
                f"shard {shard.name!r}: another writer has changed it meanwhile; it was not replaced. Stop all writers and "
                "run the tool again",
                shard=shard.name,
                expected=view.generation,
                actual=state,
            )

    return ShardWriter(shard.place.path, spec, durability="fsync", confirm=confirm, **user._asdict())


def refuse_user_bytes(shard: ShardTarget, user: ShardUserBytes) -> None:
    """Raise `UnsupportedError` if a shard has header, footer or alignment, which a replacement in a store does not keep."""
    if user.has_any:
        raise UnsupportedError(
            f"shard {shard.name!r}: expected no header, footer or alignment, which are kept in place in local files only; "
            "write a new array with `to`",
            shard=shard.name,
        )
