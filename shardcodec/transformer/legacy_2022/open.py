# open.py - `open_2022`
# SPDX-License-Identifier: MIT
"""Open arrays of the 2022 format as arrays of zarr 3."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Unpack

import zarr

from ...arguments import checked
from ...compat import (
    ArrayV3Metadata,
    LocalStore,
    Store,
    StorePath,
    default_buffer_prototype,
    naming_document,
    quiet,
    swaps_for_filters,
    sync,
    with_empty_chunks,
)
from ...errors import ShardError
from ...format.checks import unsupported
from ...options import OptionChoices
from ...storage.files import check_name
from ...zarr_plugin.enable import attach
from .metadata import array_key, normalized, parse_hierarchy, parse_json
from .translate import has_certain_fill, to_v3
from .view import LegacyStore

__all__ = ["as_store", "check_understood", "legacy_store", "naming", "open_2022"]


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
    >>> array = shardcodec.transformer.open_2022("old.zr3", "volume")
    >>> array[10:20] = 0
    """
    if mode not in ("r", "r+"):
        raise ValueError(f"mode: expected 'r' or 'r+', got {mode!r}")
    view, prefix = legacy_store(store, read_only=mode == "r")
    path = normalized(f"{prefix}/{path}")
    with naming(array_key(path, view.suffix)):
        array = sync(view.array(path))
        if array is not None:
            check_understood(to_v3(array))  # raises a typed error before zarr reads the metadata
    if array is None:
        if sync(view.group(path)) is None:
            raise FileNotFoundError(
                f"path: expected an array or a group in {view}, found neither at {path!r}"
            )
        return zarr.open_group(store=view, path=path, mode=mode, zarr_format=3)  # type: ignore[arg-type]
    with quiet():
        opened = zarr.open_array(store=view, path=path, mode=mode, zarr_format=3)
        return attach(opened if has_certain_fill(array) else with_empty_chunks(opened), **choices)


def legacy_store(store: Any, *, read_only: bool = False) -> tuple[LegacyStore, str]:
    """Return a view of a hierarchy and the path in it to which `store` refers.

    Raises
    ------
    FileNotFoundError
        The folder does not exist.
    SpecError, UnsupportedError
        The hierarchy has another format.
    """
    if isinstance(store, str | os.PathLike) and not os.path.isdir(check_name(os.fspath(store))):
        raise FileNotFoundError(f"folder {os.fspath(store)!r} does not exist")  # zarr would create it
    base, path = as_store(store, read_only=read_only)
    if isinstance(base, LegacyStore):
        return base if base.read_only == read_only else base.with_read_only(read_only), path
    buffer = sync(base.get("zarr.json", prototype=default_buffer_prototype()))
    suffix = ".json"
    if buffer is not None:
        with naming("zarr.json"):
            suffix = parse_hierarchy(parse_json(buffer.to_bytes(), "zarr.json"))
    return LegacyStore(base, suffix, read_only=read_only), path


def as_store(store: Any, *, read_only: bool = False) -> tuple[Store, str]:
    """Return a zarr store and a path in it from a path, a store, a StorePath, an array or a group.

    Raises
    ------
    TypeError
        `store` is of another type.
    """
    if isinstance(store, zarr.Array | zarr.Group | zarr.AsyncArray | zarr.AsyncGroup):
        store = store.store_path
    if isinstance(store, StorePath):
        return store.store, store.path
    if isinstance(store, Store):
        return store, ""
    if isinstance(store, str | os.PathLike):
        return sync(LocalStore.open(check_name(os.fspath(store)), read_only=read_only)), ""
    raise TypeError(f"store: expected a path or a zarr store, got {type(store).__name__}")


def check_understood(metadata: Mapping[str, Any]) -> None:
    """Raise UnsupportedError if the installed zarr would misread an array: zarr before 3.2 ignores some byte orders."""
    with quiet(), naming_document("array.json"):
        understood = ArrayV3Metadata.from_dict(dict(metadata)).to_dict()
    (endian, filtered), (kept, _) = _byte_order(metadata["codecs"]), _byte_order(understood["codecs"])
    if endian == "big" and (kept != endian or (filtered and not swaps_for_filters())):
        unsupported(
            "data_type", f"zarr {zarr.__version__} ignores that the elements are big-endian; update zarr"
        )


def _byte_order(codecs: Any) -> tuple[Any, bool]:
    """Return (byte order of the elements, True if filters come before the codec `bytes`)."""
    filtered = False
    for codec in codecs:
        given = codec.get("configuration", {})
        if codec["name"] == "sharding_indexed":
            return _byte_order(given["codecs"])
        if codec["name"] == "bytes":
            endian = given.get("endian")
            return getattr(endian, "value", endian), filtered
        filtered = filtered or codec["name"].startswith("numcodecs.")
    return None, filtered


@contextmanager
def naming(document: str) -> Iterator[None]:
    """Add the name of a document to errors raised inside of the block."""
    try:
        yield
    except ShardError as error:
        context = error.context | {"document": document}
        raise type(error)(f"{document}: {error.message}", **context) from error.__cause__
