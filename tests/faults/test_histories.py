# test_histories.py - the check of recorded histories, and short runs of all actors
# SPDX-License-Identifier: MIT
"""Wrong histories are found, right ones are not, and shardcodec's are right. `make histories` runs longer (docs/testing.md)."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from faults.histories import (
    ERASED,
    FIRST,
    RECORD,
    Recorder,
    Result,
    Rules,
    check,
    check_records,
    contents,
    written_by,
)
from faults.history_order import Operation, contradiction, unexplained
from hypothesis import given
from hypothesis import strategies as st

WRITE, READ, LAST_READ, PACKED, DEATH = range(1, 6)
ORDERED = Rules()
Row = tuple[int, int, int, int, int]  # kind, acknowledged, value, begin, end


def result_of(rows: list[Row], rules: Rules = ORDERED) -> Result:
    """Check records of one inner chunk; each is of another actor."""
    records = [
        (kind, acknowledged, actor, 0, value, begin, end)
        for actor, (kind, acknowledged, value, begin, end) in enumerate(rows, 1)
    ]
    return check_records(np.array(records, dtype=RECORD), 1, rules)


def wrong(rows: list[Row], rules: Rules = ORDERED) -> str:
    """Return the first violation, without its records; empty if there is none."""
    found = result_of(rows, rules).wrong
    return found[0].splitlines()[0].removeprefix("inner chunk 0: ") if found else ""


# ---- the contents of inner chunks


@pytest.mark.parametrize("value", [ERASED, FIRST, 1 << 24 | 5, 3 << 24 | 7])
def test_value_of_an_inner_chunk_is_known_from_its_elements(value: int) -> None:
    elements = contents([value, value], [2, 3], 64)
    assert written_by(elements, [2, 3]).tolist() == [value, value]


def test_elements_of_two_writes_or_of_another_inner_chunk_are_a_mixture() -> None:
    one, two = contents([1 << 24 | 1, 1 << 24 | 2], [4, 4], 64)
    n_mixed = 0
    for first, last in itertools.pairwise(range(0, 65, 8)):
        mixed = one.copy()
        mixed[first:last] = two[first:last]
        n_mixed += int(written_by(mixed[None], [4])[0] == -2)
    assert n_mixed == 8
    assert written_by(one[None], [5]).tolist() == [-2]


# ---- histories made by hand


def test_true_history_has_no_violation() -> None:
    assert not wrong(
        [(WRITE, 1, 7, 10, 20), (READ, 1, FIRST, 11, 12), (READ, 1, 7, 13, 30), (READ, 1, 7, 40, 41)]
    )


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(READ, 1, -2, 10, 20)], "a mixture"),
        ([(READ, 1, 9, 10, 20)], "a value from nowhere"),
        ([(WRITE, 1, 9, 30, 40), (READ, 1, 9, 10, 20)], "a value from nowhere"),
        ([(READ, 1, ERASED, 10, 20), (WRITE, 1, ERASED, 30, 40)], "a value from nowhere"),
        ([(WRITE, 1, 7, 10, 20), (READ, 1, FIRST, 21, 22)], "an acknowledged write was lost, or missed"),
        (
            [(WRITE, 1, ERASED, 2, 4), (WRITE, 1, 7, 10, 20), (READ, 1, ERASED, 21, 22)],
            "an acknowledged write was lost, or missed",
        ),
        (
            [(WRITE, 1, 7, 10, 30), (READ, 1, 7, 11, 12), (READ, 1, FIRST, 13, 14)],
            "no order of these reads and writes explains them",
        ),
        # a killed write that was seen, then not, then seen again
        (
            [(WRITE, 0, 7, 10, 0), (READ, 1, 7, 11, 12), (READ, 1, FIRST, 13, 14), (READ, 1, 7, 15, 16)],
            "no order of these reads and writes explains them",
        ),
        # two writes at the same time, seen in two orders
        (
            [
                (WRITE, 1, 7, 10, 40),
                (WRITE, 1, 8, 10, 40),
                (READ, 1, 7, 11, 12),
                (READ, 1, 8, 13, 14),
                (READ, 1, 7, 15, 16),
            ],
            "no order of these reads and writes explains them",
        ),
        # a lost write is noticed although both were at work when a third one ended
        (
            [
                (WRITE, 1, 7, 10, 20),
                (WRITE, 1, ERASED, 15, 25),
                (READ, 1, 7, 26, 27),
                (READ, 1, ERASED, 28, 29),
            ],
            "no order of these reads and writes explains them",
        ),
    ],
)
def test_wrong_history_is_found(rows: list[Row], told: str) -> None:
    assert wrong(rows) == told


def test_killed_write_has_no_effect_after_its_process_is_gone_but_a_request_may() -> None:
    rows = [
        (WRITE, 0, 7, 10, 0),
        (DEATH, 0, 0, 20, 20),
        (WRITE, 1, 8, 30, 40),
        (READ, 1, 7, 50, 60),
    ]
    records = np.array(
        [(kind, ok, 1 if kind != READ else 2, 0, *rest) for kind, ok, *rest in rows], dtype=RECORD
    )
    records["actor"][2] = 3
    assert len(check_records(records, 1, Rules()).wrong) == 1
    assert not check_records(records, 1, Rules(late=True)).wrong


def test_reads_may_change_back_while_a_write_is_under_way_only_where_that_is_allowed() -> None:
    rows: list[Row] = [(WRITE, 1, 7, 10, 30), (READ, 1, 7, 11, 12), (READ, 1, FIRST, 13, 14)]
    assert wrong(rows)
    assert not wrong(rows, Rules(is_ordered=False))
    assert wrong([*rows, (READ, 1, FIRST, 31, 32)], Rules(is_ordered=False))


def test_cache_of_a_mount_may_be_stale_for_a_time() -> None:
    rows: list[Row] = [(WRITE, 1, 7, 1_000, 1_010), (READ, 1, FIRST, 1_050, 1_060)]
    assert wrong(rows, Rules(stale=20))
    assert not wrong(rows, Rules(stale=60))
    assert wrong([*rows[:1], (LAST_READ, 1, FIRST, 1_050, 1_060)], Rules(stale=60)), (
        "the last read misses nothing"
    )
    records = np.array(
        [
            (WRITE, 1, 1, 0, 7, 1_000, 1_010),
            (READ, 1, 2, 0, 7, 1_020, 1_030),
            (READ, 1, 2, 0, FIRST, 1_040, 1_050),
        ],
        dtype=RECORD,
    )
    assert len(check_records(records, 1, Rules(stale=60)).wrong) == 1, "a process does not step back"
    records["actor"][2] = 3
    assert not check_records(records, 1, Rules(stale=60)).wrong


def test_violation_names_the_few_records_that_contradict() -> None:
    rows: list[Row] = [(WRITE, 1, 100 + i, 10 * i, 10 * i + 5) for i in range(1, 200)]
    rows += [(READ, 1, 100 + i, 10 * i + 6, 10 * i + 7) for i in range(1, 200)]
    rows += [(WRITE, 1, 7, 991, 1994), (READ, 1, 7, 997, 998), (READ, 1, 7, 1997, 1998)]
    (told,) = result_of(rows).wrong
    assert len(told.splitlines()) <= 7, told
    assert told.count("0x7 by actor") == 3


# ---- random histories, compared with a search of all orders


def explained_by_some_order(operations: list[Operation], first: int) -> bool:
    """Try every order, with every choice of optional writes."""
    optional = [one for one in operations if one.is_optional]
    certain = [one for one in operations if not one.is_optional]
    return any(
        _has_order([*certain, *some], first)
        for n in range(len(optional) + 1)
        for some in itertools.combinations(optional, n)
    )


def _has_order(left: list[Operation], value: int) -> bool:
    if not left:
        return True
    for one in left:
        rest = [other for other in left if other is not one]
        if all(other.end >= one.begin for other in rest) and (
            (one.is_write and _has_order(rest, one.value))
            or (not one.is_write and one.value == value and _has_order(rest, value))
        ):
            return True
    return False


@st.composite
def random_rows(draw: st.DrawFn) -> list[Row]:
    times = st.tuples(st.integers(1, 24), st.integers(0, 8))
    rows: list[Row] = []
    for i in range(draw(st.integers(1, 4))):
        begin, length = draw(times)
        rows.append(
            (
                WRITE,
                draw(st.integers(0, 1)),
                draw(st.sampled_from([10 + i, 10 + i, ERASED])),
                begin,
                begin + length,
            )
        )
    values = [FIRST, *{value for _, _, value, _, _ in rows}]
    for _ in range(draw(st.integers(0, 5))):
        begin, length = draw(times)
        rows.append((READ, 1, draw(st.sampled_from(values)), begin, begin + length))
    return rows


@given(random_rows())
def test_check_agrees_with_a_search_of_all_orders(rows: list[Row]) -> None:
    """A write that was not acknowledged ends with the death of its actor, which is at the end of its row here."""
    deaths = [
        (DEATH, 1, actor, 0, 0, end, end) for actor, (kind, ok, _, _, end) in enumerate(rows, 1) if not ok
    ]
    records = [(kind, ok, actor, 0, *rest) for actor, (kind, ok, *rest) in enumerate(rows, 1)]
    operations = [
        Operation(i, kind == WRITE, value, begin, end, is_optional=not ok)
        for i, (kind, ok, value, begin, end) in enumerate(rows)
    ]
    found = check_records(np.array(records + deaths, dtype=RECORD), 1, Rules()).wrong
    assert bool(found) != explained_by_some_order(operations, FIRST)


@given(random_rows())
def test_records_that_are_named_contradict_one_another(rows: list[Row]) -> None:
    operations = [
        Operation(
            i, kind == WRITE, value, begin, end, is_optional=kind == WRITE and value == ERASED and not ok
        )
        for i, (kind, ok, value, begin, end) in enumerate(rows)
    ]
    failed = unexplained(operations, FIRST, ERASED)
    assert (failed is None) == explained_by_some_order(operations, FIRST)
    if failed is not None:
        named = contradiction(operations, failed, FIRST, ERASED)
        assert not explained_by_some_order(named, FIRST)


# ---- records


def test_killed_recorder_keeps_what_it_has_noted(tmp_path: Path) -> None:
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})
from pathlib import Path
from faults.histories import Recorder
recorder = Recorder(Path({str(tmp_path)!r}), 5)
recorder.begin([0, 1])
recorder.end()
recorder.begin([1])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == -9
    Recorder(tmp_path, 0).death(5)
    result = check(tmp_path, 2, Rules())
    assert (result.n_writes, result.wrong) == (3, [])


def test_records_fill_several_files(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 1)
    for _ in range(10):
        recorder.begin(list(range(5_000)))
        recorder.end()
    assert len(list(tmp_path.glob("*.records"))) > 1
    assert check(tmp_path, 1, Rules()).n_writes == 50_000


# ---- shardcodec


@pytest.mark.slow
def test_histories_of_all_actors_are_true(tmp_path: Path) -> None:
    """Writers of all strategies, of whole shards and in groups, erasers, packers and readers; kills at any call."""
    program = Path(__file__).with_name("history_runs.py")
    command = [sys.executable, "-P", program, "--quick", "--seconds", "10", "--folder", tmp_path]
    told = subprocess.run(
        [str(one) for one in command], capture_output=True, text=True, check=False, timeout=300
    )
    assert told.returncode == 0, told.stdout + told.stderr
    print(told.stdout)
