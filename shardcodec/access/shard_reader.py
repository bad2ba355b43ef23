# shard_reader.py - the reading half of `Shard`
# SPDX-License-Identifier: MIT
"""`ShardReader`: reads the index, the user bytes and the inner chunks of one shard.

Coordinates count inner chunks along the axes of the index: the axes after the transposes that come before the sharding
codec. Only `ShardReader.read_region` uses elements along the axes of the array.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from ..arguments import Renamed, checked
from ..errors import UnsupportedError
from ..format.spec import ShardSpec
from ..option_sources import Resolver, current_options
from ..options import Options, check
from .compiled_chains import compiled, output_array
from .inner_chunks import coordinates, positions
from .placement import ABSENT
from .selection import parse_selection
from .shard_object import ShardObject
from .snapshot import Snapshot

__all__ = ["ShardReader"]

Array = np.ndarray[Any, Any]


class ShardReader(Renamed):
    """The reading half of `Shard`. All reads return one state of the shard, until `refresh`.

    Parameters
    ----------
    target : ShardObject
        The object with the shard.
    spec : ShardSpec
        Layout and codecs of the shard.
    choices : mapping
        Options of this handle.
    """

    def __init__(self, target: ShardObject, spec: ShardSpec, choices: Mapping[str, Any]) -> None:
        if not isinstance(spec, ShardSpec):
            raise TypeError(f"spec: expected a ShardSpec, got {type(spec).__name__}")
        if not spec.supports_partial_access:
            raise UnsupportedError(
                f"shard {target.key!r}: expected a spec without codecs after sharding_indexed, which hide the inner chunks; "
                "use `decode`",
                shard=target.key,
            )
        self._object = target
        self._spec = spec
        self._choices = check(dict(choices))
        self._resolver = Resolver(argument=self._choices)
        self._chain = compiled(spec.chain)
        self._is_clipped = spec.chain.is_clipped
        self._seen = Snapshot(target, spec, self._chain, self._resolver)

    @property
    def spec(self) -> ShardSpec:
        """Layout and codecs of the shard."""
        return self._spec

    @property
    def key(self) -> str:
        """Name of the object: the path of a file, or the key in a store."""
        return self._object.key

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Number of inner chunks along each axis."""
        return self._spec.grid_shape

    @property
    def exists(self) -> bool:
        """True if the object exists."""
        return self._seen.exists

    @property
    def nbytes(self) -> int:
        """Size of the object in bytes; 0 if it does not exist."""
        return self._seen.nbytes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} of {self.grid_shape} inner chunks of {self._spec.chunk_shape}>"

    def _repr_html_(self) -> str:
        from . import pictures  # here, because few programs draw

        return pictures.html_of_shard(self)

    @checked
    def plot(self, file: str | os.PathLike[str] | None = None) -> Any:
        """Draw what each byte of the shard holds, and in which order the inner chunks are stored. It needs matplotlib.

        Parameters
        ----------
        file : path-like, optional
            A file to save the picture, with the suffix .png or .svg.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            The file has another suffix.
        ShardFormatError, ChecksumError
            The index, or an entry of it, is invalid.
        """
        from . import pictures  # here, because few programs draw

        return pictures.plot_layout(self, file)

    @property
    def index(self) -> Array:
        """The stored index: a read-only array of uint64, shape ``(*grid_shape, 2)``.

        It has offset and size of each inner chunk in bytes, both 2^64-1 for an absent one. All are absent if the object
        does not exist. The checksum of the index, if it has one, was verified. Entries may be invalid; `check` checks them.

        Raises
        ------
        ShardFormatError, ChecksumError
            The index is damaged.
        """
        entries = self._seen.entries(check=False).reshape(*self.grid_shape, 2)
        entries.flags.writeable = False
        return entries

    def check(self) -> None:
        """Check that the range of every entry lies inside the object and outside the index.

        Raises
        ------
        ShardFormatError
            An entry is invalid; ``.entry`` says which one.
        ChecksumError
            The index is damaged.
        """
        self._seen.entries(check=True)

    def state(self) -> Array:
        """Return which inner chunks exist.

        Returns
        -------
        ndarray of bool, shape grid_shape
            True for an existing inner chunk.

        Raises
        ------
        ShardFormatError, ChecksumError
            The index, or an entry of it, is invalid.
        """
        entries = self._seen.entries(check=True)
        return np.asarray(entries[:, 0] != ABSENT).reshape(self.grid_shape)

    def gaps(self) -> list[tuple[int, int]]:
        """Return the ranges of the object that belong neither to an inner chunk nor to the index.

        Returns
        -------
        list of (int, int)
            Offset and size of each range in bytes, in ascending order. Header and footer are among them.

        Raises
        ------
        ShardFormatError, ChecksumError
            The index, or an entry of it, is invalid.
        """
        return self._seen.gaps()

    def overlaps(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the pairs of inner chunks that share bytes.

        Returns
        -------
        list of (tuple of int, tuple of int)
            Coordinates of both inner chunks of each pair.

        Raises
        ------
        ShardFormatError, ChecksumError
            The index, or an entry of it, is invalid.
        """
        return [(self._coords(a), self._coords(b)) for a, b in self._seen.overlaps()]

    @property
    def header(self) -> bytes:
        """User bytes before the first inner chunk, without an index at the start."""
        user = self._seen.user_bytes()
        return b"" if user is None else self._seen.range(user.where.first, user.where.chunks)

    @property
    def footer(self) -> bytes:
        """User bytes after the last inner chunk, without an index at the end."""
        user = self._seen.user_bytes()
        return b"" if user is None else user.footer

    @property
    def alignment(self) -> int:
        """Alignment of the inner chunks in bytes, from the mark of the shard (``docs/user-bytes.md``).

        Without a mark it is 4096 or 512 if gaps between inner chunks show this alignment, else 1.
        """
        user = self._seen.user_bytes()
        return 1 if user is None else user.alignment

    @checked
    def read_range(self, offset: int, nbytes: int) -> bytes:
        """Read any bytes of the object.

        Parameters
        ----------
        offset : int
            First byte.
        nbytes : int
            Number of bytes.

        Returns
        -------
        bytes

        Raises
        ------
        ValueError
            The range does not lie inside the object.
        """
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise ValueError(
                f"shard {self.key!r}: expected a range inside its {self.nbytes} bytes, got {nbytes} bytes at offset {offset}"
            )
        return self._seen.range(offset, offset + nbytes)

    def read_encoded(self, coords: Any) -> list[bytes | None]:
        """Read inner chunks as they are stored, without decoding them.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
            Grid positions of the inner chunks.

        Returns
        -------
        list of (bytes or None)
            The encoded inner chunks; None for an absent one.

        Raises
        ------
        IndexError
            A position lies outside the grid.
        ShardFormatError, ChecksumError
            The index, or an entry that is needed, is invalid.
        """
        where = positions(coords, self.grid_shape)
        return self._seen.read(lambda: self._seen.encoded(where))

    def read_chunks(self, coords: Any, out: Array | None = None) -> Array:
        """Read and decode inner chunks. Absent ones hold the fill value.

        Parameters
        ----------
        coords : sequence of tuples of int, or integer array of shape (n, ndim)
            Grid positions of the inner chunks.
        out : ndarray, shape (n, *chunk_shape), optional
            The array to read into, with the dtype of the spec; any strides, either byte order. Its content is unspecified
            after an error.

        Returns
        -------
        ndarray, shape (n, *chunk_shape)
            `out`, or a new array in C order.

        Raises
        ------
        IndexError
            A position lies outside the grid.
        TypeError, ValueError
            `out` has another dtype or shape, or is read-only.
        ShardFormatError, ChecksumError, CodecError
            An inner chunk is damaged; ``.chunk_coords`` says which one.
        UnsupportedError
            An inner chunk is clipped, so that it has another shape.
        """
        where = positions(coords, self.grid_shape)
        self._refuse_clipped(where)
        shape = (len(where), *self._spec.chunk_shape)
        out, chain = self._output(out, shape, self._spec.inner)
        self._seen.read(lambda: self._seen.decode(where, chain, out, self._options()))
        return out

    def read_region(self, selection: Any = None, out: Array | None = None) -> Array:
        """Read elements of the shard. Elements of absent inner chunks are the fill value.

        Parameters
        ----------
        selection : optional
            Integers, slices with positive step, an ellipsis, or a tuple of them. Default: all.
        out : ndarray, optional
            The array to read into, with the shape of the selection and the dtype of the spec; any strides, either byte
            order. Its content is unspecified after an error.

        Returns
        -------
        ndarray
            `out`, or a new array in C order; of rank 0 if the selection consists of integers.

        Raises
        ------
        IndexError
            The selection is of another kind, or it lies outside the shard.
        TypeError, ValueError
            `out` has another dtype or shape, or is read-only.
        ShardFormatError, ChecksumError, CodecError
            An inner chunk is damaged; ``.chunk_coords`` says which one.
        """
        box, axes, shape = parse_selection(selection, self._spec.shard_shape)
        out, chain = self._output(out, shape, self._spec.chain)
        if 0 not in box.count:
            self._seen.read(lambda: self._seen.fill(box, axes, chain, out, self._options()))
        return out

    def _refuse_clipped(self, where: list[int]) -> None:
        """Raise UnsupportedError if an inner chunk is clipped: arrays of inner chunks need one shape."""
        sizes, limits = self._spec.chunk_shape, self._spec.stored_shape
        for coords in map(self._coords, where) if self._is_clipped else ():
            if any((c + 1) * size > limit for c, size, limit in zip(coords, sizes, limits, strict=True)):
                raise UnsupportedError(
                    f"shard {self.key!r}: expected inner chunks of shape {sizes}, but inner chunk {coords} is clipped; use "
                    "`read_region`, or `read_encoded` and `write_encoded`",
                    shard=self.key,
                    chunk_coords=coords,
                )

    def _output(self, out: Array | None, shape: tuple[int, ...], spec: Any) -> tuple[Array, Any]:
        out, native_order = output_array(out, shape, self._spec.dtype)
        return out, compiled(spec, native_order)

    def refresh(self) -> Self:
        """Forget the state of the object, so that the next read opens it again.

        Returns
        -------
        Shard
            This handle.
        """
        self.close()
        return self

    def close(self) -> None:
        """Close the object; the next use of the handle opens it again."""
        self._seen.drop()

    def tobytes(self) -> bytes:
        """Return the whole object.

        Returns
        -------
        bytes
            Empty if the object does not exist.
        """
        return self._seen.range(0, self.nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _options(self, **choices: Any) -> Options:
        if not choices:
            return self._resolver.resolve()
        return current_options(argument=self._choices | check(choices))

    def _coords(self, position: int) -> tuple[int, ...]:
        return coordinates(position, self.grid_shape)
