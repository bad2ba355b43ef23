# test_box_shapes.py - boxes of several shapes in one call, compared with numpy
# SPDX-License-Identifier: MIT
"""`read_boxes` with a shape for each box gives one flat array: rows of a sparse matrix are boxes of one axis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_ways import elements, same
from helpers import RecordingStore, bits, create, python_calls, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import ShardingCodec, TransposeCodec
from zarr.storage import MemoryStore

import shardcodec
from shardcodec import open_array
from shardcodec.access.regions import Boxes, grid_positions, touched

SHAPE = (13, 18, 7)
Pairs = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]

LAYOUTS: dict[str, dict[str, Any]] = {
    "sharded": {"shards": (8, 12, 4), "chunks": (4, 3, 2)},
    "plain": {"shards": None, "chunks": (5, 6, 7)},
    "transposed": {
        "shards": None,
        "chunks": (12, 12, 12),
        "filters": [TransposeCodec(order=(2, 0, 1))],
        "serializer": ShardingCodec(chunk_shape=(3, 4, 6)),
        "compressors": None,
    },
}


def values() -> np.ndarray[Any, Any]:
    return random_array(SHAPE, "int32")


def flat(array: np.ndarray[Any, Any], boxes: Pairs) -> np.ndarray[Any, Any]:
    """Read boxes one by one: the twin."""
    parts = [
        array[tuple(slice(at, at + n) for at, n in zip(start, shape, strict=True))] for start, shape in boxes
    ]
    joined: np.ndarray[Any, Any] = np.concatenate(
        [np.empty(0, array.dtype), *(part.ravel() for part in parts)]
    )
    return joined


def split(boxes: Pairs, ndim: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the two arguments of `read_boxes`."""
    starts, shapes = zip(*boxes, strict=True) if boxes else ((), ())
    return np.array(starts, int).reshape(-1, ndim), np.array(shapes, int).reshape(-1, ndim)


@st.composite
def boxes_of(draw: st.DrawFn, shape: tuple[int, ...] = SHAPE) -> Pairs:
    """Draw boxes, some without elements; some draws have one extent along the last axes."""
    alike = draw(st.integers(0, len(shape)))
    common = tuple(draw(st.integers(0, extent)) for extent in shape)
    found = []
    for _ in range(draw(st.integers(0, 8))):
        count = tuple(draw(st.integers(0, extent)) for extent in shape[: len(shape) - alike])
        count += common[len(count) :]
        start = tuple(draw(st.integers(0, extent - n)) for extent, n in zip(shape, count, strict=True))
        found.append((start, count))
    return found


@pytest.fixture(scope="module", params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("boxes")
    create(path, shape=SHAPE, **LAYOUTS[request.param])[...] = values()
    return path


@settings(deadline=None)
@given(boxes=boxes_of())
def test_boxes_of_several_shapes_equal_numpy(folder: Path, boxes: Pairs) -> None:
    got = open_array(folder).read_boxes(*split(boxes, 3))
    expected = flat(values(), boxes)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert bits(got) == bits(expected)


@settings(deadline=None)
@given(boxes=boxes_of())
def test_strided_memory_is_read_into(folder: Path, boxes: Pairs) -> None:
    expected = flat(values(), boxes)
    memory = np.full(2 * len(expected) + 1, -7, np.int32)
    out = memory[1::2]
    assert open_array(folder).read_boxes(*split(boxes, 3), out=out) is out
    assert bits(out) == bits(expected) and (memory[::2] == -7).all()


def test_boxes_of_equal_shapes_are_flat_too(folder: Path) -> None:
    """The shape of the result depends on the shape of the argument alone."""
    array, starts = open_array(folder), [(0, 0, 0), (9, 12, 3)]
    one = array.read_boxes(starts, (4, 5, 3))
    each = array.read_boxes(starts, [(4, 5, 3)] * 2)
    assert one.shape == (2, 4, 5, 3) and each.shape == (120,)
    assert bits(one) == bits(each)


# ---- rows of a sparse matrix


def rows_of(array: Any, indptr: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> Any:
    begin = indptr[rows]
    return array.read_boxes(begin[:, None], (indptr[rows + 1] - begin)[:, None])


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray[Any, Any]]:
    """Make the data of 2,000 rows, some of them empty and one longer than a shard."""
    path = tmp_path_factory.mktemp("csr")
    lengths = np.random.default_rng(0).integers(0, 12, 2000) * np.random.default_rng(1).integers(0, 2, 2000)
    lengths[1200] = 2500
    indptr = np.r_[0, np.cumsum(lengths)]
    create(path, shape=(int(indptr[-1]),), shards=(1000,), chunks=(50,))[...] = np.arange(indptr[-1])
    return path, indptr


def test_rows_open_each_shard_once_and_decode_each_inner_chunk_once(
    matrix: tuple[Path, np.ndarray[Any, Any]],
) -> None:
    path, indptr = matrix
    rows = np.random.default_rng(2).integers(0, 2000, 5000)
    rows[7] = 1200
    array = open_array(path, index_cache=0)
    shardcodec.stats.reset()
    got = rows_of(array, indptr, rows)
    done = shardcodec.stats()
    assert done["opens"] == -(-indptr[-1] // 1000)
    assert done["chunks_decoded"] == -(-indptr[-1] // 50)
    assert bits(got) == bits(
        np.concatenate([np.arange(indptr[row], indptr[row + 1], dtype="int32") for row in rows])
    )


def test_python_does_nothing_for_each_row(matrix: tuple[Path, np.ndarray[Any, Any]]) -> None:
    path, indptr = matrix
    array = open_array(path)

    def calls(n: int) -> int:
        rows = np.random.default_rng(n).integers(0, 2000, n)
        return len(python_calls(lambda: rows_of(array, indptr, rows)))

    calls(10)
    assert calls(100_000) <= calls(5000) + 10


def test_rows_are_fetched_with_as_many_requests_as_their_inner_chunks_need(
    matrix: tuple[Path, np.ndarray[Any, Any]],
) -> None:
    path, indptr = matrix
    inner = MemoryStore()
    create(inner, shape=(int(indptr[-1]),), shards=(1000,), chunks=(50,))[...] = np.arange(indptr[-1])
    store = RecordingStore(inner)
    array = open_array(store)
    rows = np.random.default_rng(3).integers(0, 2000, 3000)
    store.forget()
    got = rows_of(array, indptr, rows)
    n_requests = len(store.requests)
    store.forget()
    assert bits(rows_of(open_array(path), indptr, rows)) == bits(got)
    array[...]
    assert n_requests <= len(store.requests) + -(-indptr[-1] // 1000)


# ---- other elements


@pytest.mark.parametrize("dtype", [">i4", "string", "bytes"])
def test_elements_of_other_types(dtype: str, tmp_path: Path) -> None:
    stored = elements(dtype, (50,))
    given: dict[str, Any] = {"dtype": {"string": str, "bytes": "variable_length_bytes"}.get(dtype, dtype)}
    fill = {} if dtype == ">i4" else {"fill_value": "" if dtype == "string" else b""}
    create(tmp_path, shape=(50,), shards=(20,), chunks=(5,), **given, **fill)[...] = stored
    array = open_array(tmp_path)
    starts, lengths = [[3], [48], [0], [17], [3]], [[9], [0], [50], [1], [2]]
    expected = np.concatenate([stored[at : at + n] for [at], [n] in zip(starts, lengths, strict=True)])
    assert same(array.read_boxes(starts, lengths), expected.astype(array.dtype))
    if dtype != ">i4":
        offsets, data = array.read_arrow_boxes(starts, lengths)
        texts = [bytes(data[a:b]) for a, b in itertools.pairwise(offsets)]
        assert texts == [x.encode() if isinstance(x, str) else x for x in expected.tolist()]


def test_array_of_rank_0(tmp_path: Path) -> None:
    create(tmp_path, shape=(), shards=None, chunks=())[...] = 5
    array = open_array(tmp_path)
    assert array.read_boxes(np.empty((3, 0), int), np.empty((3, 0), int)).tolist() == [5, 5, 5]


# ---- arguments


def test_wrong_shapes_are_refused(folder: Path) -> None:
    array = open_array(folder)
    starts = [(0, 0, 0), (9, 12, 3)]
    with pytest.raises(ValueError, match="one for each of 2 boxes, got 1 shapes"):
        array.read_boxes(starts, [(1, 1, 1)])
    with pytest.raises(ValueError, match=r"shape: expected shape \(n, 3\), got \(2, 2\)"):
        array.read_boxes(starts, [(1, 1), (1, 1)])
    with pytest.raises(ValueError, match=r"not negative, got \(1, -1, 1\)"):
        array.read_boxes(starts, [(1, 1, 1), (1, -1, 1)])
    with pytest.raises(TypeError, match="shape: expected integers, got float64"):
        array.read_boxes(starts, np.ones((2, 3)))
    with pytest.raises(IndexError, match=r"box 1 at \(9, 12, 3\) of shape \(4, 7, 4\) reaches outside"):
        array.read_boxes(starts, [(9, 9, 7), (4, 7, 4)])
    with pytest.raises(ValueError, match=r"out: expected shape \(8,\), got \(2, 4\)"):
        array.read_boxes(starts, [(1, 1, 7), (1, 1, 1)], out=np.empty((2, 4), np.int32))


def test_elements_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    """Their number does not fit into 64 bits."""
    create(tmp_path, shape=(1 << 33, 1 << 33), shards=None, chunks=(1 << 33, 4))
    with pytest.raises((MemoryError, ValueError)):
        open_array(tmp_path).read_boxes([(0, 0)], [(1 << 33, 1 << 33)])


class Tensor:
    """Memory as a tensor of PyTorch shows it: neither a numpy array nor a buffer."""

    def __init__(self, array: np.ndarray[Any, Any], *, copies: bool = False) -> None:
        self.array, self.copies = array, copies

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self.array.copy() if self.copies else self.array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_memory_of_other_packages_is_read_into(folder: Path) -> None:
    array, boxes = open_array(folder), [((1, 2, 3), (4, 5, 2)), ((0, 0, 0), (1, 1, 7))]
    expected = flat(values(), boxes)
    memory, buffer = np.zeros(47, np.int32), bytearray(47 * 4)
    array.read_boxes(*split(boxes, 3), out=Tensor(memory))
    assert bits(memory) == bits(expected)
    array.read_boxes(*split(boxes, 3), out=memoryview(buffer).cast("i"))
    assert bytes(buffer) == bits(expected)
    assert array.read_boxes([(0, 0, 0)], [(0, 1, 1)], out=Tensor(memory[:0])).size == 0
    with pytest.raises(TypeError, match="whose memory numpy can use, got Tensor"):
        array.read_boxes(*split(boxes, 3), out=Tensor(memory, copies=True))
    with pytest.raises(ValueError, match="expected a writable array"):
        array.read_boxes(*split(boxes, 3), out=memoryview(bytes(buffer)).cast("i"))


def test_tensors_of_torch_are_read_into(folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.zeros((1, 4, 5, 2), dtype=torch.int32)
    open_array(folder).read_boxes([(1, 2, 3)], (4, 5, 2), out=tensor)
    assert bits(tensor.numpy()[0]) == bits(values()[1:5, 2:7, 3:5])


# ---- arithmetic


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=5))
def test_positions_of_grids_are_those_of_ndindex(shapes: list[tuple[int, int]]) -> None:
    number, at = grid_positions(np.array(shapes, int).reshape(-1, 2))
    expected = [(i, *place) for i, shape in enumerate(shapes) for place in np.ndindex(*shape)]
    assert list(zip(number.tolist(), *at.T.tolist(), strict=True)) == expected


@given(st.data())
def test_boxes_touch_the_inner_chunks_of_their_elements(data: st.DataObject) -> None:
    marks, rows = np.zeros((12, 15), bool), []
    for _ in range(data.draw(st.integers(1, 4))):
        start, count, step = [], [], []
        for extent in marks.shape:
            start.append(data.draw(st.integers(0, extent - 1)))
            step.append(data.draw(st.integers(1, extent)))
            count.append(data.draw(st.integers(1, (extent - 1 - start[-1]) // step[-1] + 1)))
        marks[np.ix_(*(s + d * np.arange(n) for s, n, d in zip(start, count, step, strict=True)))] = True
        rows.append([*start, *count, *step, 0])
    expected = (
        marks.reshape(4, 3, 3, 5).any(axis=(1, 3)).T.ravel()
    )  # chunks of 3 x 5, stored with axis 1 first
    found = touched(Boxes(np.array(rows, np.uint64)), (1, 0), (5, 3), (3, 4))
    assert found.tolist() == expected.tolist()
