# __init__.py - the buffer of the blocks of group_writes that are open in this process
# SPDX-License-Identifier: MIT
"""The buffered writes of `group_writes`, as the rest of the package sees them.

Every read and write asks for the buffer, and most processes never have one: so its code is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...compat import on_zarrs_loop
from ...options import Options
from ...storage import process_locks
from ...storage.object_names import lies_below
from ...storage.runner import BLOCKING, Runner, run_blocking
from ...storage.store import Store

if TYPE_CHECKING:
    from ..array_request import Request
    from ..shard_object import ShardObject
    from .buffered import LayoutGuard
    from .process_buffer import ProcessBuffer

__all__ = [
    "active_buffer",
    "flush_buffered",
    "flush_folder",
    "flush_names",
    "has_buffered",
    "is_any_buffered",
    "set_active_buffer",
    "store_elements",
    "store_elements_blocking",
]

_buffer: ProcessBuffer | None = None


def active_buffer() -> ProcessBuffer | None:
    """Return the buffer of this process; None if no block is open and no interrupted one has left buffered writes."""
    return _buffer


def set_active_buffer(buffer: ProcessBuffer | None) -> None:
    """Set the buffer of this process; only the blocks of `group_writes` do so, under their mutex."""
    global _buffer
    _buffer = buffer


async def store_elements(
    request: Request, options: Options, guard: Callable[[], LayoutGuard], runner: Runner
) -> None:
    """Store the elements of a request, or buffer them in a block of `group_writes`; `guard` returns the layout of their array."""
    from ..array_write import write_request

    buffer = active_buffer()
    if buffer is None:
        await write_request(request, options, runner)
    else:
        await buffer.write(request, options, guard(), runner)


def store_elements_blocking(request: Request, options: Options, guard: Callable[[], LayoutGuard]) -> None:
    """Do as `store_elements`, in a thread that does not run an event loop."""
    buffer = active_buffer()
    if buffer is None or not buffer.write_quickly(request, options, guard()):
        run_blocking(store_elements(request, options, guard, BLOCKING))


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
    chosen = [name for name in names if buffer.has(name) and not process_locks.table().holds(name)]
    if chosen:
        on_zarrs_loop(buffer.flush_named(chosen))


def flush_folder(store: Store, prefix: str) -> None:
    """Store the buffered writes of all objects in a folder of a store."""
    if is_any_buffered() and (buffer := _buffer) is not None:
        (folder,) = store.lock_names([prefix])
        flush_names([name for name in buffer.names() if lies_below(name, folder.rstrip("/"))])
