# hdf5_source.py - arrays of an HDF5 file
# SPDX-License-Identifier: MIT
"""Arrays of an HDF5 file, decoded by HDF5 by way of h5py."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...arguments import shortened
from ...errors import ShardError, UnsupportedError
from ...format.attributes import as_json_attributes
from ...format.dtypes import DType, as_dtype, dtype_to_json, packed
from ...storage.kinds import file_above
from ..left_parts import LeftKind, LeftPart, group_notes
from ..names import node_path
from ..node_selection import Selection
from ..nodes import ArrayFacts, KnownNodes
from .object_source import ObjectSource, array_attributes, fields_of
from .source import Ints, SourceArray, SourceTree, file_state
from .stored_objects import Coords, StoredObjects
from .text_source import TEXT, TextSource, string_source_fields

__all__ = ["hdf5_tree", "split_hdf5"]

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# Attributes of HDF5's dimension scales and labels, which become the names of the axes, and those that netCDF hides.
_LABELS, _LIST = "DIMENSION_LABELS", "DIMENSION_LIST"
_HIDDEN = frozenset(
    {
        _LABELS,
        _LIST,
        "REFERENCE_LIST",
        "_Netcdf4Dimid",
        "_Netcdf4Coordinates",
        "_NCProperties",
        "_nc3_strict",
    }
)
# Those of a dimension scale itself. Other datasets and groups may have attributes of these names.
_OF_SCALES = frozenset({"CLASS", "NAME"})
# NAME of a dimension scale of netCDF that is no variable, and the beginning of the name of a variable that is not the
# coordinate of the dimension of its name.
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
_NOT_COORDINATE = "_nc4_non_coord_"


class _StoredChunks(StoredObjects):
    """The chunks of a dataset that exist: HDF5 gives the fill value for all others."""

    def __init__(self, values: Any, shape: Ints) -> None:
        super().__init__(None, None, shape, values.chunks)
        self._values = values

    def _list(self) -> Coords | None:
        number = self._values.id.get_num_chunks()
        if not self.may_list(number):
            return None
        places = [self._values.id.get_chunk_info(i).chunk_offset for i in range(number)]
        coords = np.array(sorted(places), dtype=np.int64).reshape(number, len(self.grid))
        return coords // np.array(self._values.chunks, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Dataset(ObjectSource):
    """A dataset."""

    file: str = ""

    def state(self, start: Ints, stop: Ints) -> str | None:
        return file_state(self.file)


@dataclass(frozen=True, eq=False)
class _Text(TextSource):
    """A dataset of strings of any length, which are UTF-8."""

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


def hdf5_tree(file: str, path: str, selection: Selection) -> SourceTree:
    """Open a dataset, or the chosen datasets of a group. Each link to a dataset becomes an array.

    A link to a group above it is left out; one that leads to nothing too, unless the user has named it. Text of any length is read, because
    some may be invalid; not for the nodes of a stored plan, as each worker opens it.
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
    axes = _Axes()
    if isinstance(root, h5py.Dataset):
        return SourceTree(place, (_dataset(root, "", axes, selection),))
    if not isinstance(root, h5py.Group):
        raise UnsupportedError(f"{place}: expected a dataset or a group, got a named type")
    datasets: dict[str, Any] = {}
    groups = {}
    left: list[LeftPart] = []
    for name, node in _nodes(root, "", ()):
        if isinstance(node, _LinkAbove):
            if selection.matches(name):
                left.append(LeftPart.object(f"{name}/", str(node)))
        elif isinstance(node, Exception):
            left += _lost_link(f"{place}/{name}", name, node, selection)
        elif isinstance(node, h5py.Group):
            given, lost = _attributes_of_hdf5(node)
            groups[name], more = as_json_attributes(given)
            left += LeftPart.notes(name, group_notes(name, [*lost, *more]))
        elif not isinstance(node, h5py.Dataset):
            left.append(
                LeftPart.object(
                    name, "a named type, which Zarr does not have; the arrays of the type have it"
                )
            )
        elif not _is_dimension_only(node):
            datasets[name] = node
    facts = {name: partial(_facts, node, axes) for name, node in datasets.items()}
    chosen = selection.arrays(datasets, KnownNodes(facts, groups))
    arrays = _opened({name: datasets[name] for name in datasets if name in chosen}, axes, selection, left)
    unchosen = tuple(name for name in datasets if name not in chosen)
    return SourceTree(place, tuple(arrays), groups, left=tuple(left), unchosen=unchosen)


def _opened(
    datasets: Mapping[str, Any], axes: _Axes, selection: Selection, left: list[LeftPart]
) -> list[SourceArray]:
    """Return the sources of datasets; `left` gets those that Zarr has no type for, unless the user has named them."""
    arrays = []
    for name, node in datasets.items():
        try:
            arrays.append(_dataset(node, name, axes, selection))
        except UnsupportedError as error:
            if selection.names(name):
                raise
            left.append(LeftPart(LeftKind.ARRAY, name, str(error.context["reason"])))
    return arrays


def _facts(values: Any, axes: _Axes) -> ArrayFacts:
    return ArrayFacts(axes.names(values) or (), as_json_attributes(_attributes_of_hdf5(values)[0])[0])


def _nodes(group: Any, name: str, above: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield a group and all nodes in it with their paths, also those to which soft and external links lead.

    For a link that leads to nothing it is the error of h5py, for one that leads to a group above it `_LinkAbove`, and for a name that
    Zarr cannot have a `ValueError`.
    """
    yield name, group
    for key in group:
        own = _as_text(key).removeprefix(_NOT_COORDINATE)
        path = f"{name}/{own}" if name else own
        try:
            node_path(own)
            node = group[key]
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            # a RuntimeError: links that lead to one another
            node = error
        if not hasattr(node, "keys"):
            yield path, node
        elif (loop := next((one for one in (*above, group) if one == node), None)) is not None:
            yield path, _LinkAbove(f"a link to the group {loop.name!r}, which it is in")
        else:
            yield from _nodes(node, path, (*above, group))


def _as_text(name: str | bytes) -> str:
    """Return a name; one that is not UTF-8, which h5py returns as bytes, is that of a file with these bytes."""
    return name if isinstance(name, str) else os.fsdecode(name)


class _LinkAbove(Exception):
    """A link leads to a group that it is in."""


def _lost_link(place: str, name: str, error: Exception, selection: Selection) -> list[LeftPart]:
    """Return the part for a link that leads to nothing, or has no name for Zarr; FileNotFoundError, ValueError: the user has named it."""
    if not selection.matches(name):
        return []
    if isinstance(error, ValueError):
        if selection.names(name):
            raise error
        return [LeftPart(LeftKind.ARRAY, name, str(error))]
    reason = f"the link leads to nothing: {error.args[0] if error.args else error}"
    if selection.names(name):
        raise FileNotFoundError(
            f"{place}: expected a dataset or a group, but {reason}; choose other arrays with --only"
        ) from error
    return [LeftPart(LeftKind.ARRAY, name, reason)]


def _is_dimension_only(values: Any) -> bool:
    """Return True for a dimension of netCDF without a variable, which HDF5 stores as a dataset without meaning."""
    return bool(values.is_scale) and np.bytes_(values.attrs.get("NAME", b"")).startswith(_NO_VARIABLE)


def _dataset(values: Any, name: str, axes: _Axes, selection: Selection) -> SourceArray:
    """Return the source for a dataset; raise `UnsupportedError` if Zarr v3 has no data type for its elements, or they are no valid text."""
    file = values.file.filename  # an external link leads to another file
    place = f"{file}{values.name}"
    try:
        kind = _type_of(values)
    except (ShardError, TypeError) as error:  # h5py raises the second for types that numpy does not have
        reason = error.message if isinstance(error, ShardError) else f"expected a type of numpy: {error}"
        raise UnsupportedError(
            f"{place}: {reason}; choose other arrays with --only", reason=reason
        ) from error
    names, shape = axes.names(values), axes.shape(values)
    given, notes = _attributes_of_hdf5(values)
    known = array_attributes(given, kind or TEXT, has_names=names is not None or not values.shape)
    known["notes"] = (*notes, *known["notes"], *axes.notes(values), *_notes_on_elements(values, shape))
    known |= {"dimension_names": names, "shape": shape}
    fill = _fill_value(values)
    if kind is None:
        texts = _Strings(values, place)
        if selection.nodes is None:
            texts.check()
        strings = _Extended.of(texts, shape, object, (fill or b"").decode("utf-8", "replace"))
        return _Text(name, place, **{**string_source_fields(values, strings), **known}, file=file)
    if fill is not None and kind.names is None:
        known["fill_value"] = fill
    # a struct has the fill value 0
    if values.chunks is not None and fill is not None and (kind.names is None or not any(fill.tobytes())):
        known["stored"] = _StoredChunks(values, shape)
    elements = _Extended.of(values, shape, kind, np.zeros((), kind)[()] if fill is None else fill)
    return _Dataset(name, place, **{**fields_of(values, **known), "values": elements}, file=file)


def _type_of(values: Any) -> DType | None:
    """Return the data type of a dataset; None for strings of any length. Raise an error if Zarr v3 has none for it."""
    if values.shape is None:
        raise UnsupportedError("expected elements, got an empty dataspace")
    if values.external and values.size:
        try:
            values[(0,) * values.ndim]
        except OSError as error:
            raise UnsupportedError(f"its external raw data cannot be read: {error}") from error
    if values.dtype.kind == "V" and (tag := _opaque_tag(values)):
        raise UnsupportedError(
            f"expected a type that h5py can read, got opaque elements with the tag {tag!r}"
        )
    reason = _has_any_length(values.dtype)
    if reason == _TEXT_OF_ANY_LENGTH:
        return None
    if reason is not None:
        raise UnsupportedError(f"expected elements of a fixed size, got {reason}")
    dtype = packed(as_dtype(np.dtype(values.dtype)))
    dtype_to_json(dtype)  # raises the error of a type that only shards can hold
    return dtype


def _opaque_tag(values: Any) -> bytes:
    """Return the tag of opaque elements; empty for other types."""
    kind = values.id.get_type()
    return bytes(kind.get_tag()) if hasattr(kind, "get_tag") else b""


_TEXT_OF_ANY_LENGTH = "text of any length"


def _has_any_length(dtype: Any) -> str | None:
    """Return which elements of a type have any length, or are valid only in their file; None if there are none."""
    import h5py

    for name in dtype.names or ():
        if (reason := _has_any_length(dtype[name])) is not None:
            return f"{reason} in the field {name!r}"
    if dtype.subdtype is not None:
        return _has_any_length(dtype.subdtype[0])
    if h5py.check_ref_dtype(dtype) is not None:
        return "references"
    if (text := h5py.check_string_dtype(dtype)) is not None:
        return _TEXT_OF_ANY_LENGTH if text.length is None else None
    item = h5py.check_vlen_dtype(dtype)
    return None if item is None else f"lists of any length of {_has_any_length(item) or item}"


def _fill_value(values: Any) -> Any:
    """Return the fill value of a dataset; None if it has none, or an undefined one."""
    import h5py

    defined = values.id.get_create_plist().fill_value_defined()
    return None if defined == h5py.h5d.FILL_VALUE_UNDEFINED else values.fillvalue


def _notes_on_elements(values: Any, shape: Ints) -> Iterator[str]:
    import h5py

    if (names := h5py.check_enum_dtype(values.dtype)) is not None:
        yield f"an enumeration is written as its numbers; their names are {shortened(str(names))}"
    if shape != values.shape:
        yield (
            f"unlimited dimensions: the source stores {values.shape} elements; the rest has the fill value, as netCDF reads it"
        )


# How many texts are checked at a time.
_N_CHECKED = 1 << 16


class _Strings:
    """The texts of a dataset; an error names the first one that is not valid."""

    def __init__(self, values: Any, place: str) -> None:
        self.shape, self._values, self._place = values.shape, values, place

    def __getitem__(self, box: tuple[slice, ...]) -> Any:
        try:
            return self._values.asstr()[box]
        except UnicodeDecodeError as error:
            stored: Any = np.asarray(self._values[box], object)
            at = next(at for at in np.ndindex(*stored.shape) if not _is_text(stored[at], error.encoding))
            first = tuple(axis.start + i for axis, i in zip(box, at, strict=True))
            reason = f"element {first}: expected text in {error.encoding.upper()}, got {shortened(repr(stored[at]))}"
            raise UnsupportedError(
                f"{self._place}: {reason}; leave the array out with --exclude", reason=reason
            ) from error

    def check(self) -> None:
        """Raise `UnsupportedError` if a text is not valid; about `_N_CHECKED` elements are read at a time, in whole chunks."""
        chunk = self._values.chunks or (1,) * len(self.shape)
        axes: list[list[slice]] = []
        left = _N_CHECKED
        # the last axis as a whole, if it is short
        for n, size in zip(self.shape[::-1], chunk[::-1], strict=True):
            step = max(size, left // size * size)
            axes.insert(0, [slice(a, min(a + step, n)) for a in range(0, n, step)])
            left //= min(step, n) or 1
        for box in itertools.product(*axes):
            self[box]


def _is_text(stored: bytes, encoding: str) -> bool:
    try:
        stored.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


class _Extended:
    """A dataset that is shorter than its unlimited dimensions: the rest has the fill value, as netCDF reads it."""

    def __init__(self, values: Any, shape: Ints, dtype: Any, fill: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self._values, self._fill = values, fill

    @classmethod
    def of(cls, values: Any, shape: Ints, dtype: Any, fill: Any) -> Any:
        """Return a dataset, or the view of its text, extended to a shape."""
        return values if values.shape == shape else cls(values, shape, dtype, fill)

    def __getitem__(self, box: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        out = np.full([axis.stop - axis.start for axis in box], self._fill, self.dtype)
        stored = tuple(
            slice(axis.start, max(axis.start, min(axis.stop, n)))
            for axis, n in zip(box, self._values.shape, strict=True)
        )
        inside = tuple(slice(axis.stop - axis.start) for axis in stored)
        if out[inside].size:
            out[inside] = self._values[stored]
        return out


class _Axes:
    """The dimensions of datasets: labels, dimension scales, and the dimensions of netCDF."""

    def __init__(self) -> None:
        self._by_number: dict[str, dict[int, Any]] = {}
        self._lengths: dict[Any, int] = {}

    def names(self, values: Any) -> tuple[str | None, ...] | None:
        """Return the names of the axes of a dataset, their labels or those of scales of their length; None if it has none."""
        labels = tuple(
            label or (_base_name(scale) if scale is not None and self._extent(scale) == n else None)
            for label, scale, n in self._zipped(values)
        )
        return labels if any(labels) else None

    def notes(self, values: Any) -> Iterator[str]:
        """Yield sentences on scales of another length, whose names are left out: xarray opens no such hierarchy; and on malformed attributes."""
        for name in (_LABELS, _LIST):
            if _of_axes(values, name) is None:
                yield f"the axes have no names of {name}, which is not of the type and shape that HDF5 defines"
        for number, (label, scale, n) in enumerate(self._zipped(values)):
            if scale is not None and not label and (found := self._extent(scale)) != n:
                length = "no axis" if found is None else f"{found} elements"
                yield f"axis {number} of {n} elements has no name, because its scale {scale.name!r} has {length}"

    def _zipped(self, values: Any) -> Iterator[tuple[str, Any, int]]:
        labels = (_as_text(label) for label in _of_axes(values, _LABELS) or [""] * values.ndim)
        return zip(labels, self._scales(values), self.shape(values), strict=True)

    def _extent(self, scale: Any) -> int | None:
        return self.shape(scale)[0] if scale.shape else None

    def shape(self, values: Any) -> Ints:
        """Return the shape of a dataset, in which each unlimited dimension is as long as for the longest dataset."""
        scales = self._scales(values)
        return tuple(
            int(n) if scale is None else max(int(n), self._length(scale))
            for n, scale in zip(values.shape or (), scales, strict=True)
        )

    def _scales(self, values: Any) -> tuple[Any, ...]:
        """Return the scale of each axis, or None.

        A scale has no scales itself. It is that of its axis, and netCDF numbers the axes of a scale that has several.
        """
        lists = _of_axes(values, _LIST) or [()] * values.ndim
        scales = tuple(_first_scale(values.file, references) for references in lists)
        if not values.is_scale or any(scales):
            return scales
        if len(scales) == 1:
            return (values,)
        numbers = np.ravel(values.attrs.get("_Netcdf4Coordinates", ())).tolist()
        known = self._numbered(values.file) if len(numbers) == len(scales) else {}
        return tuple(known[n] for n in numbers) if known and all(n in known for n in numbers) else scales

    def _length(self, scale: Any) -> int:
        """Return the length of an unlimited dimension: that of the longest dataset on it; 0 for any other dimension."""
        if not scale.maxshape or scale.maxshape[0] is not None:
            return 0
        if scale not in self._lengths:
            lengths = [scale.shape[0]]
            for entry in np.ravel(scale.attrs.get("REFERENCE_LIST", ())):
                # a dataset that was removed, or a malformed list
                with suppress(KeyError, ValueError, OSError, IndexError, TypeError):
                    reference, axis = entry
                    lengths.append(scale.file[reference].shape[axis])
            self._lengths[scale] = int(max(lengths))
        return self._lengths[scale]

    def _numbered(self, file: Any) -> dict[int, Any]:
        """Return the dimensions of a netCDF file by number."""
        known = self._by_number.get(file.filename)
        if known is None:
            known = self._by_number[file.filename] = {}

            def look(_: str, node: Any) -> None:
                if getattr(node, "is_scale", False) and (n := node.attrs.get("_Netcdf4Dimid")) is not None:
                    known[int(n)] = node

            file.visititems(look)
        return known


def _of_axes(values: Any, name: str) -> list[Any] | None:
    """Return what `_LABELS` or `_LIST` has for each axis, perhaps nothing; None if it is malformed.

    `values.dims` of h5py is not asked, because malformed ones end the process in the HDF5 library.
    """
    import h5py

    if name not in values.attrs:
        return []
    with suppress(TypeError):  # a type that numpy does not have
        stored = values.attrs.get_id(name)
        item = h5py.check_vlen_dtype(stored.dtype)
        is_list = item is not None and h5py.check_ref_dtype(item) is h5py.Reference
        is_valid = is_list if name == _LIST else h5py.check_string_dtype(stored.dtype) is not None
        if is_valid and stored.shape == (values.ndim,):
            return list(values.attrs[name])
    return None


def _first_scale(file: Any, references: Sequence[Any]) -> Any:
    """Return the dataset to which the first reference leads; None if there is none."""
    with suppress(KeyError, ValueError, OSError, IndexError):  # a dataset that was removed
        node = file[references[0]]
        return node if hasattr(node, "is_scale") else None
    return None


def _base_name(node: Any) -> str:
    return str(node.name).rpartition("/")[2]


def _attributes_of_hdf5(node: Any) -> tuple[dict[str, Any], list[str]]:
    """Return attributes as values of numpy, and sentences on those that change by it or cannot be read.

    An array of one element is a scalar, because netCDF stores each number in this way.
    """
    hidden = _HIDDEN | _OF_SCALES if getattr(node, "is_scale", False) else _HIDDEN
    attributes: dict[str, Any] = {}
    notes: list[str] = []
    for name in node.attrs:
        if name in hidden:
            continue
        changes: dict[str, None] = {}
        text = _as_text(name)
        try:
            value = node.attrs[name]
            single = isinstance(value, np.ndarray) and value.shape == (1,)
            attributes[text] = _plain(value[0] if single else value, node, changes)
        except Exception as error:  # noqa: BLE001 - h5py raises errors of many kinds for types that it does not have
            changes = {f"left out: h5py cannot read it: {type(error).__name__}: {error}": None}
        notes += [f"attribute {text!r}: {change}" for change in changes]
    return attributes, notes


def _plain(value: Any, node: Any, changes: dict[str, None]) -> Any:
    """Return a value without the types of h5py."""
    import h5py

    if isinstance(value, h5py.Empty):
        is_text = value.dtype.kind in "SUO"
        changes[f"it has no elements and is written as {'an empty text' if is_text else 'an empty list'}"] = (
            None
        )
        return "" if is_text else []
    if isinstance(value, h5py.Reference | h5py.RegionReference):
        changes["a reference is written as the path to which it leads"] = None
        return (h5py.h5r.get_name(value, node.id) or b"").decode("utf-8", "surrogateescape")
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return [_plain(element, node, changes) for element in value]
    return value
