# cancel.py - the cancellation of native plans, as context
# SPDX-License-Identifier: MIT
"""The native `Cancel` that plans of this thread or task listen to.

It is a context variable: `asyncio.to_thread` copies it to the worker thread, so no call in between passes it on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

__all__ = ["current", "listening_to"]

_current: ContextVar[Any] = ContextVar("shardcodec.cancel", default=None)


def current() -> Any:
    """Return the `Cancel` that plans listen to; None if only the calling thread waits for them."""
    return _current.get()


@contextlib.contextmanager
def listening_to(cancel: Any) -> Iterator[None]:
    """Make plans in this block, and in tasks and threads started in it, listen to `cancel`."""
    token = _current.set(cancel)
    try:
        yield
    finally:
        _current.reset(token)
