# legacy_source.py - arrays of the 2022 format as sources
# SPDX-License-Identifier: MIT
"""Hierarchies of the sharding storage transformer of 2022, through the view that shows them as Zarr v3."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...access.box_reader import folder_at
from ...errors import UnsupportedError
from ...format.attributes import as_json_attributes
from ...format.metadata import KeyEncoding, key_encoding
from ...options import Options
from ...storage.kinds import is_url
from ...transformer.legacy_2022.convert import Source2022
from ...transformer.legacy_2022.open import legacy_store, open_2022
from ..documents import DOCUMENTS
from ..names import is_own_name, object_name
from ..other_objects import LeftObject, OtherObject, OtherObjects
from .decoded_source import decoded_source
from .source import SourceArray, SourceTree, group_notes
from .zarr_source import zarr_source

__all__ = ["legacy_hierarchy", "legacy_tree"]


def legacy_hierarchy(source: Any) -> tuple[Any, str] | None:
    """Return the root of a hierarchy of 2022 and the path in it; None for any other source."""
    if not isinstance(source, str | os.PathLike) or is_url(source):
        return None
    folder, rest = os.path.abspath(os.fspath(source)), ""
    while True:
        if os.path.isfile(document := os.path.join(folder, "zarr.json")):
            return (folder, rest) if _is_2022(document) else None
        folder, name = os.path.split(folder)
        if not name:
            return None
        rest = f"{name}/{rest}" if rest else name


def _is_2022(document: str) -> bool:
    try:
        with open(document, "rb") as file:
            found = json.load(file)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("zarr_format"), str)


def legacy_tree(root: Any, path: str, options: Options, wanted: Callable[[str], bool]) -> SourceTree:
    """Open an array or a group of the 2022 format; `wanted` says which arrays of a group.

    Raises
    ------
    FileNotFoundError
        There is no such array or group.
    SpecError, UnsupportedError
        The metadata are wrong, or need something that shardcodec does not implement.
    """
    source = Source2022(root, path)
    view, prefix = legacy_store(root, read_only=True)
    arrays: list[SourceArray] = []
    groups = {}
    notes: list[str] = []
    for node, is_array in source.nodes():
        if not is_array:
            groups[node], more = as_json_attributes(source.attributes(node))
            notes += group_notes(node, more)
            continue
        if not wanted(node):
            continue
        at = "/".join(filter(None, (path, node)))
        folder = folder_at(view, "/".join(filter(None, (prefix, at))))
        new = source.plan(node, True).document
        known = {
            "attributes": new.get("attributes") or {},
            "dimension_names": new.get("dimension_names"),
            "document": new,
        }
        try:
            document = folder.metadata()
            arrays.append(zarr_source(node, folder, document, key_encoding(document), options, **known))
        except UnsupportedError:  # zarr may have the codecs
            arrays.append(decoded_source(open_2022(root, at, mode="r"), node, folder, **known))
    others = _LegacyObjects(folder_at(root, ""), path=path.strip("/"), suffix=view.suffix, legacy=source)
    return SourceTree(f"{root}/{path}".rstrip("/"), tuple(arrays), groups, others=others, notes=tuple(notes))


@dataclass(frozen=True)
class _LegacyObjects(OtherObjects):
    """The objects that belong to no array. The 2022 format has chunks below ``data/root`` and metadata below ``meta/root``.

    Attributes
    ----------
    path : str
        Path of the node that is converted.
    suffix : str
        How the names of its metadata end.
    legacy : Source2022
    """

    path: str = ""
    suffix: str = ".json"
    legacy: Any = None

    def __iter__(self) -> Iterator[OtherObject | LeftObject]:
        chunks = {node: self.legacy.keys_of(node) for node, is_array in self.legacy.nodes() if is_array}
        for key in self.store.keys(self.root.prefix):
            name = self._name(key)
            if name is None or is_own_name(name) or not self._is_chosen(name):
                continue
            found = self._found_below(key, name, chunks)
            if found is not None:
                yield found

    def _found_below(
        self, key: str, name: str, chunks: Mapping[str, tuple[KeyEncoding, int]]
    ) -> OtherObject | LeftObject | None:
        node = next((one for one in chunks if not one or name.startswith(f"{one}/")), None)
        if node is not None:
            keys, ndim = chunks[node]
            relative = name.removeprefix(f"{node}/")
            if relative.startswith("c") and keys.coords(relative[1:], ndim) is not None:
                return None
            if KeyEncoding(True, "/").coords(relative, ndim) is not None or relative == "c":
                return LeftObject(name, "it has the name of a chunk of the new array")
        if name.rpartition("/")[2] in DOCUMENTS:
            return LeftObject(name, "it has the name of metadata of the new hierarchy")
        twin = f"data/root/{key.removeprefix('meta/root/')}"
        if (
            key.startswith("meta/root/")
            and self.store.path(twin)
            and os.path.lexists(self.store.path(twin) or "")
        ):
            return LeftObject(key, "an object of the same name is below data/root")
        return OtherObject(key, object_name(name))

    def _name(self, key: str) -> str | None:
        """Return the path below the new root; None for metadata, and for what is not below the node."""
        if key == "zarr.json" or key.endswith((f".array{self.suffix}", f".group{self.suffix}")):
            return None
        for top in ("data/root/", "meta/root/"):
            if key.startswith(top):
                below = f"{top}{self.path}/" if self.path else top
                return key.removeprefix(below) if key.startswith(below) else None
        return None if self.path else key

    def _is_chosen(self, name: str) -> bool:
        return self.chosen is None or any(not one or name.startswith(f"{one}/") for one in self.chosen)
