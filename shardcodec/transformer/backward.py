# backward.py - from a zarr.json of Zarr v3 to an array.json of the 2022 format
# SPDX-License-Identifier: MIT
"""The other direction of `translate`, for what the 2022 format can say.

It cannot say: grids that are not regular, axes in other orders than C and F, codecs before the sharding or behind it, checksums
of inner chunks, nested shards whose index is not plain, names of dimensions but those that xarray keeps.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..format.checks import (
    as_int_tuple,
    as_items,
    as_mapping,
    bounded_depth,
    check_keys,
    parse_named,
    show,
    unsupported,
    within,
    wrong,
)
from ..format.dtypes import parse_data_type
from ..format.fill import fill_from_json
from ..format.keys import KeyEncoding
from ..format.metadata import parse_array as parse_layout
from .legacy import CODEC_URI, COMPRESSORS, SHARDING_URI, data_type_to_json
from .translate import (
    ARRAY_FILTERS,
    BLOSC_SHUFFLES,
    BYTES_FILTERS,
    DIMENSIONS,
    OBJECT_CODECS,
    filter_dtype,
)

__all__ = ["from_v3"]

DType = np.dtype[Any]


def from_v3(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the array.json of a Zarr v3 array.

    The outermost index may be of any kind, since it is written anew when shards are converted.

    Raises
    ------
    SpecError
        It is no array, or a value is wrong.
    UnsupportedError
        The 2022 format has no way to say it; ``.path`` tells what.
    """
    with bounded_depth("array metadata"):
        return _from_v3(metadata)


def _from_v3(metadata: Mapping[str, Any]) -> dict[str, Any]:
    layout_of = {**metadata, "data_type": "uint8", "fill_value": 0}  # those are looked at below
    layout = parse_layout(layout_of)
    ndim = len(layout.shape)
    if as_mapping(metadata["chunk_grid"], "chunk_grid").get("name") != "regular":
        unsupported("chunk_grid", "the 2022 format has only regular grids")
    shape = tuple(edges[0] for edges in layout.edges)
    codecs, place = list(as_items(metadata["codecs"], "codecs")), "codecs"
    stack: list[list[int]] = []
    while codecs and _name(codecs[-1]) == "sharding_indexed":
        with within(place):
            if len(codecs) > 1:
                unsupported("[0]", "codecs before the sharding; the 2022 format has them only within")
            with within("[0]"):
                inner, per_shard = _unshard(codecs[0], shape, outermost=not stack)
        stack.insert(0, per_shard)
        shape = tuple(extent // n for extent, n in zip(shape, per_shard, strict=True))
        place += "[0].configuration.codecs"
        codecs = inner
    with within(place):
        chain = _parse_chain(codecs, metadata["data_type"], ndim)
    attributes = _attributes(metadata, ndim)
    if chain.filters:
        if "filters" in attributes:
            unsupported("attributes.filters", "the 2022 format keeps filters of its own under this name")
        attributes = {"filters": chain.filters, **attributes}
    elif _looks_like_filters(attributes.get("filters")):
        unsupported("attributes.filters", "the 2022 format takes what has this name for filters")
    document: dict[str, Any] = {
        "shape": list(layout.shape),
        "data_type": data_type_to_json(chain.dtype),
        "chunk_grid": {
            "type": "regular",
            "chunk_shape": list(shape),
            "separator": KeyEncoding.from_metadata(metadata).separator,
        },
        "chunk_memory_layout": chain.order,
        "fill_value": _fill_to_2022(metadata["data_type"], metadata["fill_value"], chain.dtype),
        "extensions": [],
        "attributes": attributes,
    }
    if chain.compressor is not None:
        config = {key: value for key, value in chain.compressor.items() if key != "id"}
        document["compressor"] = {
            "codec": f"{CODEC_URI}{chain.compressor['id']}/1.0",
            "configuration": config,
        }
    if stack:
        document["storage_transformers"] = [
            # zarr-python's index of an array without axes has one axis of one
            {
                "extension": SHARDING_URI,
                "type": "indexed",
                "configuration": {"chunks_per_shard": counts or [1]},
            }
            for counts in stack
        ]
    return document


def _name(codec: object) -> str:
    return parse_named(codec)[0]


def _unshard(codec: object, shape: Sequence[int], *, outermost: bool) -> tuple[list[Any], list[int]]:
    _, given = parse_named(codec)
    with within("configuration"):
        check_keys(
            given, "", required=("chunk_shape", "codecs", "index_codecs"), optional=("index_location",)
        )
        chunk_shape = as_int_tuple(given["chunk_shape"], "chunk_shape", minimum=1)
        if len(chunk_shape) != len(shape) or any(a % b for a, b in zip(shape, chunk_shape, strict=True)):
            reason = f"{show(chunk_shape)} does not divide the shard of {show(tuple(shape))}"
            wrong("chunk_shape", reason, actual=chunk_shape)
        if not outermost:
            location = given.get("index_location", "end")
            if location != "end":
                unsupported("index_location", f"{show(location)}: the index of nested shards is at the end")
            if [parse_named(c) for c in as_items(given["index_codecs"], "index_codecs")] != [
                ("bytes", {"endian": "little"})
            ]:
                reason = f"{show(given['index_codecs'])}: nested shards have their index in little-endian bytes alone"
                unsupported("index_codecs", reason)
        codecs = list(as_items(given["codecs"], "codecs"))
    return codecs, [a // b for a, b in zip(shape, chunk_shape, strict=True)]


class _Chain(NamedTuple):
    order: str
    dtype: DType
    filters: list[dict[str, Any]]
    compressor: dict[str, Any] | None


def _parse_chain(codecs: Sequence[Any], data_type: Any, ndim: int) -> _Chain:
    """What an inner chunk goes through; places in errors count from the list of codecs."""
    named = [(i, *parse_named(codec)) for i, codec in enumerate(codecs)]
    order, reversal = "C", tuple(range(ndim))[::-1]
    while named and named[0][1] == "transpose":
        i, _, given = named.pop(0)
        axes = as_int_tuple(given.get("order", ()), f"[{i}].configuration.order", minimum=0)
        if axes not in (reversal, reversal[::-1]):
            reason = f"{show(axes)}: the 2022 format keeps axes as they are (C), or reverses all of them (F)"
            unsupported(f"[{i}].configuration.order", reason, actual=axes)
        if axes == reversal and ndim > 1:
            order = "F" if order == "C" else "C"
    filters: list[dict[str, Any]] = []
    while named and _plain(named[0][1]) in ARRAY_FILTERS:
        i, name, given = named.pop(0)
        filters.append({"id": _plain(name), **given})
    if not named:
        unsupported("", "there is no codec that makes bytes of an array")
    i, name, given = named.pop(0)
    if name in OBJECT_CODECS and not filters:
        filters.append({"id": name})
        dtype: DType = np.dtype(object)
        if OBJECT_CODECS[name] != _name(data_type) and (name, _name(data_type)) != ("vlen-bytes", "bytes"):
            unsupported(f"[{i}]", f"{name} for elements of {show(data_type)}", codec=name)
    elif name == "bytes":
        dtype = _stored_dtype(data_type, given, filters, f"[{i}]")
    else:
        unsupported(f"[{i}].name", f"{show(name)} has no counterpart in the 2022 format", codec=name)
    compressor = None
    for k, (i, name, given) in enumerate(named):
        with within(f"[{i}]"):
            config = _compressor_to_2022(name, given)
        if k == len(named) - 1 and config["id"] in COMPRESSORS:
            compressor = config
        elif name.startswith("numcodecs."):
            filters.append(config)
        else:
            unsupported(f"[{i}].name", f"{show(name)} before other codecs", codec=name)
    return _Chain(order, dtype, filters, compressor)


def _plain(name: str) -> str:
    return name.removeprefix("numcodecs.") if name.startswith("numcodecs.") else ""


def _stored_dtype(
    data_type: Any, given: Mapping[str, Any], filters: list[dict[str, Any]], place: str
) -> DType:
    """The dtype with the byte order of the `bytes` codec; filters get it too."""
    dtype = parse_data_type(data_type)
    endian = given.get("endian", "little")
    if endian not in ("little", "big"):
        wrong(f"{place}.configuration.endian", f"expected little or big, got {show(endian)}", actual=endian)
    mark = "<" if endian == "little" else ">"
    for config in filters:
        for key in ARRAY_FILTERS[config["id"]][0]:
            if config.get(key) is not None:
                config[key] = filter_dtype(config[key], key).newbyteorder(mark).str  # type: ignore[arg-type]
    return dtype.newbyteorder(mark)  # type: ignore[arg-type]


def _compressor_to_2022(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    plain = _plain(name) or name
    if plain not in BYTES_FILTERS or (not _plain(name) and name not in ("gzip", "zstd", "blosc")):
        unsupported("name", f"{show(name)} has no counterpart in the 2022 format", codec=name)
    config = {"id": plain, **given}
    if name == "blosc":
        shuffle = given.get("shuffle")
        if shuffle not in BLOSC_SHUFFLES:
            wrong(
                "configuration.shuffle",
                f"expected one of {BLOSC_SHUFFLES}, got {show(shuffle)}",
                actual=shuffle,
            )
        config["shuffle"] = BLOSC_SHUFFLES.index(shuffle)
    if plain == "blosc":
        config.pop("typesize", None)  # numcodecs takes it from the chunk
    return config


def _attributes(metadata: Mapping[str, Any], ndim: int) -> dict[str, Any]:
    """The attributes, and names of dimensions where xarray looks for them."""
    attributes = dict(as_mapping(metadata.get("attributes") or {}, "attributes"))
    names = metadata.get("dimension_names")
    if names is None or all(name is None for name in names):
        return attributes
    if not all(isinstance(name, str) for name in names) or attributes.get(DIMENSIONS, list(names)) != list(
        names
    ):
        unsupported("dimension_names", f"{show(names)}: the 2022 format has no place for them", actual=names)
    return {**attributes, DIMENSIONS: list(names)}


def _looks_like_filters(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value)


def _fill_to_2022(data_type: Any, value: Any, dtype: DType) -> Any:
    with within("fill_value"):
        if dtype.hasobject:
            if value == "" or (isinstance(value, str) and _name(data_type) == "string"):
                return value
            unsupported("", f"{show(value)} for elements of variable length", actual=value)
        native = dtype.newbyteorder("=")
        fill = np.frombuffer(fill_from_json(native, value), dtype=native)[0]
    return _FILLS[dtype.kind](fill, dtype)


def _float_to_json(value: Any) -> Any:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _octets(value: Any, dtype: DType) -> str:
    stored = np.asarray(value, dtype=dtype.newbyteorder("=")).astype(dtype)
    data = bytes(value) if dtype.kind == "S" else stored.tobytes()
    return base64.b64encode(data).decode("ascii")


_FILLS: Mapping[str, Callable[[Any, DType], Any]] = {
    "b": lambda value, dtype: bool(value),
    "i": lambda value, dtype: int(value),
    "u": lambda value, dtype: int(value),
    "f": lambda value, dtype: _float_to_json(value),
    "c": lambda value, dtype: [_float_to_json(value.real), _float_to_json(value.imag)],
    "m": lambda value, dtype: int(value.view("i8")),
    "M": lambda value, dtype: int(value.view("i8")),
    "U": lambda value, dtype: str(value),
    "S": _octets,
    "V": _octets,
}
