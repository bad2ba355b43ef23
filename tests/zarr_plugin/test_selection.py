# test_selection.py - zarr's own indexers, converted to boxes
# SPDX-License-Identifier: MIT
"""Selections as zarr makes them.

Each case runs zarr's indexer over a chunk grid, assembles the result from boxes with NumPy slices, and compares it
with NumPy's indexing. For every chunk whose selection is not basic, the conversion must return no box.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings

from shardcodec.access.regions import Box, Lists
from shardcodec.zarr_plugin.request import array_axes, selected_axes, to_box, to_selection


class Asked(Exception):
    """Raised with the arguments that zarr passes to a pipeline."""


def projections(shape: tuple[int, ...], chunks: tuple[int, ...], how: str, selection: Any) -> list[Any]:
    """Return what zarr passes to its pipeline: (chunk shape, chunk coordinates, chunk selection, array selection)
    of each chunk.
    """
    array = zarr.create_array({}, shape=shape, chunks=chunks, dtype="u2", compressors=None)
    asked: list[Any] = []
    pipeline = array.async_array.codec_pipeline

    class Listening(type(pipeline)):  # type: ignore[misc]
        async def read(self, batch_info: Any, out: Any, drop_axes: Any = ()) -> Any:
            asked.extend((list(batch_info), drop_axes))
            raise Asked

    listener = object.__new__(Listening)
    object.__setattr__(array.async_array, "codec_pipeline", listener)
    target = array if how == "basic" else getattr(array, how)
    try:
        target[selection]
    except Asked:
        batch, _ = asked
        return [
            (spec.shape, tuple(int(i) for i in path.path.split("/")[1:]), chunk, out)
            for path, spec, chunk, out, *_ in batch
        ]
    return []


def through_boxes(parts: list[Any], chunks: tuple[int, ...], source: np.ndarray[Any, Any], out: Any) -> int:
    """Copy each box from the padded array to `out`. Return the number of boxes."""
    axes = array_axes(parts[0][2])
    assert axes is not None
    for shape, coords, chunk_selection, array_selection in parts:
        box = to_box(chunk_selection, array_selection, axes, shape)
        assert isinstance(box, Box)
        assert len(box.start) == len(box.count) == len(box.at) == len(shape)
        steps = box.step or (1,) * len(shape)
        index = []
        for start, count, step, extent, at in zip(box.start, box.count, steps, shape, coords, strict=True):
            assert start >= 0 and start + (count - 1) * step < extent
            index.append(slice(at * extent + start, at * extent + start + (count - 1) * step + 1, step))
        to = tuple(
            slice(at, at + count)
            for at, count, axis in zip(box.at, box.count, axes, strict=True)
            if axis >= 0
        )
        dropped = tuple(i for i, axis in enumerate(axes) if axis < 0)
        out[to] = source[tuple(index)].squeeze(dropped)
    return len(parts)


def padded(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[Any, Any]:
    whole = tuple(-(-n // c) * c for n, c in zip(shape, chunks, strict=True))
    source = np.arange(int(np.prod(whole)), dtype="u2").reshape(whole)
    return source, source[tuple(slice(n) for n in shape)]


def check(shape: tuple[int, ...], chunks: tuple[int, ...], selection: Any) -> int:
    source, inside = padded(shape, chunks)
    expected = inside[selection]
    out = np.full_like(expected, 60000) if expected.ndim else np.full((), 60000, dtype="u2")
    parts = projections(shape, chunks, "basic", selection)
    if not parts:
        assert expected.size == 0
        return 0
    n = through_boxes(parts, chunks, source, out)
    assert np.array_equal(out, expected)
    return n


@pytest.mark.parametrize(
    ("selection", "n_chunks"),
    [
        (np.s_[:, :], 9),
        (np.s_[...], 9),
        (np.s_[2:7, 3:4], 2),
        (np.s_[4], 3),
        (np.s_[4, -1], 1),
        (np.s_[:, 9], 3),
        (np.s_[::3, ::2], 9),
        (np.s_[1::7], 6),  # a step longer than a chunk skips one
        (np.s_[8:9, 5:11:4], 2),
        (np.s_[9, ::10], 2),
    ],
)
def test_boxes_of_basic_selections_equal_numpy(selection: Any, n_chunks: int) -> None:
    assert check((10, 11), (4, 4), selection) == n_chunks


def test_rank_0_has_one_empty_box() -> None:
    (part,) = projections((), (), "basic", ())
    axes = array_axes(part[2])
    assert axes == ()
    assert to_box(part[2], part[3], axes, ()) == Box((), (), None, ())


@st.composite
def basic_selections(draw: st.DrawFn) -> Any:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=ndim, max_size=ndim)))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    parts: list[Any] = []
    for n in shape:
        if draw(st.booleans()):
            parts.append(draw(st.slices(n).filter(lambda s: s.step is None or s.step > 0)))
        else:
            parts.append(draw(st.integers(-n, n - 1)))
    if draw(st.booleans()):
        parts[draw(st.integers(0, ndim - 1)) :] = [...]
    return shape, chunks, tuple(parts)


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(basic_selections())
def test_any_basic_selection_equals_numpy(case: Any) -> None:
    check(*case)


@pytest.mark.parametrize(
    ("how", "selection"),
    [
        ("oindex", ([0, 2, 9], slice(None))),
        ("oindex", ([9, 0], [1, 2, 10])),
        ("oindex", (3, [1, 2])),
        ("oindex", (np.arange(10) % 2 == 0, slice(1, 5))),
        ("vindex", ([0, 5, 9], [1, 1, 10])),
        ("vindex", ([5],) * 2),
    ],
)
def test_index_arrays_have_no_box(how: str, selection: Any) -> None:
    for shape, _, chunk_selection, array_selection in projections((10, 11), (4, 4), how, selection):
        axes = array_axes(chunk_selection)
        assert axes is None or to_box(chunk_selection, array_selection, axes, shape) is None


@pytest.mark.parametrize(
    ("chunk_selection", "array_selection"),
    [
        ((np.array([0.0, 1.0]), slice(0, 2)), (slice(0, 2), slice(0, 2))),  # not integers
        ((np.array([0, 1]), np.array([0, 1])), (slice(0, 2), slice(0, 2))),  # NumPy takes these as points
        ((np.array([[0], [1]]), np.array([[0], [1]])), (slice(0, 2), slice(0, 2))),  # wrong axes
        ((np.array([0, 1]), slice(0, 2)), (slice(0, 3), slice(0, 2))),  # different lengths
        ((np.array([0, 1]), slice(0, 2)), (np.array([0]), slice(0, 2))),
        ((np.array([0, 1]), slice(0, 2)), (np.array([0.0, 1.0]), slice(0, 2))),
        ((np.array([0, 1]), slice(0, 2)), (slice(0, 2),)),
        ((np.array([0, 1]), np.array([0])), slice(0, 2)),  # coordinates of different lengths
        ((np.array([0, 1]), slice(0, 2)), slice(0, 2)),
        ((np.array([[0, 1]]), np.array([[0, 1]])), slice(0, 2)),
        ((np.array([True, False]), np.array([True, False])), slice(0, 1)),
        (([0, 1], slice(0, 2)), (slice(0, 2), slice(0, 2))),
        ((np.array([0, 1]),), (slice(0, 2),)),  # another rank than the chunk
    ],
)
def test_invalid_lists_are_refused(chunk_selection: Any, array_selection: Any) -> None:
    assert to_selection(chunk_selection, array_selection, (0, 1), (4, 4)) is None


def test_regular_index_arrays_become_slices() -> None:
    grid = np.ix_([1, 3], [2, 1, 0])
    parts = to_selection(grid, (slice(0, 2), np.array([[2, 1, 0]])), (0, 1), (4, 4))
    assert isinstance(parts, Lists)  # only on the second axis
    assert parts[:4] == ((1, 0), (2, 3), (2, 1), (0, 0)) and parts.froms[0] is None is parts.tos[0]
    assert parts.froms[1] is not None and parts.froms[1].tolist() == [0, 1, 2]
    assert parts.tos[1] is not None and parts.tos[1].tolist() == [0, 1, 2]
    parts = to_selection(np.ix_([1, 3], [1, 2]), (slice(4, 6), slice(0, 2)), (0, 1), (4, 4))
    assert parts == Box((1, 1), (2, 2), (2, 1), (4, 0))
    mask = np.array([False, True, True, False])
    assert to_selection((mask, slice(0, 4)), (slice(7, 9), slice(0, 4)), (0, 1), (4, 4)) == Box(
        (1, 0), (2, 4), None, (7, 0)
    )
    assert to_selection((np.array([2, 3]),), slice(5, 7), (0,), (4,)) == Box((2,), (2,), None, (5,))


def test_selected_axes() -> None:
    rows = np.array([0, 1])
    assert selected_axes((slice(0, 2), 1), (slice(0, 2),)) == ((0, -1), 1)
    assert selected_axes((rows, slice(0, 2)), (slice(0, 2), slice(0, 2))) == ((0, 1), 2)
    assert selected_axes(np.ix_([0], [0, 1]), (slice(0, 2),), (0,)) == ((-1, 0), 1)
    assert selected_axes((rows, rows), slice(0, 2)) == ((-1, -1), 1)
    assert selected_axes((rows,), slice(0, 2)) == ((0,), 1)
    assert selected_axes(slice(0, 2), slice(0, 2)) is None
    assert to_selection((), slice(0, 1), (), ()) is None


def test_block_selections_are_basic() -> None:
    (part,) = projections((10, 11), (4, 4), "blocks", (1, 2))
    axes = array_axes(part[2])
    assert axes == (0, 1)
    assert to_box(part[2], part[3], axes, (4, 4)) == Box((0, 0), (4, 3), None, (0, 0))


@pytest.mark.parametrize(
    ("chunk_selection", "array_selection"),
    [
        ((slice(0, 2),), (slice(0, 3),)),  # different lengths
        ((slice(0, 2),), (slice(0, 4, 2),)),  # a step in the array
        ((slice(0, 2),), slice(0, 2)),  # a bare slice belongs to coordinates
        ((slice(2, 0, -1),), (slice(0, 2),)),
        ((slice(0, 2), slice(0, 2)), (slice(0, 2), slice(0, 2))),  # another rank than the chunk
        ((1,), (slice(0, 1),)),  # an integer where zarr passes a slice
        ((slice(0, 2),), (slice(None),)),
        ((slice(0, 2),), ()),
        (slice(0, 2), (slice(0, 2),)),
        (([0, 1],), (slice(0, 2),)),
    ],
)
def test_other_selections_have_no_box(chunk_selection: Any, array_selection: Any) -> None:
    assert to_box(chunk_selection, array_selection, (0,), (4,)) is None
