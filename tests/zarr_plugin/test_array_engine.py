# test_array_engine.py - the array engines for zarr's draft of a protocol
# SPDX-License-Identifier: MIT
"""Tests of the engines. Their selections, data types and stores are tested in `test_way_contract`."""

from __future__ import annotations

import asyncio
import inspect
import json
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import engine_protocol
import numpy as np
import pytest
import zarr
from engine_protocol import EngineArray
from helpers import bits, quiet, random_array, store_of, zarrs_view
from templates import written_once
from zarr.abc.buffer import Buffer
from zarr.buffer import cpu
from zarr.codecs import numcodecs as of_numcodecs
from zarr.core.buffer import BufferPrototype, NDBuffer
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec.compat import is_repaired
from shardcodec.zarr_plugin import array_engine
from shardcodec.zarr_plugin.array_engine import (
    ArrayEngine,
    AsyncArrayEngine,
    AsyncHierarchyEngine,
    HierarchyEngine,
)

SHAPE = (13, 18)
COORDINATES = (np.array([[9, 0, 3], [3, 12, -1]]), np.array([[8, 0, 2], [2, -18, 17]]))

LAYOUTS: dict[str, dict[str, Any]] = {
    "sharded": {"shards": (8, 12), "chunks": (4, 3)},
    "plain": {"chunks": (4, 5)},
    "v2": {"chunks": (4, 5), "zarr_format": 2},
    "v2 in order F": {"chunks": (4, 5), "zarr_format": 2, "order": "F"},
}


def stored(store: Any, layout: str = "sharded", **arguments: Any) -> Any:
    """Create an array with values and with an object that is not stored."""
    defaults: dict[str, Any] = {"shape": SHAPE, "dtype": "int32", "fill_value": -1, **LAYOUTS[layout]}
    with quiet():
        array = zarr.create_array(store, **(defaults | arguments))
    values = random_array(array.shape, array.dtype)
    if array.fill_value is not None:
        values[8:, 12:] = array.fill_value
    array[...] = values
    return array


def engine_array(array: Any, **arguments: Any) -> EngineArray:
    engine = ArrayEngine(array.store, array.path, **arguments)
    return EngineArray(engine, array.metadata)


@written_once
def write_layout(folder: Path, layout: str) -> None:
    stored(LocalStore(folder), layout)


@pytest.fixture(params=LAYOUTS)
def array(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    write_layout(tmp_path, request.param)
    return zarr.open_array(tmp_path)


# ---------------------------------------------------------------- the protocol


@pytest.mark.parametrize("name", array_engine.__all__)
def test_methods_are_those_of_the_protocol(name: str, tmp_path: Path) -> None:
    """Names, order, kinds and defaults of parameters, and which methods are coroutines."""
    ours, twin = getattr(array_engine, name), getattr(engine_protocol, name)
    array = stored(LocalStore(tmp_path))
    made = ours(array.store, "") if "Array" in name else ours(array.store)
    assert isinstance(made, twin)
    methods = [method for method in vars(twin) if not method.startswith("_")]
    assert methods
    for method in methods:
        a, b = getattr(ours, method), getattr(twin, method)
        assert inspect.iscoroutinefunction(a) is inspect.iscoroutinefunction(b)
        described = [
            [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
            for function in (a, b)
        ]
        assert described[0] == described[1]


# ---------------------------------------------------------------- reads and writes


# ---------------------------------------------------------------- where results lie


def test_engines_of_a_hierarchy(tmp_path: Path) -> None:
    array = stored(LocalStore(tmp_path), name="level/0")
    for value, hierarchy in enumerate((HierarchyEngine(array.store), AsyncHierarchyEngine(array.store))):
        ours = EngineArray(hierarchy.array_engine(array.path, array.metadata), array.metadata)
        if value:
            asyncio.run(ours.set_async("basic", slice(3, 9), value))
            got = asyncio.run(ours.get_async("basic", ...))
        else:
            ours.set("basic", slice(3, 9), value)
            got = ours.get("basic", ...)
        assert bits(got) == bits(array[...]) and (got[3:9] == value).all()


def test_elements_are_cast_to_the_type_of_out(tmp_path: Path) -> None:
    array = stored(LocalStore(tmp_path))
    out = cpu.NDBuffer.from_numpy_array(np.zeros((5, 18)))
    got = engine_array(array).get("basic", slice(0, 5), out=out)
    assert got.dtype == "float64"
    assert (got == array[0:5]).all()


def test_unusable_out(tmp_path: Path) -> None:
    ours = engine_array(stored(LocalStore(tmp_path)))
    fixed = np.zeros((5, 18), "int32")
    fixed.flags.writeable = False
    for out, error in [
        (np.zeros((5, 18), "int32"), TypeError),
        (cpu.NDBuffer.from_numpy_array(np.zeros((18, 5), "int32")), ValueError),
        (cpu.NDBuffer.from_numpy_array(fixed), ValueError),
    ]:
        with pytest.raises(error, match="out"):
            ours.get("basic", slice(0, 5), out=out)
    square = cpu.NDBuffer.from_numpy_array(np.zeros((2, 3), "int32"))
    with pytest.raises(ValueError, match=r"out: expected shape \(6,\)"):
        ours.get("coordinate", COORDINATES, out=square)


class Marked(np.ndarray):  # type: ignore[type-arg]
    """The arrays of a prototype of the user."""


class MarkedBuffer(cpu.NDBuffer):
    @classmethod
    def empty(cls, shape: Any, dtype: Any, order: Any = "C") -> MarkedBuffer:
        return cls(np.empty(shape, dtype, order).view(Marked))  # type: ignore[arg-type]


class ElsewhereBuffer(NDBuffer):
    """Stands for a buffer on a GPU."""


def test_results_are_of_the_prototype(tmp_path: Path) -> None:
    array = stored(LocalStore(tmp_path))
    ours = engine_array(array)
    ours.prototype = BufferPrototype(cpu.Buffer, MarkedBuffer)
    for kind, selection in [("basic", slice(3, 9)), ("mask", random_array(SHAPE, "uint8", 3) % 5 == 0)]:
        got = ours.get(kind, selection)
        assert isinstance(got, Marked)
        assert bits(got) == bits(array[...][selection])


@pytest.mark.parametrize("prototype", [(cpu.Buffer, ElsewhereBuffer), (Buffer, cpu.NDBuffer)])
def test_buffers_elsewhere_are_refused(prototype: Any, tmp_path: Path) -> None:
    """No element is read or stored, by another way neither."""
    array = stored(LocalStore(tmp_path))
    before = array[...]
    ours = engine_array(array)
    ours.prototype = BufferPrototype(*prototype)
    with pytest.raises(shardcodec.UnsupportedError, match="prototype: expected buffers in the memory"):
        ours.get("basic", ...)
    with pytest.raises(shardcodec.UnsupportedError, match="prototype: expected buffers in the memory"):
        ours.set("basic", ..., 5)
    assert bits(array[...]) == bits(before)


def test_config_gives_the_order_of_results(tmp_path: Path) -> None:
    stored(LocalStore(tmp_path))
    array = zarr.open_array(tmp_path).with_config({"order": "F"})
    got = engine_array(array, config=array.async_array.config).get("basic", slice(2, 9))
    assert got.flags.f_contiguous
    assert bits(got) == bits(array[2:9])


def test_config_says_whether_empty_chunks_are_stored(tmp_path: Path) -> None:
    array = stored(LocalStore(tmp_path), "plain")
    config = array.with_config({"write_empty_chunks": True}).async_array.config
    last = tmp_path / "c/3/3"
    engine_array(array).set("basic", ..., -1)
    assert not last.exists()
    engine_array(array, config=config).set("basic", ..., -1)
    assert last.exists()


@pytest.mark.skipif(
    "read_missing_chunks" not in zarr.config.get("array"),
    reason="this version of zarr always fills missing chunks",
)
def test_missing_chunks_are_not_reported(tmp_path: Path) -> None:
    config = stored(LocalStore(tmp_path)).with_config({"read_missing_chunks": False}).async_array.config
    with pytest.raises(shardcodec.UnsupportedError, match="read_missing_chunks"):
        ArrayEngine(tmp_path, config=config)


# ---------------------------------------------------------------- fields

PARTS = [("a", "i4"), ("b", "f8"), ("c", "u1")]


@pytest.fixture
def records(tmp_path: Path) -> Any:
    with quiet():
        array = zarr.create_array(
            LocalStore(tmp_path), shape=(9, 8), chunks=(4, 4), dtype=PARTS, zarr_format=2
        )
    values = np.zeros((9, 8), PARTS)
    values["a"], values["b"], values["c"] = np.arange(72).reshape(9, 8), 0.5, 7
    array[...] = values
    return array


@pytest.mark.parametrize("fields", ["b", ["c", "a"], ["a"], [], None], ids=str)
def test_fields_are_read(fields: Any, records: Any) -> None:
    values = records[...]
    expected = values[fields] if fields else values
    for kind, selection in [
        ("basic", (slice(1, 7), slice(2, 5))),
        ("coordinate", (np.array([[1, 2]]), np.array([[3], [0]]))),
    ]:
        got = engine_array(records).get(kind, selection, fields=fields)
        assert got.dtype.names == expected.dtype.names
        assert got.tolist() == expected[selection].tolist()
    assert engine_array(records).get("basic", (3, 4), fields=fields) == expected[3, 4]


def test_fields_that_do_not_exist(records: Any) -> None:
    with pytest.raises(IndexError, match=r"fields: expected some of \('a', 'b', 'c'\), got \['d'\]"):
        engine_array(records).get("basic", ..., fields=["a", "d"])
    with pytest.raises(IndexError, match="fields"):
        engine_array(stored(MemoryStore())).get("basic", ..., fields="a")


def test_fields_are_not_written(records: Any) -> None:
    before = records[...]
    with pytest.raises(shardcodec.UnsupportedError, match="fields"):
        engine_array(records).set("basic", ..., 1, fields="a")
    assert bits(records[...]) == bits(before)
    engine_array(records).set("basic", (0, 0), (5, 2.5, 1), fields=[])
    assert records[0, 0].tolist() == (5, 2.5, 1)


# ---------------------------------------------------------------- refusals


def test_arrays_that_the_engine_does_not_support(tmp_path: Path) -> None:
    with quiet():
        array = zarr.create_array(
            LocalStore(tmp_path), shape=(4,), chunks=(2,), dtype="i4", compressors=[of_numcodecs.BZ2()]
        )
    with pytest.raises(shardcodec.UnsupportedError, match=r"zarr\.open_array"):
        HierarchyEngine(array.store).array_engine("", array.metadata)
    with pytest.raises(FileNotFoundError):
        ArrayEngine(tmp_path, "elsewhere")


def test_metadata_that_zarr_has_corrected_are_stored_before_a_write(tmp_path: Path) -> None:
    """zarr 3.4 reads a chunk size of 0 as 1 and stores that before chunks, so that every reader finds them."""
    array = zarr.create_array(LocalStore(tmp_path), shape=(0,), chunks=(1,), dtype="int32", zarr_format=2)
    document = tmp_path / ".zarray"
    stored_document = json.loads(document.read_text())
    document.write_text(json.dumps({**stored_document, "chunks": [0]}))
    with quiet():
        array = zarr.open_array(tmp_path)
    if not is_repaired(array.metadata):
        pytest.skip("this version of zarr corrects no metadata")
    ours = engine_array(array, metadata=array.metadata)
    assert ours.get("basic", ...).shape == (0,)
    with pytest.raises(shardcodec.UnsupportedError, match="update_attributes"):
        ours.set("basic", ..., 5)
    array = array.update_attributes({})
    engine_array(array).set("basic", ..., 5)


# ---------------------------------------------------------------- other metadata, other processes, many requests


@pytest.mark.parametrize("layout", LAYOUTS)
def test_metadata_after_a_resize_by_zarr(layout: str) -> None:
    """The new engine reads no metadata; the old one refuses requests for the new shape, and works on for the old one."""
    array = stored(MemoryStore(), layout)
    old = engine_array(array)
    values = np.full((20, 25), -1, "int32")
    values[:13, :18] = array[...]
    array.resize((20, 25))
    name = ".zarray" if "v2" in layout else "zarr.json"
    document = array.store._store_dict.pop(name)
    new = old.resized(array.metadata)
    array.store._store_dict[name] = document
    assert bits(new.get("basic", ...)) == bits(values)
    values[11:, 3:] = 4
    new.set("basic", (slice(11, None), slice(3, None)), 4)
    assert bits(array[...]) == bits(values)
    assert bits(old.get("basic", ...)) == bits(values[:13, :18])
    stale = EngineArray(old.engine, array.metadata)
    with pytest.raises(ValueError, match="with_metadata"):
        stale.get("basic", ...)
    with pytest.raises(ValueError, match="with_metadata"):
        stale.set("basic", ..., 0)
    assert bits(array[...]) == bits(values)


def test_options_stay_with_other_metadata(tmp_path: Path) -> None:
    array = stored(LocalStore(tmp_path))
    with shardcodec.options(threads=1, durability="fsync"):
        engine = ArrayEngine(tmp_path)
    assert engine.with_metadata(array.metadata).array._options == engine.array._options
    assert engine.array._options.durability == "fsync"


def test_engines_in_processes_lose_no_update(tmp_path: Path) -> None:
    """Rows of one shard, written at the same time by engines that were pickled; their metadata are pickled, too."""
    array = stored(LocalStore(tmp_path), shards=(16, 18), chunks=(1, 3))
    engine = ArrayEngine(tmp_path).with_metadata(array.metadata)
    assert pickle.loads(pickle.dumps(engine)).order == "C"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        list(pool.map(engine_protocol.write_row, [engine] * SHAPE[0], range(SHAPE[0]), [SHAPE] * SHAPE[0]))
    assert (array[...] == np.arange(SHAPE[0])[:, np.newaxis]).all()


@pytest.mark.parametrize("kind_of_store", ["local", "conditional"])
def test_many_requests_wait_at_the_same_time(kind_of_store: str, tmp_path: Path) -> None:
    """All elements, each written by its own request, and all of them read at the same time; on a loop of the caller."""
    array = stored(store_of(kind_of_store, tmp_path))
    ours = EngineArray(AsyncArrayEngine(array.store), array.metadata)
    places = [(row, column) for row in range(0, 13, 2) for column in range(0, 18, 3)]

    async def work() -> list[Any]:
        await asyncio.gather(*(ours.set_async("basic", place, n) for n, place in enumerate(places)))
        return await asyncio.gather(*(ours.get_async("basic", place) for place in places))

    expected = array[...]
    expected[tuple(np.transpose(places))] = range(len(places))
    assert asyncio.run(work()) == list(range(len(places)))
    assert bits(zarrs_view(array)[...]) == bits(expected)


def test_group_writes_collect_the_writes_of_an_engine(tmp_path: Path) -> None:
    array = stored(LocalStore(tmp_path))
    ours = engine_array(array)
    shard = tmp_path / "c/0/0"
    before = shard.read_bytes()
    with shardcodec.group_writes():
        for row in range(8):
            ours.set("basic", row, row)
        assert shard.read_bytes() == before
        assert (ours.get("basic", slice(0, 8)) == np.arange(8)[:, np.newaxis]).all()
    assert (array[:8] == np.arange(8)[:, np.newaxis]).all()
