# byte_ranges.py - parts of a value, as the draft and as zarr ask for them
# SPDX-License-Identifier: MIT
"""Byte ranges, relative to a value, cut to what the value has.

A range never reaches beyond its value, whatever is stored behind it (zarr 2.18's transformer returned bytes of the next
chunk, and of the index).

Source: Zarr v3 core specification, draft of 2022, "Abstract store interface"; `zarr.abc.store.ByteRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..compat import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

__all__ = ["as_request", "cut", "sent"]


@dataclass(frozen=True)
class _Tail:
    """Bytes that begin so far before the end and need not reach it, which zarr has no request for."""

    suffix: int
    nbytes: int


def as_request(wanted: Any, *, pairs: bool = False) -> Any:
    """Check what was asked for; with `pairs` turn one of the draft, (start, length or None), into a request of zarr.

    A negative start counts from the end.

    Raises
    ------
    ValueError
        A length or byte request is negative, or ends before it begins.
    TypeError
        Nothing that can be asked for.
    """
    match wanted:
        case None:
            return None
        case RangeByteRequest(start, end):
            if not 0 <= start <= end:
                raise ValueError(f"byte range [{start}, {end}) is none")
            return wanted
        case OffsetByteRequest(n) | SuffixByteRequest(n):
            if n < 0:
                raise ValueError(f"byte request {wanted!r} is negative")
            return wanted
        case (int(start), None) if pairs:
            return OffsetByteRequest(start) if start >= 0 else SuffixByteRequest(-start)
        case (int(start), int(length)) if pairs:
            if length < 0:
                raise ValueError(f"byte range of {length} bytes is none")
            if start >= 0:
                return RangeByteRequest(start, start + length)
            return SuffixByteRequest(-start) if start + length >= 0 else _Tail(-start, length)
    raise TypeError(f"Unexpected byte_range, got {wanted!r}.")  # as zarr's stores say it


def sent(request: Any) -> Any:
    """Return a request that every store of zarr takes; None: all of the value, which is to be `cut`."""
    return None if isinstance(request, _Tail) else request


def cut(request: Any, nbytes: int) -> tuple[int, int]:
    """Return first byte and size of what a value of so many bytes has of a request."""
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
    raise TypeError(f"not a byte request: {request!r}")
