# rewrite.py - a new shard from encoded inner chunks of an old one
# SPDX-License-Identifier: MIT
"""Copy encoded inner chunks from one shard to a new one, run by run, without decoding them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..access.inner_chunks import coordinates
from ..access.opened_shard import OpenedShard, open_object
from ..access.shard_writer import ShardWriter
from ..access.user_bytes import HeaderFooter, find
from ..errors import ConflictError, ShardFormatError, UnsupportedError
from ..format.spec import ShardSpec
from .chunk_check import ChunkCheck, Level
from .damage.index_layout import Entries, is_absent
from .damage.index_search import FoundIndex, How
from .targets import ShardTarget
from .work import MemoryShare

__all__ = [
    "ChunkSink",
    "CollectedChunks",
    "DecodedChunks",
    "UserParts",
    "copy_chunks",
    "encoded_chunks",
    "in_order_of_offset",
    "refuse_user_bytes",
    "replacing_writer",
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


class UserParts(NamedTuple):
    """Header, footer and alignment of a shard."""

    header: bytes = b""
    footer: bytes = b""
    alignment: int = 1

    @property
    def has_any(self) -> bool:
        """True if a writer has set one of them."""
        return bool(self.header or self.footer or self.alignment > 1)


def user_parts(
    view: OpenedShard, found: FoundIndex, spec: ShardSpec, shard: ShardTarget, share: MemoryShare
) -> UserParts:
    """Return header, footer and alignment of a shard whose index is in its place.

    Without a mark of a writer, bytes before the first and behind the last inner chunk are taken for header and footer, as
    every packing does. Raise `UnsupportedError` if they are larger than the memory for them.
    """
    if found.entries is None or found.how is How.ELSEWHERE or is_absent(found.entries).all():
        return UserParts()

    def read(low: int, n: int) -> bytes:
        share.check_chunk(shard.name, "header or footer", n)
        return bytes(view.range(low, n))

    where: HeaderFooter | None = find(
        found.entries, view.nbytes, spec.index_nbytes, spec.index_location == "start", read
    )
    if where is None:
        return UserParts()
    header = read(where.where.first, where.header_nbytes)
    return UserParts(header, bytes(where.footer), where.alignment)


def in_order_of_offset(places: Entries) -> list[int]:
    """Return the positions of present inner chunks in the order of their offsets."""
    where = np.flatnonzero(~is_absent(places))
    return where[np.lexsort((where, places[where, 0]))].tolist()  # type: ignore[no-any-return]


def copy_chunks(
    writer: ChunkSink,
    view: OpenedShard,
    places: Entries,
    positions: Sequence[int],
    shard: ShardTarget,
    share: MemoryShare,
) -> None:
    """Copy inner chunks to a new shard.

    Parameters
    ----------
    writer : ChunkSink
    view : OpenedShard
        The old shard.
    places : ndarray of uint64, shape (n_chunks, 2)
        Where its inner chunks are.
    positions : sequence of int
        The inner chunks to copy, in the order of the new shard.
    shard : ShardTarget
        The old shard, for errors.
    share : MemoryShare

    Raises
    ------
    UnsupportedError
        An inner chunk is larger than the memory for it.
    """
    for run, offset, nbytes in _runs(places, positions, share.block_nbytes):
        share.check_chunk(shard.name, f"inner chunk {coordinates(run[0], writer.grid_shape)}", nbytes)
        coords = [coordinates(position, writer.grid_shape) for position in run]
        writer.write_joined(coords, places[run, 1], view.range(offset, nbytes))


def _runs(
    places: Entries, positions: Sequence[int], block_nbytes: int
) -> Iterator[tuple[list[int], int, int]]:
    """Yield inner chunks that lie one after the other in the old shard, at most a block or one chunk, and their range."""
    run: list[int] = []
    first = end = 0
    for position in positions:
        offset, nbytes = (int(number) for number in places[position])
        if run and offset == end and end - first + nbytes <= block_nbytes:
            run.append(position)
            end += nbytes
            continue
        if run:
            yield run, first, end - first
        run, first, end = [position], offset, offset + nbytes
    if run:
        yield run, first, end - first


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


def replacing_writer(shard: ShardTarget, view: OpenedShard, spec: ShardSpec, user: UserParts) -> ShardWriter:
    """Return the writer of a new shard that replaces a local one, unless another writer changes that one meanwhile.

    Parameters
    ----------
    shard : ShardTarget
    view : OpenedShard
        The old shard, which stays open until the writer has committed.
    spec : ShardSpec
    user : UserParts

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


def refuse_user_bytes(shard: ShardTarget, user: UserParts) -> None:
    """Raise `UnsupportedError` if a shard has header, footer or alignment, which a replacement in a store does not keep."""
    if user.has_any:
        raise UnsupportedError(
            f"shard {shard.name!r}: expected no header, footer or alignment, which are kept in place in local files only; "
            "write a new array with `to`",
            shard=shard.name,
        )
