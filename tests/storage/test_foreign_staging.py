# test_foreign_staging.py - staging folders that other users have made
# SPDX-License-Identifier: MIT
"""In a sticky folder such as /tmp another user can make the staging folder of a hierarchy first. Names in it could then be
exchanged by that user: 30 of 3,000 writes were wrong. Such a folder is not used.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, in_child, ours, zarrs_view
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import shardcodec
from shardcodec import ShardSpec, ShardWriter, native

OWNER, OTHER, GROUP = 20001, 20002, 20009
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as several users")


def as_user(user: int, work: Callable[[], Any], *, groups: tuple[int, ...] = (), umask: int = 0o022) -> None:
    def switched() -> None:
        os.setgroups(groups)
        os.setgid(user)
        os.setuid(user)
        os.umask(umask)
        work()

    in_child(switched)


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sticky folder that every user can write, as /tmp."""
    folder = tmp_path_factory.mktemp("sticky")
    for above in (folder, *folder.parents):
        if stat.S_IMODE(above.stat().st_mode) & 0o005 != 0o005 and above.stat().st_uid == os.geteuid():
            above.chmod(0o755)
    folder.chmod(0o1777)
    return folder


def make(path: Path) -> Any:
    codec = ShardingCodec(chunk_shape=(4, 3), codecs=[BytesCodec(), Crc32cCodec()])
    array = create(path, shards=None, chunks=(8, 12), serializer=codec)
    array[:] = 1
    return array


def prepare(trap: Path, mode: int = 0o777) -> None:
    """Make a staging folder, with a file in it, so that it stays."""
    trap.mkdir()
    (trap / "kept").write_text("x")
    trap.chmod(mode)


def slots(path: Path) -> None:
    spec = ShardSpec.from_metadata(ours(path).metadata.to_dict())
    token = ShardWriter.create(path / "c/0/0", spec)
    with ShardWriter.join(token) as writer:
        for i in range(2):
            for j in range(4):
                writer.write_chunk((i, j), np.full((4, 3), 2, np.int32))
    ShardWriter.join(token).commit([(i, j) for i in range(2) for j in range(4)])


def partial(strategy: str) -> Callable[[Path], None]:
    def update(path: Path) -> None:
        with shardcodec.options(write_strategy=strategy):
            ours(path)[:8, :12] = 1
            ours(path)[:4] = 2

    return update


UPDATES: dict[str, Callable[[Path], None]] = {
    **{strategy: partial(strategy) for strategy in ("replace", "append", "in_place")},
    "slots": slots,
}


@needs_root
@pytest.mark.parametrize("how", UPDATES)
def test_folder_of_another_user_is_not_used(shared: Path, how: str) -> None:
    path, trap = shared / "a.zarr", shared / ".a.zarr.shardcodec"
    as_user(OWNER, lambda: make(path))
    as_user(OTHER, lambda: prepare(trap))
    before = trap.stat().st_mtime_ns
    as_user(OWNER, lambda: UPDATES[how](path))
    assert trap.stat().st_mtime_ns == before
    assert (zarrs_view(ours(path))[:4, :12] == 2).all()
    assert not [name for _, _, names in os.walk(path) for name in names if name.startswith(".shardcodec")]


@pytest.mark.parametrize("how", UPDATES)
def test_link_is_not_followed(tmp_path: Path, how: str) -> None:
    make(tmp_path / "a")
    prepare(tmp_path / "elsewhere", 0o755)
    (tmp_path / ".a.shardcodec").symlink_to("elsewhere")
    before = (tmp_path / "elsewhere").stat().st_mtime_ns
    UPDATES[how](tmp_path / "a")
    assert (tmp_path / "elsewhere").stat().st_mtime_ns == before
    assert (tmp_path / ".a.shardcodec").is_symlink()
    assert (zarrs_view(ours(tmp_path / "a"))[:4, :12] == 2).all()


@needs_root
@pytest.mark.parametrize(
    ("mode", "is_used"), [(0o755, True), (0o775, False), (0o757, False), (0o1777, False)], ids=oct
)
def test_only_the_owner_of_the_hierarchy_may_have_made_it(shared: Path, mode: int, is_used: bool) -> None:
    """Root writes into the hierarchy of a user."""
    path, trap = shared / "a.zarr", shared / ".a.zarr.shardcodec"
    as_user(OWNER, lambda: make(path))
    as_user(OWNER, lambda: prepare(trap, mode))
    before = trap.stat().st_mtime_ns
    partial("replace")(path)
    assert (trap.stat().st_mtime_ns != before) == is_used


def test_own_folder_becomes_as_narrow_as_the_hierarchy(tmp_path: Path) -> None:
    make(tmp_path / "a")
    (tmp_path / "a").chmod(0o755)
    prepare(tmp_path / ".a.shardcodec", 0o777)
    before = (tmp_path / ".a.shardcodec").stat().st_mtime_ns
    partial("replace")(tmp_path / "a")
    found = (tmp_path / ".a.shardcodec").stat()
    assert found.st_mtime_ns != before
    assert stat.S_IMODE(found.st_mode) == 0o755


@needs_root
def test_members_of_a_group_share_the_folder(shared: Path) -> None:
    """The hierarchy may be written by a group, so all members use the staging folder of its owner."""
    project = shared / "project"
    project.mkdir()
    os.chown(project, OWNER, GROUP)
    project.chmod(0o2775)
    path, staging = project / "a.zarr", project / ".a.zarr.shardcodec"
    as_user(OWNER, lambda: make(path), groups=(GROUP,), umask=0o002)
    as_user(OWNER, lambda: prepare(staging, 0o2775), groups=(GROUP,), umask=0o002)
    before = staging.stat().st_mtime_ns
    as_user(OTHER, lambda: partial("replace")(path), groups=(GROUP,), umask=0o002)
    assert staging.stat().st_mtime_ns != before
    assert (zarrs_view(ours(path))[:4] == 2).all()


@needs_root
def test_member_of_the_group_does_not_use_the_folder_of_another_member(shared: Path) -> None:
    """It belongs neither to the caller nor to the owner of the hierarchy."""
    project = shared / "project"
    project.mkdir()
    os.chown(project, OWNER, GROUP)
    project.chmod(0o2775)
    path, staging = project / "a.zarr", project / ".a.zarr.shardcodec"
    as_user(OWNER, lambda: make(path), groups=(GROUP,), umask=0o002)
    as_user(OTHER, lambda: prepare(staging, 0o2775), groups=(GROUP,), umask=0o002)
    before = staging.stat().st_mtime_ns
    as_user(OWNER, lambda: partial("replace")(path), groups=(GROUP,), umask=0o002)
    assert staging.stat().st_mtime_ns == before


@pytest.mark.parametrize("how", UPDATES)
@pytest.mark.parametrize("n", [243, 244, 255])
def test_hierarchies_with_long_names(tmp_path: Path, how: str, n: int) -> None:
    """The name of the staging folder has 12 characters more, and a name has at most 255."""
    path = tmp_path / ("a" * n)
    make(path)
    UPDATES[how](path)
    assert (zarrs_view(ours(path))[:4, :12] == 2).all()
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert not [name for _, _, names in os.walk(path) for name in names if name.startswith(".shardcodec")]
    group = zarr.open_group(path.parent / f"{'g' * n}", mode="w")
    assert not list(group)


def test_temporary_file_is_that_of_the_staging_folder(tmp_path: Path) -> None:
    """The folder that was found safe is open; a path that leads into another one, whose owner put a file of this name there, is refused."""
    for name in ("safe", "other"):
        (tmp_path / name).mkdir()
    first = native.load().NewFile(str(tmp_path / "shard"), staging=str(tmp_path / "safe"), shared=True)
    path, temp, staging, n_made = first.place
    assert Path(temp).parent == tmp_path / "safe"
    elsewhere = tmp_path / "other" / Path(temp).name
    elsewhere.write_bytes(b"")
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)) as caught:
        native.load().NewFile(path, temp=str(elsewhere), staging=staging, n_made=n_made)
    assert caught.value.errno == errno.ESTALE and elsewhere.read_bytes() == b""
    native.load().NewFile(path, temp=temp, staging=staging, n_made=n_made)
    first.abort()
