"""The data sets and the arrays that hold them.

A *field* is the stored values: a smooth function of position plus a little noise, so that a part of the data can be
compressed and a part cannot. A *case* is one way to store a field: shapes and codecs.
Fields are made once per run and kept as .npy files in the folder of the run.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Box = tuple[slice, ...]

# The metadata document of an array, by version of the format.
DOCUMENTS = {2: ".zarray", 3: "zarr.json"}
# An index is not cached while its file is younger than two seconds (`IndexCache`), so a row that reads it at once has no cache.
AGE_SECONDS = 2.1
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
    """An array of one field, stored in one way. `shard` and `inner` are equal in an array without shards."""

    shape: tuple[int, ...]
    shard: tuple[int, ...]
    inner: tuple[int, ...]
    dtype: str
    codec: str  # a name for the codecs
    values: str = "waves"  # how the field is made: a key of `FIELDS`
    zarr_format: int = 3
    # The codecs as they stand in the metadata; None: those of `codec_chain`. In format 2: a dict of compressor and filters.
    codecs: Any = field(default=None, compare=False)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def whole(self) -> Box:
        return tuple(slice(0, n) for n in self.shape)

    def with_codec(self, codec: str) -> Case:
        return replace(self, codec=codec)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata document, the same for every writer."""
        fill_value = False if self.dtype == "bool" else 0
        if self.zarr_format == 2:
            return {
                "zarr_format": 2,
                "shape": list(self.shape),
                "chunks": list(self.inner),
                "dtype": np.dtype(self.dtype).str,
                **(self.codecs or {"compressor": None, "filters": None}),
                "fill_value": fill_value,
                "order": "C",
            }
        codecs = self.codecs or codec_chain(self.codec, np.dtype(self.dtype).itemsize)
        if self.inner != self.shard:
            sharding = {
                "chunk_shape": list(self.inner),
                "codecs": codecs,
                "index_codecs": [LITTLE, {"name": "crc32c"}],
                "index_location": "end",
            }
            codecs = [{"name": "sharding_indexed", "configuration": sharding}]
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.shard)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill_value,
            "codecs": codecs,
            "attributes": {},
        }

    def create(self, path: Path) -> Path:
        """Make an empty array."""
        path.mkdir(parents=True)
        (path / DOCUMENTS[self.zarr_format]).write_text(json.dumps(self.metadata()))
        return path

    def make_field(self) -> Array:
        """Return the values."""
        return FIELDS[self.values](self)

    @property
    def field_name(self) -> str:
        """A name of the values."""
        name = f"{self.dtype}-{'x'.join(map(str, self.shape))}"
        if self.values == "waves":
            return name
        chunks = f"-{'x'.join(map(str, self.inner))}" if self.values == "sparse waves" else ""
        return f"{self.values.replace(' ', '-')}-{name}{chunks}"

    def slug(self) -> str:
        shapes = "-".join("x".join(map(str, s)) for s in (self.shape, self.shard, self.inner))
        return f"v{self.zarr_format}-{self.field_name}-{shapes}-{re.sub('[^a-z0-9]+', '-', self.codec)}"


def big(edge: int = 512) -> Case:
    """Make a uint16 cube of eight shards with inner chunks of 32^3: 64 KiB each. A cube of 64^3 is one shard."""
    return Case((edge,) * 3, (max(64, edge // 2),) * 3, (32,) * 3, "uint16", "raw")


def table(edge: int = 512) -> Case:
    """Make a uint16 table of 256 columns, as large as the cube, in four shards with inner chunks of 64 rows: 32 KiB."""
    n_rows = edge**3 // 256
    return Case((n_rows, 256), (n_rows // 4, 256), (64, 256), "uint16", "raw")


def stored_nbytes(path: Path) -> int:
    """Return the size of all shards or chunks of an array."""
    names = DOCUMENTS.values()
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file() and p.name not in names)


def wait_until_old(path: Path, seconds: float = AGE_SECONDS) -> None:
    """Wait until the youngest file of an array is so many seconds old. Copies are new files, whatever their times of change say."""
    states = (p.stat() for p in path.rglob("*") if p.is_file())
    changed = max((max(state.st_mtime, state.st_ctime) for state in states), default=0.0)
    time.sleep(max(0.0, changed + seconds - time.time()))


def field_path(case: Case, folder: Path) -> Path:
    """Return the file in which `load_field` keeps the values of a case."""
    return folder / f"field-{case.field_name}.npy"


def load_field(case: Case, folder: Path) -> Array:
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


def whole_field(case: Case) -> Array:
    """Return waves of whole numbers, which each filter keeps exactly, or truth values made of them."""
    numbers = np.rint(make_field(case.shape, np.dtype("float32")))
    return numbers % 4 < 2 if case.dtype == "bool" else numbers.astype(case.dtype)


def sparse_field(case: Case) -> Array:
    """Return waves in every hundredth inner chunk, and the fill value in all others."""
    waves, values = make_field(case.shape, np.dtype(case.dtype)), np.zeros(case.shape, case.dtype)
    grid = [size // inner for size, inner in zip(case.shape, case.inner, strict=True)]
    n_chunks = math.prod(grid)
    some = np.random.default_rng(9).choice(n_chunks, max(1, n_chunks // 100), replace=False)
    for position in zip(*np.unravel_index(some, grid), strict=True):
        box = tuple(slice(int(i) * n, (int(i) + 1) * n) for i, n in zip(position, case.inner, strict=True))
        values[box] = waves[box] | np.array(1, case.dtype)
    return values


def counts_field(case: Case) -> Array:
    """Return small numbers, as a sparse matrix of counts has them."""
    return np.random.default_rng(11).geometric(0.3, case.shape).astype(case.dtype)


FIELDS: dict[str, Callable[[Case], Array]] = {
    "waves": lambda case: make_field(case.shape, np.dtype(case.dtype)),
    "whole waves": whole_field,
    "sparse waves": sparse_field,
    "counts": counts_field,
}
