# clipped_chunks.py - codecs for inner chunks that are clipped to their shard
# SPDX-License-Identifier: MIT
"""Codecs for the inner chunks of a shard whose `chunk_shape` does not divide its shape.

Draft 1.1 of the codec clips the last inner chunks along an axis to the shard. A native chain has one shape, so such a
shard is staged: the engine finds the inner chunks, and each is encoded with the native chain of its own shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import ShardError
from ..format.chain import lower
from ..format.spec import ChainSpec
from .records import PlanItem
from .regions import as_void, whole

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["ClippedCodecs"]

Array = np.ndarray[Any, Any]


class ClippedCodecs:
    """Native codecs for chunks of several shapes; see `access.staged.read.ChunkCodecs`.

    Parameters
    ----------
    spec : ChainSpec
        Codecs, shape and data type of an inner chunk that is not clipped.
    """

    one_by_one = True

    def __init__(self, spec: ChainSpec) -> None:
        self._spec = spec
        self._chains: dict[tuple[int, ...], Chain] = {}  # at most two sizes along each axis
        self.fill: Array = np.frombuffer(spec.fill, dtype=spec.dtype).reshape(())
        self.input_dtype = self.fill.dtype

    def _chain(self, shape: tuple[int, ...]) -> Chain:
        chain = self._chains.get(shape)
        if chain is None:
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
