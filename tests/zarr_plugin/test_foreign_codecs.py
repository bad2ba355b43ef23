# test_foreign_codecs.py - codecs of zarr and numcodecs that have no native code, one by one, inside shards
# SPDX-License-Identifier: MIT
"""Each pipeline reads what the other one has written, bit for bit, by slices and by index arrays.

With zarr 3.1 zarr's pipeline only reads. When it writes, it passes parts of arrays to codecs that need whole ones,
and confuses the axes of index arrays. With codecs of numcodecs after a transpose it stores elements in the wrong
order, and shardcodec does the same there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr.codecs
from helpers import ZARR_IS_31, bits, create, ours, quiet, random_array, zarrs_view
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as of_numcodecs
from zarr.storage import MemoryStore

SHAPE, SHARD, CHUNK = (12, 20), (8, 12), (4, 3)


def of_zarr(name: str, **configuration: Any) -> Any:
    """Return a codec that only newer releases of zarr have."""
    if not hasattr(zarr.codecs, name):
        pytest.skip(f"this zarr does not have {name}")
    return getattr(zarr.codecs, name)(**configuration)


def optional(module: str, make: Callable[[], Any]) -> Any:
    """Return a codec of numcodecs that needs another package."""
    pytest.importorskip(module)
    return make()


CODECS: dict[str, tuple[str, Callable[[], list[Any]]]] = {
    "scale_offset": (
        "float64",
        lambda: [of_zarr("ScaleOffset", offset=5, scale=2), BytesCodec(), ZstdCodec()],
    ),
    "scale_offset of integers": (
        "int32",
        lambda: [of_zarr("ScaleOffset", offset=5), BytesCodec(endian="big")],
    ),
    "cast_value": (
        "float64",
        lambda: [
            optional(
                "cast_value_rs", lambda: of_zarr("CastValue", data_type="int16", rounding="towards-zero")
            ),
            BytesCodec(),
        ],
    ),
    "pcodec": ("int32", lambda: [optional("pcodec", of_numcodecs.PCodec)]),
    "pcodec of floats": ("float32", lambda: [optional("pcodec", of_numcodecs.PCodec), ZstdCodec()]),
    "zfpy": ("float32", lambda: [optional("zfpy", of_numcodecs.ZFPY)]),
    "zfpy with loss": (
        "float64",
        lambda: [optional("zfpy", lambda: of_numcodecs.ZFPY(mode=4, tolerance=0.01))],
    ),
    "bitround": ("float32", lambda: [of_numcodecs.BitRound(keepbits=6), BytesCodec(), ZstdCodec()]),
    "quantize": ("float64", lambda: [of_numcodecs.Quantize(digits=2, dtype="float64"), BytesCodec()]),
    "packbits": ("bool", lambda: [of_numcodecs.PackBits(), BytesCodec()]),
    "lzma": ("int32", lambda: [BytesCodec(), of_numcodecs.LZMA(preset=0)]),
    "transposed before delta": (
        "int32",
        lambda: [TransposeCodec(order=(1, 0)), of_numcodecs.Delta(dtype="int32"), BytesCodec()],
    ),
    "transposed before pcodec": (
        "int32",
        lambda: [TransposeCodec(order=(1, 0)), optional("pcodec", of_numcodecs.PCodec)],
    ),
    "transposed before zfpy": (
        "float32",
        lambda: [TransposeCodec(order=(1, 0)), optional("zfpy", of_numcodecs.ZFPY)],
    ),
    "fletcher32": ("int32", lambda: [BytesCodec(), of_numcodecs.Fletcher32()]),
}


def make(name: str) -> Any:
    dtype, codecs = CODECS[name]
    with quiet():
        sharding = ShardingCodec(chunk_shape=CHUNK, codecs=codecs())
        create(
            store := MemoryStore(),
            own=True,
            shape=SHAPE,
            chunks=SHARD,
            dtype=dtype,
            fill_value=0,
            serializer=sharding,
            shards=None,
        )
        return ours(store)


def values_for(array: Any) -> np.ndarray[Any, Any]:
    return random_array(SHAPE, array.dtype)


def writers(array: Any, other: Any) -> list[Any]:
    return [array] if ZARR_IS_31 else [array, other]


def lossy(name: str) -> bool:
    return name in ("cast_value", "zfpy with loss", "bitround", "quantize", "scale_offset")


@pytest.mark.parametrize("name", CODECS)
def test_slices_are_read_alike(name: str) -> None:
    array = make(name)
    other, values = zarrs_view(array), values_for(array)
    for writer in writers(array, other):
        for box in (np.s_[...], np.s_[3:9, 5:19], np.s_[4:8, 3:6], np.s_[::3, 7], np.s_[5, 6]):
            writer[box] = np.roll(values, 1 + (writer is other))[box]
            assert bits(array[...]) == bits(other[...])
            assert bits(array[2:11, 1:18:2]) == bits(other[2:11, 1:18:2])
    if not lossy(name):
        array[...] = values
        assert bits(other[...]) == bits(values)


ROWS, COLUMNS = np.array([11, 0, 5, 5, 8]), np.array([19, 2, 3, 11])
PLACES = (np.array([0, 11, 7, 7, 4]), np.array([0, 19, 12, 11, 3]))


@pytest.mark.parametrize("name", CODECS)
def test_index_arrays_are_read_alike(name: str) -> None:
    """Lists of rows and columns, points and masks: each pipeline reads and writes them, the other one checks."""
    array = make(name)
    other, values = zarrs_view(array), values_for(array)
    mask = np.arange(values.size).reshape(SHAPE) % 7 == 0
    array[...] = values
    assert bits(array.oindex[ROWS, COLUMNS]) == bits(other.oindex[ROWS, COLUMNS])
    assert bits(array.oindex[ROWS, 4:9]) == bits(other.oindex[ROWS, 4:9])
    assert bits(array.vindex[PLACES]) == bits(other.vindex[PLACES])
    assert bits(array.vindex[mask]) == bits(other.vindex[mask])
    rows = np.array([1, 4, 10])
    for writer in writers(array, other):
        for turn, (kind, where) in enumerate(
            [
                ("oindex", (rows, COLUMNS[1:])),
                ("oindex", (slice(2, 9), rows)),
                ("vindex", PLACES),
                ("vindex", mask),
            ]
        ):
            selection = getattr(writer, kind)
            part = getattr(writer, kind)[where]
            selection[where] = np.roll(values, turn + 2).ravel()[: part.size].reshape(part.shape)
            assert bits(array[...]) == bits(other[...]), (kind, writer is other)


BIG_ENDIAN_FILTERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "fixedscaleoffset": (
        "float32",
        lambda: of_numcodecs.FixedScaleOffset(offset=0, scale=10, dtype=">f4", astype="i2"),
    ),
    "astype": ("uint16", lambda: of_numcodecs.AsType(encode_dtype="i8", decode_dtype=">u2")),
}


@pytest.mark.parametrize("name", BIG_ENDIAN_FILTERS)
def test_partial_write_keeps_elements_of_a_big_endian_filter(name: str) -> None:
    """Filters of numcodecs reinterpret memory in the order that they name; other elements became 0 in the first partial write."""
    dtype, make_filter = BIG_ENDIAN_FILTERS[name]
    with quiet():
        sharding = ShardingCodec(chunk_shape=(4,), codecs=[make_filter(), BytesCodec()])
        create(
            store := MemoryStore(),
            own=True,
            shape=(12,),
            chunks=(12,),
            dtype=dtype,
            serializer=sharding,
            fill_value=0,
            shards=None,
        )
    array = ours(store)
    twin = np.zeros(12, dtype)
    for place in (slice(0, 8), 1, slice(9, 11)):  # whole inner chunks, an old one, a new one
        array[place] = twin[place] = np.arange(1, 13)[place]
        assert array[:].tolist() == zarrs_view(array)[:].tolist() == twin.tolist()
    array[0:8] = twin[0:8] = np.arange(8).astype(array.dtype.newbyteorder(">"))
    assert array[:].tolist() == twin.tolist()


def test_codecs_get_aligned_bytes() -> None:
    """`cast_value` panicked on an inner chunk whose bytes began at an odd multiple of 4, as after a crc32c."""
    pytest.importorskip("cast_value_rs")
    many = {"encode": [(float(i), i) for i in range(1000, 1257)]}  # the engine has up to 256
    cast = of_zarr("CastValue", data_type="int64", rounding="towards-zero", scalar_map=many)
    with quiet():
        sharding = ShardingCodec(chunk_shape=(5,), codecs=[cast, BytesCodec(), Crc32cCodec()])
        create(
            store := MemoryStore(),
            own=True,
            shape=(40,),
            chunks=(40,),
            dtype="float64",
            serializer=sharding,
            fill_value=0,
            shards=None,
        )
    array = ours(store)
    array[...] = np.arange(40)
    array[7:13] = 1
    assert array[:].tolist() == [*range(7), *[1] * 6, *range(13, 40)]
