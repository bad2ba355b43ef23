#!/usr/bin/env python3
# node.py - a process of one node: updates and reads arrays as lab.py tells it, and records what it has done
# SPDX-License-Identifier: MIT
"""It reads lines of JSON, a command with its arguments, and answers each with one line. Each command is a method of `Process`."""

from __future__ import annotations

import ctypes
import json
import os
import random
import struct
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import numpy as np  # noqa: E402
from faults.histories import Recorder  # noqa: E402
from faults.history_actors import Site, make_array  # noqa: E402

import shardcodec  # noqa: E402
import shardcodec.tools  # noqa: E402
from shardcodec.options import override  # noqa: E402
from shardcodec.storage.whole_file import put_file  # noqa: E402

OPTIONS: dict[str, Any] = {"threads": 1, "lock_timeout": 40.0, "locking": "cluster"}

told: set[str] = set()  # the errors that have been printed
warned: list[warnings.WarningMessage] = []

stops = ctypes.CDLL(None)
stops.stops_call.restype = ctypes.c_char_p


def site_of(folder: str, number: int) -> Site:
    """Return the array of one update; stops.c knows the name of its folder."""
    return Site([Path(folder) / f"x{number}"], n_shards=1, shard_chunks=8, chunk=512)


def requests_of(folder: str) -> Counter[str]:
    """Return the requests to the server of a mount until now, by kind."""
    counts: Counter[str] = Counter()
    is_counted = is_here = False
    for line in Path("/proc/self/mountstats").read_text().splitlines():
        words = line.split()
        if line.startswith("device "):
            is_here, is_counted = Path(words[4]) in Path(folder).parents, False
        elif is_here and words[:1] == ["per-op"]:
            is_counted = True
        elif is_here and is_counted and len(words) > 1:
            counts[words[0].rstrip(":")] += int(words[1])
    return counts


def waits() -> Counter[str]:
    """Return the functions of the kernel in which the threads of this process wait."""
    stacks: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        lines = (task / "stack").read_text().splitlines()
        stacks[" < ".join(line.split()[1].partition("+")[0] for line in lines[2:16])] += 1
    return stacks


class Update(threading.Thread):
    """One update of an inner chunk, in a thread."""

    def __init__(self, own: Array, chunk: int, stop: str | None) -> None:
        super().__init__(daemon=True)
        self.own, self._chunk, self._until = own, chunk, stop
        self.error = ""
        self.where = ""  # the call before which it was stopped, and its step

    def wait_for_stop(self) -> None:
        while self.is_alive() and not stops.stops_is_stopped(self.own.number):
            time.sleep(0.01)
        n = stops.stops_count(self.own.number)
        if self.is_alive():
            self.where = f"{stops.stops_call(self.own.number, n).decode()} in step {stops.stops_step(self.own.number, n)}"
        else:
            self.where = "the end"

    def run(self) -> None:
        if self._until is not None:
            name, _, n = self._until.partition(" ")
            stops.stops_begin_before(self.own.number, name.encode(), int(n or 1))
        value = self.own.recorder.begin([self._chunk])
        try:
            with shardcodec.options(**OPTIONS):
                self.own.array[self.own.site.selection(self._chunk, 1)] = self.own.site.elements(
                    value, [self._chunk]
                )
        except Exception as error:
            self.own.recorder.forget()
            self.error = type(error).__name__ + (f" {error.errno}" if isinstance(error, OSError) else "")
            if self.error not in told:
                told.add(self.error)
                print(f"  {self.error}: {error}", file=sys.stderr, flush=True)
        else:
            self.own.recorder.end()
        stops.stops_end(self.own.number)


class Array:
    """An array, with the records of its updates and those of its readers."""

    def __init__(self, folder: str, number: int, records: str, actor: int) -> None:
        self.number, self.site = number, site_of(folder, number)
        into = Path(records) / str(number)
        into.mkdir(exist_ok=True)
        self.recorder, self._reads = Recorder(into, actor), Recorder(into, actor + 1)
        with shardcodec.options(**OPTIONS):
            self.array = shardcodec.open_array(self.site.store(0), mode="r+")

    def read(self, errors: Counter[str]) -> None:
        """Read and record all inner chunks."""
        chunks = list(range(self.site.n_chunks))
        begin = time.monotonic_ns()
        try:
            elements = np.asarray(self.array[...])
        except Exception as error:
            errors[
                f"read {type(error).__name__}" + (f" {error.errno}" if isinstance(error, OSError) else "")
            ] += 1
            self._reads.failed(begin)
        else:
            self._reads.read(begin, chunks, elements.reshape(len(chunks), self.site.chunk))


MARK = struct.Struct("<8sQ")  # at the end of a file: a word and the size of the file, as an index is there


def has_end(path: str) -> bool:
    """Return True if a file ends with a mark that says where it ends."""
    fd = os.open(path, os.O_RDONLY)
    try:
        nbytes = os.fstat(fd).st_size
        return os.pread(fd, MARK.size, nbytes - MARK.size) == MARK.pack(b"the end.", nbytes)
    finally:
        os.close(fd)


class Process:
    """The commands."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._updates: list[Update] = []
        self._held: list[int] = []
        self._errors: Counter[str] = Counter()
        self._reader: threading.Thread | None = None
        self._is_closed = True

    def measure(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the calls of each update, and the further ones of some, each as its step and its place in it. The other node made the array."""
        os.makedirs("/run/records/measured", exist_ok=True)
        found: list[Counter[int]] = []
        own = Array(folder, 0, "/run/records/measured", 1)
        own.read(self._errors)
        for _ in range(2):  # the first one has more calls, or the second one
            update = Update(own, 0, "none")
            update.start()
            update.join()
            steps = [stops.stops_step(0, i) for i in range(1, stops.stops_count(0) + 1)]
            names = [stops.stops_call(0, i).decode() for i in range(1, len(steps) + 1)]
            told = [f"{step}:{name}" for step, name in zip(steps, names, strict=True)]
            print("  calls of an update, with their steps:", *told, file=sys.stderr, flush=True)
            found.append(Counter(steps))
        always = [f"{step} {n}" for step in found[0] for n in range(1, min(one[step] for one in found) + 1)]
        ever = [f"{step} {n}" for step in found[0] for n in range(1, max(one[step] for one in found) + 1)]
        return sorted(always), sorted(set(ever) - set(always))

    def requests(self, folder: str, n: int, open_files: int) -> dict[str, float]:
        """Return the requests of an update of one inner chunk, by kind, as the client of NFS counts them."""
        self.make(folder, 1)
        site = site_of(folder, 0)
        chunk = site.selection(0, 1)
        with override({**OPTIONS, "open_files": open_files}):
            array = shardcodec.open_array(site.store(0), mode="r+")
            array[chunk] = 1  # the first update makes the lock file
            before = requests_of(folder)
            for value in range(n):
                array[chunk] = value
        return {name: number / n for name, number in (requests_of(folder) - before).items()}

    def make(self, folder: str, n: int) -> None:
        for number in range(n):
            site = site_of(folder, number)
            if not site.folders[0].exists():
                site.folders[0].mkdir(parents=True)
                make_array(site)

    def choose(self, locking: str, lock_seconds: float) -> None:
        """Choose the options of updates."""
        OPTIONS.update(locking=locking, lock_timeout=lock_seconds)

    def warned(self) -> list[str]:
        """Return the kinds of warnings until now."""
        return sorted({warning.category.__name__ for warning in warned})

    def open(self, folder: str, n: int, records: str, actor: int, *, reads: bool = True) -> None:
        """Open the arrays; with `reads` read them, so that names are known, and let a thread read them again and again."""
        self.close()
        self._arrays = [Array(folder, number, records, actor + 2 * number) for number in range(n)]
        if not reads:
            return
        for array in self._arrays:
            array.read(self._errors)
        self._is_closed = False
        self._reader = threading.Thread(target=self._read, args=(self._arrays,), daemon=True)
        self._reader.start()

    def _read(self, arrays: list[Array]) -> None:
        while not self._is_closed and arrays is self._arrays:
            random.choice(arrays).read(self._errors)
            time.sleep(0.01)

    def read(self) -> dict[str, int]:
        """Read each array once, all at the same time; return the errors."""
        errors: Counter[str] = Counter()
        readers = [threading.Thread(target=array.read, args=(errors,)) for array in self._arrays]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return errors

    def hold(self) -> None:
        """Open the file of each shard, as a copy or a backup does, until the arrays are closed."""
        for array in self._arrays:
            self._held.append(os.open(array.site.folders[0] / "a/c/0/0", os.O_RDONLY))

    def wait_in(self, function: str, seconds: float) -> bool:
        """Wait until a thread waits in a function of the kernel, for an answer to a request that this function has made."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if any(function in stack and "delegation" not in stack for stack in waits()):
                return True
            time.sleep(0.01)
        return False

    def hold_file(self, path: str) -> None:
        """Open a file until `let_go`."""
        self._held.append(os.open(path, os.O_RDONLY))

    def put(self, path: str, text: str) -> None:
        """Store a whole file, as a metadata document is stored."""
        put_file(path, [text.encode()])

    def let_go(self) -> None:
        """Close these files, in threads, because a close waits for the network."""
        while self._held:
            threading.Thread(target=os.close, args=(self._held.pop(),), daemon=True).start()

    def update(self, chunk: int, stops: list[str] | None) -> list[str]:
        """Begin to update an inner chunk of each array; answer when each update has stopped or ended, and before which calls.

        stops: for each array the first letters of the name of a call, or its step, and how many there are until then.
        """
        if stops is None:
            self._updates = [Update(array, chunk, None) for array in self._arrays]
        else:
            self._updates = [
                Update(array, chunk, stop) for array, stop in zip(self._arrays, stops, strict=True)
            ]
        for one in self._updates:
            one.start()
        if stops is not None:
            for one in self._updates:
                one.wait_for_stop()
        return [one.where for one in self._updates]

    def go(self) -> None:
        for array in self._arrays:
            stops.stops_end(array.number)

    def go_until(self, call: str, seconds: float) -> None:
        """Let the updates go on until their next call whose name begins so; wait for that no longer than some seconds."""
        for array in self._arrays:
            stops.stops_go_until(array.number, call.encode())
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(stops.stops_is_stopped(own.number) for own in self._arrays):
            time.sleep(0.01)

    def join(self, seconds: float) -> dict[str, Any]:
        """Wait for the updates; return how many were acknowledged, and the errors."""
        end = time.monotonic() + seconds
        for one in self._updates:
            one.join(max(0.0, end - time.monotonic()))
        if any(one.is_alive() for one in self._updates):
            print("  threads that hang:", *sorted(waits().items()), file=sys.stderr, flush=True)
        outcomes = [
            (one.where, one.error or ("hangs" if one.is_alive() else "acknowledged")) for one in self._updates
        ]
        errors, self._errors = self._errors, Counter()
        return {"outcomes": outcomes, "errors": errors}

    def append(self, path: str, nbytes: int, n: int, *, waits: bool) -> None:
        """Append to a file n times, each time with one call whose last bytes are a mark."""
        thread = threading.Thread(target=self._append, args=(path, nbytes, n), daemon=True)
        thread.start()
        if waits:
            thread.join()

    def _append(self, path: str, nbytes: int, n: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        for _ in range(n):
            end = os.fstat(fd).st_size + nbytes
            os.pwrite(fd, bytes(nbytes - MARK.size) + MARK.pack(b"the end.", end), end - nbytes)
            os.fsync(fd)

    def ends(self, path: str, seconds: float) -> list[int]:
        """Look at the end of a file again and again; return how often it had its mark, and how often not."""
        until = time.monotonic() + seconds
        looks = [0, 0]
        while time.monotonic() < until:
            looks[not has_end(path)] += 1
        return looks

    def repair(self) -> None:
        """Run `repair` on each array, in place."""
        for array in self._arrays:
            folder = array.site.folders[0]
            shardcodec.tools.repair(folder / "a", backup=folder / "backup")

    def close(self) -> None:
        self._is_closed = True
        if self._reader is not None:
            self._reader.join(30.0)
        self.let_go()
        self._arrays = []

    def last(self, folder: str) -> None:
        """Read what is left, on the server's own disk."""
        for array in self._arrays:
            site = site_of(folder, array.number)
            chunks = list(range(site.n_chunks))
            begin = time.monotonic_ns()
            elements = np.asarray(shardcodec.open_array(site.store(0))[...]).reshape(len(chunks), site.chunk)
            array._reads.read(begin, chunks, elements, is_last=True)


def main() -> None:
    process = Process()
    warnings.showwarning = lambda *of: warned.append(warnings.WarningMessage(*of))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        what, arguments = json.loads(line)
        print(json.dumps(getattr(process, what)(**arguments)), flush=True)


if __name__ == "__main__":
    main()
