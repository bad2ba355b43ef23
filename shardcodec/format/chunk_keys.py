# chunk_keys.py - keys of the chunks of an array
# SPDX-License-Identifier: MIT
"""`KeyEncoding`: the key that the chunk at some coordinates has in the store of its array, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .checks import (
    as_mapping,
    check_keys,
    parse_named,
    show,
    unsupported,
    within,
    wrong,
)

__all__ = ["KeyEncoding", "is_v2", "key_encoding"]


@dataclass(frozen=True)
class KeyEncoding:
    """A chunk key encoding: the rule that maps the grid position of a chunk to its key.

    ``default`` gives ``c/1/2`` or ``c.1.2``; ``v2`` gives ``1.2`` or ``1/2``. The key of a chunk of rank 0 is ``c`` or
    ``0``, respectively.
    """

    is_default: bool
    separator: str

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> KeyEncoding:
        """Read the encoding from a whole ``zarr.json``.

        Raises
        ------
        SpecError
            The encoding is missing or invalid.
        UnsupportedError
            shardcodec does not implement the encoding.
        """
        with within("chunk_key_encoding"):
            name, configuration = parse_named(as_mapping(metadata, "").get("chunk_key_encoding"))
            if name not in ("default", "v2"):
                unsupported("", f"expected chunk key encoding default or v2, got {show(name)}")
            with within("configuration"):
                check_keys(configuration, "", optional=("separator",))
                separator = configuration.get("separator", "/" if name == "default" else ".")
                if separator not in ("/", "."):
                    wrong("separator", f'expected "/" or ".", got {show(separator)}', actual=separator)
        return cls(name == "default", separator)

    @property
    def prefix(self) -> str:
        """The common prefix of all keys of rank 1 and more."""
        return f"c{self.separator}" if self.is_default else ""

    def key(self, coords: tuple[int, ...]) -> str:
        """Return the key of the chunk at a grid position."""
        if not coords:
            return "c" if self.is_default else "0"
        separator = self.separator
        numbers = separator.join(map(str, coords))
        return f"c{separator}{numbers}" if self.is_default else numbers

    def coords(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the grid position of a key; None for a key that is not one of a chunk with `ndim` axes."""
        numbers = key.split(self.separator)
        if ndim == 0:
            return () if key == self.key(()) else None
        if self.is_default:
            if numbers[0] != "c":
                return None
            numbers = numbers[1:]
        if len(numbers) != ndim or not all(number.isascii() and number.isdecimal() for number in numbers):
            return None
        coords = tuple(map(int, numbers))
        return coords if self.key(coords) == key else None  # no leading zeros


def key_encoding(document: Mapping[str, Any]) -> KeyEncoding:
    """Return the chunk key encoding of a ``zarr.json`` or a ``.zarray``.

    Raises
    ------
    SpecError
        The encoding is missing or invalid.
    UnsupportedError
        shardcodec does not implement the encoding.
    """
    if not is_v2(document):
        return KeyEncoding.from_metadata(document)
    separator = document.get("dimension_separator", ".")
    if separator not in (".", "/"):
        wrong("dimension_separator", f'expected "/" or ".", got {show(separator)}', actual=separator)
    return KeyEncoding(is_default=False, separator=separator)


def is_v2(document: object) -> bool:
    """Return True for a ``.zarray``."""
    return isinstance(document, Mapping) and document.get("zarr_format") == 2
