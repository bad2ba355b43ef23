# keys.py - keys, byte ranges, conditions and results of the key-value store
# SPDX-License-Identifier: MIT
"""Keys, byte ranges, conditions and results of the key-value store.

A key is the index of an entry along each axis of the grid as 32 bits, most significant byte first. All keys of a grid
have the same length, and their lexicographic order is C order over the grid. So each range of keys is a range of
positions, even if its bounds are not keys.

Source: TensorStore, kvstore driver `zarr3_sharding_indexed`, "Key"; requirements KV-10 to KV-12, KV-36, KV-41.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from operator import index
from reprlib import repr as shown
from typing import Any, NamedTuple, Self

import numpy as np

from ..access.opened_shard import NO_OBJECT, UNKNOWN, OpenedShard
from ..errors import ConflictError, ShardError

__all__ = [
    "FAILED",
    "NO_VALUE",
    "PENDING",
    "UNNAMED",
    "ByteRange",
    "ConditionFailed",
    "ConflictError",
    "Grid",
    "Key",
    "KeyRange",
    "ReadResult",
    "Stamp",
    "TooLarge",
    "as_bytes",
    "byte_range_of",
    "byte_ranges_of",
    "check_known",
    "condition_of",
    "escape",
    "is_known",
    "is_there",
    "pairs_of",
    "range_of",
    "result_of",
    "value_of",
]

Key = bytes | bytearray | memoryview | str

AXIS_NBYTES = 4


class _Bounds(NamedTuple):
    inclusive_min: bytes = b""
    exclusive_max: bytes = b""


class KeyRange(_Bounds):
    """A half-open range of keys in lexicographic order of their bytes.

    Attributes
    ----------
    inclusive_min : bytes
        Lower bound; any bytes, which need not be a key of the grid.
    exclusive_max : bytes
        Upper bound, not included; any bytes. Empty: the range has no upper bound.

    Examples
    --------
    >>> kv.KeyRange.prefix(b"ab")
    KeyRange(inclusive_min=b'ab', exclusive_max=b'ac')
    """

    __slots__ = ()

    def __new__(cls, inclusive_min: bytes | str = b"", exclusive_max: bytes | str = b"") -> Self:
        return super().__new__(
            cls, as_bytes(inclusive_min, "inclusive_min"), as_bytes(exclusive_max, "exclusive_max")
        )

    @classmethod
    def prefix(cls, prefix: bytes | str) -> KeyRange:
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
        start = as_bytes(prefix, "prefix")
        return cls(start, _after_prefix(start))


def _after_prefix(prefix: bytes) -> bytes:
    """Return the upper bound of all keys that start with a prefix; empty if there is none."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1]) if head else b""


def as_bytes(data: Any, what: str) -> bytes:
    """Return a key or a value as bytes; text as UTF-8. TypeError: `data` is neither bytes-like nor str."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"{what}: expected bytes or str, got {type(data).__name__}") from None


def escape(data: bytes) -> str:
    """Return bytes in TensorStore's notation: printable ASCII unchanged, other bytes with a backslash."""
    special = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}
    characters: list[str] = []
    after_hex = False
    for byte in data:
        is_digit = chr(byte) in "0123456789abcdefABCDEF"
        if byte in special:
            characters.append(special[byte])
            after_hex = False
        elif 32 <= byte < 127 and not (after_hex and is_digit):
            characters.append(chr(byte))
            after_hex = False
        else:
            characters.append(f"\\x{byte:02x}")
            after_hex = True
    return "".join(characters)


class Grid:
    """The keys of a grid that start with a prefix, the ``path`` of the store; callers leave the prefix out."""

    def __init__(self, shape: tuple[int, ...], prefix: bytes = b"") -> None:
        self.shape = shape
        self.prefix = prefix
        self.n: int = math.prod(shape)
        self.key_nbytes: int = AXIS_NBYTES * len(shape)
        self._unpack = struct.Struct(f">{len(shape)}I").unpack
        self._strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self._axes = tuple(zip(shape, self._strides, strict=True))

    def position(self, key: Key) -> int:
        """Return the position of an entry, its number in C order over the grid. ValueError: no entry has this key (KV-11)."""
        if not isinstance(key, bytes):
            key = as_bytes(key, "key")
        if self.prefix:
            key = self.prefix + key
        if len(key) != self.key_nbytes:
            raise self.invalid(key)
        position = 0
        for at, (extent, stride) in zip(self._unpack(key), self._axes):  # noqa: B905  # both of the grid's rank
            if at >= extent:
                raise self.invalid(key)
            position += at * stride
        return position

    def positions(self, keys: Sequence[Key]) -> np.ndarray[Any, Any]:
        """Return the positions of several entries as uint64; raises as `position`."""
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            raise TypeError(f"keys: expected a sequence of keys, got {shown(keys)}")
        if not len(keys):
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
        """Return the error for bytes that are not a key; `key` includes the prefix."""
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
            digits = bound[AXIS_NBYTES * axis : AXIS_NBYTES * (axis + 1)]
            at = int.from_bytes(digits.ljust(AXIS_NBYTES, b"\0"))
            n += min(at, extent) * stride
            if at >= extent or len(digits) < AXIS_NBYTES:
                return n
        return n + (len(bound) > self.key_nbytes)


# Generation of a shard that does not exist. As a condition of a write: the entry must be absent.
NO_VALUE = NO_OBJECT
# Generation in the stamp of a write that changed nothing because its condition did not hold.
FAILED = b""
# Generation of every existing shard in a store that does not identify states of its objects.
UNNAMED = UNKNOWN
# Generation of a buffered write in an open transaction; no stored state has it.
PENDING = b"\x06"


class Stamp(NamedTuple):
    """A state of the shard, and the time at which the shard was in that state.

    Attributes
    ----------
    generation : bytes
        Identifies the state of the whole shard. `NO_VALUE`: the shard does not exist. `UNNAMED`: the store does not
        identify states of its objects. `FAILED` (empty): the condition of a write did not hold. `PENDING`: a buffered
        write of a transaction.
    time : float
        Seconds since the epoch.
    """

    generation: bytes
    time: float


class ReadResult(NamedTuple):
    """The result of a read.

    Attributes
    ----------
    state : {"value", "missing", "unspecified"}
        ``"unspecified"``: the shard still has the generation that the caller gave as ``if_not_equal``.
    value : bytes
        The value; empty unless `state` is ``"value"``.
    stamp : Stamp
        State of the shard from which the value was read.
    """

    state: str
    value: bytes
    stamp: Stamp


# First byte and end (exclusive). A negative first byte counts from the end of the value. None: to the end of the value.
ByteRange = tuple[int, int | None]


class ConditionFailed(Exception):
    """The condition of a write does not hold."""


class TooLarge(Exception):
    """The read is too large for the event loop; the caller uses a thread instead."""


def condition_of(if_equal: bytes | str | None) -> bytes | None:
    """Return the generation of a condition: `NO_VALUE` if the entry must be absent; None without a condition.

    ValueError: `if_equal` is `FAILED` or `UNNAMED`, which identify no state. TypeError: it is neither bytes nor "absent".
    """
    if if_equal is None:
        return None
    if isinstance(if_equal, str) and if_equal == "absent":
        return NO_VALUE
    if not isinstance(if_equal, bytes):
        raise TypeError(f'if_equal: expected a generation (bytes) or "absent", got {shown(if_equal)}')
    if if_equal == FAILED:
        raise ValueError(
            "if_equal: expected a generation, got FAILED (empty), the result of a write whose condition did not hold; "
            "read the entry for its generation"
        )
    if if_equal == UNNAMED:
        raise ValueError(
            "if_equal: expected a generation, got UNNAMED: the store does not identify states of its objects, so no write "
            "can depend on one; write without if_equal"
        )
    return if_equal


def is_there(shard: OpenedShard, position: int) -> bool:
    """Return True if the entry exists, even if it is damaged."""
    try:
        return not shard.missing and shard.entry(position) is not None
    except ShardError:
        return True  # a damaged entry exists; reading it raises


def check_known(if_not_equal: object) -> None:
    """Raise `TypeError` if the argument is not a generation."""
    if if_not_equal is not None and not isinstance(if_not_equal, bytes):
        raise TypeError(f"if_not_equal: expected a generation (bytes), got {shown(if_not_equal)}")


def is_known(generation: bytes, if_not_equal: bytes | None) -> bool:
    """Return True if the shard exists and still has the generation that the caller knows."""
    return generation == if_not_equal and generation not in (NO_VALUE, UNNAMED)


def result_of(value: bytes | None, stamp: Stamp) -> ReadResult:
    """Return the result for a value; a value of None is absent."""
    return ReadResult("missing", b"", stamp) if value is None else ReadResult("value", value, stamp)


def value_of(given: Any) -> bytes | None:
    """Return a value as bytes; None stands for a deletion."""
    return None if given is None else as_bytes(given, "value")


def byte_range_of(given: slice | None) -> ByteRange | None:
    """Return a slice as a byte range; None stands for the whole value.

    ValueError: it has a step, a negative stop, a negative start with a stop, or a stop before its start (KV-23). TypeError:
    `given` is not a slice of integers.
    """
    if given is None:
        return None
    if not isinstance(given, slice):
        raise TypeError(f"byte_range: expected a slice, got {given!r}")
    first = 0 if given.start is None else index(given.start)
    end = None if given.stop is None else index(given.stop)
    if given.step not in (None, 1) or (end is not None and (end < 0 or first < 0 or end < first)):
        start = "None" if given.start is None else given.start
        raise ValueError(f"Unsupported byte_range slice: {start}:{end}")
    return first, end


def byte_ranges_of(given: Any, n: int) -> list[ByteRange | None] | None:
    """Return n slices as byte ranges; None for n whole values. Raises as `byte_range_of`, and ValueError for another number of slices."""
    if given is None:
        return None
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"byte_ranges: expected a sequence of slices, got {shown(given)}")
    ranges = [byte_range_of(item) for item in given]
    if len(ranges) != n:
        raise ValueError(f"byte_ranges: expected {n} items, one for each key, got {len(ranges)}")
    return None if all(item is None for item in ranges) else ranges


def range_of(given: Any) -> KeyRange:
    """Return a pair of keys as a `KeyRange`.

    Other iterables are refused with a TypeError: one with fewer bounds would stand for all keys.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError(
            f"range: expected a KeyRange or a pair (lower bound, upper bound) of keys, "
            f"got {type(given).__name__}: {shown(given)}"
        )
    low, high = given
    return KeyRange(as_bytes(low, "bound"), as_bytes(high, "bound"))


def pairs_of(given: Any) -> Iterable[tuple[Any, Any]]:
    """Return the pairs of an argument of `dict.update`: a mapping or an iterable of pairs."""
    if hasattr(given, "keys"):
        return ((key, given[key]) for key in given.keys())  # noqa: SIM118
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"other: expected a mapping or pairs of key and value, got {shown(given)}")
    return map(_pair, given)


def _pair(given: Any) -> tuple[Any, Any]:
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or len(given) != 2:
        raise TypeError(f"other: expected a pair of key and value, got {shown(given)}")
    return given[0], given[1]
