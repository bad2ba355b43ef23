# cancel.py - how whoever waits for work tells it to stop
# SPDX-License-Identifier: MIT
"""The native `Cancel` that plans of this thread or task listen to.

It travels as context: `asyncio.to_thread` hands it to the thread that does the work, so no call in between names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

__all__ = ["current", "listening_to"]

_current: ContextVar[Any] = ContextVar("shardcodec.cancel", default=None)


def current() -> Any:
    """Return what plans listen to; None where nobody waits but the calling thread itself."""
    return _current.get()


@contextlib.contextmanager
def listening_to(cancel: Any) -> Iterator[None]:
    """Let plans that are run within, or in tasks and threads started within, listen to `cancel`."""
    token = _current.set(cancel)
    try:
        yield
    finally:
        _current.reset(token)
