# server.py - a FUSE file system that behaves like a network file system, with the faults that a test switches on
# SPDX-License-Identifier: MIT
"""Serve one mount; `mounts.fuse` starts one process for each: `server.py BACKING MOUNTPOINT CONTROL LOCKS`.

Every request gets an answer, whatever happens, because a process that waits for one cannot always be killed: a reply that the
kernel refuses is replaced by EIO, and an error of this program ends it, which aborts the mount.

It uses the protocol of `/dev/fuse` itself. libfuse's simple interface identifies files by path, so an open handle of a
file that another mount has replaced would show the new file. Here a node is one inode of the backing folder, held by an
`O_PATH` descriptor. One thread serves one call after the other, so the results of a test do not depend on timing.

CONTROL is a socket. Each line with one JSON object is a command, which is answered by one line. The mount ends when the
socket is closed.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import socket
import struct
import sys

import protocol as p
from file_system import FileSystem, libc
from protocol import Call
from switches import Switches

MNT_DETACH = 2


class Server:
    """Answers the requests of the kernel, one after the other."""

    def __init__(self, backing: str, device: int, *, shares_locks: bool) -> None:
        self.device = device
        self.switches = Switches()
        self.files = FileSystem(backing, self.switches, shares_locks=shares_locks)
        self.waiting: dict[int, tuple[int, bytes]] = {}  # blocking locks: request -> node, body

    def serve(self) -> bool:
        """Serve one request; False when the file system has been unmounted."""
        try:
            message = os.read(self.device, p.MAX_WRITE + 4096)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN)
        _, code, unique, number, *_ = p.HEADER.unpack_from(message)
        body = message[p.HEADER.size :]
        try:
            call = Call(code)
        except ValueError:
            return self._answer(unique, b"", errno.ENOSYS)
        if call == Call.INTERRUPT:
            return self._interrupt(body)
        name = call.name.lower()
        method = getattr(self.files, name)
        if call in (Call.FORGET, Call.BATCH_FORGET):
            method(number, body)  # these have no answer
            return True
        try:
            self.switches.begin(name, self.files.nodes.get(number))
            if call == Call.SETLKW and not self.files.may_lock(number, body):
                self.waiting[unique] = number, body
                return True
            return self._answer(unique, method(number, body) or b"")
        except OSError as error:
            return self._answer(unique, b"", error.errno or errno.EIO)

    def _answer(self, unique: int, body: bytes, error: int = 0) -> bool:
        try:
            os.write(self.device, p.reply(unique, body, error))
        except OSError as failure:
            if failure.errno == errno.ENODEV:
                return False
            # ENOENT: the request was interrupted; otherwise it would wait forever for a reply that the kernel accepts
            if failure.errno != errno.ENOENT:
                if error == errno.EIO:
                    raise
                return self._answer(unique, b"", errno.EIO)
        return True

    def _interrupt(self, body: bytes) -> bool:
        (unique,) = struct.unpack_from("<Q", body)
        if self.waiting.pop(unique, None):
            self._answer(unique, b"", errno.EINTR)
        return True

    def try_waiting(self) -> None:
        """Try the blocking locks again."""
        for unique, (number, body) in list(self.waiting.items()):
            error = 0
            try:
                if not self.files.may_lock(number, body):
                    continue
            except OSError as failure:
                error = failure.errno or errno.EIO
            del self.waiting[unique]
            self._answer(unique, b"", error)


def mount(mountpoint: str) -> int:
    # without O_NONBLOCK a request that is interrupted after `poll` has seen it lets the read wait for another one
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"shardcodec-test", os.fsencode(mountpoint), b"fuse.shardcodec-test", 0, options.encode()):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), mountpoint)
    return device


def main() -> None:
    backing, mountpoint, number, locks = sys.argv[1:]
    control = socket.socket(fileno=int(number))
    lines = control.makefile("rwb", buffering=0)
    try:
        server = Server(backing, mount(mountpoint), shares_locks=locks == "all")
    except OSError as error:
        lines.write(json.dumps({"error": str(error), "errno": error.errno}).encode() + b"\n")
        return
    lines.write(b"{}\n")
    poll = select.poll()
    for fd in (server.device, control.fileno()):
        poll.register(fd, select.POLLIN)
    is_mounted = True
    while is_mounted:
        ready = {fd for fd, _ in poll.poll(5 if server.waiting else None)}
        if control.fileno() in ready:
            if not (line := lines.readline()):
                break
            lines.write(json.dumps(server.switches.command(json.loads(line))).encode() + b"\n")
        if server.device in ready:
            is_mounted = server.serve()
        server.try_waiting()
    libc.umount2(os.fsencode(mountpoint), MNT_DETACH)


if __name__ == "__main__":
    main()
