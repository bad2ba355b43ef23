# test_ranks.py - arrays without axes, with many axes, and with axes of length 0
# SPDX-License-Identifier: MIT
"""Requirements SC-39 and SC-40: no code path depends on a usual number of axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, bits, files_below, ours, quiet, random_array, store_of, zarrs_view
from pairs import pairs
from reference import ShardMeta, decode_shard, encode_shard
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.codecs import numcodecs as of_numcodecs
from zarr.storage import LocalStore, MemoryStore

from shardcodec import ShardSpec, decode, encode

CHAINS: dict[str, Any] = {
    "raw": lambda: [BytesCodec()],
    "zstd": lambda: [BytesCodec(), ZstdCodec(), Crc32cCodec()],
    "staged": lambda: [BytesCodec(), of_numcodecs.BZ2(level=1)],
}
RANKS = (0, 1, 2, 5, 12, 31, 32)


def make(store: Any, shape: tuple[int, ...], shard: Any, inner: Any, codecs: str) -> Any:
    with quiet():
        zarr.create_array(
            store,
            shape=shape,
            chunks=shard,
            dtype="int16",
            fill_value=-1,
            serializer=ShardingCodec(chunk_shape=inner, codecs=CHAINS[codecs]()),
            compressors=None,
            filters=None,
        )
    return ours(store)


def long_axes(rank: int, extent: int, n: int = 4) -> tuple[int, ...]:
    """Return a shape of which most axes have length 1."""
    return tuple(
        extent if axis % max(1, rank // n) == 0 and axis < n * max(1, rank // n) else 1
        for axis in range(rank)
    )


@pairs("rank, codecs, kind", list(RANKS), list(CHAINS), ["local", "memory", "other"])
def test_every_rank_works_through_zarr(kind: str, rank: int, codecs: str, tmp_path: Path) -> None:
    store = store_of(kind, tmp_path / "a")
    shape, shard, inner = (long_axes(rank, n) for n in (5, 4, 2))
    array = make(store, shape, shard, inner, codecs)
    values = random_array(shape, "int16")
    assert np.all(array[...] == -1)
    array[...] = values
    assert bits(array[...]) == bits(values)
    corner = tuple(slice(0, max(1, n - 2)) for n in shape)
    array[corner] = values[corner] = 7
    assert bits(array[corner]) == bits(values[corner])
    assert int(array[(0,) * rank]) == 7
    if rank != 0 or not zarr.__version__.startswith("3.1."):
        assert bits(zarrs_view(array)[...]) == bits(values)
    array[...] = -1
    assert np.all(array[...] == -1)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("at", ["start", "end"])
def test_every_rank_works_for_single_shards(rank: int, at: Any) -> None:
    shard, inner = long_axes(rank, 4), long_axes(rank, 2)
    spec = ShardSpec(shard, inner, "int16", -1, index_location=at)
    values = random_array(shard, "int16")
    blob = encode(values, spec)
    assert bits(decode(blob, spec)) == bits(values)
    assert decode(blob, spec, (0,) * rank).shape == ()
    last = tuple(slice(n - 1, n) for n in shard)
    assert bits(decode(blob, spec, last)) == bits(values[last])


@pytest.mark.parametrize("rank", [0, 1, 5, 12])
def test_every_rank_equals_the_reference(rank: int) -> None:
    shard, inner = long_axes(rank, 4, 2), long_axes(rank, 2, 2)
    spec = ShardSpec(shard, inner, "int16", -1)
    values = random_array(shard, "int16")
    meta = ShardMeta(spec.to_json()["configuration"], shard, np.dtype("int16"), np.int16(-1))
    blob = encode_shard(values, meta)
    assert blob is not None
    assert bits(decode(blob, spec)) == bits(values)
    assert bits(decode_shard(encode(values, spec), meta)) == bits(values)


@pytest.mark.parametrize("codecs", CHAINS)
@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (3, 0, 5), (0, 0)])
def test_axes_of_length_0_are_read_and_written(tmp_path: Path, shape: tuple[int, ...], codecs: str) -> None:
    for store in (LocalStore(tmp_path / codecs), MemoryStore(), OtherMemoryStore()):
        array = make(store, shape, (4,) * len(shape), (2,) * len(shape), codecs)
        assert array[...].shape == shape
        array[...] = np.zeros(shape, "int16")
        array[...] = 5
        assert array.oindex[tuple(np.arange(n) for n in shape)].shape == shape
        part = tuple(slice(0, n, 2) for n in shape)
        assert array[part].shape == np.zeros(shape)[part].shape
        if isinstance(store, LocalStore):
            assert files_below(store.root) == ["zarr.json"]
        array.resize(tuple(max(n, 3) for n in shape))
        again = ours(store)
        assert np.all(again[...] == -1)
        again[...] = 6
        assert np.all(zarrs_view(again)[...] == 6)


@pytest.mark.parametrize("codecs", CHAINS)
def test_empty_selections_are_read_and_written(codecs: str) -> None:
    array = make(MemoryStore(), (6, 6), (4, 4), (2, 2), codecs)
    array[...] = 1
    assert array[2:2].shape == (0, 6)
    array[2:2] = np.zeros((0, 6), "int16")
    assert array.oindex[np.array([], dtype=int), :].shape == (0, 6)
    assert np.all(array[...] == 1)
