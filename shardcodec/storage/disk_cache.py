# disk_cache.py - encoded bytes of remote objects in a folder of a local disk
# SPDX-License-Identifier: MIT
"""A cache of encoded bytes of remote objects in a folder of a local disk (option ``cache_dir``).

All processes of one user share the folder. One sparse file holds the cached bytes of one object in one state:

    head     512 bytes: MAGIC, crc32c of the rest; n_slots, size of the object (2^64-1: unknown), length of the state,
             all 8 bytes; the name of the object (SHA-256, 32 bytes); a random number, which no other file has, 8 bytes;
             its state as JSON
    slots    8 bytes for each inner chunk, and one for the index: crc32c of its last four bytes and then of the others (many inner
             chunks end with their own), and this number xor MARK
    index    16 bytes for each inner chunk: offset, nbytes
    data     bytes of the object, each at its offset

An object without inner chunks counts as one inner chunk. Bytes are written first and their slot after them, so the bytes of a
writer that was killed have no slot. A read compares the bytes with the slot, each process once until the file changes: a bit that has
flipped, or a write that a power cut has reordered, is a miss. Two processes write equal bytes to equal places, because the state is the same, so they need no lock.
The file of an older state is removed; a process that has it open keeps the old bytes, which it had read in time.

Objects that this process has written have another state than their file. Only a comparison shows it, so with ``immutable`` the
process does not use the cache for them any more.

The file `usage` has the number of bytes in all files, at least. A writer adds to it, under a lock, before it writes. If it exceeds the
bound, the writer counts again and removes the files that were used longest ago.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import re
import stat
import struct
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from .. import compat, native
from ..options import Options
from ..statistics import stats
from . import forks, kinds
from .object_names import ByIdentity
from .store import Store

__all__ = ["CachedObject", "DiskCache", "clear", "forget", "of_store", "usage"]

MAGIC = b"shardcd3"
HEAD = struct.Struct("<8sIxxxxQQQ32s8s")
HEAD_NBYTES = 512
UNKNOWN_NBYTES = 2**64 - 1
# A slot of zeros, as in a hole of the file, is empty.
MARK = 0x5CA1AB1E

SUFFIX = ".cached"
# A write takes at most two more pages than its bytes: one because it begins within a page, and one of slots.
PAGE_NBYTES = 4096
# Bytes that one call of the system writes or reads. Larger ones are not cached.
MAX_NBYTES = 1 << 30
# Inner chunks that are this near to each other are read with one call: more bytes take longer than another call.
GAP_NBYTES = 16 << 10
# Slots that are read together with the head.
FIRST_SLOTS = 8192
# The share of the bound that is left after an eviction.
KEPT_SHARE = 0.875
# A file is used more often than its time of last use is written, in seconds.
TOUCH_SECONDS = 60.0
# Attempts to lock the usage, a millisecond apart. Without the lock nothing is cached, so a stopped process stops no other one.
MAX_TRIES = 100

# Variables of the environment that lead a client to another service.
_PLACE_VARIABLES = re.compile(r"(AWS|AZURE|GCS|GOOGLE|STORAGE)_.*(ENDPOINT|EMULATOR|ACCOUNT|PROFILE)")

Numbers = np.ndarray[Any, np.dtype[Any]]

_log = logging.getLogger("shardcodec")


class DiskCache:
    """The cached objects of one store in a folder.

    place: hash of the name of the store. is_immutable: as the option. name, path: from the key of an object to its name, a hash, and
    to its file.
    """

    def __init__(self, folder: str, max_nbytes: int, place: bytes, *, is_immutable: bool) -> None:
        self.folder = folder
        self.is_immutable = is_immutable
        self._max_nbytes = max_nbytes
        self._place = place
        self.name = functools.partial(_name, place)
        self.path = functools.partial(_path, folder, place)

    def is_usable(self) -> bool:
        """Return True if only this user can write to the folder, which is made if it is missing; otherwise warn once."""
        folder = self.folder
        try:
            try:
                found = os.stat(folder)
            except FileNotFoundError:
                os.makedirs(folder, mode=0o700, exist_ok=True)
                found = os.stat(folder)
        except OSError as error:
            stats.disk_cache(errors=1)
            _log_once(folder, error.strerror or str(error))
            return False
        if not stat.S_ISDIR(found.st_mode):
            _warn_once(folder, "expected a folder")
        elif found.st_uid != os.geteuid():
            _warn_once(
                folder, f"expected a folder of user {os.geteuid()}, this one belongs to user {found.st_uid}"
            )
        elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = stat.S_IMODE(found.st_mode)
            _warn_once(folder, f"expected a folder that only its owner can write to, its mode is {mode:o}")
        else:
            return True
        return False

    def object(self, key: str, n_chunks: int) -> CachedObject:
        """Return what is cached of an object with this number of inner chunks; the caller closes it."""
        return CachedObject(self, key, n_chunks)

    def lasting(self, keys: Sequence[str]) -> list[str | None]:
        """Return the files of immutable objects, which are read without a comparison; None if their bytes may be old."""
        if not (_written or _removed):
            return list(map(self.path, keys))
        return [None if self.is_old(key) else self.path(key) for key in keys]

    def is_old(self, key: str) -> bool:
        """Return True if this process has written or removed an immutable object, which nothing but this shows."""
        return self.is_immutable and (
            self.name(key) in _written
            or any(place == self._place and key.startswith(prefix) for place, prefix in tuple(_removed))
        )

    def drop(self, key: str) -> None:
        """Remove what is cached of an object, because its bytes cannot be decoded."""
        with suppress(OSError):
            os.unlink(self.path(key))

    def reserve(self, nbytes: int) -> bool:
        """Count bytes that are written next, and evict other files; return False if they may not be written."""
        nbytes = -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES + 2 * PAGE_NBYTES
        if nbytes > self._max_nbytes * KEPT_SHARE:
            return False
        path, flags = f"{self.folder}/usage", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            _lock(fd)
            known = os.pread(fd, 8, 0)
            total = int.from_bytes(known, "little") if len(known) == 8 else self._max_nbytes
            if total + nbytes > self._max_nbytes:
                total = _evict(self.folder, int(self._max_nbytes * KEPT_SHARE) - nbytes)
            _write(fd, (total + nbytes).to_bytes(8, "little"), 0)
            return total + nbytes <= self._max_nbytes
        finally:
            os.close(fd)


class CachedObject:
    """The cached bytes of one object. An error of the folder is counted in `stats`, and later calls find and keep nothing.

    state, nbytes: those of the object; None if it is not cached. positions, below, are those of inner chunks.
    """

    def __init__(self, cache: DiskCache, key: str, n_chunks: int) -> None:
        self._cache = cache
        self._key = key
        self._name = cache.name(key)
        self._n_chunks = n_chunks
        self._path = cache.path(key)
        self._first = HEAD_NBYTES + 8 * (n_chunks + 1) + 16 * n_chunks  # of the data
        self._fd = -1
        # True after an error. The file is closed at the end, because another thread may use it.
        self._is_off = cache.is_old(key)
        self._slots: Numbers | None = None  # all of them, if they were read with the head
        self.state: Any = None
        self.nbytes: int | None = None
        with self._counts_errors():
            if self._is_off:
                self._unlink()
            else:
                self._open()

    def _open(self) -> None:
        try:
            found = os.stat(self._path, follow_symlinks=False)
            fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._fd = fd
        n_slots = min(self._n_chunks + 1, FIRST_SLOTS)
        head = os.pread(fd, HEAD_NBYTES + 8 * n_slots, 0)
        if not self._parse(head[:HEAD_NBYTES]):
            self.close()
            return
        if len(head) == HEAD_NBYTES + 8 * (self._n_chunks + 1):
            self._slots = np.frombuffer(head, "<u4", offset=HEAD_NBYTES).reshape(-1, 2)
        if abs(time.time() - _used(found)) <= TOUCH_SECONDS:
            return
        with suppress(OSError):
            os.utime(fd, ns=(time.time_ns(), found.st_mtime_ns))

    def _parse(self, head: bytes) -> bool:
        """Set `state` and `nbytes`; return False if the head is torn, or of another layout."""
        if len(head) < HEAD_NBYTES:
            return False
        magic, crc, n_slots, nbytes, n_state, name, _ = HEAD.unpack_from(head)
        if (magic, name, n_slots) != (MAGIC, self._name, self._n_chunks + 1):
            return False
        if crc != native.load().crc32c(memoryview(head)[12:]):
            return False
        state = json.loads(head[HEAD.size : HEAD.size + n_state])
        if state is None and not self._cache.is_immutable:
            return False
        self.state, self.nbytes = state, None if nbytes == UNKNOWN_NBYTES else nbytes
        return True

    @property
    def is_there(self) -> bool:
        """True if bytes of the object, in any state, are cached."""
        return self._fd >= 0 and not self._is_off

    def is_in(self, state: Any) -> bool:
        """Return True if bytes of this state of the object are cached."""
        return self.is_there and bool(self.state == state)

    def entries(self) -> Numbers | None:
        """Return the index of a shard, shape (n_chunks, 2); None if it is not cached."""
        n = self._n_chunks
        if not self.is_there:
            return None
        with self._counts_errors():
            stored = os.pread(self._fd, 16 * n, HEAD_NBYTES + 8 * (n + 1))
            slot = self._read_slots(np.array([n])).tobytes()
            if len(stored) == 16 * n and slot == _slots(_crcs(stored, [0], [16 * n])):
                return np.frombuffer(stored, "<u8").reshape(n, 2)
        return None

    def has(self, positions: Numbers) -> Numbers:
        """Return an array of bool: which inner chunks are cached, in any state."""
        if not self.is_there or not len(positions):
            return np.zeros(len(positions), bool)
        slots = self._read_slots(positions)
        found: Numbers = (slots[:, 0] ^ MARK) == slots[:, 1]
        return found

    def _read_slots(self, positions: Numbers) -> Numbers:
        if self._slots is not None:
            chosen: Numbers = self._slots[positions]
            return chosen
        first, last = int(positions.min()), int(positions.max())
        slots = np.zeros((last - first + 1, 2), "<u4")
        with self._counts_errors():
            os.preadv(self._fd, [slots.data.cast("B")], HEAD_NBYTES + 8 * first)
        chosen = slots[positions - first]
        return chosen

    def read(self, positions: Numbers, offsets: Numbers, sizes: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Read cached inner chunks in the order of their offsets; near ones are read with one call.

        Returns their bytes, the place of each inner chunk in them, and an array of bool: which of them are right.
        """
        ends = np.maximum.accumulate(offsets + sizes)
        begins = np.flatnonzero(np.r_[True, offsets[1:] - ends[:-1] > GAP_NBYTES])
        lengths = np.r_[ends[begins[1:] - 1], ends[-1]] - offsets[begins]
        starts = np.cumsum(lengths) - lengths
        run = np.searchsorted(begins, np.arange(len(offsets)), side="right") - 1
        places = offsets - offsets[begins][run] + starts[run]
        data = np.zeros(int(lengths.sum()), np.uint8)  # a file that was cut may end before
        good = np.zeros(len(positions), bool)
        with self._counts_errors():
            view = data.data
            runs = zip(offsets[begins].tolist(), starts.tolist(), lengths.tolist(), strict=True)
            for offset, start, length in runs:
                os.preadv(self._fd, [view[start : start + length]], self._first + offset)
            slots = self._read_slots(positions)
            good = (_crcs(data, places, sizes) == slots[:, 0]) & ((slots[:, 0] ^ MARK) == slots[:, 1])
        n, nbytes = int(good.sum()), int(sizes[good].sum())
        stats.disk_cache(hits=n, bytes_read=nbytes)
        return data, places, good

    def keep(
        self,
        state: Any,
        nbytes: int | None,
        entries: Numbers | None,
        offset: int,
        data: Any,
        chunks: tuple[Numbers, Numbers, Numbers],
    ) -> None:
        """Keep bytes of the object from `offset` on.

        state, nbytes: those of the object, as the answer to the request has confirmed them; the size may be unknown. entries: the
        index of a shard. chunks: positions, offsets and sizes of inner chunks that lie in the bytes. Only one thread calls it,
        and no other one reads an older state.
        """
        positions, offsets, sizes = chunks
        view = memoryview(data).cast("B")
        if self._is_off or not len(positions) or len(view) > MAX_NBYTES:
            return
        if state is None and not self._cache.is_immutable:
            return
        with self._counts_errors():
            if not self.is_in(state) and not self._begin(state, nbytes, entries):
                return
            if not self._cache.reserve(len(view)):
                return
            crcs = _crcs(view, offsets - offset, sizes)
            self._slots = None
            _write(self._fd, view, self._first + offset)
            order = np.argsort(positions)
            for part in np.split(order, np.flatnonzero(np.diff(positions[order]) != 1) + 1):
                _write(self._fd, _slots(crcs[part]), HEAD_NBYTES + 8 * int(positions[part[0]]))
            if self._cache.is_old(self._key):  # meanwhile, so these may be the old bytes
                self._is_off = True
                self._unlink()
            stats.disk_cache(misses=len(positions), bytes_written=int(sizes.sum()))

    def _begin(self, state: Any, nbytes: int | None, entries: Numbers | None) -> bool:
        """Create the file; return False if the bound leaves no room for it."""
        n, crc32c = self._n_chunks, native.load().crc32c
        text = json.dumps(state).encode()
        if len(text) > HEAD_NBYTES - HEAD.size or not self._cache.reserve(self._first):
            return False
        self.close()
        self._unlink()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        known_nbytes = UNKNOWN_NBYTES if nbytes is None else nbytes
        head = bytearray(HEAD_NBYTES)
        about = n + 1, known_nbytes, len(text), self._name, os.urandom(8)
        HEAD.pack_into(head, 0, MAGIC, 0, *about)
        head[HEAD.size : HEAD.size + len(text)] = text
        HEAD.pack_into(head, 0, MAGIC, crc32c(memoryview(head)[12:]), *about)
        if entries is not None:
            stored = np.ascontiguousarray(entries, "<u8").tobytes()
            _write(self._fd, stored, HEAD_NBYTES + 8 * (n + 1))
            _write(self._fd, _slots(_crcs(stored, [0], [len(stored)])), HEAD_NBYTES + 8 * n)
        _write(self._fd, head, 0)
        self.state, self.nbytes = state, nbytes
        return True

    def drop(self) -> None:
        """Remove the file, because its bytes cannot be decoded; no thread uses it. `keep` makes a new one."""
        self.close()
        with self._counts_errors():
            self._unlink()

    def _unlink(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def close(self) -> None:
        """Close the file; no thread uses it."""
        fd, self._fd = self._fd, -1
        self.state = self.nbytes = self._slots = None
        if fd >= 0:
            os.close(fd)

    @contextmanager
    def _counts_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is None:
                raise  # of a signal handler
            self._is_off = True
            stats.disk_cache(errors=1)
            _log_once(self._cache.folder, getattr(error, "strerror", None) or str(error))


def of_store(store: Store, options: Options) -> DiskCache | None:
    """Return the cache for the objects of a store; None if the options or the store have none.

    Objects of local stores are not cached, and those whose states have no names that are valid in all processes only if they are
    ``immutable``. Wrappers of stores, and classes of other packages, have no name by which another process knows them.
    """
    if options.cache_dir is None or not options.cache_dir_bytes or store.is_near:
        return None
    if not (options.immutable or store.has_lasting_states):
        return None
    if (place := _places.of(store.place)) is None:
        return None
    return DiskCache(options.cache_dir, options.cache_dir_bytes, place, is_immutable=options.immutable)


# Names of the objects that this process has written, and places and prefixes that it has emptied. A set is changed in one step, so
# it needs no lock.
_written: set[bytes] = set()
_removed: set[tuple[bytes, str]] = set()


def forget(store: Store, keys: Iterable[str], prefix: str | None = None) -> None:
    """Note that this process has written objects, or removed all whose keys begin with `prefix`. Their cached bytes are old.

    Call it before the write is reported as done.
    """
    if (place := _places.of(store.place)) is None:
        return
    _written.update(_name(place, key) for key in keys)
    if prefix is not None:
        _removed.add((place, prefix))


@functools.lru_cache(1 << 14)
def _name(place: bytes, key: str) -> bytes:
    """Return the name of an object, a hash."""
    return hashlib.sha256(place + key.encode()).digest()


@functools.lru_cache(1 << 14)
def _path(folder: str, place: bytes, key: str) -> str:
    """Return the file of an object, which a hash names."""
    return f"{folder}/{_name(place, key).hex()}{SUFFIX}"


def _place_of(base: Any) -> bytes | None:
    """Return a hash of the name of a store, valid in every process; None if it has no such name."""
    if (
        type(base) not in (compat.ObjectStore, compat.FsspecStore)
        or (service := kinds.service_of(base)) is None
    ):
        return None
    if service[0] is None or (type(base) is compat.FsspecStore and forks.is_local(base)):
        return None
    around = {name: value for name, value in os.environ.items() if _PLACE_VARIABLES.match(name)}
    try:
        text = json.dumps([*service, around], default=_name_of_class, sort_keys=True)
    except TypeError:  # a client, or an option without a text
        return None
    return hashlib.sha256(text.encode()).digest()


def _name_of_class(thing: Any) -> str:
    if not isinstance(thing, type):
        raise TypeError(f"expected a class, got {type(thing).__name__}")
    return f"{thing.__module__}.{thing.__qualname__}"


_places = ByIdentity(_place_of)


# The warnings that were given. `setdefault` is one step, so of several threads only one gives a warning.
_told: dict[tuple[str, str], object] = {}


def _is_new(folder: str, what: str) -> bool:
    return _told.setdefault((folder, what), token := object()) is token


def _warn_once(folder: str, why: str) -> None:
    if _is_new(folder, why):
        warnings.warn(
            f"cache_dir {folder!r}: {why}; nothing is cached there, because other users could change what is read",
            RuntimeWarning,
            stacklevel=2,
        )


def _log_once(folder: str, error: str) -> None:
    if _is_new(folder, error):
        _log.warning("cache_dir %r: reads go on without it: %s", folder, error)


def _crcs(data: Any, offsets: Any, sizes: Any) -> Numbers:
    """Return the checksums of pieces of `data`."""
    pieces = (np.asarray(numbers, np.uint64) for numbers in (offsets, sizes))
    return np.frombuffer(native.load().crc32c_turned(data, *pieces), np.uint32)


def _slots(crcs: Numbers) -> bytes:
    """Return the slots for checksums of bytes."""
    return np.stack([crcs, crcs ^ np.uint32(MARK)], axis=1).astype("<u4").tobytes()


def _write(fd: int, data: Any, offset: int) -> None:
    if os.pwrite(fd, data, offset) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _lock(fd: int) -> None:
    """Lock the usage; raise BlockingIOError after `MAX_TRIES` attempts. The lock ends when the file is closed."""
    for attempt in range(MAX_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt + 1 == MAX_TRIES:
                raise
            time.sleep(0.001)


def _used(status: os.stat_result) -> float:
    """Return the time of last use of a file. Many file systems do not keep that of access, so `CachedObject` writes it."""
    return max(status.st_atime, status.st_mtime)


def _files(folder: str) -> list[tuple[float, int, str]]:
    """Return the cached files: time of last use, size on the disk in bytes, and path; the oldest first."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(SUFFIX):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((_used(status), status.st_blocks * 512, entry.path))
    return sorted(found)


def _evict(folder: str, max_nbytes: int) -> int:
    """Remove the files that were used longest ago, until the others have at most `max_nbytes` bytes; return their size."""
    files = _files(folder)
    total = sum(nbytes for _, nbytes, _ in files)
    for _, nbytes, path in files:
        if total <= max_nbytes:
            break
        with suppress(FileNotFoundError):
            os.unlink(path)
        total -= nbytes
    return total


def usage(folder: str) -> tuple[int, int]:
    """Return the number of cached objects in a folder, and their size on the disk in bytes."""
    try:
        files = _files(folder)
    except (FileNotFoundError, NotADirectoryError):
        return 0, 0
    return len(files), sum(nbytes for _, nbytes, _ in files)


def clear(folder: str) -> None:
    """Remove all cached objects from a folder; processes that use it go on."""
    with suppress(FileNotFoundError, NotADirectoryError):
        _evict(folder, -1)
        os.unlink(f"{folder}/usage")
