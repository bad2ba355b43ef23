# order.py - the order in which the frames of a stream come
# SPDX-License-Identifier: MIT
"""`FrameOrder`: from the number of a frame to its place along the axes of the stream. `Positions`: the places that a user lists.

`Changes`: those that one step makes.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .. import native
from ..arguments import show
from ..format.array_document import attributes_of

__all__ = ["Changes", "FrameOrder", "Positions", "axes_of", "make"]

Ints = tuple[int, ...]

# Calls of functions of C, each with its arguments, which `Mutex.step` makes together: a signal handler cannot raise between them.
Changes = list[tuple[Any, ...]]

END = object()  # behind the last position


def make(changes: Changes) -> None:
    """Make changes one after the other, for a caller that shares the data with no other thread."""
    for function, *arguments in changes:
        function(*arguments)


class Positions:
    """The positions that a user has listed, for one of the streams that share them. An error of the user's iterator changes nothing.

    given: those that no frame has taken yet. mutex: one thread at a time calls the iterator.
    """

    def __init__(self, iterator: Iterator[Any], mutex: Any) -> None:
        self._iterator = iterator
        self._mutex = mutex
        self.given: deque[Any] = deque()

    @classmethod
    def copies(cls, positions: Iterable[Any] | None, n: int) -> list[Positions | None]:
        """Return the positions for n streams; None in C order."""
        if positions is None:
            return [None] * n
        mutex = native.load().Mutex()
        return [cls(iterator, mutex) for iterator in itertools.tee(positions, n)]

    def skip(self, n: int) -> None:
        """Leave out the positions of n frames, which have been taken before."""
        deque(itertools.islice(self._iterator, n), maxlen=0)

    def fetch(self) -> None:
        """Take the next position, or `END`, out of the iterator, if none is given; it raises as this. It is next until a frame takes it.

        Not under another mutex: the iterator may wait, or call the stream.
        """
        while not self.given:
            version = self._mutex.version
            # new ones each time, because an error ends an `islice` for ever
            following = itertools.islice(itertools.chain(self._iterator, (END,)), 1)
            fetching = (self.given.extend, following)
            if not self.given and self._mutex.step(version, [fetching]):
                return


class FrameOrder:
    """The places of frames in order of acquisition, and the number of the next frame.

    extents: those of the array along the axes of the stream, slowest axis first. positions: the place of each frame from number 0
    on; None: C order. number: that of the first frame. grows: the first axis has no end.
    """

    def __init__(self, extents: Ints, positions: Positions | None, number: int, *, grows: bool) -> None:
        self.extents = extents
        self.grows = grows
        self.n_inner: int = math.prod(extents[1:])
        self.number: int
        self.number = self._first = number
        self._positions = positions
        if positions is not None:
            positions.skip(number)

    @property
    def lacks_place(self) -> bool:
        """True if `fetch` must come before `place`."""
        return self._positions is not None and not self._positions.given

    def fetch(self) -> None:
        """Ask the user for the place of the next frame; errors of the user's iterator are raised."""
        if self._positions is not None:
            self._positions.fetch()

    def place(self) -> Ints:
        """Return the place of the next frame; IndexError: the array has no room for it."""
        if self._positions is None:
            return self._in_c_order(self.number)
        return self._checked(self._positions.given[0], self.number)

    def taking(self) -> Changes:
        """Return the changes that give the next frame its number and place."""
        of_place: Changes = [] if self._positions is None else [(self._positions.given.popleft,)]
        return [(setattr, self, "number", self.number + 1), *of_place]

    def take(self) -> tuple[int, Ints]:
        """Return number and place of the next frame, for a caller that shares the order with no other thread."""
        if self.lacks_place:
            self.fetch()
        taken = self.number, self.place()
        make(self.taking())
        return taken

    def n_in_block(self, block: Ints, extents: Ints) -> int:
        """Return how many frames of this order lie in a block of the array; blocks have these extents.

        With `positions`, all places of the block count.
        """
        sides = []
        for axis, (at, extent, size) in enumerate(zip(block, extents, self.extents, strict=True)):
            end = (at + 1) * extent
            sides.append(range(at * extent, end if self.grows and axis == 0 else min(end, size)))
        if self._positions is not None or not self._first:
            return math.prod(map(len, sides))
        return sum(self._number_of(place) >= self._first for place in itertools.product(*sides))

    def _number_of(self, place: Ints) -> int:
        number = 0
        for at, extent in zip(place, self.extents, strict=True):
            number = number * extent + at
        return number

    def _in_c_order(self, number: int) -> Ints:
        if not self.grows and number >= self.extents[0] * self.n_inner:
            raise IndexError(
                f"frame {number}: expected at most {self.extents[0] * self.n_inner} frames, for which the array has room"
            )
        place = []
        for extent in reversed(self.extents[1:]):
            number, at = divmod(number, extent)
            place.append(at)
        return (number, *reversed(place))

    def _checked(self, given: Any, number: int) -> Ints:
        if given is END:
            raise IndexError(f"frame {number}: expected a position for it, but `positions` has ended")
        is_several = isinstance(given, Iterable) and not isinstance(given, Iterator)  # which can be read once
        try:
            place = tuple(map(operator.index, given if is_several else (given,)))
        except TypeError:
            place = ()
        if len(place) != len(self.extents) or any(
            not 0 <= at < n for at, n in zip(place, self.extents, strict=True)
        ):
            raise IndexError(
                f"frame {number}: expected a position inside of {self.extents}, got {show(given)}"
            )
        return place


def axes_of(axis: Any, ndim: int, document: Mapping[str, Any]) -> Ints:
    """Return numbers of axes, from numbers or names of dimensions; `document` is that of the array."""
    chosen = (axis,) if isinstance(axis, str) or not isinstance(axis, Sequence) else tuple(axis)
    names = document.get("dimension_names") or attributes_of(document).get("_ARRAY_DIMENSIONS")
    axes = tuple(_axis_of(one, ndim, names if isinstance(names, list) else ()) for one in chosen)
    if not axes or len(set(axes)) < len(axes):
        raise ValueError(f"axis: expected one or several different axes, got {show(axis)}")
    return axes


def _axis_of(axis: Any, ndim: int, names: Sequence[Any]) -> int:
    if isinstance(axis, str):
        if not any(names):
            raise ValueError(
                f"axis: expected numbers, because the dimensions of the array have no names, got {axis!r}"
            )
        if axis not in names:
            raise ValueError(f"axis: expected one of the dimensions {list(names)}, got {axis!r}")
        return list(names).index(axis)
    try:
        number = operator.index(axis)
    except TypeError:
        raise TypeError(
            f"axis: expected numbers or names of dimensions, or a sequence of them, got {show(axis)}"
        ) from None
    if not -ndim <= number < ndim:
        raise ValueError(f"axis: expected one of the {ndim} axes of the array, got {number}")
    return number % ndim
