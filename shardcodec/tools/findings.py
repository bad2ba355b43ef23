# findings.py - what a check of stored data can find
# SPDX-License-Identifier: MIT
"""`Finding`: one damage of a shard, or another remark about it. `FindingKind` lists them, `FindingList` collects those of one shard."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..readable import Fact
from .capped import Capped
from .report import Record

__all__ = ["WARNINGS", "Finding", "FindingKind", "FindingList"]

Ints = tuple[int, ...]


class FindingKind(enum.StrEnum):
    """The kinds of findings."""

    TRUNCATED_TAIL = "truncated tail"  # the last bytes of the object are missing
    LOST_HEAD = (
        "lost head"  # bytes before the index are missing, so inner chunks are not where the index says
    )
    TORN_APPEND = "torn append"  # bytes follow the last whole index, but no index of them
    MISPLACED_INDEX = "misplaced index"  # the index is whole, and at the other end of the shard
    SHIFTED_DATA = "shifted data"  # inner chunks are some bytes before or behind the offsets of the index
    BAD_INDEX_CHECKSUM = "bad index checksum"
    OUT_OF_BOUNDS = "entry out of bounds"  # it reaches out of the object or into the index, or is half absent
    WRONG_SIZE = "wrong size"  # the codecs cannot make an inner chunk of this size
    BAD_INNER_CHECKSUM = "bad inner checksum"
    DECODE_ERROR = "decode error"
    PENDING_JOURNAL = "pending journal"  # of an update in place whose writer died
    FOREIGN_FILE = "foreign file"  # in the folder of an array, and not a shard of it
    UNREADABLE = "unreadable"  # the store or the file system raises an error
    MISSING_NAME = "missing name"  # the file has only a name of NFS, for open files that are replaced
    MISSING_SHARD = "missing shard"  # it is in the manifest, or in the other array, but not stored
    DIFFERENT = "different"  # from the other array, or from the object of the other hierarchy
    MISSING_OBJECT = "missing object"  # of no array, in the other hierarchy or the manifest, but not stored
    STALE_METADATA = "stale metadata"  # consolidated metadata that are not those of the nodes
    OVERLAP = "overlap"  # inner chunks share bytes, which is valid
    OUTSIDE_ARRAY = "outside the array"  # a bad entry of an inner chunk that no reader of the array needs
    # no entry names them, and the index has no checksum: an update left them, or their entries were damaged
    UNREFERENCED = "unreferenced inner chunks"
    UNSUPPORTED = "unsupported"  # codecs that the tools cannot run


# Kinds that are no damage: a shard with only these is whole.
WARNINGS = frozenset(
    {
        FindingKind.OVERLAP,
        FindingKind.OUTSIDE_ARRAY,
        FindingKind.UNREFERENCED,
        FindingKind.FOREIGN_FILE,
        FindingKind.UNSUPPORTED,
    }
)


@dataclass(frozen=True)
class Finding(Record):
    """One finding.

    Attributes
    ----------
    kind : FindingKind
    shard : str
        Path or key of the shard, or of the foreign file.
    detail : str
        What was expected and what was found.
    array : str
        Path of the array in the hierarchy.
    chunk : tuple of int or None
        Grid position of the inner chunk in its shard; None if the finding is about the whole shard.
    nested : tuple of tuple of int
        Inside this inner chunk, which is a shard itself: the inner chunk of each further level.
    offset, nbytes : int or None
        The bytes of the object that it is about.
    recoverable : bool or None
        True if `repair` restores what is damaged without a copy; False if it needs a copy. None: nothing to restore.
    """

    kind: FindingKind
    shard: str
    detail: str
    array: str = ""
    chunk: Ints | None = None
    nested: tuple[Ints, ...] = ()
    offset: int | None = None
    nbytes: int | None = None
    recoverable: bool | None = None

    def facts(self) -> Iterator[Fact]:
        """Yield the finding as one line of text.

        Yields
        ------
        name, text : str
        """
        place = self.shard
        if self.chunk is not None:
            place += f", inner chunk {self.chunk}" + "".join(f" > {one}" for one in self.nested)
        if self.offset is not None:
            place += f", {self.nbytes} bytes at offset {self.offset}"
        notes = {True: " (recoverable)", False: " (needs a copy)", None: ""}
        sign = "warning: " if self.is_warning else ""
        yield "", f"{sign}{self.kind.value}: {place}: {self.detail}{notes[self.recoverable]}"

    @property
    def is_warning(self) -> bool:
        """True if the shard is valid all the same."""
        return self.kind in WARNINGS


class FindingList:
    """Findings of one shard.

    Parameters
    ----------
    array, shard : str
        Names for the findings.
    """

    def __init__(self, array: str, shard: str) -> None:
        self._array = array
        self.shard = shard
        self._found: Capped[Finding] = Capped()
        self._n_errors = 0

    def add(
        self,
        kind: FindingKind,
        detail: str,
        offset: int | None = None,
        nbytes: int | None = None,
        **more: Any,
    ) -> None:
        """Add a finding; `more` has further fields of `Finding`."""
        is_warning = kind in WARNINGS
        self._n_errors += not is_warning
        if is_warning:
            more["recoverable"] = None
        self._found.add(Finding(kind, self.shard, detail, self._array, offset=offset, nbytes=nbytes, **more))

    def result(self) -> tuple[tuple[Finding, ...], int]:
        """Return the listed findings, and the number of all that are not warnings."""
        return tuple(self._found), self._n_errors
