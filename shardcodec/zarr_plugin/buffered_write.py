# buffered_write.py - a small write through zarr in a block of group_writes
# SPDX-License-Identifier: MIT
"""`SmallWriter`: the fast path of a small write in a block of `group_writes`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..access.buffer.buffered import LayoutGuard, Target
from ..access.buffer.process_buffer import ProcessBuffer
from ..access.read import INLINE_NBYTES
from ..compat import StorePath, as_numpy
from ..options import Options
from ..storage.store import Store
from .array_codecs import MAX_CHAINS, Kind

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["SmallWriter"]


class SmallWriter:
    """Fast path for an assignment of one whole inner chunk in a block of `group_writes`.

    `write` returns False for any other assignment, and for the first one to each object; the caller then uses
    `ProcessBuffer.write`. `base` is the zarr store of the array, `store` our `Store` of it.
    """

    def __init__(self, kind: Kind, base: Any, store: Store) -> None:
        self._kind = kind
        self._base = base
        self._store = store
        self._chain = functools.lru_cache(MAX_CHAINS)(self._usual_chain)

    def write(
        self, item: Any, value: Any, options: Options, buffer: ProcessBuffer, guard: LayoutGuard | None
    ) -> bool:
        """Buffer the only item of a batch; return False if nothing was buffered."""
        target, spec, chunk_selection, array_selection, _ = item
        array = as_numpy(value)
        if array is None or type(target) is not StorePath or target.store is not self._base:
            return False
        chain = self._chain(spec.shape, array.dtype)
        if chain is None or self._base.read_only:
            return False
        place = Target(self._store, target.path, chain, options, bool(spec.config.write_empty_chunks), guard)
        return buffer.write_slices(place, chunk_selection, array_selection, array)

    def _usual_chain(self, shape: tuple[int, ...], dtype: Any) -> Chain | None:
        """Return the chain of chunks of this shape; None if their inner chunks are large or cannot be written alone."""
        chain = self._kind.chain_for(shape, dtype)
        if chain is None:
            return None
        usual = chain.is_shard and chain.stage is None and chain.n_chunks > 1
        return chain if usual and chain.inner.nbytes + chain.index_nbytes <= INLINE_NBYTES else None
