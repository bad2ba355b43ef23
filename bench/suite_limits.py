"""Rows that are compared with a limit: the cost of zarr itself, filling memory, one thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import data
import numpy as np
import suite
from data import Array, Box, Case
from peers import Peer
from suite import Context, Read, Row

GROUP = "limits"


@dataclass(frozen=True)
class ReadSparse(Read):
    """Reads an array of which every hundredth inner chunk exists."""

    def takes(self, peer: Peer) -> bool:
        return peer.name not in ("floor", "empty pipeline", "shardcodec one thread")

    def _path(self, context: Context) -> Path:
        slug = f"sparse-{self.case.slug()}"
        if slug not in context.sources:
            path = self.case.create(context.folder / slug)
            with context.writer.turn():
                context.writer.write(
                    context.writer.open(path, self.case), self.case.whole, self._values(context)
                )
            context.sources[slug] = path
        return context.sources[slug]

    def _values(self, context: Context) -> Array:
        values = np.zeros(self.case.shape, self.case.dtype)
        for box in _every_hundredth(self.case):
            values[box] = context.values(self.case)[box] | np.array(1, self.case.dtype)
        return values

    def check(self, context: Context, peer: Peer) -> dict[str, int]:
        if peer.name == "fill":
            return {}
        suite.assert_equal(
            peer, peer.read(peer.open(self._path(context), self.case), self.case.whole), self._values(context)
        )
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> object:
        return peer.open(self._path(context), self.case)


def _every_hundredth(case: Case) -> list[Box]:
    grid = tuple(size // inner for size, inner in zip(case.shape, case.inner, strict=True))
    chosen = np.random.default_rng(9).choice(
        int(np.prod(grid)), max(1, int(np.prod(grid)) // 100), replace=False
    )
    return [
        tuple(slice(int(i) * n, (int(i) + 1) * n) for i, n in zip(position, case.inner, strict=True))
        for position in zip(*np.unravel_index(chosen, grid), strict=True)
    ]


@dataclass(frozen=True)
class Against(Read):
    """Takes only shardcodec and the named peers."""

    others: tuple[str, ...] = ()

    def takes(self, peer: Peer) -> bool:
        return peer.name == "shardcodec" or peer.name in self.others

    def check(self, context: Context, peer: Peer) -> dict[str, int]:
        return {} if peer.name == "empty pipeline" else super().check(context, peer)


def rows(edge: int) -> list[Row]:
    """Return the rows: one inner chunk and zarr without any work; two threads and one; an almost empty array."""
    found: list[Row] = []
    for codec in ("raw", "zstd 1"):
        case = data.big(edge).with_codec(codec)
        boxes = suite.random_boxes(case, 32, 200, aligned=True)
        found.append(Against(GROUP, f"one inner chunk, {codec}", case, boxes, ("empty pipeline", "floor")))
    for codec in ("zstd 1", "gzip 1"):
        case = data.big(edge).with_codec(codec)
        found.append(Against(GROUP, f"all of it, {codec}", case, (case.whole,), ("shardcodec one thread",)))
    sparse = data.big(edge).with_codec("zstd 1")
    found.append(ReadSparse(GROUP, "99 % missing, zstd 1", sparse, (sparse.whole,)))
    return found
