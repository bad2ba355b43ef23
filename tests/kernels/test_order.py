# test_order.py - the sequence of inner chunks, compared with a sort and with zarr
# SPDX-License-Identifier: MIT
"""Morton, lexicographic and colexicographic order of whole grids and of boxes inside them (SC-50)."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.core import indexing

from shardcodec import _native as native

Coords = tuple[int, ...]
Order = Literal["morton", "lexicographic", "colexicographic"]

CSRC = Path(__file__).parents[2] / "csrc"
no_deadline = settings(deadline=None)

ORDERS: tuple[Order, ...] = ("morton", "lexicographic", "colexicographic")


# ---- the naive reference: a key for every inner chunk, and a sort


def morton_rank(coords: Coords, grid: Coords) -> int:
    """Combine bit 0 of every coordinate, axis 0 lowest, then bit 1, and so on; axes without more bits are skipped."""
    rank, place = 0, 0
    for bit in range(max(grid, default=1).bit_length()):
        for c, extent in zip(coords, grid, strict=True):
            if bit < (extent - 1).bit_length():
                rank |= (c >> bit & 1) << place
                place += 1
    return rank


def sort_key(name: Order, grid: Coords) -> Callable[[Coords], Any]:
    return {
        "morton": lambda c: morton_rank(c, grid),
        "lexicographic": lambda c: c,
        "colexicographic": lambda c: c[::-1],
    }[name]


def position(coords: Coords, grid: Coords) -> int:
    flat = 0
    for c, extent in zip(coords, grid, strict=True):
        flat = flat * extent + c
    return flat


def naive_order(
    name: Order, grid: Coords, first: Coords | None = None, last: Coords | None = None
) -> list[int]:
    low = first or (0,) * len(grid)
    high = last or tuple(n - 1 for n in grid)
    box = itertools.product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))
    return [position(c, grid) for c in sorted(box, key=sort_key(name, grid))]


def native_order(
    name: Order, grid: Coords, first: Coords | None = None, last: Coords | None = None, spare: int = 0
) -> list[int]:
    low = first or (0,) * len(grid)
    high = last or tuple(n - 1 for n in grid)
    n = math.prod(b - a + 1 for a, b in zip(low, high, strict=True))
    out = np.full(n + spare, 77, dtype=np.uint64)
    assert native.order(out, grid, name, first, last) == n
    assert (out[n:] == 77).all()
    return list(map(int, out[:n]))


grids = st.lists(st.integers(1, 40), max_size=5).map(tuple).filter(lambda grid: math.prod(grid) <= 1500)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Coords, Coords, Coords]:
    grid = draw(grids)
    first = tuple(draw(st.integers(0, n - 1)) for n in grid)
    last = tuple(draw(st.integers(a, n - 1)) for a, n in zip(first, grid, strict=True))
    return grid, first, last


@pytest.mark.parametrize("name", ORDERS)
class TestReference:
    @no_deadline
    @given(grid=grids)
    def test_order_of_a_whole_grid_equals_the_reference(self, name: Order, grid: Coords) -> None:
        assert native_order(name, grid) == naive_order(name, grid)

    @no_deadline
    @given(grid=grids)
    def test_every_position_occurs_once(self, name: Order, grid: Coords) -> None:
        assert sorted(native_order(name, grid)) == list(range(math.prod(grid)))

    @no_deadline
    @given(box=boxes())
    def test_order_of_a_box_equals_the_reference(
        self, name: Order, box: tuple[Coords, Coords, Coords]
    ) -> None:
        assert native_order(name, *box) == naive_order(name, *box)

    @no_deadline
    @given(box=boxes())
    def test_order_of_a_box_is_a_part_of_the_whole_order(
        self, name: Order, box: tuple[Coords, Coords, Coords]
    ) -> None:
        inside = set(naive_order("lexicographic", *box))
        assert native_order(name, *box) == [p for p in native_order(name, box[0]) if p in inside]

    @pytest.mark.parametrize("grid", [(1,), (1, 1, 1), (64,), (63,), (65,), (8, 8), (4, 4, 4), (2,) * 12])
    def test_blocks_of_64_have_correct_edges(self, name: Order, grid: Coords) -> None:
        assert native_order(name, grid) == naive_order(name, grid)

    def test_rank_0_has_one_position(self, name: Order) -> None:
        assert native_order(name, (), spare=2) == [0]

    def test_rank_32_is_supported(self, name: Order) -> None:
        """The rank bits of all axes do not fit into 64 bits; axes of extent 1 have no bits."""
        grid = (3,) * 31 + (1,)
        first, last = (0,) * 32, (0,) * 5 + (2, 0, 1) + (0,) * 20 + (2, 0, 2, 0)
        assert native_order(name, grid, first, last) == naive_order(name, grid, first, last)

    @pytest.mark.parametrize(
        ("grid", "first"),
        [
            ((2**63,), (2**63 - 9,)),
            ((2**62, 2), (2**62 - 5, 0)),
            ((2**21, 2**21, 2**21), (2**21 - 3, 2**20 - 1, 12345)),
            ((2**21 - 1, 3, 2**31 + 5), (2**20, 1, 2**31)),
            ((1, 2**20 + 1, 1, 2**20 + 1), (0, 2**20 - 1, 0, 2**20 - 2)),
        ],
    )
    def test_box_far_inside_a_huge_grid_is_exact(self, name: Order, grid: Coords, first: Coords) -> None:
        last = tuple(min(a + 5, n - 1) for a, n in zip(first, grid, strict=True))
        assert native_order(name, grid, first, last) == naive_order(name, grid, first, last)


# ---- zarr


def zarr_order(grid: Coords) -> list[int]:
    """Return zarr's order; the function has another name since zarr 3.2 or so."""
    coords = getattr(indexing, "morton_order_coords", None) or indexing.morton_order_iter  # type: ignore[attr-defined]
    return [position(tuple(map(int, c)), grid) for c in coords(grid)]


def some_shapes() -> list[Coords]:
    """Powers of two and their neighbours, extents of 1, ranks 1 to 5; small enough for zarr to be fast."""
    extents = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33)
    rng = random.Random(50)
    shapes = {tuple(rng.choice(extents) for _ in range(1 + i % 5)) for i in range(600)}
    return sorted(shape for shape in shapes if math.prod(shape) <= 6000)


def test_morton_order_equals_zarr() -> None:
    shapes = some_shapes()
    assert len(shapes) > 250
    for grid in shapes:
        assert native_order("morton", grid) == zarr_order(grid), grid


def test_morton_order_of_three_by_five_is_known() -> None:
    assert native_order("morton", (3, 5)) == [0, 5, 1, 6, 10, 11, 2, 7, 3, 8, 12, 13, 4, 9, 14]


# ---- arguments


@pytest.mark.parametrize("name", ORDERS)
def test_buffer_too_small_is_refused(name: Order) -> None:
    with pytest.raises(ValueError, match="room for 59"):
        native.order(np.zeros(59, dtype=np.uint64), (3, 4, 5), name)


@pytest.mark.parametrize(
    ("grid", "first", "last"),
    [
        ((3, 0), None, None),
        ((3, 4), (0, 4), None),
        ((3, 4), (2, 2), (1, 3)),
        ((3, 4), None, (3, 3)),
    ],
)
def test_box_outside_the_grid_is_refused(grid: Coords, first: Coords | None, last: Coords | None) -> None:
    with pytest.raises(ValueError, match="not inside"):
        native.order(np.zeros(12, dtype=np.uint64), grid, "morton", first, last)


def test_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="hilbert"):
        native.order(np.zeros(1, dtype=np.uint64), (1,), "hilbert")  # type: ignore[arg-type]


# ---- interrupting and continuing, which only C callers do


class CIterator:
    """sc_order_begin() and sc_order_next() of a library that is built from sc_order.c alone."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.library.sc_order_next.restype = ctypes.c_size_t
        self.state = (ctypes.c_uint64 * 2048)()  # more than struct sc_order_iter

    def begin(self, name: Order, grid: Coords, first: Coords, last: Coords) -> int:
        numbers = [(ctypes.c_uint64 * max(len(grid), 1))(*values) for values in (grid, first, last)]
        status: int = self.library.sc_order_begin(self.state, ORDERS.index(name), len(grid), *numbers)
        return status

    def take(self, capacity: int) -> list[int]:
        room = (ctypes.c_uint64 * (capacity + 1))(*[77] * (capacity + 1))
        got: int = self.library.sc_order_next(self.state, room, ctypes.c_size_t(capacity))
        assert got <= capacity and list(room[got:]) == [77] * (capacity + 1 - got)
        return list(room[:got])

    def take_all(self, capacities: Sequence[int]) -> list[int]:
        """Take until the end, with these capacities in turn."""
        positions: list[int] = []
        for capacity in itertools.cycle(capacities):
            got = self.take(capacity)
            positions += got
            if not got and capacity:
                return positions
        raise AssertionError


@pytest.fixture(scope="module")
def iterator(tmp_path_factory: pytest.TempPathFactory) -> CIterator:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("order") / "order.so"
    flags = ["-std=c11", "-O1", "-shared", "-fPIC", f"-I{CSRC}"]
    subprocess.run([compiler, *flags, "-o", library, CSRC / "kernels" / "sc_order.c"], check=True)
    return CIterator(ctypes.CDLL(str(library)))


BOXES: list[tuple[Coords, Coords, Coords]] = [
    ((), (), ()),
    ((7,), (0,), (6,)),
    ((5, 9), (0, 0), (4, 8)),
    ((4, 4, 4), (0, 0, 0), (3, 3, 3)),
    ((8, 4, 8), (0, 0, 0), (7, 3, 7)),
    ((9, 6, 7), (2, 0, 3), (8, 4, 5)),
]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("box", BOXES, ids=str)
def test_iteration_continues_at_every_capacity(
    iterator: CIterator, name: Order, box: tuple[Coords, Coords, Coords]
) -> None:
    expected = naive_order(name, *box)
    for capacity in range(1, len(expected) + 2):
        assert iterator.begin(name, *box) == 0
        assert iterator.take_all([capacity]) == expected


@pytest.mark.parametrize("name", ORDERS)
def test_iteration_continues_at_changing_capacities(iterator: CIterator, name: Order) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        assert iterator.begin(name, (33, 9, 5), (1, 0, 2), (32, 8, 4)) == 0
        capacities = [rng.choice([0, 1, 3, 63, 64, 65, 200]) for _ in range(50)] + [1]
        assert iterator.take_all(capacities) == naive_order(name, (33, 9, 5), (1, 0, 2), (32, 8, 4))


@pytest.mark.parametrize("name", ORDERS)
def test_finished_iteration_returns_nothing_more(iterator: CIterator, name: Order) -> None:
    """Tested for one block of 64 and for several."""
    for grid in [(3, 4), (9, 17)]:
        assert iterator.begin(name, grid, (0, 0), (grid[0] - 1, grid[1] - 1)) == 0
        assert len(iterator.take(500)) == math.prod(grid)
        assert [iterator.take(500) for _ in range(3)] == [[], [], []]


BAD_ARGUMENT = 2


@pytest.mark.parametrize(
    ("grid", "first", "last"),
    [
        ((0,), (0,), (0,)),
        ((4,), (3,), (2,)),
        ((4,), (0,), (4,)),
        ((2**32, 2**31 + 1), (0, 0), (1, 1)),
        ((2**32, 2**32), (0, 0), (1, 1)),
        ((1,) * 33, (0,) * 33, (0,) * 33),
    ],
)
def test_bad_arguments_are_refused(iterator: CIterator, grid: Coords, first: Coords, last: Coords) -> None:
    assert iterator.begin("morton", grid, first, last) == BAD_ARGUMENT
