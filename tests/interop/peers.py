# peers.py - the implementations, each with a read and a write
# SPDX-License-Identifier: MIT
"""Read a box and write a box with each implementation. A peer that is not installed is named."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zarr

Array = npt.NDArray[Any]
Box = tuple[slice, ...]


class Peer(Protocol):
    """An implementation of Zarr v3."""

    @property
    def name(self) -> str: ...

    def missing(self) -> str | None:
        """Return the reason why it cannot take part, or None."""

    def read(self, folder: Path, box: Box) -> Array: ...

    def write(self, folder: Path, box: Box, value: Array) -> None: ...


@dataclass(frozen=True)
class Zarr:
    """zarr-python with a codec pipeline.

    `settings` forbid the pipeline to fall back to another one, if it has such a setting, so that a test of zarrs
    does not test zarr.
    """

    name: str
    pipeline: str
    settings: dict[str, Any] = field(default_factory=dict)

    def missing(self) -> str | None:
        package = self.pipeline.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
        if package == "zarr" and not hasattr(zarr.core.codec_pipeline, self.pipeline.rpartition(".")[2]):
            return f"zarr {zarr.__version__} has no {self.pipeline}"
        return None

    @contextmanager
    def _open(self, folder: Path, mode: Any) -> Iterator[Any]:
        settings = {"codec_pipeline.path": self.pipeline, **self.settings}
        with warnings.catch_warnings(), zarr.config.set(settings):
            # zarr warns of sharding beside other codecs, which the tests intend.
            warnings.filterwarnings("ignore", message="Combining a `sharding_indexed` codec")
            array = zarr.open_array(str(folder), mode=mode)
            # zarr falls back to its own pipeline without a warning.
            assert type(array.async_array.codec_pipeline).__name__ == self.pipeline.rpartition(".")[2]
            yield array

    def read(self, folder: Path, box: Box) -> Array:
        with self._open(folder, "r") as array:
            return np.asarray(array[box])

    def write(self, folder: Path, box: Box, value: Array) -> None:
        with self._open(folder, "r+") as array:
            array[box] = value


@dataclass(frozen=True)
class TensorStore:
    """TensorStore's drivers of Zarr, without their cache."""

    name: str = "tensorstore"

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("tensorstore") else "tensorstore is not installed"

    @staticmethod
    def _open(folder: Path) -> Any:
        import tensorstore

        driver = "zarr" if (folder / ".zarray").exists() else "zarr3"
        kvstore = {"driver": "file", "path": f"{folder}/"}
        return tensorstore.open({"driver": driver, "kvstore": kvstore, "recheck_cached_data": True}).result()

    def read(self, folder: Path, box: Box) -> Array:
        return np.asarray(self._open(folder)[box].read().result())

    def write(self, folder: Path, box: Box, value: Array) -> None:
        self._open(folder)[box].write(value).result()


@dataclass(frozen=True)
class Zarrista:
    """Another binding of the Rust crate, without zarr."""

    name: str = "zarrista"

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("zarrista") else "zarrista is not installed"

    @staticmethod
    def _open(folder: Path) -> Any:
        import zarrista
        from zarrista.store import FilesystemStore

        return zarrista.Array.open(FilesystemStore(folder))

    def read(self, folder: Path, box: Box) -> Array:
        return np.asarray(self._open(folder).retrieve_array_subset(box).to_numpy())

    def write(self, folder: Path, box: Box, value: Array) -> None:
        self._open(folder).store_array_subset(box, value)


# To test the tests, put zarr's own pipeline in the place of shardcodec's: they must pass too.
US: Peer = Zarr(
    "shardcodec",
    os.environ.get("SHARDCODEC_INTEROP_PIPELINE", "shardcodec.ShardCodecPipeline"),
    {"shardcodec.strict": True},
)

PEERS: list[Peer] = [
    Zarr("zarr", "zarr.core.codec_pipeline.BatchedCodecPipeline"),
    Zarr("zarr-fused", "zarr.core.codec_pipeline.FusedCodecPipeline"),
    Zarr("zarrs", "zarrs.ZarrsCodecPipeline", {"codec_pipeline.strict": True}),
    TensorStore(),
]
# Those that only read what others have written.
READERS: list[Peer] = [*PEERS, Zarrista()]
