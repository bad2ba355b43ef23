# reference_names.py - the names in the reference of the site
# SPDX-License-Identifier: MIT
"""Each public module has a page with its public names, and after them the types that only appear in results and fields.

Such a type, as a record inside of a report, is not exported, but a reader of the pages needs its fields.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ForwardRef, cast, get_args

import shardcodec

__all__ = ["ARRAY_OF_EXAMPLES", "MODULES", "public_names", "types_in", "unexported_types"]

# The examples in docstrings begin with this.
ARRAY_OF_EXAMPLES = """\
import struct
from pathlib import Path

import numpy as np
import zarr

import shardcodec
from shardcodec import kv, tools, transformer

zarr.create_array("a.zarr", data=np.arange(24, dtype="int32").reshape(4, 6), shards=(4, 6), chunks=(2, 3))
"""

# The public modules, and the modules from which a reader of the source gets their names: `shardcodec` itself chooses
# between two when it is imported.
MODULES = {
    "shardcodec": "shardcodec.public",
    "shardcodec.kv": "shardcodec.kv",
    "shardcodec.tools": "shardcodec.tools",
    "shardcodec.transformer": "shardcodec.transformer",
}
# Methods and attributes that only modules of the package use.
INTERNAL = {
    "Layout.chain",
    "ShardedKeyValueStore.exchange",
    "ShardedKeyValueStore.target",
    "ShardingStorageTransformer.object_of",
    "ShardingStorageTransformer.shards",
    "Transaction.member",
}


def public_names(module: str) -> list[str]:
    """Return the public names of a module, in the order of its page."""
    return sorted(importlib.import_module(MODULES[module]).__all__, key=str.lower)


def unexported_types(module: str) -> list[str]:
    """Return the dotted names of types in results and fields of a module's public names that no module exports."""
    exported = {
        id(getattr(importlib.import_module(one), name)) for one in MODULES for name in public_names(one)
    }
    pending = [getattr(importlib.import_module(module), name) for name in public_names(module)]
    found: dict[str, type] = {}
    while pending:
        for kind in types_in(pending.pop()):
            name = f"{kind.__module__}.{kind.__qualname__}"
            if id(kind) not in exported and name not in found:
                found[name] = kind
                pending.append(kind)
    return sorted(found, key=str.lower)


def types_in(thing: Any) -> Iterator[type]:
    """Yield the classes of this package in the results of a function, or in the public fields and results of a class."""
    if not inspect.isclass(thing):
        yield from results_of(thing if inspect.isfunction(thing) else type(thing).__dict__.get("__call__"))
        return
    for base in filter(is_ours, thing.__mro__):
        scope = vars(sys.modules[base.__module__])
        for item in map(get_args, vars(base).get("__orig_bases__", ())):  # as of tuple[OpenArray, ...]
            yield from (kind for part in item for kind in classes_in(part, scope))
        for name, hint in inspect.get_annotations(base).items():
            yield from classes_in(hint, scope) if is_for_callers(thing, name) else ()
    for name, value in inspect.getmembers_static(thing):
        yield from results_of(function_of(value)) if is_for_callers(thing, name) else ()


def is_for_callers(kind: type, name: str) -> bool:
    """Return True if callers use a field or method of a class."""
    return not name.startswith("_") and not any(
        f"{base.__qualname__}.{name}" in INTERNAL for base in kind.__mro__
    )


def results_of(function: Any) -> Iterator[type]:
    """Yield the classes of this package in the result of a function of this package."""
    if inspect.isfunction(function) and is_ours(function):
        yield from classes_in(function.__annotations__.get("return"), inspect.unwrap(function).__globals__)


def function_of(value: Any) -> Callable[..., Any] | None:
    """Return the function of a method or property; None for another member."""
    if isinstance(value, classmethod | staticmethod):
        return cast("Callable[..., Any]", value.__func__)
    if isinstance(value, property):
        return value.fget
    return value if inspect.isfunction(value) else None


def classes_in(hint: Any, scope: dict[str, Any]) -> Iterator[type]:
    """Yield the public classes of this package in an annotation, such as ``tuple[Codec, ...] | None``."""
    text = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
    if isinstance(text, str):
        hint = eval(text, classes_of_package() | scope)
    if inspect.isclass(hint) and is_ours(hint) and not hint.__name__.startswith("_"):
        yield hint
    for part in get_args(hint):
        yield from classes_in(part, scope) if not isinstance(part, str) else ()  # a string of a Literal


@cache
def classes_of_package() -> dict[str, Any]:
    """Return all classes of the package, because some modules import a class for type checkers alone."""
    found: dict[str, Any] = {}
    for one in pkgutil.walk_packages(shardcodec.__path__, "shardcodec."):
        if not one.name.startswith("shardcodec.cli") and not one.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # an optional package is not installed
                names = vars(importlib.import_module(one.name))
                found |= {name: value for name, value in names.items() if inspect.isclass(value)}
    return found


def is_ours(thing: Any) -> bool:
    """Return True if a class or a function belongs to this package."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "shardcodec"
