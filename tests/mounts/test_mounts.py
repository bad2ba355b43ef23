# test_mounts.py - the file system of the tests does what the tests rely on
# SPDX-License-Identifier: MIT

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mounts.fuse import Mount, mount

RENAME_EXCHANGE = 2


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    (tmp_path / "backing").mkdir()
    return tmp_path / "backing"


@pytest.fixture
def one(tmp_path: Path, backing: Path) -> Iterator[Mount]:
    with mount(backing, tmp_path / "one") as mounted:
        yield mounted


@pytest.fixture
def other(tmp_path: Path, backing: Path) -> Iterator[Mount]:
    with mount(backing, tmp_path / "other") as mounted:
        yield mounted


def lock(fd: int, kind: int = fcntl.F_WRLCK) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 1, 0))


def replace(path: Path, text: str) -> None:
    temporary = path.with_name("temporary")
    temporary.write_text(text)
    temporary.rename(path)


def test_files_and_folders_pass_through(one: Mount, backing: Path) -> None:
    (one.path / "a" / "b").mkdir(parents=True)
    (one.path / "a" / "x").write_bytes(bytes(300_000) + b"end")
    (one.path / "a" / "link").symlink_to("x")
    os.link(one.path / "a" / "x", one.path / "a" / "hard")
    (one.path / "a" / "b").rename(one.path / "a" / "c")
    assert (
        sorted(os.listdir(backing / "a")) == sorted(os.listdir(one.path / "a")) == ["c", "hard", "link", "x"]
    )
    assert (one.path / "a" / "link").read_bytes() == (backing / "a" / "x").read_bytes()
    assert (one.path / "a" / "hard").stat().st_nlink == 2
    os.truncate(one.path / "a" / "x", 5)
    os.utime(one.path / "a" / "x", ns=(1, 10**18 + 7))
    assert (backing / "a" / "x").stat().st_size == 5
    assert (one.path / "a" / "x").stat().st_mtime_ns == (backing / "a" / "x").stat().st_mtime_ns == 10**18 + 7
    (one.path / "a" / "x").unlink()
    (one.path / "a" / "c").rmdir()
    assert sorted(os.listdir(backing / "a")) == ["hard", "link"]
    with pytest.raises(FileNotFoundError):
        (one.path / "a" / "x").read_bytes()


def test_written_bytes_arrive_when_the_file_is_closed(one: Mount, backing: Path) -> None:
    one.set(write_back=True)
    with (one.path / "x").open("wb", buffering=0) as file:
        file.write(b"data")
        assert (backing / "x").read_bytes() == b""
        assert (one.path / "x").read_bytes() == b"data"  # opened and closed: that flushes, too
        file.write(b"more")
        os.fsync(file.fileno())
        assert (backing / "x").read_bytes() == b"datamore"
        file.write(b"last")
    assert (backing / "x").read_bytes() == b"datamorelast"


def test_an_error_at_flush_drops_the_data(one: Mount, backing: Path) -> None:
    (one.path / "x").write_bytes(b"old")
    one.set(write_back=True)
    one.fail("flush", errno.ENOSPC, times=1)
    fd = os.open(one.path / "x", os.O_RDWR)
    os.pwrite(fd, b"new data", 0)
    with pytest.raises(OSError, match="No space left"):
        os.close(fd)
    assert one.failed() == {"flush": 1}
    assert (one.path / "x").read_bytes() == (backing / "x").read_bytes() == b"old"
    (one.path / "x").write_bytes(b"other")
    assert (backing / "x").read_bytes() == b"other"


def test_reply_that_the_kernel_refuses_becomes_an_error(one: Mount) -> None:
    """Without another reply the call would wait until the mount ends."""
    (one.path / "x").write_bytes(b"")
    one.fail("getattr", 9999)
    look = [sys.executable, "-c", "import os, sys; os.stat(sys.argv[1])", one.path / "x"]
    looking = subprocess.Popen(look, stderr=subprocess.PIPE, text=True)
    try:
        _, message = looking.communicate(timeout=20)
    finally:
        one.close()  # a process that waits for an answer cannot be killed before
        looking.wait()
    assert "Input/output error" in message


def test_server_does_not_block_on_a_read(one: Mount) -> None:
    """A request may be interrupted after the server was told of it."""
    process = Path(f"/proc/{one.pid}")
    (fuse,) = [fd.name for fd in (process / "fd").iterdir() if os.readlink(fd) == "/dev/fuse"]
    flags = re.search(r"^flags:\s*(\d+)$", (process / "fdinfo" / fuse).read_text(), re.MULTILINE)
    assert flags is not None and int(flags[1], 8) & os.O_NONBLOCK


def test_errors_are_chosen_by_call_count_and_name(one: Mount) -> None:
    (one.path / "x").write_bytes(b"")
    (one.path / "y").write_bytes(b"")
    one.fail("write", errno.EDQUOT, times=2, after=1, name="x")
    x, y = os.open(one.path / "x", os.O_RDWR), os.open(one.path / "y", os.O_RDWR)
    said = []
    for fd in (x, y, x, y, x, x):
        try:
            said.append(os.pwrite(fd, b"z", 0))
        except OSError as error:
            said.append(errno.errorcode[error.errno])
    assert said == [1, 1, "EDQUOT", 1, "EDQUOT", 1]
    one.fail("fsync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        os.fsync(x)
    one.heal()
    os.fsync(x)
    os.close(x)
    os.close(y)


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ENOENT])
def test_a_cached_name_of_a_replaced_file_cannot_be_opened(one: Mount, other: Mount, code: int) -> None:
    other.set(entry_seconds=60, attr_seconds=60, stale_open=code)
    (one.path / "x").write_text("old")
    assert (other.path / "x").read_text() == "old"
    replace(one.path / "x", "new!")
    assert (other.path / "x").stat().st_size == 3
    if code == errno.ESTALE:  # the kernel looks again by itself
        assert (other.path / "x").read_text() == "new!"
    else:
        with pytest.raises(FileNotFoundError):
            (other.path / "x").read_text()


def test_a_handle_of_a_replaced_file_is_stale_on_the_other_mount_only(one: Mount, other: Mount) -> None:
    (one.path / "x").write_text("old")
    for mounted in (one, other):
        mounted.set(stale_handles=True)
    mine, theirs = (os.open(m.path / "x", os.O_RDWR) for m in (one, other))
    assert os.pread(theirs, 9, 0) == b"old"
    replace(one.path / "x", "new")
    assert os.fstat(mine).st_nlink == 0
    lock(mine)
    for use in (os.fstat, lock):
        with pytest.raises(OSError, match="Stale file handle"):
            use(theirs)
    os.close(mine)
    os.close(theirs)


def test_times_settle_after_a_while(one: Mount) -> None:
    one.set(settle_seconds=60)
    (one.path / "x").write_text("x")
    early = (one.path / "x").stat().st_mtime_ns
    one.set(settle_seconds=0)
    assert (one.path / "x").stat().st_mtime_ns > early


@pytest.mark.parametrize("locks", ["one", "all"])
def test_a_lock_holds_on_one_mount_or_on_all(tmp_path: Path, backing: Path, locks: str) -> None:
    (backing / "x").write_text("x")
    with mount(backing, tmp_path / "a", locks=locks) as a, mount(backing, tmp_path / "b", locks=locks) as b:
        first, second, third = (os.open(m.path / "x", os.O_RDWR) for m in (a, a, b))
        lock(first)
        with pytest.raises(BlockingIOError):
            lock(second)
        if locks == "all":
            with pytest.raises(BlockingIOError):
                lock(third)
        else:
            lock(third)
            lock(third, fcntl.F_UNLCK)
        lock(first, fcntl.F_UNLCK)  # closing would do it too, a moment later
        lock(third)
        os.close(first)
        os.close(third)
        os.close(second)


def test_o_tmpfile_and_exchange_are_switches(one: Mount) -> None:
    for name in "xy":
        (one.path / name).write_text(name)

    def exchange() -> int:
        libc = ctypes.CDLL(None)
        return libc.renameat2(-100, bytes(one.path / "x"), -100, bytes(one.path / "y"), RENAME_EXCHANGE)

    with pytest.raises(OSError, match="not supported"):
        os.open(one.path, os.O_TMPFILE | os.O_RDWR)
    assert exchange() == -1
    one.set(exchange=True)
    assert exchange() == 0
    assert (one.path / "x").read_text() == "y"


def test_o_tmpfile_works_where_it_is_allowed(tmp_path: Path, backing: Path) -> None:
    with mount(backing, tmp_path / "one", tmpfile=True) as one:
        fd = os.open(one.path, os.O_TMPFILE | os.O_RDWR)
        os.write(fd, b"data")
        os.link(f"/proc/self/fd/{fd}", one.path / "x", src_dir_fd=0)
        os.close(fd)
        assert (one.path / "x").read_bytes() == b"data"


def test_a_mount_ends_with_the_program_that_made_it(tmp_path: Path, backing: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from mounts.fuse import Mount
Mount(Path({str(backing)!r}), Path({str(tmp_path / "left")!r}))
print("mounted", flush=True)
time.sleep(60)
"""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("FUSE: needs root and /dev/fuse")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + 60
    while str(tmp_path) in Path("/proc/self/mountinfo").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
