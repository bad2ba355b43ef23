# clipped_chunks.py - inner chunks that end where their shard does
# SPDX-License-Identifier: MIT
"""Clipped inner chunks: what encodes those of a shard that its `chunk_shape` does not divide.

Draft 1.1 of the codec lets the last inner chunks along an axis be smaller. The engine's chains have one shape each, so
such a shard is staged work: the engine finds inner chunks, and each goes through the native chain of its own shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import ShardError
from ..format.chain import lower
from ..format.chain_spec import ChainSpec
from .regions import as_void, whole

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["ClippedCodecs"]

Array = np.ndarray[Any, Any]


class ClippedCodecs:
    """Native codecs for chunks of several shapes; see `access.staged.chunks.ChunkCodecs`.

    Parameters
    ----------
    spec : ChainSpec
        Of an inner chunk that is not clipped.
    """

    one_by_one = True

    def __init__(self, spec: ChainSpec) -> None:
        self._spec = spec
        self._chains: dict[tuple[int, ...], Chain] = {}  # at most two sizes along each axis
        self.fill: Array = np.frombuffer(spec.fill, dtype=spec.dtype).reshape(())

    def _chain(self, shape: tuple[int, ...]) -> Chain:
        chain = self._chains.get(shape)
        if chain is None:
            chain = native.load().Chain(**lower(self._spec.with_shape(shape)))
            self._chains[shape] = chain
        return chain

    def decode(self, chunks: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
        """Decode buffers to arrays of these shapes."""
        return [self._decoded(chunk, shape) for chunk, shape in zip(chunks, shapes, strict=True)]

    def _decoded(self, chunk: Any, shape: tuple[int, ...]) -> Array:
        out = np.empty(shape, dtype=self._spec.dtype)
        try:
            native.load().read([(self._chain(shape), chunk, whole(shape))], as_void(out), range(out.ndim))
        except ShardError as error:
            error.shard = None  # a number in this plan; the caller's place is the one that counts
            raise
        return out

    def encode(self, chunks: Sequence[Array], write_empty: bool) -> list[Any]:
        """Encode arrays, each with the chain of its shape."""
        return [self._encoded(chunk) for chunk in chunks]

    def _encoded(self, chunk: Array) -> Any:
        plan = [(self._chain(chunk.shape), None, whole(chunk.shape), None)]
        results, *_ = native.load().write(plan, as_void(chunk), tuple(range(chunk.ndim)), write_empty=True)
        return results[0]

    def is_fill(self, chunk: Array) -> bool:
        """Tell whether a chunk is nothing but fill value, bit by bit."""
        return bool(native.load().all_equal(np.ascontiguousarray(as_void(chunk)), self._spec.fill))
