# metadata.py - the parts of a zarr.json that define the encoding of a chunk
# SPDX-License-Identifier: MIT
"""Array metadata: the members of a ``zarr.json`` beside the codecs.

Source: Zarr v3 core specification 3.1, "Array metadata"; zarr-extensions, ``chunk-grids/rectilinear``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .checks import (
    MAX_EXTENT,
    as_int,
    as_int_tuple,
    as_items,
    as_mapping,
    check_keys,
    parse_named,
    show,
    unsupported,
    within,
    wrong,
)
from .dtypes import DType, parse_data_type
from .fill import fill_from_document, fill_scalar

__all__ = ["ArrayLayout", "parse_array"]

Edges = tuple[tuple[int, ...], ...]

_REQUIRED = ("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "fill_value", "codecs")
_KNOWN = (*_REQUIRED, "chunk_key_encoding", "attributes", "dimension_names", "storage_transformers")


@dataclass(frozen=True)
class ArrayLayout:
    """An array and its chunk grid; the chunks of a sharded array are its shards.

    ``edges[axis]`` has the distinct chunk sizes along an axis, in the order of their first occurrence. A regular grid
    has exactly one size per axis.
    """

    shape: tuple[int, ...]
    edges: Edges
    dtype: DType
    fill_value: Any
    codecs: Any


def parse_array(metadata: object) -> ArrayLayout:
    """Read a whole ``zarr.json``, except its codecs.

    Raises
    ------
    SpecError
        A member is missing or invalid; ``.path`` names it. An unknown key is invalid, unless its value has
        ``"must_understand": false``.
    UnsupportedError
        The data type or chunk grid is unknown, or there is a storage transformer.
    """
    metadata = as_mapping(metadata, "")
    for key, only in (("zarr_format", 3), ("node_type", "array")):
        if key in metadata and metadata[key] != only:
            wrong(key, f"expected {only!r}, got {show(metadata[key])}", expected=only, actual=metadata[key])
    ignored = [key for key, value in metadata.items() if key not in _KNOWN and _may_be_ignored(value)]
    check_keys(metadata, "", required=_REQUIRED, optional=(*_KNOWN, *ignored))
    if metadata.get("storage_transformers"):
        given = show(metadata["storage_transformers"])
        unsupported("storage_transformers", f"expected none, got {given}; shardcodec implements none")
    with within("data_type"):
        dtype = parse_data_type(metadata["data_type"])
    with within("fill_value"):
        fill = fill_from_document(dtype, metadata["fill_value"])
    shape = as_int_tuple(metadata["shape"], "shape", minimum=0)
    with within("chunk_grid"):
        edges = _parse_grid(metadata["chunk_grid"], shape)
    return ArrayLayout(shape, edges, dtype, fill_scalar(dtype, fill), metadata["codecs"])


def _may_be_ignored(value: object) -> bool:
    return isinstance(value, Mapping) and value.get("must_understand") is False


def _parse_grid(data: object, shape: tuple[int, ...]) -> Edges:
    name, configuration = parse_named(data)
    if name not in ("regular", "rectilinear"):
        unsupported("", f"expected chunk grid regular or rectilinear, got {show(name)}", chunk_grid=name)
    with within("configuration"):
        key = "chunk_shape" if name == "regular" else "chunk_shapes"
        check_keys(configuration, "", required=(key,) if name == "regular" else (key, "kind"))
        if name == "regular":
            edges: Edges = tuple((size,) for size in as_int_tuple(configuration[key], key, minimum=1))
        else:
            edges = _parse_rectilinear(configuration, shape)
        if len(edges) != len(shape):
            reason = f"expected {len(shape)} axes, as the array has, got {len(edges)}"
            wrong(key, reason, expected=len(shape), actual=len(edges))
    return edges


def _parse_rectilinear(configuration: Mapping[str, Any], shape: tuple[int, ...]) -> Edges:
    if configuration["kind"] != "inline":
        wrong("kind", f"expected inline, got {show(configuration['kind'])}", actual=configuration["kind"])
    edges: list[tuple[int, ...]] = []
    for axis, item in enumerate(as_items(configuration["chunk_shapes"], "chunk_shapes")):
        path = f"chunk_shapes[{axis}]"
        if isinstance(item, int):
            edges.append((as_int(item, path, minimum=1, maximum=MAX_EXTENT),))
            continue
        sizes, total = _parse_runs(item, path)
        if axis < len(shape) and total < shape[axis]:
            reason = f"expected chunk sizes with a sum of at least {shape[axis]}, the size of the axis, got {total}"
            wrong(path, reason, axis=axis, actual=total, limit=shape[axis])
        edges.append(sizes)
    return tuple(edges)


def _parse_runs(item: object, path: str) -> tuple[tuple[int, ...], int]:
    """Return the distinct sizes and their sum; an item is a size or ``[size, count]``.

    Runs are not expanded, because a count may be huge.
    """
    sizes: dict[int, None] = {}
    total = 0
    for i, run in enumerate(as_items(item, path)):
        here = f"{path}[{i}]"
        size, count = (run, 1) if isinstance(run, int) else _pair(run, here)
        sizes[as_int(size, here, minimum=1, maximum=MAX_EXTENT)] = None
        total += size * count
    if not sizes:
        wrong(path, "expected at least one chunk size, got none")
    return tuple(sizes), total


def _pair(run: object, path: str) -> tuple[int, int]:
    pair = as_int_tuple(run, path, minimum=1)
    if len(pair) != 2:
        wrong(path, f"expected a size and a count, got {show(run)}", expected=2, actual=len(pair))
    return pair[0], pair[1]
