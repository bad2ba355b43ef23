# test_flags.py - commands have the parameters of their functions as flags
# SPDX-License-Identifier: MIT
"""The flags of a command are made from the signature of its function; these are the rules of that, on functions of a few parameters."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from operator import not_
from typing import Any, Literal

import pytest

from shardcodec import tools
from shardcodec.tools.chunk_check import Level
from shardcodec.tools.monitor import Monitor, Stopped
from shardcodec.tools.report import Report

typer = pytest.importorskip("typer")

from shardcodec.cli.exit_code import ExitCode  # noqa: E402 - they need typer
from shardcodec.cli.flags import FLAGS, Flag  # noqa: E402
from shardcodec.cli.tool_command import ON_PART, Run, command  # noqa: E402


@dataclass(frozen=True)
class Answer(Report):
    """What a tool was given."""

    schema = "test.answer"
    arguments: dict[str, Any]


def run_tool(tool: Any, rows: Any, *arguments: str, output: Any = None) -> int:
    """Run the command of a tool."""

    @command(tool, rows, output)
    def body(run: Run) -> ExitCode:
        """Run it."""
        run.report(lines=lambda answer: [repr(answer.arguments)])
        return ExitCode.CLEAN

    app = typer.Typer()
    app.command()(body)
    try:
        app(args=list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_values_have_the_types_and_defaults_of_the_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    def tool(
        target: Any,
        *,
        size: int = 3,
        share: float | None = None,
        level: Literal["index", "checksum"] | Level = "index",
        kind: Literal["short", "long"] = "short",
        is_short: bool = False,
        is_whole: bool = True,
        names: str | tuple[str, ...] = (),
    ) -> Answer:
        return Answer({name: value for name, value in locals().items() if name != "target"})

    rows = {name: Flag(name) for name in ("size", "share", "level", "is_short")} | {
        "is_whole": Flag("is_whole", "--is-broken", value=not_),
        "names": Flag("names", "--name", kind=list[str], value=lambda given: tuple(given or ())),
        "kind": Flag("kind", value=str),
    }
    assert run_tool(tool, rows, "x") == 0
    assert capsys.readouterr().out == (
        "{'size': 3, 'share': None, 'level': <Level.INDEX: 'index'>, 'kind': 'short', 'is_short': False, 'is_whole': True, 'names': ()}\n"
    )
    given = [
        "x",
        "--size",
        "4",
        "--share",
        "0.5",
        "--level",
        "decode",
        "--kind",
        "long",
        "--is-short",
        "--is-broken",
        "--name",
        "a",
        "--name",
        "b",
    ]
    assert run_tool(tool, rows, *given) == 0
    assert capsys.readouterr().out == (
        "{'size': 4, 'share': 0.5, 'level': <Level.DECODE: 'decode'>, 'kind': 'long', 'is_short': True, 'is_whole': False, 'names': ('a', 'b')}\n"
    )
    assert run_tool(tool, rows, "x", "--size", "1.5") == 2
    assert run_tool(tool, rows, "x", "--kind", "middle") == 2
    assert run_tool(tool, rows) == 2  # a positional parameter without a default


def test_parameter_without_a_flag_is_an_error_when_the_command_is_made() -> None:
    def tool(target: Any, *, colour: str = "red") -> None: ...

    with pytest.raises(TypeError, match=r"tool: the parameter colour has no flag; add a row to `FLAGS`"):
        command(tool)
    command(tool, {"colour": Flag("The colour.")})


def test_flag_without_a_parameter_is_an_error_when_the_command_is_made() -> None:
    def tool(target: Any) -> None: ...

    with pytest.raises(TypeError, match="tool: expected flags of parameters, got color, colour"):
        command(tool, {"colour": Flag("The colour."), "color": Flag("The colour.")})


def test_parts_are_reported_and_a_report_of_what_was_done_before_a_stop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tool(*, monitor: Monitor, on_shard: Any) -> Answer:
        monitor.advance()
        if on_shard is not None:
            on_shard(Answer({"shard": 0}))
        stopped = Stopped()
        stopped.report = Answer({"n": 1})
        raise stopped

    assert run_tool(tool, {}) == 130
    assert capsys.readouterr().out.splitlines()[-1] == "{'n': 1}"
    assert run_tool(tool, {}, "--jsonl", "--progress", "none") == 130
    assert [line[-16:] for line in capsys.readouterr().out.splitlines()] == [
        '": {"shard": 0}}',
        'ments": {"n": 1}}'[-16:],
    ]
    assert run_tool(tool, {}, "--json") == 130
    assert '"shard"' not in capsys.readouterr().out


def test_no_flag_is_left_of_a_parameter_that_no_tool_has() -> None:
    functions = (
        tools.compact, tools.convert, tools.doctor, tools.inspect, tools.plan_convert, tools.repair, tools.run_part,
        tools.status, tools.verify,
    )  # fmt: skip
    names = {name for one in functions for name in inspect.signature(one).parameters} - ON_PART
    assert FLAGS.keys() - {"as_json", "jsonl", "progress"} <= names
