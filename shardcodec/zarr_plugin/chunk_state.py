# chunk_state.py - `chunk_state`: which inner chunks of a zarr array exist
# SPDX-License-Identifier: MIT
"""`shardcodec.chunk_state` and `shardcodec.iter_existing`.

One look at the index of each shard, and nothing else of it. Files are read by the engine's threads, many in one native
call; other stores are asked concurrently, for those shards only that a listing shows.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

from .. import native
from ..access.placement import ABSENT
from ..access.read import ReadItem, explain, index_too_short
from ..access.shard_grid import ChunkState, ShardGrid, Sizes, scan_files
from ..compat import (
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
from ..errors import ShardError, UnsupportedError
from ..format.chain_spec import ChainSpec
from ..format.spec import ShardSpec
from ..options import Options, check, resolve
from ..storage.files import check_name
from ..storage.requests import Remote
from ..storage.sidecar import Sidecar
from ..storage.tasks import all_of
from .group_writes import active
from .object_states import file_states, names_states, state_of, states
from .remotes import remote_for
from .renamed_store import original
from .stores import described, is_local, is_memory, local_path, stored_bytes

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["chunk_state", "iter_existing"]

# From so many shards on, one listing is worth it: what it does not show need not be asked for.
LISTING_SHARDS = 64
# A page of a list (1,000 keys) takes as long as ten requests that are made at once.
LISTED_PER_SHARD = 100

Progress = Callable[[int, int], Any]


def chunk_state(
    array: Any,
    path: str = "",
    region: Any = None,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
    cache: str | os.PathLike[str] | None = None,
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
    cache : path-like, optional
        A file of this machine, made when there is none, that remembers sizes between processes. An object that has the
        size and the entity tag (of files: inode and times) that it had then is not read again: of local files their
        state is asked for, of object stores a list. All others are read, also of stores that tell no such thing.

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
    scan = _Scan(array, path, region, threads, cache)
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
    cache: str | os.PathLike[str] | None = None,
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield coordinates and encoded size of each inner chunk that exists, shard by shard.

    Parameters are those of `chunk_state`; memory is bounded however large the array is.
    """
    scan = _Scan(array, path, region, threads, cache)

    def existing() -> Iterator[tuple[tuple[int, ...], int]]:
        for shards, found in scan.run(progress):
            for shard, numbers in zip(shards, found, strict=True):
                yield from scan.grid.existing(shard, numbers)

    return existing()


class _Scan:
    """One pass over the shards of a region."""

    def __init__(
        self,
        array: Any,
        path: str,
        region: Any,
        threads: int | None,
        cache: str | os.PathLike[str] | None,
    ) -> None:
        if isinstance(array, Store | StorePath | str | os.PathLike):
            if isinstance(array, str | os.PathLike):
                check_name(os.fspath(array))
            array = array_at(array, check_name(path))
        elif path:
            raise ValueError("an array has no path within it")
        elif not isinstance(array, zarr.Array | zarr.AsyncArray):
            raise TypeError(f"expected an array of zarr, or where one is, not {type(array).__name__}")
        metadata = array.metadata
        spec = ChainSpec.from_metadata(metadata.to_dict())
        if spec.sharding is None or not is_regular(metadata):
            raise UnsupportedError(f"array {described(array.store_path)}: it has no shards on a regular grid")
        shard = ShardSpec.from_chain(spec)
        if not shard.supports_partial_access:
            raise UnsupportedError(
                f"array {described(array.store_path)}: codecs that follow the sharding hide its inner chunks"
            )
        self.grid = ShardGrid(shard, metadata.shape, region)
        self._target: StorePath = array.store_path
        self._encode_key = metadata.encode_chunk_key
        self._options: Options = resolve(
            argument=check({"threads": threads}), config=options_of_zarr(), max_workers=max_workers()
        )
        store = original(self._target).store
        self._sidecar: Sidecar | None = None
        if cache is not None and (is_local(store) or (names_states(store) and store is self._target.store)):
            self._sidecar = Sidecar(cache, self._identity(shard), shard.n_chunks)

    def _identity(self, shard: ShardSpec) -> str:
        """Name the array and how its indexes are read."""
        codecs = [codec.to_json() for codec in shard.index_codecs]
        how = [shard.grid_shape, codecs, shard.index_location, self._options.allow_in_index]
        text = json.dumps([described(self._target), how], default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def run(self, progress: Progress | None) -> Iterator[tuple[list[tuple[int, ...]], Sizes]]:
        """Yield shards, some at a time, and the sizes of their inner chunks."""
        total, done = self.grid.n_shards, 0
        group = active()
        if group is not None and group.nbytes:
            for shards in self.grid.batches():
                sync(group.settle_all_of(self._objects(shards)))  # what is listed is stored
        lists = total >= LISTING_SHARDS and self.grid.n_all_shards <= LISTED_PER_SHARD * total
        present = self._listing() if lists or self._sidecar is not None else None
        if self._sidecar is not None and present is not None:
            self._sidecar.keep_only(present)
        try:
            for shards in self.grid.batches():
                yield shards, self._sizes(self._objects(shards), present)
                done += len(shards)
                if progress is not None:
                    progress(done, total)
        finally:
            if self._sidecar is not None:
                self._sidecar.save()

    def _objects(self, shards: Sequence[tuple[int, ...]]) -> list[StorePath]:
        return [original(self._target / self._encode_key(shard)) for shard in shards]

    def _listing(self) -> dict[str, str | None] | None:
        """Keys of what is there, and stamps of their states; None where asking for each is as good."""
        store = original(self._target).store
        if is_local(store) or is_memory(store) or not store.supports_listing:
            return None
        if self._sidecar is not None:
            return sync(states(store, self._target.path))

        async def listed() -> dict[str, str | None]:
            prefix = f"{self._target.path}/" if self._target.path else ""
            keys = [
                StorePath(self._target.store, key) async for key in self._target.store.list_prefix(prefix)
            ]
            return {original(key).path: None for key in keys}

        return sync(listed())

    def _sizes(self, targets: Sequence[StorePath], present: Mapping[str, str | None] | None) -> Sizes:
        if self._sidecar is None:
            return self._read(targets, present)[0]
        keys = [target.path for target in targets]
        is_file = is_local(original(self._target).store)
        if is_file:
            before = file_states([local_path(target) for target in targets], self._options.threads)
        else:
            before = [None if present is None else present.get(key) for key in keys]
        sizes = np.full((len(keys), self.grid.chain.n_chunks), ABSENT, dtype=np.uint64)
        rest = []
        for i, (key, stamp) in enumerate(zip(keys, before, strict=True)):
            found = self._sidecar.get(key, stamp)
            if found is None:
                rest.append(i)
            else:
                sizes[i] = found
        native.load().totals_add(index_hits=len(keys) - len(rest))
        if rest:
            read, after = self._read([targets[i] for i in rest], present)
            for i, own, stamp in zip(rest, read, after, strict=True):
                sizes[i] = own
                self._sidecar.put(keys[i], before[i] if is_file else stamp, own)
        return sizes

    def _read(
        self, targets: Sequence[StorePath], present: Mapping[str, str | None] | None
    ) -> tuple[Sizes, list[str | None]]:
        """Read indexes; and the states that they belong to, where the answers tell."""
        chain, store = self.grid.chain, original(self._target).store
        keys = [target.path for target in targets]
        after: list[str | None] = [None] * len(keys)
        if is_local(store):
            paths = [local_path(target) for target in targets]
            return scan_files(chain, paths, keys, self._options), after
        if is_memory(store):
            prototype = default_buffer_prototype()
            sources = [stored_bytes(target, prototype) for target in targets]
            return scan_files(chain, sources, keys, self._options), after
        sizes = np.full((len(keys), chain.n_chunks), ABSENT, dtype=np.uint64)
        remote = remote_for(store, default_buffer_prototype())
        wanted = [i for i, key in enumerate(keys) if present is None or key in present]
        told = sync(_ask(remote, [(keys[i], sizes[i]) for i in wanted], chain, self._options))
        for i, stamp in zip(wanted, told, strict=True):
            after[i] = stamp
        return sizes, after


async def _ask(
    remote: Remote, work: Sequence[tuple[str, Any]], chain: Chain, options: Options
) -> list[str | None]:
    """Fetch indexes, several at a time; return what names the states they are of."""
    limit = asyncio.Semaphore(max(1, int(config.get("async.concurrency"))))
    n = int(chain.index_nbytes)

    async def ask(key: str, out: Any) -> str | None:
        async with limit:
            answer = await (
                remote.get_range(key, 0, n) if chain.index_at_start else remote.get_suffix(key, n)
            )
        if answer is None:
            return None
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
        return None if answer.version is None else state_of(size, answer.version["e_tag"])

    return await all_of(ask(key, out) for key, out in work)
