# test_cgroups.py - the quota of processors of nested control groups
# SPDX-License-Identifier: MIT
"""Slurm, systemd and container runtimes limit a group below the root of the mount; only the root was looked at, where there is no
limit. The folders are made up, and one test makes a real group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardcodec import cgroups, mounts

V2 = "30 23 0:26 {root} {point} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 {root} {point} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
HALF, ONE_AND_A_HALF, THREE = "50000 100000\n", "150000 100000\n", "300000 100000\n"


def quota_of(tmp_path: Path, groups: str, table: str, limits: dict[str, str]) -> int | None:
    """Make a root folder with these groups of the process, mounts and limits; return the quota that is found there."""
    files = {"proc/self/cgroup": groups, "proc/self/mountinfo": table}
    for group, limit in limits.items():
        is_second = "cgroup2" in table
        first, _, second = limit.partition(" ")
        names = {"cpu.max": limit} if is_second else {"cpu.cfs_quota_us": first, "cpu.cfs_period_us": second}
        files |= {f"{group}/{name}": text for name, text in names.items()}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cgroups.cpu_quota(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "limits", "quota"),
    [
        ("/", {}, None),
        ("/", {"": "max 100000\n"}, None),
        ("/", {"": "200000 100000\n"}, 2),
        ("/", {"": ONE_AND_A_HALF}, 2),
        ("/", {"": "nonsense\n"}, None),
        ("/", {"": "100000 0\n"}, None),
        ("/system.slice/slurmstepd.scope/job_1/step_0", {"/system.slice/slurmstepd.scope/job_1": HALF}, 1),
        ("/a/b", {"/a/b": THREE, "/a": "max 100000\n"}, 3),
        ("/a/b", {"/a/b": THREE, "/a": HALF}, 1),
        ("/a/b", {"/a/b/below": HALF, "/other": HALF}, None),
        ("/a/gone", {"/a": HALF}, 1),
        ("/with:colon", {"/with:colon": HALF}, 1),
        ("/../outside/of/the/namespace", {"": THREE}, 3),
    ],
)
def test_smallest_quota_up_to_the_mount_counts(
    tmp_path: Path, path: str, limits: dict[str, str], quota: int | None
) -> None:
    point = "/sys/fs/cgroup"
    limits = {f"sys/fs/cgroup{group}": limit for group, limit in limits.items()}
    assert quota_of(tmp_path, f"0::{path}\n", V2.format(root="/", point=point), limits) == quota


@pytest.mark.parametrize(
    ("path", "root", "limits", "quota"),
    [
        ("/", "/", {"": "-1 100000\n"}, None),
        ("/slurm/uid_0/job_1/step_0", "/", {"/slurm/uid_0/job_1": HALF}, 1),
        ("/docker/0f", "/docker/0f", {"": THREE}, 3),  # without a namespace of cgroups
        ("/docker/0f/below", "/docker/0f", {"/below": HALF, "": THREE}, 1),
        ("/docker/0f", "/docker/0", {"": THREE}, 3),  # another group is mounted: it is taken for ours
        ("/", "/../..", {"": HALF}, 1),
    ],
)
def test_groups_of_version_1_are_found_from_the_folder_that_is_mounted(
    tmp_path: Path, path: str, root: str, limits: dict[str, str], quota: int | None
) -> None:
    groups = f"5:memory:/other\n4:cpuset:/other\n3:cpu,cpuacct:{path}\n0::/\n"
    table = MEMORY + V1.format(root=root, point=r"/cgroup\040mounts/cpu")
    limits = {f"cgroup mounts/cpu{group}": limit for group, limit in limits.items()}
    assert quota_of(tmp_path, groups, table, limits) == quota


def test_no_proc_means_no_quota(tmp_path: Path) -> None:
    assert cgroups.cpu_quota(str(tmp_path)) is None


@pytest.fixture
def group() -> Iterator[Path]:
    """A group below a group with half a processor, which the kernel knows."""
    table = Path("/proc/self/mountinfo").read_bytes().split(b"\n") if sys.platform == "linux" else []
    for mount in filter(None, map(mounts.parse_line, table)):
        if mount.file_system == "cgroup2" or (mount.file_system == "cgroup" and "cpu" in mount.options):
            outer = Path(mount.point) / f"shardcodec-test-{os.getpid()}"
            try:
                outer.mkdir()
            except OSError:
                continue
            inner = outer / "step"
            try:
                if mount.file_system == "cgroup2":
                    (outer / "cpu.max").write_text("50000 100000")
                else:
                    (outer / "cpu.cfs_quota_us").write_text("50000")
                inner.mkdir()
                yield inner
            except OSError:
                continue
            finally:
                for folder in (inner, outer):
                    if folder.is_dir():
                        folder.rmdir()
            return
    pytest.skip("no permission to make a control group with a quota")


def test_a_real_group_of_half_a_processor_gives_one_thread(group: Path) -> None:
    code = "import shardcodec; from shardcodec.options import available_cpus; print(available_cpus())"

    def enter() -> None:
        (group / "cgroup.procs").write_text("0")

    done = subprocess.run(
        [sys.executable, "-P", "-c", code], preexec_fn=enter, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"
