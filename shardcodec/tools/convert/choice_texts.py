# choice_texts.py - choices of the layout as texts of the command
# SPDX-License-Identifier: MIT
"""Parse the shapes and rules of a layout from texts of the command, and from values of Python."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...readable import parse_nbytes
from .choices import ALL, AUTO, Kind, LayoutRule
from .source import Ints

__all__ = ["parse_rules", "parse_shape", "parse_shards", "rules_of"]


def parse_shape(text: str) -> Ints:
    """Return a shape from a text such as ``64,64,64``; raise `ValueError` for any other text."""
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ValueError(f"expected a shape such as 64,64,64, got {text!r}")
    return shape


def parse_shards(text: str) -> int | Ints:
    """Return a shape such as ``512,512,512``, or a number of bytes such as ``512MiB``."""
    is_size = "," not in text and any(unit.isalpha() and unit != "x" for unit in text)
    return parse_nbytes(text) if is_size else parse_shape(text)


def parse_rules(kind: Kind, texts: Sequence[str]) -> Any:
    """Return the argument of `convert` from texts such as ``64,64,64``, ``time=24,lat=90``, ``auto`` or ``ARRAY:1,64,64``."""
    rules: dict[str, Any] = {}
    for text in texts:
        arrays, _, rest = text.rpartition(":")
        value = _parse_value(kind, rest)
        if arrays and isinstance(value, int):
            value = rest  # a number would be that of an axis
        given = value if isinstance(value, dict) and not arrays else {arrays or ALL: value}
        if twice := rules.keys() & given.keys():
            raise ValueError(f"{kind}: expected one rule for {min(twice)!r}, got two")
        rules.update(given)
    return rules[ALL] if list(rules) == [ALL] else rules or None


def _parse_value(kind: Kind, text: str) -> Any:
    if text.strip() == AUTO:
        return AUTO
    if "=" not in text:
        try:
            return parse_shards(text) if kind == "shards" else parse_shape(text)
        except ValueError as error:
            raise ValueError(f"{kind}: {error}") from None
    sizes = {}
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        if not name or not size.isdecimal() or int(size) < 1 or name in sizes:
            raise ValueError(f"{kind}: expected sizes of axes such as time=24,lat=90, got {text!r}")
        sizes[name] = int(size)
    return sizes


def rules_of(kind: Kind, given: Any) -> tuple[LayoutRule, ...]:
    """Return the rules of the argument `chunks` or `shards` of `convert`; raise `ValueError` or `TypeError` for no rule."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        return (LayoutRule(kind, _value(kind, given)),)
    axes = {name: size for name, size in given.items() if _is_whole(size) and name != ALL}
    rules = [LayoutRule(kind, _value(kind, axes))] if axes else []
    rules += [
        LayoutRule(kind, _value(kind, value), str(name)) for name, value in given.items() if name not in axes
    ]
    if not rules or (axes and ALL in given):
        raise ValueError(
            f"{kind}: expected sizes by names of axes, or shapes by paths of arrays, got {dict(given)}"
        )
    return tuple(sorted(rules, key=lambda rule: rule.arrays != ALL))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _value(kind: Kind, given: Any) -> Any:
    """Return the value of a rule, with Python's own numbers, which are written to plans."""
    if isinstance(given, str):
        return _parse_value(kind, given)
    if isinstance(given, Mapping):
        if all(_is_whole(size) and size > 0 for size in given.values()) and given:
            return {str(name): int(size) for name, size in given.items()}
        raise ValueError(f"{kind}: expected positive sizes by names of axes, got {dict(given)}")
    if _is_whole(given) and kind == "shards":
        if given < 1:
            raise ValueError(f"shards: expected a positive number of bytes or a shape, got {given}")
        return int(given)
    try:
        return tuple(operator.index(size) for size in given)
    except TypeError:
        raise TypeError(f"{kind}: expected a shape, sizes of axes or 'auto', got {given!r}") from None
