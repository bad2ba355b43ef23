# report.py - the results of convert, and of one finished shard
# SPDX-License-Identifier: MIT
"""The results of convert, and of one finished shard.

`ConvertReport` and its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...readable import Fact, format_count, format_nbytes
from ..other_objects import CopyReport
from ..report import Record, Report
from .destination import ShardState
from .source import Ints

__all__ = [
    "ConvertReport",
    "ConvertedArray",
    "Cost",
    "ReportOfJob",
    "ShardFailure",
    "ShardRecord",
    "table_lines",
]


@dataclass(frozen=True)
class ShardRecord(Record):
    """One finished shard.

    Attributes
    ----------
    array : str
        Path of the array.
    coords : tuple of int
        Position in the grid of shards.
    stored : ShardState
        What identifies the stored shard.
    source : str or None
        State of the source objects when they were read; None if the source does not tell it.
    n_moved : int
        Inner chunks that were moved without decoding.
    read_nbytes : int
        Encoded bytes that were moved, or decoded bytes that were read.
    """

    array: str
    coords: Ints
    stored: ShardState
    source: str | None = None
    n_moved: int = 0
    read_nbytes: int = 0

    @property
    def nbytes(self) -> int:
        """Size of the stored shard."""
        return self.stored.nbytes

    def to_json(self) -> dict[str, Any]:
        """Return a line of a ledger, which has all facts side by side."""
        facts = super().to_json()
        return {**facts.pop("stored"), **facts}

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> ShardRecord:
        """Return the record of a line; `KeyError` or `TypeError` for a line of a later version."""
        facts = dict(line)
        stored = ShardState(*(facts.pop(name) for name in ("nbytes", "state", "index_crc")))
        return cls(**{**facts, "coords": tuple(facts["coords"]), "stored": stored})


@dataclass(frozen=True)
class ShardFailure(Record):
    """A shard that could not be written, or that was not stored as it was written.

    Attributes
    ----------
    array : str
        Path of the array.
    shard : str
        Path or key of the new shard.
    detail : str
        Why.
    """

    array: str
    shard: str
    detail: str


def table_lines(arrays: Sequence[ConvertedArray]) -> Iterator[str]:
    """Yield a table of several arrays between empty lines: their shapes, chunks and shards before and after, and why these stay."""
    if len(arrays) < 2:
        return
    yield ""
    rows = [("array", "shape", "before", "after", "why it keeps its layout")]
    for array in arrays:
        before = _layout_text(array.old_chunk_shape, array.old_shard_shape)
        after = before if array.method == "copy" else _layout_text(array.chunk_shape, array.shard_shape)
        rows.append((array.name or "/", _shape_text(array.shape), before, after, array.kept))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    yield ""


def _layout_text(chunks: Ints | None, shards: Ints | None) -> str:
    if not chunks:
        return "-"
    return f"{_shape_text(chunks)} in {_shape_text(shards)}" if shards else _shape_text(chunks)


def _shape_text(shape: Ints) -> str:
    return "x".join(map(str, shape)) or "-"


@dataclass(frozen=True)
class Cost(Record):
    """The cost of the conversion of one array. Encoded sizes are estimated from a sample of the source.

    Attributes
    ----------
    n_reads, n_writes : int
        Requests: source objects (or ranges of them) that are read, and new objects.
    read_nbytes, write_nbytes : int or None
        Encoded bytes; None if the size of the source objects is unknown.
    amplification : float
        Decoded bytes of the source chunks that are read, divided by those of the array.
    n_files : int
        New objects at most.
    """

    n_reads: int
    n_writes: int
    read_nbytes: int | None
    write_nbytes: int | None
    amplification: float
    n_files: int

    def facts(self) -> Iterator[Fact]:
        """Yield reads and writes.

        Yields
        ------
        name, text : str
        """
        read, write = (
            "unknown" if n is None else format_nbytes(n) for n in (self.read_nbytes, self.write_nbytes)
        )
        reads, writes = (format_count(n, "request", ",") for n in (self.n_reads, self.n_writes))
        yield "reads", f"{reads}, about {read}, amplification {self.amplification:.3g}"
        yield "writes", f"{writes}, about {write}, {format_count(self.n_files, 'file', ',')}"


@dataclass(frozen=True)
class ConvertedArray(Report):
    """The conversion of one array.

    Attributes
    ----------
    name : str
        Path in the hierarchy.
    method : str
        ``"move"`` (encoded chunks were moved), ``"encode"`` (elements were decoded and encoded), ``"zarr"`` (the same by zarr's
        codecs) or ``"copy"`` (objects were copied).
    reason : str
        Why chunks were not moved.
    shape, chunk_shape, shard_shape : tuple of int
        Shapes of the array, of an inner chunk and of a shard, in elements. Without shards the last one is empty, and the
        other one that of a chunk.
    dtype : str
    n_shards : int
        Shards of the grid; without shards, chunks.
    streamed : bool
        A shard does not fit into the memory, so it is written piece by piece.
    via_chunk_shape : tuple of int or None
        Shape of an inner chunk of the intermediate array, if there is one.
    cost : Cost or None
        Only in a dry run.
    notes : tuple of str
        What the new array does not have as the source has it, and what other programs cannot read.
    old_chunk_shape, old_shard_shape : tuple of int or None
        Shapes of the inner chunks, or of the chunks, and of the shards of the source; None if it has none.
    kept : str
        Why the array keeps its layout, or has no shards; empty if it has the layout that was chosen.
    """

    schema: ClassVar[str] = "shardcodec.convert.array"

    name: str
    method: str
    reason: str
    shape: Ints
    dtype: str
    chunk_shape: Ints
    shard_shape: Ints
    n_shards: int
    streamed: bool
    via_chunk_shape: Ints | None = None
    cost: Cost | None = None
    notes: tuple[str, ...] = ()
    old_chunk_shape: Ints | None = None
    old_shard_shape: Ints | None = None
    kept: str = ""

    def facts(self) -> Iterator[Fact]:
        """Yield the name, and how the array is converted.

        Yields
        ------
        name, text : str
        """
        yield "", self.name or "array"
        if self.method == "copy":
            yield "copied", f"object by object: {self.reason}"
            return
        chunks, shards = (
            " x ".join(map(str, shape)) or "scalar" for shape in (self.chunk_shape, self.shard_shape)
        )
        if self.shard_shape:
            count = format_count(self.n_shards, "shard")
            yield "new", f"{count} of {shards}, inner chunks of {chunks}, {self.dtype}"
        else:
            yield "new", f"{format_count(self.n_shards, 'chunk')} of {chunks}, no shards, {self.dtype}"
        by = " by zarr" if self.method == "zarr" else ""
        how = "moved without decoding" if self.method == "move" else f"decoded and encoded{by}: {self.reason}"
        yield "chunks", f"{how}{', piece by piece' if self.streamed else ''}"
        if self.via_chunk_shape is not None:
            chunks = " x ".join(map(str, self.via_chunk_shape))
            yield "by way of", f"an intermediate array with chunks of {chunks}"
        if self.cost is not None:
            yield from self.cost.facts()
        yield from (("note", note) for note in self.notes)


@dataclass(frozen=True, kw_only=True)
class ReportOfJob(Report):
    """The common fields of the reports of `convert` and `status`; `ConvertReport` describes the fields."""

    source: str
    destination: str
    is_complete: bool
    n_shards: int
    n_damaged_lines: int


@dataclass(frozen=True, kw_only=True)
class ConvertReport(CopyReport, ReportOfJob):
    """The result of `convert`, or of one part of a plan.

    Parameters
    ----------
    source, destination : str
        The paths that were given.
    dry_run : bool
        Nothing was written.
    is_complete : bool
        All shards are written, and the metadata of the new hierarchy.
    n_shards : int
        Shards of this run.
    n_written, n_skipped, n_failed : int
        Shards that this run has finished, that an earlier run had finished, and that could not be written.
    n_empty : int
        Those of `n_written` without an object, because all their elements have the fill value.
    n_moved_chunks : int
        Inner chunks that were moved without decoding.
    read_nbytes, written_nbytes : int
        Encoded bytes that were moved and decoded bytes that were read; bytes of new objects.
    memory_nbytes : int
        Memory of the elements and encoded chunks at a time, at most.
    n_damaged_lines : int
        Lines of ledgers that were damaged; their shards were written again.
    arrays : tuple of ConvertedArray
        Empty if each was reported on its own.
    failures : tuple of ShardFailure
        The first 1,000 shards that could not be written.
    is_stopped : bool
        The user stopped the run.
    others : ObjectCounts
        Objects that belong to no array: copied ones, of a dry run those to copy; and all that is left out.
    """

    schema: ClassVar[str] = "shardcodec.convert"

    dry_run: bool
    n_written: int
    n_skipped: int
    n_failed: int
    n_moved_chunks: int
    read_nbytes: int
    written_nbytes: int
    memory_nbytes: int
    arrays: tuple[ConvertedArray, ...]
    failures: tuple[ShardFailure, ...]
    is_stopped: bool = False
    n_empty: int = 0

    def facts(self) -> Iterator[Fact]:
        """Yield the arrays, what was left out, and the sums.

        Yields
        ------
        name, text : str
        """
        for array in self.arrays:
            yield from array.facts()
        yield from self._sums()

    def lines(self) -> Iterator[str]:
        """Yield the lines that ``print`` shows: as `facts`, with a table of several arrays before the sums.

        Yields
        ------
        str
        """
        for array in self.arrays:
            yield from array.lines()
        yield from table_lines(self.arrays)
        yield from (text for _, text in self._sums())

    def _sums(self) -> Iterator[Fact]:
        """Yield what was left out, and the sums over all arrays."""
        for failure in self.failures:
            yield "", f"{failure.shard}: not written: {failure.detail}"
        yield from self.others.result_facts(would=self.dry_run)
        if self.dry_run:
            memory = format_nbytes(self.memory_nbytes)
            yield "", f"{format_count(self.n_shards, 'shard')}; memory of the data {memory} at most"
            return
        written = f"{format_count(self.n_written - self.n_empty, 'shard')} written ({format_nbytes(self.written_nbytes)})"
        moved = f"{format_count(self.n_moved_chunks, 'inner chunk')} moved"
        empty = f", {self.n_empty} empty" if self.n_empty else ""
        yield "", f"{written}{empty}, {self.n_skipped} finished before, {self.n_failed} failed, {moved}"
        if self.n_damaged_lines:
            yield "", f"left out: {format_count(self.n_damaged_lines, 'damaged line')} of ledgers"
        if not self.is_complete:
            yield "", "incomplete: the new hierarchy has no metadata yet"
