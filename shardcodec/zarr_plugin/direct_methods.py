# direct_methods.py - methods of `zarr.Array` that first ask the pipeline of the array
# SPDX-License-Identifier: MIT
"""Methods of `zarr.Array` that first ask the pipeline of the array for its `DirectAccess`: the option ``direct``.

The arrays of a program are opened by other libraries, which do not call `attach`. So the methods of the class itself are replaced, as
long as `enable` or another setting demands it. Arrays of subclasses and of other pipelines take zarr's way at once, and so does each
selection that the access declines. If the methods are not those that this module knows, they stay.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zarr import Array

if TYPE_CHECKING:
    from .direct_access import DirectAccess

__all__ = ["is_active", "replace", "restore", "unknown"]

Method = Callable[..., Any]

# What was replaced, and by what, by name; empty if nothing is.
_originals: dict[str, Method] = {}
_replacements: dict[str, Method] = {}


def _wanted(array: Any) -> DirectAccess | None:
    """Return the direct access to an array that any library has opened; None if it, or the option, leaves all to zarr."""
    inner = array._async_array
    direct = getattr(inner.codec_pipeline, "direct", None)  # no other pipeline has it
    if direct is None or type(array) is not Array or not _originals:
        return None
    access: DirectAccess | None = direct.of(inner)
    return access if access is not None and access.serves_all else None


def _getitem(original: Method) -> Method:
    @functools.wraps(original)
    def method(self: Any, selection: Any) -> Any:
        access = _wanted(self)
        found = None if access is None else access.read(selection)
        return original(self, selection) if found is None else found

    return method


def _setitem(original: Method) -> Method:
    @functools.wraps(original)
    def method(self: Any, selection: Any, value: Any) -> None:
        access = _wanted(self)
        if access is None or not access.write(selection, value):
            original(self, selection, value)

    return method


def _get_basic_selection(original: Method) -> Method:
    @functools.wraps(original)
    def method(self: Any, selection: Any = ..., **others: Any) -> Any:
        access = None if any(other is not None for other in others.values()) else _wanted(self)
        found = None if access is None else access.read(selection, is_basic=True)
        return original(self, selection, **others) if found is None else found

    return method


def _set_basic_selection(original: Method) -> Method:
    @functools.wraps(original)
    def method(self: Any, selection: Any, value: Any, **others: Any) -> None:
        access = None if any(other is not None for other in others.values()) else _wanted(self)
        if access is None or not access.write(selection, value):
            original(self, selection, value, **others)

    return method


# The methods, the parameters that they have in zarr 3.1 to 3.4, and what makes the replacement of one.
_METHODS: dict[str, tuple[tuple[str, ...], Callable[[Method], Method]]] = {
    "__getitem__": (("self", "selection"), _getitem),
    "__setitem__": (("self", "selection", "value"), _setitem),
    "get_basic_selection": (("self", "selection", "out", "prototype", "fields"), _get_basic_selection),
    "set_basic_selection": (("self", "selection", "value", "fields", "prototype"), _set_basic_selection),
}


def unknown() -> str:
    """Return which method of zarr's class is not as expected, for messages; empty if all are."""
    for name, (expected, _) in _METHODS.items():
        method = _originals.get(name, Array.__dict__.get(name))
        found = tuple(inspect.signature(method).parameters) if inspect.isfunction(method) else None
        if found != expected:
            return f"zarr.Array.{name} has the parameters {found}, expected {expected}"
    return ""


def is_active() -> bool:
    """Return True if the methods are replaced."""
    return bool(_originals)


def replace() -> None:
    """Replace the methods, unless they are replaced already or are not known."""
    if _originals or unknown():
        return
    for name, (_, make) in _METHODS.items():
        _originals[name] = Array.__dict__[name]
        _replacements[name] = make(_originals[name])
    for name, method in _replacements.items():
        setattr(Array, name, method)


def restore() -> None:
    """Restore the methods. One that another program has replaced since stays its own; what it calls of ours then takes zarr's way."""
    for name, original in _originals.items():
        if Array.__dict__[name] is _replacements[name]:
            setattr(Array, name, original)
    _originals.clear()
