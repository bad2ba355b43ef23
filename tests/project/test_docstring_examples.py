# test_docstring_examples.py - the examples in docstrings run, and each public function has one
# SPDX-License-Identifier: MIT
"""Each example runs in a new folder with the array of the reference, and its results are compared."""

from __future__ import annotations

import doctest
import inspect
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardcodec

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NAMES = runpy.run_path(str(SCRIPTS / "reference_names.py"))


def public() -> Iterator[tuple[str, Any]]:
    """Yield the public functions and classes, and the methods of this package."""
    for module in NAMES["MODULES"]:
        for name in NAMES["public_names"](module):
            value = getattr(__import__(module, fromlist=["*"]), name)
            if not callable(value):
                continue
            is_object = not inspect.isclass(value) and not inspect.isfunction(value)  # such as `stats`
            yield f"{module}.{name}", type(value).__call__ if is_object else value
            if inspect.isclass(value):
                members = inspect.getmembers(value, inspect.isroutine)
                yield from (
                    (f"{module}.{name}.{member}", method)
                    for member, method in members
                    if not member.startswith("_")
                )


PUBLIC = dict(public())
FUNCTIONS = {
    name
    for name, value in PUBLIC.items()
    if inspect.isfunction(value) and name.rpartition(".")[0] in NAMES["MODULES"]
}


def examples() -> dict[str, list[doctest.Example]]:
    """Return the examples of each docstring, under the first name that has it."""
    found, seen = {}, set()
    for name, value in PUBLIC.items():
        text = inspect.getdoc(value) or ""
        if (
            str(getattr(value, "__module__", "")).startswith("shardcodec")
            and ">>>" in text
            and text not in seen
        ):
            seen.add(text)
            found[name] = doctest.DocTestParser().get_examples(text)
    return found


EXAMPLES = examples()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Go to a folder with the array that the reference describes."""
    monkeypatch.chdir(tmp_path)
    shardcodec.disable()
    yield
    shardcodec.disable()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_gives_its_result(name: str) -> None:
    names: dict[str, Any] = {}
    exec(NAMES["ARRAY_OF_EXAMPLES"], names)
    output: list[str] = []
    test = doctest.DocTest(EXAMPLES[name], names, name, None, None, None)
    failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=output.append)
    assert not failed, "".join(output)


def test_each_public_function_has_an_example() -> None:
    assert len(FUNCTIONS) >= 29
    with_example = {name for name in FUNCTIONS if ">>>" in (inspect.getdoc(PUBLIC[name]) or "")}
    assert not sorted(FUNCTIONS - with_example), "add a section Examples to the docstring"


# Classes whose objects only come from functions, and are read.
RESULTS = {
    "ReadResult",
    "WritePlan",
}


def test_each_public_class_has_an_example() -> None:
    classes = {
        name
        for name, value in PUBLIC.items()
        if inspect.isclass(value) and not issubclass(value, BaseException)
    }
    needed = {
        name for name in classes if name.rpartition(".")[2] not in RESULTS and not name.endswith("Report")
    }
    with_example = {name for name in needed if ">>>" in (inspect.getdoc(PUBLIC[name]) or "")}
    assert len(needed) > 15
    assert not sorted(needed - with_example), "add a section Examples to the docstring"


def test_examples_import_nothing_of_their_own() -> None:
    """The reference shows the imports once, above all examples of a page."""
    sources = [example.source for found in EXAMPLES.values() for example in found]
    assert not [source for source in sources if source.startswith(("import ", "from "))]
