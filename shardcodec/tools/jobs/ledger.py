# ledger.py - which shards of a job are finished
# SPDX-License-Identifier: MIT
"""`Ledger`: the finished shards of one worker, appended to a file of its own. `read_ledgers`: those of all workers.

A ledger lies beside the plan and not in the new hierarchy. Each line ends with its checksum, so that a line of which only
a part was written, or that was damaged, does not count: its shard is written again. A line only says that a shard
was finished; what is stored is compared with it before the shard is skipped.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Self

from ...checksum import crc32c
from ...errors import ShardFileError
from ...storage.files import open_file

__all__ = ["FoundLines", "Ledger", "ledger_folder", "read_ledgers", "remove_ledgers"]


def ledger_folder(job: str) -> str:
    """Return the folder of the ledgers of a plan."""
    return f"{os.path.abspath(job)}.ledger"


@dataclass(frozen=True)
class FoundLines:
    """The lines of all ledgers of a job.

    Attributes
    ----------
    lines : list of mapping
        Their contents, in the order of each file.
    n_damaged : int
        Damaged lines.
    n_foreign : int
        Files of another plan, and entries that are not regular files. They are not read.
    """

    lines: list[Mapping[str, Any]]
    n_damaged: int
    n_foreign: int


class Ledger:
    """The ledger of one worker. It is closed at the end of a with block, or by `close`. The file is made with the first line.

    Parameters
    ----------
    job : str
        Path of the plan.
    fingerprint : str
        Fingerprint of the plan.
    """

    def __init__(self, job: str, fingerprint: str) -> None:
        self._folder, self._fingerprint = ledger_folder(job), fingerprint
        self._fd = -1

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line, in one system call.

        Raises
        ------
        OSError
            The line cannot be written.
        """
        if self._fd < 0:
            self._open()
        self._write(line)

    def _open(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._fd = os.open(os.path.join(self._folder, name), flags, 0o666)
        self._write({"ledger": 1, "fingerprint": self._fingerprint})

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")).encode()
        whole = b"%b %08x\n" % (text, crc32c(text))
        n = os.write(self._fd, whole)
        if n != len(whole):
            # the rest on a line of its own would be damaged too, so the next line must begin at a new one
            os.write(self._fd, b"\n")
            raise OSError(f"{self._folder}: expected to append {len(whole)} bytes to a ledger, wrote {n}")

    def sync(self) -> None:
        """Make the lines durable; then other machines see them too."""
        if self._fd >= 0:
            os.fsync(self._fd)

    def close(self) -> None:
        """Make the lines durable, and close the file."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_ledgers(job: str, fingerprint: str) -> FoundLines:
    """Read the ledgers of all workers of a job.

    Parameters
    ----------
    job : str
        Path of the plan.
    fingerprint : str
        Fingerprint of the plan; ledgers with another one are left out.
    """
    lines: list[Mapping[str, Any]] = []
    n_damaged = n_foreign = 0
    for path in _files(ledger_folder(job)):
        opened = _opened(path)
        if opened is None:
            n_foreign += 1
            continue
        with opened as file:
            is_ours = False
            for n, stored in enumerate(file):
                line = _parsed(stored)
                if n == 0:
                    is_ours = line is not None and line.get("fingerprint") == fingerprint
                    n_foreign += not is_ours
                elif is_ours and line is None:
                    n_damaged += 1
                elif is_ours and line is not None:
                    lines.append(line)
    return FoundLines(lines, n_damaged, n_foreign)


def remove_ledgers(job: str) -> None:
    """Remove the ledgers beside a plan, and their folder if nothing else is in it."""
    folder = ledger_folder(job)
    for path in _files(folder):
        with suppress(OSError):  # a folder is left
            os.unlink(path)
    with suppress(OSError):
        os.rmdir(folder)


def _files(folder: str) -> Iterator[str]:
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    for name in names:
        if name.endswith(".jsonl"):
            yield os.path.join(folder, name)


def _opened(path: str) -> BinaryIO | None:
    """Open a ledger; None for a folder, a link to nothing, or a FIFO, which no worker makes and which may never end."""
    try:
        return open_file(path)
    except ShardFileError:
        return None


def _parsed(stored: bytes) -> Mapping[str, Any] | None:
    """Return a line; None if it is damaged."""
    text, space, checksum = stored.rstrip(b"\n").rpartition(b" ")
    if not stored.endswith(b"\n") or not space or checksum != b"%08x" % crc32c(text):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
