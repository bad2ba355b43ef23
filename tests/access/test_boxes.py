# test_boxes.py - the inner chunks that a box touches, rows and lists for the engine, arrays as opaque elements
# SPDX-License-Identifier: MIT
"""Boxes, compared with numpy indexing."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shardcodec.access.regions import Box, Boxes, as_void, pack_boxes, sorted_list, touched, whole


def brute_force(box: Box, perm: tuple[int, ...], chunk_shape: list[int], grid: list[int]) -> list[bool]:
    """Mark every element of the box in an array of the shard, then search each inner chunk for a mark."""
    stored = tuple(c * g for c, g in zip(chunk_shape, grid, strict=True))
    shape = [0] * len(perm)
    for axis, extent in zip(perm, stored, strict=True):
        shape[axis] = extent
    marks = np.zeros(shape, dtype=np.bool_)
    steps = box.step or (1,) * len(shape)
    marks[
        tuple(slice(s, s + (n - 1) * d + 1, d) for s, n, d in zip(box.start, box.count, steps, strict=True))
    ] = True
    marks = marks.transpose(perm)
    return [
        bool(marks[tuple(slice(i * c, i * c + c) for i, c in zip(at, chunk_shape, strict=True))].any())
        for at in np.ndindex(*grid)
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Box, tuple[int, ...], list[int], list[int]]:
    ndim = draw(st.integers(0, 3))
    chunk_shape = draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim))
    grid = draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim))
    perm = tuple(draw(st.permutations(range(ndim))))
    shape = [0] * ndim
    for axis, c, g in zip(perm, chunk_shape, grid, strict=True):
        shape[axis] = c * g
    start, count, step = [], [], []
    for extent in shape:
        first = draw(st.integers(0, extent - 1))
        stride = draw(st.integers(1, extent + 2))
        start.append(first)
        step.append(stride)
        count.append(draw(st.integers(1, (extent - 1 - first) // stride + 1)))
    plain = all(s == 1 for s in step) and draw(st.booleans())
    box = Box(tuple(start), tuple(count), None if plain else tuple(step), (0,) * ndim)
    return box, perm, chunk_shape, grid


@given(cases())
def test_touched_equals_marking_every_element(
    case: tuple[Box, tuple[int, ...], list[int], list[int]],
) -> None:
    assert touched(*case).tolist() == brute_force(*case)


def test_whole_box_touches_every_chunk() -> None:
    box = whole((4, 6))
    assert box == Box((0, 0), (4, 6), None, (0, 0))
    assert touched(box, (0, 1), (2, 3), (2, 2)).all()


def test_long_step_skips_inner_chunks() -> None:
    box = Box((1,), (3,), (8,), (0,))  # elements 1, 9, 17 of chunks of 4
    assert touched(box, (0,), (4,), (5,)).tolist() == [True, False, True, False, True]


def test_box_of_rank_0_touches_the_only_chunk() -> None:
    assert whole(()) == Box((), (), None, ())
    assert touched(whole(()), (), (), ()).tolist() == [True]


@pytest.mark.parametrize(
    "dtype", ["u1", "<i4", ">f8", "c16", "M8[ns]", "U3", "S5", "V7", [("a", "u1"), ("b", "<f8")]]
)
def test_opaque_elements_share_memory(dtype: object) -> None:
    array = np.zeros((3, 4), dtype=dtype)
    for view in (array, array[::2, 1:], array.T, array[:, ::-1], array[0, 0, ...], array[:0]):
        opaque = as_void(view)
        assert opaque.dtype == np.dtype((np.void, array.dtype.itemsize))
        assert (opaque.shape, opaque.strides) == (view.shape, view.strides)
        assert opaque.size == 0 or np.shares_memory(opaque, array)
        assert memoryview(opaque).itemsize == array.dtype.itemsize


def test_opaque_elements_include_struct_padding() -> None:
    array = np.zeros(3, dtype=np.dtype([("a", "u1"), ("b", "<f8")], align=True))
    as_void(array)[1] = bytes(range(16))
    assert array["a"][1] == 0 and array.tobytes()[16:32] == bytes(range(16))


# ---- arguments of the engine


def numbers(*values: int) -> Any:
    return np.array(values, dtype=np.uint64)


def test_boxes_are_packed_into_rows() -> None:
    parts = pack_boxes([[1, 2], [3, 4]], (5, 6), None, [[0, 7, 8], [1, 9, 10]])
    assert isinstance(parts, Boxes)
    assert parts.rows.tolist() == [[1, 2, 5, 6, 1, 1, 0, 7, 8], [3, 4, 5, 6, 1, 1, 1, 9, 10]]


def test_lists_are_sorted_with_their_places() -> None:
    same, none = sorted_list(numbers(1, 1, 4), None)
    assert same.tolist() == [1, 1, 4] and none is None
    ascending, places = sorted_list(numbers(4, 1, 4, 0), None)
    assert ascending.tolist() == [0, 1, 4, 4] and places is not None and places.tolist() == [3, 1, 0, 2]
    _, places = sorted_list(numbers(4, 1, 4), numbers(9, 8, 7))
    assert places is not None and places.tolist() == [8, 9, 7]
