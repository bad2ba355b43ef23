# read.py - read parts of many objects with codecs that are not native
# SPDX-License-Identifier: MIT
"""The counterpart of the engine's `read` for opaque chains; see `chunks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import native
from ...errors import ShardError
from ..chunk_regions import Cuts, cuts_of
from ..placement import ABSENT
from ..regions import Parts
from .chunks import (
    MAX_POSITIONS,
    Array,
    ChunkCodecs,
    Piece,
    decode_pieces,
    decoded_nbytes,
    run_on_threads,
    whole_object,
)

if TYPE_CHECKING:
    from ..._native import Chain

__all__ = ["read"]


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
    """Read parts of many objects, as the engine's `read`, into an array of any dtype.

    Parameters
    ----------
    plan : sequence of (chain, source, parts)
        The objects and their selections. A source is what `shardcodec._native.OpenShard` takes.
    out : ndarray
        The array to read into.
    axes : sequence of int
        For each axis of an object the axis of `out`, -1 if `out` does not have it.
    staging_nbytes : int
        Bound of encoded and decoded inner chunks in memory, in bytes.
    n_threads : int
        Maximum number of threads.
    max_gap_nbytes : int
        Ranges this close or closer are read together.
    allow_in_index : bool
        As in `shardcodec.options`.
    cancel : Cancel or None
        Stops the read.
    io_depth : int
        Threads that read where a call costs a round trip; 0: as the cost suggests.
    io_latency : float or None
        Cost of a call in seconds; None: as measured.

    Returns
    -------
    missing : list of int
        Indexes of objects in the plan that do not exist.
    counters : dict
        Always empty.

    Raises
    ------
    CodecError
        A codec fails; its own exception is the cause.
    ShardFormatError, ChecksumError
        An object is damaged.
    """
    reader = _Reader(out, axes, staging_nbytes, n_threads, cancel)
    limits = {
        "max_gap_nbytes": max_gap_nbytes,
        "allow_in_index": allow_in_index,
        "io_depth": io_depth,
        "io_latency": io_latency,
    }
    for number, (chain, source, parts) in enumerate(plan):
        try:
            reader.add(number, chain, source, parts, limits)
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

    def add(self, item: int, chain: Chain, source: Any, parts: Parts, limits: dict[str, Any]) -> None:
        """Fetch the selected chunks of an object, and decode the collected pieces if there are enough."""
        if self.waiting_nbytes > self.half_nbytes or len(self.pieces) >= MAX_POSITIONS:
            self.decode_all()
        cuts = cuts_of(chain, parts, self.axes, self.out.ndim)
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
        """Fetch the first of these inner chunks, as many as fit into memory, and collect them as pieces.

        If the source holds only one range of the shard, inner chunks outside it are counted, but not collected.

        Returns
        -------
        int
            Number of positions that are done; at least one.
        """
        if 2 * self.waiting_nbytes > self.half_nbytes or len(self.pieces) >= MAX_POSITIONS:
            self.decode_all()
        some = np.ascontiguousarray(positions[:MAX_POSITIONS])
        places = np.empty((len(some), 2), dtype=np.uint64)
        memory, n = shard.fetch(some, places, max_nbytes=self.half_nbytes - self.waiting_nbytes, **limits)
        view = memoryview(memory)
        for position, (offset, nbytes) in zip(some[:n].tolist(), places[:n].tolist(), strict=True):
            if offset != ABSENT:
                self.pieces.append(Piece(item, position, cuts, codecs, view[offset : offset + nbytes]))
                self.waiting_nbytes += nbytes
        return int(n)

    def _fill_absent(self, shard: Any, chain: Chain, cuts: Cuts, codecs: ChunkCodecs) -> Array:
        """Set the elements of selected, absent inner chunks in `out` to the fill value; return the other positions.

        A large shard may be read as several sources, each with one range of its bytes. Only the source with
        `fills_absent` sets the fill value; for the others, absent and empty inner chunks are only left out.

        Returns
        -------
        ndarray of uint64
            Positions of the selected inner chunks that exist, in C order over the stored grid.
        """
        entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        shard.entries(entries)
        positions = cuts.positions()
        wanted = entries[positions.astype(np.intp)]
        absent = (wanted == ABSENT).all(axis=1)
        if not shard.fills_absent:
            absent |= wanted[:, 1] == 0  # an inner chunk of 0 bytes belongs to no range
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
        nbytes = decoded_nbytes(pieces[0].cuts.chunk_shape, codecs)

        def decode_run(begin: int, end: int) -> None:
            run = pieces[begin:end]
            for piece, chunk in zip(run, decode_pieces(run, codecs), strict=True):
                piece.cuts.scatter(piece.position or 0, chunk, self.out)

        run_on_threads(len(pieces), decode_run, codecs, nbytes, self.half_nbytes, self.n_threads, self.cancel)
