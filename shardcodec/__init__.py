# __init__.py - the public names
# SPDX-License-Identifier: MIT
"""Native engine for Zarr v3 shards.

>>> import shardcodec
>>> shardcodec.enable()

After this call, zarr-python and the libraries that use it read and write arrays through native code.
"""

from __future__ import annotations

import importlib
import os
from _thread import RLock
from typing import TYPE_CHECKING, Any

from . import public as _public

# These functions have the names of their modules. They are imported at once, because the import of a module stores the
# module under its name.
from .build_info import build_info as build_info
from .options import options as options

if TYPE_CHECKING:
    from . import kv, tools, transformer
    from .public import *  # noqa: F403 - they are listed there

__all__ = ["kv", "tools", "transformer"]
__all__ += _public.__all__

__version__ = "0.1.0"

# Separate surfaces and the tools.
_PACKAGES = ("kv", "tools", "transformer")

# Without the extension module, these are functions of `without_engine`.
_WITHOUT_ENGINE = ("disable", "enable", "open_arrays")

# One thread imports: if two begin with different modules of zarr, each may wait for the other, and Python gives one an error or half a
# module. Then a stand-in would take the place of the pipeline.
_importing = RLock()


def _renew_lock() -> None:
    global _importing
    _importing = RLock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_renew_lock)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _PACKAGES and name not in _public.MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _importing:
        if name not in globals():
            globals()[name] = _first_use(name)
    return globals()[name]


def _first_use(name: str) -> Any:
    from . import native

    if name in _WITHOUT_ENGINE and native.missing() is not None:
        from . import without_engine

        return getattr(without_engine, name)
    try:
        if name in _PACKAGES:
            return importlib.import_module(f"{__name__}.{name}")
        return getattr(importlib.import_module(_public.MODULES[name], __name__), name)
    except (ImportError, AttributeError) as error:
        return _stand_in(name, error)


def _stand_in(name: str, misfit: Exception) -> Any:
    """Return a substitute for a name whose module cannot be imported.

    zarr loads the entry points in every process that opens an array, so their substitutes leave the work to zarr. In the wheel without
    the engine (setup.py) all other substitutes raise `UnsupportedError` when they are called, so a library can import them.

    Raises
    ------
    ImportError
        The name has no substitute: zarr has changed, or this package is not built.
    """
    from . import native, stand_in

    if name in stand_in.__all__:
        return getattr(stand_in, name)
    missing = getattr(misfit, "name", None) or ""
    if native.missing() and isinstance(misfit, ModuleNotFoundError) and missing.startswith(f"{__name__}."):
        from . import without_engine

        return without_engine.LeftOut(name)
    raise ImportError(
        f"shardcodec cannot load its extension module: {misfit}"
        if missing == f"{__name__}._native"
        else f"shardcodec {__version__} does not fit the zarr that is installed: {misfit}"
    ) from misfit


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
