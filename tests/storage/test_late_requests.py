# test_late_requests.py - random programs of writers whose nodes are cut off, while their requests arrive late
# SPDX-License-Identifier: MIT
"""A client of NFS whose node is cut off sends its requests again when the network is back (csrc/io/sc_kept.h).

The writers are children on a local file system. One that is cut off has lost its lock without a word. The test takes the place of its
client: it makes the first request of the rename, and removes the old file at the end. The child makes all other calls. The next holder of
the lock must find the last acknowledged state, or one that a writer without an answer has begun to store.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers import create, in_child, shard_path
from refused_calls import can_refuse, refuse

from shardcodec import _native
from shardcodec.storage.staging import lock_folder

N_PROGRAMS, N_ACTIONS = int(os.environ.get("LATE_PROGRAMS", "6")), 30
MOST_CALLS = 14  # of an update that protects the shard, and of one that need not
ABSENT = b""


def guard(path: str) -> Any:
    lock = _native.FileLock()
    outcome = lock.try_acquire(path, path, lock_folder(path))
    assert outcome in ("held", "no file"), outcome
    return lock


def lose_lock() -> None:
    """Let the server give the locks of this process to others."""
    for name in os.listdir("/proc/self/fd"):
        if os.path.lexists(f"/proc/self/fd/{name}") and os.readlink(f"/proc/self/fd/{name}").endswith(
            "/lock"
        ):
            whole = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(int(name), fcntl.F_OFD_SETLK, whole)


def store(path: str, data: bytes) -> None:
    """Replace a shard, or remove it, under its lock."""
    if data == ABSENT:
        _native.remove_file(path)
        return
    file = _native.NewFile(path)
    file.write(data, 0)
    assert file.commit(only_new=not os.path.exists(path))


@dataclass
class Late:
    """A writer that is cut off before its rename."""

    data: bytes
    inode: int
    pid: int
    go: int
    answer: int
    moved: Path | None = None  # by its first request


@dataclass
class Program:
    """One shard, and what its next holder may find."""

    shard: str
    chance: random.Random
    possible: set[bytes]
    late: list[Late] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    n: int = 0

    def new_data(self) -> bytes:
        self.n += 1
        return f"state {self.n}".encode()

    def found(self) -> bytes:
        return Path(self.shard).read_bytes() if os.path.exists(self.shard) else ABSENT

    def look(self) -> Any:
        """Take the lock, and check what is there."""
        lock = guard(self.shard)
        data = self.found()
        assert data in self.possible, (data, self.possible, self.told)
        self.possible = {data}
        return lock

    def update(self, data: bytes) -> None:
        self.told.append(f"update {data!r}")
        lock = self.look()
        store(self.shard, data)
        lock.release()
        self.possible = {data}

    def remove(self) -> None:
        self.update(ABSENT)

    def replace(self) -> None:
        self.update(self.new_data())

    def faulty(self) -> None:
        """Let a child take the lock and replace or remove the shard, with a fault at one of its calls."""
        data = self.chance.choice((self.new_data(), self.new_data(), ABSENT))
        action = self.chance.choice(("kill", "error"))
        pid = os.fork()
        if pid == 0:
            try:
                _native.set_fault(
                    self.chance.randrange(MOST_CALLS), action, errno.EIO if action == "error" else 0
                )
                lock = guard(self.shard)
                store(self.shard, data)
                lock.release()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        self.possible.add(data)
        self.told.append(f"{action} {data!r}")

    def cut(self) -> None:
        """Begin a writer that is cut off before its rename."""
        lock = self.look()
        if not os.path.exists(self.shard):
            lock.release()
            return
        data, inode = self.new_data(), os.stat(self.shard).st_ino
        lock.release()
        go, answer = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            status = b"?"
            try:
                lock = guard(self.shard)
                file = _native.NewFile(self.shard)
                file.write(data, 0)
                lose_lock()
                assert lock.is_held
                os.write(answer[1], b"ready")
                os.read(go[0], 1)
                status = b"done" if file.commit() else b"taken"
            except OSError as error:
                status = errno.errorcode[error.errno or 0].encode()
            finally:
                os.write(answer[1], status)
                os._exit(0)
        os.close(go[0])
        os.close(answer[1])
        assert os.read(answer[0], 9) == b"ready"
        self.told.append(f"cut {data!r} {os.listdir(lock_folder(self.shard))}")
        self.late.append(Late(data, inode, pid, go[1], answer[0]))

    def first_request(self, late: Late) -> None:
        """Move the shard away, as the client does that has it open."""
        if late.moved is None and os.path.exists(self.shard):
            late.moved = Path(self.shard).with_name(f".nfs{late.inode:016x}{late.pid:08x}")
            os.rename(self.shard, late.moved)
            self.told.append(f"first request of {late.data!r}")

    def second_request(self, late: Late) -> None:
        """Let the late writer end; its client removes what it has moved."""
        self.late.remove(late)
        is_killed = self.chance.random() < 0.3
        if is_killed:
            os.kill(late.pid, signal.SIGKILL)
            status = b"killed"
        else:
            os.write(late.go, b"!")
            status = os.read(late.answer, 20)
        os.waitpid(late.pid, 0)
        for descriptor in (late.go, late.answer):
            os.close(descriptor)
        if late.moved is not None and not is_killed:
            late.moved.unlink()
        elif late.moved is not None:
            self.end_of_client(late)
        self.told.append(f"{late.data!r}: {status.decode()}")
        if status == b"done":
            self.possible = {late.data}
        else:
            assert status in (b"ESTALE", b"killed"), (status, self.told)

    def end_of_client(self, late: Late) -> None:
        """The process is dead; its client makes the second request, and removes what it has moved."""
        assert late.moved is not None
        names = [name for name in os.listdir(lock_folder(self.shard)) if name.startswith(".shardcodec-")]
        self.told.append(str(names))
        mine = [name for name in names if name.split("-")[3] == str(late.pid)]
        if mine:
            os.replace(f"{lock_folder(self.shard)}/{mine[0]}", self.shard)
            self.possible.add(late.data)
        late.moved.unlink()

    def act(self) -> None:
        actions: list[Any] = [
            self.replace,
            self.replace,
            self.remove,
            self.faulty,
            self.faulty,
            self.cut,
            self.cut,
        ]
        if self.late:
            late = self.chance.choice(self.late)
            actions += [lambda: self.first_request(late), lambda: self.second_request(late)] * 3
        self.chance.choice(actions)()


def run_program(folder: Path, seed: int) -> None:
    array = create(folder / "a")
    array[...] = 1
    shard = str(shard_path(array))
    program = Program(shard, random.Random(seed), {Path(shard).read_bytes()})
    try:
        for _ in range(N_ACTIONS):
            program.act()
        while program.late:
            program.first_request(program.late[0])
            program.second_request(program.late[0])
        program.replace()
        program.look().release()
    finally:
        for late in program.late:
            os.kill(late.pid, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("seed", range(N_PROGRAMS))
def test_late_requests_lose_no_acknowledged_update(tmp_path: Path, seed: int) -> None:
    """A late request moved the shard of the next holder away, and the client removed it."""
    run_program(tmp_path, seed)


@pytest.mark.skipif(not can_refuse(), reason="needs seccomp, and the numbers of the calls")
@pytest.mark.parametrize("seed", range(N_PROGRAMS))
def test_late_requests_where_statx_is_missing(tmp_path: Path, seed: int) -> None:
    """Names below an open folder were looked up below the working folder of the program."""

    def work() -> None:
        refuse({"statx": errno.ENOSYS})
        run_program(tmp_path, seed)

    in_child(work)
