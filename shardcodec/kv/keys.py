# keys.py - keys of the entries of a shard: arithmetic without a store
# SPDX-License-Identifier: MIT
"""Keys of entries: the index along each axis of the grid as 32 bits, most significant byte first.

All keys of a grid have the same length, and their lexicographic order is C order over the grid. So each range of keys
is a range of positions, also if its bounds are not keys.

Source: TensorStore, kvstore driver `zarr3_sharding_indexed`, "Key"; requirements KV-10 to KV-12, KV-36, KV-41.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Grid", "Key", "KeyRange", "as_bytes", "escape"]

Key = bytes | bytearray | memoryview | str

AXIS_NBYTES = 4


class KeyRange(NamedTuple):
    """A half-open range of keys in lexicographic order of their bytes.

    Attributes
    ----------
    inclusive_min : bytes
        Lower bound; any bytes, which need not be a key of the grid.
    exclusive_max : bytes
        Upper bound, not included; any bytes. Empty: the range has no upper bound.
    """

    inclusive_min: bytes = b""
    exclusive_max: bytes = b""

    @classmethod
    def prefix(cls, prefix: bytes) -> KeyRange:
        """Return the range of all keys that start with a prefix.

        Parameters
        ----------
        prefix : bytes or str
            The prefix; text stands for its UTF-8 bytes.

        Returns
        -------
        KeyRange

        Raises
        ------
        TypeError
            `prefix` is neither bytes nor str.
        """
        prefix = as_bytes(prefix, "prefix")
        return cls(prefix, _after_prefix(prefix))


def _after_prefix(prefix: bytes) -> bytes:
    """Return the upper bound of all keys that start with a prefix; empty if there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else b""


def as_bytes(data: Any, what: str) -> bytes:
    """Return a key or a value as bytes; text as UTF-8.

    Raises
    ------
    TypeError
        `data` is neither bytes-like nor str.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"{what}: expected bytes or str, got {type(data).__name__}") from None


def escape(data: bytes) -> str:
    """Return bytes in TensorStore's notation: printable ASCII as it is, other bytes with a backslash."""
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
    """The keys of a grid that start with a prefix; callers leave the prefix out.

    Parameters
    ----------
    shape : tuple of int
        Number of entries along each axis.
    prefix : bytes
        Common start of all keys, the ``path`` of the store.
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
        """Return the position of an entry, its number in C order over the grid.

        Raises
        ------
        ValueError
            No entry has this key (KV-11).
        TypeError
            `key` is neither bytes-like nor str.
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
        """Return the positions of several entries as uint64; raises as `position`."""
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
        """Return the error for bytes that are no key; `key` includes the prefix."""
        shape = ", ".join(map(str, self.shape))
        return ValueError(f'Invalid key (grid_shape={{{shape}}}): "{escape(key)}"')

    def span(self, keys: KeyRange) -> tuple[int, int]:
        """Return the positions [first, end) of the keys in a range; the bounds do not include the prefix."""
        low = self.prefix + as_bytes(keys.inclusive_min, "bound")
        high = (
            self.prefix + as_bytes(keys.exclusive_max, "bound")
            if keys.exclusive_max
            else _after_prefix(self.prefix)
        )
        first = self._n_before(low)
        return first, max(first, self._n_before(high) if high else self.n)

    def _n_before(self, bound: bytes) -> int:
        """Return the number of keys of the grid that are less than a bound."""
        n = 0
        for axis, (extent, stride) in enumerate(self._axes):
            part = bound[AXIS_NBYTES * axis : AXIS_NBYTES * (axis + 1)]
            index = int.from_bytes(part.ljust(AXIS_NBYTES, b"\0"))
            n += min(index, extent) * stride
            if index >= extent or len(part) < AXIS_NBYTES:
                return n
        return n + (len(bound) > self.key_nbytes)
