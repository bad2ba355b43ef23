# source.py - an array that convert reads: its facts, its elements
# SPDX-License-Identifier: MIT
"""An array that convert reads: its facts, its elements.

`SourceArray`: one array of any kind. `SourceTree`: the arrays and groups that are converted together.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...format.byte_document import ByteDocument
from ...format.codecs import Codec
from ...format.dtypes import DType
from ..left_parts import LeftKind, LeftPart
from ..other_objects import OtherObjects
from .stored_objects import Coords, StoredObjects

__all__ = ["EncodedChunks", "Encoding", "Ints", "SourceArray", "SourceTree", "file_state"]

Ints = tuple[int, ...]


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
    whole : str or None
        Root of the hierarchy of 2022 that the source is a node of, because all of its folder is one hierarchy.
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
    whole: str | None = None

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
