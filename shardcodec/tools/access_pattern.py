# access_pattern.py - how a program reads an array, and what that costs with some chunk shape
# SPDX-License-Identifier: MIT
"""`AccessPattern`: boxes of one shape at any positions, with a weight. Pure arithmetic."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arguments import checked
from .report import Record

__all__ = ["AccessPattern", "parse_access"]

Ints = tuple[int, ...]


@dataclass(frozen=True)
class AccessPattern(Record):
    """Boxes that a program reads.

    Parameters
    ----------
    text : str
        The pattern as the user wrote it.
    box : tuple of int
        Shape of the box, in elements.
    weight : float
        How often it is read, in relation to the other patterns.
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
        some = np.minimum((box - 1) / sizes + 1, all_cells)
        return np.where(box >= n, all_cells, some).prod(axis=-1)

    @property
    def n_elements(self) -> int:
        """Number of elements of a box."""
        return math.prod(self.box)


@checked
def parse_access(text: str, shape: Sequence[int]) -> AccessPattern:
    """Parse a pattern such as ``1,:,:`` or ``1,64,64@3``: for each axis a number of elements or all, then a weight.

    Parameters
    ----------
    text : str
        The pattern.
    shape : sequence of int
        Shape of the array, in elements.

    Returns
    -------
    AccessPattern

    Raises
    ------
    ValueError
        The text is malformed, or it does not fit the shape.
    """
    if shape and min(shape) < 1:
        raise ValueError(f"access: expected an array with elements, got shape {tuple(shape)}")
    body, _, weight = text.partition("@")
    parts = [part.strip() for part in body.split(",")] if shape else []
    if len(parts) != len(shape):
        raise ValueError(f"access: expected {len(shape)} numbers or colons, one for each axis, got {text!r}")
    box = []
    for axis, (part, n) in enumerate(zip(parts, shape, strict=True)):
        extent = n if part == ":" else int(part) if re.fullmatch(r"[0-9]+", part) else 0
        if not 1 <= extent <= n:
            raise ValueError(
                f"access: expected a number from 1 to {n} or ':' for axis {axis}, got {part!r} in {text!r}"
            )
        box.append(extent)
    try:
        number = float(weight) if weight else 1.0
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ValueError(f"access: expected a positive weight after '@', got {weight!r} in {text!r}")
    return AccessPattern(text, tuple(box), number)
