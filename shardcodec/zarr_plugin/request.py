# request.py - translates batches of zarr's pipeline to requests
# SPDX-License-Identifier: MIT
"""Translate a batch of zarr's pipeline into an `access.array_io.Request`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..access.array_io import Part, Request
from ..access.chunk_codec import memory_order
from ..access.regions import is_empty
from ..compat import StorePath, as_numpy
from ..storage.kinds import is_zarr_store, store_of
from ..storage.store import Store
from .selection import fits, selected_axes, to_parts

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Declined", "prepare"]

GetChain: TypeAlias = "Callable[[tuple[int, ...], bool], Chain]"


class Declined(Exception):
    """The engine cannot handle a request; the message states the reason."""


def prepare(
    batch: Sequence[Any],
    buffer: Any,
    drop_axes: Sequence[int],
    dtype: np.dtype[Any],
    get_chain: GetChain,
    usual: tuple[Any, Store],
    *,
    is_plain: bool = False,
) -> Request:
    """Translate a batch of `CodecPipeline.read` or `write`.

    Parameters
    ----------
    batch : sequence
        As zarr passes it; not empty.
    buffer : NDBuffer
        Destination or source. A source of rank 0 is the value of every element.
    drop_axes : sequence of int
        Axes that zarr removes afterwards; only orthogonal selections have some.
    dtype : numpy.dtype
        Data type of the array.
    get_chain : callable
        Takes a chunk shape and whether the memory has the native byte order; returns the compiled chain.
    usual : tuple
        The zarr store of the array, and its `Store`.
    is_plain : bool
        zarr writes objects of this array as a whole, and not by inner chunks.

    Returns
    -------
    Request
        The parts with at least one element.

    Raises
    ------
    Declined
        The engine cannot handle the batch.
    """
    array = as_numpy(buffer)
    if array is None:
        raise Declined("expected buffers of numpy")
    native_order = memory_order(array.dtype, dtype)
    if native_order is None:
        raise Declined(f"expected memory of dtype {dtype}, got {array.dtype}")
    selected = selected_axes(batch[0][2], batch[0][3], drop_axes)
    if selected is None:
        raise Declined("selection of an unknown kind")
    axes, rank = selected
    scalar = array.ndim == 0
    if not scalar and array.ndim != rank:
        raise Declined(f"expected an array of rank {rank} for the selection, got rank {array.ndim}")
    base = _common_store(batch)
    store = usual[1] if base is usual[0] else store_of(base)
    store = store.with_prototype(batch[0][1].prototype)
    parts, positions = [], []
    chain: Chain | None = None
    chain_shape: tuple[int, ...] = ()
    for position, (target, chunk_spec, chunk_selection, array_selection, is_complete) in enumerate(batch):
        if chain is None or chunk_spec.shape != chain_shape:
            chain_shape = chunk_spec.shape
            chain = get_chain(chain_shape, native_order)
        box = to_parts(chunk_selection, array_selection, axes, chain_shape)
        if box is None:
            raise Declined("selection of an unknown kind")
        if not scalar and not fits(box, axes, array.shape):
            raise Declined(f"an array of shape {array.shape} would have to be broadcast")
        if not is_empty(box):
            parts.append(Part(target.path, chain, box, is_plain and bool(is_complete)))
            positions.append(position)
    return Request(store, parts, positions, (-1,) * len(axes) if scalar else axes, array, batch[0][1])


def _common_store(batch: Sequence[Any]) -> Any:
    first = batch[0][0]
    if type(first) is not StorePath:
        raise Declined(f"expected a StorePath for each object, got {type(first).__name__}")
    store = first.store
    if not is_zarr_store(store):
        raise Declined(f"expected a zarr store, got {type(store).__name__}")
    for target, *_ in batch:
        if type(target) is not StorePath or target.store is not store:
            raise Declined("expected objects of one store, got several stores")
    return store
