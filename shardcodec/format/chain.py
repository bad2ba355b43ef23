# chain.py - lowering of a spec to the arguments of the native chain
# SPDX-License-Identifier: MIT
"""Lower a spec to the arguments of the native engine.

Lowering resolves codec names, JSON spellings and defaults. All transposes of a chain become one permutation. The
byte order of the `bytes` codec becomes a list of runs to reverse; it is empty if the stored order is native.
"""

from __future__ import annotations

import sys
from typing import Any, NotRequired, TypedDict

import numpy as np

from ..errors import UnsupportedError
from .codecs import Bytes, Crc32c, Filter, RegistryPackBits, Sharding, compose_transposes
from .dtypes import SwapField
from .spec import ChainSpec, ShardSpec

__all__ = ["LoweredChain", "LoweredIndex", "lower"]

# Limits of the native chain (sc_common.h, sc_chain.h). They are not limits of the format, so a spec beyond them
# raises UnsupportedError and zarr may handle it.
MAX_NDIM = 32
MAX_ITEMSIZE = 1 << 20
MAX_OPS = 8

# Floats whose NaNs the engine recognises.
_FLOATS = ("float16", "float32", "float64")


class LoweredIndex(TypedDict):
    """Layout of an index, ``struct sc_index_layout``."""

    at_start: bool
    big_endian: bool
    n_checksums: int
    perm: tuple[int, ...] | None


class LoweredChain(TypedDict):
    """Arguments of the native chain, ``struct sc_chain``.

    ``shape`` is the logical shape of the chunk that the chain encodes. The shape of ``inner`` follows the *stored*
    axes of the outer chain. ``ops`` are in the order of encoding.
    """

    shape: tuple[int, ...]
    itemsize: int
    swap: tuple[SwapField, ...]
    perm: tuple[int, ...]
    fill: bytes
    nan: NotRequired[str]
    ops: tuple[tuple[str, dict[str, Any]], ...]
    inner: LoweredChain | None
    index: LoweredIndex | None


def lower(spec: ChainSpec | ShardSpec, *, native_order: bool = True, any_nan: bool = False) -> LoweredChain:
    """Convert a spec to the keyword arguments of the native chain.

    Parameters
    ----------
    spec : ChainSpec or ShardSpec
    native_order : bool
        True if the arrays that the chain reads and fills are in native byte order. If False, they are in the
        opposite order, and the chain swaps exactly the elements that it otherwise would not swap.
    any_nan : bool
        If the fill value of floats is NaN, a chunk of NaNs with any payload equals the fill value.

    Returns
    -------
    LoweredChain

    Raises
    ------
    UnsupportedError
        The spec exceeds a limit of the native engine: 32 axes, elements of 1 MiB, or 8 bytes -> bytes codecs in
        one chain. The format has no such limits.
    """
    chain = spec.chain if isinstance(spec, ShardSpec) else spec
    _check_limit(chain.ndim, MAX_NDIM, "axes")
    _check_limit(chain.dtype.itemsize, MAX_ITEMSIZE, "bytes in an element")
    operations = _operations(chain)
    _check_limit(len(operations), MAX_OPS, "filters and bytes -> bytes codecs in a chain")
    inner = chain.inner
    lowered = LoweredChain(
        shape=chain.shape,
        itemsize=chain.dtype.itemsize,
        swap=_lower_swap(chain, native_order),
        perm=chain.perm,
        fill=chain.fill if native_order else _swapped(chain.fill, chain.swap),
        ops=operations,
        inner=None if inner is None else lower(inner, native_order=native_order, any_nan=any_nan),
        index=None if chain.sharding is None else _lower_index(chain.sharding),
    )
    if any_nan and (order := _nan_order(chain)) is not None:
        lowered["nan"] = order
    return lowered


def _filters(chain: ChainSpec) -> list[Filter]:
    return [codec for codec in chain.codecs if isinstance(codec, Filter)]


def _operations(chain: ChainSpec) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return what the engine does to elements and to bytes; filters store elements in native order, so another one is a step."""
    filters, dtype = _filters(chain), chain.dtype
    for codec in filters:
        _, dtype = codec.output(chain.shape, dtype)
    operations = [codec.native() for codec in filters]
    serializer = chain.serializer
    if isinstance(serializer, RegistryPackBits):
        operations.append(serializer.native())
    elif filters and isinstance(serializer, Bytes) and serializer.endian not in (None, sys.byteorder):
        operations.append(("byteswap", {"typesize": dtype.itemsize}))
    return (*operations, *(codec.native() for codec in chain.bytes_codecs))


def _check_limit(value: int, limit: int, what: str) -> None:
    if value > limit:
        message = f"expected at most {limit} {what} (limit of the native engine), got {value}"
        raise UnsupportedError(message, actual=value, limit=limit)


def _nan_order(chain: ChainSpec) -> str | None:
    """Return the byte order of stored floats if the fill value is NaN; None otherwise."""
    serializer = chain.serializer
    if isinstance(serializer, Sharding) or chain.dtype.name not in _FLOATS or not np.isnan(chain.fill_value):
        return None
    if isinstance(serializer, RegistryPackBits) or _filters(chain):
        return sys.byteorder
    return serializer.endian or sys.byteorder


def _lower_swap(chain: ChainSpec, native_order: bool) -> tuple[SwapField, ...]:
    """Return the runs that the engine reverses; only a leaf has them, because a shard delegates to its inner chunks."""
    serializer = chain.serializer
    if isinstance(serializer, RegistryPackBits) or _filters(chain):
        return () if native_order else chain.swap
    if isinstance(serializer, Sharding) or serializer.endian is None:
        return ()
    return () if (serializer.endian == sys.byteorder) == native_order else chain.swap


def _swapped(element: bytes, fields: tuple[SwapField, ...]) -> bytes:
    """Return one element in the opposite byte order."""
    result = bytearray(element)
    for offset, unit, count in fields:
        for start in range(offset, offset + unit * count, unit):
            result[start : start + unit] = result[start : start + unit][::-1]
    return bytes(result)


def _lower_index(sharding: Sharding) -> LoweredIndex:
    rank = len(sharding.chunk_shape) + 1
    perm = compose_transposes(sharding.index_codecs, rank)
    return LoweredIndex(
        at_start=sharding.index_location == "start",
        big_endian=Bytes("big") in sharding.index_codecs,
        n_checksums=sum(isinstance(codec, Crc32c) for codec in sharding.index_codecs),
        perm=None if perm == tuple(range(rank)) else perm,
    )
