# random_selections.py - random selections of all kinds of zarr, and random values for them
# SPDX-License-Identifier: MIT
"""Most select elements of an array of this shape, and most values fit; the rest has wrong types, places and shapes."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from random_hierarchies import FLOATS, NUMBERS, TIMES, elements_of
from zarr.buffer import cpu
from zarr.core.buffer import default_buffer_prototype

__all__ = ["KINDS", "METHODS", "Choice", "Shape", "keywords", "value_for"]

Shape = tuple[int, ...]


def typed(pick: random.Random, number: int) -> Any:
    """Return an integer of Python or of numpy."""
    kind = pick.choice((int, int, int, np.int64, np.int8, np.uint8, np.uint64))
    try:
        return kind(number)
    except OverflowError:
        return number


def integer(pick: random.Random, n: int) -> Any:
    if n and pick.random() < 0.95:
        return typed(pick, pick.randint(-n, n - 1))
    return typed(pick, pick.choice((n, -n - 1, n + 7, 2**40, -(2**70))))


def a_slice(pick: random.Random, n: int) -> slice:
    ends = [pick.choice((None, typed(pick, pick.randint(-n - 3, n + 3)))) for _ in "ab"]
    # with larger steps zarr's quotients of floats are rounded, and it updates chunks without chosen elements
    steps = (None, None, None, 1, 1, 2, 3, n + 1, np.int64(2), -1, -2, 0, 2**40, 1.5, "a")
    return slice(*ends, steps[pick.randrange(9 if pick.random() < 0.9 else len(steps))])


def indexes(pick: random.Random, n: int) -> Any:
    """Return a list or an array of integers, with repeats and in any order."""
    many = [pick.randint(-n, n - 1) if n else 0 for _ in range(pick.choice((0, 1, 2, 3, 3, 5)))]
    if pick.random() < 0.6:
        many = sorted({i % n for i in many}) if n else []
    if pick.random() < 0.04:
        many.append(pick.choice((n, -n - 1)))
    dtype = pick.choice((None, None, int, np.int8, np.uint8, np.uint16, np.uint64, np.int32, float, object))
    if dtype is None:
        return many
    return np.array(many if dtype in (int, np.int8, np.int32) else [abs(i) for i in many], dtype)


def mask(pick: random.Random, shape: Shape) -> Any:
    if pick.random() < 0.05:
        shape = tuple(n + 1 for n in shape)
    flags = np.random.default_rng(pick.getrandbits(32)).random(shape) < pick.choice((0, 0.3, 0.3, 1))
    return flags.tolist() if pick.random() < 0.2 else flags


def basic(pick: random.Random, shape: Shape) -> Any:
    return parts_of(pick, shape, (integer, a_slice, a_slice))


def orthogonal(pick: random.Random, shape: Shape) -> Any:
    if shape and 0 not in shape and pick.random() < 0.1:
        return np.ix_(*[sorted({pick.randrange(n) for _ in "abc"}) for n in shape])
    one_mask: Any = lambda pick, n: mask(pick, (n,))  # noqa: E731
    return parts_of(pick, shape, (integer, a_slice, a_slice, indexes, indexes, one_mask))


def parts_of(pick: random.Random, shape: Shape, kinds: tuple[Any, ...]) -> Any:
    """Return one part for each of some axes, perhaps with an ellipsis or a part too many, and not always in a tuple."""
    extents = shape[: pick.randint(0, len(shape))] if pick.random() < 0.5 else shape
    parts = [pick.choice(kinds)(pick, n) for n in extents]
    if pick.random() < 0.3:
        parts.insert(pick.randint(0, len(parts)), ...)
    if pick.random() < 0.04:
        parts.insert(pick.randint(0, len(parts)), wild(pick, shape))
    return parts[0] if len(parts) == 1 and pick.random() < 0.6 else tuple(parts)


def coordinate(pick: random.Random, shape: Shape) -> Any:
    """Return an array of places for each axis; their shapes are equal, or are broadcast."""
    size = pick.choice(((3,), (3,), (1,), (0,), (2, 3), (4, 1)))
    parts: list[Any] = []
    for n in shape:
        one = tuple(k if pick.random() < 0.8 else 1 for k in size) if pick.random() < 0.4 else size
        places = np.array([pick.randint(-n, n - 1) if n else 0 for _ in range(math.prod(one))], int)
        if places.size and pick.random() < 0.05:
            places[0] = pick.choice((n, -n - 1))
        many = places.reshape(one).astype(pick.choice((np.int64, np.int64, np.int32, np.uint8)))
        parts.append(pick.choice((many, many, many, many.tolist(), integer(pick, n))))
    return parts[0] if len(parts) == 1 and pick.random() < 0.6 else tuple(parts)


def block(pick: random.Random, shape: Shape) -> Any:
    return basic(pick, tuple(min(n, 3) for n in shape))


def wild(pick: random.Random, shape: Shape) -> Any:
    """Return a value that is no selection, or the name of a field."""
    scalars = (None, 1.5, "a", b"a", "s", True, np.bool_(True), range(1), slice("a"), slice(1.5))
    many = ([], (), {}, [[0, 0]], [True], ["a"], (..., ...), (None, 0), (0,) * (len(shape) + 1))
    arrays = (np.array(0), np.array([0.0]), np.array(["a"]))
    fields = ((..., "a"), (slice(0, 2), "b"), (0, "a"), ("a", "b"), ["a", "b"])
    return pick.choice((*scalars, *many, *arrays, *fields))


Draw = Callable[[random.Random, Shape], Any]
KINDS: dict[str, Draw] = {"basic": basic, "orthogonal": orthogonal, "coordinate": coordinate}
KINDS |= {"mask": mask, "block": block}
# What each way to select mostly gets.
METHODS = {
    "[]": ["basic", "basic", "basic", "basic", "orthogonal", "coordinate", "mask", "wild"],
    "oindex": ["orthogonal"],
    "vindex": ["coordinate", "mask"],
    "blocks": ["block"],
    **{kind: [kind] for kind in KINDS},
}
KINDS["wild"] = wild


class Choice(NamedTuple):
    """A way to select, a selection, and what makes the other arguments."""

    method: str
    selection: Any
    more: Callable[[], dict[str, Any]] = dict

    def read(self, array: Any) -> Any:
        selection = copy.deepcopy(self.selection)  # zarr changes negative indexes in place
        if self.method in ("oindex", "vindex", "blocks"):
            return getattr(array, self.method)[selection]
        if self.method == "[]":
            return array[selection]
        given = self.more()
        found = getattr(array, f"get_{self.method}_selection")(selection, **given)
        out = given.get("out")
        return [found, out.as_numpy_array()] if isinstance(out, cpu.NDBuffer) else found

    def write(self, array: Any, value: Any) -> None:
        selection = copy.deepcopy(self.selection)
        if self.method in ("oindex", "vindex", "blocks"):
            getattr(array, self.method)[selection] = value
        elif self.method == "[]":
            array[selection] = value
        else:
            given = {name: one for name, one in self.more().items() if name != "out"}
            getattr(array, f"set_{self.method}_selection")(selection, value, **given)

    def repeats(self, shape: Shape) -> bool:
        """Return True if a write may meet an element twice: which of two values it keeps is not fixed."""
        parts = self.selection if isinstance(self.selection, tuple) else (self.selection,)
        many = [np.asarray(one) for one in parts if isinstance(one, list | np.ndarray)]
        many = [one for one in many if one.dtype != bool]
        is_orthogonal = self.method in ("oindex", "orthogonal") or any(type(one) is slice for one in parts)
        try:
            if many and not is_orthogonal and len(parts) == len(shape):
                places = np.stack([np.ravel(one) for one in np.broadcast_arrays(*parts)]).astype(int)
                inside = places % np.maximum(shape, 1)[:, None]
                return np.unique(inside, axis=1).shape != inside.shape
            return any(np.unique(one.astype(int) % max(n, 1)).size < one.size for one in many for n in shape)
        except (ValueError, TypeError, OverflowError):
            return True


def keywords(pick: random.Random, shape: Shape, dtype: Any) -> Callable[[], dict[str, Any]]:
    """Return what makes other arguments of a method; a buffer is made for each call."""
    kind = pick.choice((*[""] * 12, "prototype", "fields", "out", "out", "out", "wrong out"))
    if kind == "prototype":
        return lambda: {"prototype": default_buffer_prototype()}
    if kind == "fields":
        names = pick.choice(("a", "b", ["a"], ["b", "a"], "zz", []))
        return lambda: {"fields": names}
    if not kind:
        return dict
    order = pick.choice("CF")
    if kind == "wrong out":
        shape, dtype = pick.choice((((*shape, 2), dtype), (shape[1:], dtype), (shape, "i8"), (shape, "O")))
    is_buffer = kind == "out" or pick.random() < 0.7

    def made() -> dict[str, Any]:
        out: Any = np.zeros(shape, dtype, order)
        return {"out": cpu.NDBuffer.from_numpy_array(out) if is_buffer else out}

    return made


# ---- random values


def arranged(pick: random.Random, values: Any) -> Any:
    """Return the same elements in another order of memory, read-only, as a list or as a subclass."""
    kinds = ("F", "gaps", "backwards", "read-only", "list", "swapped", "masked", "object")
    kind = pick.choice(("same", "same", *kinds))
    if kind == "F":
        return np.asfortranarray(values)
    if kind == "gaps" and values.ndim:
        return np.repeat(values, 2, axis=-1)[..., ::2]
    if kind == "backwards" and values.ndim:
        return values[::-1].copy()[::-1]
    if kind == "read-only":
        values = values.copy()
        values.flags.writeable = False
    if kind == "swapped" and values.dtype.kind in "iufcmMU":
        return values.astype(values.dtype.newbyteorder())
    if kind == "list":
        return values.tolist()
    if kind == "masked" and values.dtype.kind in "iuf":
        return np.ma.masked_array(values)
    return values.astype(object) if kind == "object" and pick.random() < 0.3 else values


NUMBERS_TO_CAST = (0, 1, -1, 7, 300, 2**40, 2**70, 1.5, 1e300, 2j, True, float("nan"), float("-inf"))
SCALARS = (*NUMBERS_TO_CAST, None, "a", "5", "ü" * 9, b"xy", np.float32(2.5), np.int64(-3), np.str_("t"))
OTHERS = (np.datetime64(5, "s"), (1, 2), [], [[1], [1, 2]], {}, range(2))


def value_for(pick: random.Random, dtype: Any, shape: Shape, fill: Any, *, is_scalar: bool) -> Any:
    """Return a value for a selection of this shape; it may not fit."""
    others = ("broadcast", "cast", "wrong shape", "scalar", "scalar", "any", "fill")
    kind = pick.choice((*["exact"] * 6, *others))
    if is_scalar and kind not in ("any", "fill"):
        kind = "scalar"
    if kind == "any":
        return pick.choice(SCALARS if is_scalar else (*SCALARS, *OTHERS))
    if kind == "fill":
        return fill if is_scalar or pick.random() < 0.5 else np.full(shape, fill)
    if kind == "scalar":
        one = elements_of(pick, dtype, (1,))
        return pick.choice((one[0], one[0], one.reshape(()), one if not is_scalar else one[0]))
    if kind == "broadcast":
        shape = tuple(n if pick.random() < 0.5 else 1 for n in shape)[pick.choice((0, 0, 1)) :]
    if kind == "wrong shape":
        shape = pick.choice(((*shape, 2), shape[1:], tuple(n + 1 for n in shape), shape[::-1]))
    if kind == "cast":
        dtype = pick.choice((*NUMBERS, *FLOATS, *TIMES, "<U5", "S4", "str", "M8[D]"))
    return arranged(pick, elements_of(pick, dtype, shape))
