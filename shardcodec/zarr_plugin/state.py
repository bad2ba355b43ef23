# state.py - `chunk_state`: which inner chunks of a zarr array exist
# SPDX-License-Identifier: MIT
"""`shardcodec.chunk_state` and `shardcodec.iter_existing`.

One look at the index of each shard, and nothing else of it. Files are read by the engine's threads, many in one native
call; other stores are asked concurrently, for those shards only that a listing shows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import zarr

from .. import native
from ..access.placement import ABSENT
from ..access.reader import ReadItem, explain, index_too_short
from ..access.state import ChunkState, ShardGrid, Sizes, scan_files
from ..errors import ShardError, UnsupportedError
from ..format.spec import ChainSpec, ShardSpec
from ..options import Options, check, resolve
from ..storage.aio import all_of
from ..storage.remote import Remote
from .compat import (
    Store,
    StorePath,
    array_at,
    config,
    default_buffer_prototype,
    is_regular,
    max_workers,
    options_of_zarr,
    sync,
)
from .remote import remote_for
from .renamed import original
from .stores import is_local, is_memory, local_path, stored_bytes

__all__ = ["chunk_state", "iter_existing"]

# From so many shards on, one listing is worth it: what it does not show need not be asked for.
LISTING_SHARDS = 64

Progress = Callable[[int, int], Any]


def chunk_state(
    array: Any,
    path: str = "",
    region: Any = None,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
) -> ChunkState:
    """Tell which inner chunks of a sharded array exist and how big they are, from the shards' indexes alone.

    Parameters
    ----------
    array : zarr.Array, zarr store or path-like
        An array, or where one is.
    path : str
        Path of the array in the store.
    region : optional
        Integers and slices, as in ``array[region]``: only inner chunks that it touches. Default: all.
    progress : callable, optional
        Called with the number of shards that have been looked at, and of all.
    threads : int, optional

    Returns
    -------
    ChunkState
        Its arrays take nine bytes for each inner chunk of the region; `iter_existing` needs no such memory.

    Raises
    ------
    UnsupportedError
        The array is not sharded, or codecs follow the sharding.
    ShardFormatError, ChecksumError
        An index is damaged, or one of its entries cannot be true. (Where a store does not tell how large an object is,
        an entry that goes beyond it passes.)

    Examples
    --------
    >>> state = shardcodec.chunk_state("a.zarr")
    >>> state.exists.mean(), state.nbytes.sum()
    """
    scan = _Scan(array, path, region, threads)
    sizes, state = scan.grid.collect()
    for shards, found in scan.run(progress):
        for shard, numbers in zip(shards, found, strict=True):
            place, block = scan.grid.block(shard, numbers)
            state.exists[place] = block != ABSENT
            sizes[place] = np.where(block == ABSENT, 0, block)
    return state


def iter_existing(
    array: Any,
    path: str = "",
    region: Any = None,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield coordinates and encoded size of each inner chunk that exists, shard by shard.

    Parameters are those of `chunk_state`; memory is bounded however large the array is.
    """
    scan = _Scan(array, path, region, threads)

    def existing() -> Iterator[tuple[tuple[int, ...], int]]:
        for shards, found in scan.run(progress):
            for shard, numbers in zip(shards, found, strict=True):
                yield from scan.grid.existing(shard, numbers)

    return existing()


class _Scan:
    """One pass over the shards of a region."""

    def __init__(self, array: Any, path: str, region: Any, threads: int | None) -> None:
        if isinstance(array, Store | StorePath | str | os.PathLike):
            array = array_at(array, path)
        elif path:
            raise ValueError("an array has no path within it")
        elif not isinstance(array, zarr.Array | zarr.AsyncArray):
            raise TypeError(f"expected an array of zarr, or where one is, not {type(array).__name__}")
        metadata = array.metadata
        spec = ChainSpec.from_metadata(metadata.to_dict())
        if spec.sharding is None or not is_regular(metadata):
            raise UnsupportedError("not an array of shards on a regular grid")
        shard = ShardSpec.from_chain(spec)
        if not shard.supports_partial_access:
            raise UnsupportedError("codecs that follow the sharding hide the inner chunks")
        self.grid = ShardGrid(shard, metadata.shape, region)
        self._target: StorePath = array.store_path
        self._encode_key = metadata.encode_chunk_key
        self._options: Options = resolve(
            argument=check({"threads": threads}), config=options_of_zarr(), max_workers=max_workers()
        )

    def run(self, progress: Progress | None) -> Iterator[tuple[list[tuple[int, ...]], Sizes]]:
        """Yield shards, some at a time, and the sizes of their inner chunks."""
        total, done = self.grid.n_shards, 0
        present = self._listing() if total >= LISTING_SHARDS else None
        for shards in self.grid.batches():
            targets = [original(self._target / self._encode_key(shard)) for shard in shards]
            yield shards, self._sizes(targets, present)
            done += len(shards)
            if progress is not None:
                progress(done, total)

    def _listing(self) -> set[str] | None:
        """Keys of what is there; None where asking for each is as good."""
        store = original(self._target).store
        if is_local(store) or is_memory(store) or not store.supports_listing:
            return None

        async def listed() -> set[str]:
            prefix = f"{self._target.path}/" if self._target.path else ""
            keys = [
                StorePath(self._target.store, key) async for key in self._target.store.list_prefix(prefix)
            ]
            return {original(key).path for key in keys}

        return sync(listed())

    def _sizes(self, targets: Sequence[StorePath], present: set[str] | None) -> Sizes:
        chain, store = self.grid.chain, original(self._target).store
        keys = [target.path for target in targets]
        if is_local(store):
            return scan_files(chain, [local_path(target) for target in targets], keys, self._options)
        if is_memory(store):
            prototype = default_buffer_prototype()
            sources = [stored_bytes(target, prototype) for target in targets]
            return scan_files(chain, sources, keys, self._options)
        sizes = np.full((len(keys), chain.n_chunks), ABSENT, dtype=np.uint64)
        remote = remote_for(store, default_buffer_prototype())
        wanted = [i for i, key in enumerate(keys) if present is None or key in present]
        sync(_ask(remote, [(keys[i], sizes[i]) for i in wanted], chain, self._options))
        return sizes


async def _ask(remote: Remote, work: Sequence[tuple[str, Any]], chain: Any, options: Options) -> None:
    """Fetch indexes, several at a time."""
    limit = asyncio.Semaphore(max(1, int(config.get("async.concurrency"))))
    n = int(chain.index_nbytes)

    async def ask(key: str, out: Any) -> None:
        async with limit:
            answer = await (
                remote.get_range(key, 0, n) if chain.index_at_start else remote.get_suffix(key, n)
            )
        if answer is None:
            return
        if len(answer.data) < n:
            raise index_too_short(key, len(answer.data), n)
        entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        size = 2**63 - 1 if answer.nbytes is None else answer.nbytes
        first = 0 if chain.index_at_start else size - n
        try:
            native.load().load_index(chain, answer.data, entries)
            native.load().index_check(entries, size, first, n, allow_in_index=options.allow_in_index)
        except ShardError as error:
            error.shard = 0
            item: Any = ReadItem(chain, None, None, key)  # type: ignore[arg-type]
            raise explain(error, [item]) from None
        out[:] = entries[:, 1]

    await all_of(ask(key, out) for key, out in work)
