# job_files.py - the files of a job: its plan, and the ledgers of its workers
# SPDX-License-Identifier: MIT
"""The files of a job: its plan, and the ledgers of its workers.

`PlanFile`: what a job does, in one JSON file, which all its workers read.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, BinaryIO, Self

from ... import native
from ...errors import ShardFileError
from ...storage.files import open_file
from ...storage.url_stores import placed_options
from ...storage.whole_file import put_file, remove_part
from ..convert.plan import ConvertPlan

__all__ = [
    "Ledger",
    "LedgerLines",
    "PlanFile",
    "ledger_folder",
    "read_ledgers",
    "remove_ledgers",
]

_FORMAT = "shardcodec plan"
_VERSION = 1


@dataclass(frozen=True)
class PlanFile:
    """A plan, and how its places are opened.

    Attributes
    ----------
    path : str
        The file.
    plan : ConvertPlan
    source, destination : str
        Absolute paths, or URLs.
    n_parts : int
        Parts into which the units of the plan are divided.
    storage_options : mapping or None
        Options of the stores of URLs.
    job : str
        Name of the job, which no other plan has.
    """

    path: str
    plan: ConvertPlan
    source: str
    destination: str
    n_parts: int = 1
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    job: str = field(default_factory=lambda: uuid.uuid4().hex)

    def write(self) -> None:
        """Write the file.

        Raises
        ------
        FileExistsError
            There is a file already.
        """
        data = {
            "format": _FORMAT,
            "version": _VERSION,
            "operation": "convert",
            "job": self.job,
            "source": self.source,
            "destination": self.destination,
            "n_parts": self.n_parts,
            "storage_options": None if self.storage_options is None else dict(self.storage_options),
            "plan": self.plan.to_json(),
        }
        data["checksum"] = _checksum(data)
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(
                f"{self.path}: expected a file in a folder that exists, but there is no {folder}"
            )
        text = f"{json.dumps(data, indent=1)}\n".encode()
        remove_part(self.path)
        # options of a store may be secret
        is_private = bool(self.storage_options)
        check = PlanFile.read if native.has_checks() else None
        if os.path.lexists(self.path) or not put_file(
            self.path, [text], sync=True, may_replace=False, is_private=is_private, check=check
        ):
            raise FileExistsError(f"{self.path}: expected a new file, but it exists")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PlanFile:
        """Read a plan.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        ValueError
            It is not a plan of this version, or it was damaged or edited.
        """
        name = os.fspath(path)
        with open(name, encoding="utf-8") as file:
            try:
                data = json.load(file)
            except ValueError as error:
                raise ValueError(f"{name}: expected a plan of shardcodec: {error}") from error
        found = (data.get("format"), data.get("version")) if isinstance(data, dict) else None
        if found != (_FORMAT, _VERSION):
            raise ValueError(f"{name}: expected a plan of shardcodec, version {_VERSION}, got {found}")
        if data.get("checksum") != (actual := _checksum(data)):
            raise ValueError(
                f"{name}: the plan was damaged or edited: expected the checksum {data.get('checksum')}, got {actual}; make a new plan"
            )
        try:
            return cls(
                name,
                ConvertPlan.from_json(data["plan"]),
                data["source"],
                data["destination"],
                int(data["n_parts"]),
                placed_options(data["storage_options"], data["source"], data["destination"]),
                data["job"],
            )
        except KeyError as error:
            raise ValueError(f"{name}: the plan has no {error}") from error


def _checksum(data: Mapping[str, Any]) -> str:
    """Return a hash of the members of a plan, without that of the hash itself."""
    text = json.dumps({name: value for name, value in data.items() if name != "checksum"}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# `Ledger`: the finished shards of one worker, appended to a file of its own. `read_ledgers`: those of all workers.
#
# A ledger lies beside the plan and not in the new hierarchy. Each line ends with its checksum, so that a line of which only
# a part was written, or that was damaged, does not count: its shard is written again. A line only says that a shard
# was finished; what is stored is compared with it before the shard is skipped.


def ledger_folder(job: str) -> str:
    """Return the folder of the ledgers of a plan."""
    return f"{os.path.abspath(job)}.ledger"


@dataclass(frozen=True)
class LedgerLines:
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
        self._opening = threading.Lock()  # several threads finish their first unit at the same time

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line, in one system call.

        Raises
        ------
        OSError
            The line cannot be written.
        """
        if self._fd < 0:
            with self._opening:
                if self._fd < 0:
                    self._fd = self._open()
        self._write(self._fd, line)

    def _open(self) -> int:
        """Return the descriptor of a new file with its header; without a header all lines would be those of another plan."""
        os.makedirs(self._folder, exist_ok=True)
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        fd = os.open(os.path.join(self._folder, name), flags, 0o666)
        try:
            self._write(fd, {"ledger": 1, "fingerprint": self._fingerprint})
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _write(self, fd: int, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")).encode()
        whole = b"%b %08x\n" % (text, native.load().crc32c(text))
        if native.has_checks() and _parsed(whole) is None:
            raise AssertionError(f"{self._folder}: a reader of the ledger would reject {whole!r}")
        n = os.write(fd, whole)
        if n != len(whole):
            # the rest on a line of its own would be damaged too, so the next line must begin at a new one
            os.write(fd, b"\n")
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


def read_ledgers(job: str, fingerprint: str) -> LedgerLines:
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
    return LedgerLines(lines, n_damaged, n_foreign)


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
    if not stored.endswith(b"\n") or not space or checksum != b"%08x" % native.load().crc32c(text):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
