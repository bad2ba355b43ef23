"""Rows for arrays of Zarr v2: each chunk is a file of its own, and the codecs are those of numcodecs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import suite
from data import Case
from peers import Peer
from suite import Read, Row, Update, Write

GROUP = "zarr v2"
PEERS = ("shardcodec", "shardcodec attach", "zarr batched", "zarr fused", "tensorstore", "zarrista")

COMPRESSORS: dict[str, Any] = {
    "raw": None,
    "zstd 1": {"id": "zstd", "level": 1},
    "blosc lz4 shuffle": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
}


@dataclass(frozen=True)
class CaseV2(Case):
    """The same field in format 2; `shard` and `inner` are the chunk."""

    def metadata(self) -> dict[str, Any]:
        """Return the .zarray."""
        return {
            "zarr_format": 2,
            "shape": list(self.shape),
            "chunks": list(self.inner),
            "dtype": np.dtype(self.dtype).str,
            "compressor": COMPRESSORS[self.codec],
            "fill_value": 0,
            "order": "C",
            "filters": None,
        }

    def create(self, path: Path) -> Path:
        path.mkdir(parents=True)
        (path / ".zarray").write_text(json.dumps(self.metadata()))
        return path

    def slug(self) -> str:
        return f"v2-{super().slug()}"


@dataclass(frozen=True)
class ReadV2(Read):
    """Takes the peers that read format 2."""

    def takes(self, peer: Peer) -> bool:
        return peer.name in PEERS


@dataclass(frozen=True)
class WriteV2(Write):
    """Takes the peers that write format 2."""

    def takes(self, peer: Peer) -> bool:
        return peer.name in PEERS


@dataclass(frozen=True)
class UpdateV2(Update):
    """Takes the peers that write format 2."""

    def takes(self, peer: Peer) -> bool:
        return peer.name in PEERS


def rows(edge: int) -> list[Row]:
    """Return full reads and writes, reads of boxes, and an update, of a uint16 cube in chunks of an eighth of its edge."""
    chunk = (edge // 8,) * 3
    found: list[Row] = []
    for codec in COMPRESSORS:
        case = CaseV2((edge,) * 3, chunk, chunk, "uint16", codec)
        box = tuple(slice(edge // 2 - 20, edge // 2 + 20) for _ in range(3))
        found += [
            ReadV2(GROUP, f"v2, read, {codec}", case, (case.whole,)),
            WriteV2(GROUP, f"v2, write, {codec}", case),
            ReadV2(GROUP, f"v2, box of 40^3, {codec}", case, suite.random_boxes(case, 40, 50)),
            UpdateV2(GROUP, f"v2, box of 40^3 in 8 chunks written, {codec}", case, box),
        ]
    return found
