# metadata.py - parse metadata of the 2022 format, and translate them to Zarr v3
# SPDX-License-Identifier: MIT
"""The 2022 format: a draft of Zarr v3 that zarr-python 2.14 to 2.18 writes with ``ZARR_V3_EXPERIMENTAL_API=1``.

    zarr.json                        the hierarchy: the format, and the suffix of metadata keys
    meta/root/<path>.group.json      attributes of a group; optional
    meta/root/<path>.array.json      an array
    data/root/<path>/c3/9            its chunks; with a sharding storage transformer its shards

The parser checks every value. It raises `SpecError` for a wrong value and `UnsupportedError` for a valid value that
is not implemented; both name the place in the document.

Source: zarr-specs, ``core-protocol-v3.0-dev`` of 2022 and its storage transformer ``sharding``; zarr-python 2.14.2 to
2.18.7, ``meta.py`` and ``_storage/v3_storage_transformers.py``.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...compat import data_type_of
from ...errors import SpecError
from ...format.attributes import DIMENSIONS, as_json_attributes, masked_attributes
from ...format.checks import (
    as_chunk_shape,
    as_int,
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
from ...format.codecs import Blosc, Gzip, Zstd
from ...format.fill_values import fill_from_json
from ...format.metadata import TEXT_CODECS
from ...storage.files import check_name

__all__ = [
    "LegacyArray",
    "array_key",
    "data_prefix",
    "group_key",
    "has_certain_fill",
    "normalized",
    "parse_array",
    "parse_group",
    "parse_hierarchy",
    "to_v3",
]

DType = np.dtype[Any]

PROTOCOL_URI = "https://purl.org/zarr/spec/protocol/core/3.0"
CODEC_URI = "https://purl.org/zarr/spec/codec/"

# All releases of zarr-python write the first spelling; the other ones are from the specification of 2022-11 (de0ceaf) and of
# 2023-02 (0610641).
SHARDING_SPELLINGS = (
    "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
    "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0",
    "sharding",
)

COMPRESSORS = ("gzip", "zlib", "blosc", "lz4", "bz2", "lzma", "zstd")

_REQUIRED = ("shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value", "attributes")
_OPTIONAL = ("extensions", "compressor", "storage_transformers", "dimension_separator")

_CORE_TYPE = re.compile(r"bool|\|b1|\|?[iu]1|[<>][iu][248]|[<>]f[248]")
_EXTENDED_TYPE = re.compile(
    r"[<>]c(8|16)|[<>][mM]8\[(Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)\]|\|S\d+|[<>]U\d+|\|V\d+|\|O"
)


@dataclass(frozen=True)
class LegacyArray:
    """Metadata of an array of the 2022 format.

    dtype: in the byte order of the stored elements. fill: None: elements that were never written have no defined value.
    filters, compressor: configurations of numcodecs, filters in the order of encoding. stack: chunks per shard of each sharding
    transformer; the last one is next to the store. attributes: without the one in which zarr-python stores filters. document:
    the complete array.json.
    """

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    separator: str
    order: str
    dtype: DType
    fill: Any
    filters: tuple[Mapping[str, Any], ...]
    compressor: Mapping[str, Any] | None
    stack: tuple[tuple[int, ...], ...]
    attributes: Mapping[str, Any]
    document: Mapping[str, Any]

    @property
    def is_sharded(self) -> bool:
        """True if the array has a sharding transformer."""
        return bool(self.stack)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of the array region in one object, in elements."""
        shape = np.array(self.chunk_shape, dtype=object)
        for per_shard in self.stack:
            shape = shape * np.array(per_shard, dtype=object)
        return tuple(int(extent) for extent in shape)

    def with_changes(self, shape: tuple[int, ...], attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the document with another shape and other attributes."""
        kept = {"filters": list(self.filters)} if self.filters else {}
        return {**self.document, "shape": list(shape), "attributes": {**kept, **attributes}}


# ---------------------------------------------------------------- keys


def normalized(path: str) -> str:
    """Return a path with normal slashes, none of them at its ends.

    ValueError: a name in the path is empty, "." or "..", or the path has a null byte.
    """
    path = check_name(path).replace("\\", "/").strip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise ValueError(f"path: expected parts that are neither empty nor dots, got {path!r}")
    return path


def array_key(path: str, suffix: str) -> str:
    """Return the key of an array's metadata."""
    return f"meta/root/{path}.array{suffix}" if path else f"meta/root.array{suffix}"


def group_key(path: str, suffix: str) -> str:
    """Return the key of a group's metadata."""
    return f"meta/root/{path}.group{suffix}" if path else f"meta/root.group{suffix}"


def data_prefix(path: str) -> str:
    """Return the common start of all chunk keys of an array, without "c"."""
    return f"data/root/{path}/" if path else "data/root/"


# ---------------------------------------------------------------- documents


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
        dtype = _parse_data_type(document["data_type"])
    with within("chunk_grid"):
        chunk_shape, separator = _parse_grid(document["chunk_grid"], len(shape), dtype.itemsize)
    _check_separator(document.get("dimension_separator"), separator)
    order = document["chunk_memory_layout"]
    if order not in ("C", "F"):
        wrong("chunk_memory_layout", f'expected "C" or "F", got {show(order)}', actual=order)
    attributes = as_mapping(document["attributes"], "attributes")
    filters = _parse_filters(attributes.get("filters"), dtype)
    with within("fill_value"):
        fill = _parse_fill(document["fill_value"], dtype)
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


# ---------------------------------------------------------------- elements


def _parse_data_type(data: object) -> DType:
    if isinstance(data, Mapping):
        check_keys(data, "", required=("type",), optional=("extension", "fallback", "must_understand"))
        with within("type"):
            return (
                _named_type(data["type"], _EXTENDED_TYPE)
                if isinstance(data["type"], str)
                else _struct(data["type"])
            )
    return _named_type(data, _CORE_TYPE)


def _named_type(name: object, known: re.Pattern[str]) -> DType:
    if not isinstance(name, str):
        wrong("", f"expected the name of a data type, got {show(name)}", actual=name)
    if known.fullmatch(name) is None and _CORE_TYPE.fullmatch(name) is None:
        unsupported("", f"expected a data type of zarr-python 2.18, got {show(name)}", data_type=name)
    try:
        dtype: DType = np.dtype(name)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{show(name)}: {error}", path="", actual=name) from error
    if dtype.itemsize == 0:
        wrong("", f"expected a data type with a size above 0, got {show(name)}", actual=name)
    return dtype


def _struct(data: object) -> DType:
    """Return a packed struct. A single field without a name stands for raw bytes."""
    fields: list[tuple[str, DType]] = []
    items = as_items(data, "")
    for i, item in enumerate(items):
        pair = as_items(item, f"[{i}]")
        if len(pair) == 3:
            unsupported(f"[{i}]", "shardcodec does not implement fields that are arrays", actual=pair)
        if len(pair) != 2 or not isinstance(pair[0], str):
            wrong(f"[{i}]", f"expected a name and a type, got {show(item)}", actual=item)
        name, kind = pair
        with within(f"[{i}][1]"):
            dtype = _named_type(kind, _EXTENDED_TYPE) if isinstance(kind, str) else _struct(kind)
        if dtype.hasobject:
            unsupported(f"[{i}][1]", "shardcodec does not implement fields of Python objects", actual=kind)
        if not name and len(items) == 1 and dtype.kind == "V" and dtype.names is None:
            return dtype
        fields.append((name, dtype))
    if not fields:
        wrong("", "expected a struct with at least one field, got none")
    try:
        return np.dtype(fields)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{show(data)}: {error}", path="", actual=data) from error


def _parse_fill(value: object, dtype: DType) -> Any:
    if value is None:
        return None
    if dtype.hasobject:
        return value
    if dtype.kind == "V":
        return _raw_fill(value, dtype)
    native = dtype.newbyteorder("=")
    if dtype.kind == "S" and not isinstance(value, str):
        wrong("", f"expected base64, got {show(value)}", actual=value)
    return np.frombuffer(fill_from_json(native, value), dtype=native)[0]


def _raw_fill(value: object, dtype: DType) -> Any:
    """Return the fill value from base64 bytes in the byte order of the array."""
    try:
        data = base64.b64decode(value, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        wrong("", f"expected base64, got {show(value)}", actual=value)
    if len(data) != dtype.itemsize:
        reason = f"expected {dtype.itemsize} bytes, got {len(data)}"
        wrong("", reason, expected=dtype.itemsize, actual=len(data))
    return np.frombuffer(data, dtype=dtype).astype(dtype.newbyteorder("="))[0]


# ---------------------------------------------------------------- translation to Zarr v3
#
# A sharding transformer and the codec `sharding_indexed` store inner chunks in the same way, but the transformer has no
# checksum of the index. So only the metadata differ:
#
#     data_type "<i4" or ">i4"                      data_type "int32", codec `bytes` with that byte order
#     chunk_memory_layout "F"                       codec `transpose` that reverses the axes
#     filters of numcodecs, a compressor            codecs of Zarr, or numcodecs.* codecs
#     storage_transformers, last next to the store  nested codecs `sharding_indexed`
#     chunks_per_shard                              shape of a shard, in elements

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
