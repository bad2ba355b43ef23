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
from ..access.boxes import n_touched, touched
from ..access.placement import ABSENT
from ..access.reader import ReadItem, explain, index_too_short, read
from ..errors import ShardError, ShardFormatError
from ..options import Options
from .aio import all_of, to_its_end
from .compat import RangeByteRequest, SuffixByteRequest, coalescing, config, get_ranges
from .requests import INLINE_NBYTES, Part, Request, decoded_nbytes
from .stores import is_local, is_memory, local_path, stored_bytes

__all__ = ["run"]

# Where at least this share of a shard's inner chunks is wanted, one request for all of it is less than index and ranges.
WHOLE_SHARE = 0.75

# An index of at most this size is asked for together with the last range; see `_Fetch.with_room_for_index`.
INDEX_ROOM_NBYTES = 64 << 10


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
    concurrency = max(1, int(config.get("async.concurrency")))
    limit = asyncio.Semaphore(concurrency)
    share = max(1, concurrency // len(request.parts))
    missing = await all_of(_Fetch(request, part, options, limit, share).run() for part in request.parts)
    return {position for position, is_missing in zip(request.positions, missing, strict=True) if is_missing}


class _Fetch:
    """One object of a store that is reached through its asynchronous calls.

    `limit` bounds the objects that are fetched at a time, `share` the ranges of one of them.
    """

    def __init__(
        self, request: Request, part: Part, options: Options, limit: asyncio.Semaphore, share: int
    ) -> None:
        self.request = request
        self.part = part
        self.options = options
        self.limit = limit
        self.share = share

    async def run(self) -> bool:
        """Fill the part's box; return whether the object does not exist."""
        async with self.limit:
            if self.wants_most():
                data = await self.get(None)
                await self.decode(data)
                return data is None
            entries = await self.index()
            if entries is None or not await self.fetch_ranges(entries):
                await self.decode(None)
                return True
        return False

    def wants_most(self) -> bool:
        chain = self.part.chain
        if not chain.is_shard:
            return True
        return bool(n_touched(self.part.box, chain) >= WHOLE_SHARE * chain.n_chunks)

    async def get(self, byte_range: Any) -> Any:
        """Return bytes of the object as an array; None when it does not exist."""
        buffer = await self.part.target.get(prototype=self.part.spec.prototype, byte_range=byte_range)
        return None if buffer is None else buffer.as_numpy_array()

    async def index(self) -> np.ndarray[Any, Any] | None:
        """Fetch and decode the index, its checksum checked."""
        chain = self.part.chain
        n = chain.index_nbytes
        stored = await self.get(RangeByteRequest(0, n) if chain.index_at_start else SuffixByteRequest(n))
        if stored is None:
            return None
        if len(stored) < n:  # before memory is taken for what the metadata promises
            raise index_too_short(self.part.target.path, len(stored), n)
        entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        try:
            native.load().load_index(chain, stored, entries)
        except ShardError as error:
            raise self.explained(error) from None
        return entries

    async def fetch_ranges(self, entries: np.ndarray[Any, Any]) -> bool:
        """Fetch what the box needs and decode it range by range; False when the object is gone meanwhile."""
        part = self.part
        engine = native.load()
        max_gap_nbytes, max_nbytes = coalescing(part.spec)
        try:
            ranges = engine.plan_ranges(
                part.chain,
                entries,
                *part.box[:3],
                max_gap_nbytes=max_gap_nbytes,
                max_nbytes=max_nbytes,
                allow_in_index=self.options.allow_in_index,
            )
        except ShardError as error:
            raise self.explained(error) from None
        await self.decode(engine.Fetched(part.chain, entries, None, 0, fill_absent=True))
        requests = self.with_room_for_index(ranges)
        try:
            async for i, buffer in get_ranges(part.target, requests, part.spec.prototype, self.share):
                data = self.checked(entries, buffer.as_numpy_array(), requests[i])
                if i < len(ranges):
                    offset, nbytes = ranges[i]
                    await self.decode(
                        engine.Fetched(part.chain, entries, data[:nbytes], offset, fill_absent=False)
                    )
        except FileNotFoundError:
            # gone since the index was read; or there, and without these bytes
            if await self.index() is None:
                return False
            raise self.too_short(entries, min(offset for offset, _ in requests)) from None
        return True

    def with_room_for_index(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Ask for so much more that an inner chunk which touches an index at the end does not pass unseen.

        The size of the object is not known, but behind the last inner chunk there must be room for the index. Where
        that is small, the last range is longer by it; else one more byte is asked for.
        """
        chain = self.part.chain
        if chain.index_at_start or not ranges or self.options.allow_in_index:
            return ranges
        offset, nbytes = ranges[-1]
        if chain.index_nbytes <= INDEX_ROOM_NBYTES:
            return [*ranges[:-1], (offset, nbytes + chain.index_nbytes)]
        return [*ranges, (offset + nbytes + chain.index_nbytes - 1, 1)]

    def checked(
        self, entries: np.ndarray[Any, Any], data: np.ndarray[Any, Any], request: tuple[int, int]
    ) -> np.ndarray[Any, Any]:
        """Refuse an answer that is not as long as what was asked for."""
        offset, nbytes = request
        if len(data) < nbytes:
            raise self.too_short(entries, offset + len(data))
        if len(data) > nbytes:
            key = self.part.target.path
            raise ShardFormatError(
                f"shard {key!r}: the store answers with {len(data)} bytes where it was asked for {nbytes} "
                f"at offset {offset}",
                shard=key,
                offset=offset,
                expected=nbytes,
                actual=len(data),
            )
        return data

    def too_short(self, entries: np.ndarray[Any, Any], end: int) -> ShardError:
        """The error for an object that has no bytes from `end` on, though an inner chunk of the box needs them."""
        chain = self.part.chain
        wanted = touched(self.part.box, chain.perm, chain.inner.shape, chain.grid_shape)
        wanted &= entries[:, 0] != ABSENT
        has_room = not chain.index_at_start and not self.options.allow_in_index
        last = max(0, end - (chain.index_nbytes if has_room else 0))
        entry = int(np.flatnonzero(wanted & (entries.sum(axis=1, dtype=np.uint64) > last))[0])
        offset, nbytes = (int(number) for number in entries[entry])
        what = "the store has none" if offset + nbytes > end else "the index is there; the store has no more"
        error = ShardFormatError(
            f"index entry claims {nbytes} bytes at offset {offset}, but {what} from {end} on",
            entry=entry,
            offset=offset,
            nbytes=nbytes,
            limit=end,
        )
        return self.explained(error)

    async def decode(self, source: Any) -> None:
        part, request = self.part, self.request
        items = [ReadItem(part.chain, source, part.box, part.target.path)]
        if decoded_nbytes(part.chain, part.box) <= INLINE_NBYTES:
            read(items, request.array, request.axes, self.options)
        else:
            await to_its_end(asyncio.to_thread(read, items, request.array, request.axes, self.options))

    def explained(self, error: ShardError) -> ShardError:
        error.shard = 0
        items: Sequence[Any] = [ReadItem(self.part.chain, None, self.part.box, self.part.target.path)]
        return explain(error, items)
