# test_test_helpers.py - the helpers that keep tests fast lose nothing that a test relies on
# SPDX-License-Identifier: MIT

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pairs import pairs
from prepared_python import PreparedPython
from templates import written_once


@pytest.mark.parametrize(("n_first", "n_second", "n_last"), [(2, 2, 2), (4, 3, 3), (3, 7, 2), (10, 5, 3)])
def test_each_pair_of_values_is_tested_by_day(n_first: int, n_second: int, n_last: int) -> None:
    axes = [range(n) for n in (n_first, n_second, n_last)]
    rows = pairs("first, second, last", *axes).args[1]
    assert sorted(row.values for row in rows) == sorted(itertools.product(*axes))
    by_day = [row.values for row in rows if not row.marks]
    assert len(by_day) == n_first * n_second
    for a, b in itertools.combinations(range(3), 2):
        assert {(row[a], row[b]) for row in by_day} == set(itertools.product(axes[a], axes[b]))


def test_short_axis_must_be_the_last() -> None:
    with pytest.raises(AssertionError, match="another order"):
        pairs("first, second, last", "ab", "abc", "abc")


def test_copies_of_a_template_are_independent(tmp_path: Path) -> None:
    calls = []

    @written_once
    def make(folder: Path, text: str, *, more: bool = False) -> str:
        calls.append((text, more))
        (folder / "inner").mkdir(parents=True)
        (folder / "inner/file").write_text(text)
        return text + "!"

    (tmp_path / "b").mkdir()  # as tmp_path itself is
    assert [make(tmp_path / name, "old") for name in "ab"] == ["old!"] * 2
    (tmp_path / "a/inner/file").write_text("new")
    make(tmp_path / "c", "old")
    make(tmp_path / "d", "old", more=True)
    assert [(tmp_path / name / "inner/file").read_text() for name in "abcd"] == ["new", "old", "old", "old"]
    assert calls == [("old", False), ("old", True)]


def test_forked_program_ends_like_a_script(prepared_python: PreparedPython) -> None:
    """It has its own outputs and arguments, runs functions at exit, and may be killed."""
    done = prepared_python.run(
        """
        import atexit, sys
        atexit.register(print, "at exit")
        print(sys.argv[1:], file=sys.stderr)
        raise SystemExit(3)
        """,
        "a",
        2,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "at exit\n", "['a', '2']\n")
    done = prepared_python.run("1 / 0")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    waiting = prepared_python.start("import time; time.sleep(1000)")
    assert waiting.poll() is None
    waiting.kill()
    waiting.communicate()
    assert waiting.poll() == -9
