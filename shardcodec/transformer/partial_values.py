# partial_values.py - overwrite parts of values
# SPDX-License-Identifier: MIT
"""`set_partial_values`: overwrite parts of stored values.

Source: Zarr v3 core specification, draft of 2022, "Abstract store interface"; ST-10.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..compat import is_buffer
from .write import Draft, Edit

__all__ = ["as_bytes", "overwrite_parts", "put_parts"]

Parts = Sequence[tuple[int, memoryview]]


def as_bytes(value: Any) -> memoryview:
    """Return a view of the bytes of a zarr Buffer or a bytes-like object."""
    return memoryview(value.as_numpy_array() if is_buffer(value) else value).cast("B")


def put_parts(chunks: Mapping[int, tuple[str, Parts]]) -> Edit:
    """Return the change that overwrites parts of chunks; `chunks` maps a position to the key and the parts."""

    def apply(draft: Draft) -> Mapping[int, Any]:
        return {
            position: overwrite_parts(key, draft.value(position), parts)
            for position, (key, parts) in chunks.items()
        }

    def some(positions: Collection[int]) -> Edit:
        return put_parts(
            {
                position: (
                    chunks[position][0],
                    [(start, memoryview(bytes(part))) for start, part in chunks[position][1]],
                )
                for position in positions
            }
        )

    nbytes = sum(part.nbytes for _, parts in chunks.values() for _, part in parts)
    return Edit(apply, (), nbytes, part=some)


def overwrite_parts(key: str, old: Any, parts: Parts) -> bytearray:
    """Return a value with parts overwritten.

    Parameters
    ----------
    key : str
        Key of the value, for errors.
    old : bytes-like or None
        The stored value; None if it is absent.
    parts : sequence of (int, memoryview)
        Start and bytes of each part. A start below 0 counts from the end of the value.

    Returns
    -------
    bytearray
        The new value, longer than the old one if a part goes beyond its end.

    Raises
    ------
    ValueError
        A part begins beyond the end of the value or before its first byte, or two parts overlap.
    """
    value = bytearray(b"" if old is None else old)
    size = len(value)
    placed = sorted(
        ((start if start >= 0 else size + start, part) for start, part in parts), key=lambda p: p[0]
    )
    end = 0
    for i, (start, part) in enumerate(placed):
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
        end = start + part.nbytes
        value[start : min(end, len(value))] = part
    return value
