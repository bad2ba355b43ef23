# tool_command.py - a command from the signature of a tool
# SPDX-License-Identifier: MIT
"""`command`: make a command whose flags are the parameters of a tool's function. `Run`: one run of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..tools.monitor import Monitor, Stopped
from ..tools.report import Report
from .exit_code import ExitCode
from .flags import FLAGS, LAST, Flag, Rows
from .output import Output
from .progress import ProgressKind
from .run_command import run_command

__all__ = ["Run", "command"]

# The parameters through which a tool reports what it does; a command has no flags for them.
MONITOR = "monitor"
ON_PART = {"on_shard", "on_array"}
# Flags that come last in a help.
ORDER = tuple(LAST)


class Run:
    """One run of a command.

    Parameters
    ----------
    tool : callable
        The function of the tool.
    flags : mapping
        The flags of the command, by name.
    given : mapping
        The values of the user, by the name of the flag.
    monitor : Monitor
        Gets the progress.

    Attributes
    ----------
    given : mapping
        As above.
    output : Output
        Prints the report.
    """

    def __init__(
        self,
        tool: Callable[..., Any],
        flags: Mapping[str, Flag],
        given: Mapping[str, Any],
        monitor: Monitor,
    ) -> None:
        self.given = given
        self.output = Output(as_json=given["as_json"], as_lines=given.get("jsonl", False))
        self._tool, self._flags, self._monitor = tool, flags, monitor

    def report(
        self,
        part_lines: Callable[[Any], Iterable[str]] = lambda part: part.lines(),
        lines: Callable[[Any], Iterable[str]] = lambda report: report.lines(),
        **more: Any,
    ) -> Any:
        """Call the tool, and print its report; after a stop, the report of what was done before.

        Parameters
        ----------
        part_lines : callable
            Returns the lines for readers of a part, such as a shard, that the tool has done.
        lines : callable
            Returns the lines for readers of the report.
        **more : object
            Arguments of the tool that are not the value of one flag.

        Returns
        -------
        Report
        """

        def on_part(part: Report) -> None:
            self.output.part(part)
            self.output.text(part_lines(part))

        def show(report: Report) -> None:
            self.output.text(lines(report))
            self.output.end(report)

        names = inspect.signature(self._tool).parameters.keys()
        arguments = {
            name: flag.value(self.given[name]) for name, flag in self._flags.items() if name in names
        }
        arguments |= dict.fromkeys(ON_PART & names, None if self.output.keeps_parts else on_part)
        arguments |= dict.fromkeys({MONITOR} & names, self._monitor)
        try:
            report = self._tool(**arguments, **more)
        except Stopped as error:
            if error.report is not None:
                show(error.report)
            raise
        show(report)
        return report


def command(
    tool: Callable[..., Any],
    rows: Rows = MappingProxyType({}),
    output: Iterable[str] | None = None,
) -> Callable[[Callable[[Run], ExitCode]], Callable[..., None]]:
    """Make the command of a tool, whose parameters become the flags.

    The decorated function calls `Run.report` and returns the exit code. Its docstring is the help.

    Parameters
    ----------
    tool : callable
        The function of the tool.
    rows : mapping, optional
        By the name of a parameter, its flag in this command; or several flags by name, from which the decorated function makes
        the argument. Others are in `FLAGS`.
    output : iterable of str, optional
        The flags for the output. Default: ``as_json``; ``jsonl`` if the tool reports parts; ``progress`` if it has a monitor.

    Returns
    -------
    callable
        The decorator.

    Raises
    ------
    TypeError
        A parameter of the tool has no flag, or a flag has no parameter.
    """
    sources = inspect.signature(tool, eval_str=True).parameters
    if output is None:
        output = [
            "as_json",
            *["jsonl"] * bool(ON_PART & sources.keys()),
            *["progress"] * (MONITOR in sources),
        ]
    found = _flags_of(tool.__name__, sources, rows)
    found |= {name: (FLAGS[name], inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)) for name in output}
    names = sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else -1)
    flags = {name: found[name][0] for name in names}
    parameters = [flag.of(name, found[name][1]) for name, flag in flags.items()]

    def decorate(body: Callable[[Run], ExitCode]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            run_command(
                lambda monitor: body(Run(tool, flags, given, monitor)),
                given.get("progress", ProgressKind.NONE),
            )

        # what typer reads
        run.__name__, run.__doc__ = body.__name__, body.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _flags_of(
    tool: str, sources: Mapping[str, inspect.Parameter], rows: Rows
) -> dict[str, tuple[Flag, inspect.Parameter]]:
    """Return the flags of a tool by name, each with the parameter that it is for."""
    if left := rows.keys() - sources.keys():
        raise TypeError(f"{tool}: expected flags of parameters, got {', '.join(sorted(left))}")
    found: dict[str, tuple[Flag, inspect.Parameter]] = {}
    for parameter, source in sources.items():
        if parameter == MONITOR or parameter in ON_PART:
            continue
        row = rows.get(parameter, FLAGS.get(parameter))
        if row is None:
            raise TypeError(
                f"{tool}: the parameter {parameter} has no flag; add a row to `FLAGS` of shardcodec/cli/flags.py, or to the command"
            )
        several = row if isinstance(row, Mapping) else {parameter: row}
        found |= {name: (flag, source) for name, flag in several.items()}
    return found
