# range_edits.py - edits that overwrite ranges of values
# SPDX-License-Identifier: MIT
"""`put_ranges`: the edit of `set_partial_values`, which overwrites ranges of the values of one shard.

Source: Zarr v3 core specification, draft of 2022, "Abstract store interface"; ST-10.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..compat import is_buffer
from .edits import Draft, Edit

__all__ = ["as_bytes", "overwrite_ranges", "put_ranges"]

# Start and bytes of each range.
ByteRanges = Sequence[tuple[int, memoryview]]


def as_bytes(value: Any) -> memoryview:
    """Return a view of the bytes of a zarr Buffer or a bytes-like object."""
    return memoryview(value.as_numpy_array() if is_buffer(value) else value).cast("B")


def put_ranges(chunks: Mapping[int, tuple[str, ByteRanges]]) -> Edit:
    """Return the edit that overwrites ranges of chunks; `chunks` maps a position to the key and the ranges."""

    def apply(draft: Draft) -> Mapping[int, Any]:
        return {
            position: overwrite_ranges(key, draft.value(position), ranges)
            for position, (key, ranges) in chunks.items()
        }

    def narrowed(positions: Collection[int]) -> Edit:
        return put_ranges(
            {
                position: (
                    chunks[position][0],
                    [(start, memoryview(bytes(data))) for start, data in chunks[position][1]],
                )
                for position in positions
            }
        )

    nbytes = sum(data.nbytes for _, ranges in chunks.values() for _, data in ranges)
    return Edit(apply, (), nbytes, narrowed=narrowed)


def overwrite_ranges(key: str, old: Any, ranges: ByteRanges) -> bytearray:
    """Return a value with ranges overwritten; it is longer than the old one if a range goes beyond its end. An absent value is empty.

    ranges: start and bytes of each; a start below 0 counts from the end of the value. ValueError: a range begins beyond the end
    of the value or before its first byte, or two ranges overlap. `key` is for errors.
    """
    value = bytearray(b"" if old is None else old)
    size = len(value)
    placed = sorted(
        ((start if start >= 0 else size + start, data) for start, data in ranges), key=lambda p: p[0]
    )
    end = 0
    for i, (start, data) in enumerate(placed):
        if start < 0:
            raise ValueError(
                f"key {key!r}: expected a part that starts at {-size} or later in a value of {size} bytes, "
                f"got {start - size}"
            )
        if i and start < end:
            raise ValueError(
                f"key {key!r}: parts overlap: one begins at byte {start}, the one before it ends at byte {end}"
            )
        if start > len(value):
            what = "does not exist" if old is None else f"has {size} bytes"
            raise ValueError(f"key {key!r}: a part begins at byte {start}, but the value {what}")
        end = start + data.nbytes
        value[start : min(end, len(value))] = data
    return value
