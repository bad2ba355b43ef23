# test_house.py - numbers of the code that may only fall
# SPDX-License-Identifier: MIT
"""A ratchet: the code grew by a sixth in a day, and nothing noticed.

`NUMBERS` has the numbers of today. Who raises one lowers another, or changes the number in a commit of its own whose message says why. A number
that falls by more than a fiftieth is written down at once, or the gain is lost.

The calls and looks of a tool are those for one further small array: the difference between hierarchies of 10 and of 5 arrays. A tool
also looks at documents once, for any number of arrays: in the place of the hierarchy, and in each folder above it, which are three here.
"""

from __future__ import annotations

import ast
import inspect
import io
import itertools
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers import python_environment
from system_calls import calls_of

from shardcodec.options import NAMES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shardcodec"
LAYERS = runpy.run_path(str(ROOT / "tests/project/test_layers.py"))

# fmt: off
NUMBERS: dict[str, dict[str, int]] = {
    "lines of code": {"shardcodec": 1813, "zarr_plugin": 1664, "format": 2846, "access": 8109, "drawing": 348, "storage": 4411, "cli": 874, "transformer": 2091, "tools": 14414, "live": 1286, "kv": 1299, "binding": 4124, "csrc": 23196},
    "records": {"access": 42, "format": 41, "kv": 5, "live": 4, "shardcodec": 7, "storage": 17, "tools": 106, "transformer": 7, "zarr_plugin": 1},
    "modules that one other imports": {"all": 64, "below 150 lines": 30},
    "modules of the engine that tools and commands use": {"all": 42},
    "pairs of records with four or more equal fields": {"all": 28},
    "public names": {"shardcodec": 42, "shardcodec.kv": 9, "shardcodec.tools": 23, "shardcodec.transformer": 5},
    "parameters of public functions": {"shardcodec": 225, "shardcodec.kv": 49, "shardcodec.tools": 206, "shardcodec.transformer": 60},
    "flags of the command": {"advise": 11, "compact": 14, "convert": 20, "disable": 2, "doctor": 5, "enable": 2, "inspect": 13, "plan": 13, "repair": 15, "run-part": 4, "status": 1, "verify": 16},
    "options": {"all": 10},
    "Python calls for one further array": {"compact": 633, "convert": 1495, "inspect": 565, "repair": 813, "verify": 997},
    "looks at documents for one further array": {"compact": 3, "convert": 3, "inspect": 1, "repair": 3, "verify": 2},
    "looks at documents once": {"compact": 17, "convert": 20, "inspect": 3, "repair": 17, "verify": 4},
}
# fmt: on

SHORT_LINES = 150
SLACK = 0.02
FEW_FIELDS = 4
DOCUMENT = re.compile(r'/(zarr\.json|\.zarray|\.zattrs|\.zgroup|\.zmetadata)"')

# Each tool runs on one array, which warms it up, on 5 and on 10; `begin` and `end` are around a run.
TOOLS = """
import numpy as np
import zarr
from shardcodec import tools

RUNS = {
    "inspect": lambda source, new: tools.inspect(source, threads=1),
    "verify": lambda source, new: tools.verify(source, level="index", threads=1),
    "compact": lambda source, new: tools.compact(source, to=new, threads=1),
    "repair": lambda source, new: tools.repair(source, to=new, threads=1),
    "convert": lambda source, new: tools.convert(source, new, threads=1),
}
SIZES = 1, 5, 10
for n in SIZES:
    group = zarr.create_group(f"{n}.zarr")
    for i in range(n):
        group.create_array(f"a{i}", data=np.arange(64, dtype="int32"), shards=(64,), chunks=(16,))


def run_all(begin, end, times=1):
    for name, run in RUNS.items():
        for n in SIZES:
            for i in range(times):
                begin(name, n)
                run(f"{n}.zarr", f"{name}{n}-{i}.zarr")
                end(name, n)
"""
COUNT_CALLS = """
import itertools
import sys
import threading


def count(frame, event, _):
    if event == "call":
        next(calls)  # in one step: other threads count, too


def begin(name, n):
    global calls
    calls = itertools.count()
    threading.setprofile(count)
    sys.setprofile(count)


def end(name, n):
    sys.setprofile(None)
    threading.setprofile(None)
    print(name, n, next(calls))


run_all(begin, end, 6)
"""
MARK_LOOKS = """
import contextlib
import os


def mark(text):
    with contextlib.suppress(FileNotFoundError):
        os.stat(text)


mark("/mark")
run_all(lambda name, n: mark(f"/begin/{name}/{n}/"), lambda name, n: None)
mark("/mark")
"""


# ---------------------------------------------------------------- the source


def folder_of(path: Path) -> str:
    """Return the package of a module."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "shardcodec"


def lines_of_code(text: str) -> int:
    """Count the lines with code: no comment, no docstring, no import, no empty line."""
    left_out = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in left_out:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def lines_of_binding(text: str) -> int:
    """Count the lines of a Cython file that are neither empty nor a comment; those of docstrings count."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def count_lines() -> dict[str, int]:
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        found[folder_of(path)] += lines_of_code(path.read_text())
    for path in PACKAGE.rglob("*.p[xy][xdi]"):
        if path.suffix != ".pyi":
            found["binding"] += lines_of_binding(path.read_text())
    found["csrc"] = sum(
        bool(line.strip()) for code in LAYERS["C_CODE"].values() for line in code.splitlines()
    )
    return dict(found)


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules that import each module; a package that only exports is no importer."""
    paths = {LAYERS["absolute"](path, 1, path.stem): path for path in PACKAGE.rglob("*.py")}
    found: dict[str, set[str]] = defaultdict(set)
    for one in LAYERS["package_imports"]():
        if one.path in LAYERS["ONLY_EXPORT"]:
            continue
        target = one.target if one.target in paths else one.target.rpartition(".")[0]
        if target in paths:
            found[target].add(LAYERS["absolute"](one.path, 1, one.path.stem))
    return found


def count_modules_with_one_importer() -> dict[str, int]:
    names = [name for name, importers in imports().items() if len(importers) == 1]
    lines = [
        len((ROOT / name.replace(".", "/")).with_suffix(".py").read_text().splitlines()) for name in names
    ]
    return {"all": len(lines), "below 150 lines": sum(n < SHORT_LINES for n in lines)}


@cache
def records() -> list[tuple[Path, str, set[str]]]:
    """Return the named tuples and data classes of the package, with the names of their fields."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and re.search(
                r"\b(NamedTuple|TypedDict|dataclass)\b",
                " ".join(map(ast.unparse, [*node.bases, *node.decorator_list])),
            ):
                fields = {ast.unparse(line.target) for line in node.body if isinstance(line, ast.AnnAssign)}
                found.append((path, node.name, fields))
    return found


def count_records() -> dict[str, int]:
    return dict(Counter(folder_of(path) for path, _, _ in records()))


def count_pairs() -> dict[str, int]:
    pairs = itertools.combinations([fields for _, _, fields in records()], 2)
    return {"all": sum(len(one & other) >= FEW_FIELDS for one, other in pairs)}


# ---------------------------------------------------------------- what a user sees


@cache
def reference() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/reference_names.py"))


def public() -> dict[str, list[Any]]:
    names = reference()
    return {
        module: [getattr(__import__(module, fromlist=["*"]), name) for name in names["public_names"](module)]
        for module in names["MODULES"]
    }


def parameters(thing: Any) -> int:
    """Count the parameters of a function, or of the public methods of a class."""
    names = reference()
    if not inspect.isclass(thing):
        return len(inspect.signature(thing).parameters) if inspect.isfunction(thing) else 0
    own = [
        value
        for name, value in vars(thing).items()
        if name == "__init__" or names["is_for_callers"](thing, name)
    ]
    functions = [function for value in own if (function := names["function_of"](value)) is not None]
    return sum(len(inspect.signature(function).parameters) - 1 for function in functions)


def count_flags() -> dict[str, int]:
    typer = pytest.importorskip("typer")
    from shardcodec.cli.app import app

    commands = typer.main.get_command(app).commands
    return {
        name: sum(any(flag.startswith("--") for flag in one.opts) for one in command.params)
        for name, command in commands.items()
    }


# ---------------------------------------------------------------- what a tool does


def per_array(counts: dict[tuple[str, int], int]) -> dict[str, int]:
    """Return for each tool the difference between 10 and 5 arrays, for one array."""
    return {name: round((counts[name, 10] - counts[name, 5]) / 5) for name, n in counts if n == 5}


def once(counts: dict[tuple[str, int], int]) -> dict[str, int]:
    """Return for each tool what 5 arrays cost besides that."""
    return {name: counts[name, 5] - 5 * n for name, n in per_array(counts).items()}


def count_calls(tmp_path: Path) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", TOOLS + COUNT_CALLS],
        cwd=tmp_path,
        env=python_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts: dict[tuple[str, int], list[int]] = defaultdict(list)
    for line in done.stdout.splitlines():
        name, n, count = line.split()
        counts[name, int(n)].append(int(count))
    # On a busy machine threads wait more often, or another one of them does the work: in one run of many.
    return per_array({run: statistics.mode(all_counts) for run, all_counts in counts.items()})


def count_looks(tmp_path: Path) -> dict[tuple[str, int], int]:
    counts: Counter[tuple[str, int]] = Counter()
    at = "", 0
    for line in calls_of(tmp_path, TOOLS + MARK_LOOKS, "%file"):
        if begun := re.search(r'"/begin/(\w+)/(\d+)/"', line):
            at = begun[1], int(begun[2])
            counts[at] = 0
        elif DOCUMENT.search(line):
            counts[at] += 1
    return counts


SOURCE: dict[str, Callable[[], dict[str, int]]] = {
    "lines of code": count_lines,
    "records": count_records,
    "modules that one other imports": count_modules_with_one_importer,
    "modules of the engine that tools and commands use": lambda: {"all": len(LAYERS["DOOR"])},
    "pairs of records with four or more equal fields": count_pairs,
    "public names": lambda: {name: len(things) for name, things in public().items()},
    "parameters of public functions": lambda: {
        name: sum(map(parameters, things)) for name, things in public().items()
    },
    "flags of the command": count_flags,
    "options": lambda: {"all": len(NAMES)},
}
RUNS: dict[str, Callable[[Path], dict[str, int]]] = {
    "Python calls for one further array": count_calls,
    "looks at documents for one further array": lambda path: per_array(count_looks(path)),
    "looks at documents once": lambda path: once(count_looks(path)),
}


def compare(what: str, now: dict[str, int]) -> None:
    """Fail if a number has risen, or has fallen without being written down."""
    written = NUMBERS[what]
    assert now.keys() == written.keys(), (
        f"NUMBERS[{what!r}] of {Path(__file__).name}: make the names those of {now}"
    )
    risen = {name: (written[name], n) for name, n in now.items() if n > written[name]}
    assert not risen, (
        f"{what} (written, now): {risen}. These numbers may only fall. Look first whether an existing function, record or "
        "document that was read can do the job, and delete what your change makes dead. If more is right, write the new "
        "number into NUMBERS in a commit of its own whose message says why."
    )
    fallen = {name: n for name, n in now.items() if n < written[name] * (1 - SLACK)}
    assert not fallen, f"{what} has fallen: write {fallen} into NUMBERS, so that it stays"


def test_the_table_is_complete() -> None:
    assert NUMBERS.keys() == SOURCE.keys() | RUNS.keys()


@pytest.mark.parametrize("what", SOURCE)
def test_number_of_the_source(what: str) -> None:
    compare(what, SOURCE[what]())


@pytest.mark.parametrize("what", RUNS)
def test_number_of_a_run(what: str) -> None:
    """One further array of a group costs a tool no more questions than before."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the numbers are those of Python 3.11 and its newest zarr, 3.1")
    with tempfile.TemporaryDirectory(
        dir="/tmp"
    ) as folder:  # the tools look into each folder above a new hierarchy
        compare(what, RUNS[what](Path(folder)))


@pytest.mark.parametrize(("n", "is_right"), [(100, True), (99, True), (101, False), (90, False)])
def test_a_number_may_neither_rise_nor_fall_unseen(
    n: int, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NUMBERS, "options", {"all": 100})
    with nullcontext() if is_right else pytest.raises(AssertionError):
        compare("options", {"all": n})


def test_lines_of_code_leave_out_comments_texts_and_imports() -> None:
    text = '"""Text.\n\nMore."""\n# a comment\nimport os\n\n\ndef f():\n    """Text."""\n    return (  # why\n        os\n    )\n'
    assert lines_of_code(text) == 4
