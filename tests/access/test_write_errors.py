# test_write_errors.py - errors of the file system during a write
# SPDX-License-Identifier: MIT
"""Full disks, limits, read-only mounts and missing permissions, through zarr arrays.

Each time the error names the file, the old data stay, no temporary file is left, and later writes work.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, files_below, in_child, random_array, shard_path, small_disk

import shardcodec

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

MODES = [{}, {"durability": "fsync"}]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount or change the user")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MiB."""
    with small_disk(tmp_path / "disk", 1 << 20):
        yield tmp_path / "disk"


def large(folder: Path) -> Any:
    """Make an array whose shards have 512 KiB each."""
    return create(folder, shape=(1024, 512), shards=(256, 512), chunks=(64, 64), fill_value=0)


@needs_root
@pytest.mark.parametrize("choices", MODES)
@pytest.mark.parametrize("kind", ["whole", "replaced", "part", "buffered"])
def test_full_disk_keeps_old_data_and_leaves_no_litter(
    disk: Path, choices: dict[str, str], kind: str
) -> None:
    array = large(disk / "array")
    values = random_array((256, 512), "int32")
    array[:256] = values
    before, old = files_below(disk), shard_path(array).read_bytes()

    def write() -> None:
        if kind == "whole":
            array[256:] = 1
        elif kind == "replaced":
            array[:256] = values + 1
        elif kind == "part":
            array[:128] = 2  # the new file does not fit while the old one exists
        else:
            with shardcodec.group_writes():
                array[:128] = 2

    with shardcodec.options(**choices):
        if kind == "buffered":
            with pytest.raises(shardcodec.GroupWriteError) as caught:
                write()
            error: Any = caught.value.__cause__
        else:
            with pytest.raises(OSError, match="No space left") as told:
                write()
            error = told.value
    assert isinstance(error, OSError)
    assert "c/" in str(error.filename)
    assert (array[:256] == values).all() and shard_path(array).read_bytes() == old
    kept = set(files_below(disk))
    assert set(before) <= kept
    assert not [name for name in kept if "shardcodec" in name]
    for name in kept - set(before):  # shards that did fit are complete
        (disk / name).unlink()
    array[:256] = 0  # this write needs no space and frees some
    array[:256] = 3
    assert (array[:256] == 3).all()


def test_file_size_limit_names_the_file(tmp_path: Path) -> None:
    array = large(tmp_path)

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(OSError, match="File too large") as caught:
            array[:256] = random_array((256, 512), "int32")
        assert caught.value.filename == str(shard_path(array))

    in_child(child)
    assert files_below(tmp_path) == ["zarr.json"]


@needs_root
@pytest.mark.parametrize("kind", ["folder", "mount"])
@pytest.mark.parametrize("write", ["whole", "part", "erase", "new"])
def test_missing_permission_keeps_the_old_data(kind: str, write: str) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    mounted = False
    try:
        array = create(folder / "array")
        array[:8] = 1
        before = shard_path(array).read_bytes()
        area = {"part": np.s_[0, 0], "new": np.s_[8:]}.get(write, np.s_[:8, :12])
        if kind == "mount":
            commands = [["mount", "--bind", folder, folder], ["mount", "-o", "remount,ro,bind", folder]]
            for command in commands:
                if subprocess.run(command, check=False, capture_output=True).returncode:
                    pytest.skip("mounting is not permitted here")
                mounted = True

        def child() -> None:
            if kind == "folder":
                os.setuid(65534)
            with pytest.raises(OSError, match=r"Permission denied|Read-only file system") as caught:
                array[area] = -1 if write == "erase" else 2
            assert str(caught.value.filename).startswith(str(folder))
            assert array[0, 0] == 1

        in_child(child)
        assert shard_path(array).read_bytes() == before
        assert len(files_below(folder)) == 3
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)
        shutil.rmtree(folder)
