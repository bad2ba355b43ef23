# files.py - the store of local files
# SPDX-License-Identifier: MIT
"""Objects that are local files. The engine reads and replaces them itself, under locks between processes."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from io import BufferedReader
from typing import Any

import numpy as np

from .. import native
from ..compat import LocalStore
from ..options import Options
from . import file_locks, file_system, lock_scopes, object_names
from .object_names import ByIdentity
from .requests import Answer
from .runner import Runner
from .store import UNCHANGED, Contest, Maker, Outcome, Replacement, Store, Stored, group_of
from .temp_folder import staging_folder, staging_for
from .waiting import call_each
from .whole_file import put_file

__all__ = [
    "FileStore",
    "check_name",
    "file_states",
    "introduce_files",
    "is_introduced",
    "open_file",
]

# Granularity of file times in nanoseconds, generously, of local and network file systems.
GRAIN_NS = 2_000_000_000


def check_name(name: str) -> str:
    """Return a path, or the key of an object in a store, after a check for null bytes.

    Raises
    ------
    ValueError
        The name has a null byte. C would cut it there and use another file.
    """
    if "\0" in name:
        raise ValueError(f"expected a path or key without null bytes, got {name!r}")
    return name


def open_file(path: str) -> BufferedReader | None:
    """Open a regular file for reading.

    Returns
    -------
    file or None
        None if there is no file.

    Raises
    ------
    ShardFileError
        The path is a folder or a link to nothing. Or a FIFO, a socket or a device, which could block forever.
    ValueError
        The path has a null byte.
    """
    fd = native.load().open_file(path)
    return None if fd < 0 else open(fd, "rb")


class FileStore(Store):
    """Files below a folder.

    Parameters
    ----------
    root : str or LocalStore
        The folder. Temporary files of a LocalStore are in a folder beside its hierarchy; those of a plain folder only if a
        metadata document above the file shows where the hierarchy begins.
    """

    is_near = True
    has_lasting_states = True
    supports_listing = True

    def __init__(self, root: str | LocalStore) -> None:
        super().__init__(root)
        self._known_root = self.place, str(self.place)

    def __repr__(self) -> str:
        return self.root

    @property
    def root(self) -> str:
        """The folder; `LocalStore.move` changes it."""
        place, text = self._known_root
        if place is not self.place:
            place = self.place
            text = str(place)
            self._known_root = place, text
        return text

    @property
    def place(self) -> Any:
        """The folder, as the LocalStore has it."""
        base = self._base
        return base if type(base) is str else base.root

    @property
    def is_prompt(self) -> bool:
        """True if files are reached without network round trips."""
        return file_system.is_prompt(self.root) if isinstance(self._base, str) else _prompt.of(self._base)

    def source(self, key: str) -> str:
        """Return the path of a file."""
        base = self._base
        return f"{base if type(base) is str else self.root}/{key}"

    path = source

    def staging(self, key: str) -> str | None:
        """Return the folder for temporary files of this object; None if there is none."""
        return staging_for(self.source(key)) if isinstance(self._base, str) else staging_folder(self.root)

    def is_link(self, key: str) -> bool:
        """Return True if the file is a symbolic link: an erase removes the link, and so changes the object's lock name."""
        return os.path.islink(self.source(key))

    def lock_names(self, keys: Sequence[str]) -> list[str]:
        """Return the paths with symbolic links resolved."""
        return object_names.real_paths([f"{self.root}/{key}" for key in keys])

    def index_names(self, keys: Sequence[str]) -> list[str]:
        """Return the paths; symbolic links are not resolved."""
        return [self.source(key) for key in keys]

    def describe(self, key: str) -> str:
        """Return the path of a file, or the name of the store for its root."""
        return self.source(key) if isinstance(self._base, str) else super().describe(key)

    def check_writable(self) -> None:
        """Raise `ValueError` if the LocalStore is read-only."""
        if not isinstance(self._base, str):
            super().check_writable()

    async def get(self, key: str) -> Answer | None:
        """Return the bytes of a file; None if it does not exist."""
        if (found := open_file(self.source(key))) is None:
            return None
        with found as file:
            if isinstance(self._base, str):  # `introduce_files` has looked at the file system of a LocalStore
                file_system.seed_latency(file.fileno())
            return Answer(np.frombuffer(file.read(), dtype=np.uint8))

    async def get_range(self, key: str, start: int, end: int, version: Any = None) -> Answer | None:
        """Return bytes [start, end) of a file, fewer at its end; None if it does not exist. `version` is ignored."""
        if (found := open_file(self.source(key))) is None:
            return None
        with found as file:
            file.seek(start)
            return Answer(np.frombuffer(file.read(max(0, end - start)), dtype=np.uint8))

    async def size(self, key: str) -> int:
        """Return the size of a file in bytes; raise `FileNotFoundError` if it does not exist."""
        return os.stat(self.source(key)).st_size

    def keys(self, prefix: str, *, with_folders: bool = False) -> Iterator[str]:
        """Yield the keys of the files below a folder."""
        return object_names.file_keys(self.root, prefix, with_folders=with_folders)

    def names(self, prefix: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return object_names.file_names(self.root, prefix)

    def states_of(self, keys: Sequence[str]) -> list[str | None] | None:
        """Return the states of files; see `file_states`."""
        return file_states([self.source(key) for key in keys])

    async def exchange(
        self, wanted: Sequence[Replacement], maker: Maker, options: Options, runner: Runner, contest: Contest
    ) -> Outcome:
        """Make one attempt to replace files, under their locks against other processes.

        The number of locks at a time is limited, so one call may replace only the first files in the order of their names. The
        caller calls again for `Outcome.left`: the other files, and files that another process has just created or moved.

        Parameters
        ----------
        wanted : sequence of Replacement
            The files. The caller holds their locks in this process.
        maker : Maker
            Makes, and may store, the new files. It is called under the locks, and again for files of a failed attempt.
        options : Options
            ``locking``, ``lock_timeout`` and ``durability`` are used.
        runner : Runner
            Waits for locks and runs blocking work, on an event loop or in a thread.
        contest : Contest
            Time limits of all attempts of this write.

        Returns
        -------
        Outcome
            If another client of a network file system replaced a file during the attempt (ESTALE), all of `wanted` is
            left and `pause` is set.

        Raises
        ------
        LockError
            Another process held a lock, or kept creating or moving a file, for ``lock_timeout``. Files of earlier calls
            stay replaced.
        OSError
            A file cannot be written. Each file is old or new as a whole.
        """
        wanted = sorted(wanted, key=lambda one: one.name)
        group = wanted[: group_of(wanted, maker)]
        paths, files = [one.name for one in group], [self.source(one.key) for one in group]
        try:
            async with runner.hold_files(paths, options, files, prompt=self.is_prompt) as held:
                if file_locks.MOVED in held:
                    # a link was erased or changed while the lock of its target was waited for
                    contest.check_file(paths[held.index(file_locks.MOVED)])
                    return Outcome(wanted, has_moved=True)
                locked, rest = group[: len(held)], wanted[len(held) :]
                stored = [Stored(one.position, fd=fd) for one, fd in zip(locked, held, strict=True)]
                maker.begin()
                made = await maker.make(stored, runner)
                appeared = made.appeared
                if not made.is_stored:
                    work = zip(files, made.objects, held, strict=False)
                    appeared = await runner.call(_put_all, list(work), options, inline=False)
                lock_scopes.report_unguarded(locked[0].name)
                if options.durability == "fsync":
                    from .durable_documents import sync_documents  # few programs need it

                    await runner.call(sync_documents, [one.name for one in locked], inline=False)
        except OSError as error:  # files that have been written already are written once more
            return Outcome(wanted, pause=contest.patience.pause(error))
        if not appeared:
            return Outcome(rest)
        contest.check_file(locked[appeared[0]].name)
        return Outcome([*(locked[i] for i in appeared), *rest], contended=locked[appeared[0]].name)


def _put_all(work: Sequence[tuple[str, Any, int | None]], options: Options) -> list[int]:
    """Store or delete files under their locks, several at the same time where a call waits.

    Parameters
    ----------
    work : sequence of (str, object, int or None)
        Path, new bytes (None: delete, `UNCHANGED`: do nothing) and entry in `file_locks.FileLocks.held`.
    options : Options
        ``durability`` and ``io_latency`` are used.

    Returns
    -------
    list of int
        Indices of new files that another process has created since the locks were taken; these are not stored.
    """
    changed = [i for i, (_, data, _) in enumerate(work) if data is not UNCHANGED]
    sync = options.durability == "fsync"
    waits = len(changed) > 1 and file_locks.calls_wait(work[changed[0]][0], options)
    are_stored = call_each(lambda i: _put(*work[i], sync), changed, waits=waits)
    return [i for i, is_stored in zip(changed, are_stored, strict=True) if not is_stored]


def _put(path: str, data: Any, fd: int | None, sync: bool) -> bool:
    """Store or delete a file; return False if it is new here, but another process has created it."""
    if data is None:
        if fd != file_locks.NO_FILE:
            native.load().remove_file(path, sync=sync)
        return True
    return put_file(path, [data], sync=sync, may_replace=fd != file_locks.NO_FILE)


# True if the files of a LocalStore are reached without round trips.
_prompt: ByIdentity[bool] = ByIdentity(lambda store: file_system.is_prompt(str(store.root)))


def introduce_files(store: LocalStore) -> None:
    """Look at the file system of a LocalStore now, so that `FileStore.is_prompt` needs no system calls later."""
    _prompt.of(store)


def is_introduced(store: LocalStore) -> bool:
    """Return True if the file system of a LocalStore is known, so that `FileStore.is_prompt` does not look at it."""
    return _prompt.has(store)


def file_states(paths: Sequence[str]) -> list[str | None]:
    """Return the states of files: size, inode and times.

    None stands for a missing file, and for one whose state its times cannot identify: it was changed within the last two
    seconds, or has several names, so that an update in place may be under way.
    """
    return call_each(_file_state, paths)


def _file_state(path: str) -> str | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    last = max(found.st_mtime_ns, found.st_ctime_ns)
    if time.time_ns() - last < GRAIN_NS or found.st_nlink != 1:
        return None
    return f"{found.st_size}-{found.st_ino}-{found.st_mtime_ns}-{found.st_ctime_ns}"
