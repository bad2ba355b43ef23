# staged_codecs.py - codecs without native code, and arrays with them
# SPDX-License-Identifier: MIT
"""For the tests of staged codecs: third-party codecs, and codec chains around and inside of the sharding."""

from __future__ import annotations

from typing import Any

import zarr
from helpers import ours, quiet
from zarr.abc.codec import ArrayArrayCodec, BytesBytesCodec
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as of_numcodecs
from zarr.registry import register_codec

__all__ = ["AROUND", "CHUNK", "INNER", "SHAPE", "SHARD", "Plus", "Turned", "TurnedAtOnce", "make"]

SHAPE, SHARD, CHUNK = (12, 20), (8, 12), (4, 3)


class Turned(BytesBytesCodec):
    """A third-party codec that reverses the bytes. It has asynchronous methods only, and counts its calls."""

    is_fixed_size = True
    running: set[str]
    n_decoded = 0
    n_encoded = 0

    @classmethod
    def from_dict(cls, data: Any) -> Any:
        return cls()

    def to_dict(self) -> Any:
        return {"name": "turned", "configuration": {}}

    def compute_encoded_size(self, n: int, spec: Any) -> int:
        return n

    async def _decode_single(self, data: Any, spec: Any) -> Any:
        Turned.n_decoded += 1
        return spec.prototype.buffer.from_bytes(data.to_bytes()[::-1])

    async def _encode_single(self, data: Any, spec: Any) -> Any:
        Turned.n_encoded += 1
        return spec.prototype.buffer.from_bytes(data.to_bytes()[::-1])


class TurnedAtOnce(Turned):
    """The same with synchronous methods."""

    def to_dict(self) -> Any:
        return {"name": "turned-at-once", "configuration": {}}

    def _decode_sync(self, data: Any, spec: Any) -> Any:
        Turned.n_decoded += 1
        return spec.prototype.buffer.from_bytes(data.to_bytes()[::-1])

    def _encode_sync(self, data: Any, spec: Any) -> Any:
        Turned.n_encoded += 1
        return spec.prototype.buffer.from_bytes(data.to_bytes()[::-1])


class Plus(ArrayArrayCodec):
    """A codec that stores other elements than it gets."""

    is_fixed_size = True

    @classmethod
    def from_dict(cls, data: Any) -> Any:
        return cls()

    def to_dict(self) -> Any:
        return {"name": "plus", "configuration": {}}

    def compute_encoded_size(self, n: int, spec: Any) -> int:
        return n

    async def _decode_single(self, data: Any, spec: Any) -> Any:
        return spec.prototype.nd_buffer.from_numpy_array(data.as_numpy_array() - 1)

    async def _encode_single(self, data: Any, spec: Any) -> Any:
        return spec.prototype.nd_buffer.from_numpy_array(data.as_numpy_array() + 1)


register_codec("plus", Plus)
register_codec("turned", Turned)
register_codec("turned-at-once", TurnedAtOnce)


def make(store: Any, codecs: Any, *, before: Any = (), after: Any = (), **arguments: Any) -> Any:
    """Create an array whose inner chunks have these codecs, with others around the sharding. Open it with `strict`."""
    sharding = ShardingCodec(
        chunk_shape=arguments.pop("inner", CHUNK),
        codecs=codecs,
        index_location=arguments.pop("index_location", "end"),
    )
    defaults: dict[str, Any] = {"shape": SHAPE, "chunks": SHARD, "dtype": "int32", "fill_value": -1}
    with quiet():
        zarr.create_array(
            store,
            serializer=sharding,
            filters=list(before) or None,
            compressors=list(after) or None,
            **(defaults | arguments),
        )
    return ours(store)


INNER: dict[str, Any] = {
    "bz2": lambda: [BytesCodec(), of_numcodecs.BZ2(level=1)],
    "lzma": lambda: [BytesCodec(endian="big"), of_numcodecs.LZMA(preset=1), Crc32cCodec()],
    "delta": lambda: [of_numcodecs.Delta(dtype="int32"), BytesCodec(), of_numcodecs.BZ2(level=1)],
    "scale": lambda: [
        of_numcodecs.FixedScaleOffset(offset=3, scale=1, dtype="int32"),
        BytesCodec(),
        of_numcodecs.JenkinsLookup3(),
        ZstdCodec(),
    ],
    "transposed": lambda: [TransposeCodec(order=(1, 0)), BytesCodec(), of_numcodecs.BZ2(level=1)],
    "checksum": lambda: [BytesCodec(), of_numcodecs.JenkinsLookup3()],
    "awaited": lambda: [BytesCodec(), Turned()],
    "at once": lambda: [BytesCodec(), TurnedAtOnce()],
    "nested": lambda: [
        ShardingCodec(chunk_shape=(2, 3), codecs=[BytesCodec(), of_numcodecs.BZ2(level=1)]),
        Crc32cCodec(),
    ],
}
AROUND: dict[str, Any] = {
    "transposed": {
        "before": [TransposeCodec(order=(1, 0))],
        "inner": (3, 4),
        "chunks": (12, 12),
        "shape": (30, 30),
    },
    "other elements before": {"before": [Plus()]},
    "another dtype before": {
        "before": [
            of_numcodecs.AsType(encode_dtype="int64", decode_dtype="int32"),
            TransposeCodec(order=(0, 1)),
        ]
    },
    "bz2 after": {"after": [of_numcodecs.BZ2(level=1)]},
    "turned after": {"after": [ZstdCodec(), Turned()]},
    "both": {"before": [Plus()], "after": [Turned()]},
}
