# test_pipeline.py - features of zarr that a codec pipeline must not break
# SPDX-License-Identifier: MIT
"""Read-only arrays, missing chunks, pickling, equality, resizing and forks work as in zarr's own pipeline."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
import zarr.core.codec_pipeline as pipelines
from helpers import (
    ZARR_IS_31,
    OtherMemoryStore,
    RecordingStore,
    bits,
    bytes_of_files,
    create,
    in_child,
    on_pipeline,
    ours,
    quiet,
    random_array,
    run_python,
    shard_path,
    store_of,
    write_and_read_row,
    zarrs_view,
)
from workers import in_threads
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs.numcodecs import BZ2
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, StorePath

import shardcodec
from shardcodec.compat import with_empty_chunks

needs_32 = pytest.mark.skipif(ZARR_IS_31, reason="zarr 3.1 does not have this setting")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")


def filled(store: Any, **arguments: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    array = create(store, **arguments)
    values = random_array(array.shape, array.dtype)
    array[...] = values
    return array, values


# ---- missing chunks


@needs_32
@pytest.mark.parametrize("store", ["local", "memory"])
@pytest.mark.parametrize("view", [on_pipeline, shardcodec.attach])
@pytest.mark.parametrize(
    "layout",
    [{}, {"shards": None, "chunks": (8, 12)}, {"shards": None, "chunks": (8, 12), "zarr_format": 2}],
    ids=str,
)
def test_missing_chunks_can_be_an_error(store: str, view: Any, layout: Any, tmp_path: Path) -> None:
    where: Any = tmp_path if store == "local" else MemoryStore()
    array = view(create(where, own=True, config={"read_missing_chunks": False}, **layout), strict=True)
    array[:8, :12] = 5
    assert (array[:8, :12] == 5).all()
    with pytest.raises(zarr.errors.ChunkNotFoundError, match=r"1[/.]0"):
        array[:9, :12]
    with pytest.raises(zarr.errors.ChunkNotFoundError):
        array[15, 23]


@needs_32
def test_missing_inner_chunk_is_not_an_error(tmp_path: Path) -> None:
    array = create(tmp_path, config={"read_missing_chunks": False})
    array[0, 0] = 5
    assert array[7, 11] == -1


async def test_read_reports_missing_objects(tmp_path: Path) -> None:
    """One result per item of the batch, in its order. An item without elements counts as present."""
    array = create(tmp_path)
    array[:8] = 5
    results: list[Any] = []
    pipeline = array.async_array.codec_pipeline
    read = type(pipeline).read

    async def listen(self: Any, *arguments: Any, **keywords: Any) -> Any:
        results.extend(await read(self, *arguments, **keywords))
        return tuple(results)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(pipeline), "read", listen)
        await array.async_array.getitem(...)
    assert [result["status"] for result in results] == ["present", "present", "missing", "missing"]


# ---- the array as an object


def test_pickled_array_is_read_and_written(tmp_path: Path) -> None:
    array, values = filled(tmp_path)
    array = shardcodec.attach(array, threads=1, strict=True, order="lexicographic")
    copy = pickle.loads(pickle.dumps(array))
    pipeline = copy.async_array.codec_pipeline
    assert isinstance(pipeline, shardcodec.ShardCodecPipeline)
    assert pipeline._options() == array.async_array.codec_pipeline._options()
    assert bits(copy[...]) == bits(values)
    copy[3, 3] = 77
    assert array[3, 3] == 77
    assert copy == array


def test_equality_survives_reopening(tmp_path: Path) -> None:
    with shardcodec.enable(), quiet():
        created = zarr.create_array(tmp_path, shape=(16, 24), shards=(8, 12), chunks=(4, 3), dtype="int32")
        opened = zarr.open_array(tmp_path)
        again = zarr.open_array(tmp_path)
    assert created == opened == again
    assert hash(created.async_array.codec_pipeline) == hash(opened.async_array.codec_pipeline)
    assert created.async_array.codec_pipeline != "something else"
    with quiet():
        plain = zarr.open_array(tmp_path)
    assert created.async_array.codec_pipeline != plain.async_array.codec_pipeline


def test_repr_and_attributes_equal_zarrs(tmp_path: Path) -> None:
    array, _ = filled(tmp_path)
    pipeline = array.async_array.codec_pipeline
    own = zarrs_view(array).async_array.codec_pipeline
    assert repr(pipeline).startswith("ShardCodecPipeline(")
    assert pipeline.supports_partial_decode == own.supports_partial_decode
    assert pipeline.supports_partial_encode == own.supports_partial_encode
    assert [type(codec) for codec in pipeline] == [type(codec) for codec in own]
    assert pipeline.evolve_from_array_spec(None) is pipeline
    with pytest.raises(AttributeError):
        _ = pipeline.no_such_thing
    with pytest.raises(AttributeError):
        _ = pipeline._no_such_thing
    assert array.info_complete() is not None
    assert array.chunks == (4, 3) and array.shards == (8, 12)


@pytest.mark.parametrize("new_shape", [(40, 24), (10, 9), (17, 30)])
def test_resized_array_equals_numpy(tmp_path: Path, new_shape: tuple[int, int]) -> None:
    array, values = filled(tmp_path)
    array.resize(new_shape)
    expected = np.full(new_shape, -1, "int32")
    both = tuple(slice(min(a, b)) for a, b in zip(new_shape, values.shape, strict=True))
    expected[both] = values[both]
    assert array.shape == new_shape and bits(array[...]) == bits(expected)
    array[-3:, -5:] = expected[-3:, -5:] = 9
    array[2, :] = expected[2, :] = 8
    assert bits(array[...]) == bits(expected) == bits(zarrs_view(array)[...])


def test_appended_array_equals_numpy(tmp_path: Path) -> None:
    array, values = filled(tmp_path)
    more = random_array((5, 24), "int32", seed=1)
    array.append(more)
    array.append(more)
    expected = np.concatenate([values, more, more])
    assert bits(array[...]) == bits(expected) == bits(zarrs_view(array)[...])


# ---- chunks at the edge


LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "v2": {"zarr_format": 2},
    "not native": {"compressors": BZ2(level=1)},
    "transposed": {"filters": [TransposeCodec(order=(1, 0))]},
    "shards behind a transpose": {
        "filters": [TransposeCodec(order=(1, 0))],
        "serializer": ShardingCodec(chunk_shape=(2, 4)),
        "compressors": None,
    },
    "shards before a codec": {"serializer": ShardingCodec(chunk_shape=(4, 2)), "compressors": ZstdCodec()},
    "shards of other codecs": {
        "serializer": ShardingCodec(chunk_shape=(4, 2), codecs=[BytesCodec(), BZ2(level=1)]),
        "compressors": Crc32cCodec(),
    },
}


def ragged(store: Any, layout: str) -> None:
    """Make an array with chunks of 4 x 4 elements and an edge along each axis."""
    with quiet():
        arguments = {
            "shape": (10, 7),
            "chunks": (4, 4),
            "dtype": "int32",
            "fill_value": -1,
            **LAYOUTS[layout],
        }
        zarr.create_array(store, **arguments)


def as_it_is(array: Any) -> Any:
    return array


@pytest.mark.parametrize("view", [as_it_is, shardcodec.attach])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("grouped", [False, True])
def test_whole_write_of_an_edge_chunk_drops_what_was_cut_off(
    layout: str, grouped: bool, view: Any, tmp_path: Path
) -> None:
    """Elements that a resize had cut off returned when the array grew again; zarr replaces such chunks."""
    results = []
    for name, by_zarr in (("ours", False), ("zarr's", True)):
        ragged(tmp_path / name, layout)
        array = (
            zarrs_view(ours(tmp_path / name, strict=False))
            if by_zarr
            else view(ours(tmp_path / name, strict=False))
        )
        array[...] = 1
        array.resize((9, 6))
        with contextlib.nullcontext() if by_zarr or not grouped else shardcodec.group_writes():
            array[:8] = 2
            array[8, :] = np.arange(6)
            array[0:4, 4] = 5  # a part of the chunk
        array.resize((12, 8))
        results.append(array[...].tolist())
    assert results[0] == results[1]
    assert results[0][0] == [2, 2, 2, 2, 5, 2, -1, -1]


def test_whole_write_of_a_ragged_array_reads_nothing() -> None:
    """It read each chunk at the edge, and failed if one was damaged."""
    ragged(inside := OtherMemoryStore(), "plain")
    array = ours(store := RecordingStore(inside))
    array[...] = 1
    for key in [*inside._store_dict]:
        if key.startswith("c/"):
            inside._store_dict[key] = inside._store_dict[key][:3]
    store.forget()
    array[...] = 7
    assert not store.chunk_requests()
    assert (array[...] == 7).all()


@pytest.mark.skipif(not hasattr(pipelines, "FusedCodecPipeline"), reason="this zarr has no fused pipeline")
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_work_that_is_left_to_zarr_runs_on_its_fused_pipeline(kind: str, tmp_path: Path) -> None:
    """Each chunk was a coroutine: two to three times the processor time."""
    create(
        store := store_of(kind, tmp_path / "a"),
        own=True,
        shape=(64,),
        chunks=(4,),
        compressors=[BZ2(level=1)],
        fill_value=0,
        shards=None,
    )
    array = ours(store, strict=False)
    refuse = mock.Mock(side_effect=AssertionError("a chunk is a coroutine"))
    with (
        mock.patch.object(BZ2, "_decode_single", refuse),
        mock.patch.object(BZ2, "_encode_single", refuse),
    ):
        array[:] = np.arange(64)
        array[5] = 7
        assert array[:7].tolist() == [0, 1, 2, 3, 4, 7, 6]
        array[:] = 0
    assert zarrs_view(array)[:].tolist() == [0] * 64


DIVIDED = np.float64(-np.nan)  # 0 / 0 on x86: the sign bit is set, unlike in the NaN of a zarr.json


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8"])
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"shards": (8, 8)},
        {"shards": (8, 8), "compressors": None},
        {"shards": (8, 8), "compressors": BZ2()},
    ],
    ids=["plain", "shards", "uncompressed", "staged"],
)
def test_chunks_of_any_nan_are_empty_if_the_fill_value_is_nan(
    layout: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    """zarr drops them. A masked field of a division got 16 shards in place of one."""
    keys = []
    for name in ("ours", "zarr's"):
        with quiet():
            zarr.create_array(
                tmp_path / name, shape=(32, 32), chunks=(4, 4), dtype=dtype, fill_value=np.nan, **layout
            )
        array = ours(tmp_path / name, strict=False)
        array = array if name == "ours" else zarrs_view(array)
        values = np.full((32, 32), DIVIDED).astype(array.dtype)
        values[1, 1], values[2, 2] = 5, -0.0
        array[...] = values
        keys.append(sorted(key for key in bytes_of_files(tmp_path / name) if key != "zarr.json"))
        assert np.array_equal(array[...], values, equal_nan=True)
        array[0:4, 0:4] = DIVIDED
        assert np.isnan(array[...]).all()
    assert keys[0] == keys[1] == ["c/0/0"]
    assert sorted(bytes_of_files(tmp_path / "ours")) == ["zarr.json"]


def test_chunks_of_nan_are_stored_if_empty_chunks_are_wanted_or_the_fill_value_is_a_number(
    tmp_path: Path,
) -> None:
    for name, fill, empty in (("a", np.nan, True), ("b", 0.0, False)):
        with quiet():
            create(
                tmp_path / name,
                own=True,
                shape=(8,),
                chunks=(4,),
                dtype="float32",
                fill_value=fill,
                shards=None,
                compressors="auto",
            )
        array = ours(tmp_path / name)
        array = with_empty_chunks(array) if empty else array
        values = np.full(8, DIVIDED).astype("float32")
        array[...] = values
        assert bits(array[...]) == bits(values)


def test_zarrs_copy_functions_keep_the_elements(tmp_path: Path) -> None:
    with shardcodec.enable(), quiet():
        array = create(tmp_path / "a", own=True)
        values = random_array(array.shape, "int32")
        array[...] = values
        copy = zarr.from_array(tmp_path / "b", data=array)
        assert copy.shards == array.shards and copy.chunks == array.chunks
        assert bits(copy[...]) == bits(values)
        assert zarr.zeros_like(array, store=MemoryStore()).shards is not None or ZARR_IS_31


# ---- processes


@needs_fork
def test_forked_child_reads_and_writes(tmp_path: Path) -> None:
    """The parent has used all threads and locks before the fork."""
    array = create(tmp_path, shape=(64, 64, 64), shards=(32, 32, 32), chunks=(8, 8, 8), dtype="i2")
    values = random_array(array.shape, "i2")
    with shardcodec.options(threads=4):
        array[...] = values
        assert bits(array[...]) == bits(values)

    def child() -> None:
        again = ours(tmp_path)
        with shardcodec.options(threads=4):
            assert bits(again[...]) == bits(values)
            again[:32] = 3
            again[40, 40, 40] = 4
            assert (again[:32] == 3).all()

    for _ in range(3):
        in_child(child)
        values[:32] = 3
        values[40, 40, 40] = 4
        with shardcodec.options(threads=4):
            assert bits(array[...]) == bits(values)
    with shardcodec.options(threads=4):
        array[...] = 1


@pytest.mark.slow
def test_spawned_processes_get_the_array_by_pickle(tmp_path: Path) -> None:
    array, _ = filled(tmp_path)
    rows = [0, 9]  # in two shards: locks hold within one process only
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        got = list(pool.map(write_and_read_row, [array] * 2, rows))
    assert got == [np.full(24, row, "int32").tobytes() for row in rows]
    assert all((array[row] == row).all() for row in rows)


@pytest.mark.threads
def test_two_threads_read_at_the_same_time(tmp_path: Path) -> None:
    """Both are inside the pipeline at the same time, since each waits for the other before it reads."""
    array, values = filled(tmp_path)

    def read(_: int) -> None:
        for _ in range(20):
            assert bits(array[...]) == bits(values)

    in_threads(2, read)


# ---- without the extension


def test_zarr_works_without_the_extension_after_one_warning(tmp_path: Path) -> None:
    code = f"""
        import sys, warnings
        sys.modules["shardcodec._native"] = None
        import numpy as np, zarr
        import shardcodec
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            zarr.config.set({{"codec_pipeline.path": "shardcodec.ShardCodecPipeline"}})
            for name in "ab":
                array = zarr.create_array({str(tmp_path)!r} + "/" + name, shape=(8, 8), shards=(8, 8),
                                          chunks=(2, 2), dtype="i4")
                array[...] = np.arange(64).reshape(8, 8)
                array[1, 1] = -1
                assert zarr.open_array({str(tmp_path)!r} + "/" + name)[1, 1] == -1
        said = [str(w.message) for w in seen if "shardcodec" in str(w.message)]
        print(type(array.async_array.codec_pipeline).__name__, len(said), seen[0].category.__name__)
        try:
            shardcodec.encode(np.uint8([1, 1]), shardcodec.ShardSpec((2,), (1,), "u1", 0, [{{"name": "bytes"}}]))
        except shardcodec.UnsupportedError as error:
            print(type(error.__cause__).__name__)
    """
    done = run_python(code)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    name, n_warnings, category = lines[0].split()
    assert name in ("FusedCodecPipeline", "BatchedCodecPipeline")
    assert (n_warnings, category) == ("1", "RuntimeWarning")
    assert lines[1] in ("ImportError", "ModuleNotFoundError")


def test_array_with_a_damaged_shard_can_be_opened(tmp_path: Path) -> None:
    array, _ = filled(tmp_path)
    shard_path(array).write_bytes(b"")
    again = ours(tmp_path)
    assert again.shape == (16, 24)
    with pytest.raises(shardcodec.ShardFormatError):
        again[0, 0]
    assert again[8, 0] == array[8, 0]


class Proxy:
    """Passes every call on to a store, but is none."""

    def __init__(self, store: Any) -> None:
        self._wrapped = store

    def __getattr__(self, name: str) -> Any:
        if name in ("read_only", "supports_deletes"):
            raise AttributeError(name)
        return getattr(self._wrapped, name)


def as_buffer(array: np.ndarray[Any, Any]) -> Any:
    return default_buffer_prototype().nd_buffer.from_numpy_array(array)


def batch_of(array: Any, stores: list[Any]) -> tuple[list[Any], Any]:
    """Return the arguments with which zarr writes the first two shards; each is in one of the stores."""
    config = ArrayConfig.from_dict({})
    spec = ArraySpec((8, 12), array.metadata.data_type, array.fill_value, config, default_buffer_prototype())
    box = (slice(0, 8), slice(0, 12))
    batch = [
        (StorePath(store, f"c/0/{i}"), spec, box, (slice(0, 8), slice(12 * i, 12 * i + 12)), True)
        for i, store in enumerate(stores)
    ]
    values = np.arange(8 * 24, dtype=array.dtype).reshape(8, 24)
    return batch, values


@pytest.mark.parametrize("kind", ["memory", "local", "mixed"])
async def test_objects_of_several_stores_are_written_to_their_own(kind: str, tmp_path: Path) -> None:
    kinds = {"mixed": ["memory", "local"]}.get(kind, [kind] * 2)
    stores = [store_of(each, tmp_path / str(i)) for i, each in enumerate(kinds)]
    array = create(stores[0])
    batch, values = batch_of(array, stores)
    pipeline = shardcodec.ShardCodecPipeline(array.metadata, stores[0])
    await pipeline.write(batch, as_buffer(values))
    for i, store in enumerate(stores):
        keys = [key async for key in store.list_prefix("c/")]
        assert keys == [f"c/0/{i}"]
    out = np.zeros_like(values)
    await pipeline.read(batch, as_buffer(out))
    assert bits(out) == bits(values)


async def test_objects_of_what_is_not_a_store_are_left_to_zarr() -> None:
    store = MemoryStore()
    array = create(store)
    batch, values = batch_of(array, [store, store])
    proxy = Proxy(store)
    for target, *_ in batch:
        target.store = proxy
    pipeline = shardcodec.ShardCodecPipeline(array.metadata, store)
    await pipeline.write(batch, as_buffer(values))
    assert bits(ours(store)[:8]) == bits(values)
