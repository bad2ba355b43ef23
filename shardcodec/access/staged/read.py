# read.py - read with codecs that are not native; what staged reading and writing share
# SPDX-License-Identifier: MIT
"""Read with codecs that are not native; what staged reading and writing share.

The counterpart of the engine's `read` for opaque chains; see `chunks`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ... import native
from ...errors import CodecError, ElementTypeError, ShardError, is_of_signal_handler
from ...storage.files import open_file
from ...storage.worker_threads import WorkerThreads
from ..chunk_regions import Cuts, cuts_of
from ..placement import ABSENT
from ..regions import Selection

if TYPE_CHECKING:
    from ..._native import Chain


__all__ = [
    "MAX_POSITIONS",
    "Array",
    "ChunkCodecs",
    "ManyChunkCodecs",
    "Piece",
    "check_cancelled",
    "codec_error",
    "decode_pieces",
    "decoded_nbytes",
    "read",
    "run_on_threads",
    "whole_object",
]


# Staged work: the shard is native, its inner chunks go through Python codecs.
#
# The engine finds inner chunks, checks the index and its entries, reads bytes, and assembles new shards, for any codecs.
# Python does the rest, inner chunk by inner chunk: it calls the codecs and copies elements with numpy.
#
#     native    index, entries --fetch--> arena |                      | --> [carried | new chunks | index], replaced
#     Python                                    | codecs, scatter/gather |    by an atomic rename
#
# Encoded bytes are in an arena of bounded size, so memory is bounded for requests of any size: `staging_nbytes`, one half
# for encoded and one half for decoded bytes, and at least one chunk for each thread.
#
# `read.read` and `write.write` here have the parameters of the engine's `read` and `write`.

Array = np.ndarray[Any, Any]

# Maximum number of positions in one call; it bounds memory that is not counted in bytes.
MAX_POSITIONS = 1 << 14

# One more thread is used for each of this number of decoded bytes, or if the codecs need this time for the other chunks.
NBYTES_PER_THREAD = 128 << 10
SECONDS_PER_THREAD = 2e-3


class ChunkCodecs(Protocol):
    """The codecs of the chunks of an opaque chain: a chain with codecs that have no native code. `Chain.stage` holds them.

    fill: the fill value, of rank 0 with the dtype of the array. input_dtype: dtype, with byte order, in which `encode` reads a
    chunk. one_by_one: True: `decode` and `encode` can be called in any thread, with one chunk per call. False: they are called
    once for many chunks, and never in the thread of an event loop.
    """

    @property
    def fill(self) -> Array: ...

    @property
    def input_dtype(self) -> np.dtype[Any]: ...

    @property
    def one_by_one(self) -> bool: ...

    def decode(self, chunks: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        """Decode buffers to arrays of these shapes. The caller checks the shapes of the results."""

    def encode(self, chunks: Sequence[Array], write_empty: bool) -> list[Any]:
        """Encode arrays to buffers; None for a chunk that the codecs do not store."""

    def is_fill(self, chunk: Array) -> bool:
        """Return True if all elements of a chunk equal the fill value."""


@runtime_checkable
class ManyChunkCodecs(ChunkCodecs, Protocol):
    """Codecs that decode many chunks at the same time, directly into an array."""

    def decode_to(self, pieces: Sequence[Piece], out: Array, n_threads: int, cancel: Any) -> None:
        """Decode pieces and put their selected elements into the array; errors name the piece, as those of `decode_pieces`."""


class Piece(NamedTuple):
    """An encoded chunk that waits to be decoded.

    item: number of the item in the plan. position: that of the inner chunk in its shard; None if the object is the chunk. cuts:
    the selection of the object.
    """

    item: int
    position: int | None
    cuts: Cuts
    codecs: ChunkCodecs
    data: Any


def decode_pieces(run: Sequence[Piece], codecs: ChunkCodecs) -> list[Array]:
    """Decode pieces with one call of the codecs, and check the shapes of the results, which are in the order of `run`.

    After an error, the pieces are decoded one by one to find the one that fails. ``.shard`` of the error is the number of the
    item in the plan, ``.entry`` the position of the inner chunk.
    """
    shapes = [piece.cuts.shape_at(piece.position) for piece in run]
    try:
        chunks = codecs.decode([piece.data for piece in run], shapes)
    except Exception as error:
        if is_of_signal_handler(error):
            raise
        if len(run) == 1:
            raise codec_error(error, run[0].item, run[0].position) from error
        # one by one, to find the chunk that fails
        return [decode_pieces([piece], codecs)[0] for piece in run]
    for piece, shape, chunk in zip(run, shapes, chunks, strict=True):
        if chunk.shape != shape:
            wrong = ValueError(f"expected a chunk of shape {shape}, got {chunk.shape} from the codecs")
            raise codec_error(wrong, piece.item, piece.position)
    return chunks


def codec_error(error: Exception, item: int, position: int | None) -> Exception:
    """Return the error to raise after a codec failed on a chunk; it names the chunk. The caller chains it with ``raise ... from``.

    That is `error` itself for MemoryError and OSError, because the data are not their cause; for an error of shardcodec that
    names no shard yet, a new error of its class; else a CodecError, which is a TypeError too if `error` is
    one. `item` and `position` become its ``.shard`` and ``.entry``.
    """
    if isinstance(error, MemoryError | OSError):
        return error
    place = {"shard": item, "entry": position}
    if isinstance(error, ShardError) and error.shard is None:
        return type(error)(error.message, **(error.context | place))
    numbers = error.context if isinstance(error, ShardError) else {}
    kind = ElementTypeError if isinstance(error, TypeError) else CodecError
    return kind(f"{type(error).__name__}: {error}", **(numbers | place))


def whole_object(source: Any) -> memoryview | None:
    """Return all bytes of an object; None if it does not exist. A source that is a descriptor stays open."""
    if source is None:
        return None
    if isinstance(source, int):  # a file descriptor, which the caller closes
        with open(source, "rb", closefd=False) as file:
            file.seek(0)
            return memoryview(file.read())
    if not isinstance(source, str):
        return memoryview(source).cast("B")
    if (opened := open_file(source)) is None:
        return None
    with opened as file:
        return memoryview(file.read())


def decoded_nbytes(shape: Sequence[int], codecs: ChunkCodecs) -> int:
    """Return the size of a decoded chunk in bytes. Elements of variable length count as references only."""
    return int(math.prod(shape) * codecs.fill.dtype.itemsize)


def check_cancelled(cancel: Any) -> None:
    """Raise `Cancelled` if the caller has cancelled the work."""
    if cancel is not None and cancel.stopped:
        raise native.load().Cancelled


def run_on_threads(
    n: int,
    work: Callable[[int, int], None],
    codecs: ChunkCodecs,
    chunk_nbytes: int,
    limit_nbytes: int,
    n_threads: int,
    cancel: Any,
) -> None:
    """Call `work(begin, end)` until all chunks 0 to n - 1 are done: one chunk per call in threads, or many per call.

    `codecs.one_by_one` selects the form. Chunks are started in order, and those before a failing one are finished. So the
    raised error is that of the first failing chunk. limit_nbytes: bound of all chunks that are decoded at the same time; one
    chunk is always allowed. n_threads: with the calling thread.
    """
    at_once = max(1, limit_nbytes // max(1, chunk_nbytes))
    if not codecs.one_by_one:
        for begin in range(0, n, at_once):
            check_cancelled(cancel)
            work(begin, min(n, begin + at_once))
        return
    failures: dict[int, BaseException] = {}
    numbers = iter(range(n))
    mutex = threading.Lock()

    def take() -> int | None:
        with mutex:
            return None if failures else next(numbers, None)

    def run() -> None:
        while (i := take()) is not None:
            try:
                check_cancelled(cancel)
                work(i, i + 1)
            except BaseException as error:  # noqa: BLE001  # raised in the calling thread
                failures[i] = error

    n_threads = min(n_threads, n, at_once)
    n_worth = 1 + n * chunk_nbytes // NBYTES_PER_THREAD
    if n_worth == 1 < n_threads:
        # few bytes: whether a thread is worth its start depends on the codecs, so the first chunk is timed
        check_cancelled(cancel)
        before = time.perf_counter()
        work(next(numbers), 1)
        n_worth += int((n - 1) * (time.perf_counter() - before) / SECONDS_PER_THREAD)
    n_threads = min(n_threads, n_worth)
    if n_threads > 1:
        with WorkerThreads[None](n_threads - 1, "shardcodec") as threads:
            for _ in range(n_threads - 1):
                threads.submit(run)
            run()
    else:
        run()
    if failures:
        raise failures[min(failures)]


def read(
    plan: Sequence[tuple[Any, ...]],
    out: Array,
    axes: Sequence[int],
    *,
    staging_nbytes: int,
    n_threads: int = 1,
    max_gap_nbytes: int = 65536,
    allow_in_index: bool = False,
    cancel: Any = None,
    io_depth: int = 0,
    io_latency: float | None = None,
) -> tuple[list[int], dict[str, int]]:
    """Read parts of many objects, as the engine's `read`, into an array of any dtype; return positions of missing objects, and {}.

    plan: (chain, source, selection) for each object; a source is what `_native.OpenShard` takes. staging_nbytes: bound of
    encoded and decoded inner chunks in memory. io_depth: threads that read where a call costs a round trip; 0: as the cost
    suggests. io_latency: cost of a call in seconds; None: as measured. If a codec fails, its exception is the cause of the
    CodecError.
    """
    reader = _Reader(out, axes, staging_nbytes, n_threads, cancel)
    limits = {
        "max_gap_nbytes": max_gap_nbytes,
        "allow_in_index": allow_in_index,
        "io_depth": io_depth,
        "io_latency": io_latency,
    }
    for number, (chain, source, selection) in enumerate(plan):
        try:
            reader.add(number, chain, source, selection, limits)
        except ShardError as error:
            error.shard = number
            reader.forget(number)
            reader.decode_all()  # an error of an object before this one is raised instead
            raise
    reader.decode_all()
    return reader.missing, {}


class _Reader:
    """The state of one read. Pieces are collected until there are enough for all threads."""

    def __init__(
        self, out: Array, axes: Sequence[int], staging_nbytes: int, n_threads: int, cancel: Any
    ) -> None:
        self.out = out
        self.axes = axes
        self.half_nbytes = max(1, staging_nbytes // 2)
        self.n_threads = n_threads
        self.cancel = cancel
        self.missing: list[int] = []
        self.pieces: list[Piece] = []
        self.waiting_nbytes = 0

    def add(self, item: int, chain: Chain, source: Any, selection: Selection, limits: dict[str, Any]) -> None:
        """Fetch the selected chunks of an object, and decode the collected pieces if there are enough."""
        if self.waiting_nbytes > self.half_nbytes or len(self.pieces) >= MAX_POSITIONS:
            self.decode_all()
        cuts = cuts_of(chain, selection, self.axes, self.out.ndim)
        if chain.is_shard:
            self._add_shard(item, chain, source, cuts, limits)
            return
        data = whole_object(source)
        if data is None:
            self._fill_missing(item, cuts, chain.stage)
        else:
            self.pieces.append(Piece(item, None, cuts, chain.stage, data))
            self.waiting_nbytes += data.nbytes

    def _add_shard(self, item: int, chain: Chain, source: Any, cuts: Cuts, limits: dict[str, Any]) -> None:
        shard = native.load().OpenShard(chain, source)
        if shard.missing:
            self._fill_missing(item, cuts, chain.stage)
            return
        shard.check(allow_in_index=limits["allow_in_index"])
        positions = self._fill_absent(shard, chain, cuts, chain.stage)
        while len(positions):
            positions = positions[self._fetch(item, chain.stage, shard, positions, cuts, limits) :]
        shard.close()

    def _fetch(
        self, item: int, codecs: ChunkCodecs, shard: Any, positions: Array, cuts: Cuts, limits: dict[str, Any]
    ) -> int:
        """Fetch the first of these inner chunks, as many as fit into memory, and collect them as pieces; return their number.

        It is at least one. If the source holds only one range of the shard, inner chunks outside it are counted, but not
        collected.
        """
        if 2 * self.waiting_nbytes > self.half_nbytes or len(self.pieces) >= MAX_POSITIONS:
            self.decode_all()
        group = np.ascontiguousarray(positions[:MAX_POSITIONS])
        places = np.empty((len(group), 2), dtype=np.uint64)
        memory, n = shard.fetch(group, places, max_nbytes=self.half_nbytes - self.waiting_nbytes, **limits)
        view = memoryview(memory)
        for position, (offset, nbytes) in zip(group[:n].tolist(), places[:n].tolist(), strict=True):
            if offset != ABSENT:
                self.pieces.append(Piece(item, position, cuts, codecs, view[offset : offset + nbytes]))
                self.waiting_nbytes += nbytes
        return int(n)

    def _fill_absent(self, shard: Any, chain: Chain, cuts: Cuts, codecs: ChunkCodecs) -> Array:
        """Set the elements of selected, absent inner chunks in `out` to the fill value; return the other positions, in C order.

        A large shard may be read as several sources, each with one range of its bytes. Only the source with `fills_absent` sets
        the fill value; for the others, absent and empty inner chunks are only left out.
        """
        entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        shard.entries(entries)
        positions = cuts.positions()
        chosen = entries[positions.astype(np.intp)]
        absent = (chosen == ABSENT).all(axis=1)
        if not shard.fills_absent:
            absent |= chosen[:, 1] == 0  # an inner chunk of 0 bytes belongs to no range
        else:
            if absent.all():
                cuts.fill(None, self.out, codecs.fill)
            else:
                for position in positions[absent].tolist():
                    cuts.fill(position, self.out, codecs.fill)
        present: Array = positions[~absent]
        return present

    def _fill_missing(self, item: int, cuts: Cuts, codecs: ChunkCodecs) -> None:
        """Set all selected elements of an object that does not exist to the fill value, and note it as missing."""
        cuts.fill(None, self.out, codecs.fill)
        self.missing.append(item)

    def forget(self, item: int) -> None:
        """Drop the collected pieces of one object without decoding them."""
        self.pieces = [piece for piece in self.pieces if piece.item != item]

    def decode_all(self) -> None:
        """Decode the collected pieces and copy their elements to the array."""
        pieces, self.pieces, self.waiting_nbytes = self.pieces, [], 0
        if not pieces:
            return
        codecs = pieces[0].codecs
        if isinstance(codecs, ManyChunkCodecs):
            codecs.decode_to(pieces, self.out, self.n_threads, self.cancel)
            return
        nbytes = decoded_nbytes(pieces[0].cuts.chunk_shape, codecs)

        def decode_run(begin: int, end: int) -> None:
            run = pieces[begin:end]
            for piece, chunk in zip(run, decode_pieces(run, codecs), strict=True):
                piece.cuts.scatter(piece.position or 0, chunk, self.out)

        run_on_threads(len(pieces), decode_run, codecs, nbytes, self.half_nbytes, self.n_threads, self.cancel)
