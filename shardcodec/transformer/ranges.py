# ranges.py - parts of a value, as the draft and as zarr ask for them
# SPDX-License-Identifier: MIT
"""Byte ranges, relative to a value, cut to what the value has.

A range never reaches beyond its value, whatever is stored behind it (zarr 2.18's transformer returned bytes of the next
chunk, and of the index).

Source: Zarr v3 core specification, draft of 2022, "Abstract store interface"; `zarr.abc.store.ByteRequest`.
"""

from __future__ import annotations

from typing import Any

from ..zarr_plugin.compat import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

__all__ = ["as_request", "cut"]


def as_request(wanted: Any, *, pairs: bool = False) -> Any:
    """Check what was asked for; with `pairs` turn one of the draft, (start, length or None), into a request of zarr.

    A negative start counts from the end; then the length must be None, or reach to the end.

    Raises
    ------
    ValueError
        It is negative, or ends before it begins.
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
            if length < 0 or (start < 0 and start + length < 0):
                raise ValueError(f"byte range of {length} bytes from {start} is none that a value has")
            return RangeByteRequest(start, start + length) if start >= 0 else SuffixByteRequest(-start)
    raise TypeError(f"Unexpected byte_range, got {wanted!r}.")  # as zarr's stores say it


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
    raise TypeError(f"not a byte request: {request!r}")
