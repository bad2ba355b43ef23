"""Rows of who reads small boxes by the thousand: handles without a zarr array, with and without a cache of indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import data
import numpy as np
import suite
from data import Array, Box
from peers import Peer
from suite import Context, Row

GROUP = "loader"
CACHED = "cached index"

# Those whose caches trust a file that they have seen once.
TRUSTING = ("open_array, immutable", "zarrista, cached index")
YARDSTICKS = ("one pread", "empty pipeline")


@dataclass(frozen=True)
class ReadWarm(suite.Read):
    """As `Read`, on a handle that has read all boxes twice: what a peer keeps between calls, it has."""

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        array = super().prepare(context, peer, number)
        for _ in range(2):
            super().operate(peer, array)
        return array


@dataclass(frozen=True)
class ReadCached(ReadWarm):
    """As `ReadWarm`, where caches of one kind are compared: those that look at the file each time, or those that do not."""

    looks: bool = True

    def takes(self, peer: Peer) -> bool:
        return peer.name in YARDSTICKS or (peer.name in TRUSTING) != self.looks

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        return {} if peer.name == "empty pipeline" else super().check(context, peer)


@dataclass(frozen=True)
class ReadMany(Row):
    """Boxes of one shape, all in one array."""

    boxes: tuple[Box, ...] = ()

    def expected(self, context: Context) -> Array:
        values = context.values(self.case)
        return np.stack([values[box] for box in self.boxes])

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        suite.assert_equal(peer, self.operate(peer, self.prepare(context, peer, 0)), self.expected(context))
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        return peer.open(context.source(self.case), self.case)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        return peer.read_many(prepared, self.boxes)

    @property
    def nbytes(self) -> int:
        """Bytes of all boxes."""
        one = np.prod([s.stop - s.start for s in self.boxes[0]])
        return int(one) * len(self.boxes) * np.dtype(self.case.dtype).itemsize


def rows(sizes: Any) -> list[Row]:
    """One random inner chunk, planes, a thousand boxes askew, one element behind a large index."""
    found: list[Row] = []
    for codec in ("raw", "zstd 1"):
        case = data.big(sizes.edge).with_codec(codec)
        chunks = suite.random_boxes(case, 32, 200, aligned=True)
        found.append(ReadWarm(GROUP, f"one inner chunk, {codec}", case, chunks))
        n = 1000 if sizes is suite.FULL else 50
        found += [
            ReadWarm(GROUP, f"plane across axis {axis}, {codec}", case, suite.planes(case, axis, 5))
            for axis in range(3)
        ]
        found.append(ReadMany(GROUP, f"{n} boxes of 40^3, {codec}", case, suite.random_boxes(case, 40, n)))
    case = data.line(sizes.n_chunks)
    at = 3 * case.shape[0] // 7
    element = (slice(at, at + 1),)
    again = (element,) * 25
    for how, looks in (("checked each time", True), ("trusted", False)):
        name = f"one element of {sizes.n_chunks:,} inner chunks, index {how}"
        found.append(ReadCached(CACHED, name, case, again, looks=looks))
    return found
