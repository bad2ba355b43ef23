"""The scenarios: a table of what is read and written, and one small class for each kind of measurement."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import data
import numpy as np
from data import Array, Box, Case
from peers import Peer
from sampler import Sampler, Samples

CODECS = ("raw", "zstd 1", "blosc lz4 shuffle", "gzip 1")


@dataclass
class Context:
    """Settings and data that all rows of a run share."""

    folder: Path
    writer: Peer  # makes the files that all peers read
    checker: Peer  # reads back what the others wrote
    sources: dict[str, Path] = field(default_factory=dict)
    latest: dict[str, Array] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """Return an object with `close`, such as worker processes, that is made once and closed at the end of the row."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def close_kept(self) -> None:
        while self.kept:
            self.kept.popitem()[1].close()

    def values(self, case: Case) -> Array:
        """Return the field of a case, read-only. Only the one used last stays in memory."""
        key = case.field_name
        if key not in self.latest:
            self.latest.clear()
            self.latest[key] = data.field(case, self.folder)
        return self.latest[key]

    def source(self, case: Case) -> Path:
        """Return an array that holds the field of a case. It is made once and then stays in the page cache."""
        slug = case.slug()
        if slug not in self.sources:
            path = case.create(emptied(self.folder / f"source-{slug}"))
            with self.writer.turn():
                self.writer.write(self.writer.open(path, case), case.whole, self.values(case))
            self.sources[slug] = path
        return self.sources[slug]

    def drop_sources(self, keep: Case) -> None:
        """Remove the arrays of other cases; at full size they are some hundred megabytes each."""
        for slug in [s for s in self.sources if s != keep.slug()]:
            shutil.rmtree(self.sources.pop(slug))

    def read_back(self, path: Path, case: Case) -> Array:
        with self.checker.turn():
            return self.checker.read(self.checker.open(path, case), case.whole)


def emptied(path: Path) -> Path:
    """Return the path after what a peer that failed has left there is removed."""
    shutil.rmtree(path, ignore_errors=True)
    return path


@dataclass(frozen=True)
class Row:
    """One line of the report.

    check() comes first and is not timed. A turn is one peer's part of a round: prepare(), operate(), finish(), of
    which only operate() is timed.
    """

    group: str
    name: str
    case: Case

    most_rounds: ClassVar[int] = 99  # fewer for rows that take seconds

    def takes(self, peer: Peer) -> bool:
        return True

    def profile(self, context: Context, peer: Peer) -> Samples:
        """Return where the time of one turn goes."""
        prepared = self.prepare(context, peer, 0)
        try:
            with Sampler() as sampler:
                self.operate(peer, prepared)
        finally:
            self.finish(prepared)
        return sampler.samples

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        """Check the result of the peer: raise AssertionError, or return further results to report."""
        raise NotImplementedError

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        raise NotImplementedError

    def operate(self, peer: Peer, prepared: Any) -> Any:
        """Do the timed work. The result lives longer than the timer, so freeing it is not timed."""
        raise NotImplementedError

    def finish(self, prepared: Any) -> None:
        """Clean up."""

    @property
    def operations(self) -> int:
        """Number of operations in one call of operate()."""
        return 1

    @property
    def nbytes(self) -> int:
        """Decoded bytes of one operation."""
        return self.case.nbytes

    def turn(self, context: Context, peer: Peer, number: int) -> float:
        """Return seconds per operation."""
        prepared = self.prepare(context, peer, number)
        try:
            start = time.perf_counter()
            result = self.operate(peer, prepared)
            seconds = time.perf_counter() - start
            del result
        finally:
            self.finish(prepared)
        return seconds / self.operations


def assert_equal(peer: Peer, actual: Array, expected: Array) -> None:
    if actual.dtype != expected.dtype or not np.array_equal(actual, expected):
        raise AssertionError(f"{peer.name} gives other values")


def _n_items(box: Box) -> int:
    return math.prod(s.stop - s.start for s in box)


@dataclass(frozen=True)
class Read(Row):
    """Reads boxes of an open array, one after another."""

    boxes: tuple[Box, ...] = ()

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        array = peer.open(context.source(self.case), self.case)
        for box in self.boxes:
            assert_equal(peer, peer.read(array, box), context.values(self.case)[box])
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        return peer.open(context.source(self.case), self.case)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        for box in self.boxes:
            result = peer.read(prepared, box)
        return result

    @property
    def operations(self) -> int:
        return len(self.boxes)

    @property
    def nbytes(self) -> int:
        return sum(map(_n_items, self.boxes)) // len(self.boxes) * np.dtype(self.case.dtype).itemsize


@dataclass(frozen=True)
class ReadCold(Read):
    """As `Read`, but each turn on a copy with a new name, which no index cache contains."""

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        copy = context.folder / f"cold-{peer.name.replace(' ', '-')}-{number}"
        shutil.copytree(context.source(self.case), copy)
        return copy, peer.open(copy, self.case)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        return super().operate(peer, prepared[1])

    def finish(self, prepared: Any) -> None:
        shutil.rmtree(prepared[0])


@dataclass(frozen=True)
class Write(Row):
    """Writes a whole array into an empty folder. Files are removed at once, so that they never reach the disk."""

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        self.operate(peer, prepared)
        assert_equal(peer, context.read_back(prepared[0], self.case), context.values(self.case))
        stored = data.stored_nbytes(prepared[0])
        self.finish(prepared)
        return {"stored_nbytes": stored}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        path = self.case.create(emptied(context.folder / f"written-{peer.name.replace(' ', '-')}"))
        return path, peer.open(path, self.case), context.values(self.case)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        _, array, values = prepared
        peer.write(array, self.case.whole, values)

    def finish(self, prepared: Any) -> None:
        shutil.rmtree(prepared[0])


@dataclass(frozen=True)
class Update(Row):
    """Writes one box of an existing array repeatedly, with other values each time. Each peer has its own copy."""

    box: Box = ()

    def takes(self, peer: Peer) -> bool:
        return peer.can_update

    def _path(self, context: Context, peer: Peer) -> Path:
        slug = f"{self.name}-{peer.name}".replace(" ", "-")
        if slug not in context.sources:
            source = context.source(self.case)
            context.sources[slug] = Path(shutil.copytree(source, context.folder / f"own-{slug}"))
        return context.sources[slug]

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        self.operate(peer, prepared)
        expected = context.values(self.case).copy()
        expected[self.box] = prepared[1]
        assert_equal(peer, context.read_back(self._path(context, peer), self.case), expected)
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        values = context.values(self.case)[self.box] + np.array(number + 1, dtype=self.case.dtype)
        return peer.open(self._path(context, peer), self.case), values

    def operate(self, peer: Peer, prepared: Any) -> Any:
        array, values = prepared
        peer.write(array, self.box, values)

    @property
    def nbytes(self) -> int:
        return _n_items(self.box) * np.dtype(self.case.dtype).itemsize


# ---------------------------------------------------------------------------------------------------------
# rows


def random_boxes(case: Case, extent: int, n: int, aligned: bool = False) -> tuple[Box, ...]:
    """Return n cubes at random places; aligned: at multiples of their extent."""
    rng = np.random.default_rng(7)
    boxes = []
    for _ in range(n):
        starts = [int(rng.integers(0, size - extent + 1)) for size in case.shape]
        if aligned:
            starts = [start // extent * extent for start in starts]
        boxes.append(tuple(slice(start, start + extent) for start in starts))
    return tuple(boxes)


def planes(case: Case, axis: int, n: int) -> tuple[Box, ...]:
    """Return n planes of thickness 1 at random places."""
    positions = np.random.default_rng(8).integers(0, case.shape[axis], n)
    return tuple(
        tuple(
            slice(int(at), int(at) + 1) if a == axis else slice(0, size) for a, size in enumerate(case.shape)
        )
        for at in positions
    )


def whole_arrays(edge: int) -> list[Row]:
    """Return full reads and writes of a cube of uint16."""
    rows: list[Row] = []
    for codec in CODECS:
        case = data.big(edge).with_codec(codec)
        rows.append(Read("whole array", f"read, {codec}", case, (case.whole,)))
        rows.append(Write("whole array", f"write, {codec}", case))
    return rows


def tiny_chunks(edge: int) -> list[Row]:
    """Return full reads and writes with inner chunks of 512 and 64 bytes."""
    rows: list[Row] = []
    for inner in (8, 4):
        for codec in ("raw", "zstd 1"):
            case = data.tiny(inner, edge).with_codec(codec)
            rows.append(Read("tiny inner chunks", f"{inner}^3, read, {codec}", case, (case.whole,)))
            rows.append(Write("tiny inner chunks", f"{inner}^3, write, {codec}", case))
    return rows


def small_reads(edge: int) -> list[Row]:
    """Return small reads from a large array, which measure latency."""
    rows: list[Row] = []
    for codec in ("raw", "zstd 1"):
        case = data.big(edge).with_codec(codec)
        rows.append(Read("small reads", f"one inner chunk, {codec}", case, random_boxes(case, 32, 200, True)))
        rows.append(Read("small reads", f"box of 40^3, {codec}", case, random_boxes(case, 40, 50)))
        rows += [
            Read("small reads", f"plane across axis {axis}, {codec}", case, planes(case, axis, 5))
            for axis in range(3)
        ]
    return rows


def first_element(n_chunks: int) -> list[Row]:
    """Return the read of one element behind an index of 16 bytes per inner chunk that no cache contains."""
    case = data.line(n_chunks)
    at = 3 * case.shape[0] // 7
    return [
        ReadCold("small reads", f"one element of {n_chunks:,} inner chunks", case, ((slice(at, at + 1),),))
    ]


def partial_writes(edge: int) -> list[Row]:
    """Return writes of one inner chunk, and of an unaligned box of 40^3 in one shard and across the corner of eight."""
    case = data.big(edge).with_codec("zstd 1")
    half = edge // 2
    inside = tuple(slice(half // 4 + 3, half // 4 + 43) for _ in range(3))
    corner = tuple(slice(half - 20, half + 20) for _ in range(3))
    chunk = tuple(slice(32, 64) for _ in range(3))
    return [
        Update("partial writes", "one inner chunk, zstd 1", case, chunk),
        Update("partial writes", "one inner chunk, raw", case.with_codec("raw"), chunk),
        Update("partial writes", "box of 40^3 in 1 shard, zstd 1", case, inside),
        Update("partial writes", "box of 40^3 in 8 shards, zstd 1", case, corner),
    ]


@dataclass(frozen=True)
class Sizes:
    """The sizes of all data: `full` for published results, `quick` for a test of the harness."""

    edge: int
    tiny_edge: int
    n_chunks: int


FULL = Sizes(512, 256, 1_000_000)
QUICK = Sizes(128, 64, 10_000)


def rows(sizes: Sizes, groups: list[str]) -> list[Row]:
    """Return the rows of the groups named."""
    import suite_climate  # these build on this module
    import suite_codecs
    import suite_dask
    import suite_gather
    import suite_index
    import suite_kv
    import suite_limits
    import suite_loader
    import suite_tools
    import suite_tools_dask
    import suite_v2

    makers = {
        "whole": lambda: whole_arrays(sizes.edge),
        "tiny": lambda: tiny_chunks(sizes.tiny_edge),
        "small": lambda: small_reads(sizes.edge) + first_element(sizes.n_chunks),
        "partial": lambda: partial_writes(sizes.edge),
        "gather": lambda: suite_gather.rows(sizes.edge),
        "index": lambda: suite_index.rows(sizes.edge),
        "loader": lambda: suite_loader.rows(sizes),
        "kv": lambda: suite_kv.rows(sizes),
        "limits": lambda: suite_limits.rows(sizes.edge),
        "v2": lambda: suite_v2.rows(sizes.edge),
        "codecs": lambda: suite_codecs.rows(sizes),
        "tools": lambda: suite_tools.rows(sizes.edge),
        "endtoend": lambda: (
            suite_loader.crops(sizes)
            + suite_climate.rows(sizes.edge)
            + suite_dask.rows(sizes.edge)
            + suite_tools_dask.rows(sizes.edge)
        ),
    }
    return [row for group in groups for row in makers[group]()]
