# server.py - a FUSE file system that behaves like a network file system, as badly as it is told to
# SPDX-License-Identifier: MIT
"""Run by `mounts.fuse`, one process for each mount: `server.py BACKING MOUNTPOINT CONTROL LOCKS`.

It talks to the kernel by itself (`/dev/fuse`). libfuse's simple interface knows files by path, so that an open handle of a
file that another mount has replaced would tell of the new file; here a node is one inode of the backing folder, kept by an
`O_PATH` descriptor. One thread serves one call after the other: what a test sees does not depend on timing.

CONTROL is a socket: one JSON object a line is a command, and is answered by one line. Its end is the end of the mount.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import fnmatch
import json
import os
import select
import socket
import stat
import struct
import sys
import time
from collections import Counter
from typing import Any

import protocol as p
from protocol import Call

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, MNT_DETACH = -100, 2
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
FLOCK = struct.Struct("hhqqi4x")
# What the client's clock is behind the server's, where times settle later.
CLOCK_SKEW_NS = 7_000_000

SWITCHES: dict[str, Any] = {
    "write_back": False,  # data and size reach the backing folder when a descriptor is closed, or by fsync
    "entry_seconds": 0.0,  # how long the kernel uses a name, or the absence of a name, without asking
    "attr_seconds": 0.0,  # how long it uses size and times without asking
    "settle_seconds": 0.0,  # how long after a write the times are the client's, before they are the server's
    "stale_open": 0,  # errno for opening a file that another mount has removed, by a name that is still cached
    "stale_handles": False,  # ESTALE for every use of an open file that another mount has removed
    "exchange": False,  # RENAME_EXCHANGE works
    "tmpfile": False,  # O_TMPFILE works
}


class Node:
    """One inode of the backing folder that the kernel knows of."""

    def __init__(self, fd: int, name: bytes) -> None:
        self.fd = fd
        self.name = name  # the last one that was seen
        self.n_lookups = 0
        self.is_mine = False  # this mount has removed its name, or it never had one
        self.written_at = -1e9
        self.is_dirty = False  # written since the last flush
        self.pending: Pending | None = None

    def path(self) -> str:
        return f"/proc/self/fd/{self.fd}"

    def stat(self) -> os.stat_result:
        return os.fstat(self.fd)


class Pending:
    """Written bytes that have not reached the backing folder: a copy of the file, and what of it is new."""

    def __init__(self, source: int) -> None:
        self.fd = os.memfd_create("pending")
        self.ranges: list[tuple[int, int]] = []
        self.is_cut = False
        while part := os.read(source, 1 << 20):
            os.write(self.fd, part)

    def store(self, target: int) -> None:
        nbytes = os.fstat(self.fd).st_size
        if self.is_cut:
            os.ftruncate(target, nbytes)
        for offset, n in self.ranges:
            os.pwrite(target, os.pread(self.fd, n, offset), offset)


class Server:
    def __init__(self, backing: str, device: int, *, shares_locks: bool) -> None:
        self.device = device
        self.shares_locks = shares_locks
        self.switches = dict(SWITCHES)
        self.rules: list[dict[str, Any]] = []
        self.delays: dict[str, float] = {}
        self.calls: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.waiting: dict[int, tuple[int, bytes]] = {}  # blocking locks: request -> node, body
        root = Node(os.open(backing, os.O_PATH), b"/")
        self.nodes = {p.ROOT: root}
        self.numbers = {self._identity(root.stat()): p.ROOT}
        self.next_node = p.ROOT + 1
        self.handles: dict[int, tuple[Node, int]] = {}
        self.next_handle = 1

    # ---- requests ----

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
        name = call.name.lower()
        if call in (Call.FORGET, Call.BATCH_FORGET, Call.INTERRUPT):
            getattr(self, name)(number, body)
            return True
        self.calls[name] += 1
        time.sleep(self.delays.get(name, 0))
        try:
            self._fail(name, self.nodes.get(number))
            if call == Call.SETLKW and not self._may_lock(number, body):
                self.waiting[unique] = number, body
                return True
            return self._answer(unique, getattr(self, name)(number, body) or b"")
        except OSError as error:
            return self._answer(unique, b"", error.errno or errno.EIO)

    def _answer(self, unique: int, body: bytes, error: int = 0) -> bool:
        try:
            os.write(self.device, p.reply(unique, body, error))
        except OSError as failure:
            return failure.errno != errno.ENODEV  # ENOENT: the request was interrupted
        return True

    def _fail(self, call: str, node: Node | None) -> None:
        """Raise the error that a test has asked for."""
        name = os.fsdecode(node.name) if node else ""
        for rule in self.rules:
            if rule["call"] != call or not fnmatch.fnmatch(name, rule["name"]):
                continue
            if call == "flush" and not (node and node.is_dirty):
                continue  # a descriptor that was only read from has nothing to lose
            rule["after"] -= 1
            if rule["after"] >= 0 or rule["times"] == 0:
                continue
            if rule["times"] is not None:
                rule["times"] -= 1
            self.failed[call] += 1
            if call in ("flush", "fsync") and node:
                self._drop(node)
            raise OSError(rule["errno"], call)

    def command(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what a test asks for."""
        self.switches |= asked.get("set", {})
        self.delays |= asked.get("delay", {})
        if "fail" in asked:
            self.rules.append(asked["fail"])
        if asked.get("heal"):
            self.rules.clear()
        return {"calls": self.calls, "failed": self.failed}

    # ---- nodes ----

    @staticmethod
    def _identity(st: os.stat_result) -> tuple[int, int]:
        return st.st_dev, st.st_ino

    def _known(self, fd: int, name: bytes) -> tuple[int, Node]:
        """Return the node of an `O_PATH` descriptor, which becomes the node's."""
        identity = self._identity(os.fstat(fd))
        number = self.numbers.get(identity)
        if number is None:
            number, self.next_node = self.next_node, self.next_node + 1
            self.nodes[number], self.numbers[identity] = Node(fd, name), number
        else:
            os.close(fd)
        node = self.nodes[number]
        node.name = name
        node.n_lookups += 1
        return number, node

    def _attributes(self, node: Node) -> bytes:
        st = node.stat()
        nbytes, shift = st.st_size, 0
        if node.pending:
            nbytes = os.fstat(node.pending.fd).st_size
        if time.monotonic() < node.written_at + self.switches["settle_seconds"]:
            shift = -CLOCK_SKEW_NS
        return p.attributes(st, nbytes, shift)

    def _entry(self, parent: int, name: bytes) -> bytes:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.nodes[parent].fd)
        number, node = self._known(fd, name)
        return p.entry(
            number, self._attributes(node), self.switches["entry_seconds"], self.switches["attr_seconds"]
        )

    def _attr_out(self, node: Node) -> bytes:
        return p.ATTRIBUTES_FOR.pack(*p.seconds(self.switches["attr_seconds"]), 0) + self._attributes(node)

    def _is_gone(self, node: Node) -> bool:
        """Has another mount removed the file?"""
        return not node.is_mine and node.stat().st_nlink == 0

    def _use(self, node: Node) -> None:
        if self.switches["stale_handles"] and self._is_gone(node):
            raise OSError(errno.ESTALE, "removed by another mount")

    def _removed(self, parent: int, name: bytes) -> None:
        """Note that this mount takes away a name, so that open handles stay good."""
        try:
            st = os.stat(name, dir_fd=self.nodes[parent].fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        node = self.nodes.get(self.numbers.get(self._identity(st), -1))
        if node and st.st_nlink == 1:
            node.is_mine = True

    def lookup(self, parent: int, body: bytes) -> bytes:
        try:
            return self._entry(parent, p.names(body)[0])
        except FileNotFoundError:
            if not self.switches["entry_seconds"]:
                raise
            # Node 0: the kernel remembers that there is no such name.
            return p.entry(0, bytes(p.ATTRIBUTES.size), self.switches["entry_seconds"], 0)

    def forget(self, number: int, body: bytes) -> None:
        self._forget(number, struct.unpack_from("<Q", body)[0])

    def batch_forget(self, number: int, body: bytes) -> None:
        (count,) = struct.unpack_from("<I", body)
        for one in p.FORGET_ONE.iter_unpack(body[8 : 8 + count * p.FORGET_ONE.size]):
            self._forget(*one)

    def _forget(self, number: int, n_lookups: int) -> None:
        node = self.nodes.get(number)
        if node is None or number == p.ROOT:
            return
        node.n_lookups -= n_lookups
        if node.n_lookups <= 0:
            del self.nodes[number], self.numbers[self._identity(node.stat())]
            os.close(node.fd)

    def interrupt(self, number: int, body: bytes) -> None:
        (unique,) = struct.unpack_from("<Q", body)
        if self.waiting.pop(unique, None):
            self._answer(unique, b"", errno.EINTR)

    # ---- the file system ----

    def init(self, number: int, body: bytes) -> bytes:
        _, _, readahead, offered = p.INIT_IN.unpack_from(body)
        wanted = p.BIG_WRITES | p.AUTO_INVAL_DATA | (p.POSIX_LOCKS if self.shares_locks else 0)
        return p.INIT_OUT.pack(7, 31, readahead, offered & wanted, 12, 9, p.MAX_WRITE, 1, 0, 0, 0)

    def destroy(self, number: int, body: bytes) -> None:
        pass

    def statfs(self, number: int, body: bytes) -> bytes:
        st = os.fstatvfs(self.nodes[p.ROOT].fd)
        counts = st.f_blocks, st.f_bfree, st.f_bavail, st.f_files, st.f_ffree
        return p.STATFS_OUT.pack(*counts, st.f_bsize, st.f_namemax, st.f_frsize, 0)

    def getattr(self, number: int, body: bytes) -> bytes:
        self._use(self.nodes[number])
        return self._attr_out(self.nodes[number])

    def setattr(self, number: int, body: bytes) -> bytes:
        node = self.nodes[number]
        valid, _, nbytes, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = (
            p.SETATTR_IN.unpack(body)
        )
        self._use(node)
        if valid & p.SET_MODE:
            os.chmod(node.path(), stat.S_IMODE(mode))
        if valid & (p.SET_UID | p.SET_GID):
            os.chown(node.path(), uid if valid & p.SET_UID else -1, gid if valid & p.SET_GID else -1)
        if valid & p.SET_SIZE:
            self._truncate(node, nbytes)
        if valid & (p.SET_ATIME | p.SET_MTIME):
            st, now = node.stat(), time.time_ns()
            access = now if valid & p.SET_ATIME_NOW else atime * 10**9 + atime_ns
            change = now if valid & p.SET_MTIME_NOW else mtime * 10**9 + mtime_ns
            times = (
                access if valid & p.SET_ATIME else st.st_atime_ns,
                change if valid & p.SET_MTIME else st.st_mtime_ns,
            )
            os.utime(node.path(), ns=times)
        return self._attr_out(node)

    def readlink(self, number: int, body: bytes) -> bytes:
        return os.readlink(b"", dir_fd=self.nodes[number].fd)

    def symlink(self, parent: int, body: bytes) -> bytes:
        name, target = p.names(body)
        os.symlink(target, name, dir_fd=self.nodes[parent].fd)
        return self._entry(parent, name)

    def mknod(self, parent: int, body: bytes) -> bytes:
        mode, device, *_ = p.MKNOD_IN.unpack_from(body)
        name = p.names(body[p.MKNOD_IN.size :])[0]
        os.mknod(name, mode, device, dir_fd=self.nodes[parent].fd)
        return self._entry(parent, name)

    def mkdir(self, parent: int, body: bytes) -> bytes:
        mode, _ = p.MKDIR_IN.unpack_from(body)
        name = p.names(body[p.MKDIR_IN.size :])[0]
        os.mkdir(name, mode, dir_fd=self.nodes[parent].fd)
        return self._entry(parent, name)

    def unlink(self, parent: int, body: bytes) -> None:
        name = p.names(body)[0]
        self._removed(parent, name)
        os.unlink(name, dir_fd=self.nodes[parent].fd)

    def rmdir(self, parent: int, body: bytes) -> None:
        os.rmdir(p.names(body)[0], dir_fd=self.nodes[parent].fd)

    def rename(self, parent: int, body: bytes) -> None:
        (target,) = p.RENAME_IN.unpack_from(body)
        self._rename(parent, target, 0, *p.names(body[p.RENAME_IN.size :]))

    def rename2(self, parent: int, body: bytes) -> None:
        target, flags, _ = p.RENAME2_IN.unpack_from(body)
        self._rename(parent, target, flags, *p.names(body[p.RENAME2_IN.size :]))

    def _rename(self, parent: int, target: int, flags: int, old: bytes, new: bytes) -> None:
        if flags and not self.switches["exchange"]:
            raise OSError(errno.EINVAL, "flags of renameat2 are refused, as by NFS")
        if not flags:
            self._removed(target, new)
        source, into = self.nodes[parent].fd, self.nodes[target].fd
        if libc.renameat2(source, old, into, new, flags):
            raise OSError(ctypes.get_errno(), "renameat2")

    def link(self, parent: int, body: bytes) -> bytes:
        (source,) = p.LINK_IN.unpack_from(body)
        name = p.names(body[p.LINK_IN.size :])[0]
        node = self.nodes[source]
        os.link(node.path(), name, dst_dir_fd=self.nodes[parent].fd, follow_symlinks=True)
        node.is_mine = False
        return self._entry(parent, name)

    # ---- folders ----

    def opendir(self, number: int, body: bytes) -> bytes:
        return p.OPEN_OUT.pack(0, 0, 0)

    def readdir(self, number: int, body: bytes) -> bytes:
        _, offset, nbytes, *_ = p.READ_IN.unpack(body)
        fd = os.open(self.nodes[number].path(), os.O_RDONLY)
        try:
            found = [(".", stat.S_IFDIR), ("..", stat.S_IFDIR)]
            with os.scandir(fd) as entries:
                found += sorted((e.name, e.stat(follow_symlinks=False).st_mode) for e in entries)
        finally:
            os.close(fd)
        out = b""
        for position, (text, mode) in enumerate(found[offset:], offset + 1):
            name = os.fsencode(text)
            record = p.DIRENT.pack(1, position, len(name), mode >> 12) + name
            record += bytes(-len(record) % 8)
            if len(out) + len(record) > nbytes:
                break
            out += record
        return out

    def releasedir(self, number: int, body: bytes) -> None:
        pass

    def fsyncdir(self, number: int, body: bytes) -> None:
        pass

    # ---- files ----

    def _handle(self, node: Node, flags: int) -> bytes:
        mode = os.O_RDONLY if flags & os.O_ACCMODE == os.O_RDONLY else os.O_RDWR
        fd = os.open(node.path(), mode)
        number, self.next_handle = self.next_handle, self.next_handle + 1
        self.handles[number] = node, fd
        return p.OPEN_OUT.pack(number, 0, 0)

    def open(self, number: int, body: bytes) -> bytes:
        flags, _ = p.OPEN_IN.unpack(body)
        node = self.nodes[number]
        if self.switches["stale_open"] and self._is_gone(node):
            raise OSError(self.switches["stale_open"], "removed by another mount")
        return self._handle(node, flags)

    def create(self, parent: int, body: bytes) -> bytes:
        flags, mode, _, _ = p.CREATE_IN.unpack_from(body)
        name = p.names(body[p.CREATE_IN.size :])[0]
        how = os.O_CREAT | os.O_RDWR | flags & (os.O_EXCL | os.O_TRUNC)
        os.close(os.open(name, how, mode, dir_fd=self.nodes[parent].fd))
        found = self._entry(parent, name)
        number = p.ENTRY.unpack_from(found)[0]
        return found + self._handle(self.nodes[number], flags)

    def tmpfile(self, parent: int, body: bytes) -> bytes:
        if not self.switches["tmpfile"]:
            raise OSError(errno.EOPNOTSUPP, "O_TMPFILE is refused, as by NFS")
        flags, mode, _, _ = p.CREATE_IN.unpack_from(body)
        fd = os.open(self.nodes[parent].path(), os.O_TMPFILE | os.O_RDWR, mode)
        number, node = self._known(os.open(f"/proc/self/fd/{fd}", os.O_PATH), b"")
        node.is_mine = True
        os.close(fd)
        return p.entry(number, self._attributes(node), 0, 0) + self._handle(node, flags)

    def read(self, number: int, body: bytes) -> bytes:
        handle, offset, nbytes, *_ = p.READ_IN.unpack(body)
        node, fd = self.handles[handle]
        self._use(node)
        return os.pread(node.pending.fd if node.pending else fd, nbytes, offset)

    def write(self, number: int, body: bytes) -> bytes:
        handle, offset, nbytes, *_ = p.WRITE_IN.unpack_from(body)
        node, fd = self.handles[handle]
        data = body[p.WRITE_IN.size : p.WRITE_IN.size + nbytes]
        self._use(node)
        if self.switches["write_back"]:
            pending = self._pending(node)
            os.pwrite(pending.fd, data, offset)
            pending.ranges.append((offset, nbytes))
        else:
            os.pwrite(fd, data, offset)
        node.written_at, node.is_dirty = time.monotonic(), True
        return p.WRITE_OUT.pack(nbytes, 0)

    def _truncate(self, node: Node, nbytes: int) -> None:
        if self.switches["write_back"]:
            pending = self._pending(node)
            os.ftruncate(pending.fd, nbytes)
            pending.is_cut = True
        else:
            os.truncate(node.path(), nbytes)
        node.written_at, node.is_dirty = time.monotonic(), True

    def _pending(self, node: Node) -> Pending:
        if node.pending is None:
            source = os.open(node.path(), os.O_RDONLY)
            node.pending = Pending(source)
            os.close(source)
        return node.pending

    def _drop(self, node: Node) -> Pending | None:
        pending, node.pending, node.is_dirty = node.pending, None, False
        return pending

    def _store(self, node: Node) -> None:
        if pending := self._drop(node):
            target = os.open(node.path(), os.O_RDWR)
            pending.store(target)
            os.close(target)
            os.close(pending.fd)

    def flush(self, number: int, body: bytes) -> None:
        node = self.nodes[number]
        if node.pending:
            self._use(node)
        self._store(node)

    def fsync(self, number: int, body: bytes) -> None:
        self._use(self.nodes[number])
        self._store(self.nodes[number])

    def release(self, number: int, body: bytes) -> None:
        (handle,) = p.FILE_IN.unpack_from(body)
        node, fd = self.handles.pop(handle)
        self._store(node)
        os.close(fd)  # its locks go with it

    # ---- locks: those of the backing file, which every mount sees ----

    def _lock(self, command: int, body: bytes) -> tuple[int, ...]:
        handle, _, start, end, kind, *_ = p.LOCK_IN.unpack(body)
        node, fd = self.handles[handle]
        self._use(node)
        length = 0 if end >= 2**63 - 1 else end - start + 1
        asked = FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
        return FLOCK.unpack(fcntl.fcntl(fd, command, asked))

    def getlk(self, number: int, body: bytes) -> bytes:
        kind, _, start, length, _ = self._lock(fcntl.F_OFD_GETLK, body)
        return p.LOCK.pack(start, start + length - 1 if length else 2**63 - 1, kind, 0)

    def setlk(self, number: int, body: bytes) -> None:
        self._lock(fcntl.F_OFD_SETLK, body)

    def setlkw(self, number: int, body: bytes) -> None:
        """The lock is held by now."""

    def _may_lock(self, number: int, body: bytes) -> bool:
        try:
            self._lock(fcntl.F_OFD_SETLK, body)
        except BlockingIOError:
            return False
        return True

    def try_waiting(self) -> None:
        for unique, (number, body) in list(self.waiting.items()):
            error = 0
            try:
                if not self._may_lock(number, body):
                    continue
            except OSError as failure:
                error = failure.errno or errno.EIO
            del self.waiting[unique]
            self._answer(unique, b"", error)


def mount(mountpoint: str) -> int:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
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
            lines.write(json.dumps(server.command(json.loads(line))).encode() + b"\n")
        if server.device in ready:
            is_mounted = server.serve()
        server.try_waiting()
    libc.umount2(os.fsencode(mountpoint), MNT_DETACH)


if __name__ == "__main__":
    main()
