"""Measure the growth of resident memory while one peer reads or writes a whole array, or reads rows of it.

Run by run.py in a process of its own for each figure: memory that one peer gave back to the allocator must not
serve the next. The peak is the kernel's own (VmHWM, reset just before), so nothing between two samples is missed;
if it cannot be reset, a thread samples.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data
import numpy as np
import peers
from data import Case


def _status(field: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(field):
            return int(text.split()[1]) * 1024
    raise LookupError(field)


class Peak:
    """The growth of resident memory between start and stop()."""

    def __init__(self) -> None:
        self._base = _status("VmRSS:")
        self._sampled = self._base
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self._thread = threading.Thread(target=self._sample)
            self._thread.start()

    def _sample(self) -> None:
        while not self._done.wait(0.001):
            self._sampled = max(self._sampled, _status("VmRSS:"))

    def stop(self) -> int:
        if self._thread is None:
            return max(0, _status("VmHWM:") - self._base)  # each thread counts some pages alone for a while
        self._done.set()
        self._thread.join()
        return self._sampled - self._base


def growth(action: Callable[[], Any]) -> int:
    """Return by how many bytes resident memory grows at its peak during a call."""
    peak = Peak()
    result = action()
    nbytes = peak.stop()
    del result
    return nbytes


def measure(name: str, operation: str, case: Case, source: Path, folder: Path) -> int:
    """Return the growth in bytes. A small array comes first, so that libraries, threads and contexts exist."""
    (peer,), _ = peers.available([name])
    values = data.load_field(case, folder)
    with peer.turn():
        _warm_up(peer, data.big(64).with_codec(case.codec), folder)
        if operation == "read":
            del values
            array = peer.open(source, case)
            return growth(lambda: peer.read(array, case.whole))
        if operation in ROWS:
            array = peer.open(source, case)
            rest = tuple(slice(0, n) for n in case.shape[1:])
            rows = some_rows(case, operation)
            peer.select(array, "oindex", (rows[:8], *rest))  # brings in the code that sorts them, too
            return growth(lambda: peer.select(array, "oindex", (rows, *rest)))
        path = case.create(folder / "memory-write")
        array = peer.open(path, case)
        return growth(lambda: peer.write(array, case.whole, values))


# Operations that read positions along the first axis.
ROWS = ("half the rows", "1,000 rows")


def some_rows(case: Case, operation: str) -> data.Array:
    """Choose positions in random order: every second one, or a thousand, with repeats if there are fewer."""
    rng = np.random.default_rng(13)
    n = case.shape[0] // 2 if operation == ROWS[0] else 1000
    return rng.integers(0, case.shape[0], n) if n > case.shape[0] else rng.permutation(case.shape[0])[:n]


def result_nbytes(case: Case, operation: str) -> int:
    """Return the size in memory of the elements that are read or written."""
    n_rows = len(some_rows(case, operation)) if operation in ROWS else case.shape[0]
    return case.nbytes // case.shape[0] * n_rows


def _warm_up(peer: peers.Peer, case: Case, folder: Path) -> None:
    path = case.create(folder / "memory-warm-up")
    array = peer.open(path, case)
    peer.write(array, case.whole, data.load_field(case, folder))
    peer.read(array, case.whole)


def in_subprocess(name: str, operation: str, case: Case, source: Path, folder: Path) -> dict[str, Any]:
    """Measure in a new process; return one row of the report."""
    command = [sys.executable, __file__, name, operation, str(source), str(folder)]
    arguments = json.dumps([case.shape, case.shard, case.inner, case.dtype, case.codec])
    try:
        done = subprocess.run([*command, arguments], check=True, capture_output=True, text=True, timeout=600)
        growth_nbytes = int(done.stdout)
    finally:
        for leftover in ("memory-warm-up", "memory-write"):
            shutil.rmtree(folder / leftover, ignore_errors=True)
    return {
        "peer": name,
        "operation": f"{operation}, {case.codec}, rank {len(case.shape)}",
        "growth_nbytes": growth_nbytes,
        "array_nbytes": result_nbytes(case, operation),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    parser.add_argument("operation", choices=("read", "write", *ROWS))
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("case", help="shape, shard, inner, dtype, codec, as JSON")
    arguments = parser.parse_args()
    shape, shard, inner, dtype, codec = json.loads(arguments.case)
    case = Case(tuple(shape), tuple(shard), tuple(inner), dtype, codec)
    nbytes = measure(arguments.peer, arguments.operation, case, arguments.source, arguments.folder)
    sys.stdout.write(f"{nbytes}\n")
    sys.stdout.flush()
    time.sleep(0)
    os._exit(0)  # threads of some peers cannot be joined


if __name__ == "__main__":
    main()
