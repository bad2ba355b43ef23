# test_file_attributes.py - what a replaced shard keeps of the old file
# SPDX-License-Identifier: MIT
"""A write that replaces a file keeps owner, group, mode, ACLs and extended attributes, as far as permitted."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import create, in_child, shard_path

import shardcodec
from shardcodec import native

USER, GROUP, OTHER_USER, OTHER_GROUP = 12345, 12346, 12347, 12348
ACL = "system.posix_acl_access"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root")


def acl(mode: int, user: int, rights: int) -> bytes:
    """Return an access ACL: the bits of the mode and one more user."""
    everyone = 0xFFFFFFFF
    entries = [
        (0x01, mode >> 6 & 7, everyone),
        (0x02, rights, user),
        (0x04, mode >> 3 & 7, everyone),
        (0x10, mode >> 3 & 7 | rights, everyone),
        (0x20, mode & 7, everyone),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def set_attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EPERM):
            raise
        pytest.skip(f"no {name} on the file system of the tests")


@pytest.fixture
def array(tmp_path: Path) -> Any:
    array = create(tmp_path / "a", shape=(8, 12))
    array[...] = 1
    return array


@pytest.fixture(params=["part", "all", "key-value store", "stream"])
def write(request: pytest.FixtureRequest, array: Any) -> Callable[[], None]:
    """Return each way to replace a shard in turn."""

    def stream() -> None:
        spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
        with shardcodec.ShardWriter(shard_path(array), spec):
            pass

    def part() -> None:
        array[0:2, 0:2] = 2

    def whole() -> None:
        array[...] = 2

    def value() -> None:
        spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
        shardcodec.open_shard(shard_path(array), None, spec, mode="r+").write_encoded([(0, 0)], [bytes(48)])

    return {"part": part, "all": whole, "key-value store": value, "stream": stream}[request.param]


def test_replaced_shard_keeps_owner_and_mode(array: Any, write: Callable[[], None]) -> None:
    path = shard_path(array)
    os.chown(path, USER, GROUP)
    path.chmod(0o4750)
    inode = path.stat().st_ino
    write()
    found = path.stat()
    assert found.st_ino != inode
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (USER, GROUP, 0o4750)


def test_replaced_shard_keeps_attributes_and_acl(array: Any, write: Callable[[], None]) -> None:
    path = shard_path(array)
    path.chmod(0o640)
    set_attribute(path, "user.note", b"measured in May")
    set_attribute(path, "user.empty", b"")
    set_attribute(path, "user.long", bytes(3000))
    set_attribute(path, "trusted.note", b"of the administrator")
    set_attribute(path, ACL, acl(0o640, OTHER_USER, 6))
    before = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    mode = path.stat().st_mode
    write()
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == before
    assert path.stat().st_mode == mode


def test_default_acl_of_the_folder_is_not_added_to_the_shard(array: Any) -> None:
    """A new file inherits the default ACL; the old file had none, so other users must not get access."""
    path = shard_path(array)
    path.chmod(0o660)
    set_attribute(path.parent, "system.posix_acl_default", acl(0o660, OTHER_USER, 6))
    array[0:2, 0:2] = 2
    assert ACL not in os.listxattr(path)
    assert path.stat().st_mode & 0o777 == 0o660


def as_user(work: Callable[[], None], groups: list[int]) -> None:
    def drop() -> None:
        os.setgroups(groups)
        os.setgid(groups[0])
        os.setuid(USER)
        work()

    in_child(drop)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Make a folder that every user may use; pytest's own folders are for root."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def replace(path: Path) -> None:
    """Replace a file as a writer does; only the engine, because the other user cannot read our Python modules."""
    file = native.load().NewFile(str(path))
    file.write(b"new", 0)
    file.commit()


def test_replacement_by_a_group_member_keeps_the_group(open_folder: Path) -> None:
    """The new owner is the writer, who cannot give files away; set-user-ID is dropped with the old owner."""
    path = open_folder / "x"
    path.write_bytes(b"old")
    os.chown(path, OTHER_USER, GROUP)
    path.chmod(0o6664)
    native.load()
    as_user(lambda: replace(path), [OTHER_GROUP, GROUP])
    found = path.stat()
    assert path.read_bytes() == b"new"
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (USER, GROUP, 0o2664)


def test_group_rights_do_not_pass_to_another_group(open_folder: Path) -> None:
    path = open_folder / "x"
    path.write_bytes(b"old")
    os.chown(path, OTHER_USER, GROUP)
    path.chmod(0o2664)
    native.load()
    as_user(lambda: replace(path), [OTHER_GROUP])
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (USER, OTHER_GROUP, 0o644)


def test_full_disk_during_attribute_copy_stops_the_write(tmp_path: Path) -> None:
    """An attribute that does not fit on the disk stops the write; one that is not permitted is skipped."""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    set_attribute(path, "user.note", b"text")
    engine = native.load()
    engine.set_fault(0, "count")
    replace(path)
    calls = engine.end_fault()
    n = calls.index("fsetxattr")
    engine.set_fault(n, "error", errno.ENOSPC)
    try:
        with pytest.raises(OSError, match="fsetxattr"):
            replace(path)
    finally:
        engine.end_fault()
    assert os.getxattr(path, "user.note") == b"text"
    engine.set_fault(n, "error", errno.EPERM)
    replace(path)
    engine.end_fault()
    assert os.listxattr(path) == []
