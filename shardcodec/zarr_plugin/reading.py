# reading.py - a request for elements, carried out
# SPDX-License-Identifier: MIT
"""Reading through zarr's stores.

Files and buffers of this process go to the engine as one call. From any other store the bytes are fetched with the
store's own asynchronous calls, several at a time, and each answer is decoded when it arrives, while others are on
their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import native
from ..access.boxes import touched
from ..access.reader import ReadItem, explain, read
from ..errors import ShardError, ShardFormatError
from ..options import Options
from .aio import all_of, to_its_end
from .compat import RangeByteRequest, SuffixByteRequest, config
from .requests import INLINE_NBYTES, Part, Request, decoded_nbytes
from .stores import is_local, is_memory, local_path, stored_bytes

__all__ = ["run"]

# A remote store: what zarr takes for its own ranged reads.
MAX_GAP_NBYTES = 1 << 20
MAX_RANGE_NBYTES = 16 << 20

# Where at least this share of a shard's inner chunks is wanted, one request for all of it is less than index and ranges.
WHOLE_SHARE = 0.75

# No object of a file system is larger; bounds a range while the size of a remote object is not known.
_UNKNOWN_NBYTES = 2**63 - 1


async def run(request: Request, options: Options) -> set[int]:
    """Fill the request's array; return the positions of objects that do not exist."""
    if not request.parts:
        return set()
    if is_local(request.store):
        sources = [local_path(part.target) for part in request.parts]
    elif is_memory(request.store):
        sources = [stored_bytes(part.target, part.spec.prototype) for part in request.parts]
    else:
        return await _run_remote(request, options)
    items = [
        ReadItem(part.chain, source, part.box, part.target.path)
        for part, source in zip(request.parts, sources, strict=True)
    ]
    if request.is_small:
        missing = read(items, request.array, request.axes, options)
    else:
        missing = await to_its_end(asyncio.to_thread(read, items, request.array, request.axes, options))
    return {request.positions[i] for i in missing}


async def _run_remote(request: Request, options: Options) -> set[int]:
    limit = asyncio.Semaphore(max(1, int(config.get("async.concurrency"))))
    missing = await all_of(_Fetch(request, part, options, limit).run() for part in request.parts)
    return {position for position, is_missing in zip(request.positions, missing, strict=True) if is_missing}


class _Fetch:
    """One object of a store that is reached through its asynchronous calls."""

    def __init__(self, request: Request, part: Part, options: Options, limit: asyncio.Semaphore) -> None:
        self.request = request
        self.part = part
        self.options = options
        self.limit = limit

    async def run(self) -> bool:
        """Fill the part's box; return whether the object does not exist."""
        if self.wants_most():
            data = await self.get(None)
            await self.decode(data, self.part.chain)
            return data is None
        entries = await self.index()
        if entries is None:
            await self.decode(None, self.part.chain)
            return True
        ranges = native.load().plan_ranges(
            self.part.chain,
            entries,
            *self.part.box[:3],
            max_gap_nbytes=MAX_GAP_NBYTES,
            max_nbytes=MAX_RANGE_NBYTES,
        )
        await all_of(self.decode_range(entries, wanted) for wanted in (None, *ranges))
        return False

    def wants_most(self) -> bool:
        chain = self.part.chain
        if not chain.is_shard:
            return True
        mask = touched(self.part.box, chain.perm, chain.inner.shape, chain.grid_shape)
        return bool(np.count_nonzero(mask) >= WHOLE_SHARE * mask.size)

    async def get(self, byte_range: Any) -> Any:
        """Return bytes of the object as an array; None when it does not exist."""
        async with self.limit:
            target = self.part.target
            buffer = await target.get(prototype=self.part.spec.prototype, byte_range=byte_range)
        return None if buffer is None else buffer.as_numpy_array()

    async def index(self) -> np.ndarray[Any, Any] | None:
        """Fetch, decode and check the index."""
        chain = self.part.chain
        n = chain.index_nbytes
        stored = await self.get(RangeByteRequest(0, n) if chain.index_at_start else SuffixByteRequest(n))
        if stored is None:
            return None
        entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        index_offset = 0 if chain.index_at_start else _UNKNOWN_NBYTES - n
        engine = native.load()
        try:
            engine.load_index(chain, stored, entries)
            engine.index_check(entries, _UNKNOWN_NBYTES, index_offset, n)
        except ShardError as error:
            raise self.explained(error) from None
        return entries

    async def decode_range(self, entries: np.ndarray[Any, Any], wanted: tuple[int, int] | None) -> None:
        """Fetch a range and decode the inner chunks in it; without one, fill those that are absent."""
        if wanted is None:
            data, first = None, 0
        else:
            first, nbytes = wanted
            data = await self.get(RangeByteRequest(first, first + nbytes))
            if data is None or len(data) < nbytes:
                got = "nothing" if data is None else f"{len(data)} bytes"
                raise ShardFormatError(
                    f"shard {self.part.target.path!r}: index refers to {nbytes} bytes at offset {first}, "
                    f"but the store has {got} there",
                    shard=self.part.target.path,
                    offset=first,
                    nbytes=nbytes,
                    limit=None if data is None else first + len(data),
                )
        fetched = native.load().Fetched(self.part.chain, entries, data, first, fill_absent=wanted is None)
        await self.decode(fetched, self.part.chain)

    async def decode(self, source: Any, chain: Any) -> None:
        part, request = self.part, self.request
        items = [ReadItem(chain, source, part.box, part.target.path)]
        if decoded_nbytes(chain, part.box) <= INLINE_NBYTES:
            read(items, request.array, request.axes, self.options)
        else:
            await to_its_end(asyncio.to_thread(read, items, request.array, request.axes, self.options))

    def explained(self, error: ShardError) -> ShardError:
        error.shard = 0
        items: Sequence[Any] = [ReadItem(self.part.chain, None, self.part.box, self.part.target.path)]
        return explain(error, items)
