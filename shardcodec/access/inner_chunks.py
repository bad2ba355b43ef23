# inner_chunks.py - compiled chains, and inner chunks without a shard
# SPDX-License-Identifier: MIT
"""Compiled chains; positions of inner chunks; encoding and decoding of many inner chunks in one call, without a shard.

A chain is one native object for each spec and byte order of the caller's memory; `ClippedCodecs` has one for each shape. The
metadata of codecs (`format`) are imported when the first chain is compiled, because every process that opens an array with zarr
imports this module.

Coordinates count inner chunks along the *stored* axes of the shard, as its index does. A position is the same as one
number, in C order. The first axis of an array of chunks counts the chunks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..arguments import show
from ..errors import ShardError, UnsupportedError
from ..options import Options
from .records import PlanItem
from .regions import Box, as_void, whole

if TYPE_CHECKING:
    from .._native import Chain
    from ..format.spec import ChainSpec, ShardSpec

__all__ = [
    "as_array",
    "as_chunks",
    "as_coords",
    "as_elements",
    "batches",
    "byte_map",
    "compiled",
    "coordinates",
    "decode_chunks",
    "encode_chunks",
    "memory_order",
    "output_array",
    "position_array",
    "positions",
    "sort_unique",
    "staged_shard",
    "staged_whole",
]

# Decoded bytes of one call of the encoder, because the encoded bytes are held in memory.
BATCH_NBYTES = 64 << 20
# Up to this number of coordinates a loop in Python is faster than numpy.
FEW_CHUNKS = 8

Ints = tuple[int, ...]
Array = np.ndarray[Any, Any]


# ---------------------------------------------------------------- compiled chains


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
        `out` is not a numpy array, or it has another dtype.
    ValueError
        `out` has another shape, or it is read-only.
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
    """Return True if the dtype of an array is that of the spec, False if it has the other byte order, None otherwise."""
    if array == spec:
        return True
    if spec.kind not in "OT" and array == spec.newbyteorder("S"):
        return False
    return None


# ---------------------------------------------------------------- inner chunks that are clipped to their shard


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


# ---------------------------------------------------------------- inner chunks without a shard


def positions(coords: Any, grid_shape: Ints, name: str = "coords") -> list[int]:
    """Return the positions in the index of inner chunks; see `position_array`."""
    few = _few_positions(coords, grid_shape)
    return position_array(coords, grid_shape, name).tolist() if few is None else few  # type: ignore[no-any-return]


def as_coords(coords: Any) -> Ints:
    """Return the coordinates of one inner chunk as a tuple; `positions` checks the numbers."""
    if isinstance(coords, str | bytes | Mapping) or not isinstance(coords, Iterable):
        raise TypeError(f"coords: expected a tuple of whole numbers, got {show(coords)}")
    return tuple(coords)


def position_array(coords: Any, grid_shape: Ints, name: str = "coords") -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the positions in the index of inner chunks, intp, shape (n,), from their grid coordinates.

    IndexError: coordinates have another rank than the grid, or lie outside it. `name` is that of the argument, for errors.
    """
    if isinstance(coords, str | bytes | Mapping) or not isinstance(coords, Iterable):
        raise TypeError(f"{name}: expected a sequence of tuples of whole numbers, got {show(coords)}")
    try:
        given = np.asarray(coords if isinstance(coords, np.ndarray) else list(coords))
    except ValueError:
        raise IndexError(f"{name}: expected coordinates of one rank, got {show(coords)}") from None
    if not len(given):
        return np.empty(0, dtype=np.intp)
    if given.ndim != 2 or given.shape[1] != len(grid_shape):
        raise IndexError(f"{name}: expected shape (n, {len(grid_shape)}), got {given.shape}")
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {given.dtype}")
    extent = np.asarray(grid_shape, dtype=np.int64)
    bad = np.flatnonzero(np.any((given < 0) | (given >= extent), axis=1))
    if len(bad):
        at = tuple(int(i) for i in given[bad[0]])
        raise IndexError(f"inner chunk {at} is outside of the grid of shape {tuple(grid_shape)}")
    if not grid_shape:
        return np.zeros(len(given), dtype=np.intp)
    return np.asarray(np.ravel_multi_index(tuple(given.astype(np.int64).T), grid_shape), dtype=np.intp)


def sort_unique(where: np.ndarray[Any, np.dtype[np.intp]]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return positions in ascending order, each once."""
    where = np.sort(where)  # np.unique may hash them, which takes forty times as long
    return where[np.insert(where[1:] != where[:-1], 0, True)] if len(where) else where


def _few_positions(coords: Any, grid_shape: Ints) -> list[int] | None:
    """Return the positions of a few valid tuples of int without numpy; None for all other coordinates."""
    if type(coords) not in (list, tuple) or len(coords) > FEW_CHUNKS:
        return None
    positions = []
    for at in coords:
        if type(at) is not tuple or len(at) != len(grid_shape):
            return None
        position = 0
        for i, extent in zip(at, grid_shape, strict=True):
            if type(i) is not int or not 0 <= i < extent:
                return None
            position = position * extent + i
        positions.append(position)
    return positions


def coordinates(position: int, grid_shape: Ints) -> Ints:
    """Return the grid coordinates of a position in the index."""
    return tuple(int(i) for i in np.unravel_index(position, grid_shape)) if grid_shape else ()


def element_coordinates(element: int | None, chain: Chain) -> Ints | None:
    """Return an element by axis of the innermost chunk, from its position in stored order; None if it is unknown."""
    leaf: Any = chain
    while leaf.inner is not None:
        leaf = leaf.inner
    if element is None or len(leaf.shape) < 2 or element >= math.prod(leaf.shape):
        return None
    stored = coordinates(element, tuple(leaf.shape[axis] for axis in leaf.perm))
    return tuple(stored[leaf.perm.index(axis)] for axis in range(len(stored)))


def batches(n: int, chunk_nbytes: int) -> Iterator[slice]:
    """Yield slices of n chunks of at most `BATCH_NBYTES` each, or of one chunk if it is larger."""
    step = max(1, BATCH_NBYTES // max(1, chunk_nbytes))
    for first in range(0, n, step):
        yield slice(first, min(n, first + step))


def encode_chunks(
    chain: Chain,
    chunks: np.ndarray[Any, Any],
    options: Options,
    *,
    shard: str,
    where: Sequence[int],
    grid_shape: Ints,
    write_empty: bool = False,
) -> list[Any]:
    """Encode inner chunks, shape (n, *chunk_shape); None for one that equals the fill value, unless `write_empty`.

    shard, where, grid_shape: name of the shard, positions of the inner chunks and shape of the grid, for errors only.
    """
    engine = native.load()
    start, count, _, _ = whole(chain.shape)
    results: list[Any] = []
    for first, base, places in _joined(chunks):
        items = [PlanItem(chain, None, Box(start, count, None, place)) for place in places]
        try:
            new, *_ = engine.write(
                items,
                as_void(base),
                tuple(range(len(chain.shape))),
                order=options.order,
                write_empty=write_empty,
                n_threads=options.threads,
            )
        except ShardError as error:
            if not isinstance(error.shard, int):
                raise
            error.entry, error.shard = where[first + error.shard], None
            context = {
                "chunk_coords": coordinates(error.entry, grid_shape),
                "element_coords": element_coordinates(error.element, chain),
            }
            raise error.with_context(shard=shard, **context) from None
        results += new
    return results


def decode_chunks(chain: Chain, encoded: Sequence[Any], out: np.ndarray[Any, Any], options: Options) -> None:
    """Decode inner chunks into `out`, shape (n, *chunk_shape); None stands for the fill value.

    In an error about an inner chunk, ``.shard`` is its number in `encoded`.
    """
    engine = native.load()
    axes = tuple(range(len(chain.shape)))
    for first, base, places in _joined(out):
        sources = encoded[first : first + len(places)]
        items = [
            (chain, source, whole(chain.shape)._replace(at=place))
            for source, place in zip(sources, places, strict=True)
        ]
        try:
            engine.read(items, as_void(base), axes, n_threads=options.threads)
        except ShardError as error:
            if isinstance(error.shard, int):
                error.shard += first
            raise


def _joined(chunks: np.ndarray[Any, Any]) -> Iterator[tuple[int, np.ndarray[Any, Any], list[Ints]]]:
    """Yield views in which n chunks lie side by side along their first axis; one view per chunk if the strides need it.

    One call of the engine works on *one* array of the rank of a chunk. Yields the index of the first chunk, the view, and
    the first element of each chunk in it.
    """
    n, *shape = chunks.shape
    zeros = (0,) * (len(shape) - 1)
    if shape and n and (n == 1 or chunks.strides[0] == shape[0] * chunks.strides[1]):
        joined = np.lib.stride_tricks.as_strided(chunks, (n * shape[0], *shape[1:]), chunks.strides[1:])
        yield 0, joined, [(i * shape[0], *zeros) for i in range(n)]
        return
    for i in range(n):
        yield i, chunks[i, ...], [(0,) * len(shape)]


def as_array(values: Any, name: str) -> np.ndarray[Any, Any]:
    """Return what a caller gave as an array of numpy."""
    try:
        return np.asarray(values)
    except ValueError:
        text = f"{name}: expected an array, got {show(values)}, whose parts have different shapes"
        raise ValueError(text) from None


def as_elements(values: Any, dtype: np.dtype[Any], name: str) -> tuple[np.ndarray[Any, Any], bool]:
    """Return elements of the caller as an array, and True if they have the byte order of `dtype`; see `as_chunks`."""
    array = as_array(values, name)
    native_order = memory_order(array.dtype, dtype)
    if native_order is not None:
        return array, native_order
    if not np.can_cast(array.dtype, dtype, "safe"):
        raise TypeError(f"{name}: expected elements that can be cast safely to {dtype}, got {array.dtype}")
    return array.astype(dtype), True


def as_chunks(values: Any, dtype: np.dtype[Any], shape: Ints, n: int) -> tuple[np.ndarray[Any, Any], bool]:
    """Return the elements that the caller wants to store, checked and cast, shape (n, *shape).

    The second result is False if they have the other byte order than `dtype`. ValueError: another shape. TypeError: the cast is
    not safe.
    """
    array, native_order = as_elements(values, dtype, "chunks")
    if array.shape != (n, *shape):
        raise ValueError(f"chunks: expected shape {(n, *shape)}, got {array.shape}")
    return array, native_order
