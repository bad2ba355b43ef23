# app.py - the commands
# SPDX-License-Identifier: MIT
"""`run`: parse the arguments and run a command. `cli.tool_command` makes the commands of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

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

# Former flags, and what takes their place; for one release.
FORMER_FLAGS = {
    "--array": "was renamed: use --only",
    "--chunk-size": "was renamed: use --chunks",
    "--env": "was renamed: use --for env",
    "--exactly": "was renamed: use --exclude @needed",
    "--from": "was renamed: use --copy",
    "--in-place": "was removed: --backup DIR repairs in place",
    "--index-crc": "was removed: --to gives every index a checksum",
    "--only-arrays": "was renamed: use --exclude @objects",
    "--output": "was removed: give the file of the plan after the destination",
    "--shard-size": "was renamed: use --shards",
    "--system": "was renamed: use --for system",
    "--user": "was renamed: use --for user",
    "--verify": "was renamed: use --level",
    "-o": "was removed: give the file of the plan after the destination",
}


class _Command(TyperCommand):  # type: ignore[misc]
    """A command that names what takes the place of a former flag."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for one in self.params for name in (*one.opts, *one.secondary_opts)}
        for name in (arg.partition("=")[0] for arg in args):
            if name in FORMER_FLAGS and name not in known:
                raise typer.BadParameter(f"{name} {FORMER_FLAGS[name]}")
        rest: list[str] = super().parse_args(ctx, args)
        return rest


for _command in COMMANDS:
    app.command(_command.__name__.replace("_", "-"), cls=_Command)(_command)


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
