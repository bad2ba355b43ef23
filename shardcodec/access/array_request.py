# array_request.py - a request for elements of one array
# SPDX-License-Identifier: MIT
"""`Request`: which elements of one array are read from its objects, or written into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..storage.store import Store
from .read import INLINE_NBYTES, INLINE_OBJECTS, ObjectSelection, read_nbytes
from .write import Elements

__all__ = ["Request"]


@dataclass(frozen=True, slots=True, eq=False)  # two stores are never compared
class Request:
    """A read or a write of elements of one array, which lie in many objects of one store.

    items: one for each object, with at least one element. positions: their positions in zarr's batch. axes: for each axis of
    the chunks the axis of `array`, -1 for none. array: the destination of a read, the source of a write. spec: zarr's
    `ArraySpec`. names_paths: errors of a write name the path of a file instead of the key.
    """

    store: Store
    items: Sequence[ObjectSelection]
    positions: Sequence[int]
    axes: tuple[int, ...]
    array: np.ndarray[Any, Any]
    spec: Any
    names_paths: bool = False

    @property
    def writes_empty(self) -> bool:
        """True if chunks that equal the fill value are stored."""
        return bool(self.spec.config.write_empty_chunks)

    @property
    def elements(self) -> Elements:
        """The array as the source of a write."""
        return Elements(self.array, self.axes, self.writes_empty)

    @property
    def is_small(self) -> bool:
        """True if the request may be handled on the event loop."""
        return len(self.items) <= INLINE_OBJECTS and self.fits_into(INLINE_NBYTES)

    def fits_into(self, limit: int) -> bool:
        """Return True if at most `limit` bytes are decoded for a read."""
        total = 0
        for item in self.items:
            total += read_nbytes(item.chain, item.box)
            if total > limit:
                return False
        return True
