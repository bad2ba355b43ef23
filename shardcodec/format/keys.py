# keys.py - names of chunks in a store
# SPDX-License-Identifier: MIT
"""Chunk key encodings ``default`` and ``v2``.

Source: Zarr v3 core specification 3.1, "Chunk key encoding".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .checks import as_mapping, check_keys, parse_named, show, unsupported, within, wrong

__all__ = ["KeyEncoding"]


@dataclass(frozen=True)
class KeyEncoding:
    """How the grid position of a chunk becomes its key.

    ``default``: ``c/1/2``, with "/" or "." between; ``v2``: ``1.2``, or ``1/2``. A chunk of rank 0 is ``c``, and ``0``.
    """

    is_default: bool
    separator: str

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> KeyEncoding:
        """Read it from a whole ``zarr.json``.

        Raises
        ------
        SpecError, UnsupportedError
        """
        with within("chunk_key_encoding"):
            name, configuration = parse_named(as_mapping(metadata, "").get("chunk_key_encoding"))
            if name not in ("default", "v2"):
                unsupported("", f"chunk key encoding {show(name)} is not one that shardcodec implements")
            with within("configuration"):
                check_keys(configuration, "", optional=("separator",))
                separator = configuration.get("separator", "/" if name == "default" else ".")
                if separator not in ("/", "."):
                    wrong("separator", f'expected "/" or ".", got {show(separator)}', actual=separator)
        return cls(name == "default", separator)

    @property
    def prefix(self) -> str:
        """What every key of rank 1 and more begins with."""
        return f"c{self.separator}" if self.is_default else ""

    def key(self, coords: tuple[int, ...]) -> str:
        """Return the key of the chunk at a grid position."""
        if not coords:
            return "c" if self.is_default else "0"
        return self.prefix + self.separator.join(map(str, coords))
