# disk_reads.py - reads from the cache on a local disk
# SPDX-License-Identifier: MIT
"""Reads from the cache on a local disk (`storage.disk_cache`), in the thread of the caller.

`read_from_disk` decodes the objects of which all requested inner chunks are there: with one native call, as local files, if they
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
from ..storage.budget import Limits
from ..storage.indexes import RemoteIndex
from ..storage.store import Answer, Store
from .placement import ABSENT
from .read import ObjectSelection, is_staged, read, read_once, with_key
from .regions import outline, touched
from .remote_index import IndexLoader, chunk_ticket

if TYPE_CHECKING:
    from ..storage.disk_cache import DiskCache


__all__ = [
    "Numbers",
    "ObjectOnDisk",
    "cache_of",
    "left_of_lasting",
    "plan_ranges",
    "positions_of",
    "read_from_disk",
]

Numbers = np.ndarray[Any, np.dtype[Any]]
Ranges = Sequence[tuple[int, int]]

# Encoded bytes of the objects that one native call decodes, unless one object has more: they stay in the processor's cache.
GROUP_NBYTES = 8 << 20
# Objects from which more is read are left to `fetch`, which reads them in parts.
MAX_NBYTES = 64 << 20


def cache_of(store: Store, options: Options) -> DiskCache | None:
    """Return the cache on a local disk for the objects of a store; None if there is none."""
    if options.cache_dir is None:
        return None
    from ..storage import disk_cache  # here, because most processes have none

    return disk_cache.of_store(store, options)


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


def read_from_disk(
    disk: DiskCache,
    store: Store,
    items: Sequence[ObjectSelection],
    out: Numbers,
    axes: Sequence[int],
    options: Options,
) -> list[tuple[int, ObjectSelection]]:
    """Decode objects that are on the disk; return the positions and items for `fetch`, which reads or compares the others.

    Without `immutable`, those that were decoded are among them; their source is an `Answer` without data, which has their state.
    """
    if is_staged(items):
        return list(enumerate(items))
    if not (left := left_of_lasting(disk, items, out, axes, options)):
        return []
    limits = store.limits()
    names = store.index_names([item.key for _, item in left])
    rest: list[tuple[int, ObjectSelection]] = []
    group: list[tuple[int, ObjectSelection, Answer]] = []
    total = 0
    for (position, item), name in zip(left, names, strict=True):
        since = chunk_ticket(store, item.chain, options)
        loader = IndexLoader(store, item.key, item.chain, options, name, since=since)
        on_disk = ObjectOnDisk(disk, item, loader, limits)
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
            rest += _decoded(group, disk, out, axes, options)
            group, total = [], 0
        group.append((position, item._replace(source=source), state))
        total += nbytes
    return rest + _decoded(group, disk, out, axes, options)


def left_of_lasting(
    disk: DiskCache, items: Sequence[ObjectSelection], out: Numbers, axes: Sequence[int], options: Options
) -> list[tuple[int, ObjectSelection]]:
    """Decode the immutable objects of which all is on the disk; return the positions and items of the others."""
    files = disk.lasting([item.key for item in items])
    there = [i for i, file in enumerate(files) if file is not None]
    if not there:
        return list(enumerate(items))
    plan = [(items[i].chain, (files[i],), items[i].box) for i in there]
    try:
        missing = {there[i] for i in read_once(plan, out, axes, options)}
    except (OSError, ShardError) as error:  # the folder fails, or bytes in it are torn
        if not (isinstance(getattr(error, "shard", None), int) or getattr(error, "filename", None) in files):
            raise  # of a signal handler: those of the engine have the number of an object, or its file
        missing = set(there)
    return [(i, item) for i, item in enumerate(items) if files[i] is None or i in missing]


def _decoded(
    group: Sequence[tuple[int, ObjectSelection, Answer]],
    disk: DiskCache,
    out: Numbers,
    axes: Sequence[int],
    options: Options,
) -> list[tuple[int, ObjectSelection]]:
    """Decode objects; return those that `fetch` reads or compares. The files of damaged ones are removed."""
    if not group:
        return []
    try:
        read([item for _, item, _ in group], out, axes, options)
    except ShardError:
        if len(group) > 1:
            return [done for one in group for done in _decoded([one], disk, out, axes, options)]
        ((position, item, _),) = group
        disk.drop(item.key)
        return [(position, item._replace(source=None))]
    return (
        []
        if options.immutable
        else [(position, item._replace(source=state)) for position, item, state in group]
    )
