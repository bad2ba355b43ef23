# readable.py - results as names and texts: for `print`, and for notebooks
# SPDX-License-Identifier: MIT
"""`Readable`: an object whose ``print`` shows lines of text, and a notebook the same as a table. ``repr`` stays that of its class."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, TypeVar

__all__ = [
    "BINARY_UNITS",
    "Fact",
    "OpenArray",
    "OpenArrays",
    "Readable",
    "ReadableDict",
    "as_nbytes",
    "fact_lines",
    "facts_table",
    "format_count",
    "format_nbytes",
    "format_ranges",
    "format_share",
    "parse_nbytes",
]

BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_UNITS = {"": 1, "b": 1}
for _power, _unit in enumerate(BINARY_UNITS, 1):
    _UNITS[_unit.lower()] = _UNITS[_unit[0].lower()] = 1024**_power
    _UNITS[f"{_unit[0]}B".lower()] = 1000**_power

N = TypeVar("N", int, int | None)

# A name and its text; without a name, a line of text such as a heading.
Fact = tuple[str, str]


def format_nbytes(nbytes: float, digits: int = 3) -> str:
    """Return a number of bytes for readers, such as ``1.5 MiB``."""
    if nbytes < 1024:
        return f"{int(nbytes)} B"
    value = float(nbytes)
    for unit in BINARY_UNITS:
        value /= 1024
        if value < 1024 or unit == BINARY_UNITS[-1]:
            break
    return f"{value:.{digits if value < 1000 else max(digits, 4)}g} {unit}"


def parse_nbytes(text: str | int, name: str = "") -> int:
    """Return the number of bytes of a text such as ``512MiB``, ``4 GB`` or ``1.5G``. Errors begin with the name of the argument.

    ``KiB``, ``MiB``, ... and the letters alone are powers of 1024; ``kB``, ``MB``, ... are powers of 1000.

    Raises
    ------
    ValueError
        The text is not a positive size.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    factor = None if found is None else _UNITS.get(found[2].lower())
    nbytes = 0 if found is None or factor is None else int(float(found[1]) * factor)
    if nbytes <= 0:
        where = f"{name}: " if name else ""
        raise ValueError(f"{where}expected a size such as 512MiB or 4GB, got {text!r}")
    return nbytes


def as_nbytes(size: N | str, name: str) -> N | int:
    """Return a size as a number of bytes: a text as `parse_nbytes` takes it, or the number that was given."""
    return parse_nbytes(size, name) if isinstance(size, str) else size


def format_count(number: float, noun: str, spec: str = "") -> str:
    """Return a number of things, such as ``1 shard`` or ``2 shards``; `spec` is the format of the number."""
    shown = f"{number:{spec}}"
    return f"{shown} {noun}" if shown == "1" else f"{shown} {noun}s"


def format_share(part: float, whole: float) -> str:
    """Return a share as a percentage; ``-`` if the whole is 0."""
    return f"{100 * part / whole:.3g} %" if whole else "-"


def format_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as a text, such as ``3, 7-9``."""
    texts, first = [], 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            low, high = numbers[first], numbers[i - 1]
            texts.append(f"{low}" if low == high else f"{low}-{high}")
            first = i
    return ", ".join(texts)


def facts_table(title: str, rows: Iterable[tuple[str, str]], picture: str = "") -> str:
    """Return a table of names and values, with a picture beside it.

    Parameters
    ----------
    title : str
        Heading of the table; it and the rows are escaped.
    rows : iterable of (str, str)
        Names and values.
    picture : str
        HTML of a picture.

    Returns
    -------
    str
    """
    lines = [
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in rows
    ]
    table = f"<table><caption style='text-align:left'><b>{html.escape(title)}</b></caption>{''.join(lines)}</table>"
    return f"<div style='display:flex;gap:1.5em;align-items:flex-start'>{table}{picture}</div>"


def fact_lines(facts: Iterable[Fact]) -> Iterator[str]:
    """Yield facts as lines of text."""
    for name, text in facts:
        yield f"  {name:13} {text}" if name else text


class Readable:
    """The base of results and specs that people read; a class defines `facts`."""

    def facts(self) -> Iterator[Fact]:
        """Yield the lines of the text.

        Yields
        ------
        name : str
            Empty for a line of text, such as a heading.
        text : str
        """
        raise NotImplementedError

    def lines(self) -> Iterator[str]:
        """Return the lines that ``print`` shows.

        Returns
        -------
        iterator of str
        """
        return fact_lines(self.facts())

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows = [(name, text) if name else (text, "") for name, text in self.facts()]
        return facts_table(type(self).__name__, rows)


class ReadableDict(Readable, dict[str, Any]):
    """A dictionary with a text for `print` and a table for notebooks."""

    def facts(self) -> Iterator[Fact]:
        """Yield the entries; those of an inner dictionary below its name.

        Yields
        ------
        name, text : str
        """
        for key, value in self.items():
            name = key.replace("_", " ")
            if isinstance(value, dict) and value:
                yield "", name
                yield from ((str(inner), _shown(one)) for inner, one in value.items())
            elif not isinstance(value, dict):
                yield name, _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


class OpenArray(NamedTuple):
    """One array of this process.

    Attributes
    ----------
    name : str
        Its store and path.
    pipeline : str
        Class of its codec pipeline.
    is_native : bool
        True if shardcodec's native code reads and writes it.
    reason : str
        Why not; empty if it does.
    """

    name: str
    pipeline: str
    is_native: bool
    reason: str


class OpenArrays(tuple[OpenArray, ...]):
    """Arrays of this process; its `repr` is a table.

    Attributes
    ----------
    direct : str
        ``"on"`` if `enable` has replaced methods of `zarr.Array`, or ``"off"`` with the reason.
    """

    direct: str
    _is_refused: bool

    def __new__(cls, arrays: Iterable[OpenArray], direct: str, *, is_refused: bool = False) -> Self:
        self = super().__new__(cls, arrays)
        self.direct, self._is_refused = direct, is_refused
        return self

    def __repr__(self) -> str:
        if not self:
            return "no zarr array is open"
        width = max(len(array.pipeline) for array in self)
        lines = [
            f"{'native' if array.is_native else 'zarr':6}  {array.pipeline:{width}}  {array.name}"
            + (f"  ({array.reason})" if array.reason else "")
            for array in self
        ]
        return "\n".join(lines + ([f"direct: {self.direct}"] if self._is_refused else []))
