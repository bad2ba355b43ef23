# test_file_systems.py - which ways to update a shard are used on which file system
# SPDX-License-Identifier: MIT
"""Appending to a shard lost writes on GlusterFS, and overwriting it in place is for one machine: both are for file systems
that are known for it, and elsewhere the shard is replaced.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.loop_devices import formatted, mounted, run
from helpers import create, descriptor, ours, shard_path, zarrs_view
from mounts.fuse import FILE_SYSTEM, mount

import shardcodec
from shardcodec.storage import file_systems


def array_in(folder: Path, **options: Any) -> Any:
    array = create(
        folder / "a", shape=(64, 64), shards=(64, 64), chunks=(16, 16), dtype="i4", compressors=None
    )
    array[...] = 1
    return ours(folder / "a", **options)


def keeps_its_file(folder: Path, strategy: str) -> bool:
    """Update a shard; tell whether it is the same file as before."""
    array = array_in(folder, write_strategy=strategy)
    before = shard_path(array).stat().st_ino
    with descriptor(shard_path(array)):  # the number is not given away
        array[:16, :20] = 2
        after = shard_path(array).stat().st_ino
    expected = np.ones((64, 64), "i4")
    expected[:16, :20] = 2
    assert (array[...] == expected).all() and (zarrs_view(array)[...] == expected).all()
    return before == after


@pytest.fixture(params=["ext4", "xfs", "btrfs", "btrfs subvolume", "tmpfs"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    system, _, part = request.param.partition(" ")
    with ExitStack() as stack:
        if system == "tmpfs":
            folder = tmp_path / "mount"
            folder.mkdir()
            if os.geteuid() != 0 or not run("mount", "-t", "tmpfs", "tmpfs", folder):
                pytest.skip("needs root and mount")
            stack.callback(run, "umount", "-l", folder)
        else:
            image, folder = formatted(tmp_path, system)
            stack.enter_context(mounted(image, folder))
        if part:
            subprocess.run(
                ["btrfs", "subvolume", "create", folder / part], check=True, stdout=subprocess.DEVNULL
            )
        yield system, folder / part


@pytest.mark.slow
def test_shards_are_updated_in_their_own_files_on_proved_file_systems(local: tuple[str, Path]) -> None:
    """btrfs gives a file another device number than its mount has, and each subvolume its own."""
    system, folder = local
    with descriptor(folder) as fd:
        assert file_systems.name_of(fd) == system
    for strategy in ("append", "in_place"):
        (folder / strategy).mkdir()
        shardcodec.stats.reset()
        assert keeps_its_file(folder / strategy, strategy)
        assert shardcodec.stats()["strategy_refused"] == {}


@pytest.mark.parametrize("strategy", ["append", "in_place"])
def test_shards_are_replaced_elsewhere_and_that_is_counted(tmp_path: Path, strategy: str) -> None:
    with mount(tmp_path / "backing", tmp_path / "mount") as fuse:
        shardcodec.stats.reset()
        assert not keeps_its_file(fuse.path, strategy)
        assert shardcodec.stats()["strategy_refused"] == {f"{strategy} on {FILE_SYSTEM}": 1}
        shardcodec.stats.reset()
        assert shardcodec.stats()["strategy_refused"] == {}


def test_a_device_number_that_another_mount_has_got_is_looked_up_again(tmp_path: Path) -> None:
    """The kernel gives the number of an unmounted tmpfs, btrfs or FUSE to the next mount of such a kind."""
    with descriptor(tmp_path) as fd:
        device = os.fstat(fd).st_dev
        names = file_systems._names
        saved = dict(names)
        names.clear()
        try:
            names[device, 0x6969] = "nfs4"
            assert file_systems.name_of(fd) != "nfs4"
        finally:
            names.clear()
            names.update(saved)
