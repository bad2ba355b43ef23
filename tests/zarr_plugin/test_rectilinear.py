# test_rectilinear.py - grids of shards of different shapes, through zarr
# SPDX-License-Identifier: MIT
"""Requirements PR-1 to PR-4: each shape of shard has an index of its own size. The results must equal zarr's own
pipeline.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, bits, entries_of, ours, quiet, zarrs_view
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.codecs import numcodecs as of_numcodecs
from zarr.storage import LocalStore, MemoryStore

from shardcodec import ShardFormatError, ShardSpec, SpecError

pytestmark = pytest.mark.skipif(
    "rectilinear_chunks" not in zarr.config.get("array"), reason="this zarr has regular grids only"
)

CHAINS: dict[str, Any] = {
    "raw": lambda: [BytesCodec()],
    "zstd": lambda: [BytesCodec(), ZstdCodec(), Crc32cCodec()],
    "staged": lambda: [BytesCodec(), of_numcodecs.BZ2(level=1)],
}


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    with zarr.config.set({"array.rectilinear_chunks": True}), quiet():
        yield


def make(store: Any, shape: Any, edges: Any, inner: Any, codecs: str = "zstd", **arguments: Any) -> Any:
    """Create an array whose shards have these edges, with shardcodec's pipeline and `strict`."""
    with zarr.config.set({"array.rectilinear_chunks": True}), quiet():
        zarr.create_array(
            store,
            shape=shape,
            chunks=edges,
            dtype="int32",
            fill_value=-1,
            serializer=ShardingCodec(chunk_shape=inner, codecs=CHAINS[codecs]()),
            compressors=None,
            filters=None,
            **arguments,
        )
        return ours(store)


def numbers(shape: Any) -> np.ndarray[Any, Any]:
    return np.arange(1, np.prod(shape) + 1, dtype="int32").reshape(shape)


@pytest.mark.parametrize("codecs", CHAINS)
@pytest.mark.parametrize("kind", ["local", "memory", "other"])
def test_each_pipeline_reads_shards_of_the_other(codecs: str, kind: str, tmp_path: Any) -> None:
    store = {"local": LocalStore(tmp_path / "a"), "memory": MemoryStore(), "other": OtherMemoryStore()}[kind]
    array = make(store, (20, 14), [[4, 8, 4, 4], [6, 2, 6]], (2, 2), codecs)
    other, twin = zarrs_view(array), np.full((20, 14), -1, "int32")
    steps = [np.s_[...], np.s_[3:17, 5:9], np.s_[12:16, :6], np.s_[::5, 7], np.s_[-1, 3]]
    for writer, reader in ((array, other), (other, array)):
        for i, step in enumerate(steps):
            writer[step] = twin[step] = np.roll(numbers((20, 14)), i)[step]
            assert bits(reader[...]) == bits(twin)
            assert bits(array[step]) == bits(twin[step])


def test_index_size_depends_on_the_shape_of_the_shard() -> None:
    store = MemoryStore()
    array = make(store, (12,), [[2, 8, 2]], (2,), "raw")
    array[...] = numbers(12)
    for key, n in (("c/0", 1), ("c/1", 4), ("c/2", 1)):
        blob = store._store_dict[key].to_bytes()
        assert len(blob) == 8 * n + 16 * n + 4
        assert entries_of(blob, n)[0] == (0, 8)
    del store._store_dict["c/1"]
    assert array[...].tolist() == [1, 2, *[-1] * 8, 11, 12]


@pytest.mark.parametrize(
    "edges",
    [
        [[[4, 3]]],
        [[4, [2, 3], 8]],
        [[6, 6, 6, 6]],
        [[[2, 2], [8, 1], 20, 4]],
        [4],
    ],
    ids=["one run", "runs and numbers", "beyond the end", "far beyond the end", "bare number"],
)
def test_all_forms_of_edges_are_read(edges: Any) -> None:
    """Runs of equal edges, and edges that extend beyond the array by several shards."""
    store = MemoryStore()
    make(store, (12,), [[4, 8]], (2,))
    metadata = json.loads(store._store_dict["zarr.json"].to_bytes())
    metadata["chunk_grid"]["configuration"]["chunk_shapes"] = edges
    store._store_dict["zarr.json"] = zarr.core.buffer.cpu.Buffer.from_bytes(json.dumps(metadata).encode())
    array = ours(store)
    assert np.all(array[...] == -1)
    array[...] = numbers(12)
    assert bits(zarrs_view(array)[...]) == bits(numbers(12))
    array[5:7] = 0
    zarrs_view(array)[2:4] = 0
    assert array[...].tolist() == [1, 2, 0, 0, 5, 0, 0, 8, 9, 10, 11, 12]


def test_resized_array_equals_zarrs() -> None:
    store = MemoryStore()
    array = make(store, (12,), [[4, 8]], (2,))
    array[...] = numbers(12)
    array.append(np.array([100, 101, 102, 103], "int32"))
    array = ours(store)
    assert array[...].tolist() == [*range(1, 13), 100, 101, 102, 103]
    assert bits(zarrs_view(array)[...]) == bits(array[...])
    array.resize((7,))
    array = ours(store)
    assert array[...].tolist() == [*range(1, 8)]
    array[5:] = 5
    array.resize((22,))
    array = ours(store)
    array[18:] = 6
    assert bits(zarrs_view(array)[...]) == bits(array[...])
    assert array[:7].tolist() == [1, 2, 3, 4, 5, 5, 5]
    assert array[16:].tolist() == [-1, -1, 6, 6, 6, 6]


def test_edge_that_inner_chunks_do_not_divide_is_refused() -> None:
    store = MemoryStore()
    array = make(store, (12,), [[4, 8]], (2,))
    metadata = array.metadata.to_dict()
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[4, [5, 2]]]}}
    with pytest.raises(SpecError, match="inner chunk size 2 does not divide shard size 5 on axis 0"):
        ShardSpec.from_metadata({**metadata, "chunk_grid": grid})


def test_shard_of_another_shape_is_an_error() -> None:
    """The index of a shard that was written for another edge is not in the expected place."""
    store = MemoryStore()
    array = make(store, (12,), [[4, 8]], (2,), "raw")
    array[...] = numbers(12)
    store._store_dict["c/1"] = store._store_dict["c/0"]
    assert array[:4].tolist() == [1, 2, 3, 4]
    with pytest.raises(ShardFormatError, match="too short") as info:
        array[...]
    assert info.value.shard == "c/1"


def test_number_of_cached_chains_is_bounded() -> None:
    edges = list(range(2, 402, 2))
    array = make(MemoryStore(), (sum(edges),), [edges], (2,), "raw")
    values = numbers(sum(edges))
    array[...] = values
    assert bits(array[...]) == bits(values)
    kind = array._async_array.codec_pipeline._kind
    assert kind.chain.cache_info().currsize <= kind.chain.cache_info().maxsize < len(edges)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_edges_equal_numpy(data: st.DataObject) -> None:
    inner = tuple(data.draw(st.integers(1, 3)) for _ in range(2))
    edges = [
        [n * inner[axis] for n in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))]
        for axis in range(2)
    ]
    shape = tuple(sum(e) for e in edges)
    array = make(MemoryStore(), shape, edges, inner, data.draw(st.sampled_from(sorted(CHAINS))))
    other, twin = zarrs_view(array), np.full(shape, -1, "int32")
    for k in range(data.draw(st.integers(1, 4))):
        box = tuple(
            slice(start := data.draw(st.integers(0, n - 1)), data.draw(st.integers(start + 1, n)))
            for n in shape
        )
        twin[box] = k
        (array if data.draw(st.booleans()) else other)[box] = k
        assert bits(array[box]) == bits(twin[box])
    assert bits(array[...]) == bits(other[...]) == bits(twin)
