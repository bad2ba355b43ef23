# compiled_chains.py - the chain of codecs of a spec, as the engine has it
# SPDX-License-Identifier: MIT
"""`compiled`: the native chain of a spec, made once for each byte order of the caller's memory; `ClippedCodecs` has one for each shape.

The metadata of codecs (`format`) are imported when the first chain is compiled, because every process that opens an array with
zarr imports this module.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import ShardError, UnsupportedError
from .records import PlanItem
from .regions import as_void, whole

if TYPE_CHECKING:
    from .._native import Chain
    from ..format.spec import ChainSpec, ShardSpec

__all__ = ["byte_map", "compiled", "memory_order", "output_array", "staged_shard", "staged_whole"]

Array = np.ndarray[Any, Any]


@functools.lru_cache(maxsize=256)
def compiled(spec: ChainSpec, native_order: bool = True, any_nan: bool = False) -> Chain:
    """Return the native chain of a spec.

    Parameters
    ----------
    spec : ChainSpec
        Codecs, shape and data type of the object.
    native_order : bool
        True if the elements in memory have the byte order of this machine, False if all their fields have the other
        one. Staged chains support both in any case.
    any_nan : bool
        A chunk of floats with any NaN in each element equals a fill value that is NaN, as in zarr. Otherwise bits are compared.

    Returns
    -------
    Chain

    Raises
    ------
    UnsupportedError
        The spec exceeds a limit of the engine.
    """
    from ..format.chain import lower

    if spec.is_clipped:
        if spec.bytes_codecs:
            raise UnsupportedError(
                "expected a shard with clipped inner chunks to have no codecs after sharding_indexed; "
                "choose a chunk_shape that divides the shard, or remove these codecs"
            )
        assert spec.inner is not None
        return staged_shard(spec, ClippedCodecs(spec.inner))
    chain: Chain = native.load().Chain(**lower(spec, native_order=native_order, any_nan=any_nan))
    return chain


def staged_shard(spec: ChainSpec | ShardSpec, stage: Any) -> Chain:
    """Return a chain that finds inner chunks natively and encodes them with `stage`; it uses only the geometry of the spec."""
    from ..format.chain import lower

    lowered: dict[str, Any] = {**lower(spec)}
    lowered["inner"] = {**lowered["inner"], "opaque": True}
    nbytes = lowered["itemsize"] if stage is None else stage.fill.dtype.itemsize
    if nbytes != lowered["itemsize"]:  # the spec of texts has one byte in place of each element
        element = {"itemsize": nbytes, "fill": bytes(nbytes)}
        lowered = {**lowered, **element, "inner": {**lowered["inner"], **element}}
    chain: Chain = native.load().Chain(**lowered, stage=stage)
    return chain


def staged_whole(shape: tuple[int, ...], stage: Any) -> Chain:
    """Return a chain for objects that are one chunk, which Python codecs encode and decode.

    `stage` holds these codecs; see `staged.chunks.ChunkCodecs`. The native chain knows only shape and element size; the
    fill value is `stage.fill`.
    """
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
    """Return a chain for a shard whose inner chunks are arbitrary bytes; it uses only the index of the spec."""
    return staged_shard(spec, None)


def output_array(
    out: np.ndarray[Any, Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[np.ndarray[Any, Any], bool]:
    """Return the array to read into.

    Parameters
    ----------
    out : ndarray or None
        The argument of the caller. None stands for a new array in C order.
    shape : tuple of int
        Expected shape.
    dtype : dtype
        Expected data type; `out` may have the other byte order.

    Returns
    -------
    out : ndarray
        The array.
    native_order : bool
        True if its elements have the byte order of `dtype`.

    Raises
    ------
    TypeError
        numpy cannot use the memory of `out`, or it has another dtype.
    ValueError
        `out` has another shape, or it is read-only.
    """
    if out is None:
        return np.empty(shape, dtype), True
    if not isinstance(out, np.ndarray):
        out = _memory_of(out)
    if out.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {out.shape}")
    native_order = memory_order(out.dtype, dtype)
    if native_order is None:
        raise TypeError(f"out: expected dtype {dtype}, got {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out: expected a writable array, got a read-only one")
    return out, native_order


def _memory_of(out: Any) -> np.ndarray[Any, Any]:
    """Return the memory of an object with a buffer, or of a tensor of another package, as an array; TypeError for other objects."""
    if hasattr(
        out, "__dlpack__"
    ):  # PyTorch has no buffers, and numpy takes memory of `__dlpack__` for read-only
        array = np.asarray(out)
        if not array.size or _address(array) == _address(np.from_dlpack(out)):
            return array
    try:
        return np.asarray(memoryview(out))
    except (TypeError, ValueError):
        raise TypeError(
            f"out: expected an array, or another object whose memory numpy can use, got {type(out).__name__}"
        ) from None


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def memory_order(array: np.dtype[Any], spec: np.dtype[Any]) -> bool | None:
    """Return True if the dtype of an array is that of the spec, False if it has the other byte order, None otherwise."""
    if array == spec:
        return True
    if spec.kind not in "OT" and array == spec.newbyteorder("S"):
        return False
    return None


class ClippedCodecs:
    """Native codecs for the inner chunks of a shard whose `chunk_shape` does not divide its shape; see `staged.read.ChunkCodecs`.

    Draft 1.1 of the codec clips the last inner chunks along an axis to the shard. A native chain has one shape, so such a shard
    is staged: the engine finds the inner chunks, and each is encoded with the chain of its shape. `spec` is that of an inner
    chunk which is not clipped.
    """

    one_by_one = True

    def __init__(self, spec: ChainSpec) -> None:
        self._spec = spec
        self._chains: dict[tuple[int, ...], Chain] = {}  # at most two sizes along each axis
        self.fill: Array = np.frombuffer(spec.fill, dtype=spec.dtype).reshape(())
        self.input_dtype: Any = self.fill.dtype

    def _chain(self, shape: tuple[int, ...]) -> Chain:
        chain = self._chains.get(shape)
        if chain is None:
            from ..format.chain import lower

            chain = native.load().Chain(**lower(self._spec.with_shape(shape)))
            self._chains[shape] = chain
        return chain

    def decode(self, chunks: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        """Decode buffers to arrays of these shapes."""
        return [self._decode_one(chunk, shape) for chunk, shape in zip(chunks, shapes, strict=True)]

    def _decode_one(self, chunk: Any, shape: tuple[int, ...]) -> Array:
        out = np.empty(shape, dtype=self._spec.dtype)
        try:
            native.load().read([(self._chain(shape), chunk, whole(shape))], as_void(out), range(out.ndim))
        except ShardError as error:
            error.shard = None  # the item of this small plan; the caller adds its own item
            raise
        return out

    def encode(self, chunks: Sequence[Array], write_empty: bool) -> list[Any]:
        """Encode arrays, each with the chain of its shape."""
        return [self._encode_one(chunk) for chunk in chunks]

    def _encode_one(self, chunk: Array) -> Any:
        plan = [PlanItem(self._chain(chunk.shape), None, whole(chunk.shape))]
        (new,), *_ = native.load().write(plan, as_void(chunk), tuple(range(chunk.ndim)), write_empty=True)
        return new

    def is_fill(self, chunk: Array) -> bool:
        """Return True if all elements of a chunk equal the fill value bit by bit."""
        return bool(native.load().all_equal(np.ascontiguousarray(as_void(chunk)), self._spec.fill))
