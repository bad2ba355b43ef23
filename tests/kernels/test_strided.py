# test_strided.py - copies between strided memory, byte order, fills and comparison, against numpy
# SPDX-License-Identifier: MIT
"""Shapes and strides select every kernel. Whole buffers are compared, so a stray byte is found.

Buffers are exactly as large as the boxes in them, so AddressSanitizer finds an access to one byte too many.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcodec import _native as native

Bytes = npt.NDArray[np.uint8]
Ints = tuple[int, ...]
Swap = Sequence[tuple[int, int, int]]


no_deadline = settings(deadline=None)


class Box(NamedTuple):
    """Elements of `itemsize` bytes at `offset` and `strides` in a buffer that ends with the box."""

    shape: Ints
    strides: Ints
    offset: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Return the size of the buffer."""
        if 0 in self.shape:
            return self.offset
        reach = ((n - 1) * max(stride, 0) for n, stride in zip(self.shape, self.strides, strict=True))
        return self.offset + sum(reach) + self.itemsize

    def view(self, buffer: Bytes) -> Bytes:
        """Return the box with one more axis, the bytes of an element."""
        shape, strides = (*self.shape, self.itemsize), (*self.strides, 1)
        return np.ndarray(shape, np.uint8, buffer, self.offset if 0 not in shape else 0, strides)


def lay_out(shape: Ints, itemsize: int, order: Sequence[int], gaps: Ints, flips: Sequence[bool]) -> Box:
    """Place axes from the slowest, order[0], to the fastest; each axis may have a gap or run backwards."""
    strides, step, offset = [0] * len(shape), itemsize, 0
    for axis in reversed(order):
        stride = step + gaps[axis]
        step = stride * max(shape[axis], 1)
        strides[axis] = -stride if flips[axis] else stride
        offset += stride * (shape[axis] - 1) if flips[axis] and shape[axis] else 0
    return Box(shape, tuple(strides), offset, itemsize)


def random_bytes(n: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8)


def naive_swap(view: Bytes, swap: Swap) -> Bytes:
    """Reverse the units of every element; the last axis is the bytes of an element."""
    out = view.copy()
    for offset, unit, count in swap:
        for start in range(offset, offset + unit * count, unit):
            out[..., start : start + unit] = view[..., start : start + unit][..., ::-1]
    return out


def check_copy(dst: Box, src: Box, swap: Swap = ()) -> None:
    source, target = random_bytes(src.nbytes, 1), random_bytes(dst.nbytes, 2)
    expected = target.copy()
    dst.view(expected)[...] = naive_swap(src.view(source), swap)
    before = source.copy()
    native.strided_copy(
        target, dst.offset, dst.strides, source, src.offset, src.strides, dst.shape, dst.itemsize, swap
    )
    np.testing.assert_array_equal(target, expected)
    np.testing.assert_array_equal(source, before)


def contiguous(shape: Ints, itemsize: int, order: str = "C") -> Box:
    axes = range(len(shape)) if order == "C" else range(len(shape) - 1, -1, -1)
    return lay_out(shape, itemsize, list(axes), (0,) * len(shape), [False] * len(shape))


def padded(shape: Ints, itemsize: int, gap: int = 5) -> Box:
    """Return a box in C order, with a gap after every run of the last axis."""
    gaps = tuple(gap if axis < len(shape) - 1 else 0 for axis in range(len(shape)))
    return lay_out(shape, itemsize, list(range(len(shape))), gaps, [False] * len(shape))


# ---- random copies

itemsizes = st.integers(1, 17) | st.sampled_from([20, 24, 32, 33, 48, 64, 65, 100])
shapes = st.lists(st.integers(0, 6) | st.integers(1, 3), max_size=5).map(tuple)
wide_shapes = st.lists(st.sampled_from([1, 2, 3, 15, 16, 17, 33]), min_size=1, max_size=3).map(tuple)


@st.composite
def layouts(draw: st.DrawFn, shape: Ints, itemsize: int, *, broadcast: bool = False) -> Box:
    ndim = len(shape)
    order = draw(st.permutations(range(ndim)) | st.just(list(range(ndim))))
    gaps = tuple(draw(st.sampled_from([0, 0, 0, 1, itemsize])) for _ in shape)
    flips = draw(st.lists(st.booleans(), min_size=ndim, max_size=ndim) | st.just([False] * ndim))
    box = lay_out(shape, itemsize, order, gaps, flips)
    if not broadcast:
        return box
    kept = draw(st.lists(st.booleans(), min_size=ndim, max_size=ndim) | st.just([True] * ndim))
    strides = tuple(s if keep else 0 for s, keep in zip(box.strides, kept, strict=True))
    back = sum((n - 1) * -s for n, s in zip(shape, strides, strict=True) if s < 0 and n)
    return Box(shape, strides, back, itemsize)


@st.composite
def swaps(draw: st.DrawFn, itemsize: int) -> Swap:
    """Draw fields that follow one another, with or without gaps, of any unit."""
    units = [u for u in (1, 2, 4, 8) if itemsize % u == 0]
    if draw(st.booleans()):
        unit = draw(st.sampled_from(units))
        return [(0, unit, itemsize // unit)]
    fields, at = [], 0
    while at < itemsize and draw(st.booleans()):
        at += draw(st.integers(0, 3))
        unit = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
        count = draw(st.integers(0, 3))
        if at + unit * count <= itemsize:
            fields.append((at, unit, count))
            at += unit * count
    return fields


@st.composite
def copies(draw: st.DrawFn, shape_of: st.SearchStrategy[Ints]) -> tuple[Box, Box, Swap]:
    shape, itemsize = draw(shape_of), draw(itemsizes)
    dst = draw(layouts(shape, itemsize))
    src = draw(layouts(shape, itemsize, broadcast=True))
    return dst, src, draw(st.just(()) | swaps(itemsize))


@no_deadline
@given(copy=copies(shapes))
def test_random_copies_equal_numpy(copy: tuple[Box, Box, Swap]) -> None:
    check_copy(*copy)


@no_deadline
@given(copy=copies(wide_shapes))
def test_random_copies_of_larger_shapes_equal_numpy(copy: tuple[Box, Box, Swap]) -> None:
    check_copy(*copy)


# ---- each kernel


@no_deadline
@given(copy=copies(st.lists(st.integers(0, 5), max_size=4).map(tuple)))
def test_random_arrays_are_copied(copy: tuple[Box, Box, Swap]) -> None:
    dst, src, _ = copy
    source, target = random_bytes(src.nbytes, 1), random_bytes(dst.nbytes, 2)
    expected = target.copy()
    dst.view(expected)[...] = src.view(source)
    dtype = np.dtype((np.void, dst.itemsize))
    at = [box.offset if 0 not in box.shape else 0 for box in (dst, src)]
    native.copy_elements(
        np.ndarray(dst.shape, dtype, target, at[0], dst.strides),  # type: ignore[call-overload]
        np.ndarray(src.shape, dtype, source, at[1], src.strides),  # type: ignore[call-overload]
    )
    assert np.array_equal(target, expected)


def test_arrays_of_other_shape_or_itemsize_are_refused() -> None:
    with pytest.raises(ValueError, match="axis 1: expected 3 elements, got 2"):
        native.copy_elements(np.zeros((2, 3), "u2"), np.zeros((2, 2), "u2"))
    with pytest.raises(ValueError, match="rank 1 and elements of 2 bytes"):
        native.copy_elements(np.zeros((2, 3), "u2"), np.zeros(2, "u2"))
    with pytest.raises(ValueError, match="elements of 4 bytes"):
        native.copy_elements(np.zeros(3, "u2"), np.zeros(3, "u4"))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3), (2, 1, 2, 2, 3)], ids=str)
def test_rows_of_every_size_are_copied(lead: Ints) -> None:
    for n in [*range(1, 140), 255, 256, 257, 1000]:
        shape = (*lead, n)
        check_copy(padded(shape, 1), contiguous(shape, 1))
        check_copy(contiguous(shape, 1), padded(shape, 1))


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16, 3, 12])
def test_transposes_around_the_edges_of_blocks_and_tiles_are_exact(itemsize: int, swapped: bool) -> None:
    block, tile = max(16 // itemsize, 1), max(64 // itemsize, 1)
    extents = sorted(
        {2, block - 1, block, block + 1, tile - 1, tile, tile + 1, 2 * tile + block + 1} - {0, 1}
    )
    swap = [(0, itemsize, 1)] if swapped else []
    for shape in itertools.product(extents, repeat=2):
        check_copy(contiguous(shape, itemsize), contiguous(shape, itemsize, "F"), swap)
        check_copy(contiguous(shape, itemsize, "F"), padded(shape, itemsize, 3), swap)
        spaced = lay_out(shape, itemsize, [1, 0], (itemsize, itemsize), [False, False])
        check_copy(contiguous(shape, itemsize), spaced, swap)
        check_copy(spaced, contiguous(shape, itemsize), swap)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16, 3])
@pytest.mark.parametrize("shape", [(5, 6, 7), (3, 17, 2, 5), (2, 3, 2, 3, 18)], ids=str)
def test_every_order_of_axes_is_copied(shape: Ints, itemsize: int) -> None:
    n = len(shape)
    for order in itertools.permutations(range(n)):
        check_copy(contiguous(shape, itemsize), lay_out(shape, itemsize, order, (0,) * n, [False] * n))


@pytest.mark.parametrize("itemsize", [*range(1, 18), 24, 32])
@pytest.mark.parametrize("step", [2, 3, -1, -2])
def test_steps_are_copied(itemsize: int, step: int) -> None:
    for n in (1, 2, 7, 40):
        last = abs(step) * itemsize * (n - 1) if step < 0 else 0
        stepped = Box((n,), (step * itemsize,), last, itemsize)
        check_copy(contiguous((n,), itemsize), stepped)
        check_copy(stepped, contiguous((n,), itemsize))


@pytest.mark.parametrize("unit", [2, 4, 8])
def test_swapped_rows_of_every_size_are_copied(unit: int) -> None:
    for n in range(1, 80):
        check_copy(padded((3, n), unit), contiguous((3, n), unit), [(0, unit, 1)])
        check_copy(padded((3, n), 2 * unit), contiguous((3, n), 2 * unit), [(0, unit, 2)])


@pytest.mark.parametrize(
    "dtype",
    [
        *("u2", "i4", "f8", "c8", "c16", "U5", "M8[ns]"),
        [("a", "i4"), ("b", "u1"), ("c", "f8")],
        [("a", "f4", 3), ("b", "f4")],
        [("a", "S3"), ("b", "c16"), ("c", "u2", (2, 2))],
    ],
    ids=str,
)
def test_swaps_of_dtypes_equal_numpy(dtype: Any) -> None:
    """The fields are computed here, independently of the package."""

    def fields_of(kind: np.dtype[Any], offset: int = 0) -> list[tuple[int, int, int]]:
        if kind.names is not None and kind.fields is not None:
            members = (kind.fields[name] for name in kind.names)
            return [field for sub, at, *_ in members for field in fields_of(sub, offset + at)]
        base, count = kind.base, kind.itemsize // kind.base.itemsize
        unit = {"c": base.itemsize // 2, "U": 4, "S": 1, "V": 1}.get(base.kind, base.itemsize)
        return [(offset, unit, count * (base.itemsize // unit))]

    native_dtype = np.dtype(dtype)
    swapped_dtype = native_dtype.newbyteorder()
    stored = random_bytes(300 * native_dtype.itemsize)
    if native_dtype.kind == "U":
        stored = np.full(300, "añb€c", native_dtype).view(np.uint8)
    target = np.zeros_like(stored)
    size = native_dtype.itemsize
    native.strided_copy(target, 0, (size,), stored, 0, (size,), (300,), size, fields_of(native_dtype))
    expected = np.frombuffer(target.tobytes(), swapped_dtype).astype(native_dtype)
    assert expected.tobytes() == stored.tobytes()


def test_empty_boxes_touch_nothing() -> None:
    for shape in [(0,), (3, 0), (0, 2**62), (2**62, 0, 2**62)]:
        strides = (2**40,) * len(shape)
        native.strided_copy(bytearray(), 0, strides, b"", 0, strides, shape, 4)
        native.fill(bytearray(), 0, strides, shape, b"abcd")


# ---- fill


@no_deadline
@given(
    data=st.data(),
    shape=shapes | wide_shapes,
    itemsize=itemsizes,
    uniform=st.booleans(),
)
def test_random_boxes_are_filled(data: st.DataObject, shape: Ints, itemsize: int, uniform: bool) -> None:
    box = data.draw(layouts(shape, itemsize))
    pattern = bytes([7] * itemsize) if uniform else random_bytes(itemsize, 3).tobytes()
    check_fill(box, pattern)


def check_fill(box: Box, pattern: bytes) -> None:
    target = random_bytes(box.nbytes, 4)
    expected = target.copy()
    box.view(expected)[...] = np.frombuffer(pattern, np.uint8)
    native.fill(target, box.offset, box.strides, box.shape, pattern)
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("itemsize", [*range(1, 18), 24, 31, 100, 1024, 5000])
def test_rows_of_every_length_are_filled(itemsize: int) -> None:
    for n in [*range(1, 40), 127, 128, 129, 700, 5000]:
        if n * itemsize < 100_000:
            check_fill(contiguous((n,), itemsize), random_bytes(itemsize, n).tobytes())
            check_fill(padded((3, n), itemsize), b"\0" * itemsize)


@pytest.mark.parametrize("itemsize", [1, 2, 3, 8, 16, 100, 1024, 1025])
def test_fills_larger_than_the_caches_are_exact(itemsize: int) -> None:
    """The rows have more than a megabyte together, and start at any offset in a cache line."""
    pattern = random_bytes(itemsize, 6).tobytes()
    for row_nbytes in (256, 700, 1024, 5000):
        n = -(-row_nbytes // itemsize)
        check_fill(padded(((1 << 20) // (n * itemsize) + 2, n), itemsize), pattern)
    check_fill(Box(((1 << 20) // itemsize + 3,), (itemsize,), 5, itemsize), pattern)


@pytest.mark.parametrize("itemsize", [1, 2, 3, 8, 16, 20])
def test_one_column_is_copied_to_all_columns(itemsize: int) -> None:
    """The strides of the source are zero along the last axis only; the elements are swapped as well."""
    for n in (1, 2, 9, 300, 2000):
        column = Box((4, n), (itemsize, 0), 0, itemsize)
        check_copy(contiguous((4, n), itemsize), column)
        check_copy(padded((4, n), itemsize), column, [(0, itemsize, 1)])


# ---- all_equal


@pytest.mark.parametrize("itemsize", [1, 2, 3, 4, 8, 12, 16, 17, 40])
def test_all_equal_compares_every_byte(itemsize: int) -> None:
    pattern = random_bytes(itemsize, 5).tobytes()
    for n in (1, 2, 3, 9, 70):
        data = bytearray(pattern * n)
        assert native.all_equal(data, pattern)
        for i in range(len(data)):
            data[i] ^= 1
            assert not native.all_equal(data, pattern)
            data[i] ^= 1


def test_all_equal_of_no_bytes_is_true() -> None:
    assert native.all_equal(b"", b"abc")


def test_all_equal_compares_bits() -> None:
    """SC-51: -0.0 is not 0.0, and NaNs are equal if their payloads are equal."""
    zeros = np.zeros(100, "f8")
    assert not native.all_equal(-zeros, zeros[0].tobytes())
    nans = np.full(100, 0x7FF8_0000_0000_0123, "u8").view("f8")
    assert native.all_equal(nans, nans[0].tobytes())
    assert not native.all_equal(nans, np.float64("nan").tobytes())


def test_shifted_pattern_is_not_equal() -> None:
    assert not native.all_equal(b"abababab", b"ba")
    assert not native.all_equal(b"abcabcabd", b"abc")


# ---- swap_items


@no_deadline
@given(data=st.data(), itemsize=itemsizes, n=st.integers(0, 50), shift=st.integers(0, 3))
def test_items_are_swapped_in_place(data: st.DataObject, itemsize: int, n: int, shift: int) -> None:
    swap = data.draw(swaps(itemsize))
    buffer = random_bytes(n * itemsize + shift, 6)
    expected = buffer.copy()
    items = buffer[shift:].reshape(n, itemsize)
    expected[shift:] = naive_swap(items, swap).reshape(-1)
    native.swap_items(buffer[shift:], itemsize, swap)
    np.testing.assert_array_equal(buffer, expected)


def test_many_small_structs_are_swapped_in_place() -> None:
    """The items are more than one of the pieces that are copied and swapped together."""
    items = random_bytes(5000 * 7).reshape(5000, 7)
    swap = [(0, 2, 1), (3, 4, 1)]
    expected = naive_swap(items, swap)
    native.swap_items(items, 7, swap)
    np.testing.assert_array_equal(items, expected)


# ---- without AVX2

PORTABLE = """
import numpy as np
from shardcodec import _native as native

assert native.cpu_features()["used"] == ()
for unit in (2, 4, 8):
    for n in (1, 2, 3, 5, 8, 31, 32, 33, 500):
        source = np.random.default_rng(n).integers(0, 256, 2 * n * unit, np.uint8).view(f"u{unit}")
        target = np.zeros_like(source)
        native.strided_copy(target, 0, (unit,), source, 0, (unit,), (2 * n,), unit, [(0, unit, 1)])
        assert (target == source.byteswap()).all()
        native.swap_items(target, 2 * unit, [(0, unit, 2)])
        assert (target == source).all()
"""


def test_portable_code_swaps() -> None:
    environment = {**os.environ, "SHARDCODEC_CPU": "portable"}
    subprocess.run([sys.executable, "-c", PORTABLE], env=environment, check=True)
