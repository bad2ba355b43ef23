# array_request.py - parts of one array in many objects
# SPDX-License-Identifier: MIT
"""A request for elements of one array: which parts of which objects of one store are read or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..storage.store import Store
from .read import INLINE_NBYTES, INLINE_OBJECTS, read_nbytes
from .regions import Parts, covers

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Part", "Request"]


class Part(NamedTuple):
    """The part of a request in one object. A tuple, because a small read would notice the time to make a dataclass.

    Attributes
    ----------
    key : str
        Key of the object.
    chain : Chain
        Compiled chain of the object.
    box : Box, Boxes, Lists or Points
        The elements of the object.
    ends_at_edge : bool
        For a write: the box has all elements of the object that lie within the array, and elements beyond its shape, from
        before the array was made smaller, are not kept. So zarr writes chunks without shards.
    """

    key: str
    chain: Chain
    box: Parts
    ends_at_edge: bool = False

    @property
    def covers(self) -> bool:
        """True if the box is the whole chunk."""
        return covers(self.box, self.chain.shape)

    @property
    def replaces(self) -> bool:
        """True if a write does not depend on the stored object."""
        return self.ends_at_edge or self.covers


@dataclass(frozen=True, slots=True, eq=False)  # two stores are never compared
class Request:
    """Parts of one array in many objects.

    Attributes
    ----------
    store : Store
        The store of the objects.
    parts : sequence of Part
        Parts with at least one element.
    positions : sequence of int
        Their positions in zarr's batch.
    axes : tuple of int
        The axis of `array` for each axis of the chunks; -1 for none.
    array : ndarray
        The destination of a read, the source of a write.
    spec : ArraySpec
        zarr's configuration of the array.
    """

    store: Store
    parts: Sequence[Part]
    positions: Sequence[int]
    axes: tuple[int, ...]
    array: np.ndarray[Any, Any]
    spec: Any

    @property
    def writes_empty(self) -> bool:
        """True if chunks that equal the fill value are stored."""
        return bool(self.spec.config.write_empty_chunks)

    @property
    def is_small(self) -> bool:
        """True if the request may be handled on the event loop."""
        return len(self.parts) <= INLINE_OBJECTS and self.fits_into(INLINE_NBYTES)

    def fits_into(self, limit: int) -> bool:
        """Return True if at most `limit` bytes are decoded for a read."""
        total = 0
        for part in self.parts:
            total += read_nbytes(part.chain, part.box)
            if total > limit:
                return False
        return True
