"""Rows for filters, packings, text, and a codec without native code, sharded and plain.

The numbers of a field are whole, so that each filter keeps them exactly and the results of all peers are equal.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import data
import numpy as np
import peers
import suite
from data import LITTLE, Array, Box, Case
from peers import Peer
from suite import Context, Read, Row, Update, Write

GROUP = "codecs"
PEERS = ("shardcodec", "zarr batched", "zarr fused", "zarrs", "tensorstore", "zarrista")

Json = dict[str, Any]


def _of_numcodecs(name: str, **configuration: Any) -> Json:
    return {"name": f"numcodecs.{name}", "configuration": configuration}


_ZLIB = _of_numcodecs("zlib", level=1)
_PACKED = [
    {"name": "scale_offset", "configuration": {"offset": 0, "scale": 1}},
    {"name": "cast_value", "configuration": {"data_type": "int16"}},
]
# A name, the data type of the elements, and the codecs of a chunk.
CHAINS: dict[str, tuple[str, list[Json]]] = {
    "shuffle + zlib": ("uint16", [LITTLE, _of_numcodecs("shuffle", elementsize=2), _ZLIB]),
    "fletcher32": ("uint16", [LITTLE, _of_numcodecs("fletcher32")]),
    "delta": ("int32", [_of_numcodecs("delta", dtype="<i4"), LITTLE, _ZLIB]),
    "fixedscaleoffset": (
        "float32",
        [_of_numcodecs("fixedscaleoffset", offset=0, scale=1, dtype="<f4", astype="<i2"), LITTLE],
    ),
    "bitround": ("float32", [_of_numcodecs("bitround", keepbits=13), LITTLE, _ZLIB]),
    "quantize": ("float32", [_of_numcodecs("quantize", digits=1, dtype="<f4"), LITTLE, _ZLIB]),
    "astype": ("float32", [_of_numcodecs("astype", encode_dtype="<i2", decode_dtype="<f4"), LITTLE]),
    "packbits": ("bool", [_of_numcodecs("packbits"), {"name": "bytes"}]),
    "scale_offset + cast_value": ("float32", [*_PACKED, LITTLE]),
    "bz2, staged": ("uint16", [LITTLE, _of_numcodecs("bz2", level=1)]),
}


def metadata(case: Case, codecs: list[Json], **members: Any) -> Json:
    """Return the zarr.json of an array with these codecs, sharded if an inner chunk is smaller than a shard."""
    stored = Case.metadata(replace(case, codec="raw")) | members
    if case.inner == case.shard:
        return stored | {"codecs": codecs}
    configuration = stored["codecs"][0]["configuration"] | {"codecs": codecs}
    return stored | {"codecs": [{"name": "sharding_indexed", "configuration": configuration}]}


@dataclass(frozen=True)
class CaseOfChain(Case):
    """A field of whole numbers, or of truth values, in chunks of a chain of `CHAINS`."""

    def metadata(self) -> Json:
        fill = False if self.dtype == "bool" else 0
        return metadata(self, CHAINS[self.codec][1], fill_value=fill)

    def make_field(self) -> Array:
        numbers = np.rint(data.make_field(self.shape, np.dtype("float32")))
        return numbers % 4 < 2 if self.dtype == "bool" else numbers.astype(self.dtype)

    @property
    def field_name(self) -> str:
        return f"whole-{super().field_name}"

    def slug(self) -> str:
        return f"{super().slug()}-chain".replace("+", "and").replace(",", "")


def checked_by_zarr(context: Context) -> Context:
    """Return a context whose checker is zarr, which has all of these codecs."""
    (zarr,), _ = peers.available(["zarr batched"])
    return replace(context, checker=zarr)


class _OfCodecs(Row):
    """Takes the peers that may know such codecs; one that does not is reported as failed."""

    def takes(self, peer: Peer) -> bool:
        return peer.name in PEERS

    def check(self, context: Context, peer: Peer) -> Json:
        return super().check(checked_by_zarr(context), peer)


@dataclass(frozen=True)
class ReadChain(_OfCodecs, Read):
    """Reads boxes."""


@dataclass(frozen=True)
class WriteChain(_OfCodecs, Write):
    """Writes a whole array."""


@dataclass(frozen=True)
class UpdateChain(_OfCodecs, Update):
    """Writes a box of an array."""


def chains(edge: int) -> list[Row]:
    """Return the rows of all chains: a cube whose chunks, or inner chunks, are 32^3."""
    found: list[Row] = []
    for name, (dtype, _) in CHAINS.items():
        for layout, shard in (("sharded", edge // 2), ("plain", 32)):
            case = CaseOfChain((edge,) * 3, (shard,) * 3, (32,) * 3, dtype, name)
            label = f"{name}, {layout}"
            inside: Box = (slice(3, 43),) * 3
            found += [
                ReadChain(GROUP, f"{label}, read", case, (case.whole,)),
                WriteChain(GROUP, f"{label}, write", case),
                ReadChain(GROUP, f"{label}, one inner chunk", case, suite.random_boxes(case, 32, 50, True)),
                ReadChain(GROUP, f"{label}, box of 40^3", case, suite.random_boxes(case, 40, 20)),
                UpdateChain(GROUP, f"{label}, one inner chunk written", case, (slice(32, 64),) * 3),
                UpdateChain(GROUP, f"{label}, 10^3 written", case, (slice(35, 45),) * 3),
                UpdateChain(GROUP, f"{label}, box of 40^3 written", case, inside),
            ]
    return found


# ---------------------------------------------------------------------------------------------------------
# strings


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

    def metadata(self) -> Json:
        codecs = [{"name": "vlen-utf8"}, data.codec_chain(self.codec, 1)[-1]]
        return metadata(self, codecs, data_type="string", fill_value="")

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
class ReadText(_OfCodecs, Read):
    """Reads strings, whatever numpy's type of them is."""

    def check(self, context: Context, peer: Peer) -> Json:
        array = peer.open(context.source(self.case), self.case)
        for box in self.boxes:
            assert_same_text(peer, peer.read(array, box), barcodes(self.case.shape[0])[box])
        return {}

    @property
    def nbytes(self) -> int:
        first = self.boxes[0][0]
        return sum(map(len, barcodes(self.case.shape[0])[first]))


@dataclass(frozen=True)
class WriteText(_OfCodecs, Write):
    """Writes strings, which are Python objects."""

    def check(self, context: Context, peer: Peer) -> Json:
        prepared = self.prepare(context, peer, 0)
        self.operate(peer, prepared)
        stored = checked_by_zarr(context).read_back(prepared[0], self.case)
        assert_same_text(peer, stored, prepared[2])
        stored_nbytes = data.stored_nbytes(prepared[0])
        self.finish(prepared)
        return {"stored_nbytes": stored_nbytes}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        path, array, _ = super().prepare(context, peer, number)
        return path, array, barcodes(self.case.shape[0])


def text(n: int) -> list[Row]:
    """Return the rows of strings."""
    found: list[Row] = []
    for layout, shard, inner in (("sharded", n // 4, n // 100), ("plain", n // 20, n // 20)):
        case = CaseOfText((n,), (shard,), (inner,), "str", "zstd 1")
        few = tuple((slice(at, at + 100),) for at in range(0, n - 100, max(1, n // 20)))
        found += [
            ReadText(GROUP, f"{n:,} strings, {layout}, read", case, (case.whole,)),
            WriteText(GROUP, f"{n:,} strings, {layout}, write", case),
            ReadText(GROUP, f"{n:,} strings, {layout}, 100 of them", case, few),
        ]
    return found


def rows(sizes: suite.Sizes) -> list[Row]:
    """Return all rows."""
    return chains(sizes.edge // 2) + text(sizes.n_chunks)
