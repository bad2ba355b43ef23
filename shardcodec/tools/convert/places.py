# places.py - where source and destination are, independent of their spelling
# SPDX-License-Identifier: MIT
"""`absolute`: one spelling of a place. `check_new_place`: the destination must be free, and apart from the source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...access.box_reader import Folder, folder_at
from ...compat import StorePath, unwrap
from ...storage.files import check_name
from ...storage.kinds import at_url, is_url, is_zarr_store, object_at
from ..stored_bytes import open_object
from .destination import NewTree

__all__ = ["absolute", "check_apart", "check_new_place"]


def absolute(place: Any, storage_options: Mapping[str, Any] | None = None) -> Any:
    """Return the absolute path of a path or of a ``file://`` URL; any other place as it is."""
    if is_url(place):
        if place.partition("://")[0].lower() not in ("file", "local"):
            return place
        place = at_url(place, storage_options)
    return os.path.abspath(check_name(os.fspath(place))) if isinstance(place, str | os.PathLike) else place


def check_new_place(
    to: Any, storage_options: Mapping[str, Any] | None, source: Any, *, is_one_shard: bool = False
) -> None:
    """Check the destination of `repair` and `compact`, as `convert` does with its own.

    Parameters
    ----------
    to : path-like, URL or zarr store
    storage_options : mapping or None
        Only with a URL.
    source : path-like, URL or zarr store
    is_one_shard : bool
        `source` is one shard, and `to` its new object.

    Raises
    ------
    ValueError
        One lies in the other one, or `to` is a zip file.
    FileExistsError
        There is something already.
    """
    options = storage_options if is_url(to) else None
    old = absolute(source, storage_options if is_url(source) else None)
    check_apart(old, absolute(to, options), name="to")
    if not is_one_shard:
        NewTree(to, options).check_free()
        return
    store, key, name = object_at(to, None, options)
    path = store.path(key)
    if open_object(store, key) is not None if path is None else os.path.lexists(path):
        raise FileExistsError(f"{path or name}: expected a new path, but it exists")


def check_apart(source: Any, destination: Any, *, name: str = "destination") -> None:
    """Raise `ValueError` if one of two places, which `absolute` has returned, lies in the other one."""
    old, new = _location(source), _location(destination)
    if old is None or new is None or not _is_same_store(old[0], new[0]):
        return
    a, b = (f"{path.rstrip('/')}/" if path.strip("/") else "" for path in (old[1], new[1]))
    if a != b and (a.startswith(b) or b.startswith(a)):
        raise ValueError(
            f"{name}: expected a place outside of the source {source}, which does not contain the source, got {destination}"
        )


def _location(place: Any) -> tuple[Any, str] | None:
    """Return a store and the path in it; in place of the store None for files, and the scheme for URLs."""
    if is_url(place):
        scheme, _, rest = place.partition("://")
        return scheme.lower(), rest
    if isinstance(place, str):
        return None, os.path.realpath(place)
    if not isinstance(place, StorePath) and not is_zarr_store(place):
        return None
    folder = folder_at(place, "")
    path = folder.store.path(folder.prefix.rstrip("/"))
    return (folder, folder.prefix) if path is None else (None, os.path.realpath(path))


def _is_same_store(a: Any, b: Any) -> bool:
    if not isinstance(a, Folder) or not isinstance(b, Folder):
        return not isinstance(a, Folder) and not isinstance(b, Folder) and a == b
    if a.store.lock_names([""]) != b.store.lock_names([""]):
        return False
    # the names of some stores do not tell them apart, such as those of two memory stores
    one, other = unwrap(a.store.place), unwrap(b.store.place)
    return one is other or bool(one == other)
