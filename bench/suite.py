"""One small class for each kind of measurement. Which arrays and boxes are measured is in workloads/*.json (workload.py)."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import data
import numpy as np
from data import Array, Box, Case
from peers import Peer
from sampler import Sampler, Samples


@dataclass
class Context:
    """Settings and data that all rows of a run share."""

    folder: Path
    writer: Peer  # makes the files that all peers read
    checker: Peer  # reads back what the others wrote
    age: float = data.AGE_SECONDS  # of an array before the first row reads it; 0 where nothing is timed
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
            self.latest[key] = data.load_field(case, self.folder)
        return self.latest[key]

    def source(self, case: Case) -> Path:
        """Return an array that holds the field of a case. It is made once and then stays in the page cache."""
        slug = case.slug()
        if slug not in self.sources:
            path = case.create(emptied(self.folder / f"source-{slug}"))
            with self.writer.turn():
                self.writer.write(self.writer.open(path, case), case.whole, self.values(case))
            data.wait_until_old(path, self.age)
            self.sources[slug] = path
        return self.sources[slug]

    def own_copy(self, row: Row, peer: Peer) -> Path:
        """Return the copy of the row's array that only this peer changes."""
        slug = re.sub("[^a-z0-9]+", "-", f"own-{row.name}-{peer.name}".lower())
        if slug not in self.sources:
            self.sources[slug] = Path(shutil.copytree(self.source(row.case), self.folder / slug))
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
    peers: tuple[str, ...] = field(default=(), kw_only=True)  # names of those that take part; empty: all
    without: tuple[str, ...] = field(default=(), kw_only=True)  # names of those that do not
    writer: str = field(
        default="", kw_only=True
    )  # the peer that makes the files, if it is not that of the run
    checker: str = field(default="", kw_only=True)  # the peer that reads written files back, likewise
    may_refuse: tuple[str, ...] = field(
        default=(), kw_only=True
    )  # names of those that may fail, but not give wrong values

    most_rounds: ClassVar[int] = 99  # fewer for rows that take seconds

    def takes(self, peer: Peer) -> bool:
        return (not self.peers or peer.name in self.peers) and peer.name not in self.without

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

    def turn(self, context: Context, peer: Peer, number: int) -> list[float]:
        """Return the seconds of each operation; a row that cannot time them singly returns their mean."""
        prepared = self.prepare(context, peer, number)
        try:
            return self.timed(peer, prepared)
        finally:
            self.finish(prepared)

    def timed(self, peer: Peer, prepared: Any) -> list[float]:
        start = time.perf_counter()
        result = self.operate(peer, prepared)
        seconds = time.perf_counter() - start
        del result
        return [seconds / self.operations]


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
        for box in self.boxes if peer.gives_values else ():
            assert_equal(peer, peer.read(array, box), context.values(self.case)[box])
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        return peer.open(context.source(self.case), self.case)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        for box in self.boxes:
            result = peer.read(prepared, box)
        return result

    def timed(self, peer: Peer, prepared: Any) -> list[float]:
        seconds = []
        for box in self.boxes:
            start = time.perf_counter()
            result = peer.read(prepared, box)
            seconds.append(time.perf_counter() - start)
            del result
        return seconds

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

    def timed(self, peer: Peer, prepared: Any) -> list[float]:
        return super().timed(peer, prepared[1])

    def finish(self, prepared: Any) -> None:
        shutil.rmtree(prepared[0])


@dataclass(frozen=True)
class ReadWarm(Read):
    """As `Read`, on a handle that has read all boxes twice, so all caches between calls are filled."""

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        array = super().prepare(context, peer, number)
        for _ in range(2):
            super().operate(peer, array)
        return array


@dataclass(frozen=True)
class ReadTogether(Read):
    """Reads boxes of one shape into one array, in the best way that the peer has for many of them."""

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        values = context.values(self.case)
        boxes = self.operate(peer, self.prepare(context, peer, 0))
        assert_equal(peer, boxes, np.stack([values[box] for box in self.boxes]))
        return {}

    def operate(self, peer: Peer, prepared: Any) -> Any:
        return peer.read_many(prepared, self.boxes)

    def timed(self, peer: Peer, prepared: Any) -> list[float]:
        return Row.timed(self, peer, prepared)

    @property
    def operations(self) -> int:
        return 1

    @property
    def nbytes(self) -> int:
        """Return the size of all boxes in bytes."""
        return super().nbytes * len(self.boxes)


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
class WriteEach(Write):
    """Writes boxes of an array, one after another, into an empty folder; the time is per array."""

    boxes: tuple[Box, ...] = ()
    gathered: bool = False  # stored at once, at the end

    def takes(self, peer: Peer) -> bool:
        return super().takes(peer) and peer.can_gather

    def operate(self, peer: Peer, prepared: Any) -> Any:
        _, array, values = prepared
        with peer.gathering(array) if self.gathered else nullcontext(array) as target:
            for box in self.boxes:
                peer.write(target, box, values[box])


class Change(Row):
    """Writes the same elements of an existing array repeatedly, with other values each time. Each peer has its own copy."""

    @property
    def in_numpy(self) -> Any:
        """The selection in the words of NumPy."""
        raise NotImplementedError

    def takes(self, peer: Peer) -> bool:
        return super().takes(peer) and peer.can_update

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        self.operate(peer, prepared)
        expected = context.values(self.case).copy()
        expected[self.in_numpy] = prepared[1]
        assert_equal(peer, context.read_back(context.own_copy(self, peer), self.case), expected)
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        values = context.values(self.case)[self.in_numpy] + np.array(number + 1, dtype=self.case.dtype)
        return peer.open(context.own_copy(self, peer), self.case), values


@dataclass(frozen=True)
class Update(Change):
    """Writes one box."""

    box: Box = ()

    @property
    def in_numpy(self) -> Box:
        return self.box

    def operate(self, peer: Peer, prepared: Any) -> Any:
        array, values = prepared
        peer.write(array, self.box, values)

    @property
    def nbytes(self) -> int:
        return _n_items(self.box) * np.dtype(self.case.dtype).itemsize


@dataclass(frozen=True, eq=False)
class Select(Row):
    """Reads one selection of an open array repeatedly: index arrays or a mask."""

    how: str = "oindex"
    selection: Any = ()

    def takes(self, peer: Peer) -> bool:
        return super().takes(peer) and peer.can_index

    def expected(self, values: Array) -> Array:
        """Return the selection made by NumPy."""
        return np.asarray(values[self.in_numpy])

    @property
    def in_numpy(self) -> Any:
        if self.how == "vindex":
            return self.selection
        axes = zip(self.selection, self.case.shape, strict=True)
        return np.ix_(*(np.arange(n)[s] if isinstance(s, slice) else s for s, n in axes))

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        array = peer.open(context.source(self.case), self.case)
        assert_equal(peer, self.operate(peer, array), self.expected(context.values(self.case)))
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        return peer.open(context.source(self.case), self.case)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        return peer.select(prepared, self.how, self.selection)

    @property
    def nbytes(self) -> int:
        """Return the size of the result in bytes."""
        shape = np.empty(self.case.shape, np.void)[self.in_numpy].shape if self.how == "oindex" else None
        n = math.prod(shape) if shape is not None else np.empty(self.case.shape, bool)[self.selection].size
        return int(n) * np.dtype(self.case.dtype).itemsize


@dataclass(frozen=True, eq=False)
class Store(Change, Select):
    """Writes a selection: index arrays or a mask."""

    in_numpy = Select.in_numpy

    def operate(self, peer: Peer, prepared: Any) -> Any:
        array, values = prepared
        peer.store(array, self.how, self.selection, values)


@dataclass(frozen=True)
class Sizes:
    """The sizes of all data: arrays with `shrink`**3 times fewer elements than in published results."""

    shrink: int = 1

    @property
    def edge(self) -> int:
        """Edge of the large cube."""
        return max(64, 512 // self.shrink)

    @property
    def n_items(self) -> int:
        """Number of strings, or of keys of a shard."""
        return max(10_000, 1_000_000 // self.shrink**3)


FULL = Sizes()
QUICK = Sizes(4)


def rows(sizes: Sizes, groups: list[str]) -> list[Row]:
    """Return the rows of the groups named: those of the workload of this name, then those that are programs."""
    import workload  # it builds on this module

    return [
        row
        for group in groups
        for row in (
            *(workload.rows(group, sizes.shrink) if group in workload.names() else ()),
            *(PROGRAMS[group](sizes) if group in PROGRAMS else ()),
        )
    ]


def _kv(sizes: Sizes) -> list[Row]:
    import suite_kv

    return suite_kv.rows(sizes)


def _text(sizes: Sizes) -> list[Row]:
    import suite_text

    return suite_text.rows(sizes.n_items)


def _tools(sizes: Sizes) -> list[Row]:
    import suite_tools

    return suite_tools.rows(sizes.edge)


def _tasks(sizes: Sizes) -> list[Row]:
    import suite_climate
    import suite_dask
    import suite_loader
    import suite_tools_dask

    return [
        *suite_loader.rows(sizes),
        *suite_climate.rows(sizes.edge),
        *suite_dask.rows(sizes.edge),
        *suite_tools_dask.rows(sizes.edge),
    ]


# Rows that are not an array and boxes of it. Their modules build on this one, and need more packages.
PROGRAMS: dict[str, Callable[[Sizes], list[Row]]] = {
    "kv": _kv,
    "codecs": _text,
    "tools": _tools,
    "endtoend": _tasks,
}
