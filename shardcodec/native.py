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

__all__ = ["load", "loaded"]


@functools.cache
def _load() -> ModuleType | ImportError:
    try:
        from . import _native
    except ImportError as error:
        beside = Path(__file__).with_name("_native.pyx").exists()
        hint = (
            "; this is its source: start Python in another folder to find what is installed" if beside else ""
        )
        _warn(f"shardcodec cannot load its extension module and leaves the work to zarr: {error}{hint}")
        return error
    cpu = _native.cpu_features()
    if not cpu["override_valid"]:
        _warn(
            f"SHARDCODEC_CPU={cpu['override']!r} names no feature or variant that there is, and changes nothing"
        )
    return _native


def _warn(what: str) -> None:
    warnings.warn(what, RuntimeWarning, stacklevel=4)


def load() -> ModuleType:
    """Return ``shardcodec._native``.

    Raises
    ------
    UnsupportedError
        It cannot be loaded; the reason is the cause, and has been said once as a warning.
    """
    module = _load()
    if isinstance(module, ImportError):
        raise UnsupportedError(f"the extension module cannot be loaded: {module}") from module
    return module


def loaded() -> ModuleType | None:
    """Return the module if somebody has needed it already."""
    return sys.modules.get("shardcodec._native")
