# test_contributing.py - the lists of CONTRIBUTING.md: a forgotten step of "How to add ..." is noticed, and the test says what to do
# SPDX-License-Identifier: MIT
"""`test_codec_table.py` has the steps of codecs, `tests/kernels/test_crc32c.py` those of variants of kernels."""

from __future__ import annotations

import importlib
import re
import runpy
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import pytest
import store_contract

from shardcodec import compat
from shardcodec.options import _PARSERS, NAMES
from shardcodec.public import MODULES
from shardcodec.storage import kinds

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
# The layer of surfaces; `zarr_plugin` has its names in `shardcodec` itself.
LAYERS = runpy.run_path(str(TESTS / "project/test_layers.py"))["LAYERS"]
SURFACES = sorted(set(next(names for names in LAYERS if "kv" in names)) - {"zarr_plugin"})


def section(page: str, heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)^## ", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no section {heading}"
    return found[1]


def test_table_has_every_folder_of_tests() -> None:
    named = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\|[^|]*\|", section("CONTRIBUTING.md", "Tests"), re.M)))
    )
    folders = {path.parent.name for path in TESTS.glob("*/*") if path.suffix in {".py", ".c"}}
    assert folders <= named, f"add to the table of CONTRIBUTING.md, 'Tests': {sorted(folders - named)}"


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_an_option(name: str) -> None:
    """Nothing noticed an option without refused values, without a use in a test, and without a line for users."""
    assert name in _PARSERS, f"shardcodec/options.py: add a check of {name} to _PARSERS"
    of_options = (TESTS / "zarr_plugin/test_options.py").read_text()
    assert f'("{name}", ' in of_options, (
        f"test_invalid_value_is_refused of test_options.py: add a value that {name} refuses"
    )
    others = (
        path for path in TESTS.rglob("test_*.py") if path.name not in {"test_options.py", Path(__file__).name}
    )
    assert any(re.search(rf"\b{name}\b", path.read_text()) for path in others), (
        f"no other test uses the option {name}"
    )
    assert f"`{name}" in (ROOT / "CHANGELOG.md").read_text(), f"CHANGELOG.md does not name `{name}`"


def test_each_kind_of_store_has_a_line_in_the_contract(tmp_path: Path) -> None:
    """Step 3 of "How to add a kind of store"."""
    tested = set()
    for name, kind in store_contract.KINDS.items():
        folder = tmp_path / name
        folder.mkdir()
        try:
            made = kind.make(folder)
        except pytest.skip.Exception:
            continue
        is_open = not isinstance(made, AbstractContextManager) or hasattr(made, "get")
        with (
            suppress(AttributeError),
            nullcontext(made) if is_open else made as store,
        ):  # zarr 3.1: the end of an unused ZipStore
            tested.add(type(store))
    missing = {*kinds.KINDS, compat.ObjectStore} - tested
    assert not missing, f"tests/store_contract.py: add a line to KINDS for {sorted(map(str, missing))}"


@pytest.mark.parametrize("name", SURFACES)
def test_steps_of_a_surface(name: str) -> None:
    assert list((TESTS / name).glob("test_*.py")), f"tests/{name} has no test"
    names = [one for one, module in MODULES.items() if module.startswith(f".{name}.")]
    names += getattr(importlib.import_module(f"shardcodec.{name}"), "__all__", [])
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    for where, text in (("a page of docs", pages), ("CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text())):
        assert any(re.search(rf"\b{one}\b", text) for one in names), (
            f"{where} has to name one of {', '.join(names)}"
        )
