# __main__.py - `python -m shardcodec` and the command `shardcodec`
# SPDX-License-Identifier: MIT
"""Print versions, build, processor features, threads and options. ``--json`` prints the same as one JSON object.

``--version`` prints the version alone. With a command, such as ``inspect``, the arguments go to `shardcodec.cli`, which needs
the extra ``cli``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from .build_info import build_info, unknown_variables
from .cli import COMMANDS, VERSION_LINE
from .cli.early_stop import EarlyStop
from .errors import UnsupportedError
from .native import require
from .options import thread_limits

# A shell asks for completions with this variable, and without arguments.
COMPLETE = "_SHARDCODEC_COMPLETE"


def describe() -> dict[str, Any]:
    """Return everything that the command prints.

    Returns
    -------
    dict
        What `build_info` returns, and ``folder``: of the package. ``pipeline``: the path of the codec pipeline in zarr's
        configuration. ``pipeline_source``: the file, variable or call that has set it. ``thread_limits``: what bounds the number of threads. ``options``: value and source of each option.
        ``unknown_variables``: the result of `unknown_variables`.

    Raises
    ------
    UnsupportedError
        The extension module cannot be loaded.
    TypeError, ValueError
        An option in the configuration or the environment is invalid.
    """
    from .compat import config, max_workers  # it imports zarr, so signals are handled before
    from .option_sources import PIPELINE_KEY, settings_in_force, source_of
    from .options import NAMES

    options = settings_in_force()
    return {
        **build_info(),
        "folder": str(Path(__file__).parent),
        "pipeline": config.get(PIPELINE_KEY),
        "pipeline_source": source_of(PIPELINE_KEY),
        "thread_limits": {**thread_limits(), "zarr's threading.max_workers": max_workers()},
        "options": {
            name: {"value": one.value, "source": one.source}
            for name, one in options.items()
            if name in NAMES or one.source != "default"
        },
        "unknown_variables": unknown_variables(),
    }


def text(facts: dict[str, Any]) -> str:
    """Return the facts as lines of text.

    Parameters
    ----------
    facts : dict
        What `describe` returns.

    Returns
    -------
    str
    """
    versions = {name: facts[name] for name in ("python", "zarr", "numpy")} | facts["libraries"]
    cpu, crc32c = facts["cpu"], facts["crc32c"]
    limits = (f"{name} {'-' if limit is None else limit}" for name, limit in facts["thread_limits"].items())
    lines = [
        f"shardcodec {facts['version']}  {facts['folder']}",
        f"platform   {facts['platform']}",
        f"build      {_build(facts['build'])}; the GIL is {'on' if facts['gil'] else 'off'}",
        f"versions   {', '.join(f'{name} {number}' for name, number in versions.items())}",
        f"processor  {' '.join(cpu['used']) or '-'}" + _override(cpu),
        f"crc32c     {crc32c['used']} (usable: {', '.join(crc32c['usable'])})",
        f"threads    {facts['options']['threads']['value']} ({', '.join(limits)})",
        f"pipeline   {facts['pipeline']} ({facts['pipeline_source']})",
        "options",
    ]
    width = max(len(str(one["value"])) for one in facts["options"].values())
    lines += [
        f"  {name:15} {one['value']!s:{width}}  {one['source']}" for name, one in facts["options"].items()
    ]
    lines += [
        f"unknown    {variable}: nothing reads this environment variable"
        + ("" if meant is None else f"; is {meant} meant?")
        for variable, meant in facts["unknown_variables"].items()
    ]
    return "\n".join(lines)


def _build(build: dict[str, Any]) -> str:
    words = [
        f"{build['libraries']} libraries",
        "stable ABI" if build["abi3"] else "ABI of one Python version",
        "" if build["optimised"] else "not optimised",
        "assertions" if build["assertions"] else "",
        f"{build['sanitizer']} sanitizer" if build["sanitizer"] else "",
        build["compiler"],
    ]
    return ", ".join(word for word in words if word)


def _override(cpu: dict[str, Any]) -> str:
    if not cpu["override"]:
        return ""
    return f" (detected: {' '.join(cpu['detected'])}; SHARDCODEC_CPU={cpu['override']})"


def main() -> int:
    """Run the command.

    Returns
    -------
    int
        Exit status. Without a command: 0, or 1 if the extension module cannot be loaded or an option is invalid. With a
        command: see `shardcodec.cli.exit_code`.
    """
    with EarlyStop():
        return _main(sys.argv[1:])


def _main(arguments: list[str]) -> int:
    if arguments[:1] == ["--version"]:
        sys.stdout.write(f"{VERSION_LINE}\n")
        return 0
    if os.environ.get(COMPLETE) or (arguments and arguments != ["--json"]):
        return _run_command(arguments)
    try:
        require()  # `describe` warns, too
        facts = describe()
    except (UnsupportedError, TypeError, ValueError) as error:
        sys.stderr.write(f"shardcodec: {error}\n")
        return 1
    sys.stdout.write((json.dumps(facts, indent=2) if arguments else text(facts)) + "\n")
    return 0


def _run_command(arguments: list[str]) -> int:
    try:
        require()
        from .cli.app import run
    except UnsupportedError as error:
        why = str(error)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "typer":
            raise
        why = "its commands need typer (extra cli); install it with: pip install typer"
    except ValueError as error:  # zarr, of a broken file of its configuration
        why = str(error)
    else:
        return run(arguments)
    sys.stderr.write(f"shardcodec: {why}\n")
    if arguments[:1] not in (["-h"], ["--help"]):
        return 3
    sys.stdout.write(f"{__doc__}\nCommands: {', '.join(COMMANDS)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
