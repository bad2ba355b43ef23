# array_ways.py - the ways to read and write the elements of an array, with the same calls for all of them
# SPDX-License-Identifier: MIT
"""`WAYS`: zarr with the pipeline or the codec, arrays of `enable`, attached arrays, handles, their coroutines, and xarray, which only reads.

A selection has one of the kinds of zarr; `key_of` says what it means to numpy, the twin of all ways. The array is "a" in a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import on_pipeline, quiet
from zarr.buffer import cpu
from zarr.core.dtype import VariableLengthBytes

import shardcodec
from shardcodec.zarr_plugin import direct_methods

__all__ = [
    "KINDS",
    "READERS",
    "STRUCT",
    "WAYS",
    "WRITERS",
    "elements",
    "key_of",
    "new_array",
    "same",
    "stored",
]

KINDS = ("basic", "orthogonal", "coordinate", "mask", "block")
STRUCT = np.dtype([("a", "<i2"), ("b", "<f4")])
Shape = tuple[int, ...]


def new_array(store: Any, shape: Shape, dtype: Any = "int32", **arguments: Any) -> Any:
    """Create the array with zarr's own pipeline, with names of its axes for xarray."""
    axes = ["z", "y", "x"][3 - len(shape) :]
    if arguments.get("zarr_format") == 2:
        arguments["attributes"] = {"_ARRAY_DIMENSIONS": axes}
    else:
        arguments["dimension_names"] = axes
    own: dict[Any, Any] = {"string": str, "bytes": VariableLengthBytes()}
    given = own[dtype] if dtype in own else np.dtype(dtype)
    with quiet():
        return zarr.create_array(store, name="a", shape=shape, dtype=given, **arguments)


def stored(store: Any) -> Any:
    """Return the elements that zarr's own pipeline reads."""
    with quiet():
        return zarr.open_array(store, path="a", mode="r")[...]


def elements(dtype: Any, shape: Shape, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return small numbers, so that some equal each other, as elements of any data type."""
    drawn = np.random.default_rng(seed).integers(0, 5, shape)
    if dtype in ("string", "bytes"):
        texts = [b"", b"a", "Zürich".encode(), b"x" * 15, b"y" * 300]
        made: Any = np.empty(shape, object)
        for at in np.ndindex(*shape):
            made[at] = texts[drawn[at]].decode() if dtype == "string" else texts[drawn[at]]
        return made if dtype == "bytes" else made.astype(np.dtypes.StringDType())
    if dtype != STRUCT:
        return drawn.astype(dtype)
    made = np.zeros(shape, STRUCT)
    for name in ("a", "b"):
        made[name] = drawn
    return made


def same(found: Any, expected: Any) -> bool:
    """Return True for the same shape and elements, bit by bit; texts of any length may be of any class."""
    found, expected = np.asarray(found), np.asarray(expected)
    if "O" in (found.dtype.kind, expected.dtype.kind) or "T" in (found.dtype.kind, expected.dtype.kind):
        return (
            found.shape == expected.shape
            and found.astype(object).tolist() == expected.astype(object).tolist()
        )
    return found.shape == expected.shape and found.astype(expected.dtype).tobytes() == expected.tobytes()


def key_of(kind: str, selection: Any, shape: Shape, extents: Shape) -> Any:
    """Return what numpy takes in square brackets for a selection; extents: those of a block."""
    if kind == "orthogonal":
        is_list = [isinstance(index, list | np.ndarray) for index in selection]
        return np.ix_(*selection) if all(is_list) else selection
    if kind != "block":
        return selection
    parts = []
    for index, size, extent in zip(selection, shape, extents, strict=True):
        blocks = range(-(-size // extent))
        chosen = blocks[index] if isinstance(index, slice) else [blocks[index]]
        parts.append(slice(chosen[0] * extent, (chosen[-1] + 1) * extent))
    return tuple(parts)


class OfZarr:
    """A `zarr.Array`, whose methods have names of the kinds. Its `out` is a buffer of zarr."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def get(self, kind: str, selection: Any, out: Any = None) -> Any:
        into = None if out is None else cpu.NDBuffer.from_numpy_array(out)
        return getattr(self.array, f"get_{kind}_selection")(selection, out=into)

    def set(self, kind: str, selection: Any, value: Any) -> None:
        getattr(self.array, f"set_{kind}_selection")(selection, value)


class OfHandle:
    def __init__(self, array: Any) -> None:
        self.array = array

    def get(self, kind: Any, selection: Any, out: Any = None) -> Any:
        return self.array.read(selection, kind=kind, out=out)

    def set(self, kind: Any, selection: Any, value: Any) -> None:
        self.array.write(selection, value, kind=kind)


class Awaited(OfHandle):
    """The coroutines of a handle."""

    def get(self, kind: Any, selection: Any, out: Any = None) -> Any:
        return asyncio.run(self.array.read_async(selection, kind=kind, out=out))

    def set(self, kind: Any, selection: Any, value: Any) -> None:
        asyncio.run(self.array.write_async(selection, value, kind=kind))


class OfXarray:
    """A variable that is not loaded. xarray has no masks and no blocks."""

    def __init__(self, store: Any) -> None:
        xarray = pytest.importorskip("xarray", reason="xarray is not installed")
        self.points = xarray.Variable
        given = {"engine": "shardcodec", "decode_cf": False, "consolidated": False}
        self.variable = xarray.open_dataset(store, **given)["a"].variable

    def get(self, kind: str, selection: Any) -> Any:
        if kind == "coordinate":
            places = np.broadcast_arrays(*selection)
            selection = tuple(self.points(("p", "q")[: place.ndim], place) for place in places)
        return self.variable[selection].values


def _mode(store: Any) -> Any:
    return "r" if store.read_only else "r+"


def _opened(store: Any) -> Any:
    with quiet():
        return zarr.open_array(store, path="a", mode=_mode(store))


def _handle(store: Any) -> Any:
    return shardcodec.open_array(store, "a", mode=_mode(store))


def _pipeline(store: Any) -> Any:
    return OfZarr(on_pipeline(_opened(store), strict=True))


def _codec(store: Any) -> Any:
    """Open the array with zarr's own pipeline, which takes the codec of shards from this package."""
    with zarr.config.set({"codecs.sharding_indexed": "shardcodec.ShardingCodec"}):
        return OfZarr(_opened(store))


def _direct(store: Any) -> Any:
    """Open the array as any library does, with replaced methods of zarr's class; the caller restores them."""
    direct_methods.replace()
    return OfZarr(zarr.Array(shardcodec.attach(_opened(store), strict=True).async_array))


WRITERS: dict[str, Callable[[Any], Any]] = {
    "pipeline": _pipeline,
    "codec": _codec,
    "direct": _direct,
    "attached": lambda store: OfZarr(shardcodec.attach(_opened(store), strict=True)),
    "handle": lambda store: OfHandle(_handle(store)),
    "coroutines": lambda store: Awaited(_handle(store)),
}
READERS: dict[str, Callable[[Any], Any]] = {"xarray": OfXarray}
WAYS = WRITERS | READERS
