# write.py - parts of one array into many objects, with codecs that are not native
# SPDX-License-Identifier: MIT
"""The engine's `write` for opaque chains; see `chunks`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import native
from ...errors import ShardError, is_of_signal_handler
from ..chunk_regions import Cuts, cuts_of
from ..placement import ABSENT
from ..read import is_damage
from ..records import ChunkBytes, OldObject, PlanItem
from ..regions import Box, whole
from .read import (
    MAX_POSITIONS,
    Array,
    ChunkCodecs,
    ManyChunkCodecs,
    Piece,
    codec_error,
    decode_pieces,
    decoded_nbytes,
    run_on_threads,
    whole_object,
)

if TYPE_CHECKING:
    from ..._native import Written

__all__ = ["write"]


class _ChunkJob(NamedTuple):
    """A chunk to be encoded.

    item: number of the object in the plan. position: that of the inner chunk in the index; None: the object is one chunk. cuts:
    the elements of the object that are written. old: the old encoded chunk; None: it is absent, or all its elements are
    written. spares_old: if it cannot be decoded it counts as absent, because all elements within the array are written.
    """

    item: int
    position: int | None
    cuts: Cuts
    old: Any
    spares_old: bool = False


class _NewObject(NamedTuple):
    """A new object: its item of the plan, and the chunks that are encoded so far."""

    item: PlanItem
    positions: list[int]
    buffers: list[Any]

    def take(self, position: int | None, buffer: Any) -> None:
        """Add an encoded chunk; None: it equals the fill value and gets no slot of the old one."""
        if position is None or buffer is not None:
            self.positions.append(position or 0)
            self.buffers.append(buffer)
        elif self.item.placement is not None:
            self.item.placement.entries[position] = ABSENT


def write(
    plan: Sequence[PlanItem],
    value: Array,
    axes: Sequence[int],
    *,
    staging_nbytes: int,
    order: str = "morton",
    write_empty: bool = False,
    keep_empty: bool = False,
    sync: bool = False,
    tells_states: bool = False,
    allow_in_index: bool = False,
    staging: str | None = None,
    n_threads: int = 1,
    cancel: Any = None,
    io_depth: int = 0,
    io_latency: float | None = None,
) -> Written:
    """Write parts of one array into many objects, as the engine's `write`; `value` is an array of any dtype.

    If a codec fails, its exception is the cause of the CodecError, and the object is unchanged.
    """
    objects: list[Any] = []
    appeared: list[int] = []
    declined: list[int] = []
    states: list[bytes] = []
    how = {
        "sync": sync,
        "tells_states": tells_states,
        "staging": staging,
        "cancel": cancel,
        "io_depth": io_depth,
        "io_latency": io_latency,
    }
    for group in _groups(plan, staging_nbytes // 2):
        # an object that is one chunk stays only if it holds the fill value
        store_fill = write_empty or (keep_empty and not group[0][1].chain.is_shard)
        writing = _StagedWrite(value, axes, order, store_fill, staging_nbytes, n_threads, cancel)
        for number, item in group:
            writing.add(number, item, allow_in_index)
        writing.encode_all()
        news, exist, refused, versions = _store(list(writing.objects.values()), keep_empty, n_threads, how)
        appeared += [len(objects) + position for position in exist]
        declined += [len(objects) + position for position in refused]
        objects += news
        states += versions
    return objects, appeared, declined, states


def _groups(plan: Sequence[PlanItem], limit_nbytes: int) -> Iterator[list[tuple[int, PlanItem]]]:
    """Yield lists of (number, object) that are encoded together, so that small objects keep all threads busy.

    The decoded elements of a list have at most `limit_nbytes` bytes, unless one object alone has more.
    """
    group: list[tuple[int, PlanItem]] = []
    total = 0
    for number, item in enumerate(plan):
        shape = item.selection.count if isinstance(item.selection, Box) else item.chain.shape
        nbytes = decoded_nbytes(shape, item.chain.stage)
        if group and total + nbytes > limit_nbytes:
            yield group
            group, total = [], 0
        group.append((number, item))
        total += nbytes
    yield group


def _source_of(old: OldObject | None) -> Any:
    """Return the bytes or the file of the old object; None if there is none or it is not needed."""
    return None if old is None else old.source


class _StagedWrite:
    """A write of some objects: collects jobs until there are enough for all threads, then encodes."""

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
        self.objects: dict[int, _NewObject] = {}
        self.jobs: list[_ChunkJob] = []
        self.waiting_nbytes = 0

    def add(self, number: int, item: PlanItem, allow_in_index: bool) -> None:
        """Queue a job for each chunk of an object that is written. Encodes the queue whenever it is long enough."""
        self.objects[number] = _NewObject(item, [], [])
        chain, old = item.chain, _source_of(item.old)
        assert item.selection is not None
        cuts = cuts_of(chain, item.selection, self.axes, self.value.ndim)
        if not chain.is_shard:
            needs_old = old is not None and not cuts.is_whole(0)
            spares = needs_old and cuts.gives(0, item.inside)
            self._push([_ChunkJob(number, None, cuts, whole_object(old) if needs_old else None, spares)])
            return
        try:
            for jobs in self._jobs_of_shard(number, item, cuts, old, allow_in_index):
                self._push(jobs)
        except ShardError as error:
            error.shard = number
            self.jobs = [job for job in self.jobs if job.item != number]
            self.encode_all()  # an error of an earlier object comes first
            raise

    def _jobs_of_shard(
        self, number: int, item: PlanItem, cuts: Cuts, old: Any, allow_in_index: bool
    ) -> Iterator[list[_ChunkJob]]:
        """Yield a job for each inner chunk that is written, in lists, in the order in which the new chunks are stored.

        The old shard (descriptor or bytes) is open until the iterator ends. A list has at most `MAX_POSITIONS` jobs, and their
        old chunks take at most a quarter of the staging memory, unless one chunk alone takes more. An old chunk is read if only
        some of its elements are written, and if its entry is in the index that `look` has checked.
        """
        chain, entries = item.chain, None if item.old is None else item.old.entries
        positions = _in_order(cuts.positions(), chain.grid_shape, self.order)
        shard = None if old is None else native.load().OpenShard(chain, old)
        begin = 0
        while begin < len(positions):
            group = positions[begin : begin + MAX_POSITIONS]
            olds: dict[int, Any] = {}
            if shard is not None:
                merged = [position for position in group if not cuts.is_whole(position)]
                if entries is not None:  # an entry that is not needed may be damaged, and is absent there
                    merged = [position for position in merged if entries[position, 0] != ABSENT]
                olds = self._fetch_old(shard, merged, allow_in_index)
                if len(olds) < len(merged):
                    group = group[: group.index(merged[len(olds)])]
            yield [
                _ChunkJob(number, position, cuts, olds[position], cuts.gives(position, item.inside))
                if position in olds
                else _ChunkJob(number, position, cuts, None)
                for position in group
            ]
            begin += len(group)
        if shard is not None:
            shard.close()

    def _fetch_old(self, shard: Any, positions: list[int], allow_in_index: bool) -> dict[int, Any]:
        """Read old encoded inner chunks, from the first position on, until a quarter of the staging memory is full.

        Return the bytes by position, for at least one position; None for an absent inner chunk.
        """
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

    def _push(self, jobs: list[_ChunkJob]) -> None:
        """Add jobs to the queue, and encode it when it has many jobs or many old bytes."""
        self.jobs += jobs
        self.waiting_nbytes += sum(job.old.nbytes for job in jobs if job.old is not None)
        if self.waiting_nbytes > self.half_nbytes // 2 or len(self.jobs) >= MAX_POSITIONS:
            self.encode_all()

    def encode_all(self) -> None:
        """Encode the pending chunks."""
        jobs, self.jobs, self.waiting_nbytes = self.jobs, [], 0
        if not jobs:
            return
        codecs: ChunkCodecs = self.objects[jobs[0].item].item.chain.stage
        encoded: list[Any] = [None] * len(jobs)

        def encode_run(begin: int, end: int) -> None:
            encoded[begin:end] = self._encode_run(jobs[begin:end], codecs)

        nbytes = decoded_nbytes(jobs[0].cuts.chunk_shape, codecs)
        run_on_threads(len(jobs), encode_run, codecs, nbytes, self.half_nbytes, self.n_threads, self.cancel)
        for job, buffer in zip(jobs, encoded, strict=True):
            self.objects[job.item].take(job.position, buffer)

    def _encode_run(self, run: Sequence[_ChunkJob], codecs: ChunkCodecs) -> list[Any]:
        """Return the encoded chunks of some jobs; None for a chunk that equals the fill value and is not stored."""
        chunks = [self._merged(job, codecs) for job in run]
        stored = [i for i, chunk in enumerate(chunks) if self.write_empty or not codecs.is_fill(chunk)]
        buffers: list[Any] = [None] * len(run)
        try:
            for i, buffer in zip(
                stored, codecs.encode([chunks[i] for i in stored], self.write_empty), strict=True
            ):
                buffers[i] = buffer
        except Exception as error:
            if is_of_signal_handler(error):
                raise
            if len(run) == 1:
                raise codec_error(error, run[0].item, run[0].position) from error
            # one by one, to find the chunk that fails
            return [self._encode_run([job], codecs)[0] for job in run]
        return buffers

    def _merged(self, job: _ChunkJob, codecs: ChunkCodecs) -> Array:
        """Return the decoded new chunk: the old elements or the fill value, overwritten by the caller's elements.

        Old elements stay in the byte order in which the codecs return them: filters of numcodecs reinterpret memory.
        """
        makes_copies = not isinstance(codecs, ManyChunkCodecs)
        if not makes_copies and (view := job.cuts.whole_view(job.position or 0, self.value)) is not None:
            return view
        old = self._decoded(job, codecs)
        if old is not None:
            chunk = old.copy() if makes_copies else old
        else:
            chunk = np.empty(job.cuts.shape_at(job.position), dtype=codecs.input_dtype)
            if not job.cuts.is_whole(job.position or 0):
                chunk[...] = codecs.fill
        job.cuts.gather(job.position or 0, self.value, chunk)
        return chunk

    @staticmethod
    def _decoded(job: _ChunkJob, codecs: ChunkCodecs) -> Array | None:
        """Return the decoded old chunk; None if there is none, or if it is damaged and not needed."""
        if job.old is None:
            return None
        try:
            return decode_pieces([Piece(job.item, job.position, job.cuts, codecs, job.old)], codecs)[0]
        except (ShardError, OSError) as error:  # bz2 raises OSError for malformed bytes
            if job.spares_old and (isinstance(error, OSError) or is_damage(error)):
                return None
            raise


def _in_order(positions: Array, grid_shape: Sequence[int], order: str) -> list[int]:
    """Return the positions of inner chunks sorted by `order`, for example along a Morton curve."""
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


def _store(objects: Sequence[_NewObject], keep_empty: bool, n_threads: int, how: dict[str, Any]) -> Written:
    """Build the new objects from their encoded chunks and store them; an object without a path is returned as bytes."""
    if objects[0].item.chain.is_shard:
        plan = [
            new.item._replace(selection=None, chunks=ChunkBytes(new.positions, new.buffers))
            for new in objects
        ]
        return native.load().write(plan, keep_empty=keep_empty, n_threads=n_threads, **how)  # type: ignore[no-any-return]
    news = [new.buffers[0] if new.item.path is None else None for new in objects]
    each = {number: _store_whole(new, how) for number, new in enumerate(objects) if new.item.path is not None}
    appeared = [number for number, (_, exist, *_) in each.items() if exist]
    return news, appeared, [], [each[i][3][0] if i in each else b"" for i in range(len(objects))]


def _store_whole(new: _NewObject, how: dict[str, Any]) -> Written:
    """Write the file of an object that is one chunk.

    To the engine its bytes are raw elements, and a single fill value is a file to remove.
    """
    data = new.buffers[0]
    elements = np.zeros(1, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    raw = {"itemsize": 1, "swap": (), "perm": (0,), "fill": b"\0", "ops": ()}
    chain = native.load().Chain(shape=elements.shape, **raw)
    item = PlanItem(chain, new.item.path, whole(elements.shape), None, new.item.old)
    return native.load().write([item], elements, (0,), write_empty=data is not None, **how)  # type: ignore[no-any-return]
