# keys.py - keys of chunks and of shards; byte ranges of values
# SPDX-License-Identifier: MIT
"""Keys of chunks and of shards; byte ranges of values.

Keys of chunks and of shards.

A shard has the key that a chunk would have in an array whose chunks are the shards: with 32 x 2 chunks in a shard, the
chunks ``c96/18`` and ``c127/19`` of the draft of 2022 are in the shard ``c3/9``.

Source: storage transformer "sharding" 1.0 (2022), "Key translation"; Zarr v3 core specification, draft of 2022,
"Storage keys", and 3.1, "Chunk key encoding".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ..arguments import checked, show
from ..compat import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from ..format.checks import as_int_tuple
from ..format.chunk_keys import KeyEncoding

__all__ = [
    "ArrayKeys",
    "KeyLayout",
    "as_path",
    "as_request",
    "cut",
    "request_to_send",
]

Ints = tuple[int, ...]

# ASCII digits without leading zeros. A key with another spelling is not a chunk key; the store below has it.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class KeyLayout:
    """Names of the chunks of an array: ``<folder>/<path of the array>/<lead>1<separator>2``.

    Use `v3`, `v2` or `draft_2022` to make one.

    Parameters
    ----------
    folder : str
        Folder of all arrays.
    lead : str
        Text before the first number.
    separator : {"/", "."}
        Text between two numbers.
    scalar : str
        Name of the only chunk of an array without axes.

    Raises
    ------
    ValueError
        The separator is neither "/" nor ".".

    Examples
    --------
    >>> layout = transformer.KeyLayout.v3()
    >>> layout.key("volume", (1, 2))
    'volume/c/1/2'
    """

    folder: str
    lead: str
    separator: str
    scalar: str

    @classmethod
    @checked
    def v3(cls, separator: str = "/") -> Self:
        """Return the ``default`` encoding of Zarr v3: ``a/c/96/18``, or ``a/c.96.18``.

        Parameters
        ----------
        separator : {"/", "."}
            Text between two numbers.

        Returns
        -------
        KeyLayout

        Raises
        ------
        ValueError
            The separator is neither "/" nor ".".
        """
        return cls._of(KeyEncoding(True, separator))

    @classmethod
    @checked
    def v2(cls, separator: str = ".") -> Self:
        """Return the ``v2`` encoding of Zarr v3: ``a/96.18``, or ``a/96/18``; see `v3`."""
        return cls._of(KeyEncoding(False, separator))

    @classmethod
    @checked
    def draft_2022(cls, separator: str = "/") -> Self:
        """Return the encoding of the draft of 2022: ``data/root/a/c96/18``, or ``data/root/a/c96.18``; see `v3`."""
        return cls("data/root", "c", separator, "c0")

    @classmethod
    def _of(cls, encoding: KeyEncoding) -> Self:
        return cls("", encoding.prefix, encoding.separator, encoding.key(()))

    def __post_init__(self) -> None:
        if self.separator not in ("/", "."):
            raise ValueError(f'separator: expected "/" or ".", got {self.separator!r}')

    def base(self, path: str) -> str:
        """Return the prefix of all chunk keys of an array.

        Parameters
        ----------
        path : str
            Path of the array in the store.

        Returns
        -------
        str
            Empty, or with a slash at its end.
        """
        return "".join(f"{part}/" for part in (self.folder, path) if part)

    def key(self, path: str, coords: Ints) -> str:
        """Return the key of a chunk.

        Parameters
        ----------
        path : str
            Path of the array in the store; "" for the root.
        coords : tuple of int
            Grid position of the chunk: its number along each axis.

        Returns
        -------
        str
            Key in the store, with the path of the array.
        """
        name = self.lead + self.separator.join(map(str, coords)) if coords else self.scalar
        return self.base(path) + name

    def coords(self, path: str, key: str, ndim: int) -> Ints | None:
        """Return the grid position of a chunk from its key; the inverse of `key`.

        Parameters
        ----------
        path : str
            Path of the array in the store; "" for the root.
        key : str
            Key in the store, with the path of the array. Any string is allowed.
        ndim : int
            Number of axes of the array.

        Returns
        -------
        tuple of int or None
            `ndim` numbers, which may lie outside of the array. None if the key is not a chunk key of this array: it has
            another prefix, another number of axes, or a number with a sign or a leading zero.
        """
        if not isinstance(key, str):
            raise TypeError(f"key: expected a string, got {show(key)}")
        name = key.removeprefix(self.base(path))
        if len(name) + len(self.base(path)) != len(key):
            return None
        if not ndim:
            return () if name == self.scalar else None
        if not name.startswith(self.lead):
            return None
        parts = name[len(self.lead) :].split(self.separator)
        if len(parts) != ndim or not all(map(_NUMBER.fullmatch, parts)):
            return None
        return tuple(map(int, parts))


def as_path(path: str) -> str:
    """Return the path of an array in a store, checked and without slashes at its ends.

    ValueError: a name in the path is empty or consists of dots.
    """
    parts = path.strip("/").split("/")
    if parts != [""] and not all(part.strip(".") for part in parts):
        raise ValueError(f"path: expected parts that are neither empty nor dots, got {path!r}")
    return "/".join(parts)


class ArrayKeys:
    """Keys of the chunks and shards of one array, whose path in the store is `path`; chunks_per_shard is along each axis."""

    def __init__(self, layout: KeyLayout, path: str, chunks_per_shard: Sequence[int]) -> None:
        self.layout = layout
        self.path = path
        self.per_shard: Ints = as_int_tuple(chunks_per_shard, "chunks_per_shard", minimum=1)
        self.ndim: int = len(self.per_shard)
        self.n_chunks: int = math.prod(self.per_shard)
        self.region: str = layout.base(path) + (layout.lead if self.ndim else layout.scalar)
        """Common start of the keys of all chunks and shards."""

    def locate(self, key: str) -> tuple[str, int] | None:
        """Return (key of the shard, position in its index) for the key of a chunk; None if `key` is not a chunk key.

        The shard and the chunk need not exist.
        """
        coords = self.layout.coords(self.path, key, self.ndim)
        if coords is None:
            return None
        position = 0
        for at, n in zip(coords, self.per_shard, strict=True):
            position = position * n + at % n
        shard = tuple(at // n for at, n in zip(coords, self.per_shard, strict=True))
        return self.layout.key(self.path, shard), position

    def shard(self, key: str) -> Ints | None:
        """Return the grid position of a shard, in units of shards, from its key; None if `key` is not a shard key."""
        return self.layout.coords(self.path, key, self.ndim)

    def chunk(self, shard: Ints, position: int) -> str:
        """Return the key of a chunk from the grid position of its shard and its position in the index of the shard."""
        inside = []
        for n in reversed(self.per_shard):
            position, at = divmod(position, n)
            inside.append(at)
        coords = (s * n + i for s, n, i in zip(shard, self.per_shard, reversed(inside), strict=True))
        return self.layout.key(self.path, tuple(coords))

    def fixed(self, prefix: str) -> Ints | None:
        """Return the coordinates along the first axes that all chunk keys with this prefix share.

        Empty if the prefix determines none, also if it ends within the common start of the keys. None if no chunk key
        can have this prefix. A number counts only if a separator follows: ``c/1`` is also a prefix of ``c/10``.
        Coordinates may lie outside of the array.
        """
        if not self.ndim or not prefix.startswith(self.region):
            return () if self.region.startswith(prefix) else None
        *parts, last = prefix[len(self.region) :].split(self.layout.separator)
        if len(parts) >= self.ndim or not all(map(_NUMBER.fullmatch, [*parts, last or "0"])):
            return None
        return tuple(map(int, parts))

    def shards_below(self, fixed: Ints) -> str:
        """Return the common prefix of the keys of the shards with chunks at these coordinates along the first axes."""
        shard = (at // n for at, n in zip(fixed, self.per_shard, strict=False))
        return self.region + "".join(f"{at}{self.layout.separator}" for at in shard)

    def positions_below(self, fixed: Ints) -> Iterator[int]:
        """Yield the positions, in the index of a shard of `shards_below`, of the chunks at these coordinates."""
        first = 0
        for at, n in zip(fixed, self.per_shard, strict=False):
            first = first * n + at % n
        n_each = math.prod(self.per_shard[len(fixed) :])
        yield from range(first * n_each, (first + 1) * n_each)


# Byte ranges of values, cut to the bytes that the value has.
#
# A range never reaches beyond its value. The transformer of zarr 2.18 returned bytes of the next chunk and of the index.
#
# Source: Zarr v3 core specification, draft of 2022, "Abstract store interface"; `zarr.abc.store.ByteRequest`.


@dataclass(frozen=True)
class _Tail:
    """A range that starts `suffix` bytes before the end of the value and has `nbytes` bytes. zarr has no such request."""

    suffix: int
    nbytes: int


def as_request(request: Any, *, pairs: bool = False) -> Any:
    """Return zarr's request for bytes of a value, checked; None for the whole value.

    pairs: accept also a pair of the draft, (start, length), or (start, None) for the rest; a negative start counts from the
    end.
    """
    match request:
        case None:
            return None
        case RangeByteRequest(start, end):
            if not 0 <= start <= end:
                raise ValueError(f"byte_range: expected 0 <= start <= end, got start {start} and end {end}")
            return request
        case OffsetByteRequest(n) | SuffixByteRequest(n):
            if n < 0:
                raise ValueError(f"byte_range: expected a number of bytes >= 0, got {request!r}")
            return request
        case (int(start), None) if pairs:
            return OffsetByteRequest(start) if start >= 0 else SuffixByteRequest(-start)
        case (int(start), int(length)) if pairs:
            if length < 0:
                raise ValueError(f"byte_range: expected a length >= 0, got {length}")
            if start >= 0:
                return RangeByteRequest(start, start + length)
            return SuffixByteRequest(-start) if start + length >= 0 else _Tail(-start, length)
    raise TypeError(f"Unexpected byte_range, got {request!r}.")  # the message of zarr's stores


def request_to_send(request: Any) -> Any:
    """Return the request to send to a zarr store; None if the caller must fetch the whole value and `cut` it."""
    return None if isinstance(request, _Tail) else request


def cut(request: Any, nbytes: int) -> tuple[int, int]:
    """Return (first byte, size) of a request in a value of `nbytes` bytes."""
    match request:
        case None:
            return 0, nbytes
        case RangeByteRequest(start, end):
            first = min(start, nbytes)
            return first, min(end, nbytes) - first
        case OffsetByteRequest(offset):
            first = min(offset, nbytes)
            return first, nbytes - first
        case SuffixByteRequest(suffix):
            size = min(suffix, nbytes)
            return nbytes - size, size
        case _Tail():
            first, end = nbytes - request.suffix, nbytes - request.suffix + request.nbytes
            return max(first, 0), max(end, 0) - max(first, 0)
    raise TypeError(f"expected a byte request, got {request!r}")
