# test_new_shard_parts.py - whole shards that are encoded while they are stored
# SPDX-License-Identifier: MIT
"""A shard that is stored in parts has the bytes of one that is encoded at once."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import bits, random_array
from zarr.codecs import TransposeCodec, ZstdCodec

import shardcodec
from shardcodec.access import streamed_shard
from shardcodec.storage import object_store
from shardcodec.storage.object_store import ObjectStore

obstore = pytest.importorskip("obstore", reason="obstore is not installed")

SHAPE = (40, 36)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make shards small enough to be stored in parts, and count the pieces of each object."""
    counts: list[int] = []
    put_parts = ObjectStore.put_parts

    async def counted(self: Any, key: str, new: Any) -> Any:
        counts.append(0)

        async def count() -> Any:
            async for piece in new.pieces():
                counts[-1] += 1
                yield piece

        return await put_parts(self, key, type(new)(count, new.nbytes))

    monkeypatch.setattr(ObjectStore, "put_parts", counted)
    monkeypatch.setattr(streamed_shard, "LEAST_NBYTES", 1)
    monkeypatch.setattr(streamed_shard, "PIECE_NBYTES", 500)
    monkeypatch.setattr(streamed_shard, "INDEXES_PER_PIECE", 0)
    monkeypatch.setattr(object_store, "PART_NBYTES", 300)
    return counts


def shards_of(store: Any) -> dict[str, bytes]:
    found = [meta["path"] for meta in store.list().collect() if "c/" in meta["path"]]
    return {path: bytes(obstore.get(store, path).bytes()) for path in found}


def arrays(**how: Any) -> tuple[Any, Any, Any, Any]:
    """Return an array whose shards are stored in parts, one whose shards are not, and where their shards are."""
    store, plain = obstore.store.MemoryStore(), zarr.storage.MemoryStore()
    options = {"shape": SHAPE, "chunks": (4, 6), "shards": (20, 12), "dtype": "int32", "fill_value": 7} | how
    made = [
        shardcodec.attach(zarr.create_array(where, **options), strict=True)
        for where in (zarr.storage.ObjectStore(store), plain)
    ]
    return made[0], made[1], store, plain


def expected_of(plain: Any) -> dict[str, bytes]:
    return {key: buffer.to_bytes() for key, buffer in plain._store_dict.items() if "c/" in key}


HOW = {
    "raw": {"compressors": None},
    "zstd": {"compressors": [ZstdCodec(level=1)]},
    "transposed inside": {"filters": [TransposeCodec(order=(1, 0))]},
    "nested": {
        "serializer": zarr.codecs.ShardingCodec(chunk_shape=(2, 3), codecs=[zarr.codecs.BytesCodec()])
    },
    "empty chunks": {"config": {"write_empty_chunks": True}},
    "large grid": {"chunks": (1, 1), "compressors": None},
}


@pytest.mark.parametrize("order", ["morton", "lexicographic", "colexicographic"])
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_parts_have_the_bytes_of_the_whole(how: Any, order: str, pieces: list[int]) -> None:
    streamed, twin, store, plain = arrays(**how)
    values = random_array(SHAPE, "int32")
    values[:11, :19] = 7  # some inner chunks are absent
    with shardcodec.options(order=order):
        streamed[...] = values
        twin[...] = values
    assert shards_of(store) == expected_of(plain)
    assert len(pieces) == 6
    assert max(pieces) > 2
    assert bits(streamed[...]) == bits(values)


def test_selections_that_cover_shards(pieces: list[int]) -> None:
    """Values may have any strides, be repeated, or lie at another place of the array; parts of shards are updates."""
    streamed, twin, store, plain = arrays(compressors=None)
    base = random_array((100, 100), "int32")
    for selection, values in [
        (np.s_[:20, :24], base[80:60:-1, 5:53:2]),
        (np.s_[20:, 12:24], 5),
        (np.s_[:, 12:], base[:40, :24]),
        (np.s_[3:25, :], base[:22, :36]),
        (np.s_[20:40, 0:12], base.T[:20, :12]),
    ]:
        streamed[selection] = values
        twin[selection] = values
        assert bits(streamed[...]) == bits(twin[...])
    assert pieces
    assert shards_of(store).keys() == expected_of(plain).keys()


def test_fill_value_deletes_the_shard(pieces: list[int]) -> None:
    streamed, _, store, _ = arrays()
    streamed[...] = 3
    assert len(shards_of(store)) == 6
    streamed[...] = 7
    assert shards_of(store) == {}
    assert pieces[6:] == [0] * 6


@pytest.mark.parametrize(
    "how", [{"shards": {"shape": (20, 12), "index_location": "start"}}, {"shards": None}]
)
def test_objects_that_are_encoded_at_once(how: Any, pieces: list[int]) -> None:
    """The content of an index at the start is known last."""
    streamed, twin, store, plain = arrays(**how)
    for array in (streamed, twin):
        array[...] = random_array(SHAPE, "int32")
    assert shards_of(store) == expected_of(plain)
    assert pieces == []


def test_error_of_a_codec_keeps_the_old_shard(pieces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    streamed, _, store, _ = arrays(compressors=None)
    streamed[...] = 3
    before = shards_of(store)
    steps = itertools.count()
    encode = streamed_shard._NewShard._encode

    def failing(self: Any, *arguments: Any) -> Any:
        if next(steps) == 1:
            raise shardcodec.CodecError("no", codec="test")
        return encode(self, *arguments)

    monkeypatch.setattr(streamed_shard._NewShard, "_encode", failing)
    with pytest.raises(shardcodec.CodecError, match="no"):
        streamed[:20, :12] = 4
    assert shards_of(store) == before
