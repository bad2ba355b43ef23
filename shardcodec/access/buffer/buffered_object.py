# buffered_object.py - the buffered writes of one object
# SPDX-License-Identifier: MIT
"""Records of the buffer: what it stores for each object."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ...options import Options
from ...storage.replace import replace
from ...storage.store import Store
from .layout_looks import LayoutGuard
from .overlay import Overlay
from .overlay_maker import OverlayMaker

if TYPE_CHECKING:
    from ..._native import Chain

__all__ = ["BufferedElements", "BufferedObject", "BufferedWrites", "Target"]


class BufferedWrites(Protocol):
    """The buffered writes of one object. Callers hold the object's lock in the table of this process."""

    @property
    def kind(self) -> Hashable:
        """The kind of the writes.

        A write is added to buffered writes of its own kind. Buffered writes of another kind are flushed first.
        """

    @property
    def nbytes(self) -> int:
        """Memory that the writes take, in bytes."""

    @property
    def is_complete(self) -> bool:
        """True if the writes cover the whole object, so the stored object is not needed."""

    async def flush(self) -> None:
        """Store the writes; after an exception the stored object is as it was."""


@dataclass(slots=True, eq=False)
class BufferedObject:
    """An object with buffered writes.

    Attributes
    ----------
    writes : BufferedWrites
        The writes.
    nbytes : int
        Memory that the buffer has counted for this object, in bytes.
    last_write : int
        Number of the last write; later writes have larger numbers.
    """

    writes: BufferedWrites
    nbytes: int = 0
    last_write: int = 0


class Target(NamedTuple):
    """Where and how buffered elements are stored, as the last write says.

    Attributes
    ----------
    store : Store
        The store of the object.
    key : str
        Its key there.
    options : Options
        Options of the write.
    writes_empty : bool
        Store inner chunks that equal the fill value.
    guard : LayoutGuard or None
        The layout that the write was made for; None if it cannot change.
    """

    store: Store
    key: str
    options: Options
    writes_empty: bool
    guard: LayoutGuard | None = None


class BufferedElements:
    """Buffered writes of elements, through arrays of zarr.

    Parameters
    ----------
    chain : Chain
        Compiled chain of the object, for the byte order of the memory. It is the kind of the writes.
    dtype : dtype
        Data type of the elements in memory.

    Attributes
    ----------
    overlay : Overlay
        The elements.
    target : Target or None
        Where they are stored; None before the first write.
    """

    def __init__(self, chain: Chain, dtype: np.dtype[Any]) -> None:
        self.kind = chain
        self.overlay = Overlay(chain, dtype)
        self.target: Target | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the elements, in bytes."""
        return self.overlay.nbytes

    @property
    def is_complete(self) -> bool:
        """True if every element of the object is buffered."""
        return self.overlay.is_complete

    async def flush(self) -> None:
        """Store the elements; the caller holds the object's lock in the table.

        Raises
        ------
        Exception
            Errors of codecs and of the store; the stored object is as it was.
        """
        assert self.target is not None
        store, key, options, writes_empty, _ = self.target
        maker = OverlayMaker(
            self.overlay,
            key,
            store.path(key),
            lambda: store.staging(key),
            options,
            write_empty=writes_empty,
        )
        await replace(store, [key], maker, options)
