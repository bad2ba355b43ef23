# write.py - parts of one array into many objects, where codecs take part that are not native
# SPDX-License-Identifier: MIT
"""The engine's `write` for opaque chains; see `chunks`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import native
from ...errors import ShardError
from ..chunk_regions import Cuts, cuts_of
from ..placement import ABSENT
from ..regions import Box, Parts, whole
from .chunks import (
    MAX_POSITIONS,
    Array,
    ChunkCodecs,
    Piece,
    codec_error,
    decoded,
    decoded_nbytes,
    spread,
    whole_object,
)

if TYPE_CHECKING:
    from ..._native import Chain

__all__ = ["write"]


class _Job(NamedTuple):
    """A chunk to be encoded. `old` is what it was, encoded, where elements of that remain."""

    item: int
    position: int | None
    cuts: Cuts
    old: Any


class _New(NamedTuple):
    """An object in the making."""

    chain: Chain
    path: str | None
    old: Any
    positions: list[int]
    buffers: list[Any]

    def take(self, position: int | None, buffer: Any) -> None:
        """Take over an encoded chunk; None: it is nothing but fill value, and has no slot of the old one's."""
        if position is None or buffer is not None:
            self.positions.append(position or 0)
            self.buffers.append(buffer)
        elif (entries := None if self.old is None else self.old[4]) is not None:
            entries[position] = ABSENT


def write(
    plan: Sequence[tuple[Any, ...]],
    value: Array,
    axes: Sequence[int],
    *,
    staging_nbytes: int,
    order: str = "morton",
    write_empty: bool = False,
    keep_empty: bool = False,
    sync: bool = False,
    allow_in_index: bool = False,
    staging: str | None = None,
    n_threads: int = 1,
    cancel: Any = None,
) -> tuple[list[Any], dict[str, int], tuple[list[int], list[int]]]:
    """Write parts of one array into many objects; as the engine's `write`, with `value` an array of any dtype.

    Raises
    ------
    CodecError
        A codec fails, with whatever exception of its own, which is the cause. The object is as it was.
    """
    results: list[Any] = []
    exist: list[int] = []
    declined: list[int] = []
    how = {"sync": sync, "staging": staging, "cancel": cancel}
    for group in _groups(plan, staging_nbytes // 2):
        # an object that is a chunk has no other way to stay than to hold fill value
        store_fill = write_empty or (keep_empty and not group[0][1][0].is_shard)
        writing = _Writing(value, axes, order, store_fill, staging_nbytes, n_threads, cancel)
        for number, (chain, path, parts, old) in group:
            writing.add(number, chain, path, parts, old, allow_in_index)
        writing.encode_all()
        made, there, refused = _store(list(writing.objects.values()), keep_empty, n_threads, how)
        exist += [len(results) + position for position in there]
        declined += [len(results) + position for position in refused]
        results += made
    return results, {}, (exist, declined)


def _groups(
    plan: Sequence[tuple[Any, ...]], limit_nbytes: int
) -> Iterator[list[tuple[int, tuple[Any, ...]]]]:
    """Objects that are encoded together, so that small ones keep all threads busy."""
    group: list[tuple[int, tuple[Any, ...]]] = []
    total = 0
    for number, item in enumerate(plan):
        chain, _, parts, _ = item
        shape = parts.count if isinstance(parts, Box) else chain.shape
        nbytes = decoded_nbytes(shape, chain.stage)
        if group and total + nbytes > limit_nbytes:
            yield group
            group, total = [], 0
        group.append((number, item))
        total += nbytes
    yield group


def _source_of(old: Any) -> Any:
    """The old object; None when there is none, or it does not count."""
    return None if old is None else old[0]


class _Writing:
    """A write of some objects under way: jobs wait until there are enough for all threads."""

    def __init__(
        self,
        value: Array,
        axes: Sequence[int],
        order: str,
        write_empty: bool,
        staging_nbytes: int,
        n_threads: int,
        cancel: Any,
    ) -> None:
        self.value = value
        self.axes = axes
        self.order = order
        self.write_empty = write_empty
        self.half_nbytes = max(1, staging_nbytes // 2)
        self.n_threads = n_threads
        self.cancel = cancel
        self.objects: dict[int, _New] = {}
        self.jobs: list[_Job] = []
        self.waiting_nbytes = 0

    def add(
        self, item: int, chain: Chain, path: str | None, parts: Parts, old: Any, allow_in_index: bool
    ) -> None:
        """Find out what there is to encode for an object."""
        self.objects[item] = _New(chain, path, old, [], [])
        cuts = cuts_of(chain, parts, self.axes, self.value.ndim)
        if not chain.is_shard:
            needs_old = _source_of(old) is not None and not cuts.is_whole(0)
            self._push([_Job(item, None, cuts, whole_object(old[0]) if needs_old else None)])
            return
        try:
            for jobs in self._jobs_of_shard(item, chain, cuts, old, allow_in_index):
                self._push(jobs)
        except ShardError as error:
            error.shard = item
            self.jobs = [job for job in self.jobs if job.item != item]
            self.encode_all()  # what is wrong with an object before this one counts more
            raise

    def _jobs_of_shard(
        self, item: int, chain: Chain, cuts: Cuts, old: Any, allow_in_index: bool
    ) -> Iterator[list[_Job]]:
        """Jobs in the order in which the inner chunks shall lie there, with the old bytes that they need."""
        positions = _in_order(cuts.positions(), chain.grid_shape, self.order)
        shard = None if _source_of(old) is None else native.load().OpenShard(chain, old[0])
        begin = 0
        while begin < len(positions):
            some = positions[begin : begin + MAX_POSITIONS]
            olds: dict[int, Any] = {}
            if shard is not None:
                merged = [position for position in some if not cuts.is_whole(position)]
                olds = self._fetch_old(shard, merged, allow_in_index)
                if len(olds) < len(merged):
                    some = some[: some.index(merged[len(olds)])]
            yield [_Job(item, position, cuts, olds.get(position)) for position in some]
            begin += len(some)
        if shard is not None:
            shard.close()

    def _fetch_old(self, shard: Any, positions: list[int], allow_in_index: bool) -> dict[int, Any]:
        """Encoded bytes of the first of some inner chunks, None for one that is absent: as many as there is room for."""
        if not positions:
            return {}
        places = np.empty((len(positions), 2), dtype=np.uint64)
        memory, n = shard.fetch(
            np.array(positions, dtype=np.uint64),
            places,
            max_nbytes=self.half_nbytes // 2,
            allow_in_index=allow_in_index,
        )
        view = memoryview(memory)
        return {
            position: None if offset == ABSENT else view[offset : offset + nbytes]
            for position, (offset, nbytes) in zip(positions[:n], places[:n].tolist(), strict=True)
        }

    def _push(self, jobs: list[_Job]) -> None:
        self.jobs += jobs
        self.waiting_nbytes += sum(job.old.nbytes for job in jobs if job.old is not None)
        if self.waiting_nbytes > self.half_nbytes // 2 or len(self.jobs) >= MAX_POSITIONS:
            self.encode_all()

    def encode_all(self) -> None:
        """Encode the chunks that wait."""
        jobs, self.jobs, self.waiting_nbytes = self.jobs, [], 0
        if not jobs:
            return
        codecs: ChunkCodecs = self.objects[jobs[0].item].chain.stage
        encoded: list[Any] = [None] * len(jobs)

        def encode_run(begin: int, end: int) -> None:
            encoded[begin:end] = self._encode_run(jobs[begin:end], codecs)

        nbytes = decoded_nbytes(jobs[0].cuts.chunk_shape, codecs)
        spread(len(jobs), encode_run, codecs, nbytes, self.half_nbytes, self.n_threads, self.cancel)
        for job, buffer in zip(jobs, encoded, strict=True):
            self.objects[job.item].take(job.position, buffer)

    def _encode_run(self, run: Sequence[_Job], codecs: ChunkCodecs) -> list[Any]:
        """Encode some chunks; None for those that are not stored."""
        chunks = [self._merged(job, codecs) for job in run]
        stored = [i for i, chunk in enumerate(chunks) if self.write_empty or not codecs.is_fill(chunk)]
        buffers: list[Any] = [None] * len(run)
        try:
            for i, buffer in zip(
                stored, codecs.encode([chunks[i] for i in stored], self.write_empty), strict=True
            ):
                buffers[i] = buffer
        except Exception as error:
            if len(run) == 1:
                raise codec_error(error, run[0].item, run[0].position) from error
            return [self._encode_run([job], codecs)[0] for job in run]  # one by one: which is it?
        return buffers

    def _merged(self, job: _Job, codecs: ChunkCodecs) -> Array:
        """A chunk as it shall be: what is given, on what was there."""
        chunk: Array = np.empty(job.cuts.shape_at(job.position), dtype=codecs.fill.dtype)
        if job.old is not None:
            chunk[...] = decoded([Piece(job.item, job.position, job.cuts, codecs, job.old)], codecs)[0]
        elif not job.cuts.is_whole(job.position or 0):
            chunk[...] = codecs.fill
        job.cuts.gather(job.position or 0, self.value, chunk)
        return chunk


def _in_order(positions: Array, grid_shape: Sequence[int], order: str) -> list[int]:
    """Inner chunks of a shard in the order in which they are written."""
    if order == "lexicographic":
        return [*map(int, positions)]
    coords = np.unravel_index(positions.astype(np.intp), tuple(grid_shape)) if grid_shape else ()
    ordered = np.empty(len(positions), dtype=np.uint64)
    first, last = [int(c.min()) for c in coords], [int(c.max()) for c in coords]
    if math.prod(high - low + 1 for low, high in zip(first, last, strict=True)) == len(positions):
        native.load().order(ordered, grid_shape, order, first, last)
        return [*map(int, ordered)]
    everything = np.empty(math.prod(grid_shape), dtype=np.uint64)
    native.load().order(everything, grid_shape, order)
    return [*map(int, everything[np.isin(everything, positions)])]


def _store(
    objects: Sequence[_New], keep_empty: bool, n_threads: int, how: dict[str, Any]
) -> tuple[list[Any], list[int], list[int]]:
    """Put new objects together and where they belong; those without a path come back.

    Also return the positions of those that were to be made but exist, and of those that decline to be appended to.
    """
    if objects[0].chain.is_shard:
        plan = [(new.chain, new.path, new.positions, new.buffers, new.old, None) for new in objects]
        results: list[Any]
        results, _, (exist, declined) = native.load().write_encoded(
            plan, keep_empty=keep_empty, n_threads=n_threads, **how
        )
        return results, exist, declined
    in_memory = [new.buffers[0] if new.path is None else None for new in objects]
    there = [i for i, new in enumerate(objects) if new.path is not None and not _store_whole(new, how)]
    return in_memory, there, []


def _store_whole(new: _New, how: dict[str, Any]) -> bool:
    """Write the file of an object that is one chunk; False when it was to be made but exists.

    To the engine its bytes are raw elements, and a lone fill value is a file to remove.
    """
    data = new.buffers[0]
    elements = np.zeros(1, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    raw = {"itemsize": 1, "swap": (), "perm": (0,), "fill": b"\0", "ops": ()}
    chain = native.load().Chain(shape=elements.shape, **raw)
    item = (chain, new.path, whole(elements.shape), new.old)
    _, _, (exist, _) = native.load().write([item], elements, (0,), write_empty=data is not None, **how)
    return not exist
