# native.py - the way to the extension module, loaded when it is first needed
# SPDX-License-Identifier: MIT
"""Loading of ``shardcodec._native``.

zarr imports our entry point in every process that opens an array, so importing the package must neither fail nor
take long; only the first real use loads the extension.
"""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path
from types import ModuleType

from .errors import UnsupportedError

__all__ = ["load", "loaded", "require"]


@functools.cache
def _load() -> ModuleType | ImportError:
    try:
        from . import _native
    except ImportError as error:
        return error
    cpu = _native.cpu_features()
    if not cpu["override_valid"]:
        _warn(
            f"SHARDCODEC_CPU={cpu['override']!r} names no feature or variant that there is, and changes nothing"
        )
    return _native


@functools.cache
def _warn(what: str) -> None:
    warnings.warn(what, RuntimeWarning, stacklevel=3)


def _why(error: ImportError) -> str:
    """Say why the extension cannot be loaded, and what to do where its source stands in the way."""
    beside = Path(__file__).with_name("_native.pyx").exists()
    hint = (
        f"; {Path(__file__).parent} is its source: start Python in another folder to find what is installed"
        if beside
        else ""
    )
    return f"{error}{hint}"


def load() -> ModuleType:
    """Return ``shardcodec._native``.

    Raises
    ------
    UnsupportedError
        It cannot be loaded; the reason is the cause, and has been said once as a warning.
    """
    module = _load()
    if isinstance(module, ImportError):
        why = _why(module)
        _warn(f"shardcodec cannot load its extension module and leaves the work to zarr: {why}")
        raise UnsupportedError(f"the extension module cannot be loaded: {why}") from module
    return module


def require() -> None:
    """Load the extension for a caller who asks for it, and not only for what zarr may do as well.

    Raises
    ------
    UnsupportedError
        It cannot be loaded, for this reason; there is no warning beside it.
    """
    module = _load()
    if isinstance(module, ImportError):
        raise UnsupportedError(f"shardcodec cannot load its extension module: {_why(module)}") from module


def loaded() -> ModuleType | None:
    """Return the module if somebody has needed it already."""
    return sys.modules.get("shardcodec._native")
