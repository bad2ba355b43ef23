# test_array_writers.py - several writers of one open array: processes, threads, coroutines, blocks
# SPDX-License-Identifier: MIT
"""Nothing is lost when several writers append, write, and change attributes at the same time; and what a handle refuses."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from array_writers import append_blocks, set_attributes, write_squares
from helpers import (
    RecordingStore,
    bits,
    bytes_of_files,
    files_below,
    memory_object_store,
    ours,
    quiet,
    zarrs_view,
)
from workers import in_threads
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, ZipStore

import shardcodec
from shardcodec import create_array, open_array

SHAPE = (10, 12)
LAYOUTS: dict[str, dict[str, Any]] = {
    "sharded": {"shards": (4, 6), "chunks": (2, 3)},
    "plain": {"chunks": (4, 6)},
    "v2": {"chunks": (4, 6), "zarr_format": 2},
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
STORES: dict[str, Callable[[Path], Any]] = {
    "local": lambda folder: folder,
    "memory": lambda _: MemoryStore(),
    "requests": lambda _: RecordingStore(MemoryStore()),
    "obstore": lambda _: memory_object_store(),
}


def new(store: Any, layout: str = "sharded", **keywords: Any) -> Any:
    """Create an array of the fill value -1."""
    defaults = {"shape": SHAPE, "dtype": "i4", "fill_value": -1, "compressors": None}
    return create_array(store, **(defaults | LAYOUTS[layout] | keywords))


@contextlib.contextmanager
def processes(n: int) -> Iterator[Any]:
    with multiprocessing.get_context("spawn").Pool(n) as pool:
        yield pool


# ---------------------------------------------------------------- several writers


def assert_whole_blocks(values: np.ndarray[Any, Any], n_blocks: int, n_rows: int) -> None:
    blocks = values.reshape(n_blocks, n_rows, -1)
    assert (blocks == blocks[:, :1, :1]).all(), "a block is torn"
    assert len(set(blocks[:, 0, 0].tolist())) == n_blocks, "a block is lost"


@layouts
def test_processes_append_at_the_same_time(layout: str, tmp_path: Path) -> None:
    new(tmp_path, layout, shape=(0, 12))
    with processes(3) as pool:
        shapes = pool.starmap(append_blocks, [(str(tmp_path), i, 12, 3) for i in range(3)], chunksize=1)
    array = open_array(tmp_path)
    assert array.shape == (3 * 12 * 3, 12)
    assert sorted(shape[0] for taken in shapes for shape in taken) == list(range(3, 109, 3))
    assert_whole_blocks(array[...], 36, 3)


@layouts
@pytest.mark.parametrize("kind", STORES)
def test_threads_append_with_one_handle(layout: str, kind: str, tmp_path: Path) -> None:
    """Each append got the shape of the handle, which another thread could have changed by then."""
    array = new(STORES[kind](tmp_path), layout, shape=(0, 12))
    shapes: list[Any] = []

    def append(number: int) -> None:
        shapes.extend(array.append(np.full((3, 12), 100 * number + i)) for i in range(6))

    in_threads(5, append)
    assert array.shape == (90, 12)
    assert sorted(shape[0] for shape in shapes) == list(range(3, 91, 3))
    assert_whole_blocks(array[...], 30, 3)


def test_an_append_does_not_follow_the_shape_of_the_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the new shape and the write another thread appended: its elements were written over, and the others stayed empty."""
    array = new(tmp_path, shape=(0, 12))
    prepare = type(array)._prepare
    has_grown = False

    def after_prepare(self: Any, document: Any) -> None:
        nonlocal has_grown
        prepare(self, document)
        if not has_grown:
            has_grown = True
            other = open_array(tmp_path, mode="r+")
            other.append(np.full((2, 12), 5))
            prepare(self, other._document)

    monkeypatch.setattr(type(array), "_prepare", after_prepare)
    assert array.append(np.full((3, 12), 4)) == (3, 12)
    assert open_array(tmp_path)[:, 0].tolist() == [4, 4, 4, 5, 5]


@layouts
def test_processes_write_parts_of_one_object(layout: str, tmp_path: Path) -> None:
    new(tmp_path, layout, shape=(16, 24), **({} if layout != "sharded" else {"shards": (16, 24)}))
    with processes(2) as pool:
        pool.starmap(write_squares, [(str(tmp_path), i, 2) for i in range(2)], chunksize=1)
    values = open_array(tmp_path)[...]
    rows, columns = np.indices(values.shape)
    assert (values == rows // 2 * 100 + columns // 3).all()


@layouts
def test_processes_change_attributes(layout: str, tmp_path: Path) -> None:
    array = new(tmp_path, layout, attributes={"first": 0})
    with processes(2) as pool:
        pool.starmap(set_attributes, [(str(tmp_path), i, 15) for i in range(2)], chunksize=1)
    expected = {"first": 0} | {f"{i}-{j}": j for i in range(2) for j in range(15)}
    assert dict(array.attrs) == expected
    assert dict(zarr.open_array(tmp_path).attrs) == expected


@layouts
def test_a_write_keeps_what_another_handle_has_appended(layout: str, tmp_path: Path) -> None:
    """A handle that does not know the new shape replaced the chunk at its edge, and the appended elements with it."""
    array = new(tmp_path, layout, shape=(5, 12))
    open_array(tmp_path, mode="r+").append(np.full((2, 12), 3))
    for selection in (..., slice(4, 5), (slice(4, 5), slice(0, 6))):
        array[selection] = 7
    array.write_boxes([[4, 0]], np.full((1, 1, 12), 7))
    assert open_array(tmp_path)[:, 0].tolist() == [7] * 5 + [3] * 2
    assert (open_array(tmp_path)[5:] == 3).all()


# ---------------------------------------------------------------- coroutines


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("loop", ["own", "zarr's"])
def test_many_coroutines_read_and_write(kind: str, loop: str, tmp_path: Path) -> None:
    array = new(STORES[kind](tmp_path), shape=(60, 12))

    async def work() -> None:
        await asyncio.gather(*(array.write_async((slice(i, i + 1), slice(None)), i) for i in range(60)))
        rows = await asyncio.gather(*(array.read_async(i) for i in range(60)))
        assert all((row == i).all() for i, row in enumerate(rows))
        await array.write_async(([1, 3], [2, 4]), [7, 8], kind="coordinate")
        out = np.empty((2, 2), "i4")
        assert await array.read_async(([1, 3], [2, 4]), kind="orthogonal", out=out) is out
        assert out.tolist() == [[7, 1], [3, 8]]

    if loop == "own":
        asyncio.run(work())
    else:
        sync(work())


@pytest.mark.parametrize("kind", ["local", "requests"])
def test_coroutines_that_are_cancelled_leave_the_array_whole(kind: str, tmp_path: Path) -> None:
    array = new(tmp_path if kind == "local" else RecordingStore(MemoryStore()), shape=(40, 12))
    array[...] = 1

    async def work() -> None:
        tasks = [asyncio.create_task(array.write_async(i, 2)) for i in range(40)]
        await asyncio.sleep(0.002)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for i, answer in enumerate(done):
            assert answer is None or (i % 2 == 0 and isinstance(answer, asyncio.CancelledError)), answer
        # a cancelled write may still run in its thread; one after it waits for it
        await asyncio.gather(*(array.write_async((i, 0), 3) for i in range(40)))

    asyncio.run(work())
    values = array[...]
    assert (values[:, 0] == 3).all()
    assert (values[1::2, 1:] == 2).all()
    assert all(set(row) in ({1}, {2}) for row in values[::2, 1:].tolist())


# ---------------------------------------------------------------- blocks of group_writes


@layouts
def test_elements_outside_stay_deleted_in_a_block(layout: str, tmp_path: Path) -> None:
    """A write that was buffered before the array became smaller appeared again when it had grown."""
    array = new(tmp_path, layout)
    with shardcodec.group_writes():
        array[8] = 3
        array[3, :4] = 4
        array.resize((4, 12))
        array.resize(SHAPE)
        assert (array[4:] == -1).all()
        array[9, 5] = 6
    assert (array[4:8] == -1).all() and array[9, 5] == 6 and (array[3, :4] == 4).all()
    assert (zarrs_view(ours(tmp_path))[...] == array[...]).all()


@layouts
def test_an_array_grows_in_a_block(layout: str, tmp_path: Path) -> None:
    array = new(tmp_path, layout)
    with shardcodec.group_writes():
        array[1:3, 2] = 1
        assert array.append(np.full((3, 12), 2)) == (13, 12)
        array.attrs["a"] = 1
        array[12, 11] = 5
        assert array[1:3, 2].tolist() == [1, 1] and array[12, 10:].tolist() == [2, 5]
        assert asyncio.run(array.read_async((12, slice(10, 12)))).tolist() == [2, 5]
    assert open_array(tmp_path)[12, 10:].tolist() == [2, 5]
    assert dict(open_array(tmp_path).attrs) == {"a": 1}


# ---------------------------------------------------------------- shapes


def test_lists_that_a_caller_changes_later_are_not_stored(tmp_path: Path) -> None:
    given = [1]
    zarr.create_array(tmp_path / "a", shape=(2,), dtype="uint8", chunks=(1,))
    array = open_array(tmp_path / "a", mode="r+")
    attributes = array.attrs
    attributes["a"] = given
    given.append(2)
    attributes["a"].append(3)
    attributes["b"] = 0
    array.append(np.zeros(1, "uint8"))
    array.append(np.zeros(1, "uint8"))
    assert dict(open_array(tmp_path / "a").attrs) == {"a": [1], "b": 0}


@pytest.mark.parametrize("has_listing", [True, False])
def test_a_smaller_array_deletes_its_objects(has_listing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RecordingStore(MemoryStore())
    monkeypatch.setattr(RecordingStore, "supports_listing", has_listing)
    array = new(store)
    array[...] = 1
    array.resize((4, 5))
    assert sorted(key for key in store._store._store_dict if key.startswith("c/")) == ["c/0/0"]
    array.resize(SHAPE)
    assert (array[4:] == -1).all() and (array[:4, :6] == 1).all() and (array[:, 6:] == -1).all()


@layouts
def test_empty_and_narrow_arrays(layout: str, tmp_path: Path) -> None:
    array = new(tmp_path, layout, shape=(0, 12))
    array[...] = 5
    array[:, 3] = np.empty(0)
    array.write_boxes(np.empty((0, 2), int), np.empty((0, 2, 2)))
    array.write_boxes([[0, 3]], np.empty((1, 0, 2)))
    assert array[...].shape == (0, 12) and array.read_boxes([[0, 0]], (0, 3)).shape == (1, 0, 3)
    assert asyncio.run(array.read_async()).shape == (0, 12)
    assert array.append(np.empty((0, 12))) == (0, 12)
    array.resize((1, 1))
    array[0, 0] = 6
    assert array.append([[7]], axis=-1) == (1, 2)
    assert array[...].tolist() == [[6, 7]]
    assert zarr.open_array(tmp_path)[...].tolist() == [[6, 7]]


# ---------------------------------------------------------------- refusals


def test_a_handle_that_reads_changes_nothing(tmp_path: Path) -> None:
    new(tmp_path, attributes={"a": 1})[...] = 1
    before = bytes_of_files(tmp_path)
    array = open_array(tmp_path)
    for change in (
        lambda: array.__setitem__(0, 2),
        lambda: array.oindex.__setitem__([0], 2),
        lambda: array.write_boxes([[0, 0]], np.ones((1, 1, 1))),
        lambda: array.append(np.ones((1, 12))),
        lambda: array.resize((1, 1)),
        lambda: array.attrs.update(a=2),
        lambda: array.attrs.__delitem__("a"),
        array.attrs.clear,
        lambda: asyncio.run(array.write_async(0, 2)),
        lambda: pickle.loads(pickle.dumps(array)).__setitem__(0, 2),
    ):
        with pytest.raises(ValueError, match=rf"{tmp_path}: expected mode='r\+'"):
            change()
    assert bytes_of_files(tmp_path) == before


def test_read_only_places_are_refused(tmp_path: Path) -> None:
    new(tmp_path / "a")
    with ZipStore(tmp_path / "a.zip", mode="w") as store, quiet():
        new(store)[0] = 1
    for place in (LocalStore(tmp_path / "a", read_only=True), tmp_path / "a.zip"):
        with pytest.raises(ValueError, match="read-only"):
            open_array(place, mode="r+")
        assert open_array(place).mode == "r"
    with pytest.raises(ValueError, match="immutable"):
        open_array(tmp_path / "a", mode="r+", immutable=True)
    with pytest.raises(ValueError, match="mode"):
        open_array(tmp_path / "a", mode="w")  # type: ignore[arg-type]


@layouts
def test_leading_axes_of_one_element_are_ignored(layout: str, tmp_path: Path) -> None:
    """numpy and zarr take a frame with a new first axis; the handle refused it."""
    array = new(tmp_path, layout)
    expected = array[...]
    row = np.arange(1, 13, dtype=array.dtype)
    for target in (array, expected):
        target[0] = row[np.newaxis]
        target[1:3] = np.stack([row, row + 1])[np.newaxis, np.newaxis]
        target[4, 5:6] = np.array([[[7]]])
        target[5, :4] = row[np.newaxis, :1]
    array.oindex[[6, 8], 1:3] = np.full((1, 2, 2), 9)
    expected[np.ix_([6, 8], [1, 2])] = 9
    assert (array[...] == expected).all()


def test_wrong_values_store_nothing(tmp_path: Path) -> None:
    """An append of elements that do not become numbers left the array longer."""
    array = new(tmp_path)
    array[...] = 1
    before = bytes_of_files(tmp_path)
    for error, change in (
        (ValueError, lambda: array.__setitem__(slice(0, 2), np.ones((3, 12)))),
        (ValueError, lambda: array.__setitem__(slice(0, 0), np.ones((3, 12)))),
        (ValueError, lambda: array.oindex.__setitem__([0, 1], np.ones(2))),
        (ValueError, lambda: array.__setitem__(0, "one")),
        (ValueError, lambda: array.__setitem__(0, np.full(12, "one"))),
        (OverflowError, lambda: array.__setitem__(0, 2**40)),
        (IndexError, lambda: array.__setitem__(10, 1)),
        (ValueError, lambda: array.write_boxes([[0, 0]], np.ones((2, 1, 1)))),
        (ValueError, lambda: array.write_boxes([[0, 0]], np.ones((1, 1)))),
        (IndexError, lambda: array.write_boxes([[0, 0], [9, 0]], np.ones((2, 2, 2)))),
        (ValueError, lambda: array.append(np.full((1, 12), "one"))),
        (ValueError, lambda: array.append(np.ones((1, 11)))),
        (ValueError, lambda: array.append(5)),
        (ValueError, lambda: array.append(np.ones((1, 12)), axis=2)),
        (ValueError, lambda: array.resize((1,))),
        (ValueError, lambda: array.resize((-1, 12))),
        (ValueError, lambda: array.write(0, 1, kind="other")),
        (TypeError, lambda: array.attrs.update(a=np.float32(1))),
    ):
        with pytest.raises(error):
            change()
    assert bytes_of_files(tmp_path) == before and array.shape == SHAPE


@layouts
@pytest.mark.parametrize("kind", ["brackets", "boxes", "coroutine"])
def test_damage_stops_a_write(layout: str, kind: str, tmp_path: Path) -> None:
    """The error of a write named the object alone, and not which array it belongs to."""
    array = new(tmp_path, layout, compressors="auto")
    array[...] = 1
    path = next(tmp_path / name for name in ("c/0/0", "0.0") if (tmp_path / name).exists())
    path.write_bytes(b"broken")
    before = bytes_of_files(tmp_path)
    write = {
        "brackets": lambda: array.__setitem__((0, 0), 2),
        "boxes": lambda: array.write_boxes([[0, 0]], np.ones((1, 1, 1))),
        "coroutine": lambda: asyncio.run(array.write_async((0, 0), 2)),
    }[kind]
    with pytest.raises(shardcodec.ShardError, match=str(path)) as raised:
        write()
    assert raised.value.shard == str(path)
    assert bytes_of_files(tmp_path) == before
    array[0:4, 0:6] = 2  # what replaces it needs nothing of it
    assert (array[0:4, 0:6] == 2).all()


# ---------------------------------------------------------------- the rest


@pytest.mark.parametrize("durability", ["rename", "fsync"])
def test_files_are_durable(durability: str, tmp_path: Path) -> None:
    with shardcodec.options(durability=durability):
        array = new(tmp_path)
    array[...] = 1
    array[3, 4] = 2
    array.append(np.full((1, 12), 3))
    array.attrs["a"] = 1
    assert zarr.open_array(tmp_path)[...].sum() == 120 + 1 + 36
    staging = (
        tmp_path.parent / f".{tmp_path.name}.shardcodec"
    )  # other tests of this process have theirs beside it
    assert not staging.exists() and not [name for name in files_below(tmp_path) if ".shardcodec" in name]


def test_a_pickled_handle_writes(tmp_path: Path) -> None:
    array = new(tmp_path)
    array.append(np.ones((2, 12)))
    copy = pickle.loads(pickle.dumps(array))
    assert copy.mode == "r+" and copy.shape == (12, 12)
    copy[0] = 4
    assert (array[0] == 4).all()


def test_whole_inner_chunks_are_written_without_a_decode(tmp_path: Path) -> None:
    array = new(tmp_path)
    array[...] = 1
    shardcodec.stats.reset()
    array.write_boxes([[0, 0], [2, 3], [8, 9]], np.full((3, 2, 3), 9))
    array[4:6, 0:3] = 9
    array.oindex[[6, 7], [0, 1, 2]] = 9
    done = shardcodec.stats()
    assert done["chunks_decoded"] == 0 and done["chunks_encoded"] == 5


def test_functions_of_numpy(tmp_path: Path) -> None:
    """`np.copyto` changed a copy of the elements and stored nothing; `np.shape` read them all."""
    array = new(tmp_path)
    values = np.arange(120, dtype="i4").reshape(SHAPE)
    array[...] = values
    shardcodec.stats.reset()
    assert (np.shape(array), np.ndim(array), np.size(array)) == (SHAPE, 2, 120)
    assert np.zeros_like(array).shape == SHAPE and np.result_type(array, 1.0) == np.float64
    assert shardcodec.stats()["chunks_decoded"] == 0
    assert np.mean(array) == values.mean()
    assert bits(np.concatenate([array, array])) == bits(np.concatenate([values, values]))
    assert bits(np.add(array, 1)) == bits(values + 1)
    copy = np.zeros(SHAPE, "i4")
    np.copyto(copy, array)
    assert bits(copy) == bits(values)
    for write in (
        lambda: np.copyto(array, 0),
        lambda: np.copyto(dst=array, src=0),
        lambda: np.put(array, [0], 5),
        lambda: np.fill_diagonal(array, 5),
        lambda: np.sum(values, axis=1, out=array),
        lambda: np.add(values, 1, out=array),
    ):
        with pytest.raises(TypeError):
            write()
    assert bits(array[...]) == bits(values)


def test_attributes_are_those_that_are_stored(tmp_path: Path) -> None:
    array = new(tmp_path, attributes={"a": [1]})
    attributes = array.attrs
    attributes["b"] = (1, {2: 3})
    assert attributes == {"a": [1], "b": [1, {"2": 3}]} == dict(array.attrs)
    open_array(tmp_path, mode="r+").attrs["c"] = 5
    del attributes["a"]
    assert dict(attributes) == {"b": [1, {"2": 3}], "c": 5}
    with pytest.raises(KeyError):
        del attributes["a"]
    with pytest.raises(TypeError, match=f"{tmp_path}.*float32"):
        attributes["d"] = np.float32(1)


def test_dask_reads_and_stores(tmp_path: Path) -> None:
    dask_array = pytest.importorskip("dask.array", reason="dask is not installed")
    array, copy = new(tmp_path / "a"), new(tmp_path / "b")
    values = np.arange(120, dtype="i4").reshape(SHAPE)
    array[...] = values
    lazy = dask_array.from_array(array, chunks=(3, 5))
    assert bits(lazy[[1, 2]].compute()) == bits(values[[1, 2]])
    dask_array.store(lazy * 2, copy, lock=False)
    assert bits(copy[...]) == bits(values * 2)


def test_document_that_is_no_json_is_named_and_stays(tmp_path: Path) -> None:
    """Beside the name of the document, the error named neither the array nor its folder."""
    array = shardcodec.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="u1")
    document = tmp_path / "a" / "zarr.json"
    document.write_text("{")
    with pytest.raises(shardcodec.SpecError, match=re.escape(str(document))):
        array.append([1])
    assert document.read_text() == "{"


@pytest.mark.parametrize("layout", [{"chunks": (4, 6)}, {"shards": (4, 6), "chunks": (2, 3)}], ids=str)
@pytest.mark.parametrize("writer", ["handle", "zarr"])
def test_block_stores_what_was_written_after_the_array_grew(
    tmp_path: Path, layout: dict[str, Any], writer: str
) -> None:
    """A look at the metadata is kept for a while, so elements of a part that was new since then were dropped as void."""
    handle = shardcodec.create_array(tmp_path, shape=(9, 13), dtype="i4", fill_value=-1, **layout)
    with shardcodec.enable():
        array = handle if writer == "handle" else zarr.open_array(tmp_path, mode="r+")
    with shardcodec.group_writes():
        for n in (1, 2, 3):
            old = array.shape[0]
            array.resize((old + 2, 13))
            array[old:] = n
            handle.refresh()
            assert (handle[old:] == n).all()  # a read of a handle stores the buffered writes
    assert zarr.open_array(tmp_path, mode="r")[9:, 0].tolist() == [1, 1, 2, 2, 3, 3]
