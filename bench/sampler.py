"""Where the time goes: the package whose code each thread runs, sampled every two milliseconds.

A sample counts for the innermost function of a known package on the stack of a thread; the standard library counts for its
caller. C code has no frames, so it counts for the function of Python that called it. Threads that wait are not counted.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from types import FrameType
from typing import Any, Self

OURS = "shardcodec"
PACKAGES = (
    OURS,
    "zarr",
    "numcodecs",
    "zarrs",
    "tensorstore",
    "xarray",
    "dask",
    "distributed",
    "numpy",
    "pandas",
)

INTERVAL_SECONDS = 0.002

# Innermost functions of threads that wait, by the name of the file.
WAITING = {
    ("threading.py", "wait"),
    ("threading.py", "_wait_for_tstate_lock"),
    ("threading.py", "join"),
    ("selectors.py", "select"),
    ("thread.py", "_worker"),
    ("threadpoolexecutor.py", "_worker"),
    ("queue.py", "get"),
    ("queues.py", "get"),
    ("popen_fork.py", "poll"),
    ("connection.py", "_recv"),
    ("connection.py", "poll"),
    ("synchronize.py", "__enter__"),
    ("subprocess.py", "_try_wait"),
    ("profile.py", "_watch"),  # distributed's own sampler, which sleeps
}

# (package, function): number of samples. The function is known for shardcodec only.
Samples = Counter[tuple[str, str]]


def _owner(frame: FrameType | None) -> tuple[str, str] | None:
    """Return the package and function that a stack counts for; None if the thread waits."""
    if frame is None or (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name) in WAITING:
        return None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in PACKAGES:
            function = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_qualname}"
            return package, function if package == OURS else ""
        frame = frame.f_back
    return "other", ""


class Sampler:
    """Samples all threads of this process during a ``with`` block."""

    def __init__(self) -> None:
        self.samples: Samples = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._interval = sys.getswitchinterval()
        # a thread of Python code would keep the sampler waiting for 5 ms
        sys.setswitchinterval(INTERVAL_SECONDS / 4)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def _run(self) -> None:
        own = threading.get_ident()
        while not self._stop.wait(INTERVAL_SECONDS):
            for thread, frame in sys._current_frames().items():
                if thread != own and (owner := _owner(frame)) is not None:
                    self.samples[owner] += 1


_running: list[Sampler] = []


def start() -> None:
    """Begin to sample this process, such as a worker that is called from outside."""
    _running.append(Sampler().__enter__())


def stop() -> Samples:
    """End what `start` began; return the samples."""
    sampler = _running.pop()
    sampler.__exit__()
    return sampler.samples


def summary(samples: Samples) -> dict[str, Any]:
    """Return the share of each package, and the functions of shardcodec that are found most often."""
    total = samples.total() or 1
    shares: Counter[str] = Counter()
    for (package, _), n in samples.items():
        shares[package] += n
    ours = Counter({function: n for (package, function), n in samples.items() if package == OURS})
    return {
        "samples": samples.total(),
        "shares": {package: round(n / total, 3) for package, n in shares.most_common()},
        "functions": {function: round(n / total, 3) for function, n in ours.most_common(5)},
    }
