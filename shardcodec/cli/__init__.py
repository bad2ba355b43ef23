# __init__.py - the command `shardcodec`
# SPDX-License-Identifier: MIT
"""The command `shardcodec`: options, progress, exit codes and signals over the functions of `shardcodec.tools`.

It needs the extra `cli`. `python -m shardcodec` without a command works without it.
"""

import shardcodec

__all__ = ["COMMANDS", "VERSION_LINE"]

VERSION_LINE = f"shardcodec {shardcodec.__version__}"

# The names of the commands of `cli.app`, for a help without typer.
COMMANDS = (
    "advise",
    "compact",
    "convert",
    "disable",
    "doctor",
    "enable",
    "inspect",
    "plan",
    "repair",
    "run-part",
    "status",
    "verify",
)
