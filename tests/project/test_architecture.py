# test_architecture.py - the page of architecture names what exists
# SPDX-License-Identifier: MIT
"""`docs/architecture.md` follows calls by file and function, and has a line for each module: both are compared with the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shardcodec"


def defined_names(path: Path) -> set[str]:
    """Return the functions and classes of a source file; methods as ``Class.method``."""
    text = path.read_text()
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


def architecture() -> str:
    return (ROOT / "docs/architecture.md").read_text()


def test_functions_in_the_page_of_architecture_exist() -> None:
    named = re.findall(r"`((?:shardcodec|csrc)/[\w/]+\.(?:py|pyx|pxi|c|h)):([\w.]+)`", architecture())
    assert len(named) > 50
    missing = [
        f"{file}:{name}"
        for file, name in named
        if not (ROOT / file).exists() or name not in defined_names(ROOT / file)
    ]
    assert not missing, f"update docs/architecture.md: {missing}"


def test_page_of_architecture_has_a_line_for_each_module() -> None:
    sections = re.split(r"^### `(\w+)/`.*$", architecture(), flags=re.M)
    listed = set()
    for folder, text in zip(sections[1::2], sections[2::2], strict=True):
        names = re.findall(r"^\| `([\w/]+)\.py` \|", text, re.M)
        listed |= {name if folder == "shardcodec" else f"{folder}/{name}" for name in names}
    modules = {
        path.relative_to(PACKAGE).with_suffix("").as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert listed == modules, f"update docs/architecture.md: {sorted(listed ^ modules)}"
