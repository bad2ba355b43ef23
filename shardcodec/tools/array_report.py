# array_report.py - the results of `inspect`
# SPDX-License-Identifier: MIT
"""`InspectReport` and its parts: plain records. ``docs/tools.md`` describes the members of the JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .report import Record, Report
from .size_summary import SizeSummary

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
        A codec of the inner chunks that shardcodec does not have.
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
    """

    schema: ClassVar[str] = "shardcodec.inspect.array"
    schema_version: ClassVar[int] = 1

    name: str
    place: str
    problem: str | None
    foreign_codec: str | None
    layout: LayoutRecord | None
    stored: StoredRecord | None
    damaged: tuple[DamagedShard, ...] = ()
    foreign: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def n_findings(self) -> int:
        """Number of findings: damaged shards, and 1 if the metadata are invalid."""
        n_damaged = 0 if self.stored is None else self.stored.n_damaged
        return n_damaged + (self.layout is None)


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
    """

    schema: ClassVar[str] = "shardcodec.inspect"
    schema_version: ClassVar[int] = 1

    target: str
    n_arrays: int
    n_findings: int
    arrays: tuple[ArrayReport, ...] = ()
