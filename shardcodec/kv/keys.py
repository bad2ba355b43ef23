# keys.py - the names of a shard's entries: arithmetic without any store
# SPDX-License-Identifier: MIT
"""Keys: for each axis of the grid the index as 32 bits, most significant byte first.

So all keys of a grid are equally long, and their lexicographic order is C order over the grid: a range of keys, whatever its
bounds, is a range of positions.

Source: TensorStore, kvstore driver `zarr3_sharding_indexed`, "Key"; requirements KV-10 to KV-12, KV-36, KV-41.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Grid", "Key", "KeyRange", "as_bytes", "escaped"]

Key = bytes | bytearray | memoryview | str

AXIS_NBYTES = 4


class KeyRange(NamedTuple):
    """Keys from a lower bound on, up to an upper bound that is not among them.

    The bounds are any bytes, also such as are no keys of the grid. An empty upper bound is none.
    """

    inclusive_min: bytes = b""
    exclusive_max: bytes = b""

    @classmethod
    def prefix(cls, prefix: bytes) -> KeyRange:
        """Return the range of all keys that begin so."""
        prefix = as_bytes(prefix, "prefix")
        return cls(prefix, _after_prefix(prefix))


def _after_prefix(prefix: bytes) -> bytes:
    """The first bytes behind all that begin with a prefix; empty where there are none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else b""


def as_bytes(data: Any, what: str) -> bytes:
    """Return a key or value as bytes; text as UTF-8.

    Raises
    ------
    TypeError
        It is neither.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"a {what} is bytes or str, not {type(data).__name__}") from None


def escaped(data: bytes) -> str:
    """Return bytes as TensorStore shows them: what is printable as it is, all else with a backslash."""
    special = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}
    parts: list[str] = []
    after_hex = False
    for byte in data:
        is_digit = chr(byte) in "0123456789abcdefABCDEF"
        if byte in special:
            parts.append(special[byte])
            after_hex = False
        elif 32 <= byte < 127 and not (after_hex and is_digit):
            parts.append(chr(byte))
            after_hex = False
        else:
            parts.append(f"\\x{byte:02x}")
            after_hex = True
    return "".join(parts)


class Grid:
    """The keys of a grid, those that begin with a prefix, which is not written out.

    Parameters
    ----------
    shape : tuple of int
        Entries along each axis.
    prefix : bytes
        What every key begins with; the store's ``path``.
    """

    def __init__(self, shape: tuple[int, ...], prefix: bytes = b"") -> None:
        self.shape = shape
        self.prefix = prefix
        self.n = math.prod(shape)
        self.key_nbytes = AXIS_NBYTES * len(shape)
        self._unpack = struct.Struct(f">{len(shape)}I").unpack
        self._strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self._axes = tuple(zip(shape, self._strides, strict=True))

    def position(self, key: Key) -> int:
        """Return an entry's number, C order over the grid.

        Raises
        ------
        ValueError
            No entry has that key (KV-11).
        """
        if not isinstance(key, bytes):
            key = as_bytes(key, "key")
        if self.prefix:
            key = self.prefix + key
        if len(key) != self.key_nbytes:
            raise self.invalid(key)
        position = 0
        for index, (extent, stride) in zip(self._unpack(key), self._axes):  # noqa: B905  # both of the grid's rank
            if index >= extent:
                raise self.invalid(key)
            position += index * stride
        return position

    def positions(self, keys: Sequence[Key]) -> np.ndarray[Any, Any]:
        """Return the numbers of many entries, uint64; as `position`."""
        if not keys:
            return np.empty(0, dtype=np.uint64)
        whole = [self.prefix + as_bytes(key, "key") for key in keys]
        if not self.shape or set(map(len, whole)) != {self.key_nbytes}:
            return np.array([Grid(self.shape).position(key) for key in whole], dtype=np.uint64)
        indices = np.frombuffer(b"".join(whole), dtype=">u4").reshape(len(whole), -1).astype(np.uint64)
        outside = np.any(indices >= np.array(self.shape, dtype=np.uint64), axis=1)
        if outside.any():
            raise self.invalid(whole[int(np.argmax(outside))])
        return np.asarray(indices @ np.array(self._strides, dtype=np.uint64))

    def invalid(self, key: bytes) -> ValueError:
        """Return the error for what is no key, prefix and all."""
        shape = ", ".join(map(str, self.shape))
        return ValueError(f'Invalid key (grid_shape={{{shape}}}): "{escaped(key)}"')

    def span(self, keys: KeyRange) -> tuple[int, int]:
        """Return the positions [first, end) of the keys of this store in a range, which is relative to the prefix."""
        low = self.prefix + as_bytes(keys.inclusive_min, "bound")
        high = (
            self.prefix + as_bytes(keys.exclusive_max, "bound")
            if keys.exclusive_max
            else _after_prefix(self.prefix)
        )
        first = self._n_before(low)
        return first, max(first, self._n_before(high) if high else self.n)

    def _n_before(self, bound: bytes) -> int:
        """How many keys of the grid come before some bytes."""
        n = 0
        for axis, (extent, stride) in enumerate(self._axes):
            part = bound[AXIS_NBYTES * axis : AXIS_NBYTES * (axis + 1)]
            index = int.from_bytes(part.ljust(AXIS_NBYTES, b"\0"))
            n += min(index, extent) * stride
            if index >= extent or len(part) < AXIS_NBYTES:
                return n
        return n + (len(bound) > self.key_nbytes)
