# real_cuts.py - random calls on a real file system that loses its power, for comparison with crash_model.py
# SPDX-License-Identifier: MIT
"""Random sequences of calls in folders of one loop mount, and what is there after a power cut.

ext4 and XFS are shut down (EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN): what has not reached the device is lost. Older kernels cannot do this
with btrfs, so its device is copied: two copies that are equal are what the device had at one moment.

Besides the calls of the record there are *prods*, which the model does not know: `sync_file_range` on a page, and syncs of a file outside of
the folders. They let the disk have more than the syncs of the record say.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from faults.crash_model import (
    CREATE,
    EXCHANGE,
    LINK,
    PAGE,
    RENAME,
    SIZE,
    SYNC,
    UNLINK,
    WRITE,
    LogReader,
    Record,
    State,
    snapshot,
)

__all__ = ["Calls", "after_the_cut", "copy_of_device", "shut_down"]

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN
WITHOUT_LOG_FLUSH = 2
SYNC_RANGE_WRITE_AND_WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER
CWD, FOLLOW, RENAME_EXCHANGE = -100, 0x400, 2  # AT_FDCWD, AT_SYMLINK_FOLLOW
NAMES = ("a", "b", "c", "d")
LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def shut_down(folder: Path) -> None:
    """Discard all that has not reached the device."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("=I", WITHOUT_LOG_FLUSH))
    finally:
        os.close(fd)


def copy_of_device(image: Path) -> Path:
    """Return a copy of the device as it was at one moment."""
    before: dict[int, bytes] = {}
    for _ in range(20):
        now = _extents(image)
        if now == before:
            break
        before = now
    else:
        raise OSError(f"{image}: expected a device that rests for a moment")
    copy = image.with_name("copy")
    with copy.open("wb") as file:
        file.truncate(image.stat().st_size)
        for offset, data in now.items():
            file.seek(offset)
            file.write(data)
    return copy


def _extents(image: Path) -> dict[int, bytes]:
    """Return the bytes of a file without its holes, by offset."""
    extents = {}
    with image.open("rb") as file:
        end, size = 0, os.fstat(file.fileno()).st_size
        while end < size:
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError:  # nothing but a hole is left
                break
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            extents[start] = os.pread(file.fileno(), end - start, start)
    return extents


class Calls:
    """Random calls in a folder, which are made and recorded. The files stay open, so no inode is used again."""

    def __init__(self, folder: Path, chance: random.Random, outside: int) -> None:
        self._folder, self._chance, self._outside = folder, chance, outside
        self._below = folder / "s"
        self._log = LogReader(snapshot(folder))
        self._folders = {path: os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (folder, self._below)}
        self._files: dict[int, int] = {}  # descriptors by inode
        self.told: list[str] = []  # the calls, for messages
        for path in folder.rglob("*"):
            if path.is_file():
                self._keep(os.open(path, os.O_RDWR))

    @staticmethod
    def prepare(folder: Path, chance: random.Random) -> None:
        """Make the start, which the caller syncs."""
        (folder / "s").mkdir(parents=True)
        for path in (folder / "a", folder / "b", folder / "s" / "a"):
            path.write_bytes(chance.randbytes(chance.choice((0, 700, PAGE, 2 * PAGE, 9000))))

    @property
    def record(self) -> Record:
        return self._log.record

    def close(self) -> None:
        """Close all files; after a shutdown this may fail."""
        for fd in (*self._files.values(), *self._folders.values()):
            with suppress(OSError):
                os.close(fd)

    def make(self, n_calls: int) -> None:
        """Make some calls, and prods between them."""
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._write, 8), (self._sync, 4), (self._sync_folder, 3), (self._resize, 1), (self._rename, 4),
            (self._create, 3), (self._nameless, 2), (self._link, 2), (self._unlink, 2), (self._exchange, 1),
            (self._append_directly, 2),
        ]  # fmt: skip
        made = 0
        while made < n_calls:
            call = self._chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
            with suppress(FileExistsError, FileNotFoundError):
                call()
                made += 1
            if self._chance.random() < 0.3:
                self._prod()

    # ---- one call

    def _add(
        self,
        kind: int,
        *,
        flag: int = 0,
        file: int = 0,
        other: int = 0,
        at: Path | None = None,
        to: Path | None = None,
        offset: int = 0,
        data: bytes = b"",
    ) -> None:
        folder = 0 if at is None else self._inode(at.parent)
        to_folder = 0 if to is None else self._inode(to.parent)
        names = ["" if path is None else path.name for path in (at, to)]
        self._log.add(kind, flag, file, other, folder, to_folder, offset, *names, data)
        self.told.append(
            f"{kind} {file} {at} {to} {offset} {len(data)} {flag}".replace(f"{self._folder}/", "")
        )

    def _inode(self, folder: Path) -> int:
        return os.fstat(self._folders[folder]).st_ino

    def _keep(self, fd: int) -> int:
        inode = os.fstat(fd).st_ino
        if inode in self._files:
            os.close(fd)
        else:
            self._files[inode] = fd
        return inode

    def _file(self) -> tuple[int, int]:
        inode = self._chance.choice(sorted(self._files))
        return inode, self._files[inode]

    def _path(self) -> Path:
        return self._chance.choice((self._folder, self._folder, self._below)) / self._chance.choice(NAMES)

    def _write(self) -> None:
        inode, fd = self._file()
        size = os.fstat(fd).st_size
        offset = self._chance.choice((0, 512, 1000, PAGE, size, size, max(0, size - 100), size + 3000))
        data = self._chance.randbytes(self._chance.choice((1, 512, 1500, PAGE, 6000, 3 * PAGE)))
        os.pwrite(fd, data, offset)
        self._add(WRITE, file=inode, offset=offset, data=data)

    def _append_directly(self) -> None:
        """One write past the page cache, from a page boundary at or behind the end, as shardcodec makes them."""
        inode, fd = self._file()
        offset = -(-os.fstat(fd).st_size // PAGE) * PAGE
        data = self._chance.randbytes(PAGE * self._chance.choice((1, 2, 5)))
        memory = mmap.mmap(-1, len(data))
        memory[:] = data
        direct = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT)
        try:
            assert os.pwrite(direct, memory, offset) == len(data)
        finally:
            os.close(direct)
        self._add(WRITE, flag=1, file=inode, offset=offset, data=data)

    def _resize(self) -> None:
        inode, fd = self._file()
        nbytes = self._chance.choice((0, 100, PAGE, 5000, os.fstat(fd).st_size // 2, 4 * PAGE))
        os.ftruncate(fd, nbytes)
        self._add(SIZE, file=inode, offset=nbytes)

    def _sync(self) -> None:
        inode, fd = self._file()
        data_only = self._chance.random() < 0.3
        (os.fdatasync if data_only else os.fsync)(fd)
        self._add(SYNC, flag=int(data_only), file=inode)

    def _sync_folder(self) -> None:
        folder, fd = self._chance.choice(sorted(self._folders.items()))
        os.fsync(fd)
        self._add(SYNC, file=self._inode(folder))

    def _create(self) -> None:
        path = self._path()
        inode = self._keep(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR))
        self._add(CREATE, file=inode, at=path)

    def _nameless(self) -> None:
        """A new file that gets its name when it is written, as most shards do."""
        fd = os.open(self._folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        inode = self._keep(fd)
        self._add(CREATE, file=inode, other=self._inode(self._folder))
        data = self._chance.randbytes(self._chance.choice((100, PAGE, 9000)))
        os.pwrite(fd, data, 0)
        self._add(WRITE, file=inode, data=data)
        if self._chance.random() < 0.6:
            os.fsync(fd)
            self._add(SYNC, file=inode)
        path = self._path()
        _check(LIBC.linkat(CWD, f"/proc/self/fd/{fd}".encode(), CWD, os.fsencode(path), FOLLOW))
        self._add(LINK, file=inode, at=path)

    def _link(self) -> None:
        source, path = self._path(), self._path()
        os.link(source, path)
        self._add(LINK, file=os.stat(path).st_ino, at=path)

    def _unlink(self) -> None:
        path = self._path()
        os.unlink(path)
        self._add(UNLINK, at=path)

    def _rename(self) -> None:
        source, target = self._path(), self._path()
        inode = os.stat(source).st_ino
        if source == target or (target.exists() and os.stat(target).st_ino == inode):
            raise FileExistsError  # the kernel does nothing then
        os.rename(source, target)
        self._add(RENAME, file=inode, at=source, to=target)

    def _exchange(self) -> None:
        source, target = self._path(), self._path()
        inode, other = os.stat(source).st_ino, os.stat(target).st_ino
        if inode == other:
            raise FileExistsError
        _check(LIBC.renameat2(CWD, os.fsencode(source), CWD, os.fsencode(target), RENAME_EXCHANGE))
        self._add(EXCHANGE, file=inode, other=other, at=source, to=target)

    def _prod(self) -> None:
        """Write something to the disk without a sync of the record."""
        if self._chance.random() < 0.6:
            _, fd = self._file()
            at = ctypes.c_int64(PAGE * self._chance.randrange(3))
            LIBC.sync_file_range(fd, at, ctypes.c_int64(PAGE), SYNC_RANGE_WRITE_AND_WAIT)
        else:
            os.pwrite(self._outside, self._chance.randbytes(10), 0)
            os.fsync(self._outside)


def after_the_cut(folder: Path) -> State:
    """Return the files that are in a folder, by path and inode."""
    paths, contents = {}, {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            inode = path.stat().st_ino
            paths[path.relative_to(folder).as_posix()] = inode
            contents[inode] = path.read_bytes()
    return State(paths, contents)
