# chunk_codec.py - a chain of codecs, ready to run
# SPDX-License-Identifier: MIT
"""Compiled chains: one native object per spec and byte order of the caller's memory."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import UnsupportedError
from ..format.chain import lower
from ..format.chain_spec import ChainSpec
from ..format.spec import ShardSpec
from .clipped_chunks import ClippedCodecs

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["byte_map", "compiled", "destination", "memory_order", "staged_shard", "staged_whole"]


@functools.lru_cache(maxsize=256)
def compiled(spec: ChainSpec, native_order: bool = True) -> Chain:
    """Return the native chain of a spec.

    Parameters
    ----------
    spec : ChainSpec
    native_order : bool
        Whether the arrays it works on are in this machine's byte order; if not, in the other one, all fields.
        Staged chains take both.

    Raises
    ------
    UnsupportedError
        Beyond a limit of the engine.
    """
    if spec.is_clipped:
        if spec.bytes_codecs:
            raise UnsupportedError("clipped inner chunks and codecs that follow the sharding")
        assert spec.inner is not None
        return staged_shard(spec, ClippedCodecs(spec.inner))
    chain: Chain = native.load().Chain(**lower(spec, native_order=native_order))
    return chain


def staged_shard(spec: ChainSpec | ShardSpec, stage: Any) -> Chain:
    """Return a chain that finds inner chunks, which are encoded by `stage`; of the spec only the geometry counts."""
    lowered: dict[str, Any] = {**lower(spec)}
    lowered["inner"] = {**lowered["inner"], "opaque": True}
    chain: Chain = native.load().Chain(**lowered, stage=stage)
    return chain


def staged_whole(shape: tuple[int, ...], stage: Any) -> Chain:
    """Return a chain for objects that are one chunk, encoded by `stage`."""
    itemsize = stage.fill.dtype.itemsize
    chain: Chain = native.load().Chain(
        shape=shape,
        itemsize=itemsize,
        swap=(),
        perm=tuple(range(len(shape))),
        fill=bytes(itemsize),
        ops=(),
        opaque=True,
        stage=stage,
    )
    return chain


@functools.lru_cache(maxsize=256)
def byte_map(spec: ShardSpec) -> Chain:
    """Return a chain for a shard whose inner chunks are bytes of any size and meaning; of the spec only the index counts."""
    return staged_shard(spec, None)


def destination(
    out: np.ndarray[Any, Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[np.ndarray[Any, Any], bool]:
    """Return the array to read into, and whether its elements are in the byte order of the dtype.

    Parameters
    ----------
    out : ndarray or None
        As the caller gave it; None stands for a new array in C order.

    Raises
    ------
    TypeError
        `out` is no numpy array, or one of another dtype.
    ValueError
        `out` has another shape, or is read-only.
    """
    if out is None:
        return np.empty(shape, dtype), True
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: expected a numpy array, got {type(out).__name__}")
    if out.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {out.shape}")
    native_order = memory_order(out.dtype, dtype)
    if native_order is None:
        raise TypeError(f"out: expected dtype {dtype}, got {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out: expected a writable array, got a read-only one")
    return out, native_order


def memory_order(array: np.dtype[Any], spec: np.dtype[Any]) -> bool | None:
    """Tell whether an array's elements are those of the spec in native order, in the other one (False), or neither."""
    if array == spec:
        return True
    if spec.kind not in "OT" and array == spec.newbyteorder("S"):
        return False
    return None
