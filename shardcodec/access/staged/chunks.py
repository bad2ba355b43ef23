# chunks.py - chunks through codecs that are not native: what reading and writing share
# SPDX-License-Identifier: MIT
"""Staged work.

The engine finds inner chunks, checks the index and its entries, fetches, and puts new shards together, whatever the
codecs. What is left for Python is one inner chunk at a time: its codecs, and a copy by numpy.

    native    index, entries --fetch--> arena |                      | --> [carried | new chunks | index], replaced
    Python                                    | codecs, scatter/gather |    by an atomic rename

Encoded bytes wait in an arena of bounded size, so memory is bounded however much is asked for: `staging_nbytes`, half
for what is encoded, half for what is decoded, but always one chunk for a thread.

`read.read` and `write.write` take what the engine's `read` and `write` take.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from ... import native
from ...errors import CodecError, ShardError
from ...storage.files import open_file
from ..chunk_regions import Cuts

__all__ = [
    "MAX_POSITIONS",
    "Array",
    "ChunkCodecs",
    "Piece",
    "codec_error",
    "decoded",
    "decoded_nbytes",
    "is_staged",
    "spread",
    "whole_object",
]

Array = np.ndarray[Any, Any]

# Positions that are looked at in one call; bounds what is not counted in bytes.
MAX_POSITIONS = 1 << 14

# A thread more is worth it for so many decoded bytes.
NBYTES_PER_THREAD = 128 << 10


class ChunkCodecs(Protocol):
    """What encodes the chunks of an opaque chain (its `stage`).

    Attributes
    ----------
    fill : ndarray
        The fill value, of rank 0 and of the dtype that chunks are decoded to.
    one_by_one : bool
        Whether `decode` and `encode` are for any thread and one chunk a call; if not, they are called once for many
        chunks, and never on the thread of an event loop.
    """

    @property
    def fill(self) -> Array: ...

    @property
    def one_by_one(self) -> bool: ...

    def decode(self, chunks: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        """Decode buffers, each to an array that is to have a certain shape; it is checked afterwards."""

    def encode(self, chunks: Sequence[Array], write_empty: bool) -> list[Any]:
        """Encode arrays to buffers; None for one that the codecs leave out."""

    def is_fill(self, chunk: Array) -> bool:
        """Tell whether a chunk is nothing but fill value."""


def is_staged(items: Sequence[Any]) -> bool:
    """Whether the chains of a batch (of one array, so all or none) are opaque."""
    return bool(items) and items[0].chain.stage is not None


# ---- chunks


class Piece(NamedTuple):
    """An encoded chunk, and what to do with it. Position None: the object is the chunk."""

    item: int
    position: int | None
    cuts: Cuts
    codecs: ChunkCodecs
    data: Any


def decoded(run: Sequence[Piece], codecs: ChunkCodecs) -> list[Array]:
    """Decode some pieces, and check that they are chunks."""
    shapes = [piece.cuts.shape_at(piece.position) for piece in run]
    try:
        chunks = codecs.decode([piece.data for piece in run], shapes)
    except Exception as error:
        if len(run) == 1:
            raise codec_error(error, run[0].item, run[0].position) from error
        return [decoded([piece], codecs)[0] for piece in run]  # one by one: which is it?
    for piece, shape, chunk in zip(run, shapes, chunks, strict=True):
        if chunk.shape != shape:
            wrong = ValueError(f"decoded to shape {chunk.shape} where {shape} is due")
            raise codec_error(wrong, piece.item, piece.position)
    return chunks


def codec_error(error: Exception, item: int, position: int | None) -> Exception:
    """What went wrong in a codec, with its place. Errors that are no matter of data stay what they are.

    As does the kind of those of the engine about the chunk itself, which name no shard of their own.
    """
    if isinstance(error, MemoryError | OSError):
        return error
    place = {"shard": item, "entry": position}
    if isinstance(error, ShardError) and error.shard is None:
        return type(error)(error.message, **(error.context | place))
    numbers = error.context if isinstance(error, ShardError) else {}
    return CodecError(f"{type(error).__name__}: {error}", **(numbers | place))


def whole_object(source: Any) -> memoryview | None:
    """The bytes of an object; None when there is none."""
    if source is None:
        return None
    if isinstance(source, int):  # a descriptor that somebody else closes
        with open(source, "rb", closefd=False) as file:
            file.seek(0)
            return memoryview(file.read())
    if not isinstance(source, str):
        return memoryview(source).cast("B")
    if (found := open_file(source)) is None:
        return None
    with found as file:
        return memoryview(file.read())


# ---- threads


def decoded_nbytes(shape: Sequence[int], codecs: ChunkCodecs) -> int:
    """Bytes of a decoded chunk; of elements of variable length only what holds them."""
    return int(math.prod(shape) * codecs.fill.dtype.itemsize)


def refuse_cancelled(cancel: Any) -> None:
    """Raise `Cancelled` when whoever waits has told us to stop."""
    if cancel is not None and cancel.stopped:
        raise native.load().Cancelled


def spread(
    n: int,
    work: Callable[[int, int], None],
    codecs: ChunkCodecs,
    chunk_nbytes: int,
    limit_nbytes: int,
    n_threads: int,
    cancel: Any,
) -> None:
    """Do `work(begin, end)` for chunks 0 to n - 1: one by one on threads, or many at a time, as the codecs want it.

    Of several failures the one of the lowest chunk is raised: chunks are taken in order, and those before a failing
    one are seen through.
    """
    at_once = max(1, limit_nbytes // max(1, chunk_nbytes))
    if not codecs.one_by_one:
        for begin in range(0, n, at_once):
            refuse_cancelled(cancel)
            work(begin, min(n, begin + at_once))
        return
    failures: dict[int, BaseException] = {}
    numbers = iter(range(n))
    mutex = threading.Lock()

    def take() -> int | None:
        with mutex:
            return None if failures else next(numbers, None)

    def work_off() -> None:
        while (i := take()) is not None:
            try:
                refuse_cancelled(cancel)
                work(i, i + 1)
            except BaseException as error:  # noqa: BLE001  # it is raised in the calling thread
                failures[i] = error

    n_threads = min(n_threads, n, at_once, 1 + n * chunk_nbytes // NBYTES_PER_THREAD)
    if n_threads > 1:
        with ThreadPoolExecutor(n_threads - 1, thread_name_prefix="shardcodec") as pool:
            for _ in range(n_threads - 1):
                pool.submit(work_off)
            work_off()
    else:
        work_off()
    if failures:
        raise failures[min(failures)]
