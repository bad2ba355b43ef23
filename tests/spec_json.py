# spec_json.py - builders of the JSON of codecs, shards and arrays
# SPDX-License-Identifier: MIT
"""Builders of valid metadata. They import no implementation, so each implementation gets the same text."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def named(name: str, /, **configuration: Any) -> Json:
    return {"name": name, "configuration": configuration}


def struct(*fields: tuple[str, Any]) -> Json:
    return named("struct", fields=[{"name": name, "data_type": data_type} for name, data_type in fields])


def zstd(level: int = 1, *, checksum: bool = False) -> Json:
    return named("zstd", level=level, checksum=checksum)


def blosc(cname: str, shuffle: str, typesize: int, *, clevel: int = 5, blocksize: int = 0) -> Json:
    return named("blosc", cname=cname, clevel=clevel, shuffle=shuffle, typesize=typesize, blocksize=blocksize)


def transpose(*order: int) -> Json:
    return named("transpose", order=list(order))


BYTE = {"name": "bytes"}
LITTLE = named("bytes", endian="little")
BIG = named("bytes", endian="big")
CRC = {"name": "crc32c"}
GZIP = named("gzip", level=1)
CHECKED_INDEX = [LITTLE, CRC]


def config(
    chunk_shape: Any = (2, 3),
    codecs: Any = (LITTLE,),
    index_codecs: Any = (LITTLE, CRC),
    index_location: Any = "end",
    **more: Any,
) -> Json:
    """Return a valid configuration of `sharding_indexed` for shards of 4 x 6. The value ... removes a key."""
    base = {
        "chunk_shape": chunk_shape,
        "codecs": codecs,
        "index_codecs": index_codecs,
        "index_location": index_location,
    }
    kept = {key: value for key, value in (base | more).items() if value is not ...}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in kept.items()}


def sharding(*given: Any, **more: Any) -> Json:
    """Return a codec with `config`."""
    return named("sharding_indexed", **config(*given, **more))


def metadata(*codecs: Any, **changes: Any) -> Json:
    """Return a valid zarr.json with chunks of 4 x 6. The value ... removes a key."""
    base = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [10, 20],
        "data_type": "int32",
        "chunk_grid": named("regular", chunk_shape=[4, 6]),
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": list(codecs) or [sharding()],
        "attributes": {},
    }
    return {key: value for key, value in (base | changes).items() if value is not ...}


def typed_metadata(
    data_type: Any, codecs: Any, shape: Any, chunk: Any, shard: Any = None, fill: Any = None
) -> Json:
    """Return a zarr.json of an array of some type, with these codecs for its chunks or, with `shard`, for its inner chunks."""
    if fill is None:
        fill = [0.0, 0.0] if str(data_type).startswith("complex") else False if data_type == "bool" else 0
    outer = [sharding(chunk, codecs)] if shard is not None else codecs
    grid = named("regular", chunk_shape=list(chunk if shard is None else shard))
    return metadata(*outer, shape=list(shape), data_type=data_type, chunk_grid=grid, fill_value=fill)


def hierarchy_2022() -> Json:
    """Return the zarr.json of a hierarchy of the 2022 format."""
    return {
        "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_key_suffix": ".json",
        "extensions": [],
    }


def array_2022(*, shape: Any = (21, 13), chunk_shape: Any = (4, 3), chunks_per_shard: Any = (2, 3)) -> Json:
    """Return a valid array.json of the 2022 format, as zarr-python 2.18.7 writes it."""
    return {
        "attributes": {},
        "chunk_grid": {"chunk_shape": list(chunk_shape), "separator": "/", "type": "regular"},
        "chunk_memory_layout": "C",
        "compressor": {
            "codec": "https://purl.org/zarr/spec/codec/blosc/1.0",
            "configuration": {"blocksize": 0, "clevel": 5, "cname": "lz4", "shuffle": 1},
        },
        "data_type": "<i4",
        "extensions": [],
        "fill_value": 7,
        "shape": list(shape),
        "storage_transformers": [
            {
                "configuration": {"chunks_per_shard": list(chunks_per_shard)},
                "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
                "type": "indexed",
            }
        ],
    }
