# without_engine.py - the public names where there is no extension module
# SPDX-License-Identifier: MIT
"""`enable`, `disable` and `open_arrays` where the extension module is missing, and a class for all that needs it.

A library can depend on shardcodec and call `enable` on every platform: where the engine is missing, zarr does the work.
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
    """Check the arguments, warn once with the reason, and leave zarr's pipeline in place, here and in the workers of a client.

    Parameters
    ----------
    children, client
        As of `shardcodec.enable`; nothing is set in children and workers.
    **defaults
        Options, see `Options`. With ``strict=True`` the reason is an error in place of the warning.

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
    return OpenArrays(sorted(arrays), "off: there is no extension module")


class LeftOut(type):
    """A public name that needs the engine: it can be imported and used as a type, its attributes too, and its call raises.

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
