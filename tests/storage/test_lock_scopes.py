# test_lock_scopes.py - how far locks reach: texts of real systems, local disks, other stores
# SPDX-License-Identifier: MIT

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, in_child, memory_object_store, ours, shard_path
from lock_holders import refusing_lock
from system_calls import MARK, calls_of

import shardcodec
from shardcodec import LockScopeError, LockScopeWarning, _native, mounts, statistics
from shardcodec.mounts import DescriptorInfo, Mount, find_mount, parse_line
from shardcodec.options import resolve
from shardcodec.storage import file_locks, file_systems, lock_reach
from shardcodec.storage.file_systems import lock_scope
from shardcodec.zarr_plugin.request import Refusal

SERVED = DescriptorInfo(mount_number="1")
KEPT = DescriptorInfo(mount_number="1", shows_lock=True)

# Lines of mountinfo; their options are those that the kernels and clients of these systems show.
REAL = {
    "ext4": "29 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro",
    "overlay": "413 412 0:52 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/a:/b,upperdir=/u,workdir=/w",
    "tmpfs": "31 24 0:27 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,inode64",
    "lustre flock": "88 29 1529:21248 / /scratch rw,relatime - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch "
    "rw,checksum,flock,nouser_xattr,lruresize,lazystatfs,nouser_fid2path,verbose,noencrypt",
    "lustre localflock": "88 29 1529:21248 / /scratch rw,relatime - lustre 10.0.0.1@tcp:/scratch rw,localflock,lazystatfs",
    "lustre noflock": "88 29 1529:21248 / /scratch rw,relatime - lustre 10.0.0.1@tcp:/scratch rw,noflock,lazystatfs",
    "lustre, old, no option": "88 29 1529:21248 / /scratch rw,relatime - lustre 10.0.0.1@tcp:/scratch rw,lazystatfs",
    "nfs4": "90 29 0:47 / /home rw,relatime shared:47 - nfs4 srv:/export/home rw,vers=4.2,rsize=1048576,wsize=1048576,"
    "namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.0.0.3,local_lock=none,addr=10.0.0.1",
    "nfs3": "91 29 0:48 / /data rw,relatime shared:48 - nfs srv:/data rw,vers=3,rsize=65536,hard,proto=tcp,sec=sys,"
    "mountaddr=10.0.0.1,mountvers=3,mountport=20048,mountproto=udp,local_lock=none,addr=10.0.0.1",
    "nfs3 nolock": "91 29 0:48 / /data rw,relatime - nfs srv:/data rw,vers=3,hard,nolock,proto=tcp,local_lock=all,addr=10.0.0.1",
    "nfs3 posix": "91 29 0:48 / /data rw,relatime - nfs srv:/data rw,vers=3,hard,proto=tcp,local_lock=posix,addr=10.0.0.1",
    "nfs3 flock": "91 29 0:48 / /data rw,relatime - nfs srv:/data rw,vers=3,hard,proto=tcp,local_lock=flock,addr=10.0.0.1",
    "cifs": r"92 29 0:49 / /win\040share rw,relatime - cifs //srv/data rw,vers=3.1.1,cache=strict,username=u,uid=0,actimeo=1",
    "cifs nobrl": "92 29 0:49 / /win rw,relatime - cifs //srv/data rw,vers=3.1.1,cache=strict,nobrl,uid=0",
    "smb3 nobrl": "92 29 0:49 / /win rw,relatime - smb3 //srv/data rw,vers=3.1.1,nobrl,uid=0",
    "gfs2": "93 29 253:3 / /gfs rw,relatime - gfs2 /dev/mapper/vg-gfs rw,lockproto=lock_dlm,locktable=c:gfs",
    "gfs2 localflocks": "93 29 253:3 / /gfs rw,noatime - gfs2 /dev/mapper/vg-gfs rw,localflocks",
    "gfs2 lock_nolock": "93 29 253:3 / /gfs rw,relatime - gfs2 /dev/vdb rw,lockproto=lock_nolock",
    "ocfs2 o2cb": "94 29 8:17 / /ocfs rw,relatime - ocfs2 /dev/sdb1 rw,_netdev,heartbeat=local,nointr,data=ordered,"
    "errors=remount-ro,atime_quantum=60,coherency=full,user_xattr,acl",
    "ocfs2 pcmk": "94 29 8:17 / /ocfs rw,relatime - ocfs2 /dev/sdb1 rw,heartbeat=none,nointr,data=ordered,cluster_stack=pcmk,acl",
    "ocfs2 pcmk localflocks": "94 29 8:17 / /ocfs rw,relatime - ocfs2 /dev/sdb1 rw,nointr,localflocks,,cluster_stack=pcmk",
    "orangefs": "95 29 0:50 / /pvfs rw,relatime - pvfs2 tcp://srv:3334/orangefs rw",
    "orangefs local_lock": "95 29 0:50 / /pvfs rw,relatime - pvfs2 tcp://srv:3334/orangefs rw,local_lock",
    "gpfs": "96 29 0:51 / /gpfs rw,relatime shared:50 - gpfs gpfs0 rw",
    "ceph": "97 29 0:53 / /ceph rw,relatime - ceph 10.0.0.1:6789:/ rw,name=admin,secret=<hidden>,acl,wsize=16777216",
    "afs": "98 29 0:54 / /afs rw,relatime - afs none rw,dyn",
    "afs strict": "98 29 0:54 / /afs rw,relatime - afs #grand.central.org:root.cell. rw,flock=strict",
    "glusterfs": "99 29 0:55 / /g rw,relatime - fuse.glusterfs srv:/vol rw,user_id=0,group_id=0,allow_other,max_read=131072",
    "moosefs": "99 29 0:55 / /mfs rw,relatime - fuse.mfs mfsmaster:9421 rw,user_id=0,group_id=0,allow_other",
    "sshfs": "99 29 0:55 / /s rw,nosuid,nodev,relatime - fuse.sshfs u@srv:/data rw,user_id=1000,group_id=1000",
    "virtiofs": "99 29 0:55 / /v rw,relatime - virtiofs share rw",
    "9p": "99 29 0:55 / /9 rw,relatime - 9p hostshare rw,access=client,trans=virtio",
}


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("ext4", "node"),
        ("overlay", "node"),
        ("tmpfs", "node"),
        ("lustre flock", "cluster"),
        ("lustre localflock", "node"),
        ("lustre noflock", "none"),
        ("lustre, old, no option", "unknown"),
        ("nfs4", "cluster"),
        ("nfs3", "cluster"),
        ("nfs3 nolock", "node"),
        ("nfs3 posix", "node"),
        ("nfs3 flock", "cluster"),  # it concerns flock(2), which is not used
        ("cifs", "cluster"),
        ("cifs nobrl", "node"),
        ("smb3 nobrl", "node"),
        ("gfs2", "cluster"),
        ("gfs2 localflocks", "node"),
        ("gfs2 lock_nolock", "node"),
        ("ocfs2 o2cb", "node"),
        ("ocfs2 pcmk", "cluster"),
        ("ocfs2 pcmk localflocks", "node"),
        ("orangefs", "unknown"),
        ("orangefs local_lock", "node"),
        ("gpfs", "cluster"),
        ("ceph", "cluster"),
        ("afs", "node"),
        ("afs strict", "cluster"),
        ("glusterfs", "cluster"),
        ("moosefs", "cluster"),
        ("sshfs", "unknown"),
        ("virtiofs", "unknown"),
        ("9p", "unknown"),
    ],
)
def test_mount_decides_the_scope(name: str, scope: str) -> None:
    mount = parse_line(REAL[name].encode())
    assert mount is not None
    assert lock_scope(mount, SERVED).scope == scope


@pytest.mark.parametrize("name", ["sshfs", "virtiofs", "glusterfs"])
def test_lock_that_the_kernel_lists_on_fuse_stays_on_this_node(name: str) -> None:
    assert lock_scope(parse_line(REAL[name].encode()), KEPT).scope == "node"


@pytest.mark.parametrize("name", ["nfs4", "lustre flock", "ceph"])
def test_lock_that_the_kernel_lists_elsewhere_says_nothing(name: str) -> None:
    """The kernel also lists locks that it has sent to a server."""
    assert lock_scope(parse_line(REAL[name].encode()), KEPT).scope == "cluster"


def test_reason_names_the_option() -> None:
    assert (
        lock_scope(parse_line(REAL["nfs3 posix"].encode()), SERVED).reason
        == "mount option 'local_lock=posix'"
    )
    assert lock_scope(None, SERVED).scope == "unknown"


def test_option_counts_in_either_field() -> None:
    line = b"93 29 253:3 / /gfs rw,noatime,localflocks - gfs2 /dev/vdb rw"
    assert lock_scope(parse_line(line), SERVED).scope == "node"


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("tuneRemoteFSync = true\ntuneUseGlobalFileLocks        = true\n", "cluster"),
        ("tuneUseGlobalFileLocks = false # true\n", "node"),
        ("# tuneUseGlobalFileLocks = true\n", "node"),
        (None, "node"),
    ],
)
def test_beegfs_locks_are_global_if_its_configuration_says_so(
    tmp_path: Path, text: str | None, scope: str
) -> None:
    path = tmp_path / "beegfs.conf"
    if text is not None:
        path.write_text(text)
    line = f"95 29 0:50 / /bee rw,relatime - beegfs beegfs_nodev rw,cfgFile={path}"
    assert lock_scope(parse_line(line.encode()), SERVED).scope == scope


# ---- the mount table


def test_escapes_and_optional_fields_are_parsed() -> None:
    mount = parse_line(
        rb"36 35 98:0 /m /mnt/a\040b\134c\011\043 rw,noatime master:1 propagate_from:2 - ext3 /dev/x\040y rw"
    )
    assert mount is not None
    assert mount.point == "/mnt/a b\\c\t#"
    assert (mount.number, mount.device, mount.file_system, mount.source) == ("36", "98:0", "ext3", "/dev/x y")
    assert mount.options == ("rw", "noatime", "rw")


@pytest.mark.parametrize("line", [b"", b"36 35 98:0 / / rw", b"36 35 98:0 / / rw - ext4", b"\xff \xff"])
def test_line_in_another_format_is_skipped(line: bytes) -> None:
    assert parse_line(line) is None
    table = line + b"\n29 1 8:2 / / rw - ext4 /dev/sda2 rw\n"
    found = find_mount(table, "29", "0:0")
    assert found is not None and found.file_system == "ext4"


def test_stacked_mounts_are_told_apart_by_number() -> None:
    table = (
        b"50 1 0:40 / /mnt rw - nfs srv:/a rw,nolock\n"
        b"51 50 0:41 / /mnt rw - nfs srv:/b rw,local_lock=none\n"
        b"52 1 0:41 /x /other rw - nfs srv:/b rw,local_lock=none\n"
    )
    scopes = [lock_scope(find_mount(table, number, "0:0"), SERVED).scope for number in ("50", "51", "52")]
    assert scopes == ["node", "cluster", "cluster"]
    by_device = find_mount(table, None, "0:41")
    assert by_device is not None and by_device.point == "/other"
    assert find_mount(table, None, "9:9") is None


def test_mount_that_is_not_listed_has_no_folder_and_no_options_of_another() -> None:
    """Below chroot, /proc lists only the mounts below: a bind mount of the same disk, read-only, was taken for that of the file."""
    table = b"42 20 254:0 /opt /opt ro,relatime - ext4 /dev/vda rw,discard\n"
    found = find_mount(table, "20", "254:0")
    assert found == Mount("ext4", "20", "254:0", "", "/dev/vda", ("rw", "discard"))
    assert lock_reach.MountScope(found, "node", "").name == "an unknown mount (ext4)"
    listed = find_mount(table, "42", "254:0")
    assert listed is not None and (listed.point, listed.options[0]) == ("/opt", "ro")


def test_carriage_return_in_a_folder_ends_no_line() -> None:
    """The kernel escapes a line feed, but no carriage return."""
    table = b"50 1 0:40 / /mnt/a\rb rw - nfs srv:/a rw\n51 1 0:41 / /other rw - ext4 /dev/x rw\n"
    found = find_mount(table, "50", "0:0")
    assert found is not None and (found.point, found.file_system) == ("/mnt/a\rb", "nfs")


def test_each_device_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(
        b"50 1 0:40 / /stacked rw - nfs srv:/a rw\n"
        b"51 50 0:41 / /stacked rw - nfs srv:/b rw\n"
        b"52 1 0:42 / /first rw - tmpfs tmpfs rw\n"
        b"53 1 0:42 / /with\\040space rw - tmpfs tmpfs rw\n"
        b"54 1 0:43 / /byte\xff rw - tmpfs tmpfs rw\n"
    )
    monkeypatch.setattr(mounts, "MOUNTINFO", str(table))
    monkeypatch.setattr(mounts, "_used", {})
    devices = [os.makedev(0, minor) for minor in (40, 41, 42, 43, 99)]
    names = ["/stacked (0:40)", "/stacked (0:41)", "0:42", os.fsdecode(b"/byte\xff"), "0:99"]
    assert list(mounts.names_of_devices(devices).values()) == names
    mounts.note_use(devices[2], Mount("tmpfs", point="/with space"))
    mounts.note_use(devices[2], Mount("tmpfs", point="/first"))
    assert mounts.names_of_devices(devices)[devices[2]] == "/with space"
    mounts._used[devices[2]] = "/unmounted"
    assert mounts.names_of_devices(devices)[devices[2]] == "0:42"
    monkeypatch.setattr(mounts, "MOUNTINFO", str(tmp_path / "none"))
    assert list(mounts.names_of_devices(devices[:1]).values()) == ["0:40"]


def test_folders_are_looked_at_only_where_a_mount_may_lose_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new folder was opened to ask for its file system, which is a request on every network file system."""
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "MOUNTINFO", str(table))
    monkeypatch.setattr(file_systems, "Descriptor", pytest.fail)
    table.write_text("\n".join(REAL[name] for name in ("ext4", "ceph", "tmpfs")))
    assert not file_systems.loses_locks(f"{tmp_path}/local")
    local = "\n".join(REAL[name] for name in ("ext4", "tmpfs"))
    of_systemd = (
        "24 22 0:30 / /proc/sys/fs/binfmt_misc rw,relatime shared:14 - autofs systemd-1 rw,fd=29,pgrp=1"
    )
    table.write_text(f"{local}\n{of_systemd}")
    assert not file_systems.loses_locks(f"{tmp_path}/with systemd")
    below_chroot = REAL["tmpfs"]
    # the automounter has taken the mount away, because nothing had used it for some minutes
    of_home = f"{local}\n38 28 0:34 / /home rw,relatime shared:20 - autofs auto.home rw,fd=7,pgrp=900,timeout=300,indirect"
    for number, lines in enumerate(
        (f"{local}\n{REAL['nfs3']}", f"{local}\n{REAL['nfs4']}", below_chroot, of_home)
    ):
        table.write_text(lines)
        with pytest.raises(pytest.fail.Exception):
            file_systems.loses_locks(f"{tmp_path}/{number}")


def test_estimates_name_the_mount_that_was_used(tmp_path: Path) -> None:
    """Several mounts share a device, such as the files that a container gets; the last of them was named, which nothing had used."""
    with contextlib.ExitStack() as stack:
        for name in ("used", "other"):
            (tmp_path / name).mkdir()
            if subprocess.run(["mount", "--bind", tmp_path, tmp_path / name], check=False).returncode:
                pytest.skip("no permission to mount")
            stack.callback(subprocess.run, ["umount", tmp_path / name], check=True)
        code = """
            import sys, numpy, zarr, shardcodec
            shardcodec.enable()
            array = zarr.create_array(sys.argv[1] + "/a", data=numpy.arange(64), shards=(32,), chunks=(8,))
            array[3:9] = array[:6]
            print(*shardcodec.stats()["io_latency"])
        """
        command = [sys.executable, "-P", "-c", textwrap.dedent(code), tmp_path / "used"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(tmp_path / "used")


def test_mount_of_an_open_file_is_found(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        mount = mounts.mount_of(fd)
        assert mount is not None
        assert str(tmp_path).startswith(mount.point)
        assert mount.file_system == file_systems.name_of(fd)
    finally:
        os.close(fd)


# ---- writers


@pytest.fixture
def unknown_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mount was looked at before."""
    monkeypatch.setattr(lock_reach, "_known_scopes", {})
    monkeypatch.setattr(lock_reach, "_told", set())
    monkeypatch.setattr(statistics.stats, "_lock_scopes", {})


def as_if(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let every file be on this mount."""
    monkeypatch.setattr(mounts, "find_mount_of", lambda fd: parse_line(REAL[name].encode()))


def array_in(folder: Path, **options: Any) -> Any:
    create(folder / "a", shape=(64, 64), shards=(64, 64), chunks=(16, 16), dtype="i4", compressors=None)[
        ...
    ] = 1
    return ours(folder / "a", **options)


def write_thrice(array: Any) -> None:
    for value in range(3):
        array[0, 0] = value


def lock_of(path: str, **options: Any) -> int | None:
    with file_locks.hold([path], resolve(argument=options)) as held:
        return held[0]


@pytest.mark.usefixtures("unknown_mounts")
def test_local_disk_gives_no_warning_and_is_shown(tmp_path: Path) -> None:
    array = array_in(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array[0, 0] = 2
    (mount,) = shardcodec.stats()["lock_scopes"]
    assert shardcodec.stats()["lock_scopes"] == {mount: "node"}
    shardcodec.stats.reset()
    assert mount in shardcodec.stats()["lock_scopes"]


@pytest.mark.usefixtures("unknown_mounts")
def test_mount_without_locks_for_other_nodes_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_if(monkeypatch, "nfs3 nolock")
    array = array_in(tmp_path)
    with pytest.warns(LockScopeWarning, match=r"'/data' \(nfs\).*this node only.*nolock") as caught:
        write_thrice(array)
    assert len(caught) == 1
    assert shardcodec.stats()["lock_scopes"] == {"/data (nfs)": "node"}
    assert array[0, 0] == 2


@pytest.mark.usefixtures("unknown_mounts")
@pytest.mark.parametrize("name", ["nfs3 nolock", "ext4", "9p"])
@pytest.mark.parametrize("part", [np.s_[:3, :3], np.s_[...]], ids=["part", "whole"])
def test_cluster_is_refused_where_no_lock_reaches_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: Any
) -> None:
    as_if(monkeypatch, name)
    array = array_in(tmp_path, locking="cluster")
    before = shard_path(array).read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LockScopeWarning)
        for _ in range(2):  # the second attempt finds the mount in the cache
            with pytest.raises(LockScopeError, match="locking='cluster' expects") as caught:
                array[part] = 2
    mount = parse_line(REAL[name].encode())
    assert mount is not None
    assert (caught.value.mount, caught.value.file_system) == (mount.point, mount.file_system)
    assert caught.value.scope == lock_scope(mount, SERVED).scope
    assert caught.value.reason in str(caught.value)
    assert shard_path(array).read_bytes() == before
    assert _native.file_locks_held() == 0


@pytest.mark.usefixtures("unknown_mounts")
def test_cluster_is_refused_before_a_shard_is_made(tmp_path: Path) -> None:
    array = ours(create(tmp_path / "a").store_path.store.root, locking="cluster")
    with pytest.raises(LockScopeError):
        array[0, 0] = 1
    assert not shard_path(array).exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "zarr.json"]


@pytest.mark.usefixtures("unknown_mounts")
def test_error_with_the_path_of_a_shard_has_no_other_name_of_it(tmp_path: Path) -> None:
    """A note named a shard that is not there, with its path behind that of the array: at `LockError` and a missing name on NFS, too."""
    array = ours(create(tmp_path / "a").store_path.store.root, locking="cluster")
    with pytest.raises(LockScopeError) as caught:
        array[0, 0] = 1
    assert str(shard_path(array)) in str(caught.value)
    assert not getattr(caught.value, "__notes__", [])


@pytest.mark.usefixtures("unknown_mounts")
def test_cluster_works_where_locks_reach_other_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_if(monkeypatch, "nfs4")
    array = array_in(tmp_path, locking="cluster")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array[0, 0] = 5
        shard_path(array).unlink()
        array[1, 1] = 6
    assert array[1, 1] == 6
    assert shardcodec.stats()["lock_scopes"] == {"/home (nfs4)": "cluster"}
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["0", "zarr.json"]


@pytest.mark.usefixtures("unknown_mounts")
@pytest.mark.parametrize("outcome", ["unsupported", "denied"])
def test_file_that_cannot_be_locked_is_told_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"x")
    monkeypatch.setattr(_native, "FileLock", refusing_lock(outcome, mount=(7, 7)))
    with pytest.warns(LockScopeWarning, match="not excluded") as caught:
        assert [lock_of(str(path)), lock_of(str(path))] == [None, None]
    assert len(caught) == 1
    with pytest.raises(LockScopeError) as error:
        lock_of(str(path), locking="cluster")
    assert error.value.scope == "none"


@pytest.mark.usefixtures("unknown_mounts")
@pytest.mark.parametrize(
    ("outcome", "refusal", "words"),
    [
        ("unsupported", errno.ENOLCK, ["ENOLCK", "lockd", "rpc.statd", "nlockmgr", "NFS 4"]),
        ("unsupported", errno.ENOSYS, ["ENOSYS"]),
        ("denied", errno.EACCES, ["EACCES", "security module"]),
        ("denied", 0, ["opened for writing"]),
    ],
)
def test_reason_of_a_refused_lock_is_what_the_kernel_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str, refusal: int, words: list[str]
) -> None:
    """On NFS 3 without its lock service the report said only that there are no locks."""
    monkeypatch.setattr(_native, "FileLock", refusing_lock(outcome, refusal=refusal))
    monkeypatch.setattr(mounts, "find_mount_of", lambda fd: Mount("nfs", point="/home"))
    path = tmp_path / "shard"
    path.write_bytes(b"x")
    with pytest.raises(LockScopeError) as error:
        lock_of(str(path), locking="cluster")
    with pytest.warns(LockScopeWarning) as caught:
        lock_of(str(path))
    for text in (error.value.reason, str(caught[0].message)):
        assert all(word in text for word in words)


@pytest.mark.usefixtures("unknown_mounts")
def test_locks_of_other_nodes_need_a_look_past_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without statx() a client of a network file system may not notice that another one has replaced the locked file."""
    monkeypatch.setattr(mounts, "find_mount_of", lambda fd: Mount("nfs4", point="/home"))
    monkeypatch.setattr(_native, "looks_anew", lambda: False)
    (tmp_path / "shard").write_bytes(b"x")
    with (
        pytest.warns(LockScopeWarning, match="this node only"),
        pytest.raises(LockScopeError, match="statx") as error,
    ):
        lock_of(str(tmp_path / "shard"), locking="cluster")
    assert error.value.scope == lock_reach.scope_at(str(tmp_path), probe=False).scope == "node"


@pytest.mark.usefixtures("unknown_mounts")
def test_denied_locks_are_told_once_for_each_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mount_of(fd: int) -> mounts.Mount:
        return mounts.Mount("nfs4", point=os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")))

    paths = [tmp_path / "one" / "a", tmp_path / "other" / "b", tmp_path / "one" / "c"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.setattr(_native, "FileLock", refusing_lock("denied"))  # the file could not be opened
    monkeypatch.setattr(mounts, "find_mount_of", mount_of)
    with pytest.warns(LockScopeWarning, match="expected permission") as caught:
        assert [lock_of(str(path)) for path in paths] == [None] * 3
    told = [str(warning.message) for warning in caught]
    assert len(told) == 2
    assert f"'{tmp_path}/one' (nfs4)" in told[0] and f"'{tmp_path}/other' (nfs4)" in told[1]
    with pytest.raises(LockScopeError, match="may not be opened for writing") as error:
        lock_of(str(paths[1]), locking="cluster")
    assert (error.value.mount, error.value.file_system) == (f"{tmp_path}/other", "nfs4")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_mount_of_a_file_without_permissions_is_found() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        path = folder / "file"
        path.touch(mode=0o000)
        expected = mounts.mount_of_path(str(folder))
        assert expected is not None

        def child() -> None:
            os.setuid(65534)
            with pytest.raises(PermissionError):
                path.open()
            assert mounts.mount_of_path(str(path)) == expected
            assert mounts.mount_of_path(str(folder / "no" / "file")) == expected
            assert mounts.mount_of_path("none") is None

        in_child(child)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("wrapped", [False, True])
def test_store_without_conditions_refuses_cluster(tmp_path: Path, wrapped: bool) -> None:
    store: Any = zarr.storage.LocalStore(tmp_path / "a")
    if wrapped:
        store = zarr.storage.WrapperStore(store)
    array = zarr.create_array(store, shape=(8, 8), shards=(8, 8), chunks=(4, 4), dtype="i4")
    shardcodec.enable()
    try:
        array = zarr.open_array(store)
    finally:
        shardcodec.disable()
    with shardcodec.options(locking="cluster"), pytest.raises(LockScopeError):
        array[0, 0] = 1
    with shardcodec.options(locking="cluster"), pytest.raises(LockScopeError):
        array[...] = 1


def test_known_mount_costs_no_system_call(tmp_path: Path) -> None:
    code = f"""{MARK}
array = zarr.create_array({str(tmp_path / "a")!r}, shape=(64, 64), shards=(64, 64), chunks=(16, 16), dtype="i4")
array[...] = 1
array[0, 0] = 2
mark()
array[0, 0] = 3
mark()
"""
    calls = calls_of(tmp_path, code, "all")
    assert not [call for call in calls if "fdinfo" in call or "mountinfo" in call]
    assert sum("AT_STATX_FORCE_SYNC" in call for call in calls) == 2
    assert sum("fcntl(" in call and "OFD" in call for call in calls) == 2
    assert not [call for call in calls if "fstatfs" in call]


def test_object_store_with_conditions_passes_cluster() -> None:
    array = create(memory_object_store(), shape=(8, 8), shards=(8, 8), chunks=(4, 4), dtype="i4")
    with shardcodec.options(locking="cluster"):
        array[...] = 1
        array[0, 0] = 2
    assert array[0, :2].tolist() == [2, 1]


def test_object_store_without_conditions_refuses_cluster(tmp_path: Path) -> None:
    obstore_store = pytest.importorskip("obstore.store")
    store = zarr.storage.ObjectStore(obstore_store.LocalStore(tmp_path))
    array = create(store, shape=(8, 8), shards=(8, 8), chunks=(4, 4), dtype="i4")
    array[...] = 1
    with shardcodec.options(locking="cluster"), pytest.raises(LockScopeError, match="no conditions"):
        array[0, 0] = 2
    assert array[0, 0] == 1


def test_work_of_zarrs_pipeline_on_an_object_store_refuses_cluster() -> None:
    """It writes without conditions."""
    store = memory_object_store()
    create(store, shape=(8, 8), shards=(8, 8), chunks=(4, 4), dtype="i4")[...] = 1
    array = ours(store, strict=False, locking="cluster")
    array._async_array.codec_pipeline._prepare = decline
    with pytest.raises(LockScopeError, match="zarr's own pipeline"):
        array[0, 0] = 2


def decline(*_: Any) -> Any:
    raise Refusal("for a test")
