# findings.py - what a check of stored data can find
# SPDX-License-Identifier: MIT
"""`Finding`: one damage of a shard, or another remark about it. `FindingKind` lists them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .report import Record

__all__ = ["MOST_FINDINGS", "WARNINGS", "Finding", "FindingKind"]

Ints = tuple[int, ...]

# Findings of one shard that are listed; the others are counted.
MOST_FINDINGS = 1000


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
    MISSING_SHARD = "missing shard"  # it is in the manifest, or in the other array, but not stored
    DIFFERENT = "different"  # from the other array, or from the object of the other hierarchy
    MISSING_OBJECT = "missing object"  # of no array, in the other hierarchy, but not stored
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

    @property
    def is_warning(self) -> bool:
        """True if the shard is valid all the same."""
        return self.kind in WARNINGS
