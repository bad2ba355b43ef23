# enable.py - the commands `shardcodec enable` and `shardcodec disable`
# SPDX-License-Identifier: MIT
"""`shardcodec enable`: let every program of an environment, a user or a machine use shardcodec; `shardcodec disable` undoes it.

Both write one file into a folder from which zarr reads its configuration at import. A file is replaced or removed only if every
byte of it is as this command writes it.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Annotated, Any

from typer import Argument, Option

from ..compat import config
from ..option_sources import PIPELINE_KEY, PIPELINE_PATH, source_of_new_process
from ..options import check
from ..storage.whole_file import put_file
from ..tools.monitor import Monitor
from .exit_code import ExitCode
from .flags import DRY_RUN
from .progress import ProgressKind
from .run_command import run_command

__all__ = ["Scope", "disable", "enable", "path_of"]

NAME = "shardcodec.yaml"
HEAD = """# Written by `shardcodec enable`; `shardcodec disable` removes it.
shardcodec:
  enabled: true
"""


class Scope(enum.StrEnum):
    """The programs that a file is for."""

    ENV = "env"
    USER = "user"
    SYSTEM = "system"


def path_of(scope: Scope) -> str:
    """Return the file of a scope.

    Raises
    ------
    OSError
        zarr does not read this folder in the present environment.
    """
    folder = {
        Scope.ENV: os.path.join(sys.prefix, "etc", "zarr"),
        Scope.USER: os.path.join(os.path.expanduser("~"), ".config", "zarr"),
        Scope.SYSTEM: os.environ.get("ZARR_ROOT_CONFIG", "/etc/zarr"),
    }[scope]
    if folder not in config.paths:
        raise OSError(f"{folder}: zarr reads its configuration only from {', '.join(config.paths)}")
    return os.path.join(folder, NAME)


def _text_of(options: Mapping[str, Any]) -> str:
    lines = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in sorted(options.items()))
    return HEAD + lines


def _is_own(text: str) -> bool:
    """Return True if `enable` has written a file, and its bytes are unchanged."""
    try:
        pairs = [line.strip().split(": ", 1) for line in text.removeprefix(HEAD).splitlines()]
        options = check({name: json.loads(value) for name, value in pairs})
    except (TypeError, ValueError):
        return False
    return _text_of(options) == text


def _own_text(path: str) -> str | None:
    """Return the text of the file, or None without one.

    Raises
    ------
    OSError
        It is another file, or it cannot be read.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        text = ""
    if not _is_own(text):
        raise OSError(
            f"{path} is not as `shardcodec enable` writes it, so it stays; move it away or remove it"
        )
    return text


ScopeOption = Annotated[
    Scope,
    Option(
        "--for",
        help="All programs of this environment (<sys.prefix>/etc/zarr), user (~/.config/zarr) or machine (/etc/zarr).",
    ),
]
DryRunOption = Annotated[bool, Option("--dry-run", help=DRY_RUN)]


def enable(
    choices: Annotated[
        list[str] | None, Argument(metavar="[NAME=VALUE]...", help="Options, such as threads=4.")
    ] = None,
    scope: ScopeOption = Scope.ENV,
    dry_run: DryRunOption = False,
) -> None:
    """Let all programs of an environment use shardcodec, without a line of code.

    It writes one file into a folder that zarr reads when it is imported. A program with a setting of its own keeps it.

    Example:

        shardcodec enable locking=cluster --dry-run
    """

    def work(monitor: Monitor) -> ExitCode:
        text = _text_of(_options_from(choices or []))
        _check_entry_point()
        path = path_of(scope)
        old = _own_text(path)
        if old == text:
            print(f"{path} is there already")
        elif dry_run:
            print(f"would {'write' if old is None else 'replace'} {path}:\n{text}", end="")
        else:
            if not put_file(path, [text.encode()], may_replace=old is not None):
                raise OSError(f"{path} was made by another program meanwhile, so it stays")
            print(f"{'wrote' if old is None else 'replaced'} {path}")
        if not dry_run and (source := source_of_new_process(PIPELINE_KEY)) != f"file {path}":
            print(f"a new process takes its pipeline from another place, which wins: {source}")
        return ExitCode.CLEAN

    run_command(work, ProgressKind.NONE)


def disable(
    scope: ScopeOption = Scope.ENV,
    dry_run: DryRunOption = False,
) -> None:
    """Remove the file that `shardcodec enable` has written.

    Example:

        shardcodec disable --dry-run
    """

    def work(monitor: Monitor) -> ExitCode:
        path = path_of(scope)
        if _own_text(path) is None:
            print(f"{path} is not there")
        elif dry_run:
            print(f"would remove {path}")
        else:
            os.unlink(path)
            print(f"removed {path}")
        return ExitCode.CLEAN

    run_command(work, ProgressKind.NONE)


def _options_from(choices: list[str]) -> dict[str, Any]:
    if wrong := [choice for choice in choices if "=" not in choice]:
        raise ValueError(f"expected NAME=VALUE, got {wrong[0]!r}")
    return check(dict(choice.split("=", 1) for choice in choices))


def _check_entry_point() -> None:
    """Refuse to write a file that has no effect, because zarr does not find the pipeline."""
    names = {point.value for point in entry_points(group="zarr.codec_pipeline")}
    if PIPELINE_PATH.replace(".", ":") not in names:
        raise OSError(
            "zarr does not find shardcodec in this environment: install the package, for instance with pip"
        )
