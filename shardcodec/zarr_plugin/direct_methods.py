# direct_methods.py - methods of `zarr.Array` that first ask the pipeline of the array
# SPDX-License-Identifier: MIT
"""Methods of `zarr.Array` that first ask the pipeline of the array for its `DirectAccess`: the switch ``direct``.

The arrays of a program are opened by other libraries, which do not call `attach`. So the methods of the class itself are replaced, as
long as `enable` or another setting demands it. Arrays of subclasses and of other pipelines take zarr's way at once, and so does each
selection that the access declines. If the methods are not those that this module knows, they stay.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import zarr
from zarr import Array

from .setting import setting

if TYPE_CHECKING:
    from .direct_access import DirectAccess

__all__ = ["is_active", "replace", "replacements", "restore", "unknown"]

Method = Callable[..., Any]
# Returns the direct access to an array; None if zarr's way is to be taken.
Find = Callable[[Any], "DirectAccess | None"]

# The methods of zarr and their replacements, by name; empty while the option is off.
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


def _say_nothing(others: dict[str, Any], kind: str) -> bool:
    """Return True if keywords are those of zarr's brackets without fields. What these ask of the basic kind was declined already."""
    fields = others.get("fields", others)
    return kind != "basic" and len(others) == 1 and (fields is None or (type(fields) is list and not fields))


def _get(original: Method, kind: str, find: Find) -> Method:
    @functools.wraps(original)
    def method(self: Any, *given: Any, **others: Any) -> Any:
        is_usual = len(given) == 1 and (not others or _say_nothing(others, kind))
        access = find(self) if is_usual else None
        found = None if access is None else access.read(given[0], kind)
        return original(self, *given, **others) if found is None else found

    return method


def _set(original: Method, kind: str, find: Find) -> Method:
    @functools.wraps(original)
    def method(self: Any, *given: Any, **others: Any) -> None:
        is_usual = len(given) == 2 and (not others or _say_nothing(others, kind))
        access = find(self) if is_usual else None
        if access is None or not access.write(given[0], given[1], kind):
            original(self, *given, **others)

    return method


# For each kind of selections that has methods of its own the name of their parameter.
_PARAMETERS = {"basic": "selection", "orthogonal": "selection", "coordinate": "selection", "mask": "mask"}

# For each method its parameters in zarr 3.1 to 3.4, in any order, what makes its replacement, and the kind of selections.
_FOLDER_OF_ZARR = os.path.dirname(zarr.__file__)
_METHODS: dict[str, tuple[tuple[str, ...], Callable[[Method, str, Find], Method], str]] = {
    "__getitem__": (("self", "selection"), _get, "brackets"),
    "__setitem__": (("self", "selection", "value"), _set, "brackets"),
}
for _kind, _name in _PARAMETERS.items():
    _METHODS[f"get_{_kind}_selection"] = ("self", _name, "out", "prototype", "fields"), _get, _kind
    _METHODS[f"set_{_kind}_selection"] = ("self", _name, "value", "prototype", "fields"), _set, _kind


def _refusal(name: str) -> str:
    """Return in what a method of zarr's class is not as expected; empty if it is."""
    expected = _METHODS[name][0]
    method = _originals.get(name, Array.__dict__.get(name))
    found = tuple(inspect.signature(method).parameters) if inspect.isfunction(method) else None
    if found is None or sorted(found) != sorted(expected):
        return f"zarr.Array.{name} has the parameters {found}, expected {expected}"
    while method is not None:
        if not method.__code__.co_filename.startswith(_FOLDER_OF_ZARR):
            return f"zarr.Array.{name} is a function of {method.__code__.co_filename}"
        method = getattr(method, "__wrapped__", None)
    return ""


def unknown() -> str:
    """Return which method of zarr's class is not as expected, for messages; empty if all are."""
    return next(filter(None, map(_refusal, _METHODS)), "")


def replacements(find: Find, own: Callable[[str], Method]) -> dict[str, Method]:
    """Return methods by name that first ask the access to their array. own: returns that of zarr."""
    return {name: make(own(name), kind, find) for name, (_, make, kind) in _METHODS.items()}


def is_active() -> bool:
    """Return True if the methods are replaced."""
    return bool(_originals)


def replace() -> None:
    """Replace the methods, unless they are replaced already or are not known."""
    with setting.mutex:  # two threads may open the first arrays
        if _originals or unknown():
            return
        _replacements.update(replacements(_wanted, lambda name: Array.__dict__[name]))
        _originals.update({name: Array.__dict__[name] for name in _METHODS})
        for name, method in _replacements.items():
            setattr(Array, name, method)


def restore() -> None:
    """Restore the methods. One that another program has replaced since stays its own; what it calls of ours then takes zarr's way."""
    for name, original in _originals.items():
        if Array.__dict__[name] is _replacements[name]:
            setattr(Array, name, original)
    _originals.clear()


setting.follow_direct = lambda is_demanded: replace() if is_demanded else restore()
