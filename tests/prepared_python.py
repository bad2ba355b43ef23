# prepared_python.py - programs of tests that run in forks of an interpreter with all imports
# SPDX-License-Identifier: MIT
"""A new interpreter needs most of a second of CPU until it has imported zarr; a fork of one that has needs some hundredths.

Programs that are about the import, the environment or the options of an interpreter need a new one.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from helpers import python_environment

__all__ = ["Fork", "PreparedPython"]

# Only the child leaves the loop, and it ends as a script does. No thread runs before the fork.
SERVER = """
import contextlib, json, os, sys
import numpy, zarr, shardcodec.tools
with contextlib.suppress(ImportError):  # without typer
    import shardcodec.cli.app
answers = os.fdopen(os.dup(1), "w")
for line in iter(sys.stdin.readline, ""):
    what, given = json.loads(line)
    if what == "start":
        answer = os.fork()
        if not answer:
            break
    else:
        pid, status = os.waitpid(given, os.WNOHANG if what == "poll" else 0)
        answer = os.waitstatus_to_exitcode(status) if pid else None
    print(json.dumps(answer), file=answers, flush=True)
else:
    os._exit(0)
os.close(answers.fileno())
for number, path in enumerate((os.devnull, *given["outputs"])):
    os.dup2(os.open(path, os.O_RDWR), number)
sys.argv = ["-c", *given["arguments"]]
exec(compile(given["code"], "<string>", "exec"), {"__name__": "__main__"})
"""


class Fork:
    """A program that runs, with the names that `subprocess.Popen` has."""

    def __init__(self, parent: PreparedPython, pid: int, outputs: list[Path]) -> None:
        self._parent, self.pid, self._outputs = parent, pid, outputs
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ask("poll", self.pid)
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """Wait for the end; return what was written to both outputs."""
        if self.returncode is None:
            self.returncode = self._parent.ask("wait", self.pid)
        out, err = (path.read_text() for path in self._outputs)
        return out, err

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PreparedPython:
    """An interpreter that has imported numpy, zarr and shardcodec with its command, and starts programs by a fork."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=python_environment(),
            text=True,
        )

    def ask(self, what: str, given: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, given]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, code: str, *arguments: object) -> Fork:
        """Start a program."""
        number = next(self._numbers)
        outputs = [self._folder / f"{number}.{name}" for name in ("out", "err")]
        for path in outputs:  # a program may be killed before it has opened them
            path.touch()
        given = {
            "code": textwrap.dedent(code),
            "arguments": list(map(str, arguments)),
            "outputs": list(map(str, outputs)),
        }
        return Fork(self, self.ask("start", given), outputs)

    def run(self, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        fork = self.start(code, *arguments)
        out, err = fork.communicate()
        assert fork.returncode is not None
        return subprocess.CompletedProcess([], fork.returncode, out, err)

    def end(self) -> None:
        self._process.communicate()
