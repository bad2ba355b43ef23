# open_source.py - from what the user names to the arrays that are converted
# SPDX-License-Identifier: MIT
"""`open_source` finds out which kind of source a path or an object is. Each kind has a module of its own."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import NoneType
from typing import Any, NoReturn

from ...access.box_reader import Folder
from ...arguments import show
from ...compat import StorePath
from ...errors import ShardError, SpecError, UnsupportedError
from ...format.array_document import attributes_of
from ...format.attributes import DIMENSIONS, as_json_attributes
from ...format.chunk_keys import KeyEncoding, key_encoding
from ...format.zarray_members import has_text
from ...options import Options
from ...storage.kinds import is_zarr_store
from ...storage.url_stores import is_url
from ..capped import Capped
from ..consolidated import notes_on_spare
from ..conventions.all_conventions import mended, mended_notes
from ..conventions.ome_zarr import axes_of_levels, with_ome_05
from ..documents import document_of, further_members, is_2022
from ..foreign_chunks import opened_by_zarr
from ..hierarchy import Hierarchy
from ..left_parts import LeftKind, LeftPart, group_notes
from ..node_selection import Selection, outermost
from ..nodes import KnownNodes, ZarrNodes
from ..other_objects import OtherObjects, written_documents
from ..targets import ArrayTarget
from .decoded_source import decoded_source
from .hdf5_source import hdf5_tree, split_hdf5
from .layout import codec_names
from .object_source import array_attributes, instead_of, is_array_like, object_source
from .source import SourceArray, SourceTree
from .source_2022 import legacy_tree
from .text_source import TEXT, TextSource, string_source_fields
from .zarr_source import zarr_source

__all__ = [
    "open_hierarchy",
    "open_source",
]


# All nodes of a hierarchy.
_ALL = Selection()


def open_source(
    source: Any,
    options: Options,
    *,
    selection: Selection = _ALL,
    others: str | None = None,
    folders: Collection[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fail_fast: bool = False,
) -> SourceTree:
    """Open what is to be converted; the sources and the errors are those of `convert`.

    `others` says which objects that belong to no array are copied too: "all", those in the folders of "chosen" nodes, or "none"; by default
    all, or with patterns of arrays those of chosen nodes. `folders` are these folders, of a stored plan. With `fail_fast` a
    node whose metadata are malformed is an error; otherwise it is left out, unless the user has named it.
    """
    try:
        tree = open_hierarchy(source, options, selection, storage_options)
    except FileNotFoundError as error:
        if not _is_tiff(source):
            raise
        raise FileNotFoundError(
            f"{source}: expected a Zarr or HDF5 file, got a TIFF, which tifffile opens as Zarr. In Python: "
            f"tools.convert(tifffile.imread({str(source)!r}, aszarr=True), destination)"
        ) from error
    if isinstance(tree, Hierarchy):  # an array that was asked for by its name is not left out
        tree = _zarr_tree(source, tree, options, selection, fail_fast=fail_fast)
    if others is None:
        others = "none" if selection.only_arrays else "chosen" if selection.only else "all"
    if others == "none":
        tree = replace(tree, others=None)
    if not selection.is_part and not tree.left_arrays:
        return tree
    names = {*tree.verbatim, *(source_array.name for source_array in tree.arrays)}
    arrays = {*names, *tree.unchosen, *(left.name for left in tree.left_arrays)}
    kept = selection.groups(tree.groups, names) if selection.is_part else set(tree.groups)
    if folders is None:
        groups = () if selection.nodes is not None else filter(selection.matches, filter(None, kept))
        folders = outermost({*names, *groups})
    if unknown := selection.unknown({*arrays, *tree.groups}):
        raise FileNotFoundError(
            f"{tree.place}: expected an array or a group that matches {unknown!r}, but there is none; there are {_listed(arrays)}"
        )
    is_all_left = tree.left_arrays and not names
    if is_all_left and (selection.only or (selection.exclude and not folders)):
        raise UnsupportedError(f"{tree.place}: {_reasons(tree.left_arrays)}; choose other arrays with --only")
    if not names and not folders and (selection.only or selection.exclude):
        but = f" and not {list(selection.exclude)}" if selection.exclude else ""
        raise FileNotFoundError(
            f"{tree.place}: expected an array that matches {list(selection.only) or '*'}{but}, but there is none"
        )
    left = frozenset({*tree.unchosen, *tree.groups} - kept - names)
    tree = _with_groups(tree, kept, names)
    if tree.others is None:
        return tree
    part = replace(
        tree.others, left=left, chosen=folders if others == "chosen" else None, nodes={*kept, *names}
    )
    return replace(tree, others=part)


def _with_groups(tree: SourceTree, kept: Collection[str], names: Collection[str]) -> SourceTree:
    """Return a tree with some of its groups, whose attributes name only nodes that the new hierarchy gets."""
    groups, left = {}, list(tree.left)
    for path in (path for path in tree.groups if path in kept):
        given = tree.groups[path]
        groups[path] = mended(path, given, lambda node: node in kept or node in names)
        left += LeftPart.notes(path, mended_notes(path, given, groups[path]))
    return replace(
        tree,
        groups=groups,
        consolidated=[path for path in tree.consolidated if path in kept],
        left=tuple(left),
    )


def _listed(names: Collection[str]) -> str:
    """Return the first names of arrays, for a message."""
    return Capped.of(sorted(names)).text(end=", and ") or "no arrays"


def _reasons(left: Sequence[LeftPart]) -> str:
    """Return the first arrays that are left out and why, for a message."""
    return Capped.of(f"{one.name}: {one.reason}" for one in left).text("; ", end="; and ")


def open_hierarchy(
    source: Any, options: Options, selection: Selection, storage_options: Mapping[str, Any] | None
) -> SourceTree | Hierarchy:
    """Open an HDF5 file, a hierarchy of 2022 or an array-like object, or find one of Zarr v2 or v3. The errors are those of `open_source`."""
    is_path = isinstance(source, str | os.PathLike) and not is_url(source)
    if is_path and (inside := split_hdf5(os.path.abspath(os.fspath(source)))) is not None:
        return hdf5_tree(*inside, selection)
    if not isinstance(source, str | os.PathLike | StorePath) and not is_zarr_store(source):
        if not is_array_like(source):
            raise TypeError(
                "source: expected a path, a URL, a zarr store or an object with shape, dtype and __getitem__, got "
                f"{instead_of(source)}"
            )
        values = object_source(source)
        return SourceTree(values.place, (values,))
    with _named(str(source)):
        hierarchy = Hierarchy(source, storage_options)
    if not is_2022(hierarchy.document):
        return hierarchy
    root = hierarchy.folder.store.path(hierarchy.folder.prefix)
    if not is_path or root is None:
        raise UnsupportedError(
            f"{source}: expected a hierarchy of Zarr v2 or v3, got one of the 2022 format: give the path of its folder on a "
            "local disk, or use convert_2022, which takes stores"
        )
    return legacy_tree(root.rstrip("/"), hierarchy.rest, options, selection)


# ---- zarr


def _zarr_tree(
    source: Any,
    hierarchy: Hierarchy,
    options: Options,
    selection: Selection,
    *,
    fail_fast: bool,
) -> SourceTree:
    with _named(str(source)):
        targets = selection.known(hierarchy)
        if targets and targets[0].only is not None:
            raise ValueError(f"{source}: expected a group or an array, got one shard of {targets[0].place}")
    root = hierarchy.folder
    nodes = ZarrNodes(root) if hierarchy.is_group else KnownNodes({}, {})
    chosen = selection.arrays([target.name for target in targets], nodes)
    arrays: list[SourceArray] = []
    verbatim: dict[str, ArrayTarget] = {}
    left: list[LeftPart] = []
    for target in targets:
        if target.name and target.name not in chosen:
            continue
        opened = _opened_or_left(target, options, must_open=fail_fast or selection.names(target.name))
        if isinstance(opened, LeftPart):
            left.append(opened)
        elif isinstance(opened, ArrayTarget):
            verbatim[target.name] = opened
        else:
            arrays.append(opened)
    documents = {target.name: written_documents(target.document) for target in targets}
    if not hierarchy.is_group:
        others = _others(targets[0].folder, targets, documents, verbatim)
        folder = targets[0].folder
        lost = notes_on_spare(folder.spare, repr(folder))
        return SourceTree(str(source), tuple(arrays), verbatim=verbatim, others=others, left=(*left, *lost))
    groups = {}
    members: dict[str, dict[str, Any]] = {}
    old_groups: set[str] = set()
    consolidated: list[str] = []
    for name, folder, group in hierarchy.groups():
        documents[name] = written_documents(group)
        attributes = _attributes_of_group(name, folder, group, None if fail_fast else left)
        if group.get("zarr_format") != 3:
            attributes, more = as_json_attributes(attributes)
            left += LeftPart.notes(name, group_notes(name, [*more, *_notes_on_members(group)]))
            old_groups.add(name)
        else:
            members[name] = further_members(group)
        groups[name] = attributes
        if _is_consolidated(folder, group, None if fail_fast else left, name):
            consolidated.append(name)
    arrays = _with_ome_05(arrays, groups, old_groups, left)
    not_converted = [one.name for one in left if one.kind in (LeftKind.ARRAY, LeftKind.GROUP)]
    others = _others(root, targets, documents, [*verbatim, *not_converted])  # copied as arrays, or left out
    others = replace(others, unconverted=frozenset(not_converted))
    return SourceTree(
        repr(root),
        tuple(arrays),
        groups,
        consolidated,
        verbatim,
        others,
        left=(*left, *notes_on_spare(root.spare, repr(root))),
        unchosen=tuple(target.name for target in targets if target.name not in chosen),
        members=members,
    )


def _opened_or_left(
    target: ArrayTarget, options: Options, *, must_open: bool
) -> SourceArray | ArrayTarget | LeftPart:
    """Return the source for an array, as `_open`, or why the new hierarchy does not have it; the source itself is not left out."""
    is_named = not target.name or must_open
    if target.is_group or (target.is_refused and not is_named):
        return _left(target)
    try:
        return _open(target, options)
    except (SpecError, UnsupportedError, OSError) as error:
        if is_named:
            raise
        is_unreadable = not isinstance(error, UnsupportedError)
        return LeftPart(LeftKind.ARRAY, target.name, str(error), is_unreadable)


def _left(target: ArrayTarget) -> LeftPart:
    """Return the part for a node whose metadata cannot be read."""
    kind = LeftKind.GROUP if target.is_group else LeftKind.ARRAY
    return LeftPart(kind, target.name, target.problem or "its metadata cannot be read", is_unreadable=True)


def _attributes_of_group(
    name: str, folder: Folder, document: Mapping[str, Any], left: list[LeftPart] | None
) -> dict[str, Any]:
    """Return the attributes of a group; none, with a note in `left` if it is given, if they cannot be read."""
    try:
        with _named(f"group {folder!r}"):
            return _attributes(folder, document)
    except (SpecError, OSError) as error:
        if left is None:
            raise
        reason = f"the new group has no attributes: {error}"
        left.append(LeftPart(LeftKind.GROUP, name, reason, is_unreadable=True))
        return {}


def _notes_on_members(document: Mapping[str, Any]) -> list[str]:
    """Return the sentence on members of a document of Zarr v2 that Zarr v3 has no place for."""
    names = ", ".join(sorted(further_members(document)))
    return [f"the new metadata do not have {names}, which Zarr v2 does not define"] if names else []


def _is_tiff(source: Any) -> bool:
    """Return True for the path of a TIFF, which is known by its first bytes, and for a URL that ends as that of a TIFF."""
    if is_url(source):
        return str(source).lower().endswith((".tif", ".tiff"))
    if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
        return False
    with open(source, "rb") as file:
        return file.read(4) in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def _with_ome_05(
    arrays: list[SourceArray], groups: dict[str, dict[str, Any]], of_v2: Collection[str], left: list[LeftPart]
) -> list[SourceArray]:
    """Replace metadata of OME-Zarr 0.4 in groups of Zarr v2, and return the arrays: its levels have the names of their axes in 0.5."""
    new = with_ome_05({name: groups[name] for name in of_v2})
    groups.update(new)
    if new:
        left += LeftPart.notes("", ["the metadata of OME-Zarr 0.4, which needs Zarr v2, became those of 0.5"])
    axes = {path: names for path, names in axes_of_levels(new).items() if None not in names}
    return [
        replace(array, dimension_names=list(axes[array.name]))
        if array.dimension_names is None and len(axes.get(array.name, ())) == len(array.shape) > 0
        else array
        for array in arrays
    ]


def _others(
    root: Folder,
    arrays: Sequence[ArrayTarget],
    documents: Mapping[str, Collection[str]],
    whole: Collection[str],
) -> OtherObjects:
    # new arrays have the default keys
    return OtherObjects(
        root,
        {target.name: target for target in arrays},
        documents,
        whole=frozenset(whole),
        new_keys=KeyEncoding(True, "/"),
    )


@contextmanager
def _named(node: str) -> Iterator[None]:
    """Add the name of a node to errors of its metadata."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{node}: {error.message}", **error.context) from error


def _open(array: ArrayTarget, options: Options) -> SourceArray | ArrayTarget:
    """Return the source for an array; an array whose objects can only be copied, with the reason as its problem."""
    with _named(f"array {array.place}"):
        if array.is_malformed:
            raise SpecError(array.problem or "the metadata are invalid")
        opened = _opened(array, options)
    if isinstance(opened, ArrayTarget):
        return opened
    opened = replace(opened, codec_names=_codec_names(array.document), notes=_grid_notes(array))
    if array.document.get("zarr_format") == 3:
        return opened
    of_members = _notes_on_members(array.document)
    dtype, fill = opened.dtype, None if array.document.get("fill_value") is None else opened.fill_value
    if has_text(array.document):
        given = array.document.get("fill_value")
        dtype, fill = TEXT, given if isinstance(given, str) else None  # a number, such as 0, masks no text
    has_names = opened.dimension_names is not None
    known = array_attributes(opened.attributes, dtype, has_names=has_names, fill=fill)
    return replace(opened, **{**known, "notes": (*known["notes"], *of_members)})


def _opened(array: ArrayTarget, options: Options) -> SourceArray | ArrayTarget:
    known = _known(array)
    document, more = array.document, {}
    if array.foreign_type is not None and array.problem is None:
        assert array.bytes is not None
        document, more = array.bytes.document, {"bytes": array.bytes, "target": array}
    try:
        keys = key_encoding(array.document) if array.keys is None else array.keys
        return zarr_source(array.name, array.folder, array.counted(document), keys, options, **known, **more)
    except UnsupportedError as error:
        reason = error
    try:
        opened = opened_by_zarr(array)
        if has_text(array.document):
            fields = string_source_fields(opened, opened, str(opened.fill_value or ""))
            return TextSource(array.name, repr(array.folder), **fields, **known)
        return decoded_source(opened, array.name, array.folder, **known)
    except (ShardError, TypeError, ValueError):
        if array.document.get("zarr_format") == 3:
            return replace(array, problem=array.problem or reason.message)
        raise UnsupportedError(f"array {array.place}: {reason.message}", **reason.context) from reason


def _grid_notes(array: ArrayTarget) -> tuple[str, ...]:
    """Return the sentence on a rectilinear grid, which the new array does not have."""
    if array.layout is None or all(len(edges) == 1 for edges in array.layout.edges):
        return ()
    return (
        f"the grid of the source is rectilinear, with chunks of {array.layout.edges}; the new one is regular",
    )


def _codec_names(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the codecs of an array, those of Zarr v2 as Zarr v3 has them."""
    if document.get("zarr_format") == 3:
        return tuple(codec_names(document["codecs"]))
    stored = [*(document.get("filters") or ()), document.get("compressor")]
    return tuple(f"numcodecs.{codec.get('id')}" for codec in stored if isinstance(codec, Mapping))


def _known(array: ArrayTarget) -> dict[str, Any]:
    """Return the fields of a source that depend on the format of its document."""
    document, attributes = array.document, _attributes(array.folder, array.document)
    shape: Any = document.get("shape")
    if not isinstance(shape, list | tuple):
        _wrong("shape", f"expected an array, got {show(shape)}")
    ndim = len(shape)
    if document.get("zarr_format") == 3:
        names = document.get("dimension_names")
        if names is not None and not _are_names(names, ndim, (str, NoneType)):
            _wrong("dimension_names", f"expected {ndim} names or null, got {show(names)}")
        return {"attributes": attributes, "document": document, "dimension_names": names}
    # xarray's names of axes in Zarr v2 become the names of the axes
    names = attributes.get(DIMENSIONS)
    if not _are_names(names, ndim, (str,)):
        return {"attributes": attributes, "dimension_names": None}
    return {
        "attributes": {key: attributes[key] for key in attributes if key != DIMENSIONS},
        "dimension_names": names,
    }


def _wrong(path: str, reason: str) -> NoReturn:
    raise SpecError(f"{path}: {reason}", path=path, reason=reason)


def _are_names(names: object, ndim: int, kinds: tuple[type, ...]) -> bool:
    return isinstance(names, list) and len(names) == ndim and all(isinstance(name, kinds) for name in names)


def _attributes(folder: Folder, document: Mapping[str, Any]) -> dict[str, Any]:
    if document.get("zarr_format") == 3:
        return dict(attributes_of(document))
    return dict(folder.document(".zattrs") or {})


def _is_consolidated(
    folder: Folder, document: Mapping[str, Any], left: list[LeftPart] | None, name: str
) -> bool:
    """Return True if a group has consolidated metadata; False, with a note in `left` if it is given, if this cannot be read."""
    if document.get("zarr_format") == 3:
        if (
            not folder.store.supports_listing
        ):  # the document is one of a list, which has empty consolidated metadata
            document = document_of(folder) or {}
        return isinstance(document.get("consolidated_metadata"), Mapping)
    try:
        return folder.get(f"{folder.prefix}.zmetadata") is not None
    except OSError as error:
        if left is None:
            raise
        sentence = f"group {folder!r}: the new group has no consolidated metadata: {error}"
        left += LeftPart.notes(name, [sentence])
        return False
