# hdf5_source.py - HDF5 datasets as sources
# SPDX-License-Identifier: MIT
"""Datasets and groups of an HDF5 file, by way of h5py. Elements are decoded by HDF5."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import ShardError, UnsupportedError
from .object_source import ObjectSource, as_json_attributes, object_source
from .source import Ints, SourceTree

__all__ = ["hdf5_tree", "split_hdf5"]

_SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5", ".nc")
# Attributes of HDF5's dimension scales and labels, which become the names of the axes.
_REFERENCES = frozenset(
    {
        "DIMENSION_LABELS",
        "DIMENSION_LIST",
        "REFERENCE_LIST",
        "CLASS",
        "NAME",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
    }
)


@dataclass(frozen=True, eq=False)
class _Dataset(ObjectSource):
    """A dataset."""

    file: str = ""

    def state(self, start: Ints, stop: Ints) -> str | None:
        found = os.stat(self.file)
        return f"{found.st_size}-{found.st_ino}-{found.st_mtime_ns}"


def split_hdf5(path: str) -> tuple[str, str] | None:
    """Return the path of an HDF5 file and the path in it, such as ``data.h5/images``; None for any other path."""
    file, rest = path, ""
    while True:
        if file.lower().endswith(_SUFFIXES) and os.path.isfile(file):
            return file, rest
        file, name = os.path.split(file)
        if not name:
            return None
        rest = f"{name}/{rest}" if rest else name


def hdf5_tree(file: str, path: str, wanted: Callable[[str], bool]) -> SourceTree:
    """Open a dataset, or all datasets of a group.

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
        The file has no such dataset or group.
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
        return SourceTree(place, (_dataset(root, "", file),))
    arrays: list[_Dataset] = []
    groups = {"": _attributes(root)}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Group):
            groups[name] = _attributes(node)
        elif wanted(name):
            arrays.append(_dataset(node, name, file))

    root.visititems(visit)
    return SourceTree(place, tuple(arrays), groups)


def _dataset(values: Any, name: str, file: str) -> _Dataset:
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
        found = object_source(
            values, name, place, **{key: one for key, one in known.items() if one is not None}
        )
    except ShardError as error:
        raise UnsupportedError(f"{place}: {error.message}; choose other arrays with --only") from error
    fields = {one: getattr(found, one) for one in found.__dataclass_fields__}
    return _Dataset(**fields, file=file)


def _label(axis: Any) -> str | None:
    """Return the name of an axis: its label, or the name of its scale."""
    if axis.label:
        return str(axis.label)
    return str(axis[0].name).rpartition("/")[2] if len(axis) else None


def _attributes(node: Any) -> dict[str, Any]:
    given = {name: node.attrs[name] for name in node.attrs if name not in _REFERENCES}
    return as_json_attributes(given)
