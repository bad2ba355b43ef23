# test_architecture.py - docs/architecture.md names files, functions and modules that exist
# SPDX-License-Identifier: MIT
"""`docs/architecture.md` names files and functions and has a line for each module; both are compared with the code."""

from __future__ import annotations

import re
from pathlib import Path

from source_names import defined_names

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shardcodec"


def architecture() -> str:
    return (ROOT / "docs/architecture.md").read_text()


def test_functions_named_in_the_architecture_page_exist() -> None:
    named = re.findall(r"`((?:shardcodec|csrc)/[\w/]+\.(?:py|pyx|pxi|c|h)):([\w.]+)`", architecture())
    assert len(named) > 50
    missing = [
        f"{file}:{name}"
        for file, name in named
        if not (ROOT / file).exists() or name not in defined_names(ROOT / file)
    ]
    assert not missing, f"update docs/architecture.md: {missing}"


def test_architecture_page_has_a_line_for_each_module() -> None:
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
