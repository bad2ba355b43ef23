# byte_ranges.py - byte ranges of values, in the notation of the draft and of zarr
# SPDX-License-Identifier: MIT
"""Byte ranges of values, cut to the bytes that the value has.

A range never reaches beyond its value. The transformer of zarr 2.18 returned bytes of the next chunk and of the index.

Source: Zarr v3 core specification, draft of 2022, "Abstract store interface"; `zarr.abc.store.ByteRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..compat import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

__all__ = ["as_request", "cut", "request_to_send"]


@dataclass(frozen=True)
class _Tail:
    """A range that starts `suffix` bytes before the end of the value and has `nbytes` bytes. zarr has no such request."""

    suffix: int
    nbytes: int


def as_request(wanted: Any, *, pairs: bool = False) -> Any:
    """Return a request for bytes of a value, checked.

    Parameters
    ----------
    wanted : ByteRequest, tuple or None
        A byte request of zarr, or None for the whole value.
    pairs : bool
        Accept also a pair of the draft: (start, length), or (start, None) for the rest. A negative start counts from
        the end.

    Returns
    -------
    ByteRequest or None

    Raises
    ------
    ValueError
        A number of bytes is negative, or a range ends before it begins.
    TypeError
        `wanted` is not a byte request.
    """
    match wanted:
        case None:
            return None
        case RangeByteRequest(start, end):
            if not 0 <= start <= end:
                raise ValueError(f"byte_range: expected 0 <= start <= end, got start {start} and end {end}")
            return wanted
        case OffsetByteRequest(n) | SuffixByteRequest(n):
            if n < 0:
                raise ValueError(f"byte_range: expected a number of bytes >= 0, got {wanted!r}")
            return wanted
        case (int(start), None) if pairs:
            return OffsetByteRequest(start) if start >= 0 else SuffixByteRequest(-start)
        case (int(start), int(length)) if pairs:
            if length < 0:
                raise ValueError(f"byte_range: expected a length >= 0, got {length}")
            if start >= 0:
                return RangeByteRequest(start, start + length)
            return SuffixByteRequest(-start) if start + length >= 0 else _Tail(-start, length)
    raise TypeError(f"Unexpected byte_range, got {wanted!r}.")  # the message of zarr's stores


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
