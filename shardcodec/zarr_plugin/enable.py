# enable.py - `enable`, `disable` and `attach`: switch shardcodec on and off
# SPDX-License-Identifier: MIT
"""Select shardcodec's pipeline for all arrays (`enable`, `disable`) or for one array (`attach`)."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, TypeVar, Unpack

from zarr import Array, AsyncArray

from .. import native
from ..compat import config, pipeline_of, quiet, with_pipeline
from ..options import OptionChoices, check
from .attached_array import AttachedArray
from .pipeline import ShardCodecPipeline

__all__ = ["attach", "disable", "enable"]

A = TypeVar("A")  # zarr.Array or zarr.AsyncArray

PIPELINE_PATH = "shardcodec.ShardCodecPipeline"


class _Setting:
    """The active calls of `enable`, as one setting of zarr's configuration.

    The setting is made again when a call is added or undone. So calls can be undone in any order, and after the last one
    the configuration is that from before the first one.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._calls: list[Any] = []
        self._active: Any = None  # a context of zarr's `config.set`

    def add(self, call: Any) -> None:
        """Add a call."""
        with self._mutex:
            self._calls.append(call)
            self._apply()

    def has(self, call: Any) -> bool:
        """Return True if a call is active."""
        return call in self._calls

    def remove(self, call: Any) -> None:
        """Undo one call; do nothing if it is not active."""
        with self._mutex:
            if call in self._calls:
                self._calls.remove(call)
                self._apply()

    def clear(self) -> None:
        """Undo all calls."""
        with self._mutex:
            self._calls.clear()
            self._apply()

    def _apply(self) -> None:
        if self._active is not None:
            self._active.__exit__(None, None, None)
            self._active = None
        if self._calls:
            values: dict[str, Any] = {"codec_pipeline.path": PIPELINE_PATH}
            for call in self._calls:
                values.update({f"shardcodec.{name}": value for name, value in call.defaults.items()})
            self._active = config.set(values)


_setting = _Setting()


class _EnableCall:
    """One call of `enable`, as a context manager whose end undoes this call."""

    def __init__(self, defaults: dict[str, Any]) -> None:
        self.defaults = defaults

    def __repr__(self) -> str:
        defaults = ", ".join(f"{name}={value!r}" for name, value in self.defaults.items())
        state = "active" if _setting.has(self) else "undone"
        return f"<shardcodec.enable({defaults}), {state}>"

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _setting.remove(self)


def enable(**defaults: Unpack[OptionChoices]) -> _EnableCall:
    """Make zarr use shardcodec for every array that is opened from now on.

    Parameters
    ----------
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
        The name or the value of an option is invalid.
    UnsupportedError
        The extension module cannot be loaded, for instance because Python was started in a source tree, which hides the
        installed package. zarr's configuration is unchanged.

    Examples
    --------
    >>> import shardcodec
    >>> shardcodec.enable(threads=8)
    """
    call = _EnableCall(check(defaults))
    native.require()
    _setting.add(call)
    return call


def disable() -> None:
    """Undo every call of `enable`. zarr's configuration is then that from before the first call."""
    _setting.clear()


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
