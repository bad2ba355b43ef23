# other_processes.py - how processes that this one does not run itself come to use shardcodec
# SPDX-License-Identifier: MIT
"""`ChildVariables`: the environment variables by which processes that are started later use shardcodec.

zarr reads its configuration when it is imported, also from environment variables, and every kind of child inherits these: `spawn`,
`forkserver`, `subprocess`, the workers of dask, of torch and of ``mpiexec``. A forked child inherits the configuration itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..option_sources import PIPELINE_KEY, PIPELINE_PATH, RECORD, inherited_variables, variable_of_setting

__all__ = ["ChildVariables", "stale_forkserver", "variables_of"]


def variables_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that select the pipeline with these options."""
    values = {f"shardcodec.{name}": value for name, value in options.items()}
    return {
        variable_of_setting(key): str(value) for key, value in {PIPELINE_KEY: PIPELINE_PATH, **values}.items()
    }


class ChildVariables:
    """What calls of `enable` have put into the environment of this process.

    A variable that the user has set wins, and one that the user changes later stays as it was changed. In a process that was
    itself started under `enable`, the variables of the parent are known by a record in the environment, and may be replaced.
    """

    def __init__(self) -> None:
        self._inherited = inherited_variables()
        self._values: dict[str, str] = {}
        self._before: dict[str, str | None] = {}

    def put(self, variables: Mapping[str, str]) -> None:
        """Set these variables in place of those of earlier calls; without any, restore the environment.

        Each variable changes in one step, because another thread may start a process meanwhile.
        """
        new = {name: value for name, value in variables.items() if self._is_free(name)}
        if new:
            new[RECORD] = json.dumps({**self._inherited, **new}, sort_keys=True)
        for name in self._values.keys() - new.keys():
            self._restore(name)
        for name, value in new.items():
            if name not in self._values:
                self._before[name] = os.environ.get(name)
            self._values[name] = value
            if os.environ.get(name) != value:
                os.environ[name] = value

    def drop_inherited(self) -> dict[str, str]:
        """Remove the variables that the parent's `enable` has set, and return them."""
        dropped = {name: value for name, value in self._inherited.items() if os.environ.get(name) == value}
        for name in dropped:
            del os.environ[name]
        if self._inherited:
            os.environ.pop(RECORD, None)
        self._inherited = {}
        return dropped

    def _is_free(self, name: str) -> bool:
        current = os.environ.get(name)
        return current is None or current in (self._values.get(name), self._inherited.get(name))

    def _restore(self, name: str) -> None:
        value, before = self._values.pop(name), self._before.pop(name)
        if os.environ.get(name) != value:
            return  # the user has changed it since
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def stale_forkserver(variables: Mapping[str, str]) -> int | None:
    """Return the process number of a forkserver of `multiprocessing` that was started without these variables.

    Its children inherit its environment. Python shows only that it runs; Linux also shows with which variables it was started.
    """
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    pid: int | None = getattr(server, "_forkserver_pid", None)
    if pid is None:
        return None
    try:
        given = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return (
            pid if not Path("/proc/self/environ").exists() else None
        )  # it has ended, so a new one will start
    has_ended = given == [b""]
    is_told = all(f"{name}={value}".encode() in given for name, value in variables.items())
    return None if has_ended or is_told else pid
