# repair_notes.py - which shards a run with several workers has begun to repair in place
# SPDX-License-Identifier: MIT
"""`RepairNotes`: notes of one run in the folder of its backups, which all its workers see.

A worker may end after it has replaced a shard and before its answer. The task is repeated then, and the shard is whole. Its
backup alone does not tell whether this run has repaired it, or an earlier one with the same folder; the note does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from types import TracebackType
from typing import Self

from .array_target import ShardTarget
from .backup import sync_folders

__all__ = ["RepairNotes"]

# How the name of the folder begins, in the folder of the backups.
NAME = ".shardcodec-repair-"


class RepairNotes:
    """The notes of one run. The main process uses it in a ``with`` statement: they exist as long as the run.

    Parameters
    ----------
    backup : str
        Folder of the backups.
    run : str
        Name of the run, which no other run has.
    """

    def __init__(self, backup: str, run: str) -> None:
        self._backup = backup
        self._folder = os.path.join(backup, NAME + run)

    def __enter__(self) -> Self:
        os.makedirs(self._folder)
        sync_folders(self._backup)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def check(self) -> None:
        """Check that this machine sees the folder.

        Raises
        ------
        FileNotFoundError
            It does not, or the run is over.
        """
        if not os.path.isdir(self._folder):
            raise FileNotFoundError(
                f"{self._backup}: expected the folder of the backups on the worker at {socket.gethostname()}, but it is another one; all "
                "workers must reach it under the same path"
            )

    def add(self, shard: ShardTarget) -> None:
        """Note a shard before it is backed up and changed; raise `FileNotFoundError` if the run is over."""
        with open(self._file(shard), "ab"):
            pass

    def has(self, shard: ShardTarget) -> bool:
        """Return True if a task of this run has noted a shard."""
        return os.path.exists(self._file(shard))

    def _file(self, shard: ShardTarget) -> str:
        # keys of shards in one folder: a key may be a part of another one
        name = f"{shard.array.name}\0{shard.relative}".encode()
        return os.path.join(self._folder, hashlib.blake2b(name, digest_size=16).hexdigest())
