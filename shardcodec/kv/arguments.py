# arguments.py - checks of arguments, and results
# SPDX-License-Identifier: MIT
"""Check conditions, byte ranges and key ranges, and make results from values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from reprlib import repr as shown
from typing import Any

from ..access.shard_object import OpenObject
from ..errors import ShardError
from .keys import KeyRange, as_bytes
from .results import FAILED, NO_VALUE, UNNAMED, ReadResult, Stamp

__all__ = [
    "ByteRange",
    "ConditionFailed",
    "TooLarge",
    "byte_range_of",
    "byte_ranges_of",
    "condition_of",
    "is_known",
    "is_there",
    "pairs_of",
    "range_of",
    "result_of",
    "value_of",
]


# First byte and end (exclusive). A negative first byte counts from the end of the value. None: to the end of the value.
ByteRange = tuple[int, int | None]


class ConditionFailed(Exception):
    """The condition of a write does not hold."""


class TooLarge(Exception):
    """The read is too large for the event loop; the caller uses a thread instead."""


def condition_of(if_equal: bytes | str | None) -> bytes | None:
    """Return the generation of a condition.

    Returns
    -------
    bytes or None
        `NO_VALUE` if the entry must be absent; None without a condition.

    Raises
    ------
    ValueError
        `if_equal` is `FAILED` or `UNNAMED`, which identify no state.
    TypeError
        `if_equal` is neither bytes nor "absent".
    """
    if if_equal is None:
        return None
    if if_equal == "absent":
        return NO_VALUE
    if not isinstance(if_equal, bytes):
        raise TypeError(f'if_equal: expected a generation (bytes) or "absent", got {if_equal!r}')
    if if_equal == FAILED:
        raise ValueError(
            "if_equal is empty: it comes from a write whose condition did not hold; read the entry for its generation"
        )
    if if_equal == UNNAMED:
        raise ValueError(
            "if_equal is UNNAMED: the store does not identify states of its objects, so no write can depend on one"
        )
    return if_equal


def is_there(shard: OpenObject, position: int) -> bool:
    """Return True if the entry exists, also if it is damaged."""
    try:
        return not shard.missing and shard.entry(position) is not None
    except ShardError:
        return True  # a damaged entry exists; reading it raises


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

    Raises
    ------
    ValueError
        The slice has a step, a negative stop, a negative start with a stop, or a stop before its start (KV-23).
    TypeError
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


def byte_ranges_of(given: Sequence[slice | None] | None, n: int) -> list[ByteRange | None] | None:
    """Return n slices as byte ranges; None stands for n whole values.

    Raises
    ------
    ValueError
        The number of slices is not n, or `byte_range_of` refuses one.
    TypeError
        An item is not a slice of integers.
    """
    if given is None:
        return None
    parts = [byte_range_of(part) for part in given]
    if len(parts) != n:
        raise ValueError(f"byte_ranges: expected {n} items, one for each key, got {len(parts)}")
    return None if all(part is None for part in parts) else parts


def range_of(given: Any) -> KeyRange:
    """Return a pair of keys as a `KeyRange`.

    Other iterables are refused: one with fewer bounds would stand for all keys.

    Raises
    ------
    TypeError
        `given` is neither a `KeyRange` nor a tuple or list of two keys.
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
    return ((key, given[key]) for key in given.keys()) if hasattr(given, "keys") else given  # noqa: SIM118
