# hdf5_source.py - HDF5 datasets as sources
# SPDX-License-Identifier: MIT
"""Datasets and groups of an HDF5 file, by way of h5py. Elements are decoded by HDF5."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import ShardError, UnsupportedError
from ...storage.kinds import file_above
from .object_source import ObjectSource, as_json_attributes, fields_of
from .source import Ints, SourceTree, file_state

__all__ = ["hdf5_tree", "split_hdf5"]

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# Attributes of HDF5's dimension scales and labels, which become the names of the axes.
_REFERENCES = frozenset(
    {"DIMENSION_LABELS", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates"}
)
# Those of a dimension scale itself. Other datasets and groups may have attributes of these names.
_OF_SCALES = frozenset({"CLASS", "NAME"})


@dataclass(frozen=True, eq=False)
class _Dataset(ObjectSource):
    """A dataset."""

    file: str = ""

    def state(self, start: Ints, stop: Ints) -> str | None:
        return file_state(self.file)


def split_hdf5(path: str) -> tuple[str, str] | None:
    """Return the path of an HDF5 file and the path in it, such as ``data.h5/images``; None for any other path.

    A file is known by its signature: `.nwb`, `.h5ad`, `.loom`, `.ims` and `.mat` are HDF5 files too.
    """
    file, rest = file_above(path)
    return (file, rest) if file and _is_hdf5(file) else None


def _is_hdf5(path: str) -> bool:
    """Return True if a file has the signature of HDF5, at its beginning or behind a block of the user."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        at = 0
        while at < end:
            file.seek(at)
            if file.read(len(_SIGNATURE)) == _SIGNATURE:
                return True
            at = 2 * at or 512
    return False


def hdf5_tree(file: str, path: str, wanted: Callable[[str], bool]) -> SourceTree:
    """Open a dataset, or all datasets of a group. Each link to a dataset becomes an array.

    A link to a group that leads to the link again is left out.

    Parameters
    ----------
    file : str
        The file.
    path : str
        Path in the file; empty for all of it.
    wanted : callable
        Says for the path of an array in a group whether it is converted.

    Raises
    ------
    ImportError
        h5py is not installed.
    FileNotFoundError
        The file has no such dataset or group, or a link leads to nothing.
    UnsupportedError
        The data type of a dataset has no equivalent.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 needs h5py; install it with: pip install h5py") from error
    opened = h5py.File(file, "r")
    root: Any = opened.get(path) if path else opened
    place = f"{file}/{path}".rstrip("/")
    if root is None:
        opened.close()
        raise FileNotFoundError(f"{file}: expected a dataset or a group {path!r}, but there is none")
    if isinstance(root, h5py.Dataset):
        return SourceTree(place, (_dataset(root, ""),))
    if not isinstance(root, h5py.Group):
        raise UnsupportedError(f"{place}: expected a dataset or a group, got a named type")
    arrays: list[_Dataset] = []
    groups = {}
    for name, node in _nodes(root, "", (), wanted):
        if isinstance(node, h5py.Group):
            groups[name] = _attributes(node)
        elif isinstance(node, h5py.Dataset) and wanted(name):  # a named type has no elements
            arrays.append(_dataset(node, name))
    return SourceTree(place, tuple(arrays), groups)


def _nodes(
    group: Any, name: str, above: tuple[Any, ...], wanted: Callable[[str], bool]
) -> Iterator[tuple[str, Any]]:
    """Yield a group and all nodes in it with their paths, also those to which soft and external links lead."""
    if group in above:  # a link to a group above it
        return
    yield name, group
    for key in group:
        path = f"{name}/{key}" if name else key
        node = _linked(group, key, path, wanted)
        if hasattr(node, "keys"):
            yield from _nodes(node, path, (*above, group), wanted)
        elif node is not None:
            yield path, node


def _linked(group: Any, key: str, path: str, wanted: Callable[[str], bool]) -> Any:
    """Return the node of a link; None if the link leads to nothing and its array is not wanted."""
    try:
        return group[key]
    except (KeyError, OSError) as error:
        if not wanted(path):
            return None
        raise FileNotFoundError(
            f"{group.file.filename}{group.name.rstrip('/')}/{key}: expected a dataset or a group, but the link leads to "
            f"nothing: {error.args[0] if error.args else error}; choose other arrays with --only"
        ) from error


def _dataset(values: Any, name: str) -> _Dataset:
    file = values.file.filename  # an external link leads to another file
    place = f"{file}{values.name}"
    labels = tuple(_label(axis) for axis in values.dims)
    known = {
        "fill_value": values.fillvalue if values.dtype.names is None else None,
        "attributes": _attributes(values),
        "dimension_names": labels if any(labels) else None,
    }
    if values.shape is None:
        raise UnsupportedError(f"{place}: expected elements, got an empty dataspace")
    try:
        fields = fields_of(values) | {key: one for key, one in known.items() if one is not None}
    except ShardError as error:
        raise UnsupportedError(f"{place}: {error.message}; choose other arrays with --only") from error
    return _Dataset(name, place, **fields, file=file)


def _label(axis: Any) -> str | None:
    """Return the name of an axis: its label, or the name of its scale."""
    if axis.label:
        return str(axis.label)
    return str(axis[0].name).rpartition("/")[2] if len(axis) else None


def _attributes(node: Any) -> dict[str, Any]:
    hidden = _REFERENCES | _OF_SCALES if getattr(node, "is_scale", False) else _REFERENCES
    given = {name: node.attrs[name] for name in node.attrs if name not in hidden}
    return as_json_attributes(given)
