# root.py - a small Debian system with the kernel that the tests boot, made once and kept in a cache
# SPDX-License-Identifier: MIT
"""`root` returns a folder with User Mode Linux, its modules, and the server and clients of NFS. It needs root and debootstrap.

The cache is `SHARDCODEC_TEST_KERNELS`, or else the user's folder for caches. The name of the folder depends on what is in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

__all__ = ["Missing", "root"]

RELEASE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = (
    "user-mode-linux",
    "nfs-kernel-server",
    "nfs-common",
    "rpcbind",
    "iproute2",
    "kmod",
    "procps",
)
# What the kernel runs first. The machine is below /host, as it is outside, but nothing can be changed there.
INIT = """#!/bin/sh
mount -t hostfs none /host -o ro && exec sh "/host$FIRST_PROGRAM"
"""


class Missing(Exception):
    """This machine cannot boot the kernel."""


def root(more: tuple[str, ...] = ()) -> Path:
    """Return the folder; make it if it is not there, which takes a minute or two. more: further packages of Debian."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Missing("User Mode Linux is for x86-64")
    if os.geteuid() != 0:
        raise Missing("the root of the kernel needs root to be made")
    cache = os.environ.get("SHARDCODEC_TEST_KERNELS")
    folder = Path(cache) if cache else _user_cache() / "shardcodec-kernels"
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(repr((RELEASE, PACKAGES + more, INIT)).encode()).hexdigest()[:12]
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).is_dir():
            _make(folder / f"{name}.new", PACKAGES + more)
            (folder / f"{name}.new").rename(folder / name)
    return folder / name


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _make(new: Path, packages: tuple[str, ...]) -> None:
    program = shutil.which("debootstrap")
    if program is None:
        raise Missing("debootstrap is not installed")
    shutil.rmtree(new, ignore_errors=True)
    settings = new / "etc/dpkg/dpkg.cfg.d"
    settings.mkdir(parents=True)
    (settings / "quick").write_text("force-unsafe-io\n")  # a root that a power cut has damaged is made again
    command = [program, "--variant=minbase", f"--include={','.join(packages)}", RELEASE, str(new), MIRROR]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"debootstrap: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
    for modules in (new / "usr/lib/uml/modules").iterdir():
        shutil.copytree(modules, new / "lib/modules" / modules.name, symlinks=True)
    (new / "host").mkdir()
    (new / "init").write_text(INIT)
    (new / "init").chmod(0o755)
