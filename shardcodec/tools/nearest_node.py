# nearest_node.py - from a path to the nearest node
# SPDX-License-Identifier: MIT
"""`nearest_node`: find the node that a path leads to, or the one above a shard; documents that the target has lost are taken from a copy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..access.box_reader import Folder, SpareDocuments, folder_at, is_malformed
from ..compat import StorePath
from ..errors import SpecError, UnsupportedError
from ..storage.kinds import (
    at_url,
    is_zarr_store,
    is_zip,
    zip_at,
)
from ..storage.renamed_store import RenamedStore
from ..storage.url_stores import is_url
from .consolidated import documents_in, with_consolidated_as_spare, without_nodes
from .documents import DOCUMENTS, NODE_DOCUMENTS, Document, document_of, is_group, parsed
from .stored_nodes import nodes_below, root_document

__all__ = ["add_documents_of_copy", "nearest_node"]


def add_documents_of_copy(spare: SpareDocuments, target: Any, copy: Any, options: Any) -> list[str]:
    """Add the documents of the nodes of a copy that the target has lost; `options` are those of the stores of URLs.

    Returns a sentence for each document that the target has lost and that cannot be read in the copy.
    """
    folder = replace(next(_candidates(target, options))[0], spare=spare)
    try:
        root, below_copy, document = nearest_node(copy, options)
    except (FileNotFoundError, SpecError):
        return []  # who reads the copy raises the error
    try:
        _, rest, kept = nearest_node(target, options)
    except FileNotFoundError:
        rest, kept = "", document
    if below_copy or (rest and not is_group(kept)) or (not rest and is_group(kept) != is_group(document)):
        return []  # a shard, or another kind of node
    format_of_root = kept.get("zarr_format", document.get("zarr_format"))
    nodes = [("", root, document), *(nodes_below(root, document, "") if is_group(document) else ())]
    unread = []
    for path, place, node in nodes:
        own = replace(folder, prefix=f"{folder.prefix}{path}/" if path else folder.prefix)
        if isinstance(node, SpecError) and _sound_document(own) is None:
            unread.append(_unread(path, node))
        if isinstance(node, SpecError) or node.get("zarr_format") != format_of_root:
            continue  # chunks of another format have other keys
        try:
            here = _sound_document(own)
            here = None if here is not None and _may_be_array(own, here, node) else here
            missing = [".zattrs"] if here is not None and own.stored(f"{own.prefix}.zattrs") is None else []
            if here is None or (missing and here.get("zarr_format") == node.get("zarr_format") == 2):
                names = missing or sorted(DOCUMENTS - {".zmetadata"})
                stored = {name: parsed(place.get(place.prefix + name)) for name in names}
                found = {
                    f"{path}/{name}" if path else name: one for name, one in stored.items() if one is not None
                }
                spare.add(repr(folder), found, "the copy", is_copy=True)
        except OSError as error:
            unread.append(_unread(path, error))
    return unread


def _unread(path: str, error: Exception) -> str:
    return f"{path or '/'!r}: its metadata are lost or damaged, and those of the copy cannot be read: {error}"


def _may_be_array(folder: Folder, here: Document, node: Document) -> bool:
    """Return True for a group without nodes in it that is an array in the copy; consolidated metadata say what it is."""
    is_other = here.get("node_type") == "group" and not is_group(node)
    return is_other and not any(nodes_below(folder, here, ""))


def _sound_document(folder: Folder) -> Document | None:
    """Return the document of a node; None if it is lost, damaged or malformed, or cannot be read."""
    try:
        name, document = folder.first_document(*NODE_DOCUMENTS)
        return None if document is None or is_malformed(name, document) else document_of(folder)
    except (SpecError, OSError):
        return None


def nearest_node(
    target: Any, storage_options: Mapping[str, Any] | None, spare: SpareDocuments | None = None
) -> tuple[Folder, str, Any]:
    """Return the nearest node at a path or above it, the rest of the path, and the document of the node. The errors are those of `find_arrays`.

    `spare` has further documents for nodes that have lost theirs, and gets those of consolidated metadata.
    """
    spare = SpareDocuments() if spare is None else spare
    candidates, tried = _candidates(target, storage_options), []
    for bare, rest in candidates:
        folder = replace(bare, spare=spare)
        tried.append(folder)
        document = document_of(folder) if rest else root_document(folder)
        if document is None and not rest:  # a group of Zarr v2 that has lost its .zgroup
            folder = with_consolidated_as_spare(folder, {"zarr_format": 2})
            document = root_document(folder)
        if document is not None and is_group(document):
            if not documents_in(folder, document):
                _add_from_above(folder, rest, candidates, document)
            return _lost_node(with_consolidated_as_spare(folder, document), rest, document, tried)
        if document is not None:
            return folder, rest, document
    shown = target if isinstance(target, str | os.PathLike) else repr(target)
    raise FileNotFoundError(
        f"{shown}: expected a zarr group, an array or a shard of one, but neither it nor a folder above has a zarr.json, "
        ".zarray or .zgroup; for a shard outside of its array, give its zarr.json as --metadata (in Python: spec)"
    )


def _add_from_above(group: Folder, rest: str, above: Iterator[tuple[Folder, str]], own: Document) -> None:
    """Add what the consolidated metadata of the groups above a group say of its nodes; they are of its format, if its document shows it."""
    assert group.spare is not None
    names = {3: ("zarr.json",), 2: (".zgroup",)}.get(own.get("zarr_format", 0), NODE_DOCUMENTS)
    for folder, path in above:
        try:
            document = document_of(folder, names)
            if document is None or not is_group(document):
                return
            known = documents_in(folder, document)
        except (SpecError, OSError):  # it is not of this hierarchy, and need not be readable
            return
        inside = f"{path.removesuffix(f'/{rest}') if rest else path}/"
        below = {
            key.removeprefix(inside): without_nodes(one)
            for key, one in known.items()
            if key.startswith(inside)
        }
        group.spare.add(repr(group), below, "the consolidated metadata")


def _lost_node(folder: Folder, rest: str, document: Document, tried: list[Folder]) -> tuple[Folder, str, Any]:
    """Return the innermost node on a path in a group whose document is spare, and the rest of the path; otherwise the group.

    The folder of such a node is the one that was tried, because a second look would find the document there.
    """
    steps = rest.split("/") if rest else []
    for n in range(len(steps), 0, -1):
        below = replace(folder, prefix=f"{folder.prefix}{'/'.join(steps[:n])}/")
        if (found := document_of(below)) is not None:
            own = next((one for one in tried if repr(one) == repr(below)), below)
            return own, "/".join(steps[n:]), found
    return folder, rest, document


def _candidates(target: Any, storage_options: Mapping[str, Any] | None) -> Iterator[tuple[Folder, str]]:
    """Yield the target and the folders above it, each with the rest of the path."""
    if is_url(target):
        for url, rest in _urls(target):
            yield folder_at(at_url(url, storage_options), ""), rest
        return
    at_url(target, storage_options)  # raises if there are options without a URL
    if isinstance(target, str | os.PathLike):
        yield from _paths(os.path.abspath(os.fspath(target)))
        return
    store, path = (target.store, target.path) if isinstance(target, StorePath) else (target, "")
    if not is_zarr_store(store):
        raise TypeError(f"target: expected a path, a URL or a zarr store, got {type(target).__name__}")
    if isinstance(store, RenamedStore):
        raise UnsupportedError(
            f"target: expected a store, got a view of one ({type(store).__name__}); pass the store behind the view, or convert "
            "the array first"
        )
    yield from _in_store(store, path)


def _urls(url: str) -> Iterator[tuple[str, str]]:
    """Yield a URL and the URLs above it, up to the bucket or the host."""
    scheme, _, path = url.partition("://")
    steps = path.rstrip("/").split("/")
    for n in range(len(steps), 0, -1):
        above = "/".join(steps[:n])
        if above:
            yield f"{scheme}://{above}", "/".join(steps[n:])


def _paths(path: str) -> Iterator[tuple[Folder, str]]:
    """Yield a local path and the folders above it; at a zip file, first the folders in the file.

    A path in a zip file is tried both ways, because a shard may have the bytes of a zip file.
    """
    steps: list[str] = []
    folder = path
    while True:
        if is_zip(folder):
            yield from _in_store(zip_at(folder), "/".join(steps))
        yield folder_at(folder, ""), "/".join(steps)
        folder, name = os.path.split(folder)
        if not name:
            return
        steps.insert(0, name)


def _in_store(store: Any, path: str) -> Iterator[tuple[Folder, str]]:
    steps = path.split("/") if path else []
    for n in range(len(steps), -1, -1):
        yield folder_at(store, "/".join(steps[:n])), "/".join(steps[n:])
