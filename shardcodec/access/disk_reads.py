# disk_reads.py - reads from the cache on a local disk
# SPDX-License-Identifier: MIT
"""Reads from the cache on a local disk (`storage.disk_cache`), in the thread of the caller.

`DiskReader.read` decodes the objects of which all requested inner chunks are there: with one native call, as local files, if they
are ``immutable``, otherwise with a few. The caller hands all others to `read_remote.fetch`, and those whose state it must still
compare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import ShardError
from ..options import Options
from ..storage import indexes
from ..storage.budget import Limits
from ..storage.indexes import RemoteIndex
from ..storage.store import Answer, Store
from .placement import ABSENT
from .read import ObjectSelection, is_staged, plan_reader, read, with_key
from .regions import as_void, outline, touched
from .remote_index import IndexLoader, chunk_ticket

if TYPE_CHECKING:
    from ..storage.disk_cache import DiskCache


__all__ = [
    "DiskReader",
    "Numbers",
    "ObjectOnDisk",
    "disk_reader",
    "plan_ranges",
    "positions_of",
]

Numbers = np.ndarray[Any, np.dtype[Any]]
Ranges = Sequence[tuple[int, int]]
Rest = list[tuple[int, ObjectSelection]]  # positions and items that are left

# Encoded bytes of the objects that one native call decodes, unless one object has more: they stay in the processor's cache.
GROUP_NBYTES = 8 << 20
# Objects from which more is read are left to `fetch`, which reads them in parts.
MAX_NBYTES = 64 << 20


def plan_ranges(
    item: ObjectSelection,
    entries: Numbers,
    nbytes: int | None,
    into: tuple[Numbers, Sequence[int]],
    options: Options,
    limits: Limits,
) -> list[tuple[int, int]]:
    """Return the ranges of an object that have the requested inner chunks, or the parts of them.

    nbytes: size of the object; without it whole inner chunks are planned. into: the array, and its axes as for `read`.
    """
    out, axes = into
    try:
        return native.load().plan_ranges(  # type: ignore[no-any-return]
            item.chain,
            entries,
            item.box,
            outline(out),
            axes,
            shard_nbytes=nbytes,
            max_gap_nbytes=min(limits.free_gap_nbytes, limits.max_gap_nbytes),
            max_nbytes=limits.max_nbytes,
            allow_in_index=options.allow_in_index,
        )
    except ShardError as error:
        raise with_key(error, item.chain, item.key) from None


def positions_of(item: ObjectSelection) -> Numbers:
    """Return the positions of the requested inner chunks."""
    chain = item.chain
    return np.flatnonzero(touched(item.box, chain.perm, chain.inner.shape, chain.grid_shape))


class ObjectOnDisk:
    """The part of one object that is in the cache, for one read. The caller closes it."""

    def __init__(self, disk: DiskCache, item: ObjectSelection, loader: IndexLoader, limits: Limits) -> None:
        self.item = item
        self.loader = loader
        self.limits = limits
        n_chunks = int(item.chain.n_chunks) if item.chain.is_shard else 1
        self.cached = disk.object(item.key, n_chunks)

    def index(self) -> RemoteIndex | None:
        """Return the index from the disk, which may be stale; None if it is not there."""
        if not self.item.chain.is_shard or not self.cached.is_there:
            return None
        if (entries := self.cached.entries()) is None:
            self.cached.drop()  # nothing in the file is found without its index
            return None
        since, is_confirmed = self.loader.ticket(), self.loader.options.immutable
        index = RemoteIndex(entries, self.cached.nbytes, self.cached.state, is_confirmed=is_confirmed)
        try:
            index = self.loader.checked(index)
        except ShardError:
            return None
        self.loader.keep(index, since)
        return index

    def is_kept(self, index: RemoteIndex, wanted: Numbers, ranges: Ranges) -> bool:
        """Return True if the read keeps whole inner chunks, those at the positions `wanted`; `ranges` are those without the cache.

        Parts of large uncompressed ones are not kept, because the rest would take longer than another request.
        """
        inner = self.item.chain.inner
        if not inner.is_plain:
            return True
        if math.prod(inner.shape) * int(self.item.chain.itemsize) <= self.limits.max_gap_nbytes:
            return True
        sizes = index.entries[wanted, 1]
        return sum(nbytes for _, nbytes in ranges) >= int(sizes[sizes != ABSENT].sum())

    def found(self, index: RemoteIndex, wanted: Numbers) -> Numbers:
        """Return the positions among these whose inner chunks are on the disk, in the order of their bytes."""
        if not self.cached.is_in(index.state):
            return wanted[:0]
        present = wanted[index.entries[wanted, 0] != ABSENT]
        found: Numbers = present[self.cached.has(present)]
        return found[np.argsort(index.entries[found, 0], kind="stable")]

    def fetched(self, index: RemoteIndex, found: Numbers, *, fill_absent: bool) -> tuple[Any, Numbers]:
        """Read inner chunks; return a source for `read` with those that are right, and an array of bool: which are.

        Wide gaps between them are left out, so the entries of the source are not those of the index.
        """
        places = index.entries[found].astype(np.int64)
        data, offsets, good = self.cached.read(found, places[:, 0], places[:, 1])
        entries = np.full_like(index.entries, ABSENT)
        entries[found, 0] = offsets
        entries[found, 1] = places[:, 1]
        entries[found[~good]] = ABSENT
        state = self.loader.chunk_state(index)
        source = native.load().Fetched(
            self.item.chain, entries, data, 0, fill_absent=fill_absent, state=state
        )
        return source, good

    def source(self, into: tuple[Numbers, Sequence[int]]) -> tuple[Any, int] | None:
        """Return a source for `read` with all that is requested, and its size in bytes; None if it is not all on the disk."""
        cached, item = self.cached, self.item
        if not cached.is_there:
            return None
        if not item.chain.is_shard:
            first = np.zeros(1, np.int64)
            if not cached.nbytes or cached.nbytes > MAX_NBYTES or not cached.has(first)[0]:
                return None
            data, _, good = cached.read(first, first, np.array([cached.nbytes]))
            return (data, cached.nbytes) if good[0] else None
        index = self.loader.cached() or self.index()
        if (
            index is None
            or not cached.is_in(index.state)
            or (not index.is_sound and self.loader.must_be_sound)
        ):
            return None
        ranges = plan_ranges(item, index.entries, index.nbytes, into, self.loader.options, self.limits)
        wanted = positions_of(item)
        sizes = index.entries[wanted, 1]
        sizes = sizes[sizes != ABSENT]
        nbytes = int(sizes.sum())
        if not 0 < nbytes <= MAX_NBYTES or not sizes.all() or not self.is_kept(index, wanted, ranges):
            return None
        found = self.found(index, wanted)
        if len(found) < len(sizes):
            return None
        source, good = self.fetched(index, found, fill_absent=True)
        return (source, nbytes) if good.all() else None


class DiskReader:
    """Reads from the cache on a local disk of the objects of one store, with options that are parsed once.

    cache: the cache. Each read asks `is_usable` before.
    """

    def __init__(self, cache: DiskCache, store: Store, options: Options) -> None:
        self.cache = cache
        self.is_usable = cache.is_usable
        self._store = store
        self._options = options
        self._plans = plan_reader(options, indexes.of_options(options))

    def file(self, key: str) -> str | None:
        """Return the file of an immutable object; None if its bytes may be old."""
        return self.cache.lasting([key])[0] if self.is_usable() else None

    def read(self, items: Sequence[ObjectSelection], out: Numbers, axes: Sequence[int]) -> Rest:
        """Decode objects that are on the disk; return the positions and items for `fetch`, which reads or compares the others.

        Without `immutable`, those that were decoded are among them; their source is an `Answer` without data, which has their state.
        """
        if is_staged(items):
            return list(enumerate(items))
        is_lasting = self._options.immutable
        left = self._left_of_lasting(items, out, axes) if is_lasting else list(enumerate(items))
        return self._left_of_states(left, out, axes) if left else left

    def _left_of_lasting(self, items: Sequence[ObjectSelection], out: Numbers, axes: Sequence[int]) -> Rest:
        """Decode the immutable objects of which all is on the disk; return the positions and items of the others."""
        files = self.cache.lasting([item.key for item in items])
        plan = [(item.chain, (file,), item.box) for item, file in zip(items, files, strict=True) if file]
        if not plan:
            return list(enumerate(items))
        try:
            missing: Sequence[int] = self._plans.read(plan, as_void(out), axes, native.current())
        except (OSError, ShardError) as error:  # the folder fails, or bytes in it are torn
            file = getattr(error, "filename", None)
            if not isinstance(getattr(error, "shard", None), int) and (file is None or file not in files):
                raise  # of a signal handler: those of the engine have the number of an object, or its file
            missing = range(len(plan))
        if not missing and len(plan) == len(items):
            return []
        there = [i for i, file in enumerate(files) if file]
        found = set(there).difference(there[i] for i in missing)
        return [(i, item) for i, item in enumerate(items) if i not in found]

    def _left_of_states(self, left: Rest, out: Numbers, axes: Sequence[int]) -> Rest:
        """Decode as `read` the objects whose state is compared."""
        store, options = self._store, self._options
        limits = store.limits()
        names = store.index_names([item.key for _, item in left])
        rest: Rest = []
        group: list[tuple[int, ObjectSelection, Answer]] = []
        total = 0
        for (position, item), name in zip(left, names, strict=True):
            since = chunk_ticket(store, item.chain, options)
            loader = IndexLoader(store, item.key, item.chain, options, name, since=since)
            on_disk = ObjectOnDisk(self.cache, item, loader, limits)
            state = Answer(None, state=on_disk.cached.state)
            try:
                found = on_disk.source((out, axes))
            except ShardError:  # the index may be stale
                found = None
            finally:
                on_disk.cached.close()
            if found is None:
                rest.append((position, item))
                continue
            source, nbytes = found
            if total + nbytes > GROUP_NBYTES:
                rest += self._decoded(group, out, axes)
                group, total = [], 0
            group.append((position, item._replace(source=source), state))
            total += nbytes
        return rest + self._decoded(group, out, axes)

    def _decoded(
        self, group: Sequence[tuple[int, ObjectSelection, Answer]], out: Numbers, axes: Sequence[int]
    ) -> Rest:
        """Decode objects; return those that `fetch` reads or compares. The files of damaged ones are removed."""
        if not group:
            return []
        try:
            read([item for _, item, _ in group], out, axes, self._options)
        except ShardError:
            if len(group) > 1:
                return [done for one in group for done in self._decoded([one], out, axes)]
            ((position, item, _),) = group
            self.cache.drop(item.key)
            return [(position, item._replace(source=None))]
        if self._options.immutable:
            return []
        return [(position, item._replace(source=state)) for position, item, state in group]


def disk_reader(store: Store, options: Options) -> DiskReader | None:
    """Return the reader of the cache on a local disk for the objects of a store; None if there is none."""
    if options.cache_dir is None:
        return None
    from ..storage import disk_cache  # here, because most processes have none

    cache = disk_cache.of_store(store, options)
    return None if cache is None else DiskReader(cache, store, options)
