# native.py - load the extension module, and the signal that stops a running call
# SPDX-License-Identifier: MIT
"""`load`: the extension module, loaded at its first use; and the signal that stops a running call.

zarr imports shardcodec's entry point in every process that opens an array, so the import of the package must be fast and
must not fail. Only the first use loads the extension.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from .errors import UnsupportedError

__all__ = [
    "current",
    "has_checks",
    "listen_to",
    "load",
    "loaded",
    "missing",
    "require",
    "warn_missing",
]


@functools.cache
def _load() -> ModuleType | ImportError:
    try:
        from . import _native
    except ImportError as error:
        return error
    cpu = _native.cpu_features()
    if not cpu["override_valid"]:
        _warn(
            f"SHARDCODEC_CPU: expected known features or variants, got {cpu['override']!r}, which is ignored"
        )
    return _native


@functools.cache
def _warn(what: str) -> None:
    warnings.warn(what, RuntimeWarning, stacklevel=4)


def load() -> ModuleType:
    """Return ``shardcodec._native``.

    Raises
    ------
    UnsupportedError
        The extension cannot be loaded. The reason is the cause of the error and was given once as a warning.
    """
    module = _load()
    if isinstance(module, ImportError):
        warn_missing()
        raise UnsupportedError(f"the extension module cannot be loaded: {module}") from module
    return module


def missing() -> ImportError | None:
    """Return why the extension cannot be loaded; None if it is loaded now."""
    module = _load()
    return module if isinstance(module, ImportError) else None


def warn_missing() -> None:
    """Warn once that zarr does the work; the warning names the caller of the calling function."""
    _warn(f"shardcodec cannot load its extension module and leaves the work to zarr: {missing()}")


def require() -> None:
    """Load the extension for a caller that has no fallback to zarr.

    Raises
    ------
    UnsupportedError
        The extension cannot be loaded. There is no additional warning.
    """
    if (error := missing()) is not None:
        raise UnsupportedError(f"shardcodec cannot load its extension module: {error}") from error


def loaded() -> ModuleType | None:
    """Return the module if it is already loaded, else None."""
    return sys.modules.get("shardcodec._native")


@functools.cache
def has_checks() -> bool:
    """Return True in a debug build: what is written is then checked before, and read again (csrc/base/sc_check.h)."""
    return bool(load().build_facts()["checks"])


# The native `Cancel` that can stop the plans of a thread or task. It is a context variable: `asyncio.to_thread` copies it to the
# worker thread, so it need not be passed as an argument.

_current: ContextVar[Any] = ContextVar("shardcodec.native", default=None)


def current() -> Any:
    """Return the `Cancel` of this thread or task; None if its plans cannot be cancelled."""
    return _current.get()


@contextlib.contextmanager
def listen_to(cancel: Any) -> Iterator[None]:
    """Let `native` stop the plans in this block, and in tasks and threads that are started in it."""
    token = _current.set(cancel)
    try:
        yield
    finally:
        _current.reset(token)
