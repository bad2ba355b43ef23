# test_native_codecs.py - every native codec, compared with zarr's own in both formats
# SPDX-License-Identifier: MIT
"""Each row of `codec_rows`: what one pipeline writes the other one reads, with equal stored bytes where an encoder has no choice."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from codec_rows import ROWS, CodecRow, cases_of
from helpers import ZARR_IS_31, bits, ours, put_object, quiet, zarrs_view
from spec_json import named, typed_metadata
from zarr.storage import MemoryStore

import shardcodec
from shardcodec.errors import ShardError
from shardcodec.format import codecs as codec_module

SHAPE, SHARD, CHUNK = (13, 20), (8, 12), (4, 6)


def values_of(dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return numbers of which a filter loses nothing that matters: small ones, with some fill values."""
    numbers = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, SHAPE)
    return numbers.astype(dtype)


def kind_of(row: CodecRow) -> str:
    codec = next(entry.codec for entry in codec_module.ROWS if row.name in entry.names)
    return codec.kind


def chain_of(row: CodecRow, configuration: dict[str, Any], extra: str) -> list[Any]:
    """Return the codec in a chain, alone or with other codecs around it."""
    codec = named(row.name, **configuration)
    filters, behind = ([codec], []) if kind_of(row) == "array -> array" else ([], [codec])
    if extra == "more":
        behind += [named("zstd", level=1, checksum=False), named("crc32c")]
        if not (
            ZARR_IS_31 and filters
        ):  # zarr before 3.2 stored elements behind a transpose in another order (gh-3558)
            filters = [named("transpose", order=[1, 0]), *filters]
    return [*filters, named("bytes", endian="little"), *behind]


def create(row: CodecRow, configuration: dict[str, Any], dtype: str, extra: str, sharded: bool) -> Any:
    codecs = chain_of(row, configuration, extra)
    return store_with(typed_metadata(dtype, codecs, SHAPE, CHUNK, SHARD if sharded else None))


def store_with(document: Any) -> MemoryStore:
    store = MemoryStore()
    put_object(store, "zarr.json", json.dumps(document).encode())
    return store


def stored(store: MemoryStore) -> dict[str, bytes]:
    return {
        key: value.to_bytes()
        for key, value in store._store_dict.items()
        if not key.endswith((".json", ".zarray"))
    }


def own(store: Any) -> Any:
    with quiet():
        return zarr.open_array(store, mode="r+")


CASES = [case for row in ROWS if row.zarr_has_it for case in cases_of(row)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("row", "configuration", "dtype"), CASES)
@pytest.mark.parametrize("extra", ["alone", "more"])
def test_zarr_v3_reads_and_writes_the_same(row: CodecRow, configuration: Any, dtype: str, extra: str) -> None:
    turn = row.configurations.index(configuration) + row.dtypes.index(dtype)
    for sharded in (True, False) if extra == "alone" else (turn % 2 == 0,):
        a, b = (create(row, configuration, dtype, extra, sharded) for _ in range(2))
        values = values_of(dtype)
        mine, theirs = ours(a), own(b)
        for step in (np.s_[:, :], np.s_[2:9, 3:17], np.s_[4:8, 6:12]):
            mine[step] = theirs[step] = values[step]
            values = values[::-1]
        assert bits(zarrs_view(mine)[...]) == bits(mine[...]) == bits(theirs[...]) == bits(ours(b)[...])
        assert bits(shardcodec.open_array(b)[3:11, ::2]) == bits(theirs[3:11, ::2])
        assert stored(a).keys() == stored(b).keys()
        if row.is_exact and extra == "alone" and not sharded:
            assert stored(a) == stored(b)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("row", "configuration", "dtype"), [case for case in CASES if case.values[0].in_v2])
@pytest.mark.parametrize("order", ["C", "F"])
def test_zarr_v2_reads_and_writes_the_same(row: CodecRow, configuration: Any, dtype: str, order: str) -> None:
    codec = numcodecs.get_codec({"id": row.name.removeprefix("numcodecs."), **configuration})
    values = values_of(dtype)
    for as_filter in (True, False) if kind_of(row) == "bytes -> bytes" else (True,):
        arrays = []
        for _ in range(2):
            store = MemoryStore()
            filters, compressors = ([codec], numcodecs.Zlib(1)) if as_filter else (None, codec)
            with quiet():
                zarr.create_array(
                    store,
                    shape=SHAPE,
                    chunks=CHUNK,
                    dtype=np.dtype(dtype),
                    zarr_format=2,
                    order=order,
                    filters=filters,
                    compressors=compressors,
                    fill_value=0,
                )
            arrays.append(store)
        if (
            row.name == "numcodecs.bitround" and order == "F"
        ):  # stored in another order, and read back wrongly
            with pytest.raises(shardcodec.UnsupportedError, match="order F"):
                ours(arrays[0])[...] = values
            continue
        mine, theirs = ours(arrays[0]), own(arrays[1])
        mine[...] = theirs[...] = values
        assert (
            bits(zarrs_view(mine)[...]) == bits(mine[...]) == bits(theirs[...]) == bits(ours(arrays[1])[...])
        )
        assert bits(shardcodec.open_array(arrays[1])[...]) == bits(theirs[...])
        if row.is_exact and not as_filter:
            assert stored(arrays[0]) == stored(arrays[1])


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
    """Yield cut, extended and changed copies."""
    rng = random.Random(seed)
    yield from (data[:n] for n in (0, 1, 3, 4, len(data) // 2, len(data) - 1))
    yield data + b"\0"
    yield data + data
    for _ in range(40):
        copy = bytearray(data)
        for _ in range(rng.choice((1, 1, 3))):
            copy[rng.randrange(len(copy))] = rng.randrange(256)
        yield bytes(copy)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("row", "configuration", "dtype"), [case for case in CASES if case.values[2] == case.values[0].dtypes[0]]
)
def test_damaged_chunk_is_an_error_or_reads_as_zarr_reads_it(
    row: CodecRow, configuration: Any, dtype: str
) -> None:
    """zarr accepts a few malformed chunks, such as with bytes left over, so only equal results count where both read."""
    store = create(row, configuration, dtype, "alone", False)
    ours(store)[...] = values_of(dtype)
    key = min(stored(store))
    mine, theirs = ours(store), own(store)
    box = tuple(slice(0, n) for n in CHUNK)
    for data in damaged(stored(store)[key], len(CASES)):
        put_object(store, key, data)
        try:
            got = bits(mine[box])
        except ShardError:
            continue
        try:
            expected = bits(theirs[box])
        except Exception:
            expected = None
        assert got == expected


@pytest.mark.filterwarnings("ignore")
def test_filters_take_elements_of_any_memory_and_leave_out_chunks_of_nan() -> None:
    """Filters get elements in native order: from an array in the other order, in F order, and compared with a fill value of NaN."""
    scale = named("numcodecs.fixedscaleoffset", offset=1, scale=4, dtype="<f4", astype="<f8")
    inner = [
        named("numcodecs.bitround", keepbits=20),
        scale,
        named("bytes", endian="little"),
        named("crc32c"),
    ]
    nested = named(
        "sharding_indexed",
        chunk_shape=[2, 3],
        codecs=inner,
        index_codecs=[named("bytes", endian="little")],
    )
    values = values_of("float32")
    values[4:8, 6:12] = np.nan
    for codecs in (inner, [nested]):
        stores = []
        for _ in range(2):
            document = {
                "zarr_format": 3,
                "node_type": "array",
                "shape": list(SHAPE),
                "data_type": "float32",
                "chunk_grid": named("regular", chunk_shape=list(CHUNK)),
                "chunk_key_encoding": named("default"),
                "fill_value": "NaN",
                "codecs": codecs,
                "attributes": {},
            }
            stores.append(store_with(document))
        mine, theirs = ours(stores[0]), own(stores[1])
        theirs[...] = values
        for given in (values, np.asfortranarray(values), values.astype(">f4")):
            mine[...] = 5
            mine[...] = given
            assert stored(stores[0]).keys() == stored(stores[1]).keys()
            assert bits(mine[...]) == bits(theirs[...]) == bits(zarrs_view(mine)[...])
        out = np.empty(SHAPE, ">f4")
        out[...] = shardcodec.open_array(stores[0])[...]
        assert bits(out.astype("f4")) == bits(theirs[...])
