# test_array.py - shardcodec.open_array: a reader without a zarr array, compared with numpy
# SPDX-License-Identifier: MIT
"""`open_array` reads what zarr wrote: basic selections, boxes and inner chunks, from every kind of store."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import RecordingStore, bits, create, in_child, put_object, random_array, read_row
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import LocalStore, MemoryStore, StorePath, ZipStore

import shardcodec
from shardcodec import IndexCache, open_array

SHAPE = (30, 41)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a ragged array of 4 x 4 shards, one of them absent."""
    path = tmp_path_factory.mktemp("array")
    array = create(path, shape=SHAPE, shards=(8, 12), chunks=(4, 3))
    array[...] = values()
    array[8:16, 12:24] = -1
    return path


def values() -> np.ndarray[Any, Any]:
    return random_array(SHAPE, "int32")


def expected() -> np.ndarray[Any, Any]:
    array = values()
    array[8:16, 12:24] = -1
    return array


@pytest.mark.parametrize("name", ["a.zip", "a.ozx", "a"])
def test_array_in_a_zip_file(name: str, tmp_path: Path) -> None:
    """`open_array` and `chunk_state` take a zip file and a path into one, as the tools do."""
    with ZipStore(tmp_path / name, mode="w") as store:
        create(store, name="level/0", shape=SHAPE, shards=(8, 12), chunks=(4, 3))[...] = values()
    for place in (
        (tmp_path / name, "level/0"),
        (tmp_path / name / "level/0",),
        (str(tmp_path / name / "level"), "0"),
    ):
        array = open_array(*place)
        assert bits(array[...]) == bits(values())
        assert bits(pickle.loads(pickle.dumps(array))[3]) == bits(values()[3])
        state = shardcodec.chunk_state(*place)
        assert state.exists.all()
        assert len(list(state.iter_existing())) == 8 * 14
    with pytest.raises(FileNotFoundError, match=r"neither a zarr\.json"):
        open_array(tmp_path / name / "level/1")


def test_reader_has_the_properties_of_the_array(folder: Path) -> None:
    array = open_array(folder)
    assert (array.shape, array.ndim, array.dtype, len(array)) == (SHAPE, 2, np.dtype("int32"), 30)
    assert (array.chunks, array.shards, array.fill_value) == ((4, 3), (8, 12), -1)
    assert "shape=(30, 41)" in repr(array)


REFUSED: dict[str, list[Any]] = {
    "brackets": [
        *(30, -31, (0, 0, 0), slice(None, None, -1), 1.5, (..., ...), None, (None, 0), True, np.False_),
        *([1, 30], ([1], [2], 0), ([True], 0)),
    ],
    "orthogonal": [(np.array([[2, 4], [6, 8]]), 0)],
    "mask": [(slice(None), slice(None)), (np.zeros(SHAPE, dtype=bool), 0)],
    "block": [slice(4, 7), slice(-5, None), slice(0, 4, 2), slice(None, None, -1)],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_unsupported_selections_raise_index_error(folder: Path, kind: Any) -> None:
    """zarr refuses those of a kind, too. An index array with two axes raised TypeError, or selected other elements; a mask beside an
    index raised ValueError; blocks that begin outside the array selected nothing.
    """
    zarrs = zarr.open_array(folder, mode="r")
    for selection in REFUSED[kind]:
        with pytest.raises(IndexError):
            open_array(folder).read(selection, kind=kind)
        if kind != "brackets":
            with pytest.raises(IndexError):
                getattr(zarrs, f"get_{kind}_selection")(selection)


def test_a_function_makes_the_array_to_read_into(folder: Path) -> None:
    """It is called once, with the shape of the result, also for coordinates with several axes."""
    made: list[np.ndarray[Any, Any]] = []

    def out(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        made.append(np.zeros(shape, "int32", order="F"))
        return made[-1]

    array = open_array(folder)
    corners = (np.array([[0, 29], [4, 4]]), np.array([[0, 40], [5, 6]]))
    for kind, selection in (("basic", slice(3, 9)), ("coordinate", corners)):
        got = array.read(selection, kind=kind, out=out)  # type: ignore[arg-type]
        assert got is made[-1]
        assert bits(got) == bits(expected()[selection])
    assert len(made) == 2


def test_reader_converts_to_a_numpy_array(folder: Path) -> None:
    array = open_array(folder)
    assert bits(np.asarray(array)) == bits(expected())
    assert np.asarray(array, dtype="f8").dtype == np.float64


@settings(deadline=None)
@given(st.data())
def test_boxes_equal_numpy(folder: Path, data: st.DataObject) -> None:
    array, wanted = open_array(folder), expected()
    shape = tuple(data.draw(st.integers(0, extent)) for extent in SHAPE)
    starts = data.draw(
        st.lists(
            st.tuples(*(st.integers(0, extent - n) for extent, n in zip(SHAPE, shape, strict=True))),
            max_size=8,
        )
    )
    got = array.read_boxes(starts, shape)
    assert got.shape == (len(starts), *shape)
    for box, (row, column) in zip(got, starts, strict=True):
        assert bits(box) == bits(wanted[row : row + shape[0], column : column + shape[1]])


def test_boxes_are_read_into_any_memory_layout(folder: Path) -> None:
    array = open_array(folder)
    memory = np.zeros((7, 5, 6), np.int32).T
    assert memory.shape == (6, 5, 7)
    starts = np.array([[0, 0], [25, 34], [3, 11], [0, 0], [10, 13], [20, 30]], dtype=np.uint8)
    assert array.read_boxes(starts, (5, 7), out=memory) is memory
    for box, (row, column) in zip(memory, starts.tolist(), strict=True):
        assert bits(box) == bits(expected()[row : row + 5, column : column + 7])


@pytest.mark.parametrize(
    ("starts", "box"),
    [([[0, 0], [26, 0]], (5, 5)), ([[-1, 0]], (2, 2)), ([[0, 37]], (1, 5)), ([[0, 0]], (31, 1))],
)
def test_boxes_outside_the_array_are_refused(folder: Path, starts: Any, box: Any) -> None:
    with pytest.raises(IndexError, match="reaches outside"):
        open_array(folder).read_boxes(starts, box)


def test_bad_arguments_are_refused(folder: Path) -> None:
    array = open_array(folder)
    with pytest.raises(TypeError, match="integers"):
        array.read_boxes([[0.0, 1.0]], (2, 2))
    with pytest.raises(ValueError, match=r"shape \(n, 2\)"):
        array.read_boxes([0, 0], (2, 2))
    with pytest.raises(ValueError, match=r"shape \(n, 2\)"):
        array.read_boxes([[0, 0, 0]], (2, 2))
    with pytest.raises(ValueError, match="expected 2 numbers"):
        array.read_boxes([[0, 0]], (2,))
    with pytest.raises(TypeError, match="path or a zarr store"):
        open_array(5)
    with pytest.raises(FileNotFoundError, match=r"zarr\.json"):
        open_array(folder / "nowhere")


def test_chunks_are_padded_and_positions_checked(folder: Path) -> None:
    array = open_array(folder)
    got = array.read_chunks([[0, 0], [7, 13], [2, 5], [2, 5]])
    assert got.shape == (4, 4, 3)
    padded = np.full((32, 48), -1, np.int32)
    padded[:30, :41] = expected()
    for chunk, (row, column) in zip(got, [(0, 0), (7, 13), (2, 5), (2, 5)], strict=True):
        assert bits(chunk) == bits(padded[4 * row : 4 * row + 4, 3 * column : 3 * column + 3])
    for outside in ([[8, 0]], [[0, 14]], [[-1, 0]]):
        with pytest.raises(IndexError, match="expected positions in a grid"):
            array.read_chunks(outside)


def test_boxes_open_each_shard_once_and_decode_each_chunk_once(folder: Path) -> None:
    array = open_array(folder, index_cache=0)
    rng = np.random.default_rng(0)
    starts = np.stack([rng.integers(0, 20, 500), rng.integers(0, 31, 500)], axis=1)
    shardcodec.stats.reset()
    array.read_boxes(starts, (10, 10))
    done = shardcodec.stats()
    assert done["opens"] == 16
    assert done["chunks_decoded"] <= 8 * 14


# ---- kinds of arrays


def test_unsupported_metadata_is_refused(tmp_path: Path) -> None:
    create(tmp_path)
    metadata = json.loads((tmp_path / "zarr.json").read_text())
    for change, reason in [
        ({"chunk_key_encoding": {"name": "hash"}}, "chunk key encoding"),
        (
            {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "made.up"}]},
            "made.up|codecs",
        ),
        ({"storage_transformers": [{"name": "x"}]}, "storage_transformers"),
    ]:
        (tmp_path / "zarr.json").write_text(json.dumps(metadata | change))
        with pytest.raises(shardcodec.UnsupportedError, match=reason):
            open_array(tmp_path)[...]
    (tmp_path / "zarr.json").write_text("{")
    with pytest.raises(shardcodec.SpecError, match="expected JSON"):
        open_array(tmp_path)


def test_damage_names_the_shard(tmp_path: Path) -> None:
    create(tmp_path)[...] = 3
    (tmp_path / "c/1/0").write_bytes(b"broken")
    array = open_array(tmp_path)
    assert array[0, 0] == 3
    for read in (lambda: array[...], lambda: array[9, 1], lambda: array.read_boxes([[6, 6]], (6, 6))):
        with pytest.raises(shardcodec.ShardFormatError, match="c/1/0") as info:
            read()
        assert info.value.shard == str(tmp_path / "c/1/0"), "the full path tells which array"


# ---- stores


@pytest.mark.parametrize("kind", ["path", "string", "local", "memory", "recorded", "store path"])
def test_every_kind_of_store_is_read(tmp_path: Path, kind: str) -> None:
    stores: dict[str, Any] = {
        "path": tmp_path,
        "string": str(tmp_path),
        "local": LocalStore(tmp_path),
        "memory": MemoryStore(),
        "recorded": RecordingStore(MemoryStore()),
        "store path": StorePath(LocalStore(tmp_path), ""),
    }
    store = stores[kind]
    name = None if kind == "store path" else "group/a"
    create(store, own=True, name=name, shape=SHAPE)[...] = expected()
    array = open_array(store, "group/a" if kind != "store path" else "")
    assert bits(array[3:, 5]) == bits(expected()[3:, 5])
    starts = [[0, 0], [20, 30], [7, 11]]
    for box, (row, column) in zip(array.read_boxes(starts, (9, 9)), starts, strict=True):
        assert bits(box) == bits(expected()[row : row + 9, column : column + 9])
    assert array.shape == SHAPE


def test_damage_in_a_memory_store_names_the_key(tmp_path: Path) -> None:
    inner = MemoryStore()
    create(inner, name="a")[...] = 3
    store = RecordingStore(inner)
    array = open_array(store, "a")
    put_object(inner, "a/c/1/0", b"broken")
    with pytest.raises(shardcodec.ShardFormatError, match="a/c/1/0"):
        array[...]


# ---- sharing


def test_reader_is_pickled_to_other_processes(folder: Path) -> None:
    cache = IndexCache(12345)
    array = open_array(folder, threads=1, index_cache=cache, immutable=True)
    copy = pickle.loads(pickle.dumps(array))
    assert bits(copy[...]) == bits(expected())
    assert copy._arguments[1:2] == (1,)
    assert copy._arguments[2].max_bytes == 12345
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.starmap(read_row, [(array, 3)]) == [bits(expected()[3])]


@pytest.mark.skipif(
    os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread",
    reason="ThreadSanitizer ends a child that was forked while threads run",
)
def test_threads_read_while_the_process_forks(folder: Path) -> None:
    array = open_array(folder, threads=2, index_cache=1 << 16)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(50):
                row = (number * 7 + i) % 20
                assert bits(array.read_boxes([[row, i % 30]], (10, 10))[0]) == bits(
                    expected()[row : row + 10, i % 30 : i % 30 + 10]
                )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        in_child(lambda: read_all(array))
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def read_all(array: Any) -> None:
    assert bits(array[...]) == bits(expected())


def test_relative_path_survives_chdir(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    array = open_array(folder.name)
    monkeypatch.chdir(os.sep)
    assert bits(array[0]) == bits(expected()[0])


def test_options_are_fixed_when_the_reader_is_opened(folder: Path) -> None:
    with shardcodec.options(threads=1, open_files=20, index_cache=1 << 10):
        array = open_array(folder)
    array[...]
    shardcodec.stats.reset()
    array[...]
    assert shardcodec.stats()["file_hits"] == 15
    assert shardcodec.stats()["opens"] == 1, "only the absent shard is opened again"
    with pytest.raises(ValueError, match="threads"):
        open_array(folder, threads=0)
    for size in (-1, "much", 0.5):
        with pytest.raises((TypeError, ValueError), match="index_cache"):
            open_array(folder, index_cache=size)
