# test_page_names.py - the pages name files, modules and functions that exist
# SPDX-License-Identifier: MIT
"""Each path, file, dotted name and `file:function` pair in a page is compared with the checkout."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from source_names import defined_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "docs/how-to/*.md", "bench/*.md", "tests/*/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"  # it names what earlier versions had
)
SUFFIXES = "c|h|md|pxd|pxi|py|pyi|pyx|toml"
FOLDERS = ("bench", "csrc", "docs", "examples", "scripts", "shardcodec", "tests")
FILES = [
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")))
    if path.is_file()
]
# Files that a program creates.
CREATED = {"bench/README.md": {"result.md"}}
LAYERS = "access|cli|drawing|format|kv|storage|tools|transformer|zarr_plugin"


def files(name: str) -> list[Path]:
    """Return the files that a page means by the last parts of their paths. ``*`` and NAME stand for any text."""
    pattern = re.escape(name).replace(r"\*", ".*").replace("NAME", ".*")
    return [ROOT / path for path in FILES if re.fullmatch(f"(.*/)?{pattern}", path)]


def resolves(dotted: str) -> bool:
    """Return True if a dotted name below `shardcodec` is a module, or a member of one."""
    first, *rest = dotted.split(".")
    found = importlib.import_module(first)
    for name in rest:
        if not hasattr(found, name):
            try:
                importlib.import_module(f"{found.__name__}.{name}")
            except (AttributeError, ImportError):
                return False
        found = getattr(found, name)
    return True


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    text = re.sub(r"https?://\S+", "", (ROOT / page).read_text())
    named = set(re.findall(rf"(?<![\w./<*-])[\w*][\w./*-]*\.(?:{SUFFIXES})\b(?![\w(])", text))
    missing = sorted(name for name in named - CREATED.get(page, set()) if not files(name))
    assert not missing, f"update {page}: {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_named_functions_exist(page: str) -> None:
    named = re.findall(r"`([\w./]+\.(?:py|pyx|pxi|c|h)):([\w.]+)`", (ROOT / page).read_text())
    missing = [
        f"{file}:{name}"
        for file, name in named
        if not any(name in defined_names(path) for path in files(file))
    ]
    assert not missing, f"update {page}: {missing}"


@pytest.mark.parametrize("page", PAGES)
def test_dotted_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`(shardcodec(?:\.\w+)+)", text))
    named |= {
        f"shardcodec.{name}" for name in re.findall(rf"`((?:{LAYERS})(?:\.[a-zA-Z]\w*)+)\b(?!\.\w)", text)
    }
    missing = sorted(name for name in named if not resolves(name))
    assert not missing, f"update {page}: {missing}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_page_ends_with_its_limitations(page: str) -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[-1:] == ["Limitations"]
    assert headings.count("Limitations") == 1
