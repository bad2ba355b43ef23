# report.py - results of tools as JSON and as text
# SPDX-License-Identifier: MIT
"""`Report`: a result of a tool, which becomes JSON with the name and the version of its schema.

``docs/tools.md`` documents the schemas. A new member leaves the version as it is. A member that is removed, renamed or has
another meaning raises it.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from ..readable import Fact, Readable, format_nbytes
from .capped import Capped

__all__ = ["Record", "Report", "ReportOfShard", "to_json"]


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
        Its version; a class whose members have changed has a higher one.
    """

    schema: ClassVar[str]
    schema_version: ClassVar[int] = 1

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that `json.dumps` accepts, after name and version of the schema.

        Returns
        -------
        dict
        """
        return {"schema": self.schema, "schema_version": self.schema_version, **super().to_json()}


@dataclasses.dataclass(frozen=True)
class ReportOfShard(Report):
    """The base of the reports on one shard.

    Attributes
    ----------
    array : str
        Path of the array in the hierarchy.
    shard : str
        Path or key of the shard.
    """

    array: str
    shard: str


def _facts_of(name: str, value: Any) -> Iterator[Fact]:
    """Yield the facts of one field."""
    if name.endswith("nbytes") and isinstance(value, int):
        value = format_nbytes(value)
    name = name.removesuffix("_nbytes").removeprefix("n_").replace("_", " ")
    if isinstance(value, tuple | list) and value and all(isinstance(one, Record) for one in value):
        shown = Capped.of(value)
        yield name, str(shown.n)
        for one in shown:
            yield "", "; ".join(f"{part}: {text}" if part else text for part, text in one.facts())
        if shown.n_more:
            yield "", f"and {shown.n_more} more"
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
