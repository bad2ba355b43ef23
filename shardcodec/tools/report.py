# report.py - results of tools as JSON and as text: reports, findings, quantities
# SPDX-License-Identifier: MIT
"""Results of tools as JSON and as text: reports, findings, quantities.

`Report`: a result of a tool, which becomes JSON with the name and the version of its schema.

``docs/tools.md`` documents the schemas. A new member leaves the version as it is. A member that is removed, renamed or has
another meaning raises it.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..readable import Fact, Readable, format_nbytes, parse_nbytes
from .targets import ArrayTarget

__all__ = [
    "MAX_FINDINGS",
    "WARNINGS",
    "Fact",
    "Finding",
    "FindingKind",
    "FindingList",
    "LeftArray",
    "Record",
    "Report",
    "format_count",
    "format_nbytes",
    "format_share",
    "parse_nbytes",
    "to_json",
]


class Record(Readable):
    """A part of a result: a frozen dataclass whose fields become the members of a JSON object.

    Sizes are numbers of bytes, and their names end with ``nbytes``. ``print(record)`` shows a text, and a notebook a table.
    """

    def facts(self) -> Iterator[Fact]:
        """Yield what the record says as names and texts; a text without a name is a line, such as a heading.

        Yields
        ------
        name, text : str
        """
        yield "", type(self).__name__
        for one in dataclasses.fields(self):  # type: ignore[arg-type]
            yield from _facts_of(one.name, getattr(self, one.name))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that `json.dumps` accepts.

        Returns
        -------
        dict
        """
        return {one.name: to_json(getattr(self, one.name)) for one in dataclasses.fields(self)}  # type: ignore[arg-type]


class Report(Record):
    """A whole result.

    Attributes
    ----------
    schema : str
        Name of the schema, such as ``"shardcodec.inspect"``.
    schema_version : int
        Its version.
    """

    schema: ClassVar[str]
    schema_version: ClassVar[int]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that `json.dumps` accepts, after name and version of the schema.

        Returns
        -------
        dict
        """
        return {"schema": self.schema, "schema_version": self.schema_version, **super().to_json()}


# Parts of a record that its text shows.
_MAX_SHOWN = 20


def _facts_of(name: str, value: Any) -> Iterator[Fact]:
    """Yield the facts of one field."""
    if name.endswith("nbytes") and isinstance(value, int):
        value = format_nbytes(value)
    name = name.removesuffix("_nbytes").removeprefix("n_").replace("_", " ")
    if isinstance(value, tuple | list) and value and all(isinstance(one, Record) for one in value):
        yield name, str(len(value))
        for one in value[:_MAX_SHOWN]:
            yield "", "; ".join(f"{part}: {text}" if part else text for part, text in one.facts())
        if len(value) > _MAX_SHOWN:
            yield "", f"and {len(value) - _MAX_SHOWN} more"
    elif isinstance(value, Record):
        yield name, "; ".join(f"{part}: {text}" for part, text in value.facts() if part)
    elif value is not None and value != () and value != {}:
        yield name, value.value if isinstance(value, enum.Enum) else str(value)


def to_json(value: Any) -> Any:
    """Return a value as JSON has it: tuples and arrays as lists, slices as start and stop, numbers of numpy as plain ones.

    NaN and infinity become None.
    """
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): to_json(one) for key, one in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, np.ndarray | np.generic):
        return to_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, slice):
        return [to_json(value.start), to_json(value.stop)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    return [to_json(one) for one in value]


# ---------------------------------------------------------------- shares and counts as text


def format_count(number: float, noun: str, spec: str = "") -> str:
    """Return a number of things, such as ``1 shard`` or ``2 shards``; `spec` is the format of the number."""
    shown = f"{number:{spec}}"
    return f"{shown} {noun}" if shown == "1" else f"{shown} {noun}s"


def format_share(part: float, whole: float) -> str:
    """Return a share as a percentage; ``-`` if the whole is 0."""
    return f"{100 * part / whole:.3g} %" if whole else "-"


# ---------------------------------------------------------------- what a check of stored data can find
#
# `Finding`: one damage of a shard, or another remark about it. `FindingKind` lists them.

Ints = tuple[int, ...]

# Findings of one shard that are listed; the others are counted.
MAX_FINDINGS = 1000


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


# ---------------------------------------------------------------- an array whose shards a tool does not change
#
# `LeftArray`: an array that `repair` and `compact` leave as it is, and why.


@dataclass(frozen=True)
class LeftArray(Record):
    """An array without shards that the tool can read.

    Attributes
    ----------
    name : str
        Path of the array in the hierarchy; empty for its root.
    problem : str
        Why it was left.
    is_unreadable : bool
        Its metadata are malformed, so no program can read the array: a finding, as in `verify`.
    """

    name: str
    problem: str
    is_unreadable: bool

    @classmethod
    def of(cls, array: ArrayTarget) -> LeftArray:
        """Return the record of an array."""
        return cls(array.name, array.problem or "it is not sharded", array.is_malformed)

    def text(self, target: str, to: str | None) -> str:
        """Return a line of text; `target` names the array at its root, and the new hierarchy `to` has a copy."""
        done = "skipped" if to is None else "copied as it is"
        return f"{self.name or target}: {'unreadable, ' if self.is_unreadable else ''}{done}: {self.problem}"


# ---------------------------------------------------------------- the findings of one shard while it is checked
#
# `FindingList` collects findings of one shard, and counts those that are too many to list.


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
        self._listed: list[Finding] = []
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
        if len(self._listed) < MAX_FINDINGS:
            if is_warning:
                more["recoverable"] = None
            self._listed.append(
                Finding(kind, self.shard, detail, self._array, offset=offset, nbytes=nbytes, **more)
            )

    def result(self) -> tuple[tuple[Finding, ...], int]:
        """Return the listed findings, and the number of all that are not warnings."""
        return tuple(self._listed), self._n_errors
