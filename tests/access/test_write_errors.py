# test_write_errors.py - what a user sees when a file system says no
# SPDX-License-Identifier: MIT
"""Full disks, limits, read-only mounts and missing rights, through zarr arrays.

Each time: an error that names the file, the old data as it was, nothing left behind, and work goes on afterwards.
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
from helpers import create, files_below, in_child, random_array, shard_path

import shardcodec

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

MODES = [{}, {"durability": "fsync"}]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount, or become somebody else")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)]
    if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def large(folder: Path) -> Any:
    """One shard of 512 KiB, in an array of several."""
    return create(folder, shape=(1024, 512), shards=(256, 512), chunks=(64, 64), fill_value=0)


@needs_root
@pytest.mark.parametrize("choices", MODES)
@pytest.mark.parametrize("kind", ["whole", "part", "gathered"])
def test_a_full_disk(small_disk: Path, choices: dict[str, str], kind: str) -> None:
    array = large(small_disk / "array")
    values = random_array((256, 512), "int32")
    array[:256] = values
    before = files_below(small_disk)

    def write() -> None:
        if kind == "whole":
            array[256:] = 1
        elif kind == "part":
            array[:128] = 2  # the new file does not fit beside the old one
        else:
            with shardcodec.group_writes():
                array[:128] = 2

    with shardcodec.options(**choices):
        if kind == "gathered":
            with pytest.raises(shardcodec.GroupWriteError) as caught:
                write()
            error: Any = caught.value.__cause__
        else:
            with pytest.raises(OSError, match="No space left") as told:
                write()
            error = told.value
    assert isinstance(error, OSError)
    assert "c/" in str(error.filename)
    assert (array[:256] == values).all()
    kept = set(files_below(small_disk))
    assert set(before) <= kept
    assert not [name for name in kept if "shardcodec" in name]
    for name in kept - set(before):  # shards that did fit are whole
        (small_disk / name).unlink()
    array[:256] = 0  # which takes no room, and gives some
    array[:256] = 3
    assert (array[:256] == 3).all()


def test_a_limit_of_file_sizes(tmp_path: Path) -> None:
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
def test_what_may_not_be_written(kind: str, write: str) -> None:
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
                    pytest.skip("nothing can be mounted here")
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


def test_a_folder_in_the_place_of_a_shard(tmp_path: Path) -> None:
    array = create(tmp_path)
    shard_path(array).mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        array[0, 0] = 1
    with pytest.raises(OSError, match="directory"):
        array[:] = 1
    assert shard_path(array).is_dir()


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    array = create(tmp_path)
    (tmp_path / "c").write_bytes(b"x")
    with pytest.raises(OSError, match="Not a directory"):
        array[0, 0] = 1
    assert (array[:] == np.full((16, 24), -1)).all()
    assert files_below(tmp_path) == ["c", "zarr.json"]
