"""Rows of many small writes to one shard: each alone, and gathered so that the shard is written once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import data
from data import Array, Box
from peers import Peer
from suite import Row, Write

GROUP = "small writes"


@dataclass(frozen=True)
class SmallWrites(Write):
    """Writes every inner chunk of an array, one after another, into an empty folder; the time is per array."""

    gathered: bool = True

    def takes(self, peer: Peer) -> bool:
        return peer.can_gather

    def boxes(self) -> list[Box]:
        starts = itertools.product(
            *(range(0, n, c) for n, c in zip(self.case.shape, self.case.inner, strict=True))
        )
        return [
            tuple(slice(a, a + c) for a, c in zip(start, self.case.inner, strict=True)) for start in starts
        ]

    def operate(self, peer: Peer, prepared: Any) -> Any:
        _, array, values = prepared
        if not self.gathered:
            self._write(peer, array, values)
            return
        with peer.gathering(array) as target:
            self._write(peer, target, values)

    def _write(self, peer: Peer, array: Any, values: Array) -> None:
        for box in self.boxes():
            peer.write(array, box, values[box])


def rows(edge: int) -> list[Row]:
    """Return the rows: 512 inner chunks of 32^3 in one shard of 256^3, if `edge` is 512."""
    extent = edge // 2
    case = data.Case((extent,) * 3, (extent,) * 3, (extent // 8,) * 3, "uint16", "zstd 1")
    return [
        SmallWrites(GROUP, "512 inner chunks, gathered, zstd 1", case),
        SmallWrites(GROUP, "512 inner chunks, one by one, zstd 1", case, gathered=False),
    ]
