# file_system.py - the calls of the FUSE protocol, carried out in the backing folder
# SPDX-License-Identifier: MIT

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
import time

import protocol as p
from nodes import Node, Nodes
from switches import Switches

libc = ctypes.CDLL(None, use_errno=True)
FLOCK = struct.Struct("hhqqi4x")
# Difference between the clocks of the server and the client, if times settle later.
CLOCK_SKEW_NS = 7_000_000


class FileSystem:
    """The calls of the protocol: methods with their names, which take the number of a node and the body of the request."""

    def __init__(self, backing: str, switches: Switches, *, shares_locks: bool) -> None:
        self.switches = switches
        self.shares_locks = shares_locks
        self.nodes = Nodes(backing)
        self.handles: dict[int, tuple[Node, int]] = {}
        self.next_handle = 1

    # ---- nodes ----

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
        number, node = self.nodes.known(fd, name)
        return p.entry(
            number, self._attributes(node), self.switches["entry_seconds"], self.switches["attr_seconds"]
        )

    def _attr_out(self, node: Node) -> bytes:
        return p.ATTRIBUTES_FOR.pack(*p.seconds(self.switches["attr_seconds"]), 0) + self._attributes(node)

    def _use(self, node: Node) -> None:
        if self.switches["stale_handles"] and node.is_gone():
            raise OSError(errno.ESTALE, "removed by another mount")

    def lookup(self, parent: int, body: bytes) -> bytes:
        try:
            return self._entry(parent, p.names(body)[0])
        except FileNotFoundError:
            if not self.switches["entry_seconds"]:
                raise
            # Node 0: the kernel remembers that there is no such name.
            return p.entry(0, bytes(p.ATTRIBUTES.size), self.switches["entry_seconds"], 0)

    def forget(self, number: int, body: bytes) -> None:
        self.nodes.forget(number, struct.unpack_from("<Q", body)[0])

    def batch_forget(self, number: int, body: bytes) -> None:
        (count,) = struct.unpack_from("<I", body)
        for one in p.FORGET_ONE.iter_unpack(body[8 : 8 + count * p.FORGET_ONE.size]):
            self.nodes.forget(*one)

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
        self.nodes.note_removal(parent, name)
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
            self.nodes.note_removal(target, new)
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
            found = [(".", stat.S_IFDIR, 1), ("..", stat.S_IFDIR, 1)]
            with os.scandir(fd) as entries:
                found += sorted((e.name, e.stat(follow_symlinks=False).st_mode, e.inode()) for e in entries)
        finally:
            os.close(fd)
        out = b""
        for position, (text, mode, inode) in enumerate(found[offset:], offset + 1):
            name = os.fsencode(text)
            record = p.DIRENT.pack(inode, position, len(name), mode >> 12) + name
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
        if self.switches["stale_open"] and node.is_gone():
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
        number, node = self.nodes.known(os.open(f"/proc/self/fd/{fd}", os.O_PATH), b"")
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
            pending = node.hold()
            os.pwrite(pending.fd, data, offset)
            pending.ranges.append((offset, nbytes))
        else:
            os.pwrite(fd, data, offset)
        node.written_at, node.is_dirty = time.monotonic(), True
        return p.WRITE_OUT.pack(nbytes, 0)

    def _truncate(self, node: Node, nbytes: int) -> None:
        if self.switches["write_back"]:
            pending = node.hold()
            os.ftruncate(pending.fd, nbytes)
            pending.is_cut = True
        else:
            os.truncate(node.path(), nbytes)
        node.written_at, node.is_dirty = time.monotonic(), True

    def flush(self, number: int, body: bytes) -> None:
        node = self.nodes[number]
        if node.pending:
            self._use(node)
        node.store()

    def fsync(self, number: int, body: bytes) -> None:
        self._use(self.nodes[number])
        self.nodes[number].store()

    def release(self, number: int, body: bytes) -> None:
        (handle,) = p.FILE_IN.unpack_from(body)
        node, fd = self.handles.pop(handle)
        node.store()
        os.close(fd)  # its locks go with it

    def ioctl(self, number: int, body: bytes) -> None:
        raise OSError(errno.ENOTTY, "no such request")

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
        """Do nothing: the server calls this when the lock is held."""

    def may_lock(self, number: int, body: bytes) -> bool:
        try:
            self._lock(fcntl.F_OFD_SETLK, body)
        except BlockingIOError:
            return False
        return True
