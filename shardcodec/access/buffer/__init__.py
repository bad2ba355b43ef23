# __init__.py - the buffer of the blocks of group_writes that are open in this process
# SPDX-License-Identifier: MIT
"""The buffered writes of `group_writes`, as the rest of the package sees them.

Every read and write asks for the buffer, and most processes never have one: so its code is not imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...compat import on_zarrs_loop
from ...storage import locks

if TYPE_CHECKING:
    from ..shard_object import ShardObject
    from .process_buffer import ProcessBuffer

__all__ = [
    "active_buffer",
    "flush_buffered",
    "flush_names",
    "has_buffered",
    "is_any_buffered",
    "set_active_buffer",
]

_buffer: ProcessBuffer | None = None


def active_buffer() -> ProcessBuffer | None:
    """Return the buffer of this process; None if no block is open and no interrupted one has left buffered writes."""
    return _buffer


def set_active_buffer(buffer: ProcessBuffer | None) -> None:
    """Set the buffer of this process; only the blocks of `group_writes` do so, under their mutex."""
    global _buffer
    _buffer = buffer


# ---------------------------------------------------------------- before a handle or a key-value store reads, in a thread without an event loop


def is_any_buffered() -> bool:
    """Return True if any object has buffered writes."""
    buffer = _buffer
    return buffer is not None and not buffer.is_empty


def has_buffered(target: ShardObject) -> bool:
    """Return True if a shard, or a value in it, has buffered writes."""
    buffer = _buffer
    return buffer is not None and buffer.has(buffer.name_of(target).name)


def flush_buffered(target: ShardObject) -> None:
    """Store the buffered writes of a shard, unless the caller holds its lock to change it.

    After a `GroupWriteError` the buffered writes are kept.
    """
    buffer = _buffer
    if buffer is not None:
        flush_names([buffer.name_of(target).name])


def flush_names(names: Sequence[str]) -> None:
    """Store buffered writes as `flush_buffered`, for objects by their names for locks."""
    buffer = _buffer
    if buffer is None:
        return
    chosen = [name for name in names if buffer.has(name) and not locks.table().holds(name)]
    if chosen:
        on_zarrs_loop(buffer.flush_named(chosen))
