# access_pattern.py - how a program reads an array
# SPDX-License-Identifier: MIT
"""How a program reads an array."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arguments import checked
from ..report import Record

__all__ = ["AccessPattern", "fitting_access", "parse_access"]


Ints = tuple[int, ...]


@dataclass(frozen=True)
class AccessPattern(Record):
    """Boxes of one shape, at any positions, that a program reads.

    Parameters
    ----------
    text : str
        The pattern as the user wrote it.
    box : tuple of int
        Shape of the box, in elements.
    weight : float
        How often it is read, in relation to the other patterns.

    Examples
    --------
    >>> planes = tools.AccessPattern("planes", (1, 512, 512), weight=2.0)
    >>> planes.box, planes.weight
    ((1, 512, 512), 2.0)
    """

    text: str
    box: Ints
    weight: float

    def touched(self, shape: Ints, cells: Any) -> Any:
        """Return the mean number of cells that a box touches; every position of the box is equally likely.

        Parameters
        ----------
        shape : tuple of int
            Shape of the array, in elements.
        cells : tuple of int, or ndarray of shape (..., ndim)
            Shapes of cells, such as inner chunks or shards.

        Returns
        -------
        float or ndarray
        """
        sizes = np.asarray(cells, float)
        n, box = np.asarray(shape, float), np.asarray(self.box, float)
        all_cells = np.ceil(n / sizes)
        # a box begins anywhere in a cell, so it reaches (box - 1) / size cells further
        mean_cells = np.minimum((box - 1) / sizes + 1, all_cells)
        return np.where(box >= n, all_cells, mean_cells).prod(axis=-1)

    @property
    def n_elements(self) -> int:
        """Number of elements of a box."""
        return math.prod(self.box)


@checked
def parse_access(text: str, shape: Sequence[int], names: Sequence[str | None] = ()) -> AccessPattern:
    """Parse a pattern such as ``1,:,:``, ``1,64,64@3`` or ``time=1``: numbers of elements or all, then a weight.

    Parameters
    ----------
    text : str
        The pattern: a number of elements or a colon, which means all, for each axis; or for axes by name, and all of the others.
    shape : sequence of int
        Shape of the array, in elements.
    names : sequence of str, optional
        Names of its axes.

    Returns
    -------
    AccessPattern

    Raises
    ------
    ValueError
        The text is malformed, or it does not fit the shape or the names.

    Examples
    --------
    >>> tools.parse_access("time=1@3", (1000, 512, 512), ["time", "y", "x"]).box
    (1, 512, 512)
    """
    if shape and min(shape) < 1:
        raise ValueError(f"access: expected an array with elements, got shape {tuple(shape)}")
    body, _, weight = text.partition("@")
    extents = _extents(body, names) if shape else []
    if extents is None or len(extents) != len(shape):
        raise ValueError(
            f"access: expected {len(shape)} numbers or colons, one for each axis, or names of axes, such as time=1, got {text!r}"
        )
    box = []
    for axis, (word, n) in enumerate(zip(extents, shape, strict=True)):
        extent = n if word == ":" else int(word) if re.fullmatch(r"[0-9]+", word) else 0
        if not 1 <= extent <= n:
            raise ValueError(
                f"access: expected a number from 1 to {n} or ':' for axis {axis}, got {word!r} in {text!r}"
            )
        box.append(extent)
    try:
        number = float(weight) if weight else 1.0
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ValueError(f"access: expected a positive weight after '@', got {weight!r} in {text!r}")
    return AccessPattern(text, tuple(box), number)


def _extents(body: str, names: Sequence[str | None]) -> list[str] | None:
    """Return the word of each axis; None if the text names another axis."""
    words = [word.strip() for word in body.split(",")]
    if "=" not in body:
        return words
    by_name = {name.strip(): extent.strip() for name, _, extent in (word.partition("=") for word in words)}
    if len(by_name) < len(words) or not by_name.keys() <= set(names):
        return None
    return [":" if name is None else by_name.get(name, ":") for name in names]


def fitting_access(text: str, shape: Ints, names: Sequence[str | None]) -> AccessPattern | None:
    """Parse a pattern for one of many arrays: None if it has other axes; a box that is larger than the array is cut to it."""
    body, at, weight = text.partition("@")
    extents = _extents(body, names)
    if extents is None or len(extents) != len(shape):
        return None
    cut = (
        str(min(int(word), n)) if word.isdecimal() and int(word) else word
        for word, n in zip(extents, shape, strict=True)
    )
    return replace(parse_access(f"{','.join(cut)}{at}{weight}", shape), text=text)
