# test_array_selections.py - every kind of selection of an open array, compared with zarr and numpy
# SPDX-License-Identifier: MIT
"""An array of `open_array` selects as `zarr.Array` does: the same elements and shapes, and `IndexError` where zarr raises one.

Where zarr refuses a selection that numpy takes, such as an empty list, the elements are those of numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, zarrs_view
from hypothesis import given
from hypothesis import strategies as st

from shardcodec import open_array

Ints = tuple[int, ...]

SHAPES: dict[Ints, Ints] = {(23,): (8,), (9, 13): (4, 6), (5, 7, 4): (4, 6, 2)}
ZARRS_WAY: dict[str, Callable[[Any, Any], Any]] = {
    "brackets": lambda array, selection: array[selection],
    "basic": lambda array, selection: array.get_basic_selection(selection),
    "orthogonal": lambda array, selection: array.oindex[selection],
    "coordinate": lambda array, selection: array.vindex[selection],
    "mask": lambda array, selection: array.get_mask_selection(selection),
    "block": lambda array, selection: array.blocks[selection],
}


def numbers(shape: Ints) -> np.ndarray[Any, Any]:
    """Return an array whose elements tell where they are."""
    return np.arange(math.prod(shape), dtype=np.int32).reshape(shape)


@pytest.fixture(scope="module", params=[True, False], ids=["sharded", "plain"])
def arrays(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Ints, Any]:
    """Return for each shape a handle that writes, and zarr's own view of the array."""
    made = {}
    for shape, extents in SHAPES.items():
        folder = tmp_path_factory.mktemp("array")
        chunks = tuple(extent // 2 for extent in extents)
        layout = (
            {"shards": extents, "chunks": chunks} if request.param else {"shards": None, "chunks": extents}
        )
        array = create(folder, shape=shape, **layout)
        made[shape] = open_array(folder, mode="r+"), zarrs_view(array), folder
    return made


@st.composite
def lists(draw: st.DrawFn, size: int) -> Any:
    chosen = draw(st.lists(st.integers(-size, size - 1), max_size=5))
    return draw(st.sampled_from([chosen, np.array(chosen, dtype=np.int64), sorted(chosen)]))


def flags(shape: Any) -> st.SearchStrategy[Any]:
    n = math.prod(shape)
    return st.lists(st.booleans(), min_size=n, max_size=n).map(
        lambda drawn: np.array(drawn, bool).reshape(shape)
    )


@st.composite
def slices(draw: st.DrawFn, size: int) -> slice:
    ends = st.none() | st.integers(-size - 2, size + 2)
    return slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 1, 2, 3, 7])))


def indices(size: int) -> st.SearchStrategy[Any]:
    """Return indices along one axis; a few are outside of it."""
    return st.one_of(
        slices(size),
        st.integers(-size, size - 1),
        st.integers(-size - 1, size),
        st.integers(-size, size - 1).map(np.int64),
        lists(size),
        flags((size,)),
        st.just(...),
        st.just([size]),
        st.just([[0, 0], [size - 1, 0]]),
    )


@st.composite
def selections(draw: st.DrawFn, shape: Ints) -> Any:
    ways: list[Any] = [
        flags(shape),
        indices(shape[0]),
        st.tuples(*map(lists, shape)).filter(lambda drawn: len({len(part) for part in drawn}) == 1),
        st.tuples(*(st.lists(st.integers(0, n - 1), min_size=1, max_size=4) for n in shape)).map(
            lambda drawn: np.ix_(*drawn)
        ),
        st.tuples(*(st.integers(-n, n - 1) | lists(n) for n in shape)),
        st.tuples(*map(slices, shape)),
        st.integers(1, len(shape)).flatmap(lambda n: st.tuples(*map(indices, shape[:n]))),
    ]
    return draw(st.sampled_from(ways).flatmap(lambda way: way))


@pytest.mark.parametrize("kind", ZARRS_WAY)
@given(data=st.data())
def test_selections_read_and_write_as_zarr(arrays: dict[Ints, Any], kind: Any, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(list(SHAPES)))
    array, zarrs, folder = arrays[shape]
    selection = data.draw(selections(shape))
    array[...] = numbers(shape)
    expected = zarrs_answer(zarrs, kind, selection)
    try:
        places = array.read(selection, kind=kind)
    except IndexError:
        assert expected is None
        with pytest.raises(IndexError):
            array.write(selection, 0, kind=kind)
        assert (open_array(folder)[...] == numbers(shape)).all()
        return
    assert kind != "block" or expected is not None
    if expected is not None and not _is_zarrs_block(kind, selection):
        assert places.shape == expected.shape
        assert (places == expected).all()
    # the elements that were read tell the places that are written; of several values for one place the last is stored
    values = np.arange(1000, 1000 + places.size, dtype=np.int32).reshape(places.shape)
    array.write(selection, values, kind=kind)
    wanted = numbers(shape)
    wanted.reshape(-1)[places.reshape(-1)] = values.reshape(-1)
    assert (zarrs[...] == wanted).all()
    array.write(selection, -7, kind=kind)
    wanted.reshape(-1)[places.reshape(-1)] = -7
    assert (array[...] == wanted).all()


def zarrs_answer(array: Any, kind: str, selection: Any) -> np.ndarray[Any, Any] | None:
    """Return what zarr selects; None if it refuses, for some selections of numpy with a `ValueError`."""
    try:
        return np.asarray(ZARRS_WAY[kind](array, selection))
    except (IndexError, ValueError):
        return None


def _is_zarrs_block(kind: str, selection: Any) -> bool:
    """Return True if a slice of blocks ends before the first one: zarr then selects a part of a block."""
    parts = selection if isinstance(selection, tuple) else (selection,)
    stops = [part.stop for part in parts if isinstance(part, slice)]
    return kind == "block" and any(stop is not None and stop < -1 for stop in stops)


@pytest.mark.parametrize("kind", ["brackets", "orthogonal", "coordinate"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lists_that_zarr_refuses_select_as_numpy(arrays: dict[Ints, Any], shape: Ints, kind: Any) -> None:
    array = arrays[shape][0]
    array[...] = numbers(shape)
    nothing: Any = [] if kind != "coordinate" else ([],) * len(shape)
    expected = numbers(shape)[nothing]
    got = array.read(nothing, kind=kind)
    assert got.shape == expected.shape and got.dtype == np.int32
    array.write(nothing, 5, kind=kind)
    assert (array[...] == numbers(shape)).all()
    is_even = np.arange(shape[0]) % 2 == 0
    if kind != "coordinate":
        assert (array.read(is_even, kind=kind) == numbers(shape)[is_even]).all()
        assert (array.read((is_even, ...), kind=kind) == numbers(shape)[is_even]).all()


def test_lists_of_several_axes_are_refused_beside_slices(arrays: dict[Ints, Any]) -> None:
    """They went to the engine, which refused them with the sizes of its buffers, and some of them with a TypeError."""
    array = arrays[9, 13][0]
    for selection in ([[1, 2]], np.array([[1], [2]]), ([[0, 1]], slice(None)), ([[0]], [[0]])):
        with pytest.raises(IndexError, match="expected a list with one axis"):
            array.oindex[selection]
    for selection in ((np.ones(9, bool), np.ones(13, bool)), ([0], 1), 3, [True]):
        with pytest.raises(IndexError, match="mask"):
            array.read(selection, kind="mask")


def test_blocks_begin_inside_the_grid(arrays: dict[Ints, Any]) -> None:
    """A slice that begins outside selected nothing, where zarr raises."""
    array = arrays[9, 13][0]
    for selection in (slice(3, None), slice(-4, None), (0, slice(3, 9)), 3, slice(0, 3, 2)):
        with pytest.raises(IndexError):
            array.blocks[selection]
    assert array.blocks[2, 1:9].shape == (1, 7)


def test_xarray_selects_lazily(tmp_path: Path) -> None:
    indexing = pytest.importorskip("xarray.core.indexing", reason="xarray is not installed")
    xarray: Any = pytest.importorskip("xarray")
    shape = (5, 7, 4)
    create(tmp_path, shape=shape, shards=(4, 6, 2), chunks=(2, 3, 1))[...] = numbers(shape)
    names = ("z", "y", "x")
    lazy = xarray.Variable(names, indexing.LazilyIndexedArray(open_array(tmp_path)))
    loaded = xarray.Variable(names, numbers(shape))
    points = xarray.Variable("point", [0, 3, 3])
    for selection in (
        {"z": 1},
        {"z": [1, 2], "y": [0, 3, 3]},
        {"z": 1, "y": [0, 3], "x": [-1, 2]},
        {"z": points, "x": points},
        {"z": points, "y": points, "x": slice(1, 4, 2)},
    ):
        assert lazy[selection].identical(loaded[selection]), selection
    assert float(lazy.mean()) == float(loaded.mean())
