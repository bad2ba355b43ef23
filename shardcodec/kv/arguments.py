# arguments.py - what callers give, and what they get
# SPDX-License-Identifier: MIT
"""Conditions and byte ranges as they are given, and results made of values."""

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


# First byte and the one behind the last; a negative first one counts from the end; None: to the end.
ByteRange = tuple[int, int | None]


class ConditionFailed(Exception):
    """Not to be written."""


class TooLarge(Exception):
    """Not to be read on an event loop."""


def condition_of(if_equal: bytes | str | None) -> bytes | None:
    """Return the generation that a condition names; `NO_VALUE`: that there is no entry.

    Raises
    ------
    ValueError
        It names no state.
    TypeError
        It is neither a generation nor "absent".
    """
    if if_equal is None:
        return None
    if if_equal == "absent":
        return NO_VALUE
    if not isinstance(if_equal, bytes):
        raise TypeError(f'if_equal is a generation or "absent", not {if_equal!r}')
    if if_equal == FAILED:
        raise ValueError("if_equal is empty: the write that it comes from has failed")
    if if_equal == UNNAMED:
        raise ValueError("the store names no states of its objects, so nothing can be conditional on one")
    return if_equal


def is_there(shard: OpenObject, position: int) -> bool:
    """Tell whether there is an entry, be it damaged."""
    try:
        return not shard.missing and shard.entry(position) is not None
    except ShardError:
        return True  # and damaged, which is for who reads it


def is_known(generation: bytes, if_not_equal: bytes | None) -> bool:
    """Tell whether the caller knows that state of a shard, which exists."""
    return generation == if_not_equal and generation not in (NO_VALUE, UNNAMED)


def result_of(value: bytes | None, stamp: Stamp) -> ReadResult:
    """Make a result of a value; None: there is none."""
    return ReadResult("missing", b"", stamp) if value is None else ReadResult("value", value, stamp)


def value_of(given: Any) -> bytes | None:
    """Return a value as bytes; None deletes one."""
    return None if given is None else as_bytes(given, "value")


def byte_range_of(given: slice | None) -> ByteRange | None:
    """Check a slice.

    Raises
    ------
    ValueError
        It is none that can be asked for (KV-23).
    TypeError
        It is no slice of integers.
    """
    if given is None:
        return None
    if not isinstance(given, slice):
        raise TypeError(f"byte_range is a slice, not {given!r}")
    first = 0 if given.start is None else index(given.start)
    end = None if given.stop is None else index(given.stop)
    if given.step not in (None, 1) or (end is not None and (end < 0 or first < 0 or end < first)):
        start = "None" if given.start is None else given.start
        raise ValueError(f"Unsupported byte_range slice: {start}:{end}")
    return first, end


def byte_ranges_of(given: Sequence[slice | None] | None, n: int) -> list[ByteRange | None] | None:
    """Check what is wanted of n values; None: all of each.

    Raises
    ------
    ValueError, TypeError
        As `byte_range_of`; or they are not n.
    """
    if given is None:
        return None
    parts = [byte_range_of(part) for part in given]
    if len(parts) != n:
        raise ValueError(f"{n} keys, but {len(parts)} byte ranges")
    return None if all(part is None for part in parts) else parts


def range_of(given: Any) -> KeyRange:
    """Return a range of keys.

    Only a `KeyRange` or another pair is one: an iterable with fewer bounds would stand for all keys.

    Raises
    ------
    TypeError
        It is neither a `KeyRange` nor a tuple or list of two keys.
    """
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError(
            f"range: expected a KeyRange or a pair (lower bound, upper bound) of keys, "
            f"got {type(given).__name__}: {shown(given)}"
        )
    low, high = given
    return KeyRange(as_bytes(low, "bound"), as_bytes(high, "bound"))


def pairs_of(given: Any) -> Iterable[tuple[Any, Any]]:
    """Take what a dictionary is updated with apart: a mapping, or pairs."""
    return ((key, given[key]) for key in given.keys()) if hasattr(given, "keys") else given  # noqa: SIM118
