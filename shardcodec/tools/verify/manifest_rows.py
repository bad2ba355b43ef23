# manifest_rows.py - rows of a manifest, and lines of a text with checksums
# SPDX-License-Identifier: MIT
"""`ManifestRow`: a verified shard in a manifest; the form of a line in a text with checksums."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

__all__ = [
    "ESCAPES",
    "FORMAT",
    "SUMS_SUFFIX",
    "VERSION",
    "ManifestRow",
    "key_of",
    "parsed_line",
    "path_of_shard",
]

# A manifest with this suffix is a text with checksums.
SUMS_SUFFIX = ".sha256"

FORMAT = "shardcodec manifest"
VERSION = 1


class ManifestRow(NamedTuple):
    """A verified shard.

    Attributes
    ----------
    array, shard : str
        Path of the array, and key of the shard in its folder.
    state : str or None
        Name of the state of the object, valid in all processes; None if the store does not name it.
    nbytes : int
        Size of the object in bytes.
    level : str
        How much was checked.
    n_findings : int
        Number of findings without warnings.
    sha256 : str or None
        Hash of the object; None if it was not asked for.
    """

    array: str
    shard: str
    state: str | None
    nbytes: int
    level: str
    n_findings: int
    sha256: str | None = None


def key_of(name: str) -> str | bytes:
    """Return a name as a row has it: names need not be UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


def path_of_shard(array: str, shard: str) -> str:
    """Return the path of a shard below the root of the hierarchy."""
    return f"{array}/{shard}" if array else shard


# The backslash is first: the others are escaped with it.
ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_SUM = re.compile(rb"(\\?)([0-9a-fA-F]{64}) [ *]([^\n]+)")


def parsed_line(line: bytes) -> tuple[str, str] | None:
    """Return name and hash of a line; None for another text."""
    match = _SUM.fullmatch(line)
    if match is None:
        return None
    name = os.fsdecode(match[3])
    if match[1]:
        originals = {text[1]: char for char, text in ESCAPES.items()}
        name = re.sub(r"\\(.)", lambda escape: originals.get(escape[1], escape[0]), name)
    while name.startswith("./"):  # as `find . -type f` names files
        name = name[2:].lstrip("/")
    return name, match[2].decode().lower()
