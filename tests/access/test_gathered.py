# test_gathered.py - partial writes of one object in memory, against a plain array
# SPDX-License-Identifier: MIT
"""`Gathered` has no store: what is stored is an array here, and the naive twin is that array with every write done."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from spec_json import LITTLE, sharding, transpose

import shardcodec
from shardcodec.access.chunk_codec import compiled
from shardcodec.access.overlay import Gathered
from shardcodec.access.regions import Box

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((12,), (4,)),
    ((6, 8), (3, 2)),
    ((4, 6, 5), (2, 3, 5)),
]


def chain_of(
    shape: tuple[int, ...], inner: tuple[int, ...], dtype: str, order: list[int] | None = None
) -> Any:
    """A shard, behind a transpose if `order` is given; of rank and extents in the axes of the object."""
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


def settled(gathered: Gathered, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The object when what was gathered is stored."""

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
    positions, block = gathered.chunks(read_old)
    assert len(positions) == len(set(positions.tolist()))
    chunks = block.reshape(len(positions), -1, *block.shape[1:])
    for row, chunk in zip(gathered.boxes(positions).rows.tolist(), chunks, strict=True):
        result[slices(row)] = chunk
    return result


@pytest.mark.parametrize(("shape", "inner"), SHAPES)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float64", "complex128", "V3"])
@pytest.mark.parametrize("transposed", [False, True])
def test_random_writes(shape: tuple[int, ...], inner: tuple[int, ...], dtype: str, transposed: bool) -> None:
    rng = np.random.default_rng(len(shape))
    order = list(range(len(shape)))[::-1] if transposed else None
    chain = chain_of(shape, inner, "uint8" if dtype == "V3" else dtype, order)  # its element is not looked at
    stored = rng.bytes(math.prod(shape) * np.dtype(dtype).itemsize)
    before = np.frombuffer(stored, dtype=dtype).reshape(shape)
    for _ in range(10):
        gathered = Gathered(chain, before.dtype)
        expected = before.copy()
        for _ in range(int(rng.integers(1, 12))):
            box = random_box(rng, shape)
            values = np.frombuffer(rng.bytes(math.prod(box.count) * before.itemsize), dtype=dtype).reshape(
                box.count
            )
            expected[index_of(box)] = values
            gathered.write(box, range(len(shape)), values)
            wanted = random_box(rng, shape)
            out = before[index_of(wanted)].copy()
            gathered.overlay(wanted, range(len(shape)), out)
            assert out.tobytes() == expected[index_of(wanted)].tobytes()
            if gathered.has_all_of(wanted):
                blank = np.empty(wanted.count, dtype=dtype)
                gathered.overlay(wanted, range(len(shape)), blank)
                assert blank.tobytes() == out.tobytes()
        assert settled(gathered, before).tobytes() == expected.tobytes()


def test_a_scalar_an_integer_axis_and_a_repeated_axis() -> None:
    shape, inner = (6, 8), (3, 2)
    stored = np.zeros(shape, "int32")
    gathered = Gathered(chain_of(shape, inner, "int32"), stored.dtype)
    expected = stored.copy()
    gathered.write(Box((1, 1), (4, 6), None, (0, 0)), (-1, -1), np.array(7, "int32"))
    expected[1:5, 1:7] = 7
    row = np.arange(10, 20, dtype="int32")
    gathered.write(Box((2, 0), (1, 8), None, (0, 2)), (-1, 0), row)
    expected[2] = row[2:]
    values = np.arange(24, dtype="int32").reshape(3, 8)
    gathered.write(Box((0, 3), (3, 8 - 3), None, (0, 1)), (0, 1), values)
    expected[:3, 3:] = values[:, 1:6]
    assert settled(gathered, stored).tolist() == expected.tolist()
    column = np.zeros(6, "int32")
    gathered.overlay(Box((0, 4), (6, 1), None, (0, 0)), (0, -1), column)
    # what was not written is not laid over
    assert column.tolist() == expected[:, 4].tolist()


def test_elements_of_the_other_byte_order_are_taken_by_value() -> None:
    stored = np.zeros((6, 8), ">i2")
    gathered = Gathered(chain_of((6, 8), (3, 2), "int16"), stored.dtype)
    values = np.arange(48, dtype="<i2").reshape(6, 8)
    gathered.write(Box((0, 0), (6, 8), None, (0, 0)), (0, 1), values)
    assert gathered.is_complete
    assert settled(gathered, stored).tolist() == values.tolist()


def test_bits_of_nans_and_negative_zeros_stay() -> None:
    values = np.array([0x7FF8000000000001, 0x7FF0000000000001, 0x8000000000000000, 0], "uint64").view(
        "float64"
    )
    gathered = Gathered(chain_of((4,), (2,), "float64"), values.dtype)
    gathered.write(Box((0,), (4,), None, (0,)), (0,), values)
    assert settled(gathered, np.zeros(4)).tobytes() == values.tobytes()


def test_memory_is_taken_for_what_is_touched() -> None:
    shape, inner = (64, 64, 64), (8, 8, 8)
    gathered = Gathered(chain_of(shape, inner, "uint16"), np.dtype("uint16"))
    assert gathered.nbytes == 0
    chunk = np.ones(inner, "uint16")
    for i in range(3):
        gathered.write(Box((8 * i, 0, 0), inner, None, (0, 0, 0)), range(3), chunk)
        assert gathered.nbytes == (i + 1) * chunk.nbytes
    gathered.write(Box((0, 8, 0), (8, 8, 1), None, (0, 0, 0)), range(3), chunk[..., :1])
    assert gathered.nbytes == 4 * chunk.nbytes + chunk.size  # a mask
    gathered.write(Box((0, 8, 1), (8, 8, 7), None, (0, 0, 0)), range(3), chunk[..., :7])
    assert gathered.nbytes == 4 * chunk.nbytes
    assert not gathered.is_complete
    gathered.write(Box((0, 0, 0), shape, None, (0, 0, 0)), (-1, -1, -1), np.array(5, "uint16"))
    assert gathered.is_complete
    assert gathered.nbytes == 2 * 64**3


def test_what_is_written_whole_is_not_read() -> None:
    gathered = Gathered(chain_of((6, 8), (3, 2), "int32"), np.dtype("int32"))
    gathered.write(Box((0, 0), (3, 2), None, (0, 0)), (0, 1), np.ones((3, 2), "int32"))
    gathered.write(Box((3, 2), (3, 1), None, (0, 0)), (0, 1), np.ones((3, 1), "int32"))
    gathered.write(Box((3, 3), (3, 1), None, (0, 0)), (0, 1), np.ones((3, 1), "int32"))

    def read_old(boxes: Any, out: Any) -> None:
        pytest.fail("nothing is needed")

    assert gathered.chunks(read_old)[0].tolist() == [0, 5]


def test_an_object_that_is_one_chunk() -> None:
    chain = compiled(shardcodec.ChainSpec((4, 6), np.dtype("int32"), 0, [LITTLE]))
    stored = np.arange(24, dtype="int32").reshape(4, 6)
    gathered = Gathered(chain, stored.dtype)
    gathered.write(Box((1, 2), (2, 3), None, (0, 0)), (-1, -1), np.array(-1, "int32"))
    expected = stored.copy()
    expected[1:3, 2:5] = -1
    assert settled(gathered, stored).tolist() == expected.tolist()
    assert not gathered.is_complete
    gathered.write(Box((0, 0), (4, 6), None, (0, 0)), (-1, -1), np.array(3, "int32"))
    assert gathered.is_complete


@pytest.mark.parametrize(("shape", "inner"), [*SHAPES, ((4, 3, 6), (2, 1, 3))])
@pytest.mark.parametrize("transposed", [False, True])
def test_slices_of_whole_inner_chunks(
    shape: tuple[int, ...], inner: tuple[int, ...], transposed: bool
) -> None:
    """As `write`, in any order of memory; an integer counts where an inner chunk is one element thick."""
    rng = np.random.default_rng(5)
    order = list(range(len(shape)))[::-1] if transposed else None
    stored = rng.integers(0, 1 << 30, shape, dtype=np.int32)
    gathered = Gathered(chain_of(shape, inner, "int32", order), stored.dtype)
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
        assert gathered.write_slices(box, places, source)
    assert np.array_equal(settled(gathered, stored), expected)


@pytest.mark.parametrize(
    ("chunk", "array"),
    [
        ((slice(0, 3), slice(0, 4)), (slice(0, 3), slice(0, 4))),  # of two inner chunks
        ((slice(0, 3), slice(0, 1)), (slice(0, 3), slice(0, 1))),  # a part of one
        ((slice(1, 4), slice(0, 2)), (slice(0, 3), slice(0, 2))),  # parts of two
        ((slice(0, 6, 2), slice(0, 2)), (slice(0, 3), slice(0, 2))),  # as many elements, with steps
        ((slice(0, 3), 1), (slice(0, 3),)),
        ((slice(0, 3), np.arange(2)), (slice(0, 3), slice(0, 2))),
        ((slice(0, 3), slice(0, 2)), (slice(0, 3), slice(3, 5))),  # outside of the array
        ((slice(0, 3),), (slice(0, 3),)),
        ([slice(0, 3), slice(0, 2)], (slice(0, 3), slice(0, 2))),
    ],
)
def test_other_selections_are_left_to_write(chunk: Any, array: Any) -> None:
    gathered = Gathered(chain_of((6, 8), (3, 2), "int16"), np.dtype("int16"))
    assert not gathered.write_slices(chunk, array, np.ones((3, 4), "int16"))
    assert gathered.nbytes == 0


def test_elements_of_another_kind_are_left_to_write() -> None:
    gathered = Gathered(chain_of((6,), (3,), "int16"), np.dtype("int16"))
    for values in (np.ones(3, "int32"), np.ones(3, ">i2"), np.array(1, "int16"), np.ones((3, 1), "int16")):
        assert not gathered.write_slices((slice(0, 3),), (slice(0, 3),), values)
    whole = Gathered(compiled(shardcodec.ChainSpec((6,), np.dtype("int16"), 0, [LITTLE])), np.dtype("int16"))
    assert not whole.write_slices((slice(0, 6),), (slice(0, 6),), np.ones(6, "int16"))
    times = Gathered(
        chain_of((6,), (3,), "int64"), np.dtype("M8[s]")
    )  # the buffer protocol has no letter for it
    assert not times.write_slices((slice(0, 3),), (slice(0, 3),), np.zeros(3, "M8[s]"))


def test_slices_end_a_mask() -> None:
    """An inner chunk that was written in part, then whole, needs nothing of what is stored."""
    stored = np.zeros(6, "int16")
    gathered = Gathered(chain_of((6,), (3,), "int16"), stored.dtype)
    gathered.write(Box((1,), (1,), None, (0,)), (0,), np.array([7], "int16"))
    assert not gathered.has_all_of(Box((0,), (3,), None, (0,)))
    assert gathered.write_slices((slice(0, 3),), (slice(0, 3),), np.array([1, 2, 3], "int16"))
    assert gathered.has_all_of(Box((0,), (3,), None, (0,)))
    assert settled(gathered, stored).tolist() == [1, 2, 3, 0, 0, 0]
