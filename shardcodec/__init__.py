# __init__.py - the public names
# SPDX-License-Identifier: MIT
"""Native engine for Zarr v3 shards.

>>> import shardcodec
>>> shardcodec.enable()

After this call, zarr-python and the libraries that use it read and write arrays through native code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_misfit: Exception | None = None
try:
    from . import public
    from .public import *  # noqa: F403 - they are listed there
except (ImportError, AttributeError) as _error:
    # zarr imports this package for its entry points in every process that opens an array. A zarr without the names that
    # this package imports gets stand-ins, so that it continues with its own code.
    from . import stand_in as public  # type: ignore[no-redef]
    from .stand_in import *  # type: ignore[assignment]  # noqa: F403

    _misfit = _error

if TYPE_CHECKING:
    from . import kv, tools, transformer

__all__ = ["kv", "tools", "transformer"]
__all__ += public.__all__

__version__ = "0.1.0"

# Separate surfaces and the tools, imported at their first use.
_LAZY = ("kv", "tools", "transformer")


def __getattr__(name: str) -> Any:
    if _misfit is not None and not name.startswith("_"):
        raise ImportError(
            f"shardcodec {__version__} does not fit the zarr that is installed: {_misfit}"
        ) from _misfit
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
