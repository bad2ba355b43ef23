# app.py - the commands
# SPDX-License-Identifier: MIT
"""`run`: parse the arguments and run a command. `cli.tool_command` makes the commands of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from . import VERSION_LINE
from .advise import advise
from .convert import convert, plan, run_part, status
from .doctor import doctor
from .enable import disable, enable
from .exit_code import ExitCode
from .inspect import inspect
from .rewrite import compact, repair
from .verify import verify

__all__ = ["app", "run"]

app: typer.Typer = typer.Typer(
    name="shardcodec",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(VERSION_LINE)
        raise typer.Exit


def _all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Tools for Zarr v3 shards. Without a command: print the installation (--json: as JSON)."""


app.callback()(_all_commands)  # with it, a single command has a name too

COMMANDS = (
    advise,
    compact,
    convert,
    disable,
    doctor,
    enable,
    inspect,
    plan,
    repair,
    run_part,
    status,
    verify,
)

for _command in COMMANDS:
    app.command(_command.__name__.replace("_", "-"))(_command)
app.command("reshard", hidden=True)(convert)  # another name of convert


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Parameters
    ----------
    arguments : sequence of str
        The arguments after the name of the program.

    Returns
    -------
    int
        An `ExitCode`.
    """
    try:
        app(args=list(arguments), prog_name="shardcodec")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else ExitCode.CLEAN
    return ExitCode.CLEAN
