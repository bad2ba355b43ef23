# checks_2022.py - checks of arrays that zarr 2 has made
# SPDX-License-Identifier: MIT
"""Arrays that zarr 2 has made, and their expected values; the fixtures are in `conftest`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.storage import MemoryStore

from .cases_2022 import CASES, Case, to_file

ZARR_IS_31 = zarr.__version__.startswith("3.1.")
MISREAD = ["type-struct-big", "filter-delta-big-F"] if ZARR_IS_31 else []
NAMES = [case.name for case in CASES if case.name not in MISREAD]


def expected(folder: Path, name: str) -> np.ndarray[Any, Any]:
    return np.load(folder / f"{name}.npy", allow_pickle=False)


def assert_same(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], case: Case) -> None:
    """Compare all bits, but ignore the byte order in memory. The fill value of strings in zarr 2 need not be a
    string.
    """
    if case.dtype is object:
        found = to_file(found.astype(object))
        wanted = np.where(
            np.char.startswith(wanted, "int"),
            to_file(np.array([b"" if "bytes" in case.name else ""], object))[0],
            wanted,
        )
    assert found.shape == wanted.shape
    assert found.astype(wanted.dtype).tobytes() == wanted.tobytes()


def zarrs_own(folder: Any, name: str) -> Any:
    """Open the same array with zarr's own pipeline."""
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        return zarr.open_array(folder, path=name, mode="r")


def zarr_fails(case: Case) -> bool:
    """Return True if zarr 3.1 cannot read part of a shard of this type: structs, or void bytes."""
    return ZARR_IS_31 and np.dtype(case.dtype).kind == "V"


class OtherStore(MemoryStore):
    """A store that shardcodec reaches by asynchronous calls only, since it does not know the subclass."""


def store_of(folder: Path, kind: str) -> Any:
    buffer = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
    objects = {str(p.relative_to(folder)): buffer(p.read_bytes()) for p in folder.rglob("*") if p.is_file()}
    return (MemoryStore if kind == "memory" else OtherStore)(objects)
