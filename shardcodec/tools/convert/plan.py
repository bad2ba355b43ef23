# plan.py - what a conversion will do, as plain data
# SPDX-License-Identifier: MIT
"""`ConvertPlan`: a conversion that is decided. It is JSON, so that other processes run parts of it.

`Unit` is the smallest piece of work: a group of shards of one array, named by its position.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

from ...errors import ConflictError, UnsupportedError
from ...options import Options
from ..consolidated import consolidated
from ..left_parts import LeftKind, LeftPart
from ..names import node_path
from ..new_hierarchy import NewHierarchy
from ..node_selection import is_match
from ..targets import ArrayTarget
from .choices import Choices, choices_of_arrays
from .destination import NewArray
from .grouping import Geometry, Grouping, encode_grouping, move_grouping
from .intermediate_shape import IntermediateShape, choose_intermediate
from .layout import NewLayout, kept_layout, new_layout
from .object_source import ObjectSource
from .source import Ints, SourceArray, SourceTree
from .zarr_source import ZarrSource

__all__ = [
    "VERIFY_LEVELS",
    "ConvertPlan",
    "PlannedArray",
    "Unit",
    "check_same_source",
    "default_memory",
    "make_plan",
]

VerifyLevel = Literal["none", "checksum", "compare"]
VERIFY_LEVELS: tuple[VerifyLevel, ...] = get_args(VerifyLevel)

# Bounds of the default memory, which is a quarter of that of the machine.
LEAST_MEMORY = 512 << 20
MAX_MEMORY = 8 << 30


class Unit(NamedTuple):
    """A group of shards: the number of the array in the plan, and the position of the group in the grid of groups."""

    array: int
    group: Ints


@dataclass(frozen=True)
class PlannedArray:
    """The conversion of one array.

    Attributes
    ----------
    name : str
        Path in the hierarchy.
    layout : NewLayout
    chunk_shape, shard_shape, grid : tuple of int
        Shapes of an inner chunk and of a shard, by axis of the array; number of shards along each axis.
    grouping : Grouping
        Its unit of work.
    via : IntermediateShape or None
        The intermediate array, if there is one.
    """

    name: str
    layout: NewLayout
    chunk_shape: Ints
    shard_shape: Ints
    grid: Ints
    grouping: Grouping
    via: IntermediateShape | None = None

    @property
    def groups(self) -> Ints:
        """Number of groups along each axis."""
        return tuple(-(-n // size) for n, size in zip(self.grid, self.grouping.shards, strict=True))

    @property
    def amplification(self) -> float:
        """Decoded bytes that are read, of an intermediate array too, divided by those of the array."""
        return self.grouping.amplification if self.via is None else self.via.amplification

    @property
    def n_shards(self) -> int:
        """Number of shards of the grid."""
        return math.prod(self.grid)

    def n_coords(self, group: Ints) -> int:
        """Return the number of shards of a group."""
        sizes = zip(group, self.grouping.shards, self.grid, strict=True)
        return math.prod(min(n, (g + 1) * k) - g * k for g, k, n in sizes)

    def coords(self, group: Ints) -> list[Ints]:
        """Return the shards of a group."""
        sizes = zip(group, self.grouping.shards, self.grid, strict=True)
        return list(itertools.product(*(range(g * k, min(n, (g + 1) * k)) for g, k, n in sizes)))

    def to_json(self) -> dict[str, Any]:
        """Return the array as JSON, without its ``zarr.json``, which is in the list of all nodes."""
        return {
            "name": self.name,
            "method": self.layout.method,
            "reason": self.layout.reason,
            "chunk_shape": self.chunk_shape,
            "shard_shape": self.shard_shape,
            "grid": self.grid,
            "shards": self.grouping.shards,
            "piece": self.grouping.piece,
            "need_nbytes": self.grouping.need_nbytes,
            "amplification": self.amplification,
            "via_chunk": None if self.via is None else self.via.chunk,
            "via_shard": None if self.via is None else self.via.shard,
            "kept": self.layout.kept,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], document: dict[str, Any]) -> PlannedArray:
        """Return the array from its JSON and its ``zarr.json``."""
        facts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }

        def taken(*names: str) -> list[Any]:
            return [facts.pop(name) for name in names]

        layout = NewLayout(document, *taken("method", "reason", "kept"))
        grouping = Grouping(*taken("shards", "piece", "need_nbytes", "amplification"))
        chunk, shard = taken("via_chunk", "via_shard")
        via = None if chunk is None else IntermediateShape(chunk, shard, grouping.amplification)
        return cls(layout=layout, grouping=grouping, via=via, **facts)


@dataclass(frozen=True)
class ConvertPlan:
    """A conversion that is decided.

    Attributes
    ----------
    source, destination : str
        Paths or URLs.
    arrays : tuple of PlannedArray
    documents : mapping
        The ``zarr.json`` of each new node, by path.
    verbatim : tuple of str
        Arrays that are copied object by object.
    memory, n_threads : int
        Bytes of memory, and threads, of one worker at most.
    verify : str
        One of `VERIFY_LEVELS`.
    fingerprint : str
        Identifies source, destination and options.
    others : str
        Which objects that belong to no array are copied, as for `open_source`.
    folders : tuple of str
        The nodes in whose folders these objects are, if not all are copied.
    left_out : tuple of LeftPart
        The arrays that are left out. The parts of the plan, and a run that goes on, do not look at them again.
    """

    source: str
    destination: str
    arrays: tuple[PlannedArray, ...]
    documents: Mapping[str, Any]
    verbatim: tuple[str, ...]
    memory: int
    n_threads: int
    verify: str
    fingerprint: str
    others: str = "none"
    folders: tuple[str, ...] = ()
    left_out: tuple[LeftPart, ...] = ()

    @property
    def n_units(self) -> int:
        """Number of units."""
        return sum(math.prod(array.groups) for array in self.arrays)

    @property
    def n_shards(self) -> int:
        """Number of shards of all grids."""
        return sum(array.n_shards for array in self.arrays)

    def units(self, first: int = 0, end: int | None = None) -> Iterator[Unit]:
        """Yield units [first, end) in the order of arrays and positions."""
        at = 0
        end = self.n_units if end is None else end
        for number, array in enumerate(self.arrays):
            n = math.prod(array.groups)
            for k in range(max(0, first - at), min(n, end - at)):
                yield Unit(number, _position(k, array.groups))
            at += n

    def units_of(self, number: int) -> Iterator[Unit]:
        """Yield the units of one array."""
        groups = self.arrays[number].groups
        for k in range(math.prod(groups)):
            yield Unit(number, _position(k, groups))

    def part(self, number: int, n_parts: int) -> Iterator[Unit]:
        """Yield the units of one of several parts."""
        n = self.n_units
        return self.units(number * n // n_parts, (number + 1) * n // n_parts)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**facts, **{name: [one.to_json() for one in facts[name]] for name in ("arrays", "left_out")}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConvertPlan:
        """Return the plan from its JSON; raise `ValueError` if a member is missing or unknown, or a name cannot be written."""
        try:
            for name in (*data["documents"], *data["verbatim"], *(array["name"] for array in data["arrays"])):
                node_path(name)
            documents = data["documents"]
            arrays = tuple(
                PlannedArray.from_json(array, documents[array["name"]]) for array in data["arrays"]
            )
            rest = {name: value for name, value in data.items() if name != "arrays"}
            texts = {name: tuple(data.get(name, ())) for name in ("verbatim", "folders")}
            left = tuple(LeftPart(**{**one, "kind": LeftKind.ARRAY}) for one in data.get("left_out", ()))
            return cls(**{**rest, **texts, "arrays": arrays, "left_out": left})
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected a plan of shardcodec convert: {error}") from error


def _position(number: int, grid: Ints) -> Ints:
    at = []
    for n in reversed(grid):
        number, rest = divmod(number, n)
        at.append(rest)
    return tuple(reversed(at))


def default_memory() -> int:
    """Return a quarter of the memory of the machine, within bounds."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        physical = 0
    return max(LEAST_MEMORY, min(MAX_MEMORY, physical // 4))


def make_plan(
    tree: SourceTree,
    destination: NewHierarchy,
    choices: Choices,
    options: Options,
    *,
    memory: int | None = None,
    verify: VerifyLevel = "none",
    n_workers: int = 1,
    may_use_intermediate: bool = False,
) -> ConvertPlan:
    """Decide everything about a conversion for a number of workers; nothing is written."""
    if verify not in VERIFY_LEVELS:
        raise ValueError(f"level: expected one of {VERIFY_LEVELS}, got {verify!r}")
    memory = default_memory() if memory is None else memory
    documents: dict[str, Any] = {}
    arrays = []
    of_arrays = choices_of_arrays(tree, choices)
    for source in tree.arrays:
        of_array, kept = of_arrays[source.name]
        if kept and of_array.has_shards:
            layout = kept_layout(source, kept)
        else:
            layout = replace(new_layout(source, of_array), kept=kept)
        documents[source.name] = layout.document
        new = NewArray(destination, source.name, layout.document, options)
        geometry = _geometry(source, new, verify, options.threads, n_workers)
        group = encode_grouping if layout.method == "encode" else move_grouping
        grouping = group(geometry, memory)
        via = None
        if may_use_intermediate and layout.method == "encode" and not kept:
            via = choose_intermediate(geometry, memory, grouping)
        if via is not None:
            grouping = encode_grouping(replace(geometry, source=via.chunk), memory)
        arrays.append(
            PlannedArray(source.name, layout, new.chunk_shape, new.chain.shape, new.grid, grouping, via)
        )
    _check_verbatim(tree, choices)
    for name, array in tree.verbatim.items():
        documents[name] = dict(array.document)
    _add_groups(tree, documents)
    for name in documents:
        node_path(name)
    return ConvertPlan(
        tree.place,
        destination.place,
        tuple(arrays),
        documents,
        tuple(tree.verbatim),
        memory,
        options.threads,
        verify,
        fingerprint(tree, destination, documents, verify),
        tree.scope,
        () if tree.others is None else tuple(tree.others.chosen or ()),
        tuple(tree.left_arrays),
    )


def _check_verbatim(tree: SourceTree, choices: Choices) -> None:
    """Raise `UnsupportedError` for arrays that keep their old layout, though the user wants another one."""
    for name, array in tree.verbatim.items():
        if _is_meant(array, choices):
            raise UnsupportedError(
                f"array {name or array.place}: expected chunks that can be moved or decoded for the new layout, got "
                f"{array.document.get('data_type')} ({array.problem or 'neither shardcodec nor zarr has its codecs'}). Choose other "
                "arrays with --only, or convert this one without a layout, which copies it as it is"
            )


def _is_meant(array: ArrayTarget, choices: Choices) -> bool:
    """Return True unless the choices are rules for other arrays only."""
    if replace(choices, rules=(), accesses=()) != Choices():
        return True
    axes = set(array.document.get("dimension_names") or ())
    return any(
        is_match(array.name, rule.arrays)
        and not (isinstance(rule.value, Mapping) and axes.isdisjoint(rule.value))
        for rule in choices.rules
    )


def _geometry(source: SourceArray, new: NewArray, verify: str, n_threads: int, n_workers: int) -> Geometry:
    return Geometry(
        source.shape,
        new.chain.shape,
        new.chunk_shape,
        source.chunks if isinstance(source, ZarrSource) else None,
        source.dtype.itemsize,
        n_copies=2 if isinstance(source, ObjectSource) else 1,
        extra_shards=1 if verify == "compare" else 0,
        n_threads=n_threads,
        n_workers=n_workers,
        held_nbytes=new.held_nbytes,
    )


def _add_groups(tree: SourceTree, documents: dict[str, Any]) -> None:
    """Add the documents of groups; those that were consolidated stay so."""
    if "" in documents:
        return
    groups = {"": {}, **tree.groups}
    for name in documents:
        parts = name.split("/")[:-1]
        for n in range(1, len(parts) + 1):
            groups.setdefault("/".join(parts[:n]), {})
    for name, attributes in groups.items():
        own = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
        documents[name] = {**own, **tree.members.get(name, {})}
    metadata = {name: consolidated(name, documents) for name in tree.consolidated}
    for name in tree.consolidated:
        documents[name]["consolidated_metadata"] = metadata[name]


def fingerprint(
    tree: SourceTree, destination: NewHierarchy, documents: Mapping[str, Any], verify: str
) -> str:
    """Return a hash of the identity of the source, its metadata, the new metadata and the options."""
    sources = []
    for array in tree.arrays:
        facts = [array.name, array.place, array.shape, str(array.dtype), str(array.fill_value), array.chunks]
        codecs = None if array.encoding is None else [codec.to_json() for codec in array.encoding.codecs]
        sources.append([*facts, codecs, array.attributes, array.dimension_names])
    place = destination.root.store.describe(destination.root.prefix.rstrip("/"))
    data = [1, tree.place, sources, sorted(tree.verbatim), tree.scope, place, documents, verify]
    text = json.dumps(data, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check_same_source(plan: ConvertPlan, tree: SourceTree, destination: NewHierarchy) -> None:
    """Raise `ConflictError` if the source is not the one for which the plan was made."""
    actual = fingerprint(tree, destination, plan.documents, plan.verify)
    if actual != plan.fingerprint:
        raise ConflictError(
            f"{plan.source}: expected the source of the plan (fingerprint {plan.fingerprint}), got another one ({actual}): its "
            "metadata, or the destination, have changed. Make a new plan with a new destination",
            expected=plan.fingerprint,
            actual=actual,
        )
