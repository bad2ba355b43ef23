# shard_map.py - map chunk keys to shards in the stores below
# SPDX-License-Identifier: MIT
"""Read, write and list the chunks of shards in a store below, or in a stack of transformers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..access.buffer import active_buffer
from ..access.buffer.buffered import resolve
from ..access.compiled_chains import byte_map
from ..access.index_scan import scan_files
from ..access.opened_shard import NativeShard, NestedShard, OpenedShard
from ..access.placement import ABSENT
from ..compat import Store, buffer_from, default_buffer_prototype
from ..errors import ShardError
from ..format.spec import ShardSpec
from ..option_sources import current_options
from ..options import Options
from ..storage import forks, indexes, turns
from ..storage.budget import Budget
from ..storage.event_loop import all_of, in_thread
from ..storage.kinds import store_of
from ..storage.replace import replace
from ..storage.runner import ON_LOOP
from ..storage.store import Store as AnyStore
from ..storage.store import check_store_writable
from .buffered_edits import BufferedEdits, applier
from .edits import Edit, erase, put
from .keys import ArrayKeys, as_request, cut, request_to_send
from .read import ChunkRequest, at_a_time, look_native, read, read_native, read_sizes, sizes_native, with_keys
from .store_requests import StoreRequests
from .write import Batch, Place, Writer, within

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Shards", "as_folder"]

Position = tuple[str, int]


class Shards:
    """The shards of some arrays with equal layout. Of `spec` only grid and index are used; `below` is the store below."""

    def __init__(
        self, below: Store, arrays: Sequence[ArrayKeys], spec: ShardSpec, choices: Mapping[str, Any]
    ) -> None:
        self._below = below
        self.arrays = arrays
        self.spec = spec
        self.choices = choices
        self._writers: list[Writer] = []

    @property
    def below(self) -> Store:
        """The store below, which a forked child has opened again."""
        return forks.own(self._below)  # type: ignore[no-any-return]

    @property
    def _chain(self) -> Chain:
        return byte_map(self.spec)

    @property
    def _options(self) -> Options:
        return current_options(argument=self.choices)

    def locate(self, key: str) -> Position | None:
        """Return (key of the shard, position in its index) of a chunk; None for another key."""
        for array in self.arrays:
            place = array.locate(key)
            if place is not None:
                return place
        return None

    def _holder(self, shard: str) -> tuple[Store, Shards | None, Position | None]:
        """Return the store that holds a shard; if the shard is a chunk there, also the `Shards` and the place of that chunk.

        Transformers for other keys are skipped, so arrays with different shards can each have a transformer in one
        stack.
        """
        below = self.below
        while True:
            shards = vars(below).get("shards")
            if not isinstance(shards, Shards):
                return below, None, None
            place = shards.locate(shard)
            if place is not None:
                return below, shards, place
            below = shards.below

    def object_of(self, shard: str) -> tuple[AnyStore, str]:
        """Return store and key of the object that is the shard or contains it."""
        holder, shards, place = self._holder(shard)
        return (store_of(holder), shard) if shards is None or place is None else shards.object_of(place[0])

    @property
    def is_prompt(self) -> bool:
        """True if the lowest store is reached without network round trips."""
        below = self.below
        while isinstance(shards := vars(below).get("shards"), Shards):
            below = shards.below
        return store_of(below).is_prompt

    def _path(self, shard: str) -> str | None:
        """Return the path of the file that is the shard or contains it; None if the object is not a file."""
        store, key = self.object_of(shard)
        return store.path(key)

    async def _lock_names(self, shards: Sequence[str]) -> list[str]:
        """Return the names for locks of the objects that are or contain shards, without blocking the event loop."""

        def names() -> list[str]:
            return [store.lock_names([key])[0] for store, key in map(self.object_of, shards)]

        return await ON_LOOP.call(names, inline=self.is_prompt)

    def _open(self, shard: str) -> OpenedShard:
        """Open a shard in a local file or in memory."""
        holder, shards, place = self._holder(shard)
        options = self._options
        if shards is not None and place is not None:
            outer = shards._open(place[0])
            try:
                where = None if outer.missing else shards._entry(outer, place)
                return NestedShard(self._chain, outer, where, shard, options)
            except BaseException:
                outer.close()
                raise
        store = store_of(holder)
        kept = None
        if store.path(shard) is not None:
            kept = indexes.of_options(options)
        try:
            return NativeShard(self._chain, store.source(shard), options, kept)
        except ShardError as error:
            raise with_keys(error, self._chain, shard) from None

    def _entry(self, opened: OpenedShard, place: Position) -> tuple[int, int] | None:
        try:
            return opened.entry(place[1])
        except ShardError as error:
            error.entry = place[1]
            raise with_keys(error, self._chain, place[0]) from None

    def _is_native(self, shards: Sequence[str]) -> bool:
        """Return True if the engine opens these shards of one holder itself, without requests."""
        return self.object_of(shards[0])[0].is_near

    def _by_holder(self, shards: Iterable[str]) -> list[tuple[Store, list[str]]]:
        groups: dict[int, tuple[Store, list[str]]] = {}
        for shard in shards:
            holder, _, _ = self._holder(shard)
            groups.setdefault(id(holder), (holder, []))[1].append(shard)
        return list(groups.values())

    async def values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return parts of values; see `ShardingStorageTransformer.get_partial_values`."""
        if turns.is_over():
            await turns.next_turn()
        shards: dict[str, list[ChunkRequest]] = {}
        others: list[tuple[int, str, Any]] = []
        n = 0
        for key, given in key_ranges:
            place, request = self.locate(key), as_request(given, pairs=True)
            if place is None:
                others.append((n, key, request))
            else:
                shards.setdefault(place[0], []).append(ChunkRequest(n, key, place[1], request))
            n += 1
        results: list[Any] = [None] * n
        for shard, buffered in (await self._buffered(list(shards))).items():
            stored = []
            for request in shards[shard]:
                if request.position not in buffered.shown:
                    stored.append(request)
                elif (value := buffered.shown[request.position]) is not None:
                    start, nbytes = cut(request.request, len(value))
                    results[request.number] = buffer_from(prototype, value[start : start + nbytes])
            shards[shard] = stored
        shards = {shard: requests for shard, requests in shards.items() if requests}
        first = StoreRequests(
            self.below, prototype, [(key, request_to_send(request)) for _, key, request in others]
        )
        for holder, own in self._by_holder(shards):
            stored_data = await self._read_stored(holder, {shard: shards[shard] for shard in own}, first)
            for number, data in stored_data.items():
                results[number] = buffer_from(prototype, data)
        for (number, _, request), buffer in zip(others, await first.others(), strict=True):
            results[number] = buffer
            if buffer is not None and request_to_send(request) is not request:
                start, nbytes = cut(request, len(buffer))
                results[number] = buffer[start : start + nbytes]
        return results

    async def _read_stored(
        self, holder: Store, shards: Mapping[str, Sequence[ChunkRequest]], first: StoreRequests
    ) -> dict[int, Any]:
        """Read chunks of shards in one store; `first` sends requests to the store directly below."""
        keys = list(shards)
        if self._is_native(keys):
            work = (self._chain, shards, self._open, self._path)
            if self._path(keys[0]) is None:
                return read_native(*work)
            return await in_thread(read_native, *work)
        return await read(
            holder,
            self._chain,
            shards,
            self._options,
            first if holder is self.below else StoreRequests(holder, first.prototype),
            await self._lock_names(keys),
            whole=self._holder(keys[0])[2] is not None,
        )

    async def size(self, place: Position) -> int | None:
        """Return the size of a chunk in bytes from the index of its shard; None if it is absent."""
        for buffered in (await self._buffered([place[0]])).values():
            if place[1] in buffered.shown:
                value = buffered.shown[place[1]]
                return None if value is None else len(value)
        async for _, sizes in self._sizes([place[0]]):
            nbytes = int(sizes[place[1]])
            return None if nbytes == ABSENT else nbytes
        return None

    async def _sizes(self, shards: Sequence[str]) -> AsyncIterator[tuple[str, Any]]:
        """Yield (key of a shard, sizes of its chunks in bytes) in any order."""
        step = at_a_time(self._chain)
        for holder, own in self._by_holder(shards):
            ask = StoreRequests(holder, default_buffer_prototype())
            for first in range(0, len(own), step):
                group = own[first : first + step]
                store = store_of(holder)
                is_nested = self._holder(group[0])[2] is not None
                if store.is_near and not is_nested:
                    scan = (self._chain, [store.source(shard) for shard in group], group, self._options)
                    rows = await in_thread(scan_files, *scan)
                elif self._is_native(group):
                    work = (self._chain, group, self._open, self._path)
                    rows = await in_thread(sizes_native, *work)
                else:
                    rows = await read_sizes(self._chain, group, self._options, ask)
                for shard, sizes in zip(group, rows, strict=True):
                    yield shard, sizes

    @property
    def _writer(self) -> Writer:
        if not self._writers:
            self._writers.append(Writer(self._chain, self._exchange, self._place_of))
        return self._writers[0]

    async def _place_of(self, shard: str) -> Place:
        holder, _, place = self._holder(shard)
        if place is not None:
            return Place(shard)
        store = store_of(holder)
        staging = await ON_LOOP.call(store.staging, shard, inline=store.is_prompt)
        return Place(shard, store.path(shard), staging, store.is_prompt)

    async def _exchange(self, shard: str, batch: Batch, options: Options) -> None:
        check_store_writable(self.below)
        holder, shards, place = self._holder(shard)
        if shards is None or place is None:
            store, buffer = store_of(holder), active_buffer()
            if buffer is not None:
                await buffer.flush_objects(store, [shard])
            await replace(store, [shard], batch, options)
        else:
            check_store_writable(holder)
            await shards._writer.change(place[0], within(place[1], batch), options)

    async def change(self, changes: Mapping[str, Edit]) -> None:
        """Change shards concurrently; shards in one object are changed one after the other."""
        options = self._options
        objects, limits = Budget(), store_of(self.below).limits()

        async def change(shard: str, edit: Edit) -> None:
            async with objects.hold(1, limits.n_objects):
                if not await self._buffer(shard, edit, options):
                    await self._writer.change(shard, edit, options)

        await all_of(change(*each) for each in changes.items())

    async def _buffer(self, shard: str, change: Edit, options: Options) -> bool:
        """Buffer a change in a block of `group_writes`; return False if the caller must write it now."""
        buffer = active_buffer()
        holder, _, place = self._holder(shard)
        if buffer is None or place is not None or (change.given is None and change.narrowed is None):
            return False
        check_store_writable(self.below)
        at = store_of(holder)

        async def exchange(batch: Batch) -> None:
            await replace(at, [shard], batch, options)

        async def store(all_of_it: Edit) -> None:
            await self._writer.change_locked(shard, all_of_it, options, exchange)

        async def added(buffered: BufferedEdits | None) -> BufferedEdits | None:
            given: Any = change.given
            if given is None:
                if not at.is_near:
                    return None
                look = applier(self._chain, shard, change, {} if buffered is None else buffered.shown)
                work = (self._chain, shard, self._open, self._path, look)
                given = await in_thread(look_native, *work)
            if buffered is None:
                buffered = BufferedEdits(self.spec)
            buffered.add(change, given, store)
            return buffered

        (name,) = await resolve(at, [shard])
        return await buffer.add(name, self.spec, added)

    async def _buffered(self, shards: Sequence[str]) -> dict[str, BufferedEdits]:
        """Return the buffered changes of chunks by shard. Other buffered writes to these shards are flushed first."""
        buffer, by_shard = active_buffer(), {}
        if buffer is None:
            return {}
        for shard in shards:
            _, _, place = self._holder(shard)
            writes = await buffer.find(*self.object_of(shard), self.spec if place is None else None)
            if writes is not None:
                by_shard[shard] = writes
        return by_shard

    async def flush(self) -> None:
        """Flush all buffered writes of this process, because listing and deletion of folders see only stored objects."""
        buffer = active_buffer()
        if buffer is not None:
            await buffer.flush()

    def erasure(self, positions: Iterable[int]) -> Edit:
        """Return the change that erases chunks; it does not read the shard if it erases all chunks."""
        chosen = sorted(set(positions))
        return put(dict.fromkeys(chosen)) if len(chosen) == self.spec.n_chunks else erase(chosen)

    async def others(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys with a prefix in the store below that are not shards."""
        async for key in self._listed(prefix):
            if all(array.shard(key) is None for array in self.arrays):
                yield key

    async def below_prefix(
        self, array: ArrayKeys, fixed: tuple[int, ...]
    ) -> AsyncIterator[tuple[str, tuple[int, ...]]]:
        """Yield (key, grid position) of the shards with chunks of these leading coordinates."""
        async for key in self._listed(array.shards_below(fixed)):
            shard = array.shard(key)
            if shard is not None:
                yield key, shard

    async def _listed(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys with a prefix in the store below. Lists a folder, as some stores list folders only."""
        async for key in self.below.list_prefix(prefix[: prefix.rfind("/") + 1]):
            if key.startswith(prefix):
                yield key

    async def chunks(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        """Yield (key, size in bytes) of the existing chunks with a prefix, from the indexes of their shards."""
        for array in self.arrays:
            fixed = array.fixed(prefix)
            if fixed is None:
                continue
            shards = {key: shard async for key, shard in self.below_prefix(array, fixed)}
            async for group, sizes in self._sizes(tuple(shards)):
                for position in (sizes != ABSENT).nonzero()[0].tolist():
                    key = array.chunk(shards[group], position)
                    if key.startswith(prefix):
                        yield key, int(sizes[position])


def as_folder(prefix: str) -> str:
    """Return a prefix with a slash at its end; an empty prefix stays empty. TypeError if it is not a str."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix: expected str, got {type(prefix).__name__}")
    return prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
