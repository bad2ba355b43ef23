# source_2022.py - hierarchies of the 2022 format as sources
# SPDX-License-Identifier: MIT
"""Hierarchies of the 2022 format as sources of `convert`, through the view that shows their arrays as those of Zarr v3."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...access.box_reader import folder_at
from ...compat import Store, StorePath, on_zarrs_loop
from ...errors import ShardError, UnsupportedError, as_os_error
from ...format.attributes import as_json_attributes
from ...format.chunk_keys import KeyEncoding, key_encoding
from ...format.spec import ShardSpec
from ...options import Options
from ...storage.store import LeftFolder
from ...transformer.legacy_2022.open import legacy_store, open_2022
from ..documents import DOCUMENTS
from ..left_parts import LeftKind, LeftPart, group_notes
from ..names import object_name
from ..node_selection import Selection
from ..nodes import ArrayFacts, KnownNodes
from ..other_objects import OtherObject, OtherObjects, left_folder
from .decoded_source import decoded_source
from .source import SourceArray, SourceTree
from .zarr_source import zarr_source

__all__ = ["LegacyPlan", "Source2022", "collected", "legacy_tree"]


@dataclass(frozen=True)
class LegacyPlan:
    """A plan to copy one array: the metadata of the copy, and the shards of source and destination, None for an array without shards.

    The specs treat inner chunks as bytes; `fixed_nbytes` is the size of each, None if it varies.
    """

    store: Any
    document: Mapping[str, Any]
    keys: Callable[[tuple[int, ...]], str]
    grid_shape: tuple[int, ...]
    source: ShardSpec | None
    destination: ShardSpec | None
    fixed_nbytes: int | None
    prefix: str


def _outer_shard(document: Mapping[str, Any]) -> ShardSpec:
    """Return a spec that treats the inner chunks of the outermost shards as bytes of any size, so that none is decoded."""
    sharding = document["codecs"][0]["configuration"]
    shard_shape = document["chunk_grid"]["configuration"]["chunk_shape"]
    grid = [a // b for a, b in zip(shard_shape, sharding["chunk_shape"], strict=True)]
    return ShardSpec(grid, [1] * len(grid), "uint8", 0, ["bytes", "gzip"], sharding["index_codecs"])


def _grid(shape: tuple[int, ...], chunk: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-extent // step) for extent, step in zip(shape, chunk, strict=True))


class Source2022:
    """A hierarchy of the 2022 format."""

    def __init__(self, src: Any, path: str) -> None:
        self._view, self._path = legacy_store(src, path, read_only=not isinstance(src, Store | StorePath))
        self.left: dict[str, LeftPart] = {}  # nodes that cannot be read

    @property
    def base(self) -> Any:
        """The zarr store whose root is the hierarchy."""
        return self._view.base

    def others(self) -> OtherObjects:
        """Return the objects that belong to no array."""
        root = folder_at(self._view.base, "")
        return _LegacyObjects(root, path=self._path, suffix=self._view.suffix, legacy=self)

    def _at(self, node: str) -> str:
        return "/".join(filter(None, (self._path, node)))

    def nodes(self) -> Iterator[tuple[str, bool]]:
        """Yield each array and group as (path below the source, True for an array); parses the metadata of all arrays."""
        if self._view.array_at(self._path):
            yield "", True
            return
        if on_zarrs_loop(self._view.group(self._path)) is None:
            raise FileNotFoundError(
                f"path: expected an array or a group in {self._view}, found neither at {self._path!r}"
            )
        yield from self._below("")

    def _below(self, node: str) -> Iterator[tuple[str, bool]]:
        yield node, False
        for name in self._names(node):
            child = f"{node}/{name}".lstrip("/")
            try:
                is_array = bool(self._view.array_at(self._at(child)))
                is_group = not is_array and on_zarrs_loop(self._view.group(self._at(child))) is not None
            except (ShardError, OSError) as error:
                reason = f"its metadata cannot be read: {error}"
                self.left[child] = LeftPart(LeftKind.ARRAY, child, reason, is_unreadable=True)
                continue
            if is_array:
                yield child, True
            elif is_group:
                yield from self._below(child)

    def _names(self, node: str) -> list[str]:
        """Return the names of the nodes in a group; a folder that cannot be listed is noted in `left`."""
        folder = f"meta/root/{self._at(node)}".rstrip("/")
        try:
            with as_os_error(str, folder):
                found = on_zarrs_loop(collected(self._view.base.list_dir(folder)))
        except OSError as error:
            reason = f"its folder cannot be listed: {error}"
            self.left[node] = LeftPart(LeftKind.GROUP, node, reason, is_unreadable=True)
            return []
        ends = [f".{kind}{self._view.suffix}" for kind in ("array", "group")]
        return sorted({functools.reduce(str.removesuffix, ends, name).rstrip("/") for name in found})

    def attributes(self, node: str) -> Mapping[str, Any]:
        """Return the attributes of a group; empty if it has none."""
        return on_zarrs_loop(self._view.group(self._at(node))) or {}

    def keys_of(self, node: str) -> tuple[KeyEncoding, int]:
        """Return the encoding of the keys of the chunks of an array behind the letter "c", and its number of axes."""
        array = self._view.array_at(self._at(node))
        if array is None:
            raise FileNotFoundError(
                f"path: expected an array in {self._view}, found none at {self._at(node)!r}"
            )
        return KeyEncoding(False, array.separator), len(array.shape)

    def plan(self, node: str, index_checksum: bool) -> LegacyPlan:
        """Describe the conversion of an array."""
        path = self._at(node)
        array = self._view.array_at(path)
        if array is None:
            raise FileNotFoundError(f"path: expected an array in {self._view}, found none at {path!r}")
        document = self._view.document_in_v3(path, array, index_checksum=index_checksum)
        old = new = None
        if array.is_sharded:
            old = _outer_shard(self._view.document_in_v3(path, array, index_checksum=False))
            new = _outer_shard(document)
        folder, separator = self._view.chunk_folder(path), array.separator

        def key(coords: tuple[int, ...]) -> str:
            return f"{folder}c" + separator.join(map(str, coords or (0,)))

        fixed = None
        if array.compressor is None and not array.filters and len(array.stack) == 1:
            fixed = math.prod(array.chunk_shape) * array.dtype.itemsize
        grid = _grid(array.shape, array.shard_shape)
        return LegacyPlan(self._view.base, document, key, grid, old, new, fixed, folder)


async def collected(keys: Any) -> list[str]:
    """Return the keys of an asynchronous listing."""
    return [key async for key in keys]


def legacy_tree(root: Any, path: str, options: Options, selection: Selection) -> SourceTree:
    """Open an array or a group of the 2022 format, with the chosen arrays."""
    source = Source2022(root, path)
    view, prefix = legacy_store(root, read_only=True)
    arrays: list[SourceArray] = []
    groups: dict[str, dict[str, Any]] = {}
    left: list[LeftPart] = []
    facts: dict[str, Callable[[], ArrayFacts]] = {}
    for node, is_array in source.nodes():
        if is_array:
            facts[node] = partial(_facts, source, node)
            continue
        groups[node], more = as_json_attributes(source.attributes(node))
        left += LeftPart.notes(node, group_notes(node, more))
    left += source.left.values()
    chosen = selection.arrays(facts, KnownNodes(facts, groups))
    for node in (node for node in facts if not node or node in chosen):
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
    place = f"{root}/{path}".rstrip("/")
    unchosen = tuple(node for node in facts if node not in chosen)
    tree = SourceTree(place, tuple(arrays), groups, left=tuple(left), unchosen=unchosen)
    return replace(tree, others=source.others(), whole=root)


def _facts(source: Source2022, node: str) -> ArrayFacts:
    document = source.plan(node, True).document
    return ArrayFacts(document.get("dimension_names") or (), document.get("attributes") or {})


@dataclass(frozen=True)
class _LegacyObjects(OtherObjects):
    """The objects that belong to no array. The 2022 format has chunks below ``data/root`` and metadata below ``meta/root``.

    `path` is that of the node that is converted, `suffix` the end of the names of its metadata.
    """

    path: str = ""
    suffix: str = ".json"
    legacy: Any = None

    def __iter__(self) -> Iterator[OtherObject | LeftPart]:
        if not self.store.supports_listing:
            yield LeftPart.object(repr(self.root), "the store cannot list its objects")
            return
        chunks = {node: self.legacy.keys_of(node) for node, is_array in self.legacy.nodes() if is_array}
        not_entered: list[LeftFolder] = []
        for key in self.store.keys(self.root.prefix, left=not_entered):
            name = self._name(key)
            if (
                name is None
                or self.is_no_object(key, name)
                or not self._is_chosen(name)
                or self.is_left(name)
            ):
                continue
            entry = self._below(key, name, chunks)
            if entry is not None:
                yield entry
        yield from (
            left_folder(f"{folder.key}/".removeprefix(self.root.prefix), folder) for folder in not_entered
        )

    def _below(
        self, key: str, name: str, chunks: Mapping[str, tuple[KeyEncoding, int]]
    ) -> OtherObject | LeftPart | None:
        node = next((path for path in chunks if not path or name.startswith(f"{path}/")), None)
        if node is not None:
            keys, ndim = chunks[node]
            relative = name.removeprefix(f"{node}/")
            if relative.startswith("c") and keys.coords(relative[1:], ndim) is not None:
                return None
            if KeyEncoding(True, "/").coords(relative, ndim) is not None or relative == "c":
                return LeftPart.object(name, "it has the name of a chunk of the new array")
        if name.rpartition("/")[2] in DOCUMENTS:
            return LeftPart.object(name, "it has the name of metadata of the new hierarchy")
        twin = f"data/root/{key.removeprefix('meta/root/')}"
        if (
            key.startswith("meta/root/")
            and self.store.path(twin)
            and os.path.lexists(self.store.path(twin) or "")
        ):
            return LeftPart.object(key, "an object of the same name is below data/root")
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
        return self.chosen is None or any(not path or name.startswith(f"{path}/") for path in self.chosen)
