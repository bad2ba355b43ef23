# store_questions.py - find code that asks for the kind of a store
# SPDX-License-Identifier: MIT
"""Only `shardcodec/storage` may depend on the kind of a store; `project/test_layers.py` checks it with `questions_of_kind`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from shardcodec.storage import object_store, zarr_store  # noqa: F401 - kinds that the package imports at their first use
from shardcodec.storage.kinds import KINDS
from shardcodec.storage.store import Store

__all__ = ["questions_of_kind"]


def _kinds(base: type) -> Iterator[str]:
    """Yield the names of all kinds of stores of the package; tests may define more subclasses."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("shardcodec."):
            yield kind.__name__
        yield from _kinds(kind)


# zarr's classes of stores, and those of `storage.store.Store`.
STORE_CLASSES = {
    "FsspecStore",
    "ObjectStore",
    "ZipStore",
    *(made_for.__name__ for made_for in KINDS),
    *_kinds(Store),
}
HELPERS = {"is_local", "is_memory"}


def questions_of_kind(code: str) -> list[str]:
    """List the places that depend on the kind of a store: code may create a store, and use its class for nothing else."""
    tree = ast.parse(code)
    names, of_file_systems = _imported(tree)
    created: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            created |= {node.func, getattr(node.func, "value", node.func)}
    found = []
    for node in ast.walk(tree):
        for name in _names_in(node, names):
            is_kind = name in STORE_CLASSES and node not in created
            if is_kind or (name in HELPERS and name not in of_file_systems):
                found.append(f"{node.lineno}: {name}")  # type: ignore[attr-defined]
    return found


def _imported(tree: ast.Module) -> tuple[dict[str, str], set[str]]:
    """Return the imported names and what they stand for, and those of `storage.file_systems`, whose helpers are about files."""
    names: dict[str, str] = {}
    of_file_systems = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update({alias.asname or alias.name: alias.name for alias in node.names})
            if (node.module or "").endswith("storage.file_systems"):
                of_file_systems |= {alias.name for alias in node.names}
    return names, of_file_systems


def _names_in(node: ast.AST, imported: dict[str, str]) -> Iterator[str]:
    """Yield the names that a node uses or defines."""
    if isinstance(node, ast.Name):
        yield imported.get(node.id, node.id)
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value  # the name of a class, in a comparison
