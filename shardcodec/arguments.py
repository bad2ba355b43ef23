# arguments.py - types of arguments, checked when a public function is called
# SPDX-License-Identifier: MIT
"""`checked`: a public function whose arguments have the types of its signature, which type checkers read, too.

Without it, a wrong argument ends in an error of the code that happens to use it first, or is taken for something else: a string
for a list of letters, any object for True. What a type cannot say, such as a range, is checked by the function itself.
"""

from __future__ import annotations

import collections.abc
import functools
import numbers
import operator
import os
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, SupportsIndex, TypeVar, Union

import numpy as np

__all__ = [
    "LONG_DOCUMENT",
    "Renamed",
    "as_buffer",
    "check_argument",
    "check_fields",
    "checked",
    "has_long_list",
    "shortened",
    "show",
]

P = ParamSpec("P")
R = TypeVar("R")

# zarr's work on a list of codecs grows with the square of their number.
MAX_LIST = 5000
# A document with fewer characters has no such list: the shortest codec is {"name": "crc32c"}.
LONG_DOCUMENT = 18 * MAX_LIST

# Former names of methods, with their new names.
FORMER_NAMES = {"get_selection": "read", "set_selection": "write", "settle": "roll_back"} | {
    f"{name}_sync": name
    for name in ("commit", "delete", "delete_range", "list", "read", "read_many", "write")
}

# Former names of parameters, with what takes their place.
FORMER_PARAMETERS = {"n_parts": "parts", "name": "path", "path": "store", "path_or_store": "store"} | {
    **dict.fromkeys(("exactly", "only_arrays"), "exclude"),
    "verify": "level",
    "array": "only",
}

# Values may be large or hostile, so messages quote only a short part of them.
_repr = reprlib.Repr()
_repr.maxlevel = 3
_repr.maxstring = _repr.maxother = 60
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 8


def show(value: object) -> str:
    """Return a short `repr` for an error message."""
    return _repr.repr(value)


def has_long_list(document: object) -> bool:
    """Return True if a JSON document has a list of more than `MAX_LIST` objects, without those of attributes."""
    if isinstance(document, Mapping):
        return any(has_long_list(part) for name, part in document.items() if name != "attributes")
    if not isinstance(document, list) or not document:
        return False
    is_long = len(document) > MAX_LIST and isinstance(document[0], Mapping)
    return is_long or any(map(has_long_list, document))


def shortened(text: str, most: int = 300) -> str:
    """Return the beginning of a long text, for messages of other packages that quote all of a value."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with a check of its arguments before each call: `TypeError`, or `ValueError` for an unknown word.

    Parameters of type `Any`, and of types that only type checkers import, are not checked.
    """
    code = function.__code__  # type: ignore[attr-defined]
    positional = code.co_varnames[: code.co_argcount]
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    rules: dict[str, _Rule] | None = None

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal rules
        if rules is None:
            rules = _rules(function, function.__globals__)  # type: ignore[attr-defined]
        for name, value in zip(positional, args, strict=False):
            if name in rules:
                rules[name].check(name, value)
        for name, value in kwargs.items():
            if name in rules:
                rules[name].check(name, value)
            elif name not in names and (new := FORMER_PARAMETERS.get(name)) in names:
                own = function.__qualname__.removesuffix(".__init__")  # type: ignore[attr-defined]
                raise TypeError(f"{name}: {own} has no such parameter: it is {new} now")
        return function(*args, **kwargs)

    return call


def check_argument(name: str, value: object, kind: Any) -> None:
    """Check one argument against a type, as `checked` does."""
    if type(value) is not kind and (rule := _rule(kind)) is not None:
        rule.check(name, value)


def check_fields(record: Any) -> None:
    """Check the fields of a dataclass against their types, for its ``__post_init__``."""
    cls = type(record)
    if (rules := _of_fields.get(cls)) is None:
        rules = _of_fields[cls] = _rules(cls, vars(sys.modules[cls.__module__]))
    for name, rule in rules.items():
        rule.check(name, getattr(record, name))


_of_fields: dict[type, dict[str, _Rule]] = {}


class Renamed:
    """Base of classes with renamed methods: the error for a former name names the new one."""

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name):
            new = FORMER_NAMES.get(name, "")
            hint = f": it is {new} now" if hasattr(type(self), new) else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self
            )


def as_buffer(value: Any, name: str) -> memoryview:
    """Return the bytes of a buffer, without a copy."""
    try:
        return memoryview(value).cast("B")
    except TypeError:
        raise TypeError(f"{name}: expected bytes or another contiguous buffer, got {show(value)}") from None


class _Rule(NamedTuple):
    """The values that one parameter accepts: a test of each alternative, their names, and the words of `Literal`."""

    tests: tuple[Callable[[Any], bool], ...]
    expected: str
    words: tuple[object, ...]

    def check(self, name: str, value: object) -> None:
        for test in self.tests:
            if test(value):
                return
        is_other_word = any(type(value) is type(word) for word in self.words)
        raise (ValueError if is_other_word else TypeError)(
            f"{name}: expected {self.expected}, got {show(value)}"
        )


def _rules(annotated: Any, names: dict[str, Any]) -> dict[str, _Rule]:
    found = {}
    for name, annotation in annotated.__annotations__.items():
        if name == "return":
            continue
        try:
            hint = eval(annotation, names) if isinstance(annotation, str) else annotation
        except NameError:  # a name that only type checkers import
            continue
        if (rule := _rule(hint)) is not None:
            found[name] = rule
    return found


@functools.cache
def _rule(hint: Any) -> _Rule | None:
    """Return the rule of a type; None if it accepts everything."""
    if hint is None or hint is type(None):
        return _Rule((lambda value: value is None,), "None", ())
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        rules = [_rule(one) for one in arguments]
        known = [rule for rule in rules if rule is not None]
        if len(known) < len(rules):
            return None
        tests, expected, words = zip(*known, strict=True)
        text = " or ".join(one for one in expected if one != "None")
        return _Rule(sum(tests, ()), text, sum(words, ()))
    if origin is Literal:
        listed = ", ".join(map(repr, arguments))
        text = f"one of {listed}" if len(arguments) > 1 else listed
        return _Rule(
            (lambda value: type(value) in map(type, arguments) and value in arguments,), text, arguments
        )
    if origin in (collections.abc.Sequence, collections.abc.Iterable):
        return _many(arguments[0], is_kept=origin is collections.abc.Sequence)
    return _simple(origin or hint)


def _many(item: Any, *, is_kept: bool) -> _Rule:
    """Return the rule of a sequence. A string is none: it would be a sequence of letters.

    The items of an iterable are not looked at, because an iterator is used once.
    """
    rule = _rule(item)
    items = "" if rule is None else f" of {_PLURALS[item]}" if item in _PLURALS else f", each {rule.expected}"

    def test(value: Any) -> bool:
        if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
            return False
        if not is_kept:
            return isinstance(value, Iterable)
        if not isinstance(value, Sequence) and getattr(value, "ndim", 0) != 1:
            return False
        return rule is None or all(any(one(each) for one in rule.tests) for each in value)

    return _Rule((test,), f"a sequence{items}", ())


_PLURALS: dict[Any, str] = {int: "whole numbers", str: "strings"}


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not _is_flag(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not _is_flag(value)


_SIMPLE: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (_is_flag, "True or False"),
    int: (_is_whole, "a whole number"),
    SupportsIndex: (_is_whole, "a whole number"),
    float: (_is_number, "a number"),
    str: (lambda value: isinstance(value, str), "a string"),
    bytes: (lambda value: isinstance(value, bytes), "bytes"),
    os.PathLike: (lambda value: isinstance(value, os.PathLike), "a path"),
    collections.abc.Mapping: (lambda value: isinstance(value, Mapping), "a mapping"),
    collections.abc.Callable: (callable, "a function"),
}


def _simple(kind: Any) -> _Rule | None:
    if kind in _SIMPLE:
        test, expected = _SIMPLE[kind]
        return _Rule((test,), expected, ())
    if (
        not isinstance(kind, type)
        or kind in (Any, object, np.ndarray)  # what fills an array checks more than its type
        or typing.is_typeddict(kind)
        or getattr(kind, "_is_protocol", False)
    ):
        return None
    return _Rule(
        (lambda value: isinstance(value, kind),),
        f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}",
        (),
    )
