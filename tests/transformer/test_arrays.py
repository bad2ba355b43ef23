# test_arrays.py - zarr arrays over a transformer, and the same shards with `sharding_indexed`
# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import RecordingStore
from spec_json import CHECKED_INDEX, sharding
from transformer_stores import KINDS, PROTOTYPE, below, buffer, keys, value
from zarr.storage import MemoryStore

from shardcodec.transformer import KeyLayout, ShardingStorageTransformer
from shardcodec.transformer.store import INDEX_2022


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("separator", ["/", "."])
def test_unsharded_array_over_transformer(kind: str, separator: str, tmp_path: Path) -> None:
    inner = below(kind, tmp_path / "store")
    store = ShardingStorageTransformer(inner, (3, 2), path="a", layout=KeyLayout.v3(separator))
    array = zarr.create_array(
        store,
        name="a",
        shape=(50, 30),
        chunks=(7, 5),
        dtype="int32",
        fill_value=-1,
        chunk_key_encoding={"name": "default", "separator": separator},
    )
    numbers = np.arange(1500, dtype="int32").reshape(50, 30)
    array[...] = numbers
    array[3:40:2, 4:20] = 7
    numbers[3:40:2, 4:20] = 7
    again = zarr.open_array(store, path="a", mode="r")
    assert np.array_equal(again[...], numbers)
    assert again.nchunks_initialized == 48
    assert len(asyncio.run(keys(inner, "a/"))) == 1 + 9


def unsharded(store: Any, path: str, **arguments: Any) -> Any:
    defaults: dict[str, Any] = {"shape": (50, 30), "chunks": (7, 5), "dtype": "int32", "fill_value": -1}
    return zarr.create_array(store, name=path or None, **defaults | arguments)


async def show_shards(inner: Any, path: str, per_shard: tuple[int, ...], index_codecs: Any) -> Any:
    """Return a store with the same objects and the metadata of an array with `sharding_indexed`."""
    prefix = f"{path}/" if path else ""
    blob = await value(inner, f"{prefix}zarr.json")
    assert blob is not None
    metadata = json.loads(blob)
    chunk = metadata["chunk_grid"]["configuration"]["chunk_shape"]
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [
        n * k for n, k in zip(chunk, per_shard, strict=True)
    ]
    metadata["codecs"] = [sharding(chunk, metadata["codecs"], index_codecs)]
    view = MemoryStore()
    async for key in inner.list():
        await view.set(key, await inner.get(key, PROTOTYPE))
    await view.set(f"{prefix}zarr.json", buffer(json.dumps(metadata).encode()))
    return view


@pytest.mark.parametrize("index_codecs", [INDEX_2022, CHECKED_INDEX])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("compressors", ["auto", None])
def test_sharding_indexed_reads_and_writes_same_shards(
    index_codecs: Any, own: bool, compressors: Any
) -> None:
    inner = MemoryStore()
    store = ShardingStorageTransformer(inner, (3, 2), path="a", index_codecs=index_codecs)
    numbers = np.arange(1500, dtype="int32").reshape(50, 30)
    array = unsharded(store, "a", compressors=compressors)
    array[...] = numbers
    array[20:30, 7:9] = -1  # some chunks become empty and are not stored
    array[:21, 10:20] = -1
    numbers[20:30, 7:9] = numbers[:21, 10:20] = -1

    view = asyncio.run(show_shards(inner, "a", (3, 2), index_codecs))
    pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline" if own else "shardcodec.ShardCodecPipeline"
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        sharded = zarr.open_array(view, path="a", mode="r+")
        assert sharded.shards == (21, 10)
        assert np.array_equal(sharded[...], numbers)
        sharded[5:45, 3:28] = 77  # the transformer must read these elements
        sharded[0, 0] = 5
    numbers[5:45, 3:28] = 77
    numbers[0, 0] = 5
    again = ShardingStorageTransformer(view, (3, 2), path="a", index_codecs=index_codecs)
    asyncio.run(again.set("a/zarr.json", asyncio.run(inner.get("a/zarr.json", PROTOTYPE))))
    assert np.array_equal(zarr.open_array(again, path="a", mode="r")[...], numbers)


def test_group_operations_over_transformer(tmp_path: Path) -> None:
    store = ShardingStorageTransformer(tmp_path / "store", (4, 2), path="g/a")
    root = zarr.create_group(store)
    array = unsharded(store, "g/a")
    array[...] = 3
    plain = unsharded(store, "g/b")
    plain[...] = 4
    assert sorted(root["g"].array_keys()) == ["a", "b"]
    assert array.nchunks_initialized == plain.nchunks_initialized == 48
    assert array.nbytes_stored() == plain.nbytes_stored()
    assert len(list((tmp_path / "store/g/a/c").rglob("*/*"))) == 6
    array.resize((20, 30))
    assert array.nchunks_initialized == 18
    assert np.all(zarr.open_array(store, path="g/a", mode="r")[...] == 3)
    array.append(np.full((9, 30), 8, "int32"))
    assert np.all(array[20:] == 8)
    del root["g/a"]
    assert sorted(root["g"].array_keys()) == ["b"]
    assert not (tmp_path / "store/g/a").exists()


def test_stack_with_one_transformer_per_array(tmp_path: Path) -> None:
    inner = RecordingStore(MemoryStore())
    first = ShardingStorageTransformer(inner, (2, 2), path="a")
    store = ShardingStorageTransformer(first, (5,), path="b", index_codecs=CHECKED_INDEX)
    a = unsharded(store, "a")
    b = unsharded(store, "b", shape=(100,), chunks=(10,))
    a[...] = 1
    b[...] = np.arange(100)
    assert len(asyncio.run(keys(inner, "a/c/"))) == 12
    assert len(asyncio.run(keys(inner, "b/c/"))) == 2
    inner.forget()
    assert np.array_equal(b[20:40], np.arange(20, 40))
    assert all(len(wanted) == 1 for call, wanted in inner.calls if call == "get")
    assert np.all(a[...] == 1)
