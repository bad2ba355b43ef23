# test_limits.py - the tables of limits in docs/architecture.md are those of the code
# SPDX-License-Identifier: MIT
"""Each constant has the value of the table, and each loop without a condition has a row that says what ends it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMITS = (ROOT / "docs/architecture.md").read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]
LIMIT = re.compile(r"`(.+?)` \| .+ \|.*")  # the value, what it limits, and what happens then
ROWS = re.findall(r"^\| `([\w./]+):([\w.]+)` \| (.*) \|$", LIMITS, re.M)
C_LOOP = r"\bfor \(;;\)|\bwhile \((?:1|true)\)"
# At column 0: the name of a C function, on the line after its type.
C_FUNCTION = r"^(\w+)\("


def loops_in_c(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for match in re.finditer(C_LOOP, text):
        found[re.findall(C_FUNCTION, text[: match.start()], re.M)[-1]] += 1
    return found


def loops_in_python(text: str) -> Counter[str]:
    found: Counter[str] = Counter()

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.While) and isinstance(child.test, ast.Constant):
                found[name] += 1
            is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            visit(child, f"{name}.{child.name}".lstrip(".") if is_scope else name)

    visit(ast.parse(text), "")
    return found


def loops_in_cython(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for match in re.finditer(r"^ +while (?:True|1):", text, re.M):
        names = re.findall(
            r"^ *(?:def|cp?def (?:[\w.]+ \*?)*)\s*(\w+)\(.*(?::|,)$", text[: match.start()], re.M
        )
        found[names[-1]] += 1
    return found


def loops() -> Counter[tuple[str, str]]:
    """Return the loops without a condition, by file and function."""
    found: Counter[tuple[str, str]] = Counter()
    for folder in ("csrc", "shardcodec"):
        for path in (ROOT / folder).rglob("*"):
            kinds = {".c": loops_in_c, ".h": loops_in_c, ".py": loops_in_python, ".pxi": loops_in_cython}
            if kind := kinds.get(path.suffix):
                name = path.relative_to(ROOT).as_posix()
                found.update({(name, where): n for where, n in kind(path.read_text()).items()})
    return found


def test_each_loop_without_a_condition_has_a_row() -> None:
    rows = Counter((file, name) for file, name, rest in ROWS if not LIMIT.fullmatch(rest))
    found = loops()
    assert found, "the scan finds nothing"
    assert rows == found, f"no row: {dict(found - rows)}; no loop: {dict(rows - found)}"


def test_each_limit_has_the_value_of_the_table() -> None:
    limits = [(file, name, value[1]) for file, name, rest in ROWS if (value := LIMIT.fullmatch(rest))]
    assert len(limits) > 40
    for file, name, value in limits:
        text = re.sub(r"\((?:u?int64_t|size_t)\)(\w+)", r"\1", (ROOT / file).read_text())
        defined = re.search(rf"^ *(?:#define {name} \(?|{name} = )(.+?)\)?u?(?: */\*.*| *#.*)?$", text, re.M)
        assert defined, f"{file} does not define {name}"
        assert eval(defined[1].rstrip("u") + ")" * (defined[1].count("(") - defined[1].count(")"))) == eval(
            value
        ), (file, name, defined[1])


def test_scan_sees_each_kind_of_loop() -> None:
    assert loops_in_c("static int\nname(int a)\n{\n    for (;;) {\n") == {"name": 1}
    assert loops_in_c("int\nname(int a)\n{\n    while (true)\n") == {"name": 1}
    assert loops_in_python("class A:\n  def b(self):\n    while True:\n      pass\n") == {"A.b": 1}
    assert loops_in_cython("cdef int name(int a):\n    while True:\n") == {"name": 1}


def test_interrupts_are_counted_everywhere() -> None:
    """A call that is repeated after EINTR counts the repetitions (`sc_file_interrupted`)."""
    for path in (ROOT / "csrc").rglob("*.[ch]"):
        for line in path.read_text().splitlines():
            if "== EINTR" in line and "sc_file.h" not in path.name:
                raise AssertionError(f"{path}: use sc_file_interrupted(): {line}")
