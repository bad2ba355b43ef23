# array_conversion.py - the conversion of one array of a plan
# SPDX-License-Identifier: MIT
"""`ArrayConversion`: write the shards of one array of a plan, moved as they are, encoded, or streamed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ... import native
from ...access.shard_object import open_object
from ...errors import ConflictError
from ...options import Options
from ..chunk_check import ChunkCheck, Level
from ..damage.rebuilt_index import sequence
from ..new_hierarchy import NewHierarchy
from ..rewrite import CopiedChunks, copy_chunks
from ..survey import survey
from .destination import NewArray, ShardState
from .grouping import INDEX_NBYTES, move_nbytes
from .layout import RecodedChunks
from .new_shards import WrittenShard, encode_group, piece_crc, stream_shard
from .plan import ConvertPlan, PlannedArray
from .report import ShardRecord
from .source import EncodedChunks, Ints, SourceArray
from .stored_objects import Coords
from .zarr_source import chunk_places

__all__ = ["ArrayConversion", "chunks_of_shard"]


def chunks_of_shard(to: NewArray, coords: Ints) -> Coords:
    """Return the chunks of the whole array that a shard has, in Morton order; those outside of the array are left out."""
    spec, chunk_shape = to.spec, to.chunk_shape
    assert spec is not None
    counts = [a // b for a, b in zip(spec.shard_shape, chunk_shape, strict=True)]
    stored = np.stack(np.unravel_index(sequence(spec, "morton"), spec.grid_shape), axis=1)
    chunks = np.empty(stored.shape, dtype=np.int64)
    chunks[:, list(spec.chain.perm)] = stored
    chunks += np.array(coords, dtype=np.int64) * np.array(counts, dtype=np.int64)
    limit = [-(-n // size) for n, size in zip(to.shape, chunk_shape, strict=True)]
    return chunks[(chunks < np.array(limit, dtype=np.int64)).all(axis=1)]


class ArrayConversion:
    """One array of a plan: writes its shards, verifies them, and says what is stored. Several threads may call it.

    `stored` are the shards with elements of existing objects, by their groups; None if these are not known.
    """

    def __init__(
        self,
        array: PlannedArray,
        source: SourceArray,
        destination: NewHierarchy,
        plan: ConvertPlan,
        options: Options,
        *,
        records_source: bool,
    ) -> None:
        self.array = array
        self.source = source
        self.stored: dict[Ints, list[Ints]] | None = _stored_shards(array, source)
        self.new: NewArray = NewArray(destination, array.name, plan.documents[array.name], options)
        self._plan, self._options, self._records_source = plan, options, records_source
        self._encoded = _encoded(array, source, plan)
        spec = self.new.spec
        self._check = (
            None if spec is None else ChunkCheck.of(spec, self.new.bytes, replace(options, threads=1))
        )

    def source_state(self, coords: Ints) -> str | None:
        """Return a name of the state of the source of a shard; None if the ledger does not have it."""
        array, source = self.array, self.source
        if not self._records_source or array.via is not None:
            return None  # the ledger of an intermediate array has the states of its source
        start = tuple(at * n for at, n in zip(coords, array.shard_shape, strict=True))
        stop = tuple(
            min(a + n, limit) for a, n, limit in zip(start, array.shard_shape, source.shape, strict=True)
        )
        return source.state(start, stop)

    def check_source(self, coords: Ints, records: Sequence[ShardRecord]) -> None:
        """Raise `ConflictError` if the source of a shard is not in the state that one of its records has."""
        state = self.source_state(coords)
        if any(one.source == state for one in records):
            return
        name = self.new.describe(coords)
        raise ConflictError(
            f"{self.source.place}: the source of shard {name!r} has changed since it was converted; convert to a new "
            "destination",
            shard=name,
            expected=records[-1].source,
            actual=state,
        )

    def is_done(self, coords: Ints, records: Sequence[ShardRecord]) -> bool:
        """Return True if an earlier run has written a shard, and it is stored as one of its records shows."""
        if not records:
            return False
        stored = self.new.state(coords)
        matching = [one for one in records if one.stored == stored]
        self.check_source(coords, matching or records[-1:])
        return bool(matching)

    def write(self, group: Ints, shards: Sequence[Ints]) -> list[ShardRecord]:
        """Write shards of a group, and verify them if the plan says so."""
        is_moved = self.array.layout.method != "encode"
        states = {at: self.source_state(at) for at in shards}
        encoded = {} if is_moved else self._encode(group, shards)
        records = []
        for at in shards:
            written = self._move(at) if is_moved else encoded[at]
            self._verify(at, written)
            records.append(self._record(at, states[at], written))
        return records

    def leave_empty(self, coords: Ints) -> ShardRecord:
        """Return the record of a shard without elements in objects that a listing shows."""
        state = self.source_state(coords)
        if self._records_source:  # a killed run may have stored it
            self.new.remove(coords)
        return ShardRecord(self.array.name, coords, ShardState(0), state)

    def _record(self, coords: Ints, state: str | None, written: CopiedChunks | WrittenShard) -> ShardRecord:
        n_moved, nbytes = 0, 0
        if not isinstance(written, CopiedChunks):
            nbytes = _inside_nbytes(self.array, self.source, coords)
        else:
            n_moved, nbytes = (written.n_chunks if self.array.layout.method == "move" else 0), written.nbytes
        return ShardRecord(self.array.name, coords, self.new.state(coords), state, n_moved, nbytes)

    def _move(self, coords: Ints) -> CopiedChunks:
        """Write one shard from encoded chunks of the source. Nothing is decoded; without any chunks no object is stored."""
        new, spec, wants_crc = self.new, self.new.spec, self._plan.verify == "compare"
        assert self._encoded is not None
        if spec is None:
            return _move_object(self._encoded, new, coords)
        held = new.held_nbytes + INDEX_NBYTES * spec.n_chunks
        most = move_nbytes(spec.inner.nbytes, held, self._plan.memory, self._options.threads)
        counts = tuple(a // b for a, b in zip(spec.shard_shape, new.chunk_shape, strict=True))
        runs = (
            (chunk_places(where, counts, spec.chain.perm)[1], sizes, data)
            for where, sizes, data in self._encoded.joined(chunks_of_shard(new, coords), most)
        )
        first = next(runs, None)
        if first is None:
            new.remove(coords)
            return CopiedChunks(0, 0, 0 if wants_crc else None)
        with new.writer(coords) as writer:
            return copy_chunks(writer, itertools.chain((first,), runs), wants_crc=wants_crc)

    def _encode(self, group: Ints, some: Sequence[Ints]) -> dict[Ints, WrittenShard]:
        array, source, new = self.array, self.source, self.new
        compares = self._plan.verify == "compare" or (self._plan.verify == "checksum" and new.spec is None)
        piece, shards = array.grouping.piece, array.grouping.shards
        if piece is not None:
            return {at: stream_shard(source, new, at, piece, wants_crc=compares) for at in some}
        first = tuple(g * k for g, k in zip(group, shards, strict=True))
        shape = tuple(min(k, n - f) for f, k, n in zip(first, shards, array.grid, strict=True))
        if len(some) == 1:  # the last ones of an interrupted group need not read all of it
            first, shape = some[0], (1,) * len(first)
        is_verified = self._plan.verify != "none"
        return encode_group(source, new, first, shape, some, wants_crc=compares, is_verified=is_verified)

    def _verify(self, coords: Ints, written: CopiedChunks | WrittenShard) -> None:
        """Read a stored shard again, if that is wanted.

        Raises
        ------
        OSError
            It is not stored as it was written.
        """
        new, check = self.new, self._check
        if self._plan.verify == "none":
            return
        is_stored = written.n_chunks > 0 if isinstance(written, CopiedChunks) else written.is_stored
        if is_stored and not new.is_stored(coords):
            raise OSError(
                f"{new.describe(coords)}: expected the shard that was written, but it is not stored"
            )
        # moved chunks were not decoded, so their checksums were not compared yet
        if check is not None and (self._plan.verify == "checksum" or isinstance(written, CopiedChunks)):
            _check_checksums(new, coords, check)
        if isinstance(written, CopiedChunks):
            if written.crc is not None and new.content_crc(coords) != written.crc:
                raise OSError(
                    f"{new.describe(coords)}: the stored inner chunks differ from those that were written"
                )
        elif any(piece_crc(new.read(coords, one.start, one.shape)) != one.crc for one in written.pieces):
            raise OSError(f"{new.describe(coords)}: the stored elements differ from those that were written")


def _move_object(chunks: EncodedChunks, to: NewArray, coords: Ints) -> CopiedChunks:
    """Write the object of an array without axes, which has no shards."""
    for _, sizes, data in chunks.joined(np.array([coords], dtype=np.int64), 0):
        to.put(coords, bytes(data))
        return CopiedChunks(len(sizes), sum(sizes), native.load().crc32c(data))
    to.remove(coords)
    return CopiedChunks(0, 0, None)


def _encoded(array: PlannedArray, source: SourceArray, plan: ConvertPlan) -> EncodedChunks | None:
    if array.layout.method == "zarr":
        return RecodedChunks(source, plan.documents[array.name])
    return source.encoded() if array.layout.method == "move" else None


def _stored_shards(array: PlannedArray, source: SourceArray) -> dict[Ints, list[Ints]] | None:
    """Return the shards with elements of existing objects by their groups; None if these are not known."""
    found = None if source.stored is None or not source.shape else source.stored.touched(array.shard_shape)
    if found is None:
        return None
    groups: dict[Ints, list[Ints]] = {}
    for at in map(tuple, found.tolist()):
        groups.setdefault(tuple(i // k for i, k in zip(at, array.grouping.shards, strict=True)), []).append(
            at
        )
    return groups


def _check_checksums(new: NewArray, coords: Ints, check: ChunkCheck) -> None:
    view = open_object(new.folder.store, new.key(coords))
    if view is None:
        return
    try:
        found = survey(view, new.describe(coords), check, Level.CHECKSUM, array=new.name)
    finally:
        view.close()
    if found.findings:
        raise OSError(f"{new.describe(coords)}: {found.findings[0].detail}")


def _inside_nbytes(array: PlannedArray, source: SourceArray, coords: Ints) -> int:
    nbytes = source.dtype.itemsize
    for at, size, limit in zip(coords, array.shard_shape, source.shape, strict=True):
        nbytes *= min(size, limit - at * size)
    return nbytes
