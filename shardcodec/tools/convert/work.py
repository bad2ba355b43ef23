# work.py - write one group of shards: move encoded chunks or encode elements
# SPDX-License-Identifier: MIT
"""Write one group of shards: move encoded chunks or encode elements.

`GroupWork`: writes the shards of a group that are not finished. `ArrayConversion`: writes and verifies shards of one array, and says what is stored.
Both keep no state between groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ... import native
from ...access.shard_object import open_object
from ...errors import ConflictError, ShardError
from ...options import Options
from ...readable import format_nbytes
from ..chunk_check import ChunkCheck, Level
from ..damage.rebuilt_index import sequence
from ..monitor import Monitor
from ..new_hierarchy import JobOver, NewHierarchy
from ..rewrite import CopiedChunks, copy_chunks
from ..survey import survey
from .destination import NewArray, ShardState
from .grouping import INDEX_NBYTES, move_nbytes
from .layout import RecodedChunks
from .plan import ConvertPlan, PlannedArray, Unit
from .report import ShardFailure, ShardRecord
from .source import EncodedChunks, Ints, SourceArray, SourceTree
from .stored_objects import Coords
from .zarr_source import chunk_places

__all__ = [
    "ArrayConversion",
    "Done",
    "GroupResult",
    "GroupWork",
    "WrittenPiece",
    "WrittenShard",
    "chunks_of_shard",
    "encode_group",
    "piece_crc",
    "stream_shard",
]


# ---------------------------------------------------------------- the chunks of a new shard


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


# ---------------------------------------------------------------- new shards from elements
#
# `encode_group`: read a box of the source once, and encode it as whole shards. `stream_shard`: one shard, piece by piece.


class WrittenPiece(NamedTuple):
    """Elements that were written, and their checksum.

    Attributes
    ----------
    start, shape : tuple of int
        A box of the shard, in elements.
    crc : int
        Checksum of its elements, in C order.
    """

    start: Ints
    shape: Ints
    crc: int


class WrittenShard(NamedTuple):
    """One shard that was written.

    Attributes
    ----------
    pieces : tuple of WrittenPiece
        Empty if no checksums were wanted.
    is_stored : bool
        False if no object is stored, because all elements have the fill value.
    """

    pieces: tuple[WrittenPiece, ...]
    is_stored: bool


def piece_crc(values: np.ndarray[Any, Any]) -> int:
    """Return the checksum of elements in C order."""
    plain = np.ascontiguousarray(values)
    return int(native.load().crc32c(plain.reshape(-1).view(np.uint8))) if plain.size else 0


def encode_group(
    source: SourceArray,
    to: NewArray,
    first: Ints,
    shape: Ints,
    wanted: Sequence[Ints],
    *,
    wants_crc: bool,
    is_verified: bool,
) -> dict[Ints, WrittenShard]:
    """Write shards of a group.

    Parameters
    ----------
    source : SourceArray
    to : NewArray
    first : tuple of int
        Position of the first shard of the group.
    shape : tuple of int
        Shards of the group along each axis.
    wanted : sequence of tuple of int
        The shards that are written.
    wants_crc : bool
        Compute checksums of the elements.
    is_verified : bool
        The shards will be verified. Otherwise ``is_stored`` of the results is always True.

    Returns
    -------
    dict
        From shards to what was written of them.
    """
    size = to.chain.shape
    values = _elements(
        source,
        to,
        tuple(at * n for at, n in zip(first, size, strict=True)),
        tuple(k * n for k, n in zip(shape, size, strict=True)),
    )
    to.write(first, values, wanted)
    if not is_verified:
        return dict.fromkeys(wanted, WrittenShard((), True))
    found: dict[Ints, WrittenShard] = {}
    for coords in wanted:
        box: tuple[Any, ...] = tuple(
            slice((c - f) * n, (c - f + 1) * n) for c, f, n in zip(coords, first, size, strict=True)
        )
        inside = values[(..., *box)]
        pieces = (WrittenPiece((0,) * len(size), size, piece_crc(inside)),) if wants_crc else ()
        found[coords] = WrittenShard(pieces, to.is_stored(coords) or not _is_fill(inside, to.chain.fill))
    return found


def _is_fill(values: np.ndarray[Any, Any], fill: bytes) -> bool:
    """Return True if all elements have the bits of the fill value."""
    bits = np.dtype((np.void, len(fill)))
    return bool((values.view(bits) == np.frombuffer(fill, bits)[0]).all())


def stream_shard(
    source: SourceArray, to: NewArray, coords: Ints, piece: Ints, *, wants_crc: bool
) -> WrittenShard:
    """Write one shard piece by piece, so that memory holds one piece.

    Parameters
    ----------
    source : SourceArray
    to : NewArray
    coords : tuple of int
        Position of the shard in the grid.
    piece : tuple of int
        Inner chunks of a piece along each axis of the array.
    wants_crc : bool
        Compute checksums of the elements.
    """
    spec, chunk_shape = to.spec, to.chunk_shape
    assert spec is not None
    counts = tuple(a // b for a, b in zip(spec.shard_shape, chunk_shape, strict=True))
    written = []
    with to.writer(coords) as writer:
        for begin in itertools.product(*map(range, [0] * len(counts), counts, piece)):
            n = tuple(min(p, c - b) for p, c, b in zip(piece, counts, begin, strict=True))
            start = tuple(b * size for b, size in zip(begin, chunk_shape, strict=True))
            origin = tuple(c * size + s for c, size, s in zip(coords, spec.shard_shape, start, strict=True))
            if any(a >= limit for a, limit in zip(origin, to.shape, strict=True)):
                continue
            shape = tuple(k * size for k, size in zip(n, chunk_shape, strict=True))
            values = _elements(source, to, origin, shape)
            if wants_crc:
                written.append(WrittenPiece(start, shape, piece_crc(values)))
            where, chunks = _by_chunks(values, begin, n, chunk_shape, spec.chain.perm)
            del values
            writer.write_chunks(where, chunks)
        is_stored = to.has_chunks(writer)
    return WrittenShard(tuple(written), is_stored)


def _by_chunks(
    values: np.ndarray[Any, Any], begin: Ints, counts: Ints, chunk_shape: Ints, perm: Ints
) -> tuple[list[Ints], np.ndarray[Any, Any]]:
    """Return the stored positions of the inner chunks of a piece, and their elements, chunk by chunk."""
    ndim = len(counts)
    split = values.reshape([n for pair in zip(counts, chunk_shape, strict=True) for n in pair])
    order = [2 * axis for axis in perm] + [2 * axis + 1 for axis in perm]
    stored = split.transpose(order)
    chunks = stored.reshape(math.prod(counts), *stored.shape[ndim:])
    where = [
        tuple(begin[axis] + k for axis, k in zip(perm, at, strict=True))
        for at in itertools.product(*(range(counts[axis]) for axis in perm))
    ]
    return where, chunks


def _elements(source: SourceArray, to: NewArray, start: Ints, shape: Ints) -> np.ndarray[Any, Any]:
    """Return a box of the source; cells outside of the array have the fill value."""
    inside = tuple(max(0, min(n, limit - a)) for a, n, limit in zip(start, shape, to.shape, strict=True))
    try:
        values = np.empty(shape, to.dtype)
    except MemoryError as error:
        nbytes = math.prod(shape) * to.dtype.itemsize
        raise MemoryError(f"expected {format_nbytes(nbytes)} of memory for a box of {shape}") from error
    if inside != shape:
        fill = np.frombuffer(to.chain.fill, to.dtype)[0]
        for axis, n in enumerate(inside):
            values[(slice(None),) * axis + (slice(n, None),)] = fill
    box: tuple[Any, ...] = (..., *map(slice, inside))  # with the ellipsis also of no axes an array
    source.read(start, values[box])
    return values


# ---------------------------------------------------------------- one array of a plan


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
        new, spec, wants_crc = self.new, self.new.spec, self._plan.verify == "full"
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
        full = self._plan.verify == "full" or (self._plan.verify == "checksum" and new.spec is None)
        piece, shards = array.grouping.piece, array.grouping.shards
        if piece is not None:
            return {at: stream_shard(source, new, at, piece, wants_crc=full) for at in some}
        first = tuple(g * k for g, k in zip(group, shards, strict=True))
        shape = tuple(min(k, n - f) for f, k, n in zip(first, shards, array.grid, strict=True))
        if len(some) == 1:  # the last ones of an interrupted group need not read all of it
            first, shape = some[0], (1,) * len(first)
        is_verified = self._plan.verify != "none"
        return encode_group(source, new, first, shape, some, wants_crc=full, is_verified=is_verified)

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


# ---------------------------------------------------------------- the work on one group of shards

# From array and position to what earlier runs have recorded. Several workers may have written one shard.
Done = Mapping[tuple[str, Ints], Sequence[ShardRecord]]


class GroupResult(NamedTuple):
    """The result of a group of shards; `n_empty` have no stored elements, and no record."""

    records: tuple[ShardRecord, ...]
    failures: tuple[ShardFailure, ...]
    n_skipped: int
    n_empty: int = 0


class GroupWork:
    """The work on the groups of a plan. Several threads may call it.

    Parameters
    ----------
    plan : ConvertPlan
    tree : SourceTree
        The opened source.
    destination : NewHierarchy
    options : Options
    done : mapping
        Shards that earlier runs have recorded.
    records_source : bool
        Look at the state of the source objects, for a ledger of a job. Once the destination of a job has documents,
        nothing is written.
    """

    def __init__(
        self,
        plan: ConvertPlan,
        tree: SourceTree,
        destination: NewHierarchy,
        options: Options,
        done: Done,
        *,
        records_source: bool = True,
    ) -> None:
        self._plan, self._done = plan, done
        self._records_source = records_source
        self._destination = destination
        by_name = {source.name: source for source in tree.arrays}
        self._arrays = [
            ArrayConversion(
                array, by_name[array.name], destination, plan, options, records_source=records_source
            )
            for array in plan.arrays
        ]

    def run(self, unit: Unit) -> GroupResult:
        """Write the shards of a group that are not finished yet.

        Raises
        ------
        ConflictError
            The source has changed since an earlier run.
        """
        conversion = self._arrays[unit.array]
        array, stored = conversion.array, conversion.stored
        of_group = (
            array.coords(unit.group) if stored is None or self._records_source else stored.get(unit.group, ())
        )
        n_empty = array.n_coords(unit.group) - len(of_group)
        wanted: list[Ints] = []
        unseen: list[ShardFailure] = []
        for at in of_group:
            with _noting(conversion.new, [at], unseen):
                if not conversion.is_done(at, self._done.get((array.name, at), ())):
                    wanted.append(at)
        n_skipped = len(of_group) - len(wanted) - len(unseen)
        if wanted and self._records_source and self._destination.is_complete:
            # another worker of the job was faster, and users may have written since
            return GroupResult((), tuple(unseen), n_skipped + len(wanted))
        known = None if stored is None else set(stored.get(unit.group, ()))
        empty = [] if known is None else [at for at in wanted if at not in known]
        wanted = wanted if known is None else [at for at in wanted if at in known]
        records: list[ShardRecord] = []
        failures: list[ShardFailure] = []
        # one by one if they do not need one another, so that one damaged shard does not fail the others
        groups = [[at] for at in wanted]
        if wanted and array.layout.method == "encode" and array.grouping.piece is None:
            groups = [wanted]
        n_wanted = len(wanted) + len(empty)
        try:
            for at in empty:
                with _noting(conversion.new, [at], failures):
                    records.append(conversion.leave_empty(at))
            n_empty_failures = len(failures)
            if len(wanted) > 1 and groups == [wanted]:
                with _noting(conversion.new, wanted, failures):
                    records += conversion.write(unit.group, wanted)
                groups = [[at] for at in wanted] if len(failures) > n_empty_failures else []
                del failures[n_empty_failures:]
            for some in groups:
                with _noting(conversion.new, some, failures):
                    records += conversion.write(unit.group, some)
        except JobOver:
            n_skipped += n_wanted - len(records) - len(failures)
        return GroupResult(tuple(records), (*unseen, *failures), n_skipped, n_empty)

    def stored_units(self) -> tuple[Iterator[Unit], int]:
        """Return the units of the plan that have stored elements, and the number of shards of all others."""
        n_shards = 0
        for conversion in self._arrays:
            array, groups = conversion.array, conversion.stored
            n_shards += array.n_shards if groups is None else sum(map(array.n_coords, groups))

        def units() -> Iterator[Unit]:
            for number, conversion in enumerate(self._arrays):
                if conversion.stored is None:
                    yield from self._plan.units_of(number)
                else:
                    yield from (Unit(number, at) for at in conversion.stored)

        return units(), self._plan.n_shards - n_shards

    def _recorded(self, monitor: Monitor) -> Iterator[tuple[ArrayConversion, Ints, Sequence[ShardRecord]]]:
        """Yield all shards of the plan with their records; the objects of the source are listed again, because new ones are a change too."""
        for conversion in self._arrays:
            if conversion.source.stored is not None:
                conversion.source.stored.forget()
        for unit in self._plan.units():
            monitor.check()
            conversion = self._arrays[unit.array]
            for at in conversion.array.coords(unit.group):
                yield conversion, at, self._done.get((conversion.array.name, at), ())

    def unfinished(self, monitor: Monitor) -> Iterator[ShardFailure]:
        """Yield the shards of the plan that are not stored as the ledgers show them.

        Raises
        ------
        ConflictError
            The source has changed since a shard was written.
        """
        for conversion, at, records in self._recorded(monitor):
            if not conversion.is_done(at, records):
                new = conversion.new
                detail = "it is not stored any more as the ledger shows; run its part again"
                yield ShardFailure(new.name, new.describe(at), detail)

    def check_sources(self, monitor: Monitor) -> None:
        """Raise `ConflictError` if the source of a shard has changed since it was written."""
        for conversion, at, records in self._recorded(monitor):
            if records:
                conversion.check_source(at, records)


@contextmanager
def _noting(new: NewArray, some: Sequence[Ints], failures: list[ShardFailure]) -> Iterator[None]:
    """Note an error as a failure of these shards; only a conflict ends the run."""
    try:
        yield
        return
    except (ConflictError, JobOver):
        raise
    except (ShardError, OSError) as error:
        detail = str(error)
    except Exception as error:  # noqa: BLE001 - whatever a source or a store raises fails these shards only
        detail = f"{type(error).__name__}: {error}"
    failures += [ShardFailure(new.name, new.describe(at), detail) for at in some]
