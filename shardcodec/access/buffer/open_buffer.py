# open_buffer.py - the buffer of the blocks of group_writes that are open in this process
# SPDX-License-Identifier: MIT
"""Every read and write asks for the buffer, and most processes never have one: so its code is not imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .process_buffer import ProcessBuffer

__all__ = ["active", "set_active"]

_buffer: ProcessBuffer | None = None


def active() -> ProcessBuffer | None:
    """Return the buffer of this process; None if no block is open and no interrupted one has left buffered writes."""
    return _buffer


def set_active(buffer: ProcessBuffer | None) -> None:
    """Set the buffer of this process; only the blocks of `group_writes` do so, under their mutex."""
    global _buffer
    _buffer = buffer
