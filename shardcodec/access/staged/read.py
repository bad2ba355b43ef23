# read.py - parts of many objects into one array, where codecs take part that are not native
# SPDX-License-Identifier: MIT
"""The engine's `read` for opaque chains; see `chunks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import native
from ...errors import ShardError
from ..chunk_regions import Cuts, cuts_of
from ..placement import ABSENT
from ..regions import Parts
from .chunks import MAX_POSITIONS, Array, ChunkCodecs, Piece, decoded, decoded_nbytes, spread, whole_object

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
) -> tuple[list[int], dict[str, int]]:
    """Read parts of many objects; as the engine's `read`, with `out` an array of any dtype.

    Raises
    ------
    CodecError
        A codec fails, with whatever exception of its own, which is the cause.
    """
    reading = _Reading(out, axes, staging_nbytes, n_threads, cancel)
    limits = {"max_gap_nbytes": max_gap_nbytes, "allow_in_index": allow_in_index}
    for number, (chain, source, parts) in enumerate(plan):
        try:
            reading.add(number, chain, source, parts, limits)
        except ShardError as error:
            error.shard = number
            reading.forget(number)
            reading.decode_all()  # what is wrong with an object before this one counts more
            raise
    reading.decode_all()
    return reading.missing, {}


class _Reading:
    """A read under way: pieces wait until there are enough for all threads."""

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
        """Fetch what is wanted of an object, and decode when enough has come together."""
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
        positions = self._present(shard, chain, cuts, chain.stage)
        while len(positions):
            positions = positions[self._fetch(item, chain.stage, shard, positions, cuts, limits) :]
        shard.close()

    def _fetch(
        self, item: int, codecs: ChunkCodecs, shard: Any, positions: Array, cuts: Cuts, limits: dict[str, Any]
    ) -> int:
        """Fetch inner chunks, as many as there is room for; return how many. Those that are elsewhere are left out."""
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

    def _present(self, shard: Any, chain: Chain, cuts: Cuts, codecs: ChunkCodecs) -> Any:
        """Positions of inner chunks that are there; the others get the fill value."""
        entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        shard.entries(entries)
        positions = cuts.positions()
        wanted = entries[positions.astype(np.intp)]
        absent = (wanted == ABSENT).all(axis=1)
        if not shard.fills_absent:
            absent |= wanted[:, 1] == 0  # in no range, or in every one
        else:
            if absent.all():
                cuts.fill(None, self.out, codecs.fill)
            else:
                for position in positions[absent].tolist():
                    cuts.fill(position, self.out, codecs.fill)
        return positions[~absent]

    def _fill_missing(self, item: int, cuts: Cuts, codecs: ChunkCodecs) -> None:
        cuts.fill(None, self.out, codecs.fill)
        self.missing.append(item)

    def forget(self, item: int) -> None:
        """Drop the pieces of one object."""
        self.pieces = [piece for piece in self.pieces if piece.item != item]

    def decode_all(self) -> None:
        """Decode the pieces that wait and put them where they belong."""
        pieces, self.pieces, self.waiting_nbytes = self.pieces, [], 0
        if not pieces:
            return
        codecs = pieces[0].codecs
        nbytes = decoded_nbytes(pieces[0].cuts.chunk_shape, codecs)

        def decode_run(begin: int, end: int) -> None:
            run = pieces[begin:end]
            for piece, chunk in zip(run, decoded(run, codecs), strict=True):
                piece.cuts.scatter(piece.position or 0, chunk, self.out)

        spread(len(pieces), decode_run, codecs, nbytes, self.half_nbytes, self.n_threads, self.cancel)
