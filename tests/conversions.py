# conversions.py - sources for tests of convert
# SPDX-License-Identifier: MIT
"""Arrays and hierarchies that tests convert, and comparisons with the new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from helpers import bits, quiet

SHAPE = (20, 33, 7)
VALUES = np.random.default_rng(5).integers(0, 50, SHAPE).astype("int32")
VALUES[:8, :16] = -1


def source(place: Any, **how: Any) -> Any:
    defaults: dict[str, Any] = {"shape": SHAPE, "chunks": (4, 8, 4), "dtype": "int32", "fill_value": -1}
    with quiet():
        array = zarr.create_array(place, **(defaults | how))
        array[...] = VALUES
    return array


SQUARE = np.arange(32 * 32, dtype="int32").reshape(32, 32)


def square_source(place: Any, **how: Any) -> Any:
    with quiet():
        array = zarr.create_array(place, **({"shape": (32, 32), "chunks": (8, 8), "dtype": "int32"} | how))
        array[...] = SQUARE
    return array


def elements(place: Any) -> Any:
    with quiet():
        return zarr.open_array(place, mode="r")[...]


def opened(place: Any, path: str = "") -> Any:
    with quiet():
        return zarr.open_array(place, path=path or None, mode="r", zarr_format=3)


def same(place: Any, values: Any = VALUES, path: str = "") -> Any:
    array = opened(place, path)
    assert bits(array[...]) == bits(np.ascontiguousarray(values))
    assert array.dtype == values.dtype
    return array


def method(report: Any) -> str:
    (one,) = report.arrays
    return str(one.method)


def hierarchy(place: Path, zarr_format: int) -> None:
    multiscales = [{"datasets": [{"path": "0"}, {"path": "1"}], "axes": ["z", "y", "x"]}]
    with quiet():
        group = zarr.create_group(place, zarr_format=zarr_format, attributes={"multiscales": multiscales})
        for level in range(2):
            values = VALUES[:: 2**level]
            names = {"dimension_names": ["z", "y", "x"]} if zarr_format == 3 else {}
            attributes = {"level": level, **({} if names else {"_ARRAY_DIMENSIONS": ["z", "y", "x"]})}
            array = group.create_array(
                str(level),
                shape=values.shape,
                chunks=(4, 8, 4),
                dtype="int32",
                attributes=attributes,
                **names,
            )
            array[...] = values
        group.create_group("labels/empty", attributes={"k": [1, None]})
        zarr.consolidate_metadata(group.store, zarr_format=zarr_format)
