# encode_decode.py - `encode` and `decode`: one shard in memory
# SPDX-License-Identifier: MIT
"""The codec without an array or a store: `encode` and `decode` work on one object in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import as_buffer, checked, show
from ..errors import SpecError
from ..format.fill_values import fill_bytes, fill_scalar
from ..format.spec import ChainSpec, ShardSpec
from ..option_sources import current_options
from ..options import Order, check
from .compiled_chains import compiled, output_array
from .inner_chunks import as_elements
from .read import ObjectSelection, read
from .regions import whole
from .selection import parse_selection
from .write import Elements, WriteItem, write_objects

__all__ = ["decode", "encode"]


def _chain(spec: ShardSpec | ChainSpec) -> ChainSpec:
    if isinstance(spec, ShardSpec):
        return spec.chain
    if not isinstance(spec, ChainSpec):
        raise TypeError(f"spec: expected a ShardSpec or a ChainSpec, got {type(spec).__name__}")
    return spec


@checked
def encode(
    array: Any,
    spec: ShardSpec | ChainSpec,
    *,
    order: Order | None = None,
    write_empty_chunks: bool = False,
    threads: int | None = None,
) -> bytes:
    """Encode an array as one shard.

    Parameters
    ----------
    array : array_like
        The elements, with the shape of the spec. They are cast to its dtype if numpy calls the cast safe. A scalar, or an
        array of rank 0, fills the shard; a scalar must be representable in the dtype (floats may be rounded).
    spec : ShardSpec or ChainSpec
        Shape, data type and codecs of the shard.
    order : {"morton", "lexicographic", "colexicographic"}, optional
        Order of the inner chunks in the shard. Default: the option ``order``, which is Morton.
    write_empty_chunks : bool
        Store also inner chunks that equal the fill value bit by bit.
    threads : int, optional
        Number of threads. Default: the option ``threads``.

    Returns
    -------
    bytes
        A valid shard. If all inner chunks are empty, it consists of its index.

    Raises
    ------
    ValueError
        The array has another shape than the spec.
    TypeError
        The elements cannot be cast safely, or `spec` is not a spec.
    CodecError
        A codec refuses the elements.

    Notes
    -----
    Source: Zarr v3 ``sharding_indexed``, "Implementation notes", encoding.

    Examples
    --------
    >>> spec = shardcodec.ShardSpec((4, 6), (2, 3), "uint8", 0, codecs=["bytes"])
    >>> len(shardcodec.encode(np.arange(24, dtype="uint8").reshape(4, 6), spec)), spec.index_nbytes
    (92, 68)
    """
    chain = _chain(spec)
    options = current_options(argument=check({"order": order, "threads": threads}))
    given = _scalar(array, chain.dtype) if _is_scalar(array) else array
    values, native_order = as_elements(given, chain.dtype, "array")
    if values.shape not in ((), chain.shape):
        raise ValueError(f"array: expected shape {chain.shape} of the shard, or a scalar, got {values.shape}")
    axes = range(chain.ndim) if values.ndim else [-1] * chain.ndim
    item = WriteItem(compiled(chain, native_order), None, None, whole(chain.shape), "")
    elements = Elements(values, tuple(axes), write_empty_chunks)
    return bytes(write_objects([item], options, elements, keep_empty=True).objects[0])


def _is_scalar(value: Any) -> bool:
    """Return True if a value is one element, and not an array with its own data type."""
    return isinstance(value, np.generic) or (np.ndim(value) == 0 and not hasattr(value, "__array__"))


def _scalar(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a value as an element of the dtype, checked: numpy itself would cut off decimals and high bits."""
    if dtype.kind in "biu":
        try:
            element = np.asarray(value, dtype=dtype)
        except (TypeError, ValueError, OverflowError):
            element = None
        if element is None or element != value:
            raise TypeError(f"array: cannot represent {show(value)} as {dtype}")
        return element
    if isinstance(value, str) and dtype.kind not in "UmM":  # only a fill value in JSON is a string
        raise TypeError(f"array: cannot represent {show(value)} as {dtype}")
    try:
        return np.asarray(fill_scalar(dtype, fill_bytes(dtype, value)))
    except SpecError as error:
        raise TypeError(f"array: cannot represent {show(value)} as {dtype}: {error}") from None


@checked
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
        Shape, data type and codecs of the shard.
    selection : optional
        Integers, slices with positive step, an ellipsis, or a tuple of them, as in ``array[selection]``. Default: all.
    out : ndarray, optional
        The array to decode into, with the shape of the selection and the dtype of the spec; any strides, either byte
        order. Its content is unspecified after an error.
    threads : int, optional
        Number of threads. Default: the option ``threads``.

    Returns
    -------
    ndarray
        `out`, or a new array in C order; of rank 0 if the selection consists of integers. Elements of absent inner chunks
        are the fill value.

    Raises
    ------
    TypeError
        `out` is not an array of the dtype, `buffer` is not bytes-like, or `spec` is not a spec.
    ValueError
        `out` has another shape, or it is read-only; `threads` is invalid; or the step of a slice is 0.
    IndexError
        The selection is of another kind, it has a negative step, or an integer lies outside the shard.
    UnsupportedError
        The spec exceeds a limit of the engine, or its inner chunks are clipped and codecs follow the sharding.
    ShardFormatError, ChecksumError, CodecError
        The shard is damaged. ``.chunk_coords`` is the damaged inner chunk; None if the damage is not in one inner
        chunk, for example in the checksum of the index, or if the spec has no inner chunks.

    Notes
    -----
    Source: Zarr v3 ``sharding_indexed``, "Implementation notes", decoding.

    Examples
    --------
    >>> spec = shardcodec.ShardSpec((4, 6), (2, 3), "uint8", 0)
    >>> shard = shardcodec.encode(np.eye(4, 6, dtype="uint8"), spec)
    >>> shardcodec.decode(shard, spec, np.s_[1, :3])
    array([0, 1, 0], dtype=uint8)
    """
    chain = _chain(spec)
    options = current_options(argument=check({"threads": threads}))
    box, axes, shape = parse_selection(selection, chain.shape)
    out, native_order = output_array(out, shape, chain.dtype)
    as_buffer(
        buffer, "buffer"
    )  # raises for None and str, which the engine takes for an absent object and a path
    if 0 not in box.count:
        read([ObjectSelection("", compiled(chain, native_order), box, buffer)], out, axes, options)
    return out
