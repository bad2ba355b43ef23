# histories.py - what the writers and readers of one array have done, and whether it can be true
# SPDX-License-Identifier: MIT
"""Records of writes and reads by many processes, some of which are killed, and the check of all of them together.

Each write has a number that no other write has, and stores it in every element of its inner chunks. So an inner chunk that is
read tells which write it belongs to. `check` finds

- torn inner chunks: elements of several writes;
- values from nowhere: of a write that has not written this inner chunk, or that began after the read had ended;
- old values: of a write that had ended before another write of the same inner chunk began, which was acknowledged before the
  read began.

Times are those of one clock of the machine. A killed write ends when its process is gone: until then it may still have an
effect, later it must not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["ERASED", "FIRST", "Recorder", "Result", "check", "note_death"]

# The value of an inner chunk that is absent, and of one that the first write of all has stored.
ERASED = -1
FIRST = 0

NEVER = np.iinfo(np.int64).max
TORN = -2

BEGIN, END, READ, PACKED, DEATH = range(5)


class Write(NamedTuple):
    """One write of one inner chunk; `acknowledged` is `NEVER` if the process died before."""

    value: int
    chunk: int
    begin: int
    acknowledged: int
    end: int


class Recorder:
    """The records of one process, in a file of its own that a kill leaves whole up to the last record."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._fd = os.open(folder / f"{worker}.records", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._worker = worker
        self._n = 0

    def _put(self, kind: int, *words: int) -> None:
        os.write(self._fd, np.array([kind, len(words), *words], dtype=np.int64).tobytes())

    def begin(self, chunks: list[int], *, erase: bool = False) -> int:
        """Note that a write of inner chunks begins; return the value to store."""
        self._n += 1
        value = ERASED if erase else self._worker << 12 | self._n
        self._put(BEGIN, time.monotonic_ns(), value, *chunks)
        return value

    def end(self) -> None:
        """Note that the write was acknowledged."""
        self._put(END, time.monotonic_ns())

    def packed(self, n: int) -> None:
        """Note that `n` shards were packed, which changes no element."""
        self._put(PACKED, n)

    def read(self, begin: int, found: np.ndarray[Any, Any]) -> None:
        """Note the elements of all inner chunks, one row for each, which were read since `begin`."""
        first = found[:, 0].astype(np.int64)
        first[(found != found[:, :1]).any(axis=1)] = TORN
        self._put(READ, begin, time.monotonic_ns(), *first.tolist())


def note_death(folder: Path, worker: int) -> None:
    """Note that the process of a worker is gone."""
    with open(folder / f"{worker}.records", "ab") as file:
        file.write(np.array([DEATH, 1, time.monotonic_ns()], dtype=np.int64).tobytes())


def _records(path: Path) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    words = np.fromfile(path, dtype=np.int64)
    at = 0
    while at < len(words):
        kind, n = int(words[at]), int(words[at + 1])
        yield kind, words[at + 2 : at + 2 + n]
        at += 2 + n


def _load(folder: Path) -> tuple[list[Write], list[np.ndarray[Any, Any]], int]:
    writes: list[Write] = []
    reads: list[np.ndarray[Any, Any]] = []
    n_packed = 0
    for path in folder.glob("*.records"):
        open_write: np.ndarray[Any, Any] | None = None
        for kind, words in _records(path):
            if kind == BEGIN:
                open_write = words
            elif kind == READ:
                reads.append(words)
            elif kind == PACKED:
                n_packed += int(words[0])
            elif open_write is not None:
                begin, value, *chunks = open_write.tolist()
                acknowledged = int(words[0]) if kind == END else NEVER
                writes += [Write(value, chunk, begin, acknowledged, int(words[0])) for chunk in chunks]
                open_write = None
    return writes, reads, n_packed


class _Chunk:
    """The writes of one inner chunk."""

    def __init__(self, writes: list[Write]) -> None:
        writes = [Write(FIRST, 0, 0, 0, 0), *writes]
        self.by_value = {write.value: write for write in writes if write.value != ERASED}
        acknowledged = sorted((w.acknowledged, w.begin) for w in writes if w.acknowledged != NEVER)
        self._acknowledged = np.array([one for one, _ in acknowledged])
        self._last_begin = np.maximum.accumulate(np.array([begin for _, begin in acknowledged]))
        erased = sorted((w.begin, w.end) for w in writes if w.value == ERASED)
        self._erased = np.array([begin for begin, _ in erased])
        self._erased_end = np.maximum.accumulate(np.array([end for _, end in erased], dtype=np.int64))

    def fault(self, value: int, begin: int, end: int) -> str | None:
        """Return what is wrong with a value that was read; None if nothing is."""
        if value == TORN:
            return "torn"
        # the begin of the last write that was acknowledged before this read
        bound = self._last_begin[np.searchsorted(self._acknowledged, begin) - 1]
        if value == ERASED:
            n = np.searchsorted(self._erased, end)
            return "from nowhere" if not n else "old" if self._erased_end[n - 1] < bound else None
        write = self.by_value.get(value)
        if write is None or write.begin > end:
            return "from nowhere"
        return "old" if write.end < bound else None


class Result(NamedTuple):
    """Numbers of what was recorded, and one line for each violation."""

    n_writes: int
    n_read: int
    n_packed: int
    wrong: list[str]

    def __str__(self) -> str:
        return (
            f"{self.n_writes} writes, {self.n_read} inner chunks read, {self.n_packed} shards packed, "
            f"{len(self.wrong)} violations"
        )


def check(folder: Path, n_chunks: int) -> Result:
    """Check all records of a folder."""
    writes, reads, n_packed = _load(folder)
    chunks = [_Chunk([write for write in writes if write.chunk == i]) for i in range(n_chunks)]
    wrong = []
    for begin, end, *values in (words.tolist() for words in reads):
        for i, value in enumerate(values):
            if fault := chunks[i].fault(value, begin, end):
                known = chunks[i].by_value.get(value)
                wrong.append(f"{fault}: inner chunk {i} is {value} in a read of {begin} to {end}; {known}")
    return Result(len({(w.value, w.begin) for w in writes}), len(reads) * n_chunks, n_packed, wrong)
