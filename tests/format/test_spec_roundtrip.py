# test_spec_roundtrip.py - specs to JSON and back: random specs, and specs that zarr writes
# SPDX-License-Identifier: MIT
"""A conversion between a spec and its JSON loses nothing, for our JSON and for zarr's."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from spec_checks import NAMESPACE, stored_json

from shardcodec.format import codecs as codec_module
from shardcodec.format.codecs import (
    Blosc,
    Bytes,
    Crc32c,
    Gzip,
    Lz4,
    Sharding,
    Transpose,
    Zlib,
    Zstd,
)
from shardcodec.format.spec import ChainSpec, ShardSpec

# --- random specs ---

shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
bytes_codecs = st.one_of(
    st.just(Crc32c()),
    st.builds(Zstd, st.integers(-131072, 22), st.booleans()),
    st.builds(Gzip, st.integers(0, 9)),
    st.builds(Zlib, st.integers(0, 9)),
    st.builds(Lz4, st.integers(1, 100)),
    st.builds(
        Blosc,
        st.sampled_from(codec_module.BLOSC_COMPRESSORS),
        st.integers(0, 9),
        st.sampled_from([None, *codec_module.BLOSC_SHUFFLES]),
        st.one_of(st.none(), st.integers(1, 300)),
        st.integers(0, 2**20),
    ),
)
endians = st.sampled_from([Bytes("little"), Bytes("big")])


def transposes(ndim: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.permutations(range(ndim)).map(Transpose), max_size=2)


@st.composite
def chains(draw: st.DrawFn, shape: tuple[int, ...], depth: int) -> list[Any]:
    """Draw codecs for an array of this shape."""
    before = draw(transposes(len(shape)))
    after = draw(st.lists(bytes_codecs, max_size=2))
    if depth == 0 or draw(st.booleans()):
        return [*before, draw(endians), *after]
    stored = np.zeros(shape, "u1")
    for codec in before:
        stored = stored.transpose(codec.order)
    chunk = tuple(
        draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])) for size in stored.shape
    )
    index = [*draw(transposes(len(shape) + 1)), draw(endians), *draw(st.lists(st.just(Crc32c()), max_size=3))]
    inner = draw(chains(chunk, depth - 1))
    return [
        *before,
        Sharding(chunk, tuple(inner), tuple(index), draw(st.sampled_from(["start", "end"]))),
        *after,
    ]


fills = st.one_of(
    st.tuples(st.just("i2"), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just("f4"), st.integers(0, 2**32 - 1).map(lambda bits: f"0x{bits:08x}")),
    st.tuples(st.just("f8"), st.floats()),
    st.tuples(st.just("c8"), st.complex_numbers(width=64)),
    st.tuples(st.just("S3"), st.binary(max_size=3)),
    st.tuples(st.just([("a", "i4"), ("b", "S2")]), st.tuples(st.integers(0, 9), st.binary(max_size=2))),
)


@st.composite
def specs(draw: st.DrawFn) -> ChainSpec:
    shape = tuple(
        n * m for n, m in draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=3))
    )
    dtype, fill = draw(fills)
    return ChainSpec(shape, dtype, fill, draw(chains(shape, 2)))


@given(specs())
def test_random_spec_survives_json_repr_and_pickle(spec: ChainSpec) -> None:
    array_shape = tuple(3 * n for n in spec.shape)
    data = json.loads(json.dumps(spec.to_metadata(array_shape), allow_nan=False))
    assert ChainSpec.from_metadata(data) == spec
    assert ChainSpec.from_metadata(data).to_metadata(array_shape) == data
    codecs = json.loads(json.dumps(spec.to_json()))
    assert ChainSpec.from_json(codecs, shape=spec.shape, dtype=spec.dtype, fill_value=spec.fill_value) == spec
    assert eval(repr(spec), NAMESPACE) == spec
    assert hash(pickle.loads(pickle.dumps(spec))) == hash(spec)


@given(specs().filter(lambda spec: spec.sharding is not None))
def test_random_shard_survives_conversion_to_a_chain(chain: ChainSpec) -> None:
    spec = ShardSpec.from_chain(chain)
    assert spec.chain == chain
    assert spec.inner == chain.inner
    assert ShardSpec.from_metadata(chain.to_metadata(chain.shape)) == spec
    assert eval(repr(spec), NAMESPACE) == spec
    alone = dataclasses.replace(spec, shard_shape=spec.stored_shape, before=(), after=())
    codec = json.loads(json.dumps(spec.to_json()))
    keywords = {"shard_shape": spec.stored_shape, "dtype": spec.dtype, "fill_value": spec.fill_value}
    assert ShardSpec.from_json(codec, **keywords) == alone
    assert ShardSpec.from_json(codec["configuration"], **keywords) == alone
    assert math.prod(spec.grid_shape) * math.prod(spec.chunk_shape) == math.prod(spec.shard_shape)


# --- compared with zarr ---


def zarr_codecs() -> list[tuple[str, Any]]:
    zc = pytest.importorskip("zarr.codecs")
    return [
        ("zstd", {"compressors": [zc.ZstdCodec(level=3, checksum=True)]}),
        ("gzip", {"compressors": [zc.GzipCodec(level=1)]}),
        ("blosc", {"compressors": [zc.BloscCodec(cname="lz4", shuffle="bitshuffle")]}),
        ("blosc by itemsize", {"compressors": [zc.BloscCodec()]}),
        ("crc32c twice", {"compressors": [zc.Crc32cCodec(), zc.Crc32cCodec()]}),
        ("big", {"serializer": zc.BytesCodec(endian="big"), "compressors": None}),
        ("transpose", {"filters": [zc.TransposeCodec(order=(1, 0))], "compressors": None}),
    ]


@pytest.mark.interop
@pytest.mark.parametrize("shards", [None, (4, 6)], ids=["chunks", "shards"])
@pytest.mark.parametrize("which", range(7))
def test_codecs_of_zarr_are_read_and_written_back(which: int, shards: Any) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.1")
    _, keywords = zarr_codecs()[which]
    array = zarr.create_array(
        zarr.storage.MemoryStore(), shape=(8, 12), chunks=(2, 3), shards=shards, dtype="int32", **keywords
    )
    data = stored_json(array)
    spec = ChainSpec.from_metadata(data)
    assert spec.shape == (shards or (2, 3))
    assert spec.to_json() == data["codecs"]
    assert ChainSpec.from_metadata(array.metadata.to_dict()) == spec


@pytest.mark.interop
def test_nested_shards_of_zarr_are_read_and_written_back() -> None:
    zarr = pytest.importorskip("zarr", minversion="3.1")
    zc = pytest.importorskip("zarr.codecs")
    nested = zc.ShardingCodec(chunk_shape=(1, 3), codecs=[zc.BytesCodec(endian="big"), zc.GzipCodec()])
    outer = zc.ShardingCodec(
        chunk_shape=(2, 3),
        codecs=[zc.TransposeCodec(order=(0, 1)), nested],
        index_codecs=[zc.TransposeCodec(order=(2, 0, 1)), zc.BytesCodec(endian="big")],
        index_location="start",
    )
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(
        store, shape=(8, 12), chunks=(4, 6), dtype="f8", serializer=outer, compressors=None
    )
    data = stored_json(array)
    spec = ShardSpec.from_metadata(data)
    assert spec.chain.to_json() == data["codecs"]
    assert (spec.index_location, spec.index_endian, spec.index_perm) == ("start", "big", (2, 0, 1))
    inner = spec.inner.inner
    assert inner is not None
    assert inner.codecs == (Bytes("big"), Gzip(5))


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs")
@pytest.mark.parametrize(
    ("name", "keywords", "codec"),
    [
        ("Zlib", {"level": 3}, Zlib(3)),
        ("LZ4", {"acceleration": 2}, Lz4(2)),
        ("Zstd", {"level": 2}, Zstd(2)),
        ("GZip", {"level": 2}, Gzip(2)),
        ("Blosc", {"cname": "lz4", "clevel": 3, "shuffle": 1}, Blosc("lz4", 3, "shuffle", 1, 0)),
        ("CRC32C", {}, Crc32c()),
    ],
)
def test_codecs_of_numcodecs_are_read(name: str, keywords: Any, codec: Any) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.1")
    module = pytest.importorskip("zarr.codecs.numcodecs")
    compressor = getattr(module, name)(**keywords)
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, shape=(8,), chunks=(4,), dtype="int32", compressors=[compressor])
    spec = ChainSpec.from_metadata(stored_json(array))
    assert spec.codecs[-1] == codec
    array[:] = np.arange(8)
    if codec.json_name.startswith("numcodecs."):
        return
    # The spec claims that these are the bytes of the plain codec, so an array with the plain codec must read the same.
    from zarr.core.buffer import cpu

    plain = cpu.Buffer.from_bytes(json.dumps(spec.to_metadata((8,))).encode())
    asyncio.run(store.set("zarr.json", plain))
    np.testing.assert_array_equal(zarr.open_array(store, mode="r")[:], np.arange(8))
