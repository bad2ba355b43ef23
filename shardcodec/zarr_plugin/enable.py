# enable.py - switch shardcodec on and off for all arrays
# SPDX-License-Identifier: MIT
"""Select shardcodec's pipeline for all arrays: `enable`, `disable`.

`enable` reaches other processes too: those that are started later, by environment variables, and the workers of dask.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Unpack

from .. import native
from ..arguments import check_argument
from ..compat import pipelines_of_arrays
from ..option_sources import (
    ENABLED_KEY,
    PIPELINE_KEY,
    PIPELINE_PATH,
    variable_of_setting,
)
from ..options import OptionChoices, check, flag
from .children import enable_workers, stale_forkserver, variables_of
from .pipeline import ShardCodecPipeline
from .setting import setting

__all__ = ["disable", "enable"]

# A warning names so many arrays.
N_NAMED = 5


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
        state = "active" if setting.has(self) else "undone"
        return f"<shardcodec.enable({', '.join(words)}), {state}>"

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if setting.remove(self):
            self.undo_workers()

    def undo_workers(self) -> None:
        """Undo the call in the workers of its client. A forked child leaves them alone."""
        if self._undo_workers is not None and os.getpid() == self._pid:
            self._undo_workers()


def enable(*, children: bool = True, client: Any = None, **defaults: Unpack[OptionChoices]) -> _EnableCall:
    """Make zarr use shardcodec for every array that is opened from now on, here and in processes that are started later.

    Where the extension module is missing, as on other platforms than Linux, a warning says once why, and zarr goes on with its own
    pipeline; with ``strict=True`` this is an error.

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
        Options for the whole process, see `shardcodec.options`. They apply at once, also to arrays that are already open. The
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
        The option `strict`, and the extension module cannot be loaded. zarr's configuration is unchanged.

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
        if setting.selector() is None:
            _warn_of_open_arrays()
        setting.add(call)
        if children:
            _warn_of_children(variables_of(call.defaults))
    except BaseException:  # a warning that the program has made an error, or a signal
        setting.remove(call)
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
    for call in setting.clear():
        call.undo_workers()
