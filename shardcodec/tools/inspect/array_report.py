# array_report.py - the results of inspect
# SPDX-License-Identifier: MIT
"""The results of inspect.

`InspectReport` and its parts: plain records. ``docs/tools.md`` describes the members of the JSON.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ...readable import Fact, format_count, format_nbytes, format_share
from ..report import Record, Report
from .size_distribution import SizeSummary

__all__ = ["ArrayReport", "DamagedShard", "InspectReport", "LayoutRecord", "StoredRecord"]

Ints = tuple[int, ...]


@dataclass(frozen=True)
class LayoutRecord(Record):
    """The metadata of an array.

    Attributes
    ----------
    zarr_format : int
        2 or 3.
    shape : tuple of int
        Shape of the array, in elements.
    dtype : str
        Data type of an element, as numpy names it.
    fill_value : str
        Value of elements that are not stored.
    dimension_names : tuple or None
        Names of the axes, if there are any.
    shard_shape : tuple of int or None
        Shape of a shard, in elements; None if the array is not sharded, or its shards have no common shape.
    chunk_shape : tuple of int or None
        Shape of an inner chunk along the axes of the array, in elements; of a chunk if the array is not sharded. None for a
        rectilinear grid without shards.
    codecs, index_codecs : list of dict
        Codecs of an inner chunk (of a chunk) and of the index, as in the metadata.
    index_location : str or None
        ``"start"`` or ``"end"``.
    index_nbytes : int
        Size of the index of one shard in bytes; 0 without shards.
    grid_sizes : tuple of tuple of int, or None
        Of a rectilinear grid the sizes that its chunks (with shards: its shards) have along each axis, in elements. Such
        chunks have no common shape.
    """

    zarr_format: int
    shape: Ints
    dtype: str
    fill_value: str
    dimension_names: tuple[str | None, ...] | None
    shard_shape: Ints | None
    chunk_shape: Ints | None
    codecs: list[Any]
    index_codecs: list[Any]
    index_location: str | None
    index_nbytes: int
    grid_sizes: tuple[Ints, ...] | None = None

    def facts(self) -> Iterator[Fact]:
        """Yield the metadata as names and texts.

        Yields
        ------
        name, text : str
        """
        yield "array", f"{_shape(self.shape)} {self.dtype}, fill value {self.fill_value}"
        if self.dimension_names is not None:
            yield "axes", ", ".join(name or "-" for name in self.dimension_names)
        if self.grid_sizes is not None:
            sizes = " x ".join(f"({', '.join(map(str, axis))})" for axis in self.grid_sizes)
            kind = "chunks, not sharded" if self.chunk_shape is None else "shards"
            yield "grid", f"rectilinear: sizes {sizes} of {kind}"
            if self.chunk_shape is not None:
                yield "inner chunks", _shape(self.chunk_shape)
        elif self.shard_shape is None and self.chunk_shape is not None:
            yield "chunks", f"{_shape(self.chunk_shape)}, not sharded"
        elif self.shard_shape is not None and self.chunk_shape is not None:
            yield "shard", f"{_shape(self.shard_shape)} in inner chunks of {_shape(self.chunk_shape)}"
        yield "codecs", _codecs(self.codecs)
        if self.index_location is not None:
            size = format_nbytes(self.index_nbytes)
            yield "index", f"{size} at the {self.index_location}, {_codecs(self.index_codecs)}"


@dataclass(frozen=True)
class StoredRecord(Record):
    """The stored shards of an array. Ranges of bytes are counted for sound shards only.

    Attributes
    ----------
    n_grid_shards, n_shards : int
        Number of shards of the grid, and of those that exist.
    n_grid_chunks, n_chunks : int
        Number of inner chunks of the grid, and of those that exist.
    shards : SizeSummary
        Sizes of the objects in bytes.
    chunks : SizeSummary
        Encoded sizes of the inner chunks in bytes.
    decoded_nbytes : int
        Size of the existing inner chunks without encoding, in bytes; 0 if elements have no fixed size.
    chunk_nbytes, index_nbytes, header_nbytes, footer_nbytes, padding_nbytes, unmarked_nbytes, dead_nbytes : int
        Bytes of the shards by what they hold; their sum is the size of the sound shards. Unmarked: before the first or
        after the last inner chunk, without a mark that says whether they are header, footer or dead.
    ratio : float or None
        ``decoded_nbytes`` divided by the bytes of the inner chunks; None if elements have no fixed size.
    orders : dict of str to int
        Number of shards for each order of inner chunks: ``morton``, ``lexicographic``, ``colexicographic``, ``any``
        (all three agree, such as with one inner chunk) or ``other``.
    alignments : dict of int to int
        Number of shards for each alignment of inner chunks in bytes.
    n_without_index_checksum : int
        Shards whose index has no checksum, so that damage to it may stay unnoticed.
    n_with_header, n_with_footer : int
        Shards with a header, and with a footer.
    n_damaged : int
        Shards whose index or entries are damaged, or that cannot be read.
    n_foreign : int
        Other objects in the folder of the array.
    """

    n_grid_shards: int
    n_shards: int
    n_grid_chunks: int
    n_chunks: int
    shards: SizeSummary
    chunks: SizeSummary
    decoded_nbytes: int
    chunk_nbytes: int
    index_nbytes: int
    header_nbytes: int
    footer_nbytes: int
    padding_nbytes: int
    unmarked_nbytes: int
    dead_nbytes: int
    ratio: float | None
    orders: dict[str, int]
    alignments: dict[int, int]
    n_without_index_checksum: int
    n_with_header: int
    n_with_footer: int
    n_damaged: int
    n_foreign: int

    def facts(self) -> Iterator[Fact]:
        """Yield what is stored as names and texts.

        Yields
        ------
        name, text : str
        """
        total = self.shards.nbytes
        yield "shards", f"{self.n_shards} of {self.n_grid_shards}, {format_nbytes(total)}"
        if self.n_damaged:
            yield "damaged", format_count(self.n_damaged, "shard")
        if self.n_foreign:
            yield "other files", str(self.n_foreign)
        if self.n_shards == self.n_damaged:
            return
        share = format_share(self.n_chunks, self.n_grid_chunks)
        yield "inner chunks", f"{self.n_chunks} of {self.n_grid_chunks} ({share})"
        yield "shard size", _sizes(self.shards)
        if self.n_chunks:
            yield "chunk size", _sizes(self.chunks)
        if self.ratio is not None:
            yield "ratio", f"{self.ratio:.3g} ({format_nbytes(self.decoded_nbytes)} decoded)"
        for name, nbytes in (("index bytes", self.index_nbytes), ("dead bytes", self.dead_nbytes)):
            yield name, f"{format_nbytes(nbytes)} ({format_share(nbytes, total)})"
        if self.padding_nbytes:
            yield "padding", f"{format_nbytes(self.padding_nbytes)} of alignment"
        if self.unmarked_nbytes:
            text = "before the first or behind the last inner chunk: header, footer or dead"
            yield "unmarked", f"{format_nbytes(self.unmarked_nbytes)} {text}"
        for name, n, nbytes in (
            ("header", self.n_with_header, self.header_nbytes),
            ("footer", self.n_with_footer, self.footer_nbytes),
        ):
            if n:
                yield name, f"in {format_count(n, 'shard')}, {format_nbytes(nbytes)}"
        orders = sorted(self.orders.items())
        yield (
            "order",
            ", ".join(f"{_ORDERS.get(name, name)} ({format_count(n, 'shard')})" for name, n in orders),
        )
        if self.n_without_index_checksum:
            yield "no checksum", f"of the index in {format_count(self.n_without_index_checksum, 'shard')}"

    def next_steps(self, path: str) -> Iterator[str]:
        """Yield commands that help with what is stored."""
        total = self.shards.nbytes
        if self.n_damaged:
            yield f"`shardcodec verify {path}` names the damage, and `shardcodec repair {path} --to NEW` keeps what is whole"
        if self.dead_nbytes > _MUCH_DEAD * total:
            text = f"`shardcodec compact {path}` removes the dead bytes"
            if self.dead_nbytes > _MOSTLY_DEAD * total:
                text += "; `shardcodec.group_writes()` around many small writes, or the write strategy `replace`, leaves none"
            yield text
        if self.index_nbytes > _MUCH_INDEX * total:
            yield f"inner chunks are too small for their index: `shardcodec advise {path}` finds shapes, `shardcodec convert {path} NEW --chunks ...` makes them"


@dataclass(frozen=True)
class DamagedShard(Record):
    """A shard whose index cannot be used.

    Attributes
    ----------
    shard : str
        Its path or key.
    message : str
        What is wrong.
    """

    shard: str
    message: str


@dataclass(frozen=True)
class ArrayReport(Report):
    """The result of `inspect` for one array.

    Attributes
    ----------
    name : str
        Path of the array in the group; empty for the target itself.
    place : str
        Path or URL of the array.
    problem : str or None
        Why its shards cannot be read.
    foreign_codec : str or None
        A codec that the tools leave to zarr's codecs, or to those of text, when they need elements; chunks are moved as bytes.
    layout : LayoutRecord or None
        Its metadata; None if they are invalid.
    stored : StoredRecord or None
        What is stored; None if the array is not sharded or has a problem.
    damaged : list of DamagedShard
        The first damaged shards; ``stored.n_damaged`` counts all.
    foreign : list of str
        The first other objects in the folder; ``stored.n_foreign`` counts all.
    is_complete : bool
        False if the inspection was stopped at a finding.
    unreadable : tuple of str
        Folders that cannot be listed, in sentences; the shards of the grid were looked for in them by their names.
    """

    schema: ClassVar[str] = "shardcodec.inspect.array"

    name: str
    place: str
    problem: str | None
    foreign_codec: str | None
    layout: LayoutRecord | None
    stored: StoredRecord | None
    damaged: tuple[DamagedShard, ...] = ()
    foreign: tuple[str, ...] = ()
    is_complete: bool = True
    unreadable: tuple[str, ...] = ()

    def facts(self) -> Iterator[Fact]:
        """Yield the result as names and texts, and what to do next.

        Yields
        ------
        name, text : str
        """
        yield "", self.name or self.place
        if self.problem is not None:
            yield "problem", self.problem
        if self.foreign_codec is not None:
            kind = "its data type" if self.layout is None else self.layout.dtype
            yield (
                "note",
                f"inner chunks are moved as bytes; codec {self.foreign_codec} of {kind} is left to zarr's codecs or to those of text",
            )
        if self.layout is not None:
            yield from self.layout.facts()
            if self.stored is not None:
                yield from self.stored.facts()
        yield from (("damaged", f"{one.shard}: {one.message}") for one in self.damaged)
        yield from (("other file", name) for name in self.foreign)
        yield from (("unreadable", text) for text in self.unreadable)
        if not self.is_complete:
            yield "note", "stopped at the first damaged shard"
        if self.stored is not None:
            yield from (("next", text) for text in self.stored.next_steps(shlex.quote(self.place)))

    @property
    def n_findings(self) -> int:
        """Number of findings: damaged shards, folders that cannot be listed, and 1 if the metadata are invalid."""
        n_damaged = 0 if self.stored is None else self.stored.n_damaged
        return n_damaged + len(self.unreadable) + (self.layout is None)


@dataclass(frozen=True)
class InspectReport(Report):
    """The result of `inspect`.

    Parameters
    ----------
    target : str
        The path that was given.
    n_arrays : int
        Number of arrays.
    n_findings : int
        Number of findings in all arrays.
    arrays : tuple of ArrayReport
        One for each array; empty if each was printed on a line of its own.
    left : tuple of str
        Links, or mounts, in groups that lead to a folder above and are not followed, in sentences.
    """

    schema: ClassVar[str] = "shardcodec.inspect"

    target: str
    n_arrays: int
    n_findings: int
    arrays: tuple[ArrayReport, ...] = ()
    left: tuple[str, ...] = ()

    def facts(self) -> Iterator[Fact]:
        """Yield the results of the arrays as names and texts.

        Yields
        ------
        name, text : str
        """
        if len(self.arrays) != 1:
            arrays, findings = format_count(self.n_arrays, "array"), format_count(self.n_findings, "finding")
            yield "", f"{self.target}: {arrays}, {findings}"
        for one in self.arrays:
            yield from one.facts()
        yield from (("", text) for text in self.left)


_ORDERS = {"any": "fits every order", "other": "no known order"}
# Shares of the bytes of all shards from which the text names a command.
_MUCH_DEAD, _MOSTLY_DEAD, _MUCH_INDEX = 0.1, 0.5, 0.5


def _shape(shape: Ints) -> str:
    return " x ".join(map(str, shape)) if shape else "scalar"


def _sizes(sizes: SizeSummary) -> str:
    numbers = [sizes.p5_nbytes, sizes.p50_nbytes, sizes.p95_nbytes]
    p5, p50, p95 = (format_nbytes(number or 0) for number in numbers)
    return f"5 %: {p5}, median: {p50}, 95 %: {p95}"


def _codecs(codecs: list[Any]) -> str:
    """Return the names of codecs, with the levels of compressors."""
    found = []
    for codec in codecs:
        configuration = codec.get("configuration") or {}
        shown = [configuration[name] for name in ("cname", "level", "clevel") if name in configuration]
        found.append(codec["name"] + (f"({', '.join(map(str, shown))})" if shown else ""))
    return ", ".join(found) or "none"
