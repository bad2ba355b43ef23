# parse.py - documents of the 2022 format
# SPDX-License-Identifier: MIT
"""Parse and check the documents of a 2022 hierarchy, its groups and its arrays.

The parser checks every value. It raises `SpecError` for a wrong value and `UnsupportedError` for a valid value that
is not implemented; both name the place in the document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...format.checks import (
    as_chunk_shape,
    as_int_tuple,
    as_items,
    as_mapping,
    bounded_depth,
    check_keys,
    show,
    unsupported,
    within,
    wrong,
)
from .legacy_data_types import parse_data_type, parse_fill
from .metadata import COMPRESSORS, DType, LegacyArray

__all__ = ["parse_array", "parse_group", "parse_hierarchy"]

PROTOCOL_URI = "https://purl.org/zarr/spec/protocol/core/3.0"
CODEC_URI = "https://purl.org/zarr/spec/codec/"

# All releases of zarr-python write the first spelling; the other ones are from the specification of 2022-11 (de0ceaf) and of
# 2023-02 (0610641).
SHARDING_SPELLINGS = (
    "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
    "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0",
    "sharding",
)

_REQUIRED = ("shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value", "attributes")
_OPTIONAL = ("extensions", "compressor", "storage_transformers", "dimension_separator")


def parse_hierarchy(document: Mapping[str, Any]) -> str:
    """Check the zarr.json of a hierarchy and return the suffix of its metadata keys; UnsupportedError if it has extensions."""
    for key in ("zarr_format", "metadata_encoding"):
        value = document.get(key, PROTOCOL_URI)
        if value == 3:
            wrong(
                key,
                f"expected {PROTOCOL_URI}, got 3, the final Zarr v3; open it with zarr itself",
                expected=PROTOCOL_URI,
                actual=value,
            )
        if value != PROTOCOL_URI:
            wrong(key, f"expected {PROTOCOL_URI}, got {show(value)}", expected=PROTOCOL_URI, actual=value)
    required = ("zarr_format", "metadata_encoding", "metadata_key_suffix")
    check_keys(document, "", required=required, optional=["extensions"])
    if document.get("extensions"):
        unsupported(
            "extensions", f"expected none, got {show(document['extensions'])}; shardcodec implements none"
        )
    suffix = document["metadata_key_suffix"]
    if not isinstance(suffix, str) or not re.fullmatch(r"[A-Za-z0-9._-]*", suffix):
        wrong("metadata_key_suffix", f"expected a suffix of keys, got {show(suffix)}", actual=suffix)
    return suffix


def parse_group(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes of a group from its document."""
    check_keys(document, "", required=("attributes",), optional=("extensions",))
    return as_mapping(document["attributes"], "attributes")


def parse_array(document: Mapping[str, Any]) -> LegacyArray:
    """Parse an array.json; ``.path`` of a SpecError names the wrong value."""
    with bounded_depth("array metadata"):
        return _parse_array(document)


def _parse_array(document: Mapping[str, Any]) -> LegacyArray:
    ignored = [key for key, value in document.items() if _may_be_ignored(value)]
    check_keys(document, "", required=_REQUIRED, optional=(*_OPTIONAL, *ignored))
    for i, extension in enumerate(as_items(document.get("extensions") or (), "extensions")):
        if not _may_be_ignored(extension):
            unsupported(f"extensions[{i}]", f"shardcodec does not implement {show(extension)}")
    shape = as_int_tuple(document["shape"], "shape", minimum=0)
    with within("data_type"):
        dtype = parse_data_type(document["data_type"])
    with within("chunk_grid"):
        chunk_shape, separator = _parse_grid(document["chunk_grid"], len(shape), dtype.itemsize)
    _check_separator(document.get("dimension_separator"), separator)
    order = document["chunk_memory_layout"]
    if order not in ("C", "F"):
        wrong("chunk_memory_layout", f'expected "C" or "F", got {show(order)}', actual=order)
    attributes = as_mapping(document["attributes"], "attributes")
    filters = _parse_filters(attributes.get("filters"), dtype)
    with within("fill_value"):
        fill = parse_fill(document["fill_value"], dtype)
    with within("compressor"):
        compressor = _parse_compressor(document.get("compressor"))
    with within("storage_transformers"):
        stack = _parse_transformers(document.get("storage_transformers"), len(shape))
    own = {name: value for name, value in attributes.items() if name != "filters" or not filters}
    array = LegacyArray(
        shape, chunk_shape, separator, order, dtype, fill, filters, compressor, stack, own, document
    )
    as_chunk_shape(array.shard_shape, dtype.itemsize, "storage_transformers")
    return array


def _may_be_ignored(value: object) -> bool:
    return isinstance(value, Mapping) and value.get("must_understand") is False


def _parse_grid(data: object, ndim: int, itemsize: int) -> tuple[tuple[int, ...], str]:
    grid = as_mapping(data, "")
    if grid.get("type", "regular") != "regular":
        unsupported("type", f"expected 'regular', got {show(grid['type'])}", actual=grid["type"])
    check_keys(grid, "", required=("type", "chunk_shape", "separator"))
    chunk_shape = as_chunk_shape(grid["chunk_shape"], itemsize, "chunk_shape")
    if len(chunk_shape) != ndim:
        reason = f"expected {ndim} axes, got {len(chunk_shape)}"
        wrong("chunk_shape", reason, expected=ndim, actual=len(chunk_shape))
    separator = grid["separator"]
    if separator not in ("/", "."):
        wrong("separator", f'expected "/" or ".", got {show(separator)}', actual=separator)
    return chunk_shape, separator


def _check_separator(value: object, separator: str) -> None:
    """Check the member dimension_separator, which zarr-python writes but does not read."""
    if value is not None and value != separator:
        reason = f"expected {separator!r} as in chunk_grid, got {show(value)}"
        wrong("dimension_separator", reason, expected=separator, actual=value)


def _parse_compressor(data: object) -> Mapping[str, Any] | None:
    if data is None:
        return None
    codec = as_mapping(data, "")
    check_keys(codec, "", required=("codec", "configuration"))
    uri = codec["codec"]
    name = uri.removeprefix(CODEC_URI).partition("/")[0] if isinstance(uri, str) else ""
    if not isinstance(uri, str) or not uri.startswith(CODEC_URI) or name not in COMPRESSORS:
        unsupported(
            "codec", f"expected a codec of zarr-python 2.18, got {show(uri)}", codec=str(uri), actual=uri
        )
    return {"id": name, **as_mapping(codec["configuration"], "configuration")}


def _parse_filters(data: object, dtype: DType) -> tuple[Mapping[str, Any], ...]:
    """Return the filters. They are stored as an attribute, and users may have an attribute of the same name."""
    if dtype.hasobject:
        items = as_items(() if data is None else data, "attributes.filters")
        if not items:
            wrong("attributes.filters", "expected a codec that encodes Python objects, got none")
    elif not isinstance(data, list | tuple) or not data:
        return ()
    else:
        items = tuple(data)
    for i, item in enumerate(items):
        if not isinstance(item, Mapping) or not isinstance(item.get("id"), str):
            wrong(f"attributes.filters[{i}]", f"expected a codec of numcodecs, got {show(item)}", actual=item)
    return tuple(dict(item) for item in items)


def _parse_transformers(data: object, ndim: int) -> tuple[tuple[int, ...], ...]:
    return tuple(
        _parse_transformer(item, i, ndim)
        for i, item in enumerate(as_items(data if data is not None else (), ""))
    )


def _parse_transformer(data: object, i: int, ndim: int) -> tuple[int, ...]:
    with within(f"[{i}]"):
        transformer = as_mapping(data, "")
        check_keys(transformer, "", required=("extension", "type"), optional=("configuration",))
        if transformer["extension"] not in SHARDING_SPELLINGS:
            reason = f"expected the sharding transformer, got {show(transformer['extension'])}"
            unsupported("extension", reason, actual=transformer["extension"])
        if transformer["type"] != "indexed":
            reason = f"expected 'indexed', got {show(transformer['type'])}"
            wrong("type", reason, expected="indexed", actual=transformer["type"])
        configuration = as_mapping(transformer.get("configuration", {}), "configuration")
        with within("configuration"):
            check_keys(configuration, "", required=("chunks_per_shard",))
            return _parse_per_shard(configuration["chunks_per_shard"], ndim)


def _parse_per_shard(value: object, ndim: int) -> tuple[int, ...]:
    """Return one number for each axis. As in zarr-python, a number stands for one axis, and missing axes have 1."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    counts = as_int_tuple(value, "chunks_per_shard", minimum=1)
    if ndim == 0 and counts in ((), (1,)):
        return ()
    if len(counts) > ndim:
        reason = f"expected at most {ndim} axes, got {len(counts)}"
        wrong("chunks_per_shard", reason, expected=ndim, actual=len(counts))
    return counts + (1,) * (ndim - len(counts))
