# format_2022.py - hierarchies of the 2022 format as sources, and copies of their shards
# SPDX-License-Identifier: MIT
"""Hierarchies of the 2022 format: sources of `convert`, and `convert_2022`, which copies shard by shard.

An encoded inner chunk has the same bytes in the 2022 format and in Zarr v3. So `convert_2022` copies each shard: its inner chunks in
the order of their offsets, without the gaps between them, and a new index.

Source: requirement ST-18.
"""

from __future__ import annotations

import functools
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...access.box_reader import folder_at
from ...access.inner_chunks import coordinates
from ...access.placement import ABSENT
from ...access.shard import Shard
from ...access.shard_object import shard_object
from ...arguments import checked
from ...compat import Store, StorePath, on_zarrs_loop
from ...errors import ShardError, ShardFormatError, UnsupportedError, as_os_error
from ...format.attributes import as_json_attributes
from ...format.metadata import KeyEncoding, encoded_document, json_object, key_encoding
from ...format.spec import ShardSpec
from ...option_sources import current_options
from ...options import Durability, Options, check
from ...readable import format_count
from ...storage.kinds import is_url, object_at
from ...storage.store import LeftFolder
from ...transformer.legacy_2022.open import legacy_store, open_2022, open_converted
from ..documents import DOCUMENTS, is_2022, is_own_name, node_path, object_name
from ..job_mark import has_claim
from ..left_parts import LeftKind, LeftPart, group_notes
from ..memory import MemoryBudget, MemoryShare
from ..monitor import Monitor
from ..new_hierarchy import NewHierarchy, check_apart
from ..node_selection import Selection
from ..nodes import ArrayFacts, KnownNodes
from ..other_objects import ObjectCounts, OtherObject, OtherObjects, count_objects, left_folder
from ..rewrite import copy_chunks, stored_runs
from ..shard_threads import in_order
from .decoded_source import decoded_source
from .source import SourceArray, SourceTree
from .zarr_source import zarr_source

__all__ = ["Source2022", "convert_2022", "legacy_hierarchy", "legacy_tree"]


# ---------------------------------------------------------------- a hierarchy of the 2022 format


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
                found = on_zarrs_loop(_collected(self._view.base.list_dir(folder)))
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


async def _collected(keys: Any) -> list[str]:
    return [key async for key in keys]


# ---------------------------------------------------------------- its arrays as sources, through the view that shows them as Zarr v3


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
            hierarchy = json.load(file)
    except (ValueError, RecursionError, OSError):  # the source of the newer formats says what is wrong
        return False
    return isinstance(hierarchy, dict) and is_2022(hierarchy)


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
    return SourceTree(
        place, tuple(arrays), groups, others=source.others(), left=tuple(left), unchosen=unchosen
    )


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


# ---------------------------------------------------------------- `convert_2022`: a new hierarchy, shard by shard

Progress = Callable[[int, int], Any]

# Objects that a warning names.
MAX_NAMES = 20

# Bytes of encoded inner chunks that each thread holds at a time.
PIECE_NBYTES = 16 << 20

# From this number of shards on, one listing replaces a request for each shard that may be absent.
LISTING_SHARDS = 4096


@checked
def convert_2022(
    src: Any,
    dst: Any,
    *,
    path: str = "",
    dst_path: str | None = None,
    index_checksum: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
    durability: Durability | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Convert an array, or all arrays of a group, from the 2022 format to Zarr v3; no inner chunk is decoded.

    Parameters
    ----------
    src : path-like, zarr store, StorePath, Array or Group
        The source, a hierarchy of the 2022 format.
    dst : path-like, URL, zarr store or StorePath
        The destination, a hierarchy of Zarr v3, which need not exist.
    path : str
        Path of the array or group in the source.
    dst_path : str, optional
        Its path in the destination; the same as `path` by default.
    index_checksum : bool
        Add a crc32c to the index of each shard, which the 2022 format does not have.
    overwrite : bool
        First remove an array at the destination, or what an earlier conversion of the same source has written, also an interrupted
        one. Without it nothing may be there but an empty folder.
    progress : callable, optional
        Called with the number of objects that are copied and the number of all objects of the array, without others.
    threads : int, optional
        Number of shards that are copied at a time.
    durability : {"rename", "fsync"}, optional
        Durability of each file, as in `shardcodec.options`.
    storage_options : mapping, optional
        Only if `dst` is a URL; as for `shardcodec.tools.convert`.

    Returns
    -------
    zarr.Array or zarr.Group
        The converted array or group, opened.

    Raises
    ------
    SpecError, UnsupportedError
        The metadata is wrong, or Zarr v3 cannot express it; nothing was written.
    FileExistsError
        There is something at the destination; with `overwrite`, something else. Or it is in an array or a hierarchy of the 2022 format.
    FileNotFoundError
        The source has no such array or group.
    TypeError, ValueError
        An argument is wrong; source and destination are inside each other.
    ShardFormatError, ChecksumError
        The index of a shard is damaged, or an uncompressed inner chunk has an impossible size. The
        destination has no metadata of this array.

    Notes
    -----
    Objects that belong to no array are copied as they are. A `RuntimeWarning` names those that cannot be copied, before anything is
    written. Bytes of shards to which no index entry refers (replaced inner chunks,
    headers, footers) are not copied. Memory is bounded by `threads` times 16 MiB or the largest inner chunk, and by whole objects for
    a destination that takes only those.

    Each converted shard is consistent. The array is consistent only if no other writer changes the source during the conversion.

    Examples
    --------
    >>> transformer.convert_2022("old.zr3", "new.zarr", path="volume")  # doctest: +SKIP
    """
    options = current_options(argument=check({"threads": threads, "durability": durability}))
    source = Source2022(src, path)
    new_path = (path.replace("\\", "/") if dst_path is None else dst_path).strip("/")
    new = NewHierarchy(dst, storage_options, path=new_path)
    check_apart(source.base, new.store_path)
    if overwrite:
        new.check_around()
    else:
        new.check_free("after an interrupted conversion repeat it with overwrite=True")
    nodes = list(source.nodes())
    for part in source.left.values():
        raise OSError(f"group {part.name!r}: {part.reason}")
    plans = {node: source.plan(node, index_checksum) for node, is_array in nodes if is_array}
    documents = {
        node: plans[node].document if is_array else _group(source.attributes(node))
        for node, is_array in nodes
    }
    for node in documents:
        node_path(node)
    others, monitor = source.others(), Monitor()
    _warn_of(count_objects(others, monitor, options.threads))
    if overwrite:
        _make_room(new, documents, others)
    budget = MemoryBudget(None)
    for node, plan in plans.items():
        _copy_array(plan, new, node, options, progress)
    new.copy_others(others, budget, options, monitor, may_replace=False)
    stored = {node: {"zarr.json": encoded_document(document)} for node, document in documents.items()}
    new.write_documents(stored, may_replace=False)
    return open_converted(new.store_path)


def _group(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def _warn_of(counts: ObjectCounts) -> None:
    """Warn of the objects that are left out."""
    if not counts.n_left:
        return
    names = "; ".join(f"{left.name}: {left.reason}" for left in counts.left[:MAX_NAMES])
    more = f"; {counts.n_left - MAX_NAMES} more" if counts.n_left > MAX_NAMES else ""
    warnings.warn(
        f"{format_count(counts.n_left, 'object')} that convert_2022 does not copy: {names}{more}",
        RuntimeWarning,
        stacklevel=4,
    )


def _make_room(new: NewHierarchy, documents: Mapping[str, Mapping[str, Any]], others: OtherObjects) -> None:
    """Remove what an earlier conversion of the same nodes has written, metadata first.

    Nothing is removed, and `FileExistsError` raised, if there is anything else, a link to another folder, or the mark of a job.
    """
    has_claim(new, "")
    if (link := new.linked_folder()) is not None:
        raise FileExistsError(
            f"{link}: expected a folder of the destination, but it is a symbolic link to another one"
        )
    paths = {node: f"{node}/" if node else "" for node in documents}
    existing = []
    for node in documents:
        if (stored := new.get(f"{paths[node]}zarr.json")) is None:
            continue
        if json_object(stored, f"{paths[node]}zarr.json").get("node_type") != documents[node]["node_type"]:
            raise FileExistsError(f"{new.place}: expected no other node, but it has {paths[node]}zarr.json")
        existing.append(node)
    if existing and not new.can_clear:
        raise UnsupportedError(
            f"{new.place}: {paths[existing[0]]}zarr.json exists already, and overwrite=True needs a store that can list and delete"
        )
    arrays = [node for node in documents if documents[node]["node_type"] == "array"]
    known = {other.name for other in others if isinstance(other, OtherObject)}
    known.update(f"{paths[node]}zarr.json" for node in documents)
    whole = tuple(paths[node] for node in existing if node in arrays)
    chunks = tuple(f"{paths[node]}c{separator}" for node in arrays for separator in "/.")
    names = list(new.names())
    for name in names:
        is_chunk = name.startswith((*whole, *chunks)) or any(name == f"{paths[node]}c" for node in arrays)
        if not is_chunk and name not in known and not is_own_name(name):
            raise FileExistsError(
                f"{new.place}: {name!r} exists already; overwrite=True removes only arrays and what an interrupted conversion leaves"
            )
    new.clear(sorted(names, key=lambda name: (name.rpartition("/")[2] != "zarr.json", name)))


def _copy_array(
    plan: LegacyPlan, new: NewHierarchy, node: str, options: Options, progress: Progress | None
) -> None:
    """Copy all objects of an array, several at a time. After the first error no other copy is started, and it is raised."""
    keys = key_encoding(plan.document)

    def copy(where: tuple[int, ...]) -> None:
        name = keys.key(where)
        _copy(plan, plan.keys(where), new, f"{node}/{name}" if node else name, options)

    coords = _existing(plan)
    with closing(in_order(coords, copy, options.threads, Monitor())) as copies:
        for done, _ in enumerate(copies, 1):
            if progress is not None:
                progress(done, len(coords))


def _copy(plan: LegacyPlan, key: str, new: NewHierarchy, name: str, options: Options) -> None:
    if plan.source is None or plan.destination is None:
        store, stored_key, _ = object_at(plan.store, key)
        durable = options.durability == "fsync"
        new.copy(store, stored_key, name, MemoryBudget(None), durable=durable, may_replace=False)
        return
    with Shard(shard_object(plan.store, key), plan.source) as shard:
        if not shard.exists:
            return
        shard.check()
        places = shard.index.reshape(-1, 2)
        present = [i for i in places[:, 0].argsort(kind="stable").tolist() if places[i, 0] != ABSENT]
        _check_sizes(plan, shard, present)
        if present:
            share = MemoryShare(1, PIECE_NBYTES)
            runs = stored_runs(shard.read_range, places, present, shard.grid_shape, shard.key, share)
            with new.writer(name, plan.destination, durability=options.durability) as writer:
                copy_chunks(writer, runs)


def _check_sizes(plan: LegacyPlan, shard: Shard, present: list[int]) -> None:
    """Raise `ShardFormatError` for an uncompressed inner chunk of another size than that of its elements."""
    sizes = shard.index.reshape(-1, 2)[:, 1].tolist()
    expected = plan.fixed_nbytes
    for i in present:
        if expected is not None and sizes[i] != expected:
            at = coordinates(i, shard.grid_shape)
            raise ShardFormatError(
                f"shard {shard.key!r}: inner chunk {at}: expected {expected} bytes, got {sizes[i]}",
                shard=shard.key,
                chunk_coords=at,
                expected=expected,
                actual=sizes[i],
            )


def _existing(plan: LegacyPlan) -> list[tuple[int, ...]]:
    """Return the grid positions of objects that may exist: those in a listing for large arrays, otherwise all."""
    n = math.prod(plan.grid_shape)
    if n < LISTING_SHARDS or not plan.store.supports_listing:
        return [coordinates(i, plan.grid_shape) for i in range(n)]
    present = set(on_zarrs_loop(_collected(plan.store.list_prefix(plan.prefix))))
    return [where for where in map(_position_of(plan), sorted(present)) if where is not None]


def _position_of(plan: LegacyPlan) -> Callable[[str], tuple[int, ...] | None]:
    """Return a function from keys to positions in the grid; it returns None for a key that is not a chunk."""

    def position(key: str) -> tuple[int, ...] | None:
        numbers = "".join(c if c.isdecimal() else " " for c in key.removeprefix(plan.prefix)).split()
        where = tuple(int(number) for number in numbers if len(number) < 20)
        if len(where) != len(plan.grid_shape) or any(
            a >= b for a, b in zip(where, plan.grid_shape, strict=True)
        ):
            return None
        return where if plan.keys(where) == key else None

    return position
