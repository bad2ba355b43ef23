"""Rows of strings as AnnData has them, sharded and plain."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import data
import numpy as np
from data import Array, Case
from peers import Peer
from suite import Context, Read, Row, Write

GROUP = "codecs"
PEERS = ("shardcodec", "zarr batched", "zarr fused", "zarrs", "tensorstore", "zarrista")


@functools.lru_cache(2)
def barcodes(n: int) -> Array:
    """Return names of cells as AnnData has them: 16 letters of a sequence and the number of a sample."""
    letters = np.random.default_rng(5).choice(np.frombuffer(b"ACGT", "S1"), (n, 16))
    names = letters.reshape(-1).view("S16").astype(str)
    samples = np.arange(n) % 8 + 1
    return np.array([f"{name}-{sample}" for name, sample in zip(names, samples, strict=True)], dtype=object)


@dataclass(frozen=True)
class CaseOfText(Case):
    """Strings of any length."""

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"data_type": "string", "fill_value": ""}

    @property
    def nbytes(self) -> int:
        return sum(map(len, barcodes(self.shape[0])))

    def make_field(self) -> Array:
        return np.asarray(barcodes(self.shape[0]).astype(str))  # a file of objects would be a pickle


def as_text(array: Any) -> list[str]:
    return [str(text) for text in np.asarray(array).tolist()]


def assert_same_text(peer: Peer, actual: Any, expected: Array) -> None:
    if as_text(actual) != expected.tolist():
        raise AssertionError(f"{peer.name} gives other values")


@dataclass(frozen=True)
class ReadText(Read):
    """Reads strings, whatever numpy's type of them is."""

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        array = peer.open(context.source(self.case), self.case)
        for box in self.boxes:
            assert_same_text(peer, peer.read(array, box), barcodes(self.case.shape[0])[box])
        return {}

    @property
    def nbytes(self) -> int:
        first = self.boxes[0][0]
        return sum(map(len, barcodes(self.case.shape[0])[first]))


@dataclass(frozen=True)
class WriteText(Write):
    """Writes strings, which are Python objects."""

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        self.operate(peer, prepared)
        stored = context.read_back(prepared[0], self.case)
        assert_same_text(peer, stored, prepared[2])
        stored_nbytes = data.stored_nbytes(prepared[0])
        self.finish(prepared)
        return {"stored_nbytes": stored_nbytes}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        path, array, _ = super().prepare(context, peer, number)
        return path, array, barcodes(self.case.shape[0])


def rows(n: int) -> list[Row]:
    """Return the rows of `n` strings."""
    strings: list[Row] = []
    codecs = [{"name": "vlen-utf8"}, data.codec_chain("zstd 1", 1)[-1]]
    for layout, shard, inner in (("sharded", n // 4, n // 100), ("plain", n // 20, n // 20)):
        case = CaseOfText((n,), (shard,), (inner,), "str", "zstd 1", codecs=codecs)
        few = tuple((slice(at, at + 100),) for at in range(0, n - 100, max(1, n // 20)))
        who: dict[str, Any] = {"peers": PEERS, "checker": "zarr batched", "may_refuse": PEERS[2:]}
        strings += [
            ReadText(GROUP, f"{n:,} strings, {layout}, read", case, (case.whole,), **who),
            WriteText(GROUP, f"{n:,} strings, {layout}, write", case, **who),
            ReadText(GROUP, f"{n:,} strings, {layout}, 100 of them", case, few, **who),
        ]
    return strings
