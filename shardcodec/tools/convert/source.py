# source.py - an array that convert reads: its facts, its elements
# SPDX-License-Identifier: MIT
"""An array that convert reads: its facts, its elements.

`SourceArray`: one array of any kind. `SourceTree`: the arrays and groups that are converted together.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...access.box_reader import Folder
from ...errors import CodecError, ShardError, UnsupportedError
from ...format.attributes import MASK, as_json_attributes, masked_attributes, with_finite_missing
from ...format.byte_document import ByteDocument, byte_document
from ...format.codecs import Bytes, Codec
from ...format.dtypes import DType, as_dtype, ml_name, packed, swap_fields
from ...format.metadata import KeyEncoding, key_encoding
from ...format.spec import ChainSpec
from ...storage.files import open_file
from ...storage.store import LeftFolder
from ..left_parts import LeftKind, LeftPart
from ..other_objects import OtherObjects

__all__ = [
    "Coords",
    "DecodedSource",
    "EncodedChunks",
    "Encoding",
    "Ints",
    "ObjectSource",
    "SourceArray",
    "SourceTree",
    "StoredObjects",
    "array_attributes",
    "chunks_of_object",
    "decoded_source",
    "fields_of",
    "file_state",
    "instead_of",
    "is_array_like",
    "object_source",
]


# ---------------------------------------------------------------- which objects of a source exist
#
# `StoredObjects`: the listing of a nearly empty array, so that a conversion costs what is stored, and not the grid.

Ints = tuple[int, ...]
Coords = np.ndarray[Any, np.dtype[np.int64]]

# Smaller grids are not listed: each object is asked for.
LEAST_GRID = 64
# A listing ends at the larger of this number of objects and the grid divided by the divisor: the array is then not sparse.
MAX_LISTED = 10_000
LISTED_DIVISOR = 16


class StoredObjects:
    """The objects of an array that exist, by their positions in its grid; `size` is the shape of the elements of one object.

    All answers are None if the store cannot list, or if many objects exist. The objects are listed once, and again after `forget`.
    """

    def __init__(self, folder: Folder | None, keys: KeyEncoding | None, shape: Ints, size: Ints) -> None:
        self._folder, self._keys, self._shape, self._size = folder, keys, shape, size
        self.grid: Ints = tuple(-(-n // step) for n, step in zip(shape, size, strict=True))
        self.n_grid: int = math.prod(self.grid)
        self._turn = threading.Lock()
        self._is_listed = False
        self._listed: Coords | None = None

    @property
    def coords(self) -> Coords | None:
        """Positions of the objects, in the order of the grid."""
        with self._turn:
            if not self._is_listed:
                self._listed, self._is_listed = self._list(), True
            return self._listed

    def forget(self) -> None:
        """List the objects again at the next question."""
        with self._turn:
            self._is_listed, self._listed = False, None

    def may_list(self, number: int) -> bool:
        """Return True if so few objects of the grid exist that a list of them is of use."""
        return LEAST_GRID <= self.n_grid < 2**62 and number <= max(MAX_LISTED, self.n_grid // LISTED_DIVISOR)

    def _list(self) -> Coords | None:
        assert self._folder is not None and self._keys is not None
        store, prefix = self._folder.store, self._folder.prefix
        # the objects of a view have other keys in its store
        if not self.may_list(0) or self._folder.base is not None:
            return None
        left: list[LeftFolder] = []
        keys = store.listed(prefix, with_folders=True, all_of_them=True, left=left)
        if keys is None:
            return None
        positions: list[Ints] = []
        for key in keys:  # a folder in the place of an object is an error of its read
            coords = self._keys.coords(key.removeprefix(prefix).rstrip("/"), len(self.grid))
            if coords is not None and all(i < n for i, n in zip(coords, self.grid, strict=True)):
                positions.append(coords)
                if not self.may_list(len(positions)):
                    return None
        if any(folder.error is not None for folder in left):  # reads of what it may have are errors
            return None
        return np.array(sorted(positions), dtype=np.int64).reshape(len(positions), len(self.grid))

    def which(self, coords: Coords) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        """Return for each position whether the object exists."""
        existing = self.coords
        if existing is None:
            return None
        if not len(existing):
            return np.zeros(len(coords), np.bool_)
        known = np.ravel_multi_index(tuple(existing.T), self.grid)
        asked = np.ravel_multi_index(tuple(coords.T), self.grid)
        at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        return np.asarray(known[at] == asked)

    def in_box(self, start: Ints, stop: Ints) -> tuple[Coords, int] | None:
        """Return the objects that touch a box of elements, and the number of all positions of the grid there."""
        existing = self.coords
        if existing is None:
            return None
        low = [a // n for a, n in zip(start, self._size, strict=True)]
        high = [-(-b // n) for b, n in zip(stop, self._size, strict=True)]
        first, last = np.searchsorted(existing[:, 0], [low[0], high[0]])
        inside = existing[first:last]
        inside = inside[((inside >= low) & (inside < high)).all(axis=1)]
        return inside, math.prod(max(0, b - a) for a, b in zip(low, high, strict=True))

    def parts(
        self, start: Ints, out: np.ndarray[Any, Any], fill: Any
    ) -> list[tuple[Ints, np.ndarray[Any, Any]]] | None:
        """Return first elements and views of the parts of a box that existing objects store; the rest gets the fill value.

        None, and nothing is written, unless most of the box is not stored.
        """
        stop = tuple(a + n for a, n in zip(start, out.shape, strict=True))
        box = self.in_box(start, stop)
        if box is None or 4 * len(box[0]) > box[1]:
            return None
        out[...] = fill
        size = np.array(self._size, dtype=np.int64)
        low = np.maximum(box[0] * size, start)
        high = np.minimum((box[0] + 1) * size, stop)
        parts = []
        for first, end in zip(low.tolist(), high.tolist(), strict=True):
            inside = tuple(slice(a - s, b - s) for a, b, s in zip(first, end, start, strict=True))
            parts.append((tuple(first), out[inside]))
        return parts

    def touched(self, size: Ints) -> Coords | None:
        """Return the positions of boxes of this size, in a grid of them, that have elements of existing objects."""
        existing = self.coords
        if existing is None:
            return None
        mine, steps = np.array(self._size, dtype=np.int64), np.array(size, dtype=np.int64)
        low = existing * mine // steps
        high = (np.minimum((existing + 1) * mine, np.array(self._shape, dtype=np.int64)) - 1) // steps
        for axis in range(len(size)):  # an object may reach into several boxes
            counts = (high - low)[:, axis] + 1
            if len(counts) and counts.max() > 1:
                first = np.cumsum(counts) - counts
                step = np.arange(counts.sum()) - np.repeat(first, counts)
                low, high = np.repeat(low, counts, axis=0), np.repeat(high, counts, axis=0)
                low[:, axis] += step
                high[:, axis] = low[:, axis]
        return np.unique(low, axis=0)


# ---------------------------------------------------------------- an array that `convert` reads


@dataclass(frozen=True)
class Encoding:
    """How the source stores a chunk that can be moved without decoding it.

    Attributes
    ----------
    codecs : tuple of Codec
        Codecs of one chunk; of a sharded array, of one inner chunk.
    before : tuple of Codec
        Transposes before the sharding.
    """

    codecs: tuple[Codec, ...]
    before: tuple[Codec, ...] = ()


class EncodedChunks(ABC):
    """The encoded chunks of a source; of a sharded array, its inner chunks."""

    @abstractmethod
    def joined(self, coords: Coords, most_nbytes: int) -> Iterator[tuple[Coords, Sequence[int], Any]]:
        """Yield positions, sizes and the joined bytes of encoded chunks that exist, those that lie side by side together.

        `coords`, of shape (n, ndim), are positions in the grid of chunks of the whole array. At most `most_nbytes`, or one chunk, are held: the next
        step overwrites the bytes.
        """


@dataclass(frozen=True, eq=False)
class SourceArray(ABC):
    """One array that is converted.

    Attributes
    ----------
    name : str
        Path in the hierarchy; empty for its root.
    place : str
        Path or URL, for messages.
    shape : tuple of int
    dtype : dtype
        In native byte order.
    fill_value : Any
    chunks : tuple of int or None
        Shape of a chunk that is decoded at a time; None if there are no chunks.
    attributes : mapping
    dimension_names : sequence of (str or None), or None
    document : mapping or None
        Its ``zarr.json``, if it has one.
    encoding : Encoding or None
        None if chunks cannot be moved without decoding them.
    notes : tuple of str
        Sentences on what the new array does not have as the source has it.
    stored : StoredObjects or None
        Which of its objects exist; None if it is not stored in objects of one shape.
    codec_names : tuple of str
        Names of its codecs, of a sharded array those of its inner chunks; empty without metadata of Zarr.
    bytes : ByteDocument or None
        Of an array whose data type the engine does not have: its metadata; `dtype` is then that of raw bytes, or of integers of the same bits.
    """

    name: str
    place: str
    shape: Ints
    dtype: DType
    fill_value: Any
    chunks: Ints | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    dimension_names: Sequence[str | None] | None = None
    document: Mapping[str, Any] | None = None
    encoding: Encoding | None = None
    notes: tuple[str, ...] = ()
    stored: StoredObjects | None = None
    codec_names: tuple[str, ...] = ()
    bytes: ByteDocument | None = None

    @property
    def data_type(self) -> str:
        """Name of the data type, for reports."""
        return str(self.dtype) if self.bytes is None else self.bytes.data_type or str(self.dtype)

    @abstractmethod
    def read(self, start: Ints, out: np.ndarray[Any, Any]) -> None:
        """Read the box that begins at the element `start` into `out`, which has its shape and any strides."""

    def encoded(self) -> EncodedChunks:
        """Return the encoded chunks; only if there is an `encoding`."""
        raise NotImplementedError("this source has no encoded chunks")

    def elements(self) -> Any:
        """Return an object that gives elements for a box, as zarr has them; only if the engine does not have the data type."""
        raise NotImplementedError("this source has a data type that the engine reads")

    def state(self, start: Ints, stop: Ints) -> str | None:
        """Return a name of the state of all objects that store a box; None if the store does not tell states cheaply."""
        return None

    def object_nbytes(self, most: int) -> tuple[int, int, int] | None:
        """Return number and total size of up to `most` objects, and the number of all, for estimates; None if unknown."""
        return None

    @property
    def objects_shape(self) -> Ints | None:
        """Shape of the elements of one stored object; None if the array is not stored in objects."""
        return self.chunks

    @property
    def shard_shape(self) -> Ints | None:
        """Shape of a shard; None if the array has no shards."""
        return None


@dataclass(frozen=True, eq=False)
class SourceTree:
    """The arrays and groups that are converted together.

    Attributes
    ----------
    place : str
        Path or URL, for messages.
    arrays : tuple of SourceArray
    groups : mapping from str to mapping
        Attributes of each group, by its path.
    consolidated : collection of str
        Paths of the groups with consolidated metadata.
    verbatim : mapping from str to Any
        Arrays whose chunks cannot be read or moved: they are copied object by object.
    others : OtherObjects or None
        The objects that belong to no array; None if there are none, or they are not copied.
    left : tuple of LeftPart
        What the new hierarchy does not have as the source has it, except objects that belong to no array and metadata of arrays.
    unchosen : collection of str
        Arrays that the user has not chosen.
    members : mapping from str to mapping
        Members of the ``zarr.json`` of groups that the specification does not define, such as those of extensions.
    """

    place: str
    arrays: tuple[SourceArray, ...]
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    consolidated: Collection[str] = ()
    verbatim: Mapping[str, Any] = field(default_factory=dict)
    others: OtherObjects | None = None
    left: tuple[LeftPart, ...] = ()
    unchosen: Collection[str] = ()
    members: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def left_arrays(self) -> list[LeftPart]:
        """The arrays that are left out."""
        return [one for one in self.left if one.kind is LeftKind.ARRAY]

    @property
    def scope(self) -> str:
        """Which objects that belong to no array are copied, as for `open_source`."""
        if self.others is None:
            return "none"
        return "all" if self.others.chosen is None else "chosen"


def file_state(path: str) -> str:
    """Return a name of the state of a file: its size and the time of its last change.

    It has no number of an inode or a device, because hosts that see the same file may number it differently.
    """
    status = os.stat(path)
    return f"{status.st_size}-{status.st_mtime_ns}"


# ---------------------------------------------------------------- any object with shape, dtype and __getitem__ as a source
#
# `ObjectSource`: arrays of numpy, dask, xarray or zarr, memory maps, and whatever else gives elements for slices.


def is_array_like(value: Any) -> bool:
    """Return True if a value has shape, dtype and `__getitem__`."""
    return all(hasattr(value, name) for name in ("shape", "dtype", "__getitem__"))


@dataclass(frozen=True, eq=False)
class ObjectSource(SourceArray):
    """An array-like object. Its reads take turns, because it may not be made for several threads."""

    values: Any = None
    turn: Any = field(default_factory=threading.Lock)

    def read(self, start: Ints, out: np.ndarray[Any, Any]) -> None:
        box = tuple(slice(a, a + n) for a, n in zip(start, out.shape, strict=True))
        with self.turn:
            try:
                elements = np.asarray(self._filled(self.values[box]))
            except MemoryError:
                raise
            except Exception as error:
                raise self.located(error, start, out.shape) from error
        if ml_name(elements.dtype) is not None:
            elements = elements.view(out.dtype)
        # a scalar of text is only as long as its text
        is_text = out.dtype.kind in "SU" and elements.dtype.kind == out.dtype.kind
        casting: Any = "safe" if is_text else "equiv"
        if elements.shape != out.shape or not np.can_cast(elements.dtype, out.dtype, casting):
            raise UnsupportedError(
                f"{self.place}: expected elements of the dtype {out.dtype} and the shape {out.shape}, got {elements.dtype} and "
                f"{elements.shape}",
                expected=(out.dtype, out.shape),
                actual=(elements.dtype, elements.shape),
            )
        np.copyto(out, elements, casting=casting)

    def _filled(self, elements: Any) -> Any:
        """Return elements with the fill value in place of those that numpy or dask have masked, whose data mean nothing."""
        is_masked = isinstance(getattr(self.values, "_meta", self.values), np.ma.MaskedArray)
        return np.ma.filled(elements, self.fill_value) if is_masked else elements

    def located(self, error: Exception, start: Ints, shape: Ints) -> Exception:
        """Return an error of a read that names what was read."""
        last = tuple(a + n for a, n in zip(start, shape, strict=True))
        return OSError(f"{self.place}: elements from {start} to {last}: {type(error).__name__}: {error}")

    @property
    def objects_shape(self) -> None:
        return None


def instead_of(values: Any) -> str:
    """Return the type of an object that cannot be converted, and what a user can give in place of it."""
    name, package = type(values).__name__, type(values).__module__.partition(".")[0]
    instead = _INSTEAD.get(package, "give numpy.asarray(source)")
    return f"{name if package == 'builtins' else f'{package}.{name}'}; {instead}"


_INSTEAD = {
    "dask": "give an array of known shape (compute_chunk_sizes) whose blocks have its dtype",
    "h5py": "give the path in its file, such as 'data.h5/images'",
    "netCDF4": "call source.set_auto_maskandscale(False) for the stored elements, or convert the file",
    "nibabel": "give numpy.asarray(source), or source.get_unscaled() for the stored elements",
    "numpy": "give elements of a fixed size, such as source.astype('U20')",
    "scipy": "give source.toarray(), or convert its parts, such as source.tocsr().data, one by one",
    "sparse": "give source.todense(), or convert its parts one by one",
    "tensorstore": "give an open TensorStore whose origin is 0, such as source.translate_to[0]",
    "xarray": "give its variables one by one, or write it with to_zarr and give the path",
    "zarr": "give source.store_path, or its path",
}


def object_source(values: Any) -> ObjectSource:
    """Return the source for an array-like object, of which one element is read.

    Raises
    ------
    UnsupportedError
        shardcodec does not have the data type, or the elements that the object gives are not of its shape and dtype.
    TypeError
        Shape or dtype are not those of an array.
    """
    try:
        fields = fields_of(values)
        if ml_name(fields["dtype"]) is not None:
            fields |= _raw_elements(fields)
        source = ObjectSource("", f"<{type(values).__name__}>", **fields)
        if all(source.shape):
            source.read((0,) * len(source.shape), np.empty((1,) * len(source.shape), source.dtype))
    except (ShardError, OSError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and isinstance(
            error.__cause__, OSError
        ):  # of what is behind the object
            raise
        kind = TypeError if isinstance(error, TypeError | ValueError) else UnsupportedError
        detail = error.message if isinstance(error, ShardError) else error
        raise kind(f"source: {detail}; this is {instead_of(values)}") from error
    return source


def _raw_elements(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a source with a data type of `ml_dtypes`, whose elements the tools treat as bytes."""
    dtype, shape = fields["dtype"], fields["shape"]
    serializer = Bytes("little" if swap_fields(dtype) else None)
    stored = ChainSpec((1,) * len(shape), dtype, fields["fill_value"], [serializer]).to_metadata(shape)
    as_bytes = byte_document(stored)
    return {"dtype": as_bytes.chain.dtype, "fill_value": as_bytes.chain.fill_value, "bytes": as_bytes}


def fields_of(values: Any, **known: Any) -> dict[str, Any]:
    """Return fields of the source for an array-like object; raise `UnsupportedError` for an unknown data type.

    `known` has the fields that the caller knows better.
    """
    given = values.dtype
    if type(values).__module__.startswith("tensorstore"):  # its data types are no types of numpy
        given = given.numpy_dtype
    dtype = packed(as_dtype(np.dtype(given)))
    fill = getattr(values, "fill_value", None)
    if fill is None or dtype.names is not None:
        fill = np.zeros((), dtype)[()]
    fields = {
        "shape": tuple(int(n) for n in values.shape),
        "dtype": dtype,
        "fill_value": fill,
        "chunks": chunks_of_object(values),
        "dimension_names": _names(values),
        "values": values,
        **known,
    }
    if "attributes" not in known:
        given = getattr(values, "attrs", None)
        given = dict(given) if isinstance(given, Mapping) or given else {}
        fields |= array_attributes(given, dtype, has_names=fields["dimension_names"] is not None)
    return fields


def array_attributes(
    given: Mapping[str, Any], dtype: DType, *, has_names: bool, fill: Any = None
) -> dict[str, Any]:
    """Return the fields `attributes` and `notes` of a source from attributes of any kind.

    xarray can read an array whose axes have names, and its mask; `fill` is the fill value, if xarray masks it.
    """
    notes: tuple[str, ...] = ()
    if has_names:
        given, notes = with_finite_missing(given, dtype, fill)
    masks = {name: value for name, value in given.items() if has_names and name == MASK}
    attributes, more = as_json_attributes({name: given[name] for name in given if name not in masks})
    notes += more
    if has_names:
        attributes, more = masked_attributes(as_json_attributes(masks)[0] | attributes, dtype, fill)
        notes += more
    return {"attributes": attributes, "notes": notes}


def chunks_of_object(values: Any) -> Ints | None:
    """Return the shape of a chunk; dask names the sizes of all chunks."""
    try:
        given = getattr(values, "chunks", None)
    except NotImplementedError:  # chunks of different shapes
        return None
    if not isinstance(given, Sequence) or len(given) != len(values.shape):
        return None
    first = [sizes[0] if isinstance(sizes, Sequence) and len(sizes) else sizes for sizes in given]
    return (
        tuple(int(n) for n in first)
        if all(isinstance(n, int | np.integer) and n > 0 for n in first)
        else None
    )


def _names(values: Any) -> tuple[str | None, ...] | None:
    """Return the names of the axes of an array of zarr or xarray."""
    for owner, name in ((getattr(values, "metadata", None), "dimension_names"), (values, "dims")):
        given = getattr(owner, name, None)
        if isinstance(given, Sequence) and len(given) == len(values.shape):
            return tuple(None if name is None else str(name) for name in given)
    return None


# ---------------------------------------------------------------- arrays that zarr decodes, as sources
#
# `DecodedSource`: an array with codecs or a grid that the engine does not have. An error of zarr names the object that caused it.


@dataclass(frozen=True, eq=False)
class DecodedSource(ObjectSource):
    """An array that zarr decodes; its objects are in `folder`."""

    folder: Folder = field(kw_only=True)

    def read(self, start: Ints, out: np.ndarray[Any, Any]) -> None:
        parts = None if self.stored is None else self.stored.parts(start, out, self.fill_value)
        for first, part in [(start, out)] if parts is None else parts:
            self._check_objects(first, part.shape)
            super().read(first, part)

    def _check_objects(self, start: Ints, shape: Ints) -> None:
        """Open the objects of a box; zarr would read a folder or a link to nothing as an object that does not exist."""
        for coords in self._objects(start, shape):
            (key,) = self.folder.keys([self.values.metadata.encode_chunk_key(coords)])
            path = self.folder.store.path(key)
            if path is not None and (opened := open_file(path)) is not None:
                opened.close()

    def located(self, error: Exception, start: Ints, shape: Ints) -> Exception:
        """Return the error of the first object of a box that zarr cannot read, with path and position of the object."""
        for coords in self._objects(start, shape):
            try:
                self.values[self._inside(coords)]
            except MemoryError:
                break
            except Exception as cause:  # noqa: BLE001 - whatever a codec of zarr raises
                return self._of_object(cause, coords)
        return super().located(error, start, shape)

    def _of_object(self, error: Exception, coords: Ints) -> Exception:
        (key,) = self.folder.keys([self.values.metadata.encode_chunk_key(coords)])
        name = self.folder.store.describe(key)
        detail = f"object {name!r} at {coords} of the grid: {type(error).__name__}: {error}"
        if isinstance(error, OSError):
            return OSError(detail)
        return CodecError(detail, shard=name, chunk_coords=coords)

    def _objects(self, start: Ints, shape: Ints) -> Iterator[Ints]:
        """Yield the positions of the objects of a box; none if they have several shapes."""
        sizes = self.object_shape
        if sizes is not None:
            ranges = (range(a // n, -(-(a + k) // n)) for a, k, n in zip(start, shape, sizes, strict=True))
            yield from itertools.product(*ranges)

    def _inside(self, coords: Ints) -> tuple[slice, ...]:
        assert self.object_shape is not None
        sizes = zip(coords, self.object_shape, self.shape, strict=True)
        return tuple(slice(at * n, min((at + 1) * n, limit)) for at, n, limit in sizes)

    @property
    def shard_shape(self) -> Ints | None:
        try:
            return getattr(self.values, "shards", None)
        except NotImplementedError:  # shards of different shapes
            return None

    @property
    def object_shape(self) -> Ints | None:
        """Shape of the elements of one stored object; None if they have several."""
        try:
            return None if self.chunks is None else self.values.shards or self.chunks
        except NotImplementedError:
            return None


def decoded_source(values: Any, name: str, folder: Folder, **known: Any) -> DecodedSource:
    """Return the source for an opened array of zarr; `known` are fields that the caller knows better.

    Raises `UnsupportedError` for a data type that shardcodec does not have.
    """
    source = DecodedSource(name, repr(folder), **fields_of(values, **known), folder=folder)
    size = source.object_shape
    if size is None or not source.shape:
        return source
    try:
        keys = key_encoding(values.metadata.to_dict())
    except ShardError:  # zarr may have more encodings
        return source
    return replace(source, stored=StoredObjects(folder, keys, source.shape, size))
