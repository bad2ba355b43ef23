# quantities.py - numbers of bytes, shares and counts as text
# SPDX-License-Identifier: MIT
"""Numbers of bytes as users write and read them."""

from __future__ import annotations

import re

from ..drawing.figures import BINARY_UNITS, format_nbytes

__all__ = ["format_count", "format_nbytes", "format_share", "parse_nbytes"]

_UNITS = {"": 1, "b": 1}
for _power, _unit in enumerate(BINARY_UNITS, 1):
    _UNITS[_unit.lower()] = _UNITS[_unit[0].lower()] = 1024**_power
    _UNITS[f"{_unit[0]}B".lower()] = 1000**_power


def parse_nbytes(text: str | int) -> int:
    """Return the number of bytes of a text such as ``512MiB``, ``4 GB`` or ``1.5G``.

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
        raise ValueError(f"expected a size such as 512MiB or 4GB, got {text!r}")
    return nbytes


def format_count(number: float, noun: str, spec: str = "") -> str:
    """Return a number of things, such as ``1 shard`` or ``2 shards``; `spec` is the format of the number."""
    shown = f"{number:{spec}}"
    return f"{shown} {noun}" if shown == "1" else f"{shown} {noun}s"


def format_share(part: float, whole: float) -> str:
    """Return a share as a percentage; ``-`` if the whole is 0."""
    return f"{100 * part / whole:.3g} %" if whole else "-"
