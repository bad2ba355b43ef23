# request.py - a request of zarr, taken apart: what of it the engine can do, and how large it is
# SPDX-License-Identifier: MIT
"""The common first step of reading and writing.

A `Request` is a batch that the engine takes as a whole. Whatever it does not take raises `Declined` with the reason;
then zarr's own pipeline does the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..access.chunk_codec import memory_order
from ..access.read import INLINE_NBYTES, INLINE_OBJECTS, read_nbytes
from ..access.regions import Parts, covers, is_empty
from ..compat import Store, StorePath, as_numpy
from .selection import fits, selected_axes, to_parts

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Declined", "Part", "Request", "prepare"]

GetChain: TypeAlias = "Callable[[tuple[int, ...], bool], Chain]"


class Declined(Exception):
    """The engine does not do this; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)  # two stores are never compared
class Part:
    """What a request wants of one object."""

    target: StorePath
    spec: Any
    chain: Chain
    box: Parts

    @property
    def covers(self) -> bool:
        """Whether the box is the whole chunk, so that the old object does not matter.

        zarr's own flag says less: it also counts a selection that ends at the array's edge within the chunk, where
        cells beyond the shape may hold what was there before the array was made smaller.
        """
        return covers(self.box, self.chain.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A batch for the engine.

    Attributes
    ----------
    parts : sequence of Part
        Those that want any element at all.
    positions : sequence of int
        Where they stand in the batch.
    axes : tuple of int
        Which axis of `array` each axis of the chunks is; -1 for none.
    array : ndarray
        What is filled or stored.
    """

    store: Store
    parts: Sequence[Part]
    positions: Sequence[int]
    axes: tuple[int, ...]
    array: np.ndarray[Any, Any]

    @property
    def is_small(self) -> bool:
        """Whether it can be done at once, on the event loop."""
        return len(self.parts) <= INLINE_OBJECTS and self.fits_into(INLINE_NBYTES)

    def fits_into(self, limit: int) -> bool:
        """Tell whether no more than so many bytes are decoded for it."""
        total = 0
        for part in self.parts:
            total += read_nbytes(part.chain, part.box)
            if total > limit:
                return False
        return True


def prepare(
    batch: Sequence[Any], buffer: Any, drop_axes: Sequence[int], dtype: np.dtype[Any], get_chain: GetChain
) -> Request:
    """Take a batch of `CodecPipeline.read` or `write` apart.

    Parameters
    ----------
    batch : sequence
        As zarr passes it; not empty.
    buffer : NDBuffer
        Destination or source. One of rank 0 stands for every element.
    drop_axes : sequence of int
        Axes that zarr removes afterwards; only orthogonal selections have any.
    dtype : numpy.dtype
        Of the array.
    get_chain : callable
        From a chunk shape and the byte order of the memory to the compiled chain.

    Raises
    ------
    Declined
    """
    array = as_numpy(buffer)
    if array is None:
        raise Declined("the buffers are not numpy's")
    native_order = memory_order(array.dtype, dtype)
    if native_order is None:
        raise Declined(f"memory has dtype {array.dtype}, chunks {dtype}")
    selected = selected_axes(batch[0][2], batch[0][3], drop_axes)
    if selected is None:
        raise Declined("selection of an unknown kind")
    axes, rank = selected
    scalar = array.ndim == 0
    if not scalar and array.ndim != rank:
        raise Declined(f"selection of rank {rank} for an array of rank {array.ndim}")
    store = _common_store(batch)
    parts, positions = [], []
    chain: Chain | None = None
    chain_shape: tuple[int, ...] = ()
    for position, (target, chunk_spec, chunk_selection, array_selection, _) in enumerate(batch):
        if chain is None or chunk_spec.shape != chain_shape:
            chain_shape = chunk_spec.shape
            chain = get_chain(chain_shape, native_order)
        box = to_parts(chunk_selection, array_selection, axes, chain_shape)
        if box is None:
            raise Declined("selection of an unknown kind")
        if not scalar and not fits(box, axes, array.shape):
            raise Declined(f"array of shape {array.shape} is to be broadcast")
        if not is_empty(box):
            parts.append(Part(target, chunk_spec, chain, box))
            positions.append(position)
    return Request(store, parts, positions, (-1,) * len(axes) if scalar else axes, array)


def _common_store(batch: Sequence[Any]) -> Store:
    first = batch[0][0]
    if type(first) is not StorePath:
        raise Declined(f"objects are reached through {type(first).__name__}")
    store = first.store
    if not issubclass(type(store), Store):  # isinstance() believes what an object says of itself
        raise Declined(f"a {type(store).__name__} in the place of a store")
    for target, *_ in batch:
        if type(target) is not StorePath or target.store is not store:
            raise Declined("objects of several stores in one request")
    return store
