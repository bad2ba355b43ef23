# files.py - the store of local files
# SPDX-License-Identifier: MIT
"""The store of local files.

The engine reads and replaces local files itself, under locks between processes.
"""

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
from . import absent, file_locks, file_systems, lock_reach, object_names
from .concurrent_calls import call_each
from .file_systems import OpenFile
from .object_names import ByIdentity
from .runner import Runner
from .staging import staging_folder, staging_for
from .store import UNCHANGED, Answer, Contest, Maker, Outcome, Replacement, Store, StoredObject, group_of
from .whole_file import put_file

__all__ = ["FileStore", "check_name", "file_states", "introduce_files", "is_introduced", "open_file"]


# New files of up to this many bytes are stored on an event loop itself, because a change of threads would cost more.
INLINE_NBYTES = 1 << 20

# Granularity of file times in nanoseconds, generously, of local and network file systems.
GRAIN_NS = 2_000_000_000


def check_name(name: str) -> str:
    """Return a path, or the key of an object in a store; ValueError if it has a null byte, where C would cut it and use another file."""
    if "\0" in name:
        raise ValueError(f"expected a path or key without null bytes, got {name!r}")
    return name


def open_file(path: str) -> BufferedReader | None:
    """Open a regular file for reading. Return None if it does not exist.

    ShardFileError: the path is a folder or a link to nothing, or a FIFO, a socket or a device, which could block forever.
    """
    fd = native.load().open_file(path)
    if fd < 0:
        absent.check(path)
        return None
    return open(fd, "rb")


class FileStore(Store):
    """Files below a folder.

    Temporary files of a LocalStore are in a folder beside its hierarchy; those of a plain folder only if a metadata document
    above the file shows where the hierarchy begins.
    """

    is_near = True
    has_lasting_states = True
    supports_listing = True

    def __init__(self, root: str | LocalStore) -> None:
        super().__init__(root)
        self._known_root = self.place, str(self.place)
        self._is_prompt: bool | None = None

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
        if not isinstance(self._base, str):
            return _prompt.of(self._base)
        if self._is_prompt is None:
            self._is_prompt = file_systems.is_prompt(self.root)
        return self._is_prompt

    def source(self, key: str) -> str:
        """Return the path of a file."""
        base = self._base
        return f"{base if type(base) is str else self.root}/{key}"

    def path(self, key: str) -> str:
        """Return the path of a file."""
        return self.source(key)

    def staging(self, key: str) -> str | None:
        """Return the folder for temporary files of this object; None if there is none."""
        return staging_for(self.source(key)) if isinstance(self._base, str) else staging_folder(self.root)

    def sync(self, keys: Sequence[str]) -> None:
        from .synced_documents import sync_documents  # few programs need it

        sync_documents(object_names.in_real_folders([self.source(key) for key in keys]))

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

    @property
    def is_read_only(self) -> bool:
        """True if the LocalStore refuses writes; a path never does."""
        return not isinstance(self._base, str) and super().is_read_only

    def check_writable(self) -> None:
        """Raise `ValueError` if the LocalStore is read-only."""
        if not isinstance(self._base, str):
            super().check_writable()

    async def get(self, key: str) -> Answer | None:
        """Return the bytes of a file; None if it does not exist."""
        if (opened := open_file(self.source(key))) is None:
            return None
        with opened as file:
            if isinstance(self._base, str):  # `introduce_files` has looked at the file system of a LocalStore
                file_systems.seed_latency(file.fileno())
            return Answer(np.frombuffer(file.read(), dtype=np.uint8))

    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return bytes [start, end) of a file, fewer at its end; None if it does not exist. `state` is ignored."""
        if (opened := open_file(self.source(key))) is None:
            return None
        with opened as file:
            file.seek(start)
            return Answer(np.frombuffer(file.read(max(0, end - start)), dtype=np.uint8))

    async def size(self, key: str) -> int:
        """Return the size of a file in bytes; raise `FileNotFoundError` if it does not exist."""
        try:
            return os.stat(self.source(key)).st_size
        except FileNotFoundError:
            absent.check(self.source(key))
            raise

    def keys(
        self,
        prefix: str,
        *,
        with_folders: bool = False,
        left: list[object_names.LeftFolder] | None = None,
    ) -> Iterator[str]:
        """Yield the keys of the files below a folder."""
        return object_names.file_keys(self.root, prefix, with_folders=with_folders, left=left)

    def names(
        self, prefix: str, left: list[object_names.LeftFolder] | None = None, *, with_files: bool = False
    ) -> list[str]:
        """Return the names of the folders in a folder, and those of its files if it is asked."""
        return object_names.file_names(self.root, prefix, left, with_files=with_files)

    def states_of(self, keys: Sequence[str]) -> list[str | None] | None:
        """Return the states of files; see `file_states`."""
        return file_states([self.source(key) for key in keys])

    async def exchange(
        self,
        replacements: Sequence[Replacement],
        maker: Maker,
        options: Options,
        runner: Runner,
        contest: Contest,
    ) -> Outcome:
        """Make one attempt to replace files, under their locks against other processes; the caller holds those in this process.

        The number of locks is limited, so one call may replace only the first files in the order of their names. The caller
        calls again for `Outcome.remaining`: the other files, and files that another process has just created or moved. The
        maker is called under the locks, and again for files of a failed attempt. If another client of a network file system
        replaced a file during the attempt (ESTALE), all files remain and `pause` is set. After an error each file is old or new
        as a whole.
        """
        replacements = sorted(replacements, key=lambda replacement: replacement.name)
        group = replacements[: group_of(replacements, maker)]
        paths, files = (
            [replacement.name for replacement in group],
            [self.source(replacement.key) for replacement in group],
        )
        try:
            async with runner.hold_files(paths, options, files, prompt=self.is_prompt) as held:
                if file_locks.MOVED in held:
                    # a link was erased or changed while the lock of its target was waited for
                    contest.check_file(paths[held.index(file_locks.MOVED)])
                    return Outcome(remaining=replacements, has_moved=True)
                locked, rest = group[: len(held)], replacements[len(held) :]
                stored = [
                    StoredObject(replacement.position, file)
                    for replacement, file in zip(locked, held, strict=True)
                ]
                maker.begin()
                outcome = await maker.make(stored, runner)
                appeared = outcome.appeared
                if not outcome.is_stored:
                    work = list(zip(files, outcome.objects, held, strict=False))
                    inline = self.is_prompt and _is_quick(work, options)
                    appeared = await runner.call(_put_all, work, options, inline=inline)
                lock_reach.report_unguarded(locked[0].name)
                if options.durability == "fsync":
                    await runner.call(self.sync, [replacement.key for replacement in locked], inline=False)
        except OSError as error:  # files that have been written already are written once more
            return Outcome(remaining=replacements, pause=contest.patience.pause(error))
        if not appeared:
            return outcome._replace(objects=(), remaining=rest)
        contest.check_file(locked[appeared[0]].name)
        remaining = [*(locked[i] for i in appeared), *rest]
        return outcome._replace(objects=(), remaining=remaining, contended=locked[appeared[0]].name)


def _is_quick(work: Sequence[tuple[str, Any, OpenFile | None]], options: Options) -> bool:
    """Return True if files are stored in less time than a change of threads takes: few bytes, which need not reach the disk now."""
    if len(work) > file_locks.INLINE_LOCKS or options.durability != "rename":
        return False
    datas = [data for _, data, _ in work if data is not None and data is not UNCHANGED]
    return sum(memoryview(data).nbytes for data in datas) <= INLINE_NBYTES


def _put_all(work: Sequence[tuple[str, Any, OpenFile | None]], options: Options) -> list[int]:
    """Store or delete files under their locks, several at the same time where a call waits.

    work: path, new bytes (None: delete, `UNCHANGED`: do nothing) and entry in `FileLocks.held`. Returns positions of new files
    that another process has created since the locks were taken; these are not stored.
    """
    changed = [i for i, (_, data, _) in enumerate(work) if data is not UNCHANGED]
    sync = options.durability == "fsync"
    waits = len(changed) > 1 and file_locks.calls_wait(work[changed[0]][0], options)
    are_stored = call_each(lambda i: _put(*work[i], sync), changed, waits=waits)
    return [i for i, is_stored in zip(changed, are_stored, strict=True) if not is_stored]


def _put(path: str, data: Any, file: OpenFile | None, sync: bool) -> bool:
    """Store or delete a file; return False if it is new here, but another process has created it."""
    if data is None:
        if file is not file_locks.NO_FILE:
            native.load().remove_file(path, sync=sync)
        return True
    return put_file(path, [data], sync=sync, may_replace=file is not file_locks.NO_FILE)


# True if the files of a LocalStore are reached without round trips.
_prompt: ByIdentity[bool] = ByIdentity(lambda store: file_systems.is_prompt(str(store.root)))


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
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    last = max(status.st_mtime_ns, status.st_ctime_ns)
    if time.time_ns() - last < GRAIN_NS or status.st_nlink != 1:
        return None
    return f"{status.st_size}-{status.st_ino}-{status.st_mtime_ns}-{status.st_ctime_ns}"
