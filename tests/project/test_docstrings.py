# test_docstrings.py - public functions and methods document their parameters and results
# SPDX-License-Identifier: MIT
"""Every public name of the package has a numpydoc docstring: a sentence, the parameters, and what is returned."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import shardcodec
import shardcodec.kv
import shardcodec.tools
import shardcodec.transformer

MODULES = (shardcodec, shardcodec.kv, shardcodec.tools, shardcodec.transformer)

# The docstrings of these methods add what differs from the abstract class in zarr that documents the rest.
STORE_OF_ZARR = {
    f"shardcodec.transformer.ShardingStorageTransformer.{name}"
    for name in dir(shardcodec.transformer.ShardingStorageTransformer)
}


def is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("shardcodec")


def members(name: str, cls: type) -> Iterator[tuple[str, Callable[..., Any] | property]]:
    """Yield the public methods and properties that classes of this package define."""
    for base in cls.__mro__:
        if not is_ours(base):
            continue
        for attribute, value in vars(base).items():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            is_shown = not attribute.startswith("_") and vars_of_first(cls, attribute) is value
            if is_shown and (inspect.isfunction(function) or isinstance(function, property)):
                yield f"{name}.{attribute}", function


def vars_of_first(cls: type, attribute: str) -> Any:
    """Return an attribute of the first class that defines it, without binding it."""
    return next(vars(base)[attribute] for base in cls.__mro__ if attribute in vars(base))


def callables() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            full = f"{module.__name__}.{name}"
            if inspect.isclass(value):
                yield full, value
                yield from members(full, value)
            elif callable(value) and not isinstance(value, ModuleType):
                yield full, value if inspect.isfunction(value) else type(value).__call__
                if not inspect.isfunction(value):
                    yield from members(full, type(value))


NAMES = dict(callables())
CALLABLES = {name: value for name, value in NAMES.items() if not isinstance(value, property)}


def section(text: str, title: str) -> str | None:
    """Return the text of a section of a docstring; None if there is no such section."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", text, re.M | re.S)
    return None if found is None else found[1]


def parameters(value: Any) -> list[str]:
    if inspect.isclass(value):
        if issubclass(value, tuple | BaseException) or "__init__" not in vars(value):
            return []
        value = value.__init__
    own = inspect.signature(value).parameters.values()
    return [p.name for p in own if p.name not in ("self", "cls") and not p.name.startswith("_")]


def returns_something(value: Any) -> bool:
    if inspect.isclass(value):
        return False
    annotation = inspect.signature(value).return_annotation
    return annotation not in (None, "None", "Iterator[None]", inspect.Signature.empty)


def refers_to_another(text: str) -> bool:
    """Return True if the docstring names the function whose docstring has the sections."""
    return bool(re.search(r"(see|as) `[\w.]+`", text.split("\n\n", maxsplit=1)[0]))


def first_line_fault(name: str) -> str | None:
    text = inspect.getdoc(NAMES[name])
    if not text:
        return f"{name}: expected a docstring, got none"
    first = text.split("\n\n")[0].splitlines()[0]
    is_sentence = re.search(r"\.\)?$", first) is not None and (first[0].isupper() or first[0] == "`")
    return None if is_sentence else f"{name}: expected a first line that is a sentence, got {first!r}"


def parameters_fault(name: str) -> str | None:
    text = inspect.getdoc(NAMES[name]) or ""
    wanted = parameters(NAMES[name])
    if not wanted or name in STORE_OF_ZARR or refers_to_another(text):
        return None
    listed = section(text, "Parameters")
    if listed is None:
        return f"{name}: expected a section Parameters with {wanted}"
    missing = [p for p in wanted if not re.search(rf"^(?:\S.*)?(?<!\w){p}\b", listed, re.M)]
    return f"{name}: the section Parameters lacks {missing}" if missing else None


def result_fault(name: str) -> str | None:
    text = inspect.getdoc(NAMES[name]) or ""
    if not returns_something(NAMES[name]) or name in STORE_OF_ZARR or refers_to_another(text):
        return None
    has_result = section(text, "Returns") is not None or section(text, "Yields") is not None
    return None if has_result else f"{name}: expected a section Returns or Yields"


@pytest.mark.parametrize(
    ("fault", "names"),
    [(first_line_fault, NAMES), (parameters_fault, CALLABLES), (result_fault, CALLABLES)],
    ids=["first line", "parameters", "result"],
)
def test_public_names_have_complete_docstrings(
    fault: Callable[[str], str | None], names: dict[str, Any]
) -> None:
    assert len(names) > 200
    found = list(filter(None, map(fault, names)))
    assert not found, "\n".join(found)
