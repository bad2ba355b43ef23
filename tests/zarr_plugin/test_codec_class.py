# test_codec_class.py - shardcodec.ShardingCodec under zarr's own pipelines
# SPDX-License-Identifier: MIT
"""The codec selected without the pipeline: it behaves like zarr's class, but faster."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from helpers import (
    ZARR_IS_31,
    RecordingStore,
    bits,
    create,
    entries_of,
    gap_of,
    quiet,
    random_array,
    shard_path,
    zarrs_view,
)
from zarr.codecs import BytesCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.codecs import ShardingCodec as ZarrShardingCodec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, StorePath, ZipStore

import shardcodec
from shardcodec.storage import object_store
from shardcodec.storage.process_locks import LockTable
from shardcodec.storage.replace import _replaced
from shardcodec.transformer.legacy_2022.legacy_store import LegacyStore

BATCHED = "zarr.core.codec_pipeline.BatchedCodecPipeline"
FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
PIPELINES = [BATCHED] if ZARR_IS_31 else [BATCHED, FUSED]


@pytest.fixture(params=PIPELINES, ids=lambda path: path.rsplit(".", 1)[1])
def selected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Select shardcodec's codec in zarr's configuration, with one of zarr's pipelines."""
    choice = {"codecs.sharding_indexed": "shardcodec.ShardingCodec", "codec_pipeline.path": request.param}
    with zarr.config.set(choice):
        yield


@pytest.fixture(params=["local", "memory", "zip"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "zip":
        with ZipStore(tmp_path / "a.zip", mode="w") as zipped:
            yield zipped
    else:
        yield LocalStore(tmp_path) if request.param == "local" else MemoryStore()


def reopened(store: Any, **arguments: Any) -> Any:
    """Open the array again, since zarr looks up the codec by name only when it opens an array."""
    defaults = {"shape": (15, 25), "shards": (8, 12), "chunks": (4, 3), "dtype": "int32", "fill_value": -1}
    with quiet():
        zarr.create_array(store, **(defaults | arguments))
        array = zarr.open_array(store, mode="r+")
    assert type(codec_of(array)) is shardcodec.ShardingCodec
    return array


def codec_of(array: Any) -> Any:
    return next(c for c in array.metadata.codecs if isinstance(c, ZarrShardingCodec))


# ---- the class


CODECS = [
    {"chunk_shape": (4, 3)},
    {"chunk_shape": (4, 3), "index_location": "start"},
    {"chunk_shape": (4, 3), "codecs": [BytesCodec(endian="big"), ZstdCodec(level=3)]},
    {"chunk_shape": (2, 3), "index_codecs": [BytesCodec()]},
]


@pytest.mark.parametrize("arguments", CODECS)
def test_equal_codecs_compare_equal_both_ways(arguments: Any) -> None:
    mine, theirs = shardcodec.ShardingCodec(**arguments), ZarrShardingCodec(**arguments)
    assert mine == theirs and theirs == mine
    assert hash(mine) == hash(theirs)
    assert len({mine, theirs}) == 1
    assert mine.to_dict() == theirs.to_dict()
    copy = pickle.loads(pickle.dumps(mine))
    assert type(copy) is shardcodec.ShardingCodec
    assert copy == mine == theirs


def test_unequal_codecs_compare_unequal_both_ways() -> None:
    for i, left in enumerate(CODECS):
        for j, right in enumerate(CODECS):
            if i != j:
                assert shardcodec.ShardingCodec(**left) != ZarrShardingCodec(**right)
                assert ZarrShardingCodec(**left) != shardcodec.ShardingCodec(**right)
    assert shardcodec.ShardingCodec(chunk_shape=(1,)) != BytesCodec()


def test_reopened_array_compares_equal(selected: None, tmp_path: Path) -> None:
    with quiet():
        created = zarr.create_array(tmp_path, shape=(8, 12), shards=(8, 12), chunks=(4, 3), dtype="int32")
        opened = zarr.open_array(tmp_path)
    assert type(codec_of(created)) is ZarrShardingCodec
    assert type(codec_of(opened)) is shardcodec.ShardingCodec
    assert created.metadata == opened.metadata and opened.metadata == created.metadata
    assert created == opened
    assert (opened.shards, opened.chunks) == ((8, 12), (4, 3))
    assert pickle.loads(pickle.dumps(opened)) == opened


# ---- results


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zip files keep the old members
@pytest.mark.parametrize("location", ["end", "start"])
def test_any_reads_and_writes_equal_numpy(selected: None, store: Any, location: Any) -> None:
    codec = ZarrShardingCodec(
        chunk_shape=(4, 3),
        codecs=[TransposeCodec(order=(1, 0)), BytesCodec(), ZstdCodec(level=1), Crc32cCodec()],
        index_location=location,
    )
    array = reopened(store, shards=None, chunks=(8, 12), serializer=codec, compressors=None)
    values = np.full((15, 25), -1, "int32")
    for number, selection in enumerate(
        (np.s_[...], np.s_[3:12, 5:20], np.s_[0, 0], np.s_[::3, 7], np.s_[:8, :12])
    ):
        part = random_array(values[selection].shape, "int32", seed=number)
        array[selection] = part if part.ndim else int(part)
        values[selection] = part
        for wanted in (np.s_[...], np.s_[2:14, 3:20], np.s_[9, 23], np.s_[::5, ::7]):
            assert bits(array[wanted]) == bits(values[wanted])
    assert bits(array.vindex[[0, 9, 3], [1, 20, 1]]) == bits(values[[0, 9, 3], [1, 20, 1]])
    assert bits(array.oindex[[9, 0], [1, 20]]) == bits(values[np.ix_([9, 0], [1, 20])])
    array.vindex[[0, 9, 3], [1, 20, 1]] = values[[0, 9, 3], [1, 20, 1]] = 8
    with zarr.config.set({"codecs.sharding_indexed": "zarr.codecs.sharding.ShardingCodec"}):
        plain = zarr.open_array(store, mode="r+")
    assert type(codec_of(plain)) is ZarrShardingCodec
    assert bits(plain[...]) == bits(values)


@pytest.fixture
def batched() -> Iterator[None]:
    """The pipeline that asks the codec for parts of shards in every store. The other pipeline writes them itself."""
    choice = {"codecs.sharding_indexed": "shardcodec.ShardingCodec", "codec_pipeline.path": BATCHED}
    with zarr.config.set(choice):
        yield


def test_partial_read_requests_index_and_chunks(batched: None) -> None:
    store = RecordingStore(MemoryStore())
    array = reopened(store)
    array[...] = values = random_array((15, 25), "int32")
    store.forget()
    with gap_of(0):
        assert bits(array[5:7, 1:9]) == bits(values[5:7, 1:9])
    index, *ranges = store.chunk_requests()
    assert index == ("c/0/0", "last 132") and all(type(wanted) is tuple for _, wanted in ranges)


def test_partial_write_is_a_conditional_put(batched: None) -> None:
    obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")
    from zarr.storage import ObjectStore

    array = reopened(ObjectStore(obstore.MemoryStore()))
    other = zarrs_view(array)
    put = object_store.ObjectStore.put
    n_tries = 0

    async def put_second(self: Any, key: str, data: Any, expected: Any) -> None:
        nonlocal n_tries
        n_tries += 1
        if n_tries == 1:
            token = _replaced.set(())  # as the write of another process, not of a signal handler in this one
            try:
                await other.async_array.setitem(np.s_[:4, :3], 2)
            finally:
                _replaced.reset(token)
        await put(self, key, data, expected)

    with mock.patch.object(object_store.ObjectStore, "put", put_second):
        array[4:8, 3:6] = 3
        array[8:, :12] = 4
    assert n_tries >= 2
    expected = np.full((15, 25), -1, "int32")
    expected[:4, :3], expected[4:8, 3:6], expected[8:, :12] = 2, 3, 4
    assert bits(array[...]) == bits(expected)


def test_emptied_shard_is_deleted(selected: None, tmp_path: Path) -> None:
    array = reopened(tmp_path)
    array[...] = 5
    array[:8, :12] = -1
    assert not shard_path(array).exists()
    array[8:10, :12] = -1
    assert shard_path(array, "c/1/0").exists()
    array[10:15, :12] = -1
    assert (array[8:, :12] == -1).all()


def test_damage_is_a_shard_error_and_a_value_error(selected: None, tmp_path: Path) -> None:
    array = reopened(tmp_path)
    array[...] = 5
    blob = bytearray(shard_path(array).read_bytes())
    blob[-30] ^= 1
    shard_path(array).write_bytes(blob)
    for selection in (np.s_[...], np.s_[0, 0]):
        with pytest.raises(shardcodec.ChecksumError) as raised:
            array[selection]
        assert isinstance(raised.value, ValueError)
    with pytest.raises(shardcodec.ChecksumError):
        array[0, 0] = 1
    assert shard_path(array).read_bytes() == bytes(blob)


def test_nested_sharding_equals_numpy(selected: None, tmp_path: Path) -> None:
    inner = ZarrShardingCodec(chunk_shape=(2, 3), codecs=[BytesCodec(), ZstdCodec(level=1)])
    codec = ZarrShardingCodec(chunk_shape=(4, 6), codecs=[inner])
    array = reopened(tmp_path, shards=None, chunks=(8, 12), serializer=codec, compressors=None)
    values = random_array((15, 25), "int32")
    array[...] = values
    array[3:5, 5:7] = values[3:5, 5:7] = 0
    assert bits(array[...]) == bits(values)
    assert bits(array[3:9, 11]) == bits(values[3:9, 11])


def test_texts_of_any_length_fall_back_to_zarrs_class(selected: None, tmp_path: Path) -> None:
    array = reopened(tmp_path, dtype=str, fill_value="")
    array[0, :2] = np.array(["a", "bcd"], dtype=object)
    assert list(array[0, :3]) == ["a", "bcd", ""]


def test_fallback_within_the_pipeline_does_not_deadlock(tmp_path: Path) -> None:
    """The pipeline holds the locks of a shard while zarr's pipeline writes, which calls shardcodec's codec."""
    with zarr.config.set({"codecs.sharding_indexed": "shardcodec.ShardingCodec"}), shardcodec.enable():
        array = reopened(tmp_path)
        array[...] = 5
        array.vindex[[0, 9, 3], [1, 20, 1]] = 8
        array.oindex[[9, 0], slice(3, 9)] = 7
        array.oindex[[9, 0], 3] = 6
    assert array[3, 1] == 8 and array[0, 4] == 7 and array[9, 3] == 6


# ---- order


@pytest.mark.skipif(ZARR_IS_31, reason="zarr 3.1 writes Morton order only")
@pytest.mark.parametrize("order", ["morton", "lexicographic", "colexicographic"])
def test_subchunk_write_order_is_a_runtime_option(order: Any, tmp_path: Path) -> None:
    """The option survives pickling, is never stored in the metadata, and determines the layout."""
    try:
        codec = shardcodec.ShardingCodec(
            chunk_shape=(2, 2), codecs=[BytesCodec()], subchunk_write_order=order
        )
    except TypeError:
        pytest.skip("this zarr does not have this argument")
    assert pickle.loads(pickle.dumps(codec)).subchunk_write_order == order
    assert "subchunk_write_order" not in str(codec.to_dict())
    array = zarr.create_array(
        tmp_path, shape=(4, 6), chunks=(4, 6), dtype="u1", serializer=codec, compressors=None, fill_value=0
    )
    array[...] = np.arange(1, 25).reshape(4, 6)
    offsets = [offset for offset, _ in entries_of(shard_path(array).read_bytes(), 6)]
    expected = {"lexicographic": [0, 1, 2, 3, 4, 5], "morton": [0, 3, 1, 4, 2, 5]}
    assert np.argsort(offsets).tolist() == expected.get(order, [0, 3, 1, 4, 2, 5])
    attached = shardcodec.attach(array, strict=True)
    attached[...] = np.arange(2, 26).reshape(4, 6)
    assert [offset for offset, _ in entries_of(shard_path(array).read_bytes(), 6)] == offsets


def test_concurrent_fallback_writes_lose_no_update(tmp_path: Path) -> None:
    """Writes by index array fall back to zarr's class. They took no lock: 20 of 64 rows survived."""
    with quiet(), zarr.config.set({"codecs.sharding_indexed": "shardcodec.ShardingCodec"}):
        zarr.create_array(
            tmp_path, shape=(16, 8), shards=(16, 8), chunks=(1, 8), dtype="int32", compressors=None
        )
        array = zarr.open_array(tmp_path)

        def write(row: int) -> None:
            if row % 2:
                array[row] = row + 1
            else:
                array.vindex[np.full(8, row), np.arange(8)] = row + 1

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(16)))
        assert (array[...] == np.arange(1, 17)[:, None]).all()


async def test_a_shard_behind_a_view_has_the_lock_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = create(MemoryStore()).metadata
    spec = ArraySpec(
        (8, 12),
        metadata.data_type,
        metadata.fill_value,
        ArrayConfig.from_dict({}),
        default_buffer_prototype(),
    )
    codec, box = shardcodec.ShardingCodec(chunk_shape=(4, 3)), (slice(0, 4), slice(0, 3))
    value = default_buffer_prototype().nd_buffer.from_numpy_array(np.full((4, 3), 7, "int32"))
    taken: list[str] = []
    hold = LockTable.hold_async

    def note(table: Any, keys: Any) -> Any:
        taken.extend(keys)
        return hold(table, keys)

    monkeypatch.setattr(LockTable, "hold_async", note)
    view = LegacyStore(LocalStore(tmp_path), ".json")
    await codec._encode_partial_single(StorePath(view, "a/c/0/0"), value, box, spec)
    path = tmp_path / "data/root/a/c0/0"
    assert taken == [str(path.resolve())] and path.exists()
    read_only = StorePath(LegacyStore(LocalStore(tmp_path), ".json", read_only=True), "a/c/0/0")
    with pytest.raises(ValueError, match="read-only"):
        await codec._encode_partial_single(read_only, value, box, spec)
