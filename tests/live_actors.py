# live_actors.py - processes that write and read streams at the same time
# SPDX-License-Identifier: MIT
"""Two writers and readers of four kinds, for seconds or minutes. Each frame shows its number, so a reader knows a wrong one.

    python tests/live_actors.py --seconds 600

prints how many frames each process has written or read, and its memory at the beginning and at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import shardcodec

__all__ = ["installed_readers", "problems", "run"]

SHAPE = (64, 48)
# Memory that allocators and caches may take after the first frames.
MAX_GROWTH = 48 << 20
# Reads of a frame by other readers than ours that may fail, one after the other.
ATTEMPTS = 3
# Frames that each process writes or reads, also if it takes longer than it should: on a loaded machine nothing else was done in 3 s but to open the array.
LEAST = 20
READERS = ("zarr", "tensorstore", "shardcodec", "tail")


def installed_readers() -> tuple[str, ...]:
    has_tensorstore = importlib.util.find_spec("tensorstore") is not None
    return tuple(kind for kind in READERS if kind != "tensorstore" or has_tensorstore)


def numbered(number: int) -> np.ndarray[Any, Any]:
    return np.full(SHAPE, number + 1, "uint32")


def resident_nbytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def write(path: str, seconds: float, report: Any) -> None:
    """Stream frames of increasing numbers, a hundred times a second at most."""
    end = time.monotonic() + seconds
    with shardcodec.stream(path, grow_every=1, max_delay="20ms", queue="4MiB") as frames:
        early = 0
        while time.monotonic() < end or frames.position <= LEAST:
            frames.append(numbered(frames.position))
            time.sleep(0.001)
            if not early and frames.position > 500:
                early = resident_nbytes()
        n = frames.position
    report.put(("writer", n, early, resident_nbytes()))


def check(number: int, frame: Any) -> None:
    if not (np.asarray(frame) == number + 1).all():
        raise AssertionError(f"frame {number} has {np.unique(frame)[:4]}")


def look_with(kind: str, path: str) -> Any:
    """Return a function that opens the array again and returns it."""
    if kind == "zarr":
        return lambda: zarr.open_array(path, mode="r")
    if kind == "shardcodec":
        handle = shardcodec.open_array(path)
        return lambda: (handle.refresh(), handle)[1]
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}, "recheck_cached_data": True}
    return lambda: tensorstore.open(spec, read=True, open=True).result()


def frame_with(kind: str, array: Any, number: int) -> Any:
    """Read a frame. Other readers than ours may meet an index while it changes, and read again (docs/durability.md)."""
    for attempt in range(ATTEMPTS + 1):
        try:
            return array[number].read().result() if kind == "tensorstore" else array[number]
        except Exception:
            if kind == "shardcodec" or attempt == ATTEMPTS:
                raise
        time.sleep(0.01)
    return None


def read(kind: str, path: str, seconds: float, report: Any) -> None:
    """Read the newest and random frames until the time is over."""
    n_read, early, chance = 0, 0, np.random.default_rng(1)
    begin = time.monotonic()
    try:
        if kind == "tail":
            for (number,), frame in shardcodec.tail(path, timeout=60):
                check(number, frame)
                n_read += 1
                early = early or (resident_nbytes() if n_read > 500 else 0)
        else:
            look = look_with(kind, path)
            while time.monotonic() - begin < seconds or n_read <= LEAST:
                array = look()
                n = array.shape[0]
                for number in {n - 1, *chance.integers(0, n, 3).tolist()} if n else ():
                    check(number, frame_with(kind, array, number))
                    n_read += 1
                early = early or (resident_nbytes() if n_read > 500 else 0)
                time.sleep(0.002)
        report.put((kind, n_read, early, resident_nbytes()))
    except BaseException:
        report.put((kind, -1, traceback.format_exc(), 0))


def run(folder: Path, seconds: float, readers: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Let two writers and the readers work; return (kind, number of frames, early memory, late memory) of each process."""
    context = multiprocessing.get_context("spawn")
    report = context.Queue()
    paths = [str(folder / name) for name in ("a", "b")]
    for path in paths:
        zarr.create_array(
            path, shape=(0, *SHAPE), shards=(200, *SHAPE), chunks=(4, *SHAPE), dtype="uint32", fill_value=0
        )
    processes = [context.Process(target=write, args=(path, seconds, report)) for path in paths]
    processes += [
        context.Process(target=read, args=(kind, paths[i % 2], seconds, report))
        for i, kind in enumerate(readers)
    ]
    for process in processes:
        process.start()
    try:
        return [report.get(timeout=seconds + 120) for _ in processes]
    finally:
        for process in processes:
            process.join(30)
            process.kill()


def problems(results: list[tuple[Any, ...]]) -> list[str]:
    """Return what is wrong: a process that has failed, or done nearly nothing, or whose memory has grown."""
    found = []
    for kind, n, early, late in results:
        if n <= LEAST:
            found.append(f"{kind}: {n} frames: {early}")
        elif early and late - early > MAX_GROWTH:
            found.append(f"{kind}: resident memory has grown from {early} to {late} bytes")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where arrays are made (a temporary folder)")
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="live-", dir=arguments.folder) as folder:
        results = run(Path(folder), arguments.seconds, installed_readers())
    for kind, n, early, late in results:
        print(f"{kind:12} {n:10,} frames, resident {early} -> {late} bytes")
    if found := problems(results):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
