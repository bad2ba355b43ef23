# children.py - processes that get the setting of this one: environment variables, a plug-in for workers of dask
# SPDX-License-Identifier: MIT
"""Other processes that use shardcodec as this one does: those that are started later, and the workers of dask.

zarr reads its configuration when it is imported, also from environment variables, and every kind of child inherits these:
`spawn`, `forkserver`, `subprocess`, the workers of dask, of torch and of ``mpiexec``. A forked child inherits the
configuration itself.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..build_info import build_info
from ..option_sources import (
    ENABLED_KEY,
    RECORD,
    inherited_variables,
    variable_of_setting,
)

__all__ = ["ChildVariables", "enable_workers", "stale_forkserver", "variables_of"]


def variables_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that select the pipeline with these options. They mean nothing where shardcodec is not."""
    values = {f"shardcodec.{name}": value for name, value in options.items()}
    return {variable_of_setting(key): str(value) for key, value in {ENABLED_KEY: True, **values}.items()}


class ChildVariables:
    """The environment variables that calls of `enable` have set in this process.

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


def enable_workers(client: Any, options: Mapping[str, Any]) -> Callable[[], None]:
    """Call `enable` in all workers of a `distributed.Client`, also in those that join or start again later.

    Returns
    -------
    callable
        Undoes it; it does nothing if the client has been closed.

    Raises
    ------
    TypeError, ValueError
        It is not a client, or an asynchronous one.
    ImportError
        A worker does not have shardcodec, or has another version.
    """
    from distributed import Client

    if not isinstance(client, Client):
        raise TypeError(f"client: expected a distributed.Client, got {type(client).__name__}")
    if client.asynchronous:
        raise ValueError("client: expected a client that is not asynchronous")
    name = f"shardcodec-enable-{uuid.uuid4().hex}"

    def undo() -> None:
        with suppress(Exception):  # the client or its scheduler may have ended, and the plug-in with them
            client.unregister_worker_plugin(name)

    try:
        client.register_plugin(_plugin(build_info()["version"], dict(options)), name=name)
    except BaseException:
        undo()  # else each worker that joins would fail
        raise
    return undo


def _plugin(version: str, options: dict[str, Any]) -> Any:
    """Return the plug-in of the workers.

    Its class is inside of this function, so that it is pickled by value: a worker with another version, or without the package,
    runs this code too, and says what is missing.
    """
    from distributed import WorkerPlugin

    class UseShardcodec(WorkerPlugin):  # type: ignore[misc]
        call: Any = None

        def setup(self, worker: Any) -> None:
            try:
                import shardcodec
            except ImportError as error:
                text = f"dask: expected shardcodec {version} on the worker {worker.address}, but it cannot import it: {error}"
                raise ImportError(text) from error
            actual = shardcodec.build_info()["version"]
            if actual != version:
                raise ImportError(
                    f"dask: expected shardcodec {version} on the worker {worker.address}, got {actual}; install the same "
                    "version on all workers"
                )
            self.call = shardcodec.enable(**options)

        def teardown(self, worker: Any) -> None:
            if self.call is not None:
                self.call.__exit__(None, None, None)

    return UseShardcodec()
