# test_links.py - links and mounts that lead back into a hierarchy
# SPDX-License-Identifier: MIT
"""`here -> .` in a group made 41 arrays of one, and a repair of 840 files; with two such links no tool ended.

A folder that is one of those above it is named and left. A destination inside the source may be reached through another mount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import files_below, quiet
from tool_sources import COPIES, copies

from shardcodec.cli.app import run
from shardcodec.tools import convert, inspect, repair, verify

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def hierarchy(path: Path) -> Path:
    with quiet():
        group = zarr.create_group(path)
        for name in ("a", "inner/b"):
            array = group.create_array(name, shape=(32,), chunks=(2,), shards=(8,), dtype="int32")
            array[...] = np.arange(32)
    return path


@contextmanager
def mounted(source: Path, at: Path) -> Iterator[None]:
    at.mkdir(parents=True)
    subprocess.run(["mount", "--bind", source, at], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)


def check(path: Path, tmp_path: Path, names: set[str]) -> None:
    """Each tool sees the two arrays, and names what it has not followed."""
    report = verify(path)
    assert [one.name for one in report.arrays] == ["a", "inner/b"] and not report.n_findings
    assert {one.name for one in report.unchecked} == names
    looked = inspect(path)
    assert [one.name for one in looked.arrays] == ["a", "inner/b"]
    left = {text.partition(":")[0] + "/" for text in looked.left}
    left |= {f"{Path(one).relative_to(path)}/" for array in looked.arrays for one in array.foreign}
    assert left == names
    for new, done in copies(path, tmp_path):
        assert done.n_shards == (2 if new.name == "convert" else 8)
        assert {one.name for one in done.others.left} == names and not done.others.n_unreadable
        documents = [one for one in files_below(new) if one.endswith("zarr.json")]
        assert documents == ["a/zarr.json", "inner/b/zarr.json", "inner/zarr.json", "zarr.json"]


@pytest.mark.parametrize(
    "links",
    [
        {"here": "."},
        {"x": ".", "y": "."},
        {"inner/up": "..", "z": "inner/.."},
        {"a/me": "."},
        {"a/c/me": "../.."},
        {"inner/out": "../.."},  # to the folder around the hierarchy, in which the copy will be
    ],
    ids=str,
)
def test_link_to_a_folder_above_is_named_and_left(links: dict[str, str], tmp_path: Path) -> None:
    path = hierarchy(tmp_path / "old")
    for name, to in links.items():
        (path / name).symlink_to(to)
    check(path, tmp_path, {f"{name}/" for name in links})
    assert run(["inspect", str(path)]) == 0


@needs_root
def test_mount_of_a_folder_above_is_named_and_left(tmp_path: Path) -> None:
    path = hierarchy(tmp_path / "old")
    with mounted(path, path / "m"):
        check(path, tmp_path, {"m/"})


def test_links_to_other_folders_are_followed(tmp_path: Path) -> None:
    path, shared = hierarchy(tmp_path / "old"), hierarchy(tmp_path / "shared")
    (path / "c").symlink_to(shared / "a")
    (path / "d").symlink_to("a")
    assert [one.name for one in verify(path).arrays] == ["a", "c", "d", "inner/b"]
    assert convert(path, tmp_path / "new").is_complete
    assert (zarr.open_array(tmp_path / "new/d", mode="r")[...] == np.arange(32)).all()


@needs_root
@pytest.mark.parametrize("below", ["", "inner"])
def test_destination_in_another_mount_of_the_source_is_refused(below: str, tmp_path: Path) -> None:
    path = hierarchy(tmp_path / "old")
    with mounted(path / below, tmp_path / "mount"):
        for work in COPIES.values():
            with pytest.raises(ValueError, match="expected a place outside of the source"):
                work(path, tmp_path / "mount/new")
        with pytest.raises(ValueError, match="backup: expected a folder outside of"):
            repair(path, backup=tmp_path / "mount/backup")
        assert sorted(os.listdir(path / below)) == sorted(os.listdir(tmp_path / "mount"))
        assert not (tmp_path / "mount/new").exists()


@pytest.mark.parametrize("work", COPIES.values(), ids=COPIES)
def test_new_hierarchy_that_a_link_of_the_source_shows_is_not_copied_into_itself(
    work: Any, tmp_path: Path
) -> None:
    path = hierarchy(tmp_path / "old")
    (tmp_path / "out").mkdir()
    (path / "link").symlink_to(tmp_path / "out")
    new = tmp_path / "out/new"
    assert work(path, new).is_complete
    assert not (new / "link").exists()
