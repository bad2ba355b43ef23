# targets.py - from a path to the arrays that a tool works on
# SPDX-License-Identifier: MIT
"""`find_arrays`: what a path leads to, which may be a group, an array or one shard, in a folder, a zip file or a URL."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..access.box_reader import Folder, folder_at
from ..compat import StorePath, on_zarrs_loop
from ..errors import SpecError, UnsupportedError
from ..format.spec import ShardSpec
from ..storage.kinds import RenamedStore, at_url, is_url, is_zarr_store, is_zip, object_at, zip_at
from ..storage.runner import run_blocking
from .array_target import ArrayTarget, array_target, lone_shard
from .documents import array_documents, document_of, group_documents, is_group
from .names import inner_path

__all__ = ["find_arrays", "find_groups", "find_hierarchy"]


def find_arrays(
    target: Any,
    *,
    array: str | None = None,
    spec: ShardSpec | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[ArrayTarget]:
    """Find the arrays that a path leads to.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array: the documents above the shard show which array. A path may lead
        into a zip file, as ``data.zip/images``.
    array : str, optional
        Only this array, by its path in the group.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.

    Yields
    ------
    ArrayTarget
        An array that is not sharded, or whose metadata are invalid, is one too; its ``problem`` says why.

    Raises
    ------
    FileNotFoundError
        The path leads to nothing, or not to an array, group or shard.
    SpecError
        The document of the target itself is malformed.
    ValueError, TypeError, ImportError
        An argument is invalid, or no package can open the URL.
    """
    if spec is not None:
        if array is not None:
            raise ValueError(f"array: expected none for a single shard, got {array!r}")
        store, key, _ = object_at(target, None, storage_options)
        _check_exists(Folder(store, ""), key)
        yield lone_shard(Folder(store, ""), key, spec)
        return
    folder, rest, document = _nearest(target, storage_options)
    if is_group(document):
        yield from _of_group(folder, rest, document, array)
        return
    if array is not None:
        raise ValueError(f"array: expected none, because {folder!r} is an array, got {array!r}")
    found = array_target("", folder, document)
    yield found if not rest else _single(found, rest)


def find_groups(
    target: Any, storage_options: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, Folder]]:
    """Yield path and folder of the groups that a path leads to: the group itself, and those below it.

    A path that leads to an array or a shard has none. The errors are those of `find_arrays`.
    """
    folder, rest, document = _nearest(target, storage_options)
    if is_group(document) and not rest:
        for path, below, _ in group_documents(folder, document):
            yield path, below


def find_hierarchy(target: Any, storage_options: Mapping[str, Any] | None = None) -> Folder | None:
    """Return the root of the hierarchy that a path leads to, a group or an array; None for a shard.

    The errors are those of `find_arrays`.
    """
    folder, rest, _ = _nearest(target, storage_options)
    return None if rest else folder


def _of_group(folder: Folder, rest: str, document: Any, array: str | None) -> Iterator[ArrayTarget]:
    if rest:
        raise FileNotFoundError(f"{rest!r} is neither an array nor a shard of the group {folder!r}")
    wanted = None if array is None else inner_path(array, "array")
    if wanted is not None:
        below = replace(folder, prefix=f"{folder.prefix}{wanted}/")
        document_below = document_of(below) if folder.store.supports_listing else None
        if document_below is not None and not is_group(document_below):
            yield array_target(wanted, below, document_below)
            return
    n = 0
    for name, place, found in array_documents(folder, document):
        if wanted is not None and name != wanted:
            continue
        n += 1
        if isinstance(found, SpecError):
            yield ArrayTarget(name, place, {}, problem=found.message, is_malformed=True)
        else:
            yield array_target(name, place, found)
    if wanted is not None and not n:
        raise FileNotFoundError(f"the group {folder!r} has no array {wanted!r}")
    if not n and not folder.store.supports_listing:
        raise UnsupportedError(
            f"group {folder!r}: the store cannot list its objects, and the group has no consolidated metadata; "
            "name an array, or consolidate the metadata"
        )


def _single(array: ArrayTarget, rest: str) -> ArrayTarget:
    """Return the target for one shard of an array."""
    grid = array.shard_grid
    coords = None if array.keys is None else array.keys.coords(rest, len(grid))
    if array.problem is not None or not array.is_sharded:
        raise UnsupportedError(
            f"array {array.place}: {array.problem or 'expected shards, but it is not sharded'}"
        )
    if coords is None or any(i >= n for i, n in zip(coords, grid, strict=True)):
        assert array.keys is not None
        example = array.keys.key((0,) * len(grid))
        raise ValueError(
            f"expected the key of a shard, such as {example!r}, in the array {array.place} of {grid} shards, got {rest!r}"
        )
    key = array.folder.prefix + rest
    _check_exists(array.folder, key)
    return replace(array, only=(key, coords))


def _check_exists(folder: Folder, key: str) -> None:
    """Raise `FileNotFoundError` if an object does not exist."""
    work = folder.store.size(key)
    try:
        _ = run_blocking(work) if folder.store.is_near else on_zarrs_loop(work)
    except FileNotFoundError:
        raise FileNotFoundError(f"shard {folder.store.describe(key)!r} does not exist") from None


# ---- from a path to the nearest document


def _nearest(target: Any, storage_options: Mapping[str, Any] | None) -> tuple[Folder, str, Any]:
    """Return the nearest node at a path or above it, the rest of the path, and the document of the node."""
    for folder, rest in _candidates(target, storage_options):
        document = document_of(folder)
        if document is not None:
            return folder, rest, document
    shown = target if isinstance(target, str | os.PathLike) else repr(target)
    raise FileNotFoundError(
        f"{shown}: expected a zarr group, an array or a shard of one, but neither it nor a folder above has a zarr.json, "
        ".zarray or .zgroup; for a shard outside of its array, give its zarr.json as --metadata (in Python: spec)"
    )


def _candidates(target: Any, storage_options: Mapping[str, Any] | None) -> Iterator[tuple[Folder, str]]:
    """Yield the folder itself and those above it, each with the rest of the path."""
    if is_url(target):
        for url, rest in _urls(target):
            yield folder_at(at_url(url, storage_options), ""), rest
        return
    at_url(target, storage_options)  # it refuses options for anything else
    if isinstance(target, str | os.PathLike):
        yield from _paths(os.path.abspath(os.fspath(target)))
        return
    store, path = (target.store, target.path) if isinstance(target, StorePath) else (target, "")
    if not is_zarr_store(store):
        raise TypeError(f"expected a path, a URL or a zarr store, got {type(target).__name__}")
    if isinstance(store, RenamedStore):
        raise UnsupportedError(
            "the tools need the stored objects; give the store behind this view, or convert the array first"
        )
    yield from _in_store(store, path)


def _urls(url: str) -> Iterator[tuple[str, str]]:
    """Yield a URL and those above it, up to the bucket or the host."""
    scheme, _, path = url.partition("://")
    parts = path.rstrip("/").split("/")
    for n in range(len(parts), 0, -1):
        above = "/".join(parts[:n])
        if above:
            yield f"{scheme}://{above}", "/".join(parts[n:])


def _paths(path: str) -> Iterator[tuple[Folder, str]]:
    """Yield the folders of a local path; at a zip file, first those in the file.

    The folders above are yielded too, because a shard may have the bytes of a zip file.
    """
    parts: list[str] = []
    folder = path
    while True:
        if is_zip(folder):
            yield from _in_store(zip_at(folder), "/".join(parts))
        yield folder_at(folder, ""), "/".join(parts)
        folder, name = os.path.split(folder)
        if not name:
            return
        parts.insert(0, name)


def _in_store(store: Any, path: str) -> Iterator[tuple[Folder, str]]:
    parts = path.split("/") if path else []
    for n in range(len(parts), -1, -1):
        yield folder_at(store, "/".join(parts[:n])), "/".join(parts[n:])
