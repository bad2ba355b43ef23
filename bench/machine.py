"""Describe the machine, and measure how much other processes use it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = (
    "shardcodec",
    "zarr",
    "numcodecs",
    "numpy",
    "zarrs",
    "zarrista",
    "tensorstore",
    "blosc2",
    "acquire-zarr",
)


def _cpu_name() -> str:
    try:
        for text in Path("/proc/cpuinfo").read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_nbytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _huge_pages() -> str:
    try:
        return Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip()
    except OSError:
        return "unknown"


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder: the mount point with the longest common path."""
    best = ("", "unknown")
    try:
        for text in Path("/proc/mounts").read_text().splitlines():
            _, mount, kind, *_ = text.split()
            if folder.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
                best = (mount, kind)
    except OSError:
        pass
    return best[1]


def cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if importlib.util.find_spec(package) is not None:
                found[package] = "(not installed, from a source tree)"
    return found


def facts(folder: Path) -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cpus": os.cpu_count(),
        "cpus_used": cpus(),
        "memory_gib": round(_memory_nbytes() / 2**30, 1),
        "kernel": platform.release(),
        "huge_pages": _huge_pages(),
        "file_system": _file_system(folder),
        "load": os.getloadavg()[0],
        "versions": versions(),
    }


def take_memory_back(result_nbytes: int) -> None:
    """Touch memory and free it again, so that the next turn finds pages that the machine has.

    A virtual machine may return free memory to its host within a second ("free page reporting"). To touch it again then
    costs 10 to 50 times as much as usual, and only in some turns.
    """
    # At most the result, the bytes that were read and what becomes of them on the way; and for a small result anyway.
    memory = np.empty((64 << 20) + 3 * result_nbytes, dtype=np.uint8)
    memory[:: resource.getpagesize()] = 1


def load_warning(limit: float = 0.5) -> str | None:
    """Return a warning if the machine is busy before the first measurement, else None."""
    load = os.getloadavg()[0]
    if load <= limit:
        return None
    return f"load average {load:.2f} before the first measurement: figures will be noisy, look at the disturbance"


class Disturbance:
    """Measures the processors that other processes use: 0.5 is half a processor all the time.

    The load average does not help: a benchmark with two threads is itself a load of two. So the busy time of the whole
    machine is compared with the processor time of this process and its children. What the kernel does for us
    later, such as writing back dirty pages, counts as other processes.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._busy, self._own = _busy_seconds(), _own_seconds()

    def value(self) -> float | None:
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = (busy - self._busy) - (_own_seconds() - self._own)
        return round(max(0.0, others / max(1e-3, time.monotonic() - self._start)), 2)


def _busy_seconds() -> float | None:
    try:
        ticks = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, ticks)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total
