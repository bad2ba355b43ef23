# source.py - what `convert` needs to know of an array that it reads
# SPDX-License-Identifier: MIT
"""`SourceArray`: one array of any kind. `SourceTree`: the arrays and groups that are converted together."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...format.byte_document import ByteDocument
from ...format.codecs import Codec
from ...format.dtypes import DType
from ..left_array import LeftArray
from ..other_objects import OtherObjects
from .stored_objects import StoredObjects

__all__ = [
    "Coords",
    "EncodedChunks",
    "Encoding",
    "Ints",
    "SourceArray",
    "SourceTree",
    "file_state",
    "group_notes",
]

Ints = tuple[int, ...]
Coords = np.ndarray[Any, np.dtype[np.int64]]


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
        """Yield encoded chunks, those that lie side by side together.

        Parameters
        ----------
        coords : ndarray of int, shape (n, ndim)
            Positions in the grid of chunks of the whole array, by axis of the array.
        most_nbytes : int
            Bytes to hold at a time; at least one chunk is held.

        Yields
        ------
        coords : ndarray of int, shape (m, ndim)
            Positions of chunks that exist.
        sizes : sequence of int
            Their sizes in bytes.
        data : buffer
            Their bytes, one after the other. The next step overwrites it.
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
        Of an array whose data type the engine does not have: its metadata; `dtype` is then that of raw bytes.
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
        """Read a box of the array.

        Parameters
        ----------
        start : tuple of int
            Its first element.
        out : ndarray
            The array to read into; its shape is that of the box. Any strides.
        """

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
    is_consolidated : bool
        The root has consolidated metadata.
    verbatim : mapping from str to Any
        Arrays whose chunks cannot be read or moved: they are copied object by object.
    others : OtherObjects or None
        The objects that belong to no array; None if there are none, or they are not copied.
    notes : tuple of str
        Sentences on what the new groups do not have as those of the source.
    left : tuple of LeftArray
        Arrays that no array of Zarr v3 can hold: they are left out.
    """

    place: str
    arrays: tuple[SourceArray, ...]
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_consolidated: bool = False
    verbatim: Mapping[str, Any] = field(default_factory=dict)
    others: OtherObjects | None = None
    notes: tuple[str, ...] = ()
    left: tuple[LeftArray, ...] = ()

    @property
    def scope(self) -> str:
        """Which objects that belong to no array are copied, as for `open_source`."""
        if self.others is None:
            return "none"
        return "all" if self.others.chosen is None else "chosen"


def group_notes(name: str, notes: Sequence[str]) -> list[str]:
    """Return sentences that name their group."""
    return [f"group {name or '/'}: {note}" for note in notes]


def file_state(path: str) -> str:
    """Return a name of the state of a file: its size and the time of its last change.

    It has no number of an inode or a device, because hosts that see the same file may number it differently.
    """
    found = os.stat(path)
    return f"{found.st_size}-{found.st_mtime_ns}"
