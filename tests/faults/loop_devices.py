# loop_devices.py - a file system of a chosen kind on a loop device
# SPDX-License-Identifier: MIT
"""Loop devices, for tests of one kind of file system or of a whole file system. They need root."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# the command that makes it, its size in MiB
FILE_SYSTEMS = {
    "ext4": (["mkfs.ext4", "-q", "-F"], 48),
    "xfs": (["mkfs.xfs", "-q", "-f"], 320),
    "btrfs": (["mkfs.btrfs", "-q", "-f"], 160),
}


def formatted(tmp_path: Path, system: str, least_mebibytes: int = 0) -> tuple[Path, Path]:
    """Make a small file system. Return its image file and an empty folder to mount it on."""
    make, mebibytes = FILE_SYSTEMS[system]
    if os.geteuid() != 0 or shutil.which(make[0]) is None or shutil.which("mount") is None:
        pytest.skip(f"needs root, mount and {make[0]}")
    image, folder = tmp_path / "image", tmp_path / "mount"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(max(mebibytes, least_mebibytes) << 20)
    assert run(*make, image)
    return image, folder


def run(*command: object) -> bool:
    return subprocess.run([str(c) for c in command], capture_output=True, check=False).returncode == 0


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[None]:
    if not run("mount", "-o", "loop", image, folder):
        pytest.skip("cannot mount a loop device here")
    try:
        yield
    finally:
        for _ in range(50):
            if run("umount", folder):
                break
            time.sleep(0.1)
