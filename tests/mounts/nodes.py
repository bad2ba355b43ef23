# nodes.py - the inodes that the kernel knows, and written bytes that are not stored yet
# SPDX-License-Identifier: MIT

from __future__ import annotations

import os

import protocol as p


class Node:
    """One inode of the backing folder that the kernel knows."""

    def __init__(self, fd: int, name: bytes) -> None:
        self.fd = fd
        self.name = name  # the last name that was seen
        self.n_lookups = 0
        self.is_mine = False  # this mount has removed its name, or it never had one
        self.written_at = -1e9
        self.is_dirty = False  # written since the last flush
        self.pending: Pending | None = None

    def path(self) -> str:
        return f"/proc/self/fd/{self.fd}"

    def stat(self) -> os.stat_result:
        return os.fstat(self.fd)

    def is_gone(self) -> bool:
        """Return whether another mount has removed the file."""
        return not self.is_mine and self.stat().st_nlink == 0

    def hold(self) -> Pending:
        """Return the written bytes of the file that are not stored yet; begin with none."""
        if self.pending is None:
            source = os.open(self.path(), os.O_RDONLY)
            self.pending = Pending(source)
            os.close(source)
        return self.pending

    def drop(self) -> Pending | None:
        """Forget and return the written bytes that are not stored yet."""
        pending, self.pending, self.is_dirty = self.pending, None, False
        return pending

    def store(self) -> None:
        """Store the written bytes in the backing folder."""
        if pending := self.drop():
            target = os.open(self.path(), os.O_RDWR)
            pending.store(target)
            os.close(target)
            os.close(pending.fd)


class Pending:
    """Written bytes that are not in the backing folder yet: a copy of the file, and the ranges that are new."""

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


class Nodes:
    """The table of nodes of one mount, by the number that the kernel uses."""

    def __init__(self, backing: str) -> None:
        root = Node(os.open(backing, os.O_PATH), b"/")
        self.by_number = {p.ROOT: root}
        self.numbers = {self._identity(root.stat()): p.ROOT}
        self.next_number = p.ROOT + 1

    def __getitem__(self, number: int) -> Node:
        return self.by_number[number]

    def get(self, number: int) -> Node | None:
        """Return a node; None for a number that no node has."""
        return self.by_number.get(number)

    @staticmethod
    def _identity(st: os.stat_result) -> tuple[int, int]:
        return st.st_dev, st.st_ino

    def known(self, fd: int, name: bytes) -> tuple[int, Node]:
        """Return the node of an `O_PATH` descriptor; the node takes the descriptor."""
        identity = self._identity(os.fstat(fd))
        number = self.numbers.get(identity)
        if number is None:
            number, self.next_number = self.next_number, self.next_number + 1
            self.by_number[number], self.numbers[identity] = Node(fd, name), number
        else:
            os.close(fd)
        node = self.by_number[number]
        node.name = name
        node.n_lookups += 1
        return number, node

    def note_removal(self, parent: int, name: bytes) -> None:
        """Note that this mount removes a name, so that open handles stay valid."""
        try:
            st = os.stat(name, dir_fd=self[parent].fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        node = self.get(self.numbers.get(self._identity(st), -1))
        if node and st.st_nlink == 1:
            node.is_mine = True

    def forget(self, number: int, n_lookups: int) -> None:
        node = self.get(number)
        if node is None or number == p.ROOT:
            return
        node.n_lookups -= n_lookups
        if node.n_lookups <= 0:
            del self.by_number[number], self.numbers[self._identity(node.stat())]
            os.close(node.fd)
