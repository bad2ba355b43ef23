# cancel.py - the native `Cancel` of a thread or task
# SPDX-License-Identifier: MIT
"""The native `Cancel` that can stop the plans of a thread or task.

It is a context variable: `asyncio.to_thread` copies it to the worker thread, so it need not be passed as an argument.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

__all__ = ["current", "listen_to"]

_current: ContextVar[Any] = ContextVar("shardcodec.cancel", default=None)


def current() -> Any:
    """Return the `Cancel` of this thread or task; None if its plans cannot be cancelled."""
    return _current.get()


@contextlib.contextmanager
def listen_to(cancel: Any) -> Iterator[None]:
    """Let `cancel` stop the plans in this block, and in tasks and threads that are started in it."""
    token = _current.set(cancel)
    try:
        yield
    finally:
        _current.reset(token)
