# network_kinds.py - two mounts of one file system, of every kind that this machine can make
# SPDX-License-Identifier: MIT
"""`KINDS` maps a name to a function that mounts a file system twice below a folder, as `Mounts`. It needs root.

Local file systems are mounted once, and shown a second time by a bind mount. Network file systems have two clients, as two nodes
have; they are processes, and the first one can be killed and started again. No daemon of the system is used: sshfs talks to a
server over a socket pair, and GlusterFS has a brick and two clients of its own, with volume files. What is missing raises
`Missing`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults.loop_devices import formatted, mounted, run
from mounts import fuse
from mounts.stamps import NO_SHARD

__all__ = ["KINDS", "Client", "Missing", "Mounts"]

PATIENCE = 20.0
CACHE_SECONDS = 3.0  # GlusterFS and FUSE keep names, attributes and small files for one second

SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)

BRICK = """
volume posix
  type storage/posix
  option directory {folder}/brick
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume threads
  type performance/io-threads
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port {port}
  option auth.addr.threads.allow 127.0.0.1
  subvolumes threads
end-volume
"""

# The caches that GlusterFS has by default.
CLIENT = """
volume remote
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume threads
end-volume
volume write-behind
  type performance/write-behind
  subvolumes remote
end-volume
volume open-behind
  type performance/open-behind
  subvolumes write-behind
end-volume
volume quick-read
  type performance/quick-read
  subvolumes open-behind
end-volume
volume md-cache
  type performance/md-cache
  subvolumes quick-read
end-volume
"""


class Missing(Exception):
    """This machine cannot mount the file system."""


class Client:
    """A process that serves a mount.

    Parameters
    ----------
    folder : Path
        Where the mount is.
    start : callable
        Mounts it, and returns the process.
    """

    def __init__(self, folder: Path, start: Callable[[Path], subprocess.Popen[Any]]) -> None:
        self.folder = folder
        self._start = start
        self._process = start(folder)

    def kill(self) -> None:
        """Kill the process. Every use of the mount is an error then."""
        self._process.kill()
        self._process.wait()

    def mount_again(self) -> None:
        """Start a new process for the folder of a killed one. No process may use the old mount: it would see what is below."""
        run("umount", "-l", self.folder)
        self._process = self._start(self.folder)


@dataclass
class Mounts:
    """Two mounts of one file system.

    Parameters
    ----------
    one, two : Path
        The mounts.
    client : Client, optional
        Serves the first one, if a process does.
    hides_replaced : bool
        True if a client gives an open file another name before it replaces it, so that no file has the name for a moment.
    """

    one: Path
    two: Path
    client: Client | None = None
    hides_replaced: bool = False

    @property
    def cache_seconds(self) -> float:
        """How long a read on one mount may miss what was written through the other one."""
        return 0.0 if self.client is None else CACHE_SECONDS

    def permits(self, faults: Collection[str]) -> bool:
        """Return True if these faults break no promise: there are none, or the name of a replaced file was hidden."""
        return not faults or (self.hides_replaced and set(faults) == {NO_SHARD})


@contextmanager
def _bound(folder: Path, one: Path) -> Iterator[Mounts]:
    """Show a mounted folder a second time."""
    two = folder / "two"
    two.mkdir()
    if not run("mount", "--bind", one, two):
        raise Missing("a bind mount is not permitted")
    try:
        yield Mounts(one, two)
    finally:
        run("umount", "-l", two)


@contextmanager
def _on_loop_device(folder: Path, system: str) -> Iterator[Mounts]:
    with ExitStack() as stack:
        try:
            # btrfs frees replaced blocks with its next commit, up to 30 s later.
            image, one = formatted(folder, system, 2048)
            stack.enter_context(mounted(image, one))
        except pytest.skip.Exception as error:
            raise Missing(str(error)) from None
        with _bound(folder, one) as both:
            yield both


@contextmanager
def _tmpfs(folder: Path) -> Iterator[Mounts]:
    one = folder / "one"
    one.mkdir()
    with ExitStack() as stack:
        if not run("mount", "-t", "tmpfs", "tmpfs", one):
            raise Missing("a mount is not permitted")
        stack.callback(run, "umount", "-l", one)
        with _bound(folder, one) as both:
            yield both


@contextmanager
def _overlay(folder: Path) -> Iterator[Mounts]:
    for name in ("lower", "upper", "work", "one"):
        (folder / name).mkdir()
    options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    with ExitStack() as stack:
        if not run("mount", "-t", "overlay", "overlay", "-o", options, folder / "one"):
            raise Missing("an overlay mount is not permitted")
        stack.callback(run, "umount", "-l", folder / "one")
        with _bound(folder, folder / "one") as both:
            yield both


@contextmanager
def _test_mounts(folder: Path, locks: str) -> Iterator[Mounts]:
    with ExitStack() as stack:

        def start(where: Path) -> subprocess.Popen[Any]:
            try:
                return stack.enter_context(fuse.mount(folder / "backing", where, locks=locks)).process
            except pytest.skip.Exception as error:
                raise Missing(str(error)) from None

        client = Client(folder / "one", start)
        start(folder / "two")
        yield Mounts(folder / "one", folder / "two", client)


def _wait_for_mount(folder: Path, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not os.path.ismount(folder):
        if process.poll() is not None or time.monotonic() > end:
            raise Missing(f"{process.args!r} does not mount")  # type: ignore[str-bytes-safe]
        time.sleep(0.02)


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _program(*names: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    raise Missing(f"{names[0]} is not installed")


def _serve(stack: ExitStack, command: list[Any], **how: Any) -> subprocess.Popen[Any]:
    quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([str(part) for part in command], **(quiet | how))
    stack.callback(_end, process)
    return process


@contextmanager
def _sshfs(folder: Path) -> Iterator[Mounts]:
    program, server = _program("sshfs"), _program(*SFTP_SERVERS)
    (folder / "backing").mkdir()
    with ExitStack() as stack:

        def start(where: Path) -> subprocess.Popen[Any]:
            where.mkdir(exist_ok=True)
            ours, theirs = socket.socketpair()
            with ours, theirs:
                _serve(stack, [server], stdin=ours, stdout=ours)
                options = ["-f", "-o", "passive,allow_other"]
                command = [program, *options, f"node:{folder}/backing", where]
                client = _serve(stack, command, stdin=theirs, stdout=theirs)
            stack.callback(run, "umount", "-l", where)
            _wait_for_mount(where, client)
            return client

        client = Client(folder / "one", start)
        start(folder / "two")
        # libfuse renames an open file to .fuse_hiddenNAME before another one takes its name
        yield Mounts(folder / "one", folder / "two", client, hides_replaced=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _glusterfs(folder: Path) -> Iterator[Mounts]:
    server, program = _program("glusterfsd"), _program("glusterfs")
    port = _free_port()
    (folder / "brick").mkdir()
    (folder / "brick.vol").write_text(BRICK.format(folder=folder, port=port))
    (folder / "client.vol").write_text(CLIENT.format(port=port))
    with ExitStack() as stack:
        command = [
            server,
            "-N",
            "-f",
            folder / "brick.vol",
            f"--log-file={folder}/brick.log",
            "-p",
            folder / "pid",
        ]
        brick = _serve(stack, command)
        end = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if brick.poll() is not None or time.monotonic() > end:
                raise Missing("glusterfsd does not start")
            time.sleep(0.05)

        def start(where: Path) -> subprocess.Popen[Any]:
            where.mkdir(exist_ok=True)
            log = f"--log-file={folder}/{where.name}.log"
            process = _serve(stack, [program, "-N", "-f", folder / "client.vol", log, where])
            stack.callback(run, "umount", "-l", where)
            _wait_for_mount(where, process)
            return process

        client = Client(folder / "one", start)
        start(folder / "two")
        yield Mounts(folder / "one", folder / "two", client)


KINDS: dict[str, Callable[[Path], AbstractContextManager[Mounts]]] = {
    "ext4": lambda folder: _on_loop_device(folder, "ext4"),
    "XFS": lambda folder: _on_loop_device(folder, "xfs"),
    "btrfs": lambda folder: _on_loop_device(folder, "btrfs"),
    "tmpfs": _tmpfs,
    "overlay": _overlay,
    "GlusterFS": _glusterfs,
    "sshfs": _sshfs,
    "FUSE, the server has the locks": lambda folder: _test_mounts(folder, "all"),
    "FUSE, the kernel keeps the locks": lambda folder: _test_mounts(folder, "one"),
}
