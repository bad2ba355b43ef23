# checks.py - checks of values parsed from JSON, with their place in the JSON
# SPDX-License-Identifier: MIT
"""Small checks shared by the modules that parse metadata.

Each check raises `SpecError` with a path relative to the value that its caller passed. `within` prepends the
caller's path while the error propagates: ``chunk_shape[1]`` becomes ``codecs[0].configuration.chunk_shape[1]``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Mapping
from contextlib import ContextDecorator
from typing import Any, NoReturn

from ..arguments import show
from ..errors import SpecError, UnsupportedError

__all__ = [
    "MAX_EXTENT",
    "as_chunk_shape",
    "as_int",
    "as_int_tuple",
    "as_items",
    "as_mapping",
    "bounded_depth",
    "check_keys",
    "parse_named",
    "show",
    "unknown_codec",
    "unsupported",
    "within",
    "wrong",
]

# Upper bound of every extent. With a bound on each number and on their count, products stay short enough to print.
MAX_EXTENT = 2**63 - 1
_MAX_NDIM = 64  # limit of numpy


def wrong(path: str, reason: str, **numbers: Any) -> NoReturn:
    """Raise `SpecError` about the value at ``path``."""
    raise SpecError(_place(path, reason), path=path, reason=reason, **numbers)


def unsupported(path: str, reason: str, **names: Any) -> NoReturn:
    """Raise `UnsupportedError` about the value at ``path``."""
    raise UnsupportedError(_place(path, reason), path=path, reason=reason, **names)


def unknown_codec(path: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raise `UnsupportedError` about a codec that is not among the known ones; a close name is named, because it may be meant."""
    from difflib import get_close_matches  # needed for this error alone

    # with the prefix, all codecs of numcodecs would be close to each other
    family = "numcodecs." if name.startswith("numcodecs.") else ""
    names = [one.removeprefix(family) for one in known if one.startswith(family)]
    near = get_close_matches(name.removeprefix(family)[:60], names, n=1, cutoff=0.8)
    hint = f"; is {family + near[0]!r} meant?" if near else ""
    unsupported(path, f"shardcodec does not implement codec {show(name)}{hint}", codec=name)


def _place(path: str, reason: str) -> str:
    return f"{path}: {reason}" if path else reason


def _join(outer: str, inner: str) -> str:
    if not inner or not outer:
        return outer or inner
    return outer + inner if inner.startswith("[") else f"{outer}.{inner}"


class within:  # noqa: N801
    """Prepend ``path`` to the path of a `SpecError` or `UnsupportedError` raised inside the block."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, SpecError | UnsupportedError):
            return
        numbers = error.context
        reason = numbers.pop("reason", error.message)
        full = _join(self._path, numbers.pop("path", None) or "")
        raise type(error)(_place(full, reason), path=full, reason=reason, **numbers) from error.__cause__


class bounded_depth(ContextDecorator):  # noqa: N801
    """Raise `SpecError` if metadata is nested beyond Python's recursion limit."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RecursionError):
            raise SpecError(f"{self._what}: nested too deeply, beyond Python's recursion limit") from None


def as_int(value: object, path: str, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return ``value`` if it is an integer in range.

    ``2.0`` is not an integer and ``true`` is not 1: JSON readers treat both differently, so neither is portable.
    """
    if type(value) is int:  # first: the other test is slow, and each opened array is parsed
        number = value
    else:
        try:
            number = operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
        except TypeError:
            wrong(path, f"expected an integer, got {show(value)}", actual=value)
    if minimum is not None and number < minimum:
        wrong(path, f"expected at least {minimum}, got {show(number)}", actual=number, limit=minimum)
    if maximum is not None and number > maximum:
        wrong(path, f"expected at most {maximum}, got {show(number)}", actual=number, limit=maximum)
    return number


def as_items(value: object, path: str) -> tuple[Any, ...]:
    """Return the items of a JSON array or of a tuple, which zarr's dictionaries contain."""
    if isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        wrong(path, f"expected an array, got {show(value)}", actual=value)
    return tuple(value)


def as_int_tuple(value: object, path: str, *, minimum: int | None = None) -> tuple[int, ...]:
    """Return an array of integers as a tuple; each is between ``minimum`` and `MAX_EXTENT`."""
    items = enumerate(as_items(value, path))
    return tuple(as_int(item, f"{path}[{i}]", minimum=minimum, maximum=MAX_EXTENT) for i, item in items)


def as_chunk_shape(value: object, itemsize: int, path: str) -> tuple[int, ...]:
    """Return the shape of a chunk of at most `MAX_EXTENT` bytes and numpy's number of axes."""
    shape = as_int_tuple(value, path, minimum=1)
    if len(shape) > _MAX_NDIM:
        reason = f"expected at most {_MAX_NDIM} axes (limit of numpy), got {len(shape)}"
        unsupported(path, reason, actual=len(shape), limit=_MAX_NDIM)
    nbytes = math.prod(shape) * itemsize
    if nbytes > MAX_EXTENT:
        reason = f"expected a chunk of at most {MAX_EXTENT} bytes, got {nbytes}"
        wrong(path, reason, actual=nbytes, limit=MAX_EXTENT)
    return shape


def as_mapping(value: object, path: str) -> Mapping[str, Any]:
    """Return ``value`` if it is a JSON object."""
    if not isinstance(value, dict | Mapping):
        wrong(path, f"expected an object, got {show(value)}", actual=value)
    return value


def check_keys(
    value: Mapping[str, Any], path: str, *, required: Collection[str] = (), optional: Collection[str] = ()
) -> None:
    """Reject missing and unknown keys: an unknown key may change the meaning of the bytes."""
    for key in required:
        if key not in value:
            wrong(_join(path, key), "missing required key")
    known = dict.fromkeys([*required, *optional])
    for key in value:
        if key not in known:
            expected = f"one of {', '.join(known)}" if known else "no keys"
            wrong(_join(path, str(key)), f"unknown key; expected {expected}", actual=key)


def parse_named(data: object) -> tuple[str, Mapping[str, Any]]:
    """Split the JSON of an extension point (codec, data type, chunk grid) into name and configuration.

    Both ``"name"`` and ``{"name": ..., "configuration": {...}, "must_understand": ...}`` are accepted (core
    specification 3.1). ``must_understand`` has no effect, because a reader cannot ignore any of the three.
    """
    if isinstance(data, str):
        return data, {}
    data = as_mapping(data, "")
    check_keys(data, "", required=("name",), optional=("configuration", "must_understand"))
    if not isinstance(data["name"], str):
        wrong("name", f"expected a string, got {show(data['name'])}", actual=data["name"])
    if not isinstance(data.get("must_understand", True), bool):
        wrong("must_understand", f"expected true or false, got {show(data['must_understand'])}")
    return data["name"], as_mapping(data.get("configuration", {}), "configuration")
