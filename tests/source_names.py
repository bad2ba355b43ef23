# source_names.py - the functions, classes and constants of a source file
# SPDX-License-Identifier: MIT
"""Shared by the tests that compare pages with the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

__all__ = ["defined_names"]


def defined_names(path: Path) -> set[str]:
    """Return the functions, classes and constants of a source file; methods as ``Class.method``."""
    text = path.read_text()
    constants = set(re.findall(r"^(?:#define )?\s*([A-Z][A-Z0-9_]+)(?= = | [\d(])", text, re.M))
    return constants | _functions(path, text)


def _functions(path: Path, text: str) -> set[str]:
    if path.suffix in (".c", ".h"):
        return set(re.findall(r"^(?:[\w ]+ \**)?(\w+)\(", text, re.M))
    if path.suffix != ".py":
        return set(re.findall(r"^(?:cdef class|class|c?p?def(?: [\w.]+ \*?)?) ?(\w+)", text, re.M))
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (ast.FunctionDef, ast.AsyncFunctionDef)
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, methods)}
    return names
