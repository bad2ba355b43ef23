"""The data sets and the arrays that hold them.

A *field* is the stored values: a smooth function of position plus a little noise, so that a part of the data can be
compressed and a part cannot. A *case* is one way to store a field: shapes and a codec.
Fields are made once per run and kept as .npy files in the folder of the run.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Box = tuple[slice, ...]

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def _blosc(itemsize: int) -> dict[str, Any]:
    conf = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": itemsize, "blocksize": 0}
    return {"name": "blosc", "configuration": conf}


def codec_chain(codec: str, itemsize: int) -> list[dict[str, Any]]:
    """Return the inner codecs for one of the four names that the benchmarks use."""
    match codec:
        case "raw":
            return [LITTLE]
        case "zstd 1":
            return [LITTLE, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
        case "blosc lz4 shuffle":
            return [LITTLE, _blosc(itemsize)]
        case "gzip 1":
            return [LITTLE, {"name": "gzip", "configuration": {"level": 1}}]
    raise ValueError(f"unknown codec {codec!r}")


@dataclass(frozen=True)
class Case:
    """An array of one field, stored in one way."""

    shape: tuple[int, ...]
    shard: tuple[int, ...]
    inner: tuple[int, ...]
    dtype: str
    codec: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def whole(self) -> Box:
        return tuple(slice(0, n) for n in self.shape)

    def with_codec(self, codec: str) -> Case:
        return replace(self, codec=codec)

    def metadata(self) -> dict[str, Any]:
        """Return the zarr.json, the same for every writer."""
        sharding = {
            "chunk_shape": list(self.inner),
            "codecs": codec_chain(self.codec, np.dtype(self.dtype).itemsize),
            "index_codecs": [LITTLE, {"name": "crc32c"}],
            "index_location": "end",
        }
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.shard)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": {},
        }

    def create(self, path: Path) -> Path:
        """Make an empty array."""
        path.mkdir(parents=True)
        (path / "zarr.json").write_text(json.dumps(self.metadata()))
        return path

    def make_field(self) -> Array:
        """Return the values."""
        return make_field(self.shape, np.dtype(self.dtype))

    @property
    def field_name(self) -> str:
        """A name of the values."""
        return f"{self.dtype}-{'x'.join(map(str, self.shape))}"

    def slug(self) -> str:
        shapes = "-".join("x".join(map(str, s)) for s in (self.shape, self.shard, self.inner))
        return f"{self.dtype}-{shapes}-{self.codec.replace(' ', '-')}"


def _cube(edge: int, inner: int, dtype: str) -> Case:
    return Case((edge,) * 3, (edge // 2,) * 3, (inner,) * 3, dtype, "raw")


def big(edge: int = 512) -> Case:
    """Make a uint16 cube of eight shards with inner chunks of 32^3: 64 KiB each."""
    return _cube(edge, 32, "uint16")


def tiny(inner: int, edge: int = 256) -> Case:
    """Make a uint8 cube of eight shards with inner chunks of 8^3 or 4^3, which measures the cost per chunk."""
    return _cube(edge, inner, "uint8")


def table(edge: int = 512) -> Case:
    """Make a uint16 table of 256 columns, as large as the cube, in four shards with inner chunks of 64 rows: 32 KiB."""
    n_rows = edge**3 // 256
    return Case((n_rows, 256), (n_rows // 4, 256), (64, 256), "uint16", "raw")


def line(n_chunks: int = 1_000_000) -> Case:
    """Make one shard with very many inner chunks of four elements, which measures the index."""
    return Case((4 * n_chunks,), (4 * n_chunks,), (4,), "uint16", "raw")


def stored_nbytes(path: Path) -> int:
    """Return the size of all shards or chunks of an array."""
    documents = ("zarr.json", ".zarray")
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file() and p.name not in documents)


def field_path(case: Case, folder: Path) -> Path:
    """Return the file in which `field` keeps the values of a case."""
    return folder / f"field-{case.field_name}.npy"


def field(case: Case, folder: Path) -> Array:
    """Return the values of a case; nowhere 0, the fill value, over a whole inner chunk."""
    path = field_path(case, folder)
    if not path.exists():
        np.save(path, case.make_field())
    return np.asarray(np.load(path))


def make_field(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    # amplitude and noise: gzip 1 leaves about 0.6 of the uint16 field, as it does of many images
    amplitude, noise = (2000, 8) if dtype.itemsize > 1 else (40, 2)
    rng = np.random.default_rng(20261120)
    out = np.empty(shape, dtype=dtype)
    waves = [amplitude * np.sin(np.linspace(0, 6 - axis, n)) for axis, n in enumerate(shape)]
    rest = sum(np.ix_(*waves[1:])) if len(shape) > 1 else np.zeros(())
    for i in range(0, shape[0], step := max(1, 2**22 // max(1, math.prod(shape[1:])))):
        part = waves[0][i : i + step].reshape(-1, *[1] * (len(shape) - 1)) + rest + 3 * amplitude
        out[i : i + step] = part + rng.integers(0, noise, part.shape)
    return out
