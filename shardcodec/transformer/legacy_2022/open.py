# open.py - open an array of the 2022 format
# SPDX-License-Identifier: MIT
"""`open_2022`: open an array of the 2022 format as an array of zarr 3, through `LegacyStore`."""

from __future__ import annotations

import os
from typing import Any, Literal, Unpack

import zarr

from ...arguments import checked
from ...compat import (
    LocalStore,
    Store,
    StorePath,
    default_buffer_prototype,
    on_zarrs_loop,
    quiet,
    with_empty_chunks,
)
from ...format.array_document import json_object
from ...options import OptionChoices
from ...storage.files import check_name
from ...zarr_plugin.attach import attach
from .legacy_keys import array_key, normalized
from .legacy_store import LegacyStore, check_understood, naming
from .parse import parse_hierarchy
from .to_v3 import has_certain_fill, to_v3

__all__ = ["as_store", "legacy_store", "open_2022", "open_converted"]


@checked
def open_2022(
    store: Any, path: str = "", *, mode: Literal["r", "r+"] = "r+", **choices: Unpack[OptionChoices]
) -> Any:
    """Open an array that zarr-python 2.14 to 2.18 wrote in its experimental v3 format, sharded or not.

    Parameters
    ----------
    store : path-like, zarr store or StorePath
        The hierarchy: the folder with ``meta`` and ``data``.
    path : str
        Path of the array or group in the hierarchy.
    mode : {"r", "r+"}
        Read only, or read and write. Nothing is created.
    **choices
        Options of shardcodec for this array, as for `shardcodec.attach`.

    Returns
    -------
    zarr.Array or zarr.Group
        Elements are read and written in place, and every zarr-python 2 that could read the array still can. New
        attributes and a new shape are stored in ``array.json``. The dtype has native byte order.

    Raises
    ------
    FileNotFoundError
        There is no such array or group.
    SpecError
        The metadata are wrong; ``.document`` names the document and ``.path`` the place in it.
    UnsupportedError
        The metadata need a data type, codec or extension that shardcodec does not implement.
    TypeError, ValueError
        An argument is wrong.

    Examples
    --------
    >>> array = transformer.open_2022("old.zr3", "volume")  # doctest: +SKIP
    >>> array[10:20] = 0  # doctest: +SKIP
    """
    if mode not in ("r", "r+"):
        raise ValueError(f"mode: expected 'r' or 'r+', got {mode!r}")
    view, path = legacy_store(store, path, read_only=mode == "r")
    array = view.array_at(path)
    if array is not None:
        with naming(array_key(path, view.suffix)):
            check_understood(to_v3(array))  # raises a typed error before zarr reads the metadata
    if array is None:
        if on_zarrs_loop(view.group(path)) is None:
            raise FileNotFoundError(
                f"path: expected an array or a group in {view}, found neither at {path!r}"
            )
        return zarr.open_group(store=view, path=path, mode=mode, zarr_format=3)  # type: ignore[arg-type]
    with quiet():
        opened = zarr.open_array(store=view, path=path, mode=mode, zarr_format=3)
        return attach(opened if has_certain_fill(array) else with_empty_chunks(opened), **choices)


def open_converted(place: StorePath) -> Any:
    """Open an array or a group of Zarr v3 that was converted; an array is attached, as by `open_2022`."""
    with quiet():
        node = zarr.open(store=place, mode="r+", zarr_format=3)
    return attach(node) if isinstance(node, zarr.Array) else node


def legacy_store(store: Any, path: str = "", *, read_only: bool = False) -> tuple[LegacyStore, str]:
    """Return a view of a hierarchy, and a path in it from a path below the place to which `store` refers.

    FileNotFoundError: the folder does not exist.
    """
    if isinstance(store, str | os.PathLike) and not os.path.isdir(check_name(os.fspath(store))):
        raise FileNotFoundError(f"folder {os.fspath(store)!r} does not exist")  # zarr would create it
    base, path = as_store(store, path, read_only=read_only)
    if isinstance(base, LegacyStore):
        return base if base.read_only == read_only else base.with_read_only(read_only), path
    buffer = on_zarrs_loop(base.get("zarr.json", prototype=default_buffer_prototype()))
    suffix = ".json"
    if buffer is not None:
        with naming("zarr.json"):
            suffix = parse_hierarchy(json_object(buffer.to_bytes(), "zarr.json"))
    return LegacyStore(base, suffix, read_only=read_only), path


def as_store(store: Any, path: str = "", *, read_only: bool = False) -> tuple[Store, str]:
    """Return a zarr store and a path in it, from a path, a store, a StorePath, an array or a group, and a path below it.

    TypeError: `store` is of another type. ValueError: a name in the path is empty, "." or "..", or the path has a null byte.
    """
    if isinstance(store, zarr.Array | zarr.Group | zarr.AsyncArray | zarr.AsyncGroup):
        store = store.store_path
    if isinstance(store, StorePath):
        return store.store, normalized(f"{store.path}/{path}")
    if isinstance(store, Store):
        return store, normalized(path)
    if isinstance(store, str | os.PathLike):
        base = on_zarrs_loop(LocalStore.open(check_name(os.fspath(store)), read_only=read_only))
        return base, normalized(path)
    raise TypeError(f"store: expected a path or a zarr store, got {type(store).__name__}")
