# enable.py - switch shardcodec on and off, and say which arrays use it
# SPDX-License-Identifier: MIT
"""Select shardcodec's pipeline for all arrays (`enable`, `disable`) or for one (`attach`), and say which arrays use it.

`enable` reaches other processes too: those that are started later, by environment variables, and the workers of dask.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, Unpack

from zarr import Array, AsyncArray

from .. import native, statistics
from ..arguments import check_argument
from ..build_info import build_info
from ..compat import CodecPipeline, config, pipeline_of, pipelines_of_arrays, quiet, with_pipeline
from ..option_sources import (
    ENABLED_KEY,
    PIPELINE_KEY,
    PIPELINE_PATH,
    RECORD,
    inherited_variables,
    selector_of_new_process,
    settings_without_calls,
    source_of,
    variable_of_setting,
)
from ..options import OptionChoices, check, flag
from ..readable import ReadableDict
from .pipeline import ShardCodecPipeline

__all__ = [
    "AttachedArray",
    "OpenArray",
    "OpenArrays",
    "ProcessStatistics",
    "attach",
    "disable",
    "enable",
    "open_arrays",
    "stats",
]


# ---------------------------------------------------------------- the zarr arrays of this process and the pipelines that do their work
#
# `open_arrays`: which arrays of this process use shardcodec.
#
# zarr chooses the pipeline when it opens an array, so an array that was opened before `enable` stays with zarr's own. Such an
# array loses nothing of its behaviour but is slower, and parallel writers may lose updates.


# What selects the pipeline while a call of `enable` is active.
_CALL = "shardcodec.enable()"
# A warning names so many arrays.
N_NAMED = 5


class OpenArray(NamedTuple):
    """One array of this process.

    Attributes
    ----------
    name : str
        Its store and path.
    pipeline : str
        Class of its codec pipeline.
    is_native : bool
        True if shardcodec's native code reads and writes it.
    reason : str
        Why not; empty if it does.
    """

    name: str
    pipeline: str
    is_native: bool
    reason: str


class OpenArrays(tuple[OpenArray, ...]):
    """Arrays of this process; its `repr` is a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self:
            return "no zarr array is open"
        width = max(len(array.pipeline) for array in self)
        return "\n".join(
            f"{'native' if array.is_native else 'zarr':6}  {array.pipeline:{width}}  {array.name}"
            + (f"  ({array.reason})" if array.reason else "")
            for array in self
        )


def open_arrays() -> OpenArrays:
    """Return the zarr arrays that exist in this process, and which code does their work.

    Returns
    -------
    OpenArrays
        A tuple of `OpenArray`, sorted by name. Several handles on one array with one pipeline count once. It looks at all
        objects of the process, which takes some milliseconds for 100,000 objects.

    Examples
    --------
    >>> shardcodec.open_arrays()  # doctest: +SKIP
    native  ShardCodecPipeline    file:///data/new.zarr
    zarr    BatchedCodecPipeline  file:///data/old.zarr  (opened without shardcodec's pipeline)
    """
    _setting.look(stacklevel=3)
    return OpenArrays(sorted({_describe(name, pipeline) for name, pipeline in pipelines_of_arrays()}))


def _describe(name: str, pipeline: CodecPipeline) -> OpenArray:
    if not isinstance(pipeline, ShardCodecPipeline):
        return OpenArray(name, type(pipeline).__name__, False, _reason_of(type(pipeline)))
    return OpenArray(name, type(pipeline).__name__, not pipeline.declined, pipeline.declined)


def _reason_of(pipeline: type) -> str:
    """Return why an array has another pipeline, with the setting that has won over `enable`, a file or a variable, if one has."""
    reason = "opened without shardcodec's pipeline"
    selector = _setting.selector()
    if selector is None:
        return reason
    path = config.get(PIPELINE_KEY)
    if path.rpartition(".")[2] == pipeline.__name__:
        return f"{reason}: {PIPELINE_KEY}={path} by {source_of(PIPELINE_KEY)} has replaced that of {selector}"
    before = "before enable(), or " if selector == _CALL else ""
    return f"{reason}: {before}while a program had set another one"


# ---------------------------------------------------------------- `shardcodec.stats`: the counters of this process, and its arrays
#
# `shardcodec.stats` adds the arrays of this process to the counters of `statistics`.
#
# The counters are below all surfaces and know nothing of zarr's arrays; the list of arrays is made when it is asked for.


class ProcessStatistics:
    """Counters and arrays of this process; call the object to read them."""

    def __call__(self) -> dict[str, Any]:
        """Return the counters since the process began, or since `reset`, and the arrays that exist now.

        Returns
        -------
        dict
            A copy; later work does not change it. ``print`` shows it as text, a notebook as a table. ``arrays``: the result of `open_arrays`, which says for each zarr array of
            this process which code does its work. The other entries are those of `statistics.Statistics.__call__`.

        Examples
        --------
        >>> shardcodec.stats.reset()
        >>> values = shardcodec.open_array("a.zarr")[0]
        >>> shardcodec.stats()["fallbacks"]
        {}
        """
        return ReadableDict(statistics.stats(), arrays=open_arrays())

    def reset(self) -> None:
        """Set all counters to zero; the estimates of ``io_latency`` stay."""
        statistics.stats.reset()

    def __repr__(self) -> str:
        return f"<shardcodec.stats: call it for the counters>\n{open_arrays()!r}"


stats: ProcessStatistics = ProcessStatistics()


# ---------------------------------------------------------------- the arrays that `attach` returns
#
# `AttachedArray`: a `zarr.Array` whose square brackets do without zarr's event loop where they can.


class AttachedArray(Array[Any]):
    """A `zarr.Array` on shardcodec's pipeline; made by `shardcodec.attach`.

    ``array[selection]`` and ``array[selection] = value`` use the `DirectAccess` of the pipeline for integers, slices and an
    ellipsis. Everything else, and all other methods, are those of `zarr.Array`. The results are equal.

    Parameters
    ----------
    async_array : AsyncArray
        The array, with a `ShardCodecPipeline`.
    """

    def __getitem__(self, selection: Any) -> Any:
        """Return the elements of a selection; see `zarr.Array.__getitem__`."""
        array = self._async_array
        pipeline = array.codec_pipeline
        access = pipeline.direct.of(array) if type(pipeline) is ShardCodecPipeline else None
        found = None if access is None else access.read(selection)
        return super().__getitem__(selection) if found is None else found

    def __setitem__(self, selection: Any, value: Any) -> None:
        """Store a value in the elements of a selection; see `zarr.Array.__setitem__`."""
        array = self._async_array
        pipeline = array.codec_pipeline
        access = pipeline.direct.of(array) if type(pipeline) is ShardCodecPipeline else None
        if access is None or not access.write(selection, value):
            super().__setitem__(selection, value)

    def with_config(self, config: Any) -> Any:
        """Return a handle on the same array with another configuration, and with the options of this handle.

        Parameters
        ----------
        config : ArrayConfig or mapping
            As for `zarr.Array.with_config`.

        Returns
        -------
        AttachedArray
        """
        pipeline, new = pipeline_of(self), super().with_config(config)
        return with_pipeline(new, pipeline.with_options()) if type(pipeline) is ShardCodecPipeline else new

    def __eq__(self, other: object) -> bool:
        """Compare as arrays of zarr are compared, with any `zarr.Array`."""
        return self._async_array == other.async_array if isinstance(other, Array) else NotImplemented

    __hash__ = Array.__hash__  # None: a resize changes an array


# ---------------------------------------------------------------- processes that are started later: environment variables
#
# zarr reads its configuration when it is imported, also from environment variables, and every kind of child inherits these:
# `spawn`, `forkserver`, `subprocess`, the workers of dask, of torch and of ``mpiexec``. A forked child inherits the
# configuration itself.


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


# ---------------------------------------------------------------- the workers of dask


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


# ---------------------------------------------------------------- `enable`, `disable` and `attach`: switch shardcodec on and off

A = TypeVar("A")  # zarr.Array or zarr.AsyncArray


class _Setting:
    """The active calls of `enable`, as one setting of zarr's configuration and of the environment.

    Both are made again when a call is added or undone. So calls can be undone in any order, and after the last one they are
    those from before the first one.
    """

    def __init__(self) -> None:
        # A fork waits for it: under it a thread may hold the lock of zarr's configuration, which is not made again in a child.
        self._mutex = threading.RLock()
        self._calls: list[Any] = []
        self._active: Any = None  # a context of zarr's `config.set`
        self._variables = ChildVariables()
        self._warned: str | None = None
        os.register_at_fork(
            before=self._mutex.acquire,
            after_in_parent=self._mutex.release,
            after_in_child=self._mutex.release,
        )

    def add(self, call: Any) -> None:
        """Add a call."""
        with self._mutex:
            if self._calls:  # otherwise a variable may be meant for other processes
                self.look()
            self._warned = None
            self._calls.append(call)
            self._apply()

    def has(self, call: Any) -> bool:
        """Return True if a call is active."""
        return call in self._calls

    def selector(self) -> str | None:
        """Return what selects shardcodec's pipeline here: a call, a file or a variable; None if nothing does."""
        return _CALL if self._calls else selector_of_new_process()

    def look(self, *, stacklevel: int = 4) -> None:
        """Warn, once for each setting, if another program has replaced the pipeline of a call, a file or a variable.

        zarr tells nothing of a change, so this is called where shardcodec's code runs in any case.
        """
        path = config.get(PIPELINE_KEY)
        if path in (PIPELINE_PATH, self._warned) or (selector := self.selector()) is None:
            return
        self._warned = path
        text = (
            f"{PIPELINE_KEY}={path} ({source_of(PIPELINE_KEY)}) has replaced the pipeline of {selector}: arrays that "
            "were opened since then do not use shardcodec, and parallel writers may lose updates; see "
            "docs/how-to/other-packages.md"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel)

    def remove(self, call: Any) -> bool:
        """Undo one call; return False if it is not active."""
        with self._mutex:
            if call not in self._calls:
                return False
            self.look()
            self._calls.remove(call)
            self._apply()
            return True

    def clear(self) -> list[Any]:
        """Undo all calls, also those of the process that started this one; return those of this process."""
        with self._mutex:
            if self._calls:
                self.look()
            calls, self._calls = self._calls, []
            self._apply()
            _forget(self._variables.drop_inherited())
            return calls

    def _apply(self) -> None:
        if self._active is not None:
            self._active.__exit__(None, None, None)
            self._active = None
        if self._calls:
            values = {f"shardcodec.{name}": value for name, value in _options_of(self._calls).items()}
            self._active = config.set({PIPELINE_KEY: PIPELINE_PATH, **values})
        calls = [call for call in self._calls if call.children]
        self._variables.put(variables_of(_options_of(calls)) if calls else {})


def _options_of(calls: list[Any]) -> dict[str, Any]:
    return {name: value for call in calls for name, value in call.defaults.items()}


def _forget(variables: Mapping[str, str]) -> None:
    """Take back what zarr's configuration has from variables that have just been removed from the environment."""
    if not variables:
        return
    if variable_of_setting(ENABLED_KEY) in variables:
        variables = {**variables, variable_of_setting(PIPELINE_KEY): PIPELINE_PATH}
    fresh = settings_without_calls()
    for section in ("codec_pipeline", "shardcodec"):
        present = config.config.get(section, {})
        for name in list(present):
            if variables.get(variable_of_setting(f"{section}.{name}")) != str(present[name]):
                continue
            if name in fresh.get(section, {}):
                present[name] = fresh[section][name]
            else:
                del present[name]
        if not present:
            config.config.pop(section, None)


_setting = _Setting()


class _EnableCall:
    """One call of `enable`, as a context manager whose end undoes this call."""

    def __init__(
        self, defaults: dict[str, Any], *, children: bool, undo_workers: Callable[[], None] | None
    ) -> None:
        self.defaults = defaults
        self.children = children
        self._undo_workers = undo_workers
        self._pid = os.getpid()

    def __repr__(self) -> str:
        words = [f"{name}={value!r}" for name, value in self.defaults.items()]
        words += [] if self.children else ["children=False"]
        state = "active" if _setting.has(self) else "undone"
        return f"<shardcodec.enable({', '.join(words)}), {state}>"

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _setting.remove(self):
            self.undo_workers()

    def undo_workers(self) -> None:
        """Undo the call in the workers of its client. A forked child leaves them alone."""
        if self._undo_workers is not None and os.getpid() == self._pid:
            self._undo_workers()


def enable(*, children: bool = True, client: Any = None, **defaults: Unpack[OptionChoices]) -> _EnableCall:
    """Make zarr use shardcodec for every array that is opened from now on, here and in processes that are started later.

    Parameters
    ----------
    children : bool
        Also set environment variables, which every process inherits that is started from now on: by `multiprocessing` with
        any start method, `subprocess`, dask, torch or ``mpiexec``. A variable that the user has set stays, with a warning.
        In a child without shardcodec they have no effect.
    client : distributed.Client, optional
        Also make the workers of this client do the same, with the same options: those that it has, and those that join or
        start again later.
    **defaults
        Options for the whole process, see `Options`. They apply at once, also to arrays that are already open. The
        pipeline of an array is chosen when zarr opens the array.

    Returns
    -------
    context manager
        The end of ``with shardcodec.enable(): ...`` undoes this call.

    Raises
    ------
    TypeError, ValueError
        The name or the value of an option is invalid, or `client` is not a client.
    ImportError
        A worker of the client does not have shardcodec, or has another version. No process has changed then.
    UnsupportedError
        The extension module cannot be loaded, for instance because Python was started in a source tree, which hides the
        installed package. zarr's configuration is unchanged.

    Examples
    --------
    >>> shardcodec.enable(threads=8)
    <shardcodec.enable(threads=8), active>

    The end of a block undoes the call:

    >>> with shardcodec.enable(durability="fsync"):
    ...     zarr.open_array("a.zarr")[0] = 7
    """
    check_argument("children", children, bool)
    options = check(defaults)
    native.require()
    undo_workers = None if client is None else enable_workers(client, options)
    call = _EnableCall(options, children=children, undo_workers=undo_workers)
    try:
        if _setting.selector() is None:
            _warn_of_open_arrays()
        _setting.add(call)
        if children:
            _warn_of_children(variables_of(call.defaults))
    except BaseException:  # a warning that the program has made an error, or a signal
        _setting.remove(call)
        call.undo_workers()
        raise
    return call


def _warn_of_open_arrays() -> None:
    """Warn of arrays that keep zarr's own pipeline, because they were opened before."""
    names = sorted(
        {name for name, pipeline in pipelines_of_arrays() if not isinstance(pipeline, ShardCodecPipeline)}
    )
    if names:
        more = f" and {len(names) - N_NAMED} more" if len(names) > N_NAMED else ""
        text = (
            f"{', '.join(names[:N_NAMED])}{more}: opened before shardcodec.enable(), so these arrays go on with zarr's own pipeline and "
            "take no locks; open them again, or use shardcodec.attach(array)"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _warn_of_children(variables: Mapping[str, str]) -> None:
    """Warn of processes that would not do as this one, although they are started later."""
    wanted = {variable_of_setting(PIPELINE_KEY): PIPELINE_PATH, **variables}
    if flag(os.environ.get(own := variable_of_setting(ENABLED_KEY), "no")):
        wanted[own] = os.environ[own]  # the user says the same in another word
    kept = {name: os.environ[name] for name in wanted if os.environ.get(name, wanted[name]) != wanted[name]}
    for name, value in kept.items():
        text = (
            f"{name}={value} in the environment stays, so processes that are started from now on use this value in place of "
            f"{wanted[name]}; remove the variable, or call shardcodec.enable(children=False)"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    told = {name: wanted[name] for name in variables if name not in kept}
    if (pid := stale_forkserver(told)) is not None:
        text = (
            f"the forkserver of multiprocessing (process {pid}) was started before shardcodec.enable(), so the processes that "
            "it starts do not use shardcodec and may lose updates; call enable() before the first process is started, or also "
            "in each of them (initializer=shardcodec.enable)"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def disable() -> None:
    """Undo every call of `enable`. zarr's configuration and the environment are then those from before the first call.

    In a process that was started under `enable`, this undoes the inherited setting too.

    Examples
    --------
    >>> call = shardcodec.enable()
    >>> shardcodec.disable()
    >>> type(zarr.open_array("a.zarr").async_array.codec_pipeline).__name__
    'BatchedCodecPipeline'
    """
    for call in _setting.clear():
        call.undo_workers()


def attach(array: A, **choices: Unpack[OptionChoices]) -> A:
    """Return a handle on a zarr array that uses shardcodec's pipeline with its own options, and less of zarr's own work.

    ``array[...]`` and ``array[...] = value`` with integers, slices and an ellipsis do without zarr's event loop, for arrays in
    local folders and in memory. Results, errors and stored objects are those of any array on the pipeline.

    Parameters
    ----------
    array : zarr.Array or zarr.AsyncArray
        An array of Zarr format 2 or 3 with any pipeline. It is not changed.
    **choices
        Options for this handle, see `Options`. They are pickled with it.

    Returns
    -------
    zarr.Array or zarr.AsyncArray
        A new handle on the same stored array. For an instance of `zarr.Array` itself it is an instance of a subclass; else it
        is of the same class.

    Raises
    ------
    TypeError
        `array` is not an array of zarr, or the name of an option is invalid.
    ValueError
        The value of an option is invalid.
    UnsupportedError
        The extension module cannot be loaded.

    Examples
    --------
    >>> array = shardcodec.attach(zarr.open_array("a.zarr"), threads=2)
    >>> array[1, 2:5]
    array([ 8,  9, 10], dtype=int32)
    """
    handle: Any = array
    if not isinstance(handle, Array | AsyncArray):
        raise TypeError(f"array: expected a zarr.Array or zarr.AsyncArray, got {type(handle).__name__}")
    native.require()
    pipeline, options = pipeline_of(handle), check(choices)
    with quiet():
        if not isinstance(pipeline, ShardCodecPipeline):
            pipeline = ShardCodecPipeline(handle.metadata, handle.store)
        new: Any = with_pipeline(handle, pipeline.with_options(**options))
    if type(new) is Array:
        new = AttachedArray(new.async_array)
    return new  # type: ignore[no-any-return]
