# related_nodes.py - nodes of a hierarchy that programs need together, and metadata that name them
# SPDX-License-Identifier: MIT
"""The nodes that a user chooses of a hierarchy (`Selection`), what programs need beside them, and group metadata that name other nodes.

The conventions are those of xarray and CF (coordinates, bounds, grid mappings), OME-Zarr 0.4 and 0.5 (levels, labels, plates, wells),
AnnData (elements of several arrays, the index of a data frame) and SpatialData; `webknossos.py` has that of webknossos.
"""

from __future__ import annotations

import fnmatch
import glob
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

from ..access.box_reader import Folder
from ..errors import SpecError
from ..format.attributes import DIMENSIONS
from ..format.metadata import encoded_document
from .documents import (
    Document,
    StoredDocuments,
    array_documents,
    document_of,
    is_group,
    parsed,
)

__all__ = [
    "ArrayFacts",
    "KnownNodes",
    "Nodes",
    "Selection",
    "ZarrNodes",
    "axes_of_levels",
    "group_notes",
    "groups_of",
    "is_below",
    "is_match",
    "mended",
    "mended_documents",
    "mended_notes",
    "with_needed",
    "with_ome_05",
]

Attributes = Mapping[str, Any]


# ---------------------------------------------------------------- the nodes of a hierarchy, looked up by path


class ArrayFacts(NamedTuple):
    """The names of the axes of an array, empty without names, and its attributes."""

    names: Sequence[str | None]
    attributes: Attributes


class Nodes(ABC):
    """The arrays and groups of a hierarchy, by path."""

    @abstractmethod
    def array(self, path: str) -> ArrayFacts | None:
        """Return the facts of an array; None if there is none at this path."""

    @abstractmethod
    def group(self, path: str) -> Attributes:
        """Return the attributes of a group; empty if there is none at this path."""

    @abstractmethod
    def arrays_below(self, path: str) -> Iterable[str]:
        """Return the paths of all arrays in a group."""


class KnownNodes(Nodes):
    """Nodes of a hierarchy that has been listed; the facts of an array are looked up when they are needed."""

    def __init__(
        self, arrays: Mapping[str, Callable[[], ArrayFacts]], groups: Mapping[str, Attributes]
    ) -> None:
        self._arrays, self._groups = arrays, groups

    def array(self, path: str) -> ArrayFacts | None:
        facts = self._arrays.get(path)
        return None if facts is None else facts()

    def group(self, path: str) -> Attributes:
        return self._groups.get(path, {})

    def arrays_below(self, path: str) -> Iterable[str]:
        return [name for name in self._arrays if is_below(name, path)]


class ZarrNodes(Nodes):
    """Nodes of a hierarchy of Zarr v2 or v3; each document is read when it is needed."""

    def __init__(self, root: Folder) -> None:
        self._root = root
        self._known: dict[str, tuple[Document | None, Attributes]] = {}

    def _folder(self, path: str) -> Folder:
        return replace(self._root, prefix=f"{self._root.prefix}{path}/") if path else self._root

    def _node(self, path: str) -> tuple[Document | None, Attributes]:
        if path not in self._known:
            try:
                self._known[path] = _read(self._folder(path))
            except (SpecError, OSError):  # the copy of this node itself raises the error
                self._known[path] = None, {}
        return self._known[path]

    def array(self, path: str) -> ArrayFacts | None:
        document, attributes = self._node(path)
        if document is None or is_group(document):
            return None
        names = document.get("dimension_names", attributes.get(DIMENSIONS))
        return ArrayFacts(names if isinstance(names, list) else (), attributes)

    def group(self, path: str) -> Attributes:
        document, attributes = self._node(path)
        return attributes if document is not None and is_group(document) else {}

    def arrays_below(self, path: str) -> Iterable[str]:
        document, _ = self._node(path)
        if document is None or not is_group(document):
            return ()
        start = path if self._root.store.supports_listing else ""  # only the root lists its nodes then
        start_document, _ = self._node(start)
        assert start_document is not None
        names = (name for name, _, _ in array_documents(self._folder(start), start_document, start))
        return [name for name in names if is_below(name, path)]


def _read(folder: Folder) -> tuple[Document | None, Attributes]:
    document = document_of(folder)
    if document is None:
        return None, {}
    given = document.get("attributes") if document.get("zarr_format") == 3 else folder.document(".zattrs")
    return document, given if isinstance(given, Mapping) else {}


def is_below(path: str, group: str) -> bool:
    """Return True for a node in a group, at any depth."""
    return not group or path.startswith(f"{group}/")


def _groups_above(path: str) -> Iterator[str]:
    """Yield the groups that a node is in, the innermost first."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _inside(group: str, name: str) -> str:
    """Return the path of a node that the metadata of a group name."""
    return posixpath.normpath(f"{group}/{name}").strip("/")


# ---------------------------------------------------------------- the nodes that a user chooses


@dataclass(frozen=True)
class Selection:
    """The nodes of a hierarchy that the user chooses.

    Attributes
    ----------
    only, exclude : tuple of str
        Patterns of paths; that of a group stands for all that is in it. Without `only` all nodes are chosen.
    exactly : bool
        Leave out what programs need beside the arrays of `only`.
    nodes : frozenset of str or None
        These nodes and no others, as a stored plan names them.
    """

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exactly: bool = False
    nodes: frozenset[str] | None = None

    @property
    def is_part(self) -> bool:
        """True if nodes may be left out."""
        return bool(self.only or self.exclude or self.nodes is not None)

    def matches(self, path: str) -> bool:
        """Return True for a node that the user names."""
        if self.nodes is not None:
            return path in self.nodes
        return (not self.only or _matches(path, self.only)) and not _matches(path, self.exclude)

    def names(self, path: str) -> bool:
        """Return True for a node that the user, or a stored plan, names by its path, and not by a pattern of several."""
        return self.nodes is not None or any(one in (path, glob.escape(path)) for one in self.only)

    def unknown(self, paths: Collection[str]) -> str | None:
        """Return the first pattern of `only` that fits no node; None if each fits one."""
        return next((one for one in self.only if not any(_matches(path, (one,)) for path in paths)), None)

    def arrays(self, names: Collection[str], nodes: Nodes) -> set[str]:
        """Return the arrays that are chosen, with those that programs need beside them."""
        chosen = set(filter(self.matches, names))
        if self.nodes is None and self.only and not self.exactly:
            needed = with_needed(chosen, nodes)
            chosen.update(name for name in names if name in needed and not _matches(name, self.exclude))
        return chosen

    def groups(self, groups: Iterable[str], chosen: Collection[str]) -> set[str]:
        """Return the groups that stay: those that are chosen themselves, and those that chosen arrays and groups are in."""
        if self.nodes is not None:
            return {path for path in groups if path in self.nodes}
        kept = set(filter(self.matches, groups))
        above = groups_of(chosen) | groups_of(kept)
        return {path for path in groups if not path or path in kept or path in above}


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Return True if a pattern fits a path, or a group that it is in."""
    paths = (path, *_groups_above(path)) if path else ()
    return any(is_match(each, pattern) for each in paths if each for pattern in patterns)


def is_match(path: str, pattern: str) -> bool:
    """Return True if a pattern fits a path; a path with brackets is also a pattern of itself."""
    return path == pattern or fnmatch.fnmatchcase(path, pattern)


def groups_of(paths: Iterable[str]) -> set[str]:
    """Return all groups that nodes are in."""
    return {group for path in paths for group in _groups_above(path)}


# ---------------------------------------------------------------- what programs need beside an array

# Attributes of CF with names of variables: those of xarray's `decode_coords="all"`, and further ones.
_NAMES_OF_CF = (
    "coordinates",
    "bounds",
    "climatology",
    "grid_mapping",
    "cell_measures",
    "ancillary_variables",
    "formula_terms",
    "geometry",
    "node_coordinates",
    "node_count",
    "part_node_count",
    "interior_ring",
    # meshes (UGRID)
    "mesh",
    "edge_coordinates",
    "face_coordinates",
    "face_node_connectivity",
    "edge_node_connectivity",
    "face_edge_connectivity",
    "face_face_connectivity",
    "edge_face_connectivity",
    "boundary_node_connectivity",
)
# Encodings of groups of AnnData that are read member by member. A group with any other one is read as a whole.
_MEMBERWISE = frozenset({"anndata", "raw", "dict", "dataframe", "MuData"})
# The data frames whose index names the axes.
_FRAMES = {"anndata": ("obs", "var"), "raw": ("var",), "MuData": ("obs", "var")}


def with_needed(names: Iterable[str], nodes: Nodes) -> set[str]:
    """Return arrays, and all others without which xarray or AnnData cannot read them, or not with their coordinates."""
    named = set(names)
    needed = set(named)
    groups: set[str] = set()
    fresh = set(named)
    while fresh:
        more = {other for path in fresh for other in _variables(path, nodes)}
        new_groups = groups_of(fresh) - groups
        more.update(other for group in new_groups for other in _members(group, nodes))
        groups |= new_groups
        if more <= needed:
            more = _coordinates_of_groups(named, nodes)
        fresh = more - needed
        needed |= fresh
    return needed


def _variables(path: str, nodes: Nodes) -> Iterator[str]:
    """Yield the arrays that the names of the axes and the attributes of an array mean."""
    facts = nodes.array(path)
    words = () if facts is None else (*filter(None, facts.names), *_words(facts.attributes))
    for word in dict.fromkeys(words):
        variable = _variable(word, path, nodes)
        if variable is not None:
            yield variable


def _words(attributes: Attributes) -> Iterator[str]:
    """Yield the names of variables in attributes, such as ``lat lon``, ``area: areacella`` or ``crs: x y``."""
    for name in _NAMES_OF_CF:
        given = attributes.get(name)
        for word in given.split() if isinstance(given, str) else ():
            if not word.endswith(":"):
                yield word
            elif name == "grid_mapping":  # the other attributes have a kind before the colon
                yield word.removesuffix(":")


def _variable(word: str, path: str, nodes: Nodes) -> str | None:
    """Return the array that a word of an array means: in its group, or in a group above."""
    for group in _groups_above(path):
        other = _inside("" if word.startswith("/") else group, word)
        if other and not other.startswith("..") and nodes.array(other) is not None:
            return other
    return None


def _members(group: str, nodes: Nodes) -> Iterator[str]:
    """Yield the arrays of a group that AnnData reads together with any of them."""
    attributes = nodes.group(group)
    kind = attributes.get("encoding-type")
    if not isinstance(kind, str):
        return
    if kind not in _MEMBERWISE:
        yield from nodes.arrays_below(group)
    frames = [group] if kind == "dataframe" else [_inside(group, name) for name in _FRAMES.get(kind, ())]
    for frame in frames:
        index = nodes.group(frame).get("_index")
        if isinstance(index, str):
            column = _inside(frame, index)
            yield from (column,) if nodes.array(column) is not None else nodes.arrays_below(column)


def _coordinates_of_groups(names: Iterable[str], nodes: Nodes) -> set[str]:
    """Return the coordinates that xarray names in the attributes of a group, as far as arrays there have their axes."""
    axes: dict[str, set[str | None]] = {}
    for path in names:
        facts = nodes.array(path)
        if facts is not None:
            axes.setdefault(path.rpartition("/")[0], set()).update(facts.names)
    coordinates = set()
    for group, own in axes.items():
        given = nodes.group(group).get("coordinates")
        for word in given.split() if isinstance(given, str) else ():
            facts = nodes.array(path := _inside(group, word))
            if facts is not None and own.issuperset(facts.names):
                coordinates.add(path)
    return coordinates


# ---------------------------------------------------------------- metadata of groups that name nodes

IsThere = Callable[[str], bool]


def axes_of_levels(groups: Mapping[str, Attributes]) -> dict[str, tuple[str | None, ...]]:
    """Return the names of the axes of the arrays that are levels of an image of OME-Zarr, by path."""
    axes = {}
    for group, attributes in groups.items():
        for scales in _multiscales(attributes):
            given = scales.get("axes")
            if not isinstance(given, list):
                continue
            names = [axis.get("name") if isinstance(axis, Mapping) else axis for axis in given]
            for level in _entries(scales, "datasets"):
                axes[_inside(group, level["path"])] = tuple(
                    name if isinstance(name, str) else None for name in names
                )
    return axes


def _multiscales(attributes: Attributes) -> Iterator[Attributes]:
    for place in (attributes.get("ome"), attributes):
        given = place.get("multiscales") if isinstance(place, Mapping) else None
        yield from (scales for scales in given or () if isinstance(scales, Mapping))


def _entries(place: Attributes, name: str) -> list[Attributes]:
    """Return the objects of a list that have a path."""
    given = place.get(name)
    return list(filter(_has_path, given)) if isinstance(given, list) else []


def _has_path(entry: Any) -> bool:
    return isinstance(entry, Mapping) and isinstance(entry.get("path"), str)


# Metadata of OME-Zarr, which 0.4 has among the other attributes of a group and 0.5 below ``ome``.
_OF_OME = frozenset(
    {"multiscales", "omero", "image-label", "labels", "plate", "well", "series", "bioformats2raw.layout"}
)


def with_ome_05(groups: Mapping[str, Attributes]) -> dict[str, dict[str, Any]]:
    """Return the attributes of groups whose metadata are those of OME-Zarr 0.4, as 0.5 has them: 0.4 is of Zarr v2 only.

    Groups of SpatialData stay, because it has versions of its own.
    """
    spatial = {path for path, attributes in groups.items() if "spatialdata_attrs" in attributes}
    old = {
        path: attributes
        for path, attributes in groups.items()
        if "ome" not in attributes and spatial.isdisjoint((path, *_groups_above(path)))
    }
    found = {path for path, attributes in old.items() if _is_ome_04(attributes)}
    layout = "bioformats2raw.layout"
    found |= {path for path in old if layout in old[path] and any(is_below(one, path) for one in found)}
    found |= {child for path in found for name in ("labels", "OME") if (child := _inside(path, name)) in old}
    return {path: _ome_05(old[path]) for path in found}


def _is_ome_04(attributes: Attributes) -> bool:
    """Return True for a group of an image, a plate or a well."""
    images = attributes.get("multiscales")
    parts = [*(images if isinstance(images, list) else ()), attributes.get("plate"), attributes.get("well")]
    versions = [part.get("version") for part in parts if isinstance(part, Mapping)]
    return bool(versions) and set(versions) == {"0.4"}


def _ome_05(attributes: Attributes) -> dict[str, Any]:
    ome = {name: _without_version(value) for name, value in attributes.items() if name in _OF_OME}
    others = {name: value for name, value in attributes.items() if name not in _OF_OME}
    return {"ome": {"version": "0.5", **ome}, **others}


def _without_version(value: Any) -> Any:
    """Return metadata without the version, which 0.5 has once in a group."""
    if isinstance(value, list):
        return list(map(_without_version, value))
    if isinstance(value, Mapping):
        return {name: one for name, one in value.items() if name != "version"}
    return value


def mended(group: str, attributes: Attributes, is_there: IsThere) -> dict[str, Any]:
    """Return the attributes of a group, in which only nodes are named that are there: levels, labels, wells, images, columns."""
    is_spatial = "spatialdata_attrs" in attributes
    new = _mended_image(group, attributes, is_there, is_spatial=is_spatial)
    if isinstance(ome := new.get("ome"), Mapping):
        new["ome"] = _mended_image(group, ome, is_there, is_spatial=is_spatial)
    columns = new.get("column-order")
    if new.get("encoding-type") == "dataframe" and isinstance(columns, list):
        new["column-order"] = [name for name in columns if is_there(_inside(group, str(name)))]
    return new


def _mended_image(
    group: str, attributes: Attributes, is_there: IsThere, *, is_spatial: bool
) -> dict[str, Any]:
    """Return metadata of OME-Zarr, in 0.4 all attributes of a group, in 0.5 those below ``ome``."""
    new = dict(attributes)

    def present(place: Attributes, name: str) -> list[Any]:
        return [
            entry for entry in place[name] if not _has_path(entry) or is_there(_inside(group, entry["path"]))
        ]

    def with_levels(scales: Any) -> Any:
        if not isinstance(scales, Mapping) or not isinstance(scales.get("datasets"), list):
            return scales
        levels = present(scales, "datasets")
        return (_rebased if is_spatial and levels else _with)(scales, levels)

    if isinstance(new.get("multiscales"), list):
        scales = list(map(with_levels, new["multiscales"]))
        new["multiscales"] = [
            entry for entry in scales if not isinstance(entry, Mapping) or entry.get("datasets") != []
        ]
        if not new["multiscales"]:  # `omero` says how its channels are shown
            new = {name: value for name, value in new.items() if name not in ("multiscales", "omero")}
    for name, entries in (("plate", "wells"), ("well", "images")):
        if isinstance(new.get(name), Mapping) and isinstance(new[name].get(entries), list):
            new[name] = {**new[name], entries: present(new[name], entries)}
    folder = group.rpartition("/")[2]
    for name, place in (("labels", group), ("tables", group), ("series", posixpath.dirname(group))):
        is_list = isinstance(new.get(name), list)
        if is_list and folder == ("OME" if name == "series" else name):
            new[name] = [each for each in new[name] if is_there(_inside(place, str(each)))]
    return new


def _with(scales: Attributes, levels: list[Any]) -> Attributes:
    return {**scales, "datasets": levels}


def _rebased(scales: Attributes, levels: list[Any]) -> Attributes:
    """Return the metadata of an image of SpatialData with fewer levels.

    SpatialData transforms elements of the first level, whatever scale this level has. So the scale of a new first level goes
    into the transformations of the image; that of each level is then relative to it.
    """
    old, new = (_scale(level) for level in (scales["datasets"][0], levels[0]))
    if (
        old == new
        or len(old) != len(new)
        or 0 in (*old, *new)
        or not isinstance(scales.get(_TRANSFORMATIONS), list)
    ):
        return _with(scales, levels)
    ratio = [n / o for n, o in zip(new, old, strict=True)]
    return {
        **scales,
        "datasets": [{**level, _TRANSFORMATIONS: _relative(level, ratio)} for level in levels],
        _TRANSFORMATIONS: [_behind_scale(ratio, each) for each in _transformations(scales)],
    }


_TRANSFORMATIONS = "coordinateTransformations"


def _scale(level: Any) -> list[float]:
    """Return the scale of a level; empty if it has none."""
    scales = (each.get("scale") for each in _transformations(level) if each.get("type") == "scale")
    return list(next(filter(_is_numbers, scales), []))


def _transformations(place: Any) -> list[Attributes]:
    given = place.get(_TRANSFORMATIONS) if isinstance(place, Mapping) else None
    return [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []


def _is_numbers(value: Any) -> TypeGuard[list[float]]:
    return isinstance(value, list) and all(isinstance(n, int | float) for n in value)


def _relative(level: Attributes, ratio: list[float]) -> list[Attributes]:
    """Return the transformations of a level; scale and translation are divided by `ratio`."""
    return [
        {
            name: [n / r for n, r in zip(value, ratio, strict=True)]
            if name in ("scale", "translation") and _is_numbers(value) and len(value) == len(ratio)
            else value
            for name, value in each.items()
        }
        for each in _transformations(level)
    ]


def _behind_scale(ratio: list[float], transformation: Attributes) -> Attributes:
    """Return a transformation that begins with a scale."""
    kind, scale = transformation.get("type"), transformation.get("scale")
    ends = {name: value for name, value in transformation.items() if name in ("input", "output")}
    if kind == "identity":
        return {"type": "scale", "scale": ratio, **ends}
    if kind == "scale" and _is_numbers(scale) and len(scale) == len(ratio):
        return {**transformation, "scale": [n * r for n, r in zip(scale, ratio, strict=True)]}
    first = {"type": "scale", "scale": ratio}
    if "input" in ends:
        first |= {"input": ends["input"], "output": ends["input"]}
    return {"type": "sequence", "transformations": [first, transformation], **ends}


def group_notes(name: str, notes: Sequence[str]) -> list[str]:
    """Return sentences that name their group."""
    return [f"group {name or '/'}: {note}" for note in notes]


def mended_notes(path: str, old: Attributes, new: Attributes) -> list[str]:
    """Return the note about attributes of a group that name fewer nodes than before; none if there are none."""
    changed = sorted(name for name in old if new.get(name) != old[name])
    return group_notes(path, [f"{', '.join(changed)}: only what the copy has is named"] if changed else ())


def mended_documents(
    nodes: Mapping[str, StoredDocuments],
) -> tuple[dict[str, dict[str, bytes]], list[str]]:
    """Return the documents of nodes, by path and name, those of groups naming only these nodes; and notes about the changes."""
    notes: list[str] = []
    return {path: _mended_node(path, documents, nodes, notes) for path, documents in nodes.items()}, notes


def _mended_node(
    path: str, documents: StoredDocuments, nodes: Mapping[str, StoredDocuments], notes: list[str]
) -> dict[str, bytes]:
    new = dict(documents)
    own = parsed(documents.get("zarr.json"))
    if own is not None and is_group(own) and isinstance(own.get("attributes"), dict):
        attributes = mended(path, own["attributes"], nodes.__contains__)
        if attributes != own["attributes"]:
            new["zarr.json"] = encoded_document({**own, "attributes": attributes})
            notes += mended_notes(path, own["attributes"], attributes)
    own = parsed(documents.get(".zattrs"))
    if own is not None and ".zgroup" in documents:
        attributes = mended(path, own, nodes.__contains__)
        if attributes != own:
            new[".zattrs"] = encoded_document(attributes)
            notes += mended_notes(path, own, attributes)
    return new
