# histories.py - what the writers and readers of one array have done, and whether it can be true
# SPDX-License-Identifier: MIT
"""Records of writes and reads by many processes, some of which are killed, and the check of all of them together.

Each write has a number that no other write has, and fills its inner chunks with it and with a pattern that depends on the number
and the inner chunk (`contents`). So an inner chunk that is read tells which write it belongs to, and whether all of it does. A
record is (actor, inner chunk, value, begin, end, acknowledged). Records lie in memory-mapped files, so a killed process keeps all
that it has noted. `check` takes each inner chunk for a register, and finds

- mixtures: elements of several writes, or of another inner chunk;
- values from nowhere: of a write that has not written this inner chunk, or that began after the read had ended;
- lost writes: the value of a write that had ended before another one began, which was acknowledged before the read began;
- contradictions: no order of all reads and writes, each at a moment between its begin and its end, explains what was read.

Times are those of one clock of the machine. A killed write ends when its process is gone: until then it may still have an
effect, later it must not. (A request to a server may: `Rules.late`.)
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from faults.history_order import NEVER, Operation, contradiction, unexplained

__all__ = [
    "ERASED",
    "FIRST",
    "READ",
    "RECORD",
    "WRITE",
    "Recorder",
    "Result",
    "Rules",
    "check",
    "check_records",
    "contents",
    "load",
    "written_by",
]

Array = np.ndarray[Any, Any]

# The value of an inner chunk that is absent, and of one that the first write of all has stored.
ERASED = -1
FIRST = 0
MIXTURE = -2

WRITE, READ, LAST_READ, PACKED, DEATH, FAILED = range(1, 7)
KINDS = ("", "write", "read", "last read", "packed", "death", "failed read")

RECORD = np.dtype(
    [
        ("kind", "i2"),  # 0: no record; it is stored last
        ("acknowledged", "i2"),
        ("actor", "i4"),
        ("chunk", "i8"),
        ("value", "i8"),
        ("begin", "i8"),
        ("end", "i8"),
    ]
)
ROWS = 1 << 14  # of one file
MAX_REPORTED = 2  # violations of one kind in one inner chunk


# ---- what inner chunks contain


def contents(values: Any, chunks: Any, n: int) -> Array:
    """Return the `n` elements of each inner chunk, one row for each.

    One eighth to all of the elements are noise, so the encoded sizes differ; the others are the value.
    """
    values = np.asarray(values, dtype=np.int64)[:, None]
    chunks = np.asarray(chunks, dtype=np.int64)[:, None]
    at = np.arange(n, dtype=np.int64)[None, :]
    noise = (at + 1) * 0x9E3779B97F4A7C1 + values * 0x3F58476D1CE4E5B + (chunks + 1) * 0x14D049BB133111EB
    noise ^= noise >> 29
    noise *= 0x2545F4914F6CDD1D
    noise ^= noise >> 32
    elements = np.where(at < n * (1 + values % 8) // 8, noise, values)
    elements[:, :1] = values
    return np.where(values == ERASED, ERASED, elements)


def written_by(elements: Array, chunks: Any) -> Array:
    """Return the values of inner chunks, one row of elements for each; `MIXTURE` where they are not those of one write."""
    values = elements[:, 0].copy()
    values[(elements != contents(values, chunks, elements.shape[1])).any(axis=1)] = MIXTURE
    return values


# ---- records


class Recorder:
    """The records of one process, in files of its own."""

    def __init__(self, folder: Path, actor: int) -> None:
        self._folder, self._actor = folder, actor
        self._n_values = self._n_files = 0
        self._open: list[Array] = []
        self._last_read: dict[int, tuple[Array, int]] = {}
        self._add_file()

    def _add_file(self) -> None:
        path = self._folder / f"{self._actor}-{self._n_files}.records"
        with open(path, "w+b") as file:
            file.truncate(ROWS * RECORD.itemsize)
            self._rows: Array = np.frombuffer(mmap.mmap(file.fileno(), 0), dtype=RECORD)
        self._n_files += 1
        self._n = 0

    def _put(self, kind: int, n: int, actor: int | None = None, **fields: Any) -> Array:
        if self._n + n > ROWS:
            self._add_file()
        rows = self._rows[self._n : self._n + n]
        self._n += n
        rows["actor"] = self._actor if actor is None else actor
        for name, value in fields.items():
            rows[name] = value
        rows["kind"] = kind
        return rows

    def begin(self, chunks: list[int], *, erase: bool = False) -> int:
        """Note that a write of inner chunks begins; return the value to store."""
        self._n_values += 1
        value = ERASED if erase else self._actor << 24 | self._n_values
        rows = self._put(WRITE, len(chunks), value=value, chunk=chunks, begin=time.monotonic_ns())
        self._open.append(rows)
        return value

    def end(self) -> None:
        """Note that all writes that have begun were acknowledged."""
        now = time.monotonic_ns()
        for rows in self._open:
            rows["end"] = now
            rows["acknowledged"] = 1
        self._open.clear()

    def forget(self) -> None:
        """Leave open what becomes of the writes that have begun: they have raised an error."""
        self._open.clear()

    def packed(self, n: int) -> None:
        """Note that `n` shards were packed, which changes no element."""
        self._put(PACKED, 1, value=n)

    def read(self, begin: int, chunks: list[int], elements: Array, *, is_last: bool = False) -> None:
        """Note the elements of inner chunks, one row for each, which were read since `begin`.

        The last read of all sees no stale cache. The elements of a mixture are kept in a file.
        """
        end = time.monotonic_ns()
        values = self._values(elements, chunks)
        fields = {"value": values, "chunk": chunks, "begin": begin, "end": end, "acknowledged": 1}
        self._put(LAST_READ if is_last else READ, len(chunks), **fields)
        for i in np.flatnonzero(values == MIXTURE)[:3]:
            np.save(self._folder / f"mixture-{self._actor}-{begin}-{chunks[i]}.npy", elements[i])

    def failed(self, begin: int) -> None:
        """Note that a read raised an error that is permitted."""
        self._put(FAILED, 1, begin=begin, end=time.monotonic_ns())

    def _values(self, elements: Array, chunks: list[int]) -> Array:
        """Return the values. An inner chunk with the elements that it had when it was last read has its value."""
        values = np.array(
            [self._last_read[chunk][1] if chunk in self._last_read else MIXTURE for chunk in chunks]
        )
        changed = [
            i
            for i, chunk in enumerate(chunks)
            if chunk not in self._last_read or not np.array_equal(elements[i], self._last_read[chunk][0])
        ]
        values[changed] = written_by(elements[changed], np.array(chunks)[changed])
        self._last_read.update((chunks[i], (elements[i], values[i])) for i in changed)
        return values

    def death(self, actor: int) -> None:
        """Note that the process of another actor is gone."""
        now = time.monotonic_ns()
        self._put(DEATH, 1, actor=actor, begin=now, end=now)


def load(folder: Path) -> Array:
    """Return all records of a folder."""
    files = [np.fromfile(path, dtype=RECORD) for path in sorted(folder.glob("*.records"))]
    rows = np.concatenate(files) if files else np.empty(0, RECORD)
    return rows[rows["kind"] != 0]


# ---- the check


class Rules(NamedTuple):
    """The promise to readers.

    Parameters
    ----------
    is_ordered : bool
        All reads and writes of an inner chunk are explained by one order. Otherwise each read alone is explained by an order of
        the writes: a later read may return the older one of two values while a write is under way.
    stale : int
        Nanoseconds for which a read may miss what was written through another mount. What one process reads never becomes
        older. The last read misses nothing.
    late : bool
        A write that was not acknowledged may have its effect at any time, because a server may still get a request of a process
        that is gone.
    """

    is_ordered: bool = True
    stale: int = 0
    late: bool = False


class Result(NamedTuple):
    """Numbers of what was recorded, and one text for each violation."""

    n_histories: int
    n_writes: int
    n_reads: int
    n_failed: int
    n_packed: int
    wrong: list[str]

    @property
    def n_operations(self) -> int:
        return self.n_writes + self.n_reads

    def __str__(self) -> str:
        return (
            f"{self.n_histories} histories, {self.n_writes} writes and {self.n_reads} reads of inner chunks, "
            f"{self.n_failed} permitted errors of readers, {self.n_packed} shards packed, {len(self.wrong)} violations"
        )


def check(folder: Path, n_chunks: int, rules: Rules) -> Result:
    """Check all records of a folder."""
    return check_records(load(folder), n_chunks, rules)


def check_records(rows: Array, n_chunks: int, rules: Rules) -> Result:
    """Check records of inner chunks that all began with `FIRST`."""
    start = int(rows["begin"][rows["begin"] > 0].min(initial=NEVER))
    writes = _writes(rows, rules)
    reads = rows[(rows["kind"] == READ) | (rows["kind"] == LAST_READ)]
    wrong = []
    for chunk in range(n_chunks):
        history = _Chunk(writes[writes["chunk"] == chunk], reads[reads["chunk"] == chunk], rules)
        for told, records in history.violations():
            lines = [f"inner chunk {chunk}: {told}", *(_line(row, start) for row in records)]
            wrong.append("\n    ".join(lines))
    n_packed = int(rows["value"][rows["kind"] == PACKED].sum())
    n_failed = int((rows["kind"] == FAILED).sum())
    return Result(n_chunks, len(writes), len(reads), n_failed, n_packed, wrong)


def _writes(rows: Array, rules: Rules) -> Array:
    """Return the writes. Those that were not acknowledged end with their process, or never."""
    deaths = rows[rows["kind"] == DEATH]
    gone = dict(zip(deaths["actor"].tolist(), deaths["end"].tolist(), strict=True))
    writes = rows[rows["kind"] == WRITE].copy()
    for i in np.flatnonzero(writes["acknowledged"] == 0):
        writes["end"][i] = NEVER if rules.late else gone.get(int(writes["actor"][i]), NEVER)
    return writes


def _line(row: Any, start: int) -> str:
    """Return a record as text, with milliseconds since the first record."""
    begin = f"{(int(row['begin']) - start) / 1e6:.3f}" if row["begin"] else "before all others"
    end = "never" if row["end"] == NEVER else f"{(int(row['end']) - start) / 1e6:.3f}"
    value = {ERASED: "erased", MIXTURE: "a mixture"}.get(int(row["value"]), f"{int(row['value']):#x}")
    told = "" if row["acknowledged"] else ", not acknowledged"
    return f"{KINDS[row['kind']]} of {value} by actor {row['actor']}, {begin} to {end} ms{told}"


def _first_write() -> Array:
    return np.array([(WRITE, 1, 0, 0, FIRST, 0, 0)], dtype=RECORD)


class _Chunk:
    """The writes and reads of one inner chunk."""

    def __init__(self, writes: Array, reads: Array, rules: Rules) -> None:
        self._rules = rules
        self._writes, self._reads = np.concatenate([_first_write(), writes]), reads
        # a read shows a state that was there at some moment since then
        self._since = reads["begin"] - np.where(reads["kind"] == READ, rules.stale, 0)
        known = np.flatnonzero(self._writes["value"] != ERASED)
        self._known = known[np.argsort(self._writes["value"][known])]
        acknowledged = self._writes[self._writes["acknowledged"] == 1]
        acknowledged = acknowledged[np.argsort(acknowledged["end"])]
        self._ends = acknowledged["end"]
        self._begins = np.maximum.accumulate(acknowledged["begin"])
        erased = self._writes[self._writes["value"] == ERASED]
        erased = erased[np.argsort(erased["begin"])]
        self._erased_begins = erased["begin"]
        self._erased_ends = np.maximum.accumulate(erased["end"]) if len(erased) else erased["end"]

    def violations(self) -> Iterator[tuple[str, Iterable[Any]]]:
        """Yield what is wrong, with the records that contradict one another."""
        mixed = self._reads["value"] == MIXTURE
        for i in np.flatnonzero(mixed)[:MAX_REPORTED]:
            yield "a mixture", [self._reads[i]]
        begins, ends = self._write_times()
        nowhere = ~mixed & (begins > self._reads["end"])
        for i in np.flatnonzero(nowhere)[:MAX_REPORTED]:
            yield "a value from nowhere", [*self._writers(i), self._reads[i]]
        # the begin of the last write that was acknowledged before each read
        bounds = self._begins[np.searchsorted(self._ends, self._since) - 1]
        lost = ~mixed & ~nowhere & (ends < bounds) & (self._since > 0)
        for i in np.flatnonzero(lost)[:MAX_REPORTED]:
            later = self._writes[(self._writes["begin"] == bounds[i]) & (self._writes["acknowledged"] == 1)]
            yield "an acknowledged write was lost, or missed", [*self._writers(i), *later, self._reads[i]]
        good = ~(mixed | nowhere | lost)
        if self._rules.stale:
            yield from self._steps_back(good, begins, ends)
        if self._rules.is_ordered and good.all():
            yield from self._contradictions()

    def _write_times(self) -> tuple[Array, Array]:
        """Return begin and end of the write that each read has seen; `NEVER` for the begin of a write that is not known."""
        values = self._reads["value"]
        known = self._writes[self._known]
        at = np.minimum(np.searchsorted(known["value"], values), len(known) - 1)
        is_known = known["value"][at] == values
        begins = np.where(is_known, known["begin"][at], NEVER)
        ends = np.where(is_known, known["end"][at], NEVER)
        erased = values == ERASED
        if len(self._erased_begins):
            # of all erases that may have been seen, the one that ended last
            n = np.searchsorted(self._erased_begins, self._reads["end"], side="right")
            begins[erased] = np.where(n > 0, self._erased_begins[0], NEVER)[erased]
            ends[erased] = self._erased_ends[np.maximum(n, 1) - 1][erased]
        return begins, ends

    def _writers(self, i: int) -> Array:
        """Return the writes of the value of a read; of erases the last ones."""
        return self._writes[self._writes["value"] == self._reads["value"][i]][-3:]

    def _steps_back(self, good: Array, begins: Array, ends: Array) -> Iterator[tuple[str, Iterable[Any]]]:
        """Find reads that are older than what the same process has read before."""
        is_unique = good & (self._reads["value"] != ERASED)
        for actor in np.unique(self._reads["actor"]):
            own = np.flatnonzero((self._reads["actor"] == actor) & is_unique)
            own = own[np.argsort(self._reads["end"][own])]
            newest = np.maximum.accumulate(begins[own])
            for i in np.flatnonzero(ends[own] < newest)[:MAX_REPORTED]:
                newer = own[int(np.flatnonzero(begins[own] == newest[i])[0])]
                records = [
                    *self._writers(newer),
                    self._reads[newer],
                    *self._writers(own[i]),
                    self._reads[own[i]],
                ]
                yield "a process read an older value than before", records

    def _contradictions(self) -> Iterator[tuple[str, Iterable[Any]]]:
        operations = [*self._write_operations(), *self._read_operations()]
        if (failed := unexplained(operations, FIRST, ERASED)) is None:
            return
        named = contradiction(operations, failed, FIRST, ERASED)
        # a write that was not acknowledged is known from a read of it
        open_values = {
            one.value for one in named if one.is_write and not self._writes["acknowledged"][one.number]
        }
        reads = {one.number: one for one in operations if not one.is_write and one.value in open_values}
        shown = sorted({one.number: one for one in named} | reads)
        rows = np.concatenate([self._writes, self._reads])
        records = sorted((rows[number] for number in shown), key=lambda row: int(row["begin"]))
        yield "no order of these reads and writes explains them", records

    def _write_operations(self) -> Iterator[Operation]:
        first_ends = self._earliest_ends()
        for i, row in enumerate(self._writes[1:].tolist(), 1):
            _, acknowledged, _, _, value, begin, end = row
            if acknowledged:
                yield Operation(i, True, value, begin, end)
            elif value == ERASED:
                yield Operation(i, True, value, begin, end, is_optional=True)
            elif value in first_ends:  # it had its effect before the first read of it ended
                yield Operation(i, True, value, begin, min(end, first_ends[value]))

    def _earliest_ends(self) -> dict[int, int]:
        order = np.argsort(self._reads["end"], kind="stable")
        values, first = np.unique(self._reads["value"][order], return_index=True)
        ends = self._reads["end"][order][first]
        return dict(zip(values.tolist(), ends.tolist(), strict=True))

    def _read_operations(self) -> Iterator[Operation]:
        """Return the reads that decide: of each value the one that ended first and the one that began last.

        That is enough for a value that is written once (Gibbons and Korach, "Testing shared memories", 1997). Of reads that
        found the inner chunk erased, those remain that contain no other one.
        """
        reads, since, n = self._reads, self._since, len(self._writes)
        by_end = np.argsort(reads["end"], kind="stable")
        _, first = np.unique(reads["value"][by_end], return_index=True)
        by_begin = np.argsort(-since, kind="stable")
        _, last = np.unique(reads["value"][by_begin], return_index=True)
        chosen = np.union1d(by_end[first], by_begin[last])
        erased = np.flatnonzero(reads["value"] == ERASED)
        if len(erased):
            erased = erased[np.lexsort((-reads["end"][erased], since[erased]))]
            later_end = np.minimum.accumulate(reads["end"][erased][::-1])[::-1]
            contains = reads["end"][erased][:-1] >= later_end[1:]
            chosen = np.union1d(chosen, erased[np.append(~contains, True)])
        for i in chosen.tolist():
            row = reads[i]
            yield Operation(n + i, False, int(row["value"]), int(since[i]), int(row["end"]))
