# without_engine.py - public names on platforms without the engine
# SPDX-License-Identifier: MIT
"""`enable`, `disable` and `open_arrays` without the extension module; `LeftOut` for the names that need it.

A library can depend on shardcodec and call `enable` on every platform. Without the engine, zarr does the work.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any, Unpack

from . import native
from .arguments import check_argument
from .compat import pipelines_of_arrays
from .options import OptionChoices, check
from .readable import OpenArray, OpenArrays

__all__ = ["LeftOut", "disable", "enable", "open_arrays"]


def enable(
    *, children: bool = True, client: Any = None, **defaults: Unpack[OptionChoices]
) -> AbstractContextManager[None]:
    """Check the arguments and warn once with the reason. zarr's pipeline stays, also in the workers of a client.

    Parameters
    ----------
    children, client
        As for `shardcodec.enable`. Nothing is set in child processes and workers.
    **defaults
        Options, see `shardcodec.options`. ``strict=True`` raises the reason instead of a warning.

    Returns
    -------
    context manager
        It does nothing.

    Raises
    ------
    TypeError, ValueError
        The name or the value of an option is invalid.
    UnsupportedError
        ``strict=True``.
    """
    check_argument("children", children, bool)
    if check(defaults).get("strict"):
        native.require()
    native.warn_missing()
    return contextlib.nullcontext()


def disable() -> None:
    """Do nothing: zarr's pipeline is in place."""


def open_arrays() -> OpenArrays:
    """Return the zarr arrays that exist in this process; zarr does the work of each.

    Returns
    -------
    OpenArrays
        Sorted by name, with the reason why the extension module is missing.
    """
    why = f"shardcodec cannot load its extension module: {native.missing()}"
    arrays = {
        OpenArray(name, type(pipeline).__name__, False, why) for name, pipeline in pipelines_of_arrays()
    }
    return OpenArrays(sorted(arrays), "off: the extension module is missing")


class LeftOut(type):
    """Substitute for a public name that needs the engine. It can be imported and used as a type; calls raise `UnsupportedError`.

    Parameters
    ----------
    name : str
        The name below `shardcodec`.
    """

    def __new__(cls, name: str) -> LeftOut:
        return super().__new__(cls, name, (), {"__module__": "shardcodec"})

    def __init__(cls, name: str) -> None:
        super().__init__(name, (), {})

    def __call__(cls, *args: Any, **named: Any) -> Any:
        native.require()

    def __getattr__(cls, name: str) -> LeftOut:
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return LeftOut(f"{cls.__name__}.{name}")
