# report.py - the results of advise
# SPDX-License-Identifier: MIT
"""`AdviseReport` and its parts, and the `Bounds` of proposals: plain records. ``docs/tools.md`` describes the members of the JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ...arguments import check_fields
from ...readable import Fact, as_nbytes, format_count, format_nbytes
from ..report import Record, Report

__all__ = ["AccessCost", "AdviseReport", "Bounds", "Proposal", "Trial", "TrialAccess"]

Ints = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Bounds(Record):
    """Bounds of the proposed shapes.

    Parameters
    ----------
    chunk_nbytes, shard_nbytes : int or str
        Target size of an inner chunk, and largest size of a shard, without encoding, in bytes.
    max_files : int or None
        Maximum number of shards.
    memory : int, str or None
        Memory of a writer in bytes. It holds a shard without encoding, and as many encoded bytes.

    Examples
    --------
    >>> bounds = tools.Bounds(shard_nbytes=2**26, max_files=100)
    >>> planes = tools.parse_access("1,:,:", (1000, 512, 512))
    >>> tools.advise((1000, 512, 512), "uint16", [planes], bounds).proposals[0].n_files
    8
    """

    chunk_nbytes: int = 1 << 20
    shard_nbytes: int = 512 << 20
    max_files: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name in ("chunk_nbytes", "shard_nbytes", "memory"):
            object.__setattr__(self, name, as_nbytes(getattr(self, name), name))

    def check(self) -> None:
        """Raise `TypeError` or `ValueError` for a field of another type, or out of range."""
        check_fields(self)
        for name in ("chunk_nbytes", "shard_nbytes", "max_files", "memory"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ValueError(f"{name}: expected at least 1, got {number}")

    @property
    def largest_shard(self) -> int:
        """Largest size of a shard without encoding, in bytes."""
        if self.memory is None:
            return self.shard_nbytes
        return max(1, min(self.shard_nbytes, self.memory // 2))


@dataclass(frozen=True)
class AccessCost(Record):
    """Cost of one access: the average over all positions.

    Attributes
    ----------
    access : str
        The pattern.
    n_chunks, n_shards : float
        Inner chunks and shards that it touches.
    n_requests : float
        Requests without a cache of indexes: one for the index of each shard, one for each inner chunk. Neighbours in a
        shard share a request, so there may be fewer.
    read_nbytes : float
        Encoded bytes that it reads.
    useful_share : float
        Share of the decoded elements that the program asked for.
    memory_nbytes : float
        Memory of the result and of one inner chunk, in bytes.
    """

    access: str
    n_chunks: float
    n_shards: float
    n_requests: float
    read_nbytes: float
    useful_share: float
    memory_nbytes: float

    def facts(self) -> Iterator[Fact]:
        """Yield the access and its cost.

        Yields
        ------
        name, text : str
        """
        requests = format_count(self.n_requests, "request", ".3g")
        shards = format_count(self.n_shards, "shard", ".3g")
        useful = f"{format_nbytes(self.read_nbytes)}, {100 * self.useful_share:.3g} % useful"
        yield (
            self.access,
            f"{requests} ({shards}), reads {useful}, memory {format_nbytes(self.memory_nbytes)}",
        )


@dataclass(frozen=True)
class Proposal(Record):
    """Shapes of shards and inner chunks.

    Attributes
    ----------
    chunk_shape, shard_shape : tuple of int
        In elements.
    chunk_nbytes, shard_nbytes : int
        Sizes without encoding, in bytes.
    n_files : int
        Number of shards of the array.
    chunks_per_shard : int
        Number of inner chunks of a shard.
    index_nbytes : int
        Size of the index of a shard, with its checksum, in bytes.
    writer_nbytes : int
        Memory of a writer that writes whole shards, in bytes.
    accesses : tuple of AccessCost
        One for each pattern.
    cost_nbytes : float
        Weighted mean of the bytes of an access, with a surcharge for each request; smaller is better.
    """

    chunk_shape: Ints
    shard_shape: Ints
    chunk_nbytes: int
    shard_nbytes: int
    n_files: int
    chunks_per_shard: int
    index_nbytes: int
    writer_nbytes: int
    accesses: tuple[AccessCost, ...]
    cost_nbytes: float

    def facts(self) -> Iterator[Fact]:
        """Yield the shapes, the shards and the cost of each access.

        Yields
        ------
        name, text : str
        """
        chunk, shard = _text(self.chunk_shape), _text(self.shard_shape)
        yield "", f"inner chunks of {chunk} ({format_nbytes(self.chunk_nbytes)}), shards of {shard}"
        files = f"{format_count(self.n_files, 'file', ',')} of {format_nbytes(self.shard_nbytes)} decoded"
        chunks = f"{format_count(self.chunks_per_shard, 'inner chunk', ',')} each"
        memory = (
            f"index {format_nbytes(self.index_nbytes)}, a writer needs {format_nbytes(self.writer_nbytes)}"
        )
        yield "shards", f"{files}, {chunks}, {memory}"
        for access in self.accesses:
            yield from access.facts()


@dataclass(frozen=True)
class Trial(Record):
    """Measurement of a proposal on a sample of the array, in a temporary folder.

    Attributes
    ----------
    chunk_shape, shard_shape, sample_shape : tuple of int
        Shapes of inner chunks, of shards and of the sample, in elements.
    ratio : float
        Compression ratio of the sample.
    accesses : tuple of TrialAccess
        One for each pattern.
    """

    chunk_shape: Ints
    shard_shape: Ints
    sample_shape: Ints
    ratio: float
    accesses: tuple[TrialAccess, ...]

    def facts(self) -> Iterator[Fact]:
        """Yield the shapes, and what each access took.

        Yields
        ------
        name, text : str
        """
        chunk, sample = _text(self.chunk_shape), _text(self.sample_shape)
        yield "", f"inner chunks of {chunk}, on a sample of {sample}, ratio {self.ratio:.3g}"
        for access in self.accesses:
            yield from access.facts()


@dataclass(frozen=True)
class TrialAccess(Record):
    """Measured time of one access.

    Attributes
    ----------
    access : str
        The pattern.
    seconds : float
        Median of the time of a read, with the files in the page cache.
    requests, read_nbytes : float
        Mean number of reads from files, and of their bytes.
    """

    access: str
    seconds: float
    requests: float
    read_nbytes: float

    def facts(self) -> Iterator[Fact]:
        """Yield the access and its time.

        Yields
        ------
        name, text : str
        """
        reads = f"{format_count(self.requests, 'read', '.3g')} of files"
        yield self.access, f"{1000 * self.seconds:.3g} ms, {reads}, {format_nbytes(self.read_nbytes)}"


@dataclass(frozen=True)
class AdviseReport(Report):
    """The result of `advise`: proposals.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array, in elements.
    dtype : str
        Data type of an element.
    bounds : Bounds
        The bounds.
    present : Proposal or None
        The shapes that the array has now, for comparison.
    proposals : tuple of Proposal
        The best one first.
    trials : tuple of Trial
        What was measured of the best ones, on a sample; empty without a trial.
    """

    schema: ClassVar[str] = "shardcodec.advise"

    shape: Ints
    dtype: str
    bounds: Bounds
    present: Proposal | None
    proposals: tuple[Proposal, ...]
    trials: tuple[Trial, ...] = ()

    def facts(self) -> Iterator[Fact]:
        """Yield the array, its present shapes, the proposals and the measurements.

        Yields
        ------
        name, text : str
        """
        yield "", f"array of {_text(self.shape)} {self.dtype}"
        if self.present is not None:
            yield from _with_title("now", self.present)
        for number, proposal in enumerate(self.proposals, 1):
            yield from _with_title(f"proposal {number}", proposal)
        for number, trial in enumerate(self.trials, 1):
            yield from _with_title(f"measured {number}", trial)


def _text(shape: Ints) -> str:
    return " x ".join(map(str, shape))


def _with_title(title: str, record: Record) -> Iterator[Fact]:
    """Yield the facts of a record; the first one, a line, begins with a title."""
    (_, first), *rest = record.facts()
    yield "", f"{title}: {first}"
    yield from rest
