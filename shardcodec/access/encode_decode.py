# encode_decode.py - one shard in memory: encode and decode
# SPDX-License-Identifier: MIT
"""The codec alone, without an array or a store around it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import SpecError
from ..format.chain_spec import ChainSpec
from ..format.checks import show
from ..format.fill import fill_bytes, fill_scalar
from ..format.spec import ShardSpec
from ..options import check, resolve
from .chunk_codec import compiled, destination, memory_order
from .read import ReadItem, read
from .regions import Box, whole
from .write import WriteItem, write

__all__ = ["decode", "encode"]


def _chain(spec: ShardSpec | ChainSpec) -> ChainSpec:
    if isinstance(spec, ShardSpec):
        return spec.chain
    if not isinstance(spec, ChainSpec):
        raise TypeError(f"spec: expected a ShardSpec or a ChainSpec, got {type(spec).__name__}")
    return spec


def encode(
    array: Any,
    spec: ShardSpec | ChainSpec,
    *,
    order: str | None = None,
    write_empty_chunks: bool = False,
    threads: int | None = None,
) -> bytes:
    """Encode an array as one shard.

    Parameters
    ----------
    array : array_like
        Of the spec's shape, or of rank 0, cast to its dtype where numpy calls that safe. A scalar that the dtype can hold
        (floats may be rounded) fills the shard.
    spec : ShardSpec or ChainSpec
    order : {"morton", "lexicographic", "colexicographic"}, optional
        Sequence of the inner chunks. Default: the option ``order``, which is Morton.
    write_empty_chunks : bool
        Store inner chunks that equal the fill value bit by bit.
    threads : int, optional

    Returns
    -------
    bytes
        A valid shard, also when every inner chunk is empty (then it is an index and nothing else).

    Raises
    ------
    ValueError
        The array has another shape.
    TypeError
        Its elements cannot be cast safely; the spec is none.
    """
    chain = _chain(spec)
    options = resolve(argument=check({"order": order, "threads": threads}))
    values = _scalar(array, chain.dtype) if _is_scalar(array) else np.asarray(array)
    native_order = memory_order(values.dtype, chain.dtype)
    if native_order is None:
        values = values.astype(chain.dtype, casting="safe")
        native_order = True
    if values.shape not in ((), chain.shape):
        raise ValueError(f"array has shape {values.shape}, the shard {chain.shape}")
    axes = range(chain.ndim) if values.ndim else [-1] * chain.ndim
    item = WriteItem(compiled(chain, native_order), None, None, whole(chain.shape), "")
    (result,) = write([item], values, tuple(axes), options, write_empty=write_empty_chunks, keep_empty=True)
    return bytes(result)


def _is_scalar(value: Any) -> bool:
    """Whether this is one element, not an array with a data type of its own."""
    return isinstance(value, np.generic) or (np.ndim(value) == 0 and not hasattr(value, "__array__"))


def _scalar(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An element of the dtype; numpy itself would cut off what is behind the point, or what does not fit."""
    if dtype.kind in "biu":
        element = np.asarray(value, dtype=dtype)
        if element != value:
            raise TypeError(f"{show(value)} is no {dtype}")
        return element
    if isinstance(value, str) and dtype.kind not in "UmM":  # a fill value in JSON is spelt so
        raise TypeError(f"{show(value)} is no {dtype}")
    try:
        return np.asarray(fill_scalar(dtype, fill_bytes(dtype, value)))
    except SpecError as error:
        raise TypeError(f"{show(value)} is no {dtype}: {error}") from None


def decode(
    buffer: Any,
    spec: ShardSpec | ChainSpec,
    selection: Any = None,
    *,
    out: np.ndarray[Any, Any] | None = None,
    threads: int | None = None,
) -> np.ndarray[Any, Any]:
    """Decode a shard, or a part of it.

    Parameters
    ----------
    buffer : bytes-like
        The whole object.
    spec : ShardSpec or ChainSpec
    selection : optional
        Integers, slices with positive step, an ellipsis, or a tuple of them, as in ``array[selection]``. Default: all.
    out : ndarray, optional
        Destination, of the selection's shape and the spec's dtype; any strides, either byte order.
    threads : int, optional

    Returns
    -------
    ndarray
        `out`, or a new array in C order. Of rank 0 when the selection consists of integers.

    Raises
    ------
    TypeError
        `out` is no array of the spec's dtype; the spec is none.
    ValueError
        `out` has another shape, or is read-only.
    IndexError
        The selection is not of this kind, or leaves the shard.
    ShardFormatError, ChecksumError, CodecError
        The shard is damaged; ``.chunk_coords`` says where.
    """
    chain = _chain(spec)
    options = resolve(argument=check({"threads": threads}))
    box, axes, shape = parse_selection(selection, chain.shape)
    out, native_order = destination(out, shape, chain.dtype)
    memoryview(buffer)  # None and str mean something else further down
    if 0 not in box.count:
        read([ReadItem(compiled(chain, native_order), buffer, box, "")], out, axes, options)
    return out


def parse_selection(selection: Any, shape: tuple[int, ...]) -> tuple[Box, tuple[int, ...], tuple[int, ...]]:
    """Turn a basic selection into a box, the axes that remain, and the shape of the result."""
    parts = list(_expanded(selection, len(shape)))
    start, count, step, axes = [], [], [], []
    remaining: list[int] = []
    for axis, (part, extent) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, slice):
            chosen = range(*part.indices(extent))
            if chosen.step < 1:
                raise IndexError(f"axis {axis}: step {chosen.step} is not positive")
            axes.append(len(remaining))
            remaining.append(len(chosen))
        else:
            chosen = range(_position(part, extent, axis), extent)[:1]
            axes.append(-1)
        start.append(chosen.start)
        count.append(len(chosen))
        step.append(chosen.step if len(chosen) > 1 else 1)
    box = Box(tuple(start), tuple(count), tuple(step), (0,) * len(shape))
    return box, tuple(axes), tuple(remaining)


def _expanded(selection: Any, ndim: int) -> tuple[Any, ...]:
    if selection is None:
        selection = ()
    parts = selection if isinstance(selection, tuple) else (selection,)
    ellipses = sum(part is Ellipsis for part in parts)
    if ellipses > 1:
        raise IndexError("more than one ellipsis")
    if len(parts) - ellipses > ndim:
        raise IndexError(f"{len(parts) - ellipses} indices for {ndim} axes")
    rest = (slice(None),) * (ndim - len(parts) + ellipses)
    if not ellipses:
        return (*parts, *rest)
    place = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return (*parts[:place], *rest, *parts[place + 1 :])


def _position(part: Any, extent: int, axis: int) -> int:
    try:
        position = None if isinstance(part, bool | np.bool_) else part.__index__()
    except (AttributeError, TypeError):
        position = None
    if position is None:
        raise IndexError(f"axis {axis}: {part!r} is no integer, slice or ellipsis")
    if not -extent <= position < extent:
        raise IndexError(f"axis {axis}: index {part!r} is out of bounds for {extent} elements")
    return position % extent  # type: ignore[no-any-return]
