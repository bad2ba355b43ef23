"""Rows of data loaders, which read thousands of small boxes: handles without zarr.Array, with and without index cache."""

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

# Peers whose caches do not inspect a file again.
TRUSTING = ("open_array, immutable", "zarrista, cached index")
YARDSTICKS = ("one pread", "empty pipeline")


@dataclass(frozen=True)
class ReadWarm(suite.Read):
    """As `Read`, on a handle that has read all boxes twice, so all caches between calls are filled."""

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        array = super().prepare(context, peer, number)
        for _ in range(2):
            super().operate(peer, array)
        return array


@dataclass(frozen=True)
class ReadCached(ReadWarm):
    """As `ReadWarm`, for caches of one kind: those that inspect the file at each read, or those that do not."""

    looks: bool = True

    def takes(self, peer: Peer) -> bool:
        return peer.name in YARDSTICKS or (peer.name in TRUSTING) != self.looks

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        return {} if peer.name == "empty pipeline" else super().check(context, peer)


@dataclass(frozen=True)
class ReadMany(Row):
    """Reads boxes of one shape into one array."""

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
        """Return the size of all boxes in bytes."""
        one = np.prod([s.stop - s.start for s in self.boxes[0]])
        return int(one) * len(self.boxes) * np.dtype(self.case.dtype).itemsize


def rows(sizes: Any) -> list[Row]:
    """Return the rows: one random inner chunk, planes, a thousand unaligned boxes, one element behind a large index."""
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
