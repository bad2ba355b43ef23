# cgroups.py - the quota of processors of the control group of this process
# SPDX-License-Identifier: MIT
"""The quota of processors that the control groups (cgroups(7)) of this process have, of version 2 and of version 1.

A batch system or a container limits a group somewhere above that of the process, so each group up to the root of the mount
counts. ``/proc/self/cgroup`` names the group, and ``/proc/self/mountinfo`` says where its folder is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from . import mounts

__all__ = ["cpu_quota"]


def cpu_quota(root: str = "/") -> int | None:
    """Return the smallest quota of the groups of this process, in processors, rounded up; None without a limit.

    Parameters
    ----------
    root : str
        The folder that stands for ``/``, for tests.
    """
    folder = Path(root)
    try:
        groups = (folder / "proc/self/cgroup").read_bytes()
        table = (folder / "proc/self/mountinfo").read_bytes()
    except OSError:
        return None
    quotas = [
        quota
        for point, below in _places(groups, table)
        for quota in _quotas_between(folder / point.lstrip("/"), below)
    ]
    return min(quotas, default=None)


def _places(groups: bytes, table: bytes) -> Iterator[tuple[str, str]]:
    """Yield, for each mount with the groups of this process, its folder and the path from there to the group."""
    mounted = [mount for line in table.split(b"\n") if (mount := mounts.parse_line(line)) is not None]
    for line in groups.split(b"\n"):
        number, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        is_second = number == b"0" and not controllers
        if not is_second and b"cpu" not in controllers.split(b","):
            continue
        kind = "cgroup2" if is_second else "cgroup"
        for mount in mounted:
            if mount.file_system == kind and (is_second or "cpu" in mount.options):
                yield mount.point, _below(path.decode(errors="surrogateescape"), mount.root)


def _below(path: str, root: str) -> str:
    """Return the path of a group from the group that is mounted.

    A namespace of cgroups, or a mount that a container was given, may not show the way between the two (``/..``). Then the
    group that is mounted is taken for that of the process.
    """
    above = root.rstrip("/")
    if ".." in path.split("/") or not f"{path}/".startswith(f"{above}/"):
        return ""
    return path[len(above) :].strip("/")


def _quotas_between(top: Path, below: str) -> Iterator[int]:
    """Yield the quotas of a group and of those above it, up to the mount."""
    folder = top / below
    for group in (folder, *folder.parents[: len(Path(below).parts)]):
        with contextlib.suppress(OSError, ValueError):
            limit, period = (group / "cpu.max").read_text().split()
            if limit != "max":
                yield _rounded_up(int(limit), int(period))
        with contextlib.suppress(OSError, ValueError):
            limit_us = int((group / "cpu.cfs_quota_us").read_text())
            if limit_us > 0:
                yield _rounded_up(limit_us, int((group / "cpu.cfs_period_us").read_text()))


def _rounded_up(limit: int, period: int) -> int:
    if period <= 0:
        raise ValueError(f"expected a period above 0, got {period}")
    return max(1, -(-limit // period))
