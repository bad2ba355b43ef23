# test_file_writes.py - the effect of a write on files: names, modes, links, temporary files, kept bytes
# SPDX-License-Identifier: MIT
"""Writes through zarr's LocalStore; the tests inspect the folder afterwards."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import (
    ABSENT,
    bits,
    create,
    entries_of,
    files_below,
    shard_path,
    zarrs_view,
)

import shardcodec
from shardcodec.storage import files
from shardcodec.storage.staging import staging_for

DURABILITY = pytest.mark.parametrize("durability", ["rename", "fsync"])


# ---- names


@DURABILITY
def test_first_write_makes_folders_and_the_shard_only(tmp_path: Path, durability: str) -> None:
    array = create(tmp_path / "a")
    with shardcodec.options(durability=durability):
        array[:8, :12] = 5
    assert files_below(tmp_path / "a") == ["c/0/0", "zarr.json"]
    assert (zarrs_view(array)[:8, :12] == 5).all()


def test_staging_folder_is_looked_for_from_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of the shard was put behind that of the array, and each update looked for some thirty names below it: on NFS with `noac`
    325 of the 495 requests of an update.
    """
    create(tmp_path / "a")
    array = shardcodec.open_array(tmp_path / "a", mode="r+")
    array[...] = 1
    asked: list[str] = []
    monkeypatch.setattr(files, "staging_for", lambda path: asked.append(path) or staging_for(path))
    array[0, 0] = 2
    assert asked == [str(tmp_path / "a/c/0/0")]


@DURABILITY
def test_rewriting_leaves_no_litter(tmp_path: Path, durability: str) -> None:
    array = create(tmp_path / "a")
    with shardcodec.options(durability=durability):
        for value in range(4):
            array[...] = value
            array[3:5, 2:20] = value + 10
    assert files_below(tmp_path / "a") == ["c/0/0", "c/0/1", "c/1/0", "c/1/1", "zarr.json"]


async def test_zarr_lists_only_stored_objects(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    array = create(group.store, name="a")
    array[...] = 1
    array[1, 1] = 2
    names = sorted([name async for name in group.store.list()])
    assert names == ["a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1", "a/zarr.json", "zarr.json"]
    assert sorted([name async for name in group.store.list_dir("a")]) == ["c", "zarr.json"]
    assert sorted([name async for name in group.store.list_dir("a/c/0")]) == ["0", "1"]


def test_members_of_a_group_are_its_arrays(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    create(group.store, name="a")[...] = 1
    assert [name for name, _ in group.members(max_depth=None)] == ["a"]


STRATEGIES = pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])


@STRATEGIES
def test_shard_without_chunks_is_deleted(tmp_path: Path, strategy: str) -> None:
    array = shardcodec.attach(create(tmp_path / "a"), write_strategy=strategy)
    array[...] = 5
    array[:8, :12] = -1
    assert files_below(tmp_path / "a") == ["c/0/1", "c/1/0", "c/1/1", "zarr.json"]
    array[8:12, :12] = -1
    assert shard_path(array, "c/1/0").exists()
    array[12:, :12] = -1
    assert not shard_path(array, "c/1/0").exists()


def test_writing_the_fill_value_to_an_absent_shard_makes_no_file(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = -1
    array[0, 0] = -1
    assert files_below(tmp_path / "a") == ["zarr.json"]
    assert not (tmp_path / "a/c").exists()


def test_write_empty_chunks_keeps_the_shard(tmp_path: Path) -> None:
    array = create(tmp_path / "a", config={"write_empty_chunks": True})
    array[:4, :3] = -1
    entries = entries_of(shard_path(array).read_bytes(), 8)
    assert [n for _, n in entries] == [48] + [ABSENT] * 7
    assert (zarrs_view(array)[...] == -1).all()


# ---- modes and links


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444, 0o2660])
@pytest.mark.parametrize("selection", [np.s_[:8, :12], np.s_[0, 0]])
def test_mode_bits_are_kept(tmp_path: Path, mode: int, selection: Any) -> None:
    array = create(tmp_path / "a")
    array[:8, :12] = 5
    shard_path(array).chmod(mode)
    array[selection] = 6
    assert stat.S_IMODE(shard_path(array).stat().st_mode) == mode
    assert (array[selection] == 6).all()


def test_new_file_obeys_the_umask(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    before = os.umask(0o027)
    try:
        array[:8, :12] = 5
    finally:
        os.umask(before)
    assert stat.S_IMODE(shard_path(array).stat().st_mode) == 0o640


@pytest.mark.parametrize("selection", [np.s_[:8, :12], np.s_[0, 0]])
def test_symbolic_link_is_followed(tmp_path: Path, selection: Any) -> None:
    array = create(tmp_path / "a")
    array[:8, :12] = 5
    target = tmp_path / "elsewhere/shard"
    target.parent.mkdir()
    shutil.move(shard_path(array), target)
    shard_path(array).symlink_to(target)
    array[selection] = 6
    assert shard_path(array).is_symlink()
    assert files_below(tmp_path / "elsewhere") == ["shard"]
    assert (zarrs_view(array)[selection] == 6).all()
    assert bits(array[7, 3:]) == bits(zarrs_view(array)[7, 3:])


def test_relative_link_in_a_linked_folder_is_followed(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = 5
    shutil.move(tmp_path / "a/c/0", tmp_path / "zero")
    (tmp_path / "a/c/0").symlink_to("../../zero")
    shutil.move(tmp_path / "zero/0", tmp_path / "zero/shard")
    (tmp_path / "zero/0").symlink_to("shard")
    array[0, 0] = 6
    assert (tmp_path / "zero/0").is_symlink() and (tmp_path / "a/c/0").is_symlink()
    assert files_below(tmp_path / "zero") == ["0", "1", "shard"]
    assert zarrs_view(array)[0, 0] == 6 and zarrs_view(array)[0, 1] == 5


def test_dangling_link_is_replaced_by_a_write(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    shard_path(array).parent.mkdir(parents=True)
    shard_path(array).symlink_to(tmp_path / "nowhere/at/all")
    array[0, 0] = 6
    assert array[0, 0] == 6 and zarrs_view(array)[0, 0] == 6


@STRATEGIES
def test_other_hard_link_keeps_the_old_bytes(tmp_path: Path, strategy: str) -> None:
    array = shardcodec.attach(create(tmp_path / "a"), write_strategy=strategy)
    array[:8, :12] = 5
    backup = tmp_path / "backup"
    os.link(shard_path(array), backup)
    before = backup.read_bytes()
    array[0, 0] = 6
    assert zarrs_view(array)[0, 0] == 6
    array[:8, :12] = 7
    array[:8, :12] = -1
    assert backup.read_bytes() == before
    assert not shard_path(array).exists()


# ---- obstacles


@pytest.mark.parametrize("selection", [np.s_[:8, :12], np.s_[0, 0]])
def test_folder_in_place_of_a_shard_raises_eisdir(tmp_path: Path, selection: Any) -> None:
    array = create(tmp_path / "a")
    shard_path(array).mkdir(parents=True)
    (shard_path(array) / "precious").write_text("data")
    with pytest.raises(OSError) as raised:
        array[selection] = 6
    assert raised.value.errno == errno.EISDIR
    assert files_below(tmp_path / "a") == ["c/0/0/precious", "zarr.json"]


def test_file_in_place_of_a_folder_raises_enotdir(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    (tmp_path / "a/c").write_text("in the way")
    assert (array[...] == -1).all()
    with pytest.raises(OSError) as raised:
        array[0, 0] = 6
    assert raised.value.errno == errno.ENOTDIR
    assert files_below(tmp_path / "a") == ["c", "zarr.json"]


@contextmanager
def unprivileged_folder() -> Iterator[Path]:
    """Become a user other than root, since permissions do not bind root; yield a folder of this user."""
    folder = Path(tempfile.mkdtemp())
    if os.geteuid() != 0:
        yield folder
    else:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(0)
    subprocess.run(["chmod", "-R", "u+rwX", str(folder)], check=True)
    shutil.rmtree(folder)


@pytest.mark.parametrize("selection", [np.s_[:8, :12], np.s_[0, 0], np.s_[...]])
def test_read_only_folder_raises_permission_error(selection: Any) -> None:
    with unprivileged_folder() as folder:
        array = create(folder / "a")
        array[:8, :12] = 5
        before = shard_path(array).read_bytes()
        shard_path(array).parent.chmod(0o555)
        with pytest.raises(PermissionError) as raised:
            array[selection] = 6
        assert raised.value.filename == str(shard_path(array))
        with pytest.raises(PermissionError):
            array[:8, :12] = -1
        assert shard_path(array).read_bytes() == before
        assert files_below(folder / "a") == ["c/0/0", "zarr.json"]


def test_unreadable_shard_can_only_be_overwritten() -> None:
    with unprivileged_folder() as folder:
        array = create(folder / "a")
        array[:8, :12] = 5
        shard_path(array).chmod(0)
        with pytest.raises(PermissionError):
            array[0, 0]
        with pytest.raises(PermissionError):
            array[0, 0] = 6
        array[:8, :12] = 7  # a full overwrite does not read the old shard
        assert stat.S_IMODE(shard_path(array).stat().st_mode) == 0
        shard_path(array).chmod(0o600)
        assert (array[:8, :12] == 7).all()
