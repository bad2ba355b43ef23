# test_selection.py - the two parsers of basic selections
# SPDX-License-Identifier: MIT
"""The parser in Python and its fast twin in the binding run the same tests; numpy and zarr say what a selection means."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from shardcodec import ChainSpec, ShardSpec, decode, encode, native, open_shard
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.regions import Box
from shardcodec.access.selection import parse_selection, selected
from shardcodec.access.split_by_object import object_boxes

Ints = tuple[int, ...]
Parsed: TypeAlias = tuple[Ints, Ints, Ints, Ints, Ints]
Parser: TypeAlias = Callable[[Any, Ints], Parsed | None]


def in_python(selection: Any, shape: Ints) -> Parsed | None:
    try:
        box, axes, result = parse_selection(selection, shape)
    except IndexError:
        return None
    assert box.step is None or set(box.step) != {1}
    return box.start, box.count, box.step or (1,) * len(shape), axes, result


def in_binding(selection: Any, shape: Ints) -> Parsed | None:
    return native.load().parse_selection(selection, shape)  # type: ignore[no-any-return]


# Both parsers take these.
TAKEN: list[tuple[Ints, Any]] = [
    ((12,), 0),
    ((12,), 11),
    ((12,), -1),
    ((12,), -12),
    ((1,), -1),
    ((12,), (5,)),
    ((12,), ...),
    ((12,), (...,)),
    ((12,), ()),
    ((12,), slice(None)),
    ((12,), slice(3, 9)),
    ((12,), slice(-5, None)),
    ((12,), slice(None, -5)),
    ((12,), slice(-100, 100)),
    ((12,), slice(0, 2**70)),
    ((12,), slice(2, 11, 3)),
    ((12,), slice(2, 12, 3)),
    ((12,), slice(2, 3, 5)),
    ((12,), slice(None, None, 2**40)),
    ((12,), slice(np.int64(2), np.int32(5), np.uint8(2))),
    ((12, 10, 8), 3),
    ((12, 10, 8), (3, 4, 5)),
    ((12, 10, 8), (3, -4)),
    ((12, 10, 8), (..., 5)),
    ((12, 10, 8), (3, ..., 5)),
    ((12, 10, 8), (3, 4, 5, ...)),
    ((12, 10, 8), (3, 4, ..., 5)),
    ((12, 10, 8), (slice(1, 9, 2), -1, slice(None))),
    ((12, 10, 8), (slice(1, 9, 2), ..., slice(0, 8, 7))),
    ((), ()),
    ((), ...),
    ((), (...,)),
    ((2**62,), slice(2**61, None, 2**60)),
]

# Only the parser in Python takes these: integers of other types, and selections without elements.
LEFT_TO_PYTHON: list[tuple[Ints, Any]] = [
    ((12,), np.int64(3)),
    ((12,), np.uint8(3)),
    ((12,), np.int8(-3)),
    ((12, 10), (np.int16(-1), slice(None))),
    ((12,), slice(5, 5)),
    ((12,), slice(9, 3)),
    ((12,), slice(12, None)),
    ((12,), slice(20, 30, 4)),
    ((0,), slice(None)),
    ((0,), ()),
    ((3, 0), 1),
    ((3, 0), ...),
    ((3, 4), (slice(2, 2), 3)),
]

# No parser takes these.
REFUSED: list[tuple[Ints, Any]] = [
    ((12,), 12),
    ((12,), -13),
    ((12,), 2**63),
    ((12,), -(2**63)),
    ((12,), 2**80),
    ((12,), np.int64(12)),
    ((0,), 0),
    ((12,), True),
    ((12,), np.True_),
    ((12,), (None,)),
    ((12,), (None, 3)),
    ((12,), 3.0),
    ((12,), "3"),
    ((12,), [0, 1]),
    ((12,), np.array([0, 1])),
    ((12,), np.ones(12, bool)),
    ((12,), slice(None, None, -1)),
    ((12,), slice(9, 3, -2)),
    ((12,), (1, 2)),
    ((12,), (..., ...)),
    ((12, 10, 8), (0, 0, 0, 0)),
    ((12, 10, 8), (0, ..., 0, 0, 0)),
    ((12, 10, 8), (..., 0, ...)),
    ((), 0),
    ((), slice(None)),
]

both = pytest.mark.parametrize("parse", [in_python, in_binding])


def check_meaning(parsed: Parsed, selection: Any, shape: Ints) -> None:
    """Compare with numpy: positions along each axis, so that arrays may be too large for memory."""
    start, count, step, axes, result = parsed
    expected: Any = np.broadcast_to(np.zeros((), "u1"), shape)[selection]
    assert result == expected.shape
    assert [axis for axis in axes if axis >= 0] == list(range(len(result)))
    assert all(type(number) is int for numbers in parsed for number in numbers)
    if math.prod(shape) < 10**6:
        values = np.arange(math.prod(shape)).reshape(shape)
        box = tuple(
            slice(a, a + (n - 1) * by + 1 if n else a, by)
            for a, n, by in zip(start, count, step, strict=True)
        )
        assert np.array_equal(values[box].reshape(result), values[selection])


@both
@pytest.mark.parametrize(("shape", "selection"), TAKEN)
def test_basic_selections_mean_what_they_mean_to_numpy(parse: Parser, shape: Ints, selection: Any) -> None:
    parsed = parse(selection, shape)
    assert parsed is not None
    check_meaning(parsed, selection, shape)


@pytest.mark.parametrize(("shape", "selection"), LEFT_TO_PYTHON)
def test_binding_leaves_selections_to_python(shape: Ints, selection: Any) -> None:
    parsed = in_python(selection, shape)
    assert parsed is not None
    check_meaning(parsed, selection, shape)
    assert in_binding(selection, shape) is None


@both
@pytest.mark.parametrize(("shape", "selection"), REFUSED)
def test_other_selections_are_refused(parse: Parser, shape: Ints, selection: Any) -> None:
    assert parse(selection, shape) is None


def shard_of(values: np.ndarray[Any, Any]) -> tuple[ShardSpec, bytes]:
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}]
    chunk = tuple(n // 2 if n % 2 == 0 else n for n in values.shape)
    spec = ShardSpec(values.shape, chunk, "int32", -1, codecs)
    return spec, encode(values, spec)


def has_elements(shape: Ints) -> bool:
    return 0 < math.prod(shape) < 10**6


@pytest.mark.parametrize(
    ("shape", "selection"), [case for case in TAKEN + LEFT_TO_PYTHON if has_elements(case[0])]
)
def test_one_shard_takes_the_same_selections(shape: Ints, selection: Any) -> None:
    """`decode` returns elements of its own in order C, with or without `out`."""
    values = np.arange(math.prod(shape), dtype="i4").reshape(shape)
    spec, blob = shard_of(values)
    expected = values[selection]
    out = np.zeros(np.shape(expected), "i4", order="F")
    for found in (
        decode(blob, spec, selection),
        decode(blob, spec, selection, out=out),
        open_shard(blob, None, spec).read_region(selection),
    ):
        assert isinstance(found, np.ndarray) and found.dtype == values.dtype
        assert found.shape == np.shape(expected) and found.tobytes() == expected.tobytes()
        assert found is out or (found.flags.c_contiguous and found.flags.owndata)


@pytest.mark.parametrize(("shape", "selection"), [*REFUSED, ((12,), slice(0, 5, 0))])
def test_one_shard_refuses_the_same_selections(shape: Ints, selection: Any) -> None:
    if has_elements(shape):
        spec, blob = shard_of(np.zeros(shape, "i4"))
        for read in (
            lambda: decode(blob, spec, selection),
            lambda: open_shard(blob, None, spec).read_region(selection),
        ):
            with pytest.raises((IndexError, ValueError) if isinstance(selection, slice) else IndexError):
                read()


@both
def test_step_0_is_an_error_of_python(parse: Parser) -> None:
    with pytest.raises(ValueError, match="slice step cannot be zero"):
        parse(slice(0, 5, 0), (12,))


def test_none_selects_all_in_python_only() -> None:
    """It is the default of `decode` and of `read_region`; an array takes it as numpy's new axis, and refuses it."""
    assert in_python(None, (12,)) == in_python(..., (12,))
    assert in_binding(None, (12,)) is None


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (12, "axis 0: expected -12 <= index < 12, got 12"),
        (True, "axis 0: expected an integer, a slice or an ellipsis, got True"),
        (slice(None, None, -2), "axis 0: expected a positive step, got -2"),
        ((1, 2), "selection: expected at most 1 indices, one per axis, got 2"),
        ((..., ...), "selection: expected at most one ellipsis, got 2"),
    ],
)
def test_error_names_the_axis_and_the_index(selection: Any, message: str) -> None:
    with pytest.raises(IndexError) as caught:
        parse_selection(selection, (12,))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("shape", "selection"), [case for case in TAKEN + LEFT_TO_PYTHON if math.prod(case[0]) < 10**6]
)
def test_zarr_takes_the_same_selections(shape: Ints, selection: Any) -> None:
    values = np.arange(math.prod(shape), dtype="i4").reshape(shape)
    array = zarr.create_array({}, shape=shape, dtype="i4", chunks=tuple(max(1, n // 2) for n in shape))
    array[...] = values
    parsed = in_python(selection, shape)
    assert parsed is not None
    answer = np.asarray(array.get_basic_selection(selection))
    assert np.array_equal(answer.reshape(parsed[4]), values[selection])


def indices(extent: int) -> st.SearchStrategy[Any]:
    ends = st.none() | st.integers(-extent - 3, extent + 3)
    steps = st.sampled_from([None, 1, 2, 3, 100, -1])
    return st.integers(-extent - 2, extent + 1) | st.builds(slice, ends, ends, steps)


@st.composite
def any_selection(draw: st.DrawFn) -> tuple[Ints, Any]:
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=4)))
    parts = [draw(indices(n)) for n in shape][: draw(st.integers(0, len(shape) + 1))]
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), ...)
    return shape, parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@given(any_selection())
def test_parsers_agree(case: tuple[Ints, Any]) -> None:
    shape, selection = case
    parsed, fast = in_python(selection, shape), in_binding(selection, shape)
    if parsed is not None:
        check_meaning(parsed, selection, shape)
    assert fast == (None if parsed is None or 0 in parsed[1] else parsed)


@given(any_selection(), st.data())
def test_selection_in_one_object_equals_the_only_part_of_its_box(
    case: tuple[Ints, Any], data: st.DataObject
) -> None:
    shape, selection = case
    extents = tuple(data.draw(st.integers(1, 8)) for _ in shape)
    chain = compiled(ChainSpec.from_json([{"name": "bytes"}], shape=extents, dtype="uint8", fill_value=0))
    parsed, expected = in_python(selection, shape), None
    if parsed is not None and 0 not in parsed[1]:
        start, count, step, axes, result = parsed
        parts = list(object_boxes(Box(start, count, step, (0,) * len(shape)), extents))
        if len(parts) == 1:
            coords, box = parts[0]
            expected = coords, (box.start, count, step, axes, result)
    assert native.load().locate_selection(chain, selection, shape) == expected


def test_one_axis() -> None:
    assert selected(slice(1, 9, 3), 8) == range(1, 8, 3)
    assert selected(-1, 8) == range(7, 8)
    assert selected(np.int64(2), 8) == range(2, 3)
    assert (
        selected(8, 8)
        is selected(slice(5, 0, -1), 8)
        is selected(np.arange(2), 8)
        is selected(True, 8)
        is None
    )
