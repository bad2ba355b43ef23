# test_overlay.py - buffered writes over one object, compared with a plain array
# SPDX-License-Identifier: MIT
"""`Overlay` has no store: an array plays the stored object, and the reference is a copy with every write applied."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from spec_json import LITTLE, sharding, transpose

import shardcodec
from shardcodec.access.buffer.overlay import Overlay
from shardcodec.access.compiled_chains import compiled
from shardcodec.access.regions import Box

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((12,), (4,)),
    ((6, 8), (3, 2)),
    ((4, 6, 5), (2, 3, 5)),
]


def chain_of(
    shape: tuple[int, ...], inner: tuple[int, ...], dtype: str, order: list[int] | None = None
) -> Any:
    """Return the chain of a shard, after a transpose if `order` is given; shapes are in the axes of the object."""
    if order is None:
        return compiled(shardcodec.ShardSpec(shape, inner, dtype, 0, [LITTLE]).chain)
    codecs = [transpose(*order), sharding([inner[axis] for axis in order])]
    return compiled(shardcodec.ChainSpec(shape, np.dtype(dtype), 0, codecs))


def random_box(rng: np.random.Generator, shape: tuple[int, ...]) -> Box:
    start, count, step = [], [], []
    for extent in shape:
        first = int(rng.integers(extent))
        stride = int(rng.integers(1, 4))
        n = int(rng.integers(1, (extent - 1 - first) // stride + 2))
        start.append(first)
        count.append(n)
        step.append(stride)
    return Box(tuple(start), tuple(count), tuple(step), (0,) * len(shape))


def index_of(box: Box) -> tuple[slice, ...]:
    assert box.step is not None
    return tuple(
        slice(first, first + (n - 1) * stride + 1, stride)
        for first, n, stride in zip(box.start, box.count, box.step, strict=True)
    )


def merged(overlay: Overlay, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the object after the buffered writes are stored."""

    ndim = stored.ndim

    def slices(row: Any) -> tuple[slice, ...]:
        return tuple(
            slice(first, first + n) for first, n in zip(row[:ndim], row[ndim : 2 * ndim], strict=True)
        )

    def read_old(boxes: Any, out: np.ndarray[Any, Any]) -> None:
        for row in boxes.rows.tolist():
            at = row[3 * ndim :]
            out[tuple(slice(a, a + n) for a, n in zip(at, row[ndim : 2 * ndim], strict=True))] = stored[
                slices(row)
            ]

    result = stored.copy()
    positions, block = overlay.chunks(read_old)
    assert len(positions) == len(set(positions.tolist()))
    chunks = block.reshape(len(positions), -1, *block.shape[1:])
    for row, chunk in zip(overlay.boxes(positions).rows.tolist(), chunks, strict=True):
        result[slices(row)] = chunk
    return result


@pytest.mark.parametrize(("shape", "inner"), SHAPES)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float64", "complex128", "V3"])
@pytest.mark.parametrize("transposed", [False, True])
def test_random_writes_equal_a_plain_array(
    shape: tuple[int, ...], inner: tuple[int, ...], dtype: str, transposed: bool
) -> None:
    rng = np.random.default_rng(len(shape))
    order = list(range(len(shape)))[::-1] if transposed else None
    # the chain's element type is ignored
    chain = chain_of(shape, inner, "uint8" if dtype == "V3" else dtype, order)
    stored = rng.bytes(math.prod(shape) * np.dtype(dtype).itemsize)
    before = np.frombuffer(stored, dtype=dtype).reshape(shape)
    for _ in range(10):
        overlay = Overlay(chain, before.dtype)
        expected = before.copy()
        for _ in range(int(rng.integers(1, 12))):
            box = random_box(rng, shape)
            values = np.frombuffer(rng.bytes(math.prod(box.count) * before.itemsize), dtype=dtype).reshape(
                box.count
            )
            expected[index_of(box)] = values
            overlay.write(box, range(len(shape)), values)
            wanted = random_box(rng, shape)
            out = before[index_of(wanted)].copy()
            overlay.copy_to(wanted, range(len(shape)), out)
            assert out.tobytes() == expected[index_of(wanted)].tobytes()
            if overlay.covers(wanted):
                blank = np.empty(wanted.count, dtype=dtype)
                overlay.copy_to(wanted, range(len(shape)), blank)
                assert blank.tobytes() == out.tobytes()
        assert merged(overlay, before).tobytes() == expected.tobytes()


def test_scalar_integer_axis_and_repeated_axis_are_written() -> None:
    shape, inner = (6, 8), (3, 2)
    stored = np.zeros(shape, "int32")
    overlay = Overlay(chain_of(shape, inner, "int32"), stored.dtype)
    expected = stored.copy()
    overlay.write(Box((1, 1), (4, 6), None, (0, 0)), (-1, -1), np.array(7, "int32"))
    expected[1:5, 1:7] = 7
    row = np.arange(10, 20, dtype="int32")
    overlay.write(Box((2, 0), (1, 8), None, (0, 2)), (-1, 0), row)
    expected[2] = row[2:]
    values = np.arange(24, dtype="int32").reshape(3, 8)
    overlay.write(Box((0, 3), (3, 8 - 3), None, (0, 1)), (0, 1), values)
    expected[:3, 3:] = values[:, 1:6]
    assert merged(overlay, stored).tolist() == expected.tolist()
    column = np.zeros(6, "int32")
    overlay.copy_to(Box((0, 4), (6, 1), None, (0, 0)), (0, -1), column)
    # elements that were never written must not be changed
    assert column.tolist() == expected[:, 4].tolist()


def test_elements_of_the_other_byte_order_are_converted() -> None:
    stored = np.zeros((6, 8), ">i2")
    overlay = Overlay(chain_of((6, 8), (3, 2), "int16"), stored.dtype)
    values = np.arange(48, dtype="<i2").reshape(6, 8)
    overlay.write(Box((0, 0), (6, 8), None, (0, 0)), (0, 1), values)
    assert overlay.is_complete
    assert merged(overlay, stored).tolist() == values.tolist()


def test_bits_of_nan_and_negative_zero_are_kept() -> None:
    values = np.array([0x7FF8000000000001, 0x7FF0000000000001, 0x8000000000000000, 0], "uint64").view(
        "float64"
    )
    overlay = Overlay(chain_of((4,), (2,), "float64"), values.dtype)
    overlay.write(Box((0,), (4,), None, (0,)), (0,), values)
    assert merged(overlay, np.zeros(4)).tobytes() == values.tobytes()


def test_only_touched_chunks_take_memory() -> None:
    shape, inner = (64, 64, 64), (8, 8, 8)
    overlay = Overlay(chain_of(shape, inner, "uint16"), np.dtype("uint16"))
    assert overlay.nbytes == 0
    chunk = np.ones(inner, "uint16")
    for i in range(3):
        overlay.write(Box((8 * i, 0, 0), inner, None, (0, 0, 0)), range(3), chunk)
        assert overlay.nbytes == (i + 1) * chunk.nbytes
    overlay.write(Box((0, 8, 0), (8, 8, 1), None, (0, 0, 0)), range(3), chunk[..., :1])
    assert overlay.nbytes == 4 * chunk.nbytes + chunk.size  # one mask: this chunk is only partly written
    overlay.write(Box((0, 8, 1), (8, 8, 7), None, (0, 0, 0)), range(3), chunk[..., :7])
    assert overlay.nbytes == 4 * chunk.nbytes
    assert not overlay.is_complete
    overlay.write(Box((0, 0, 0), shape, None, (0, 0, 0)), (-1, -1, -1), np.array(5, "uint16"))
    assert overlay.is_complete
    assert overlay.nbytes == 2 * 64**3


def test_fully_written_chunks_are_not_read() -> None:
    overlay = Overlay(chain_of((6, 8), (3, 2), "int32"), np.dtype("int32"))
    overlay.write(Box((0, 0), (3, 2), None, (0, 0)), (0, 1), np.ones((3, 2), "int32"))
    overlay.write(Box((3, 2), (3, 1), None, (0, 0)), (0, 1), np.ones((3, 1), "int32"))
    overlay.write(Box((3, 3), (3, 1), None, (0, 0)), (0, 1), np.ones((3, 1), "int32"))

    def read_old(boxes: Any, out: Any) -> None:
        pytest.fail("no stored element is needed")

    assert overlay.chunks(read_old)[0].tolist() == [0, 5]


def test_object_of_one_chunk_is_merged() -> None:
    chain = compiled(shardcodec.ChainSpec((4, 6), np.dtype("int32"), 0, [LITTLE]))
    stored = np.arange(24, dtype="int32").reshape(4, 6)
    overlay = Overlay(chain, stored.dtype)
    overlay.write(Box((1, 2), (2, 3), None, (0, 0)), (-1, -1), np.array(-1, "int32"))
    expected = stored.copy()
    expected[1:3, 2:5] = -1
    assert merged(overlay, stored).tolist() == expected.tolist()
    assert not overlay.is_complete
    overlay.write(Box((0, 0), (4, 6), None, (0, 0)), (-1, -1), np.array(3, "int32"))
    assert overlay.is_complete


@pytest.mark.parametrize(("shape", "inner"), [*SHAPES, ((4, 3, 6), (2, 1, 3))])
@pytest.mark.parametrize("transposed", [False, True])
def test_slices_of_whole_chunks_are_written(
    shape: tuple[int, ...], inner: tuple[int, ...], transposed: bool
) -> None:
    """`write_slices` equals `write` in any memory order; an integer index is valid where a chunk has extent 1."""
    rng = np.random.default_rng(5)
    order = list(range(len(shape)))[::-1] if transposed else None
    stored = rng.integers(0, 1 << 30, shape, dtype=np.int32)
    overlay = Overlay(chain_of(shape, inner, "int32", order), stored.dtype)
    expected = stored.copy()
    for _ in range(12):
        at = [int(rng.integers(n // c)) * c for n, c in zip(shape, inner, strict=True)]
        box = tuple(slice(a, a + c) for a, c in zip(at, inner, strict=True))
        source = np.asarray(rng.integers(0, 1 << 30, [n + 3 for n in inner], dtype=np.int32), order="F")[::-1]
        places = tuple(slice(2, 2 + n) for n in inner)
        expected[box] = source[places]
        if inner[1:2] == (1,):
            box, places = (box[0], at[1], *box[2:]), (places[0], *places[2:])
            source = source[:, 2]
        assert overlay.write_slices(box, places, source)
    assert np.array_equal(merged(overlay, stored), expected)


@pytest.mark.parametrize(
    ("chunk", "array"),
    [
        ((slice(0, 3), slice(0, 4)), (slice(0, 3), slice(0, 4))),  # covers two inner chunks
        ((slice(0, 3), slice(0, 1)), (slice(0, 3), slice(0, 1))),  # a part of one inner chunk
        ((slice(1, 4), slice(0, 2)), (slice(0, 3), slice(0, 2))),  # parts of two inner chunks
        ((slice(0, 6, 2), slice(0, 2)), (slice(0, 3), slice(0, 2))),  # as many elements, but with a step
        ((slice(0, 3), 1), (slice(0, 3),)),
        ((slice(0, 3), np.arange(2)), (slice(0, 3), slice(0, 2))),
        ((slice(0, 3), slice(0, 2)), (slice(0, 3), slice(3, 5))),  # outside the array
        ((slice(0, 3),), (slice(0, 3),)),
        ([slice(0, 3), slice(0, 2)], (slice(0, 3), slice(0, 2))),
    ],
)
def test_other_selections_are_left_to_write(chunk: Any, array: Any) -> None:
    overlay = Overlay(chain_of((6, 8), (3, 2), "int16"), np.dtype("int16"))
    assert not overlay.write_slices(chunk, array, np.ones((3, 4), "int16"))
    assert overlay.nbytes == 0


def test_other_element_types_are_left_to_write() -> None:
    overlay = Overlay(chain_of((6,), (3,), "int16"), np.dtype("int16"))
    for values in (np.ones(3, "int32"), np.ones(3, ">i2"), np.array(1, "int16"), np.ones((3, 1), "int16")):
        assert not overlay.write_slices((slice(0, 3),), (slice(0, 3),), values)
    whole = Overlay(compiled(shardcodec.ChainSpec((6,), np.dtype("int16"), 0, [LITTLE])), np.dtype("int16"))
    assert not whole.write_slices((slice(0, 6),), (slice(0, 6),), np.ones(6, "int16"))
    # the buffer protocol has no format for datetimes
    times = Overlay(chain_of((6,), (3,), "int64"), np.dtype("M8[s]"))
    assert not times.write_slices((slice(0, 3),), (slice(0, 3),), np.zeros(3, "M8[s]"))


def test_write_slices_removes_a_mask() -> None:
    """An inner chunk that was partly written and then fully overwritten needs no stored bytes."""
    stored = np.zeros(6, "int16")
    overlay = Overlay(chain_of((6,), (3,), "int16"), stored.dtype)
    overlay.write(Box((1,), (1,), None, (0,)), (0,), np.array([7], "int16"))
    assert not overlay.covers(Box((0,), (3,), None, (0,)))
    assert overlay.write_slices((slice(0, 3),), (slice(0, 3),), np.array([1, 2, 3], "int16"))
    assert overlay.covers(Box((0,), (3,), None, (0,)))
    assert merged(overlay, stored).tolist() == [1, 2, 3, 0, 0, 0]


def test_failed_write_leaves_no_chunk() -> None:
    """The inner chunk counted as written before its elements were copied, so a flush stored uninitialised memory."""
    stored = np.arange(48, dtype="int32").reshape(6, 8)
    overlay = Overlay(chain_of((6, 8), (3, 2), "int32"), stored.dtype)
    with pytest.raises(ValueError, match="broadcast"):
        overlay.write_chunk(0, np.ones((3, 3), "int32"))
    box = Box((3, 2), (3, 2), None, (0, 0))
    with pytest.raises(ValueError, match="broadcast"):
        overlay.write(box, (0, 1), np.ones((3, 1, 2), "int32"))
    assert overlay.nbytes == 0
    assert not overlay.covers(box)
    overlay.write(Box((0, 0), (1, 1), None, (0, 0)), (0, 1), np.array([[7]], "int32"))
    with pytest.raises(ValueError, match="broadcast"):
        overlay.write_chunk(0, np.ones((3, 3), "int32"))
    stored[0, 0] = 7
    assert np.array_equal(merged(overlay, stored), stored)
