# to_v3.py - metadata of the 2022 format as those of Zarr v3
# SPDX-License-Identifier: MIT
"""`to_v3`: the Zarr v3 document that describes the same elements as a 2022 array.

A sharding transformer and the codec `sharding_indexed` store inner chunks in the same way, but the transformer has no
checksum of the index. So only the metadata differ:

    data_type "<i4" or ">i4"                      data_type "int32", codec `bytes` with that byte order
    chunk_memory_layout "F"                       codec `transpose` that reverses the axes
    filters of numcodecs, a compressor            codecs of Zarr, or numcodecs.* codecs
    storage_transformers, last next to the store  nested codecs `sharding_indexed`
    chunks_per_shard                              shape of a shard, in elements
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...compat import data_type_of
from ...format.attributes import DIMENSIONS, as_json_attributes, masked_attributes
from ...format.checks import as_int, as_items, check_keys, show, unsupported, within, wrong
from ...format.codecs import Blosc, Gzip, Zstd
from ...format.zarray_members import TEXT_CODECS
from .metadata import COMPRESSORS, DType, LegacyArray

__all__ = ["has_certain_fill", "to_v3"]

Codecs = list[dict[str, Any]]

INDEX_CODECS: Codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
CRC32C = {"name": "crc32c"}

# Filters of numcodecs that zarr 3 has as numcodecs.*: names of parameters that are dtypes (the first one is the input
# dtype), and the output dtype (name of a parameter, or a dtype).
ARRAY_FILTERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "delta": (("dtype", "astype"), "astype"),
    "fixedscaleoffset": (("dtype", "astype"), "astype"),
    "quantize": (("dtype", "astype"), "astype"),
    "astype": (("decode_dtype", "encode_dtype"), "encode_dtype"),
    "packbits": ((), "|u1"),
}
BYTES_FILTERS = ("shuffle", *COMPRESSORS)
PARAMETERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gzip": (("level",), ()),
    "zlib": (("level",), ()),
    "bz2": (("level",), ()),
    "lz4": (("acceleration",), ()),
    "zstd": (("level",), ("checksum",)),
    "lzma": (("format",), ("check", "preset", "filters")),
    "blosc": (("cname", "clevel", "shuffle"), ("blocksize", "typesize")),
}
BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def has_certain_fill(array: LegacyArray) -> bool:
    """Return True if an absent chunk has the same meaning in both formats.

    If not, chunks that contain only the fill value must be stored: in zarr-python 2 a fill value of null means
    undefined elements, and arrays of strings can have the fill value 0.
    """
    if array.dtype.hasobject:
        return isinstance(array.fill, str) and array.filters[0]["id"] == "vlen-utf8"
    return array.fill is not None


def to_v3(array: LegacyArray, *, index_checksum: bool = False, names: bool = False) -> dict[str, Any]:
    """Return the zarr.json of an array; UnsupportedError if Zarr v3 has no counterpart of a filter or of the data type.

    index_checksum: add a crc32c to the index of the outermost shards, which the 2022 format does not have. names: remove the
    attribute of xarray that becomes ``dimension_names``, and add the one in which it finds the mask.
    """
    data_type, fill_value = _data_type(array)
    codecs = _inner_codecs(array)
    shape = array.chunk_shape
    for i, per_shard in enumerate(array.stack):
        checksum = index_checksum and i == len(array.stack) - 1
        configuration = {
            "chunk_shape": list(shape),
            "codecs": codecs,
            "index_codecs": [*INDEX_CODECS, CRC32C] if checksum else INDEX_CODECS,
            "index_location": "end",
        }
        codecs = [{"name": "sharding_indexed", "configuration": configuration}]
        shape = tuple(extent * n for extent, n in zip(shape, per_shard, strict=True))
    attributes, _ = as_json_attributes(array.attributes)
    dimension_names = _dimension_names(attributes, len(shape))
    if names and dimension_names is not None:
        del attributes[DIMENSIONS]
        text = data_type == "string"
        fill = array.fill if not text or isinstance(array.fill, str) else None
        kind = np.dtype("U") if text else array.dtype.newbyteorder("=")
        attributes, _ = masked_attributes(attributes, kind, fill)
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(array.shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": array.separator}},
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": attributes,
    }
    if dimension_names is not None:
        metadata["dimension_names"] = dimension_names
    return metadata


def _dimension_names(attributes: Mapping[str, Any], ndim: int) -> list[str] | None:
    names = attributes.get(DIMENSIONS)
    if (
        not isinstance(names, list | tuple)
        or len(names) != ndim
        or not all(isinstance(n, str) for n in names)
    ):
        return None
    return list(names)


def _data_type(array: LegacyArray) -> tuple[Any, Any]:
    if array.dtype.hasobject:
        codec = array.filters[0]["id"]
        if codec not in TEXT_CODECS:
            unsupported(
                "attributes.filters[0].id", f"{show(codec)} has no counterpart in Zarr v3", codec=codec
            )
        if codec == "vlen-utf8":
            return "string", array.fill if isinstance(array.fill, str) else ""
        return "variable_length_bytes", ""
    native = array.dtype.newbyteorder("=")
    fill = np.zeros((), dtype=native)[()] if array.fill is None else array.fill
    return data_type_of(native, fill)


def _inner_codecs(array: LegacyArray) -> Codecs:
    codecs: Codecs = []
    if array.order == "F" and len(array.shape) > 1:
        codecs.append(_named("transpose", order=list(range(len(array.shape)))[::-1]))
    dtype, filters = array.dtype, list(enumerate(array.filters))
    if dtype.hasobject:
        codecs.append({"name": filters.pop(0)[1]["id"]})
    else:
        while filters and filters[0][1]["id"] in ARRAY_FILTERS:
            i, config = filters.pop(0)
            with within(f"attributes.filters[{i}]"):
                codec, dtype = _array_filter(config, dtype)
            codecs.append(codec)
        codecs.append(_bytes_codec(dtype))
    for i, config in filters:
        if config["id"] not in BYTES_FILTERS:
            reason = f"{show(config['id'])} has no counterpart in Zarr v3 at this position"
            unsupported(f"attributes.filters[{i}].id", reason, codec=config["id"])
        codecs.append(_numcodecs(config))
    if array.compressor is not None:
        with within("compressor.configuration"):
            codecs.append(_compressor(array.compressor, dtype))
    return codecs


def _named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _numcodecs(config: Mapping[str, Any]) -> dict[str, Any]:
    return _named(
        f"numcodecs.{config['id']}", **{name: value for name, value in config.items() if name != "id"}
    )


def _array_filter(config: Mapping[str, Any], dtype: DType) -> tuple[dict[str, Any], DType]:
    """Return a filter of zarr 3 and its output dtype. zarr passes native byte order to it and swaps bytes afterwards."""
    names, result = ARRAY_FILTERS[config["id"]]
    native = dict(config)
    kinds: dict[str, DType] = {}
    for name in names:
        if config.get(name) is not None:
            kinds[name] = _filter_dtype(config[name], name)
            native[name] = kinds[name].newbyteorder("=").str
    due = kinds.get(names[0], dtype) if names else np.dtype(bool)
    if due != dtype:  # numcodecs would reinterpret the bytes as the dtype of the filter
        unsupported(
            names[0] if names else "id", f"expected elements of {due}, got {dtype}", data_type=str(dtype)
        )
    if result.startswith("|"):
        return _numcodecs(native), np.dtype(result)
    return _numcodecs(native), kinds.get(result, due)


def _filter_dtype(value: object, name: str) -> DType:
    try:
        dtype: DType = np.dtype(value)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        wrong(name, f"expected a dtype, got {show(value)}: {error}", actual=value)
    if dtype.kind not in "biufc":
        unsupported(name, f"expected a boolean or numeric dtype, got {dtype}", data_type=str(dtype))
    return dtype


def _bytes_codec(dtype: DType) -> dict[str, Any]:
    orders = {leaf.str[0] for leaf in _leaves(dtype)} - {"|"}
    if len(orders) > 1:
        unsupported(
            "data_type", f"expected fields of one byte order, got both: {dtype}", data_type=str(dtype)
        )
    if not orders:
        return {"name": "bytes"}
    return _named("bytes", endian="big" if orders == {">"} else "little")


def _leaves(dtype: DType) -> list[DType]:
    if dtype.names is None:
        return [dtype]
    return [leaf for name in dtype.names for leaf in _leaves(dtype[name])]


def _compressor(config: Mapping[str, Any], dtype: DType) -> dict[str, Any]:
    name = config["id"]
    given = {key: value for key, value in config.items() if key != "id"}
    required, optional = PARAMETERS[name]
    check_keys(given, "", required=required, optional=optional)
    if name == "gzip":
        return Gzip(**given).to_json()
    if name == "zstd":
        return Zstd(**given).to_json()
    if name == "blosc":
        return _blosc(given, dtype)
    for key, value in given.items():
        if key == "filters" and value is not None:
            as_items(value, key)
        elif value is not None or key not in ("filters", "preset"):
            as_int(value, key)
    return _numcodecs(config)


def _blosc(given: Mapping[str, Any], dtype: DType) -> dict[str, Any]:
    typesize = max(1, dtype.itemsize)
    shuffle = given["shuffle"]
    if shuffle == -1:  # numcodecs chooses by the size of an element
        shuffle = 2 if typesize == 1 else 1
    if isinstance(shuffle, bool) or shuffle not in range(3):
        wrong("shuffle", f"expected -1, 0, 1 or 2, got {show(shuffle)}", actual=shuffle)
    return Blosc(
        given["cname"], given["clevel"], BLOSC_SHUFFLES[shuffle], typesize, given.get("blocksize", 0)
    ).to_json()
