# enable.py - turning shardcodec on and off
# SPDX-License-Identifier: MIT
"""`enable`, `disable` and `attach`."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, TypeVar

from zarr import Array, AsyncArray

from .. import native
from ..compat import ArrayV3Metadata, config, pipeline_of, with_pipeline
from ..errors import UnsupportedError
from ..options import check
from .pipeline import ShardCodecPipeline

__all__ = ["attach", "disable", "enable"]

A = TypeVar("A")  # zarr.Array or zarr.AsyncArray

PIPELINE_PATH = "shardcodec.ShardCodecPipeline"


class _Switch:
    """The calls of `enable` that are in force, as one setting of zarr's configuration.

    One setting, made anew when a call is added or undone: so calls may be undone in any order, and what was there
    before the first is what is there after the last.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._calls: list[Any] = []
        self._setting: Any = None

    def add(self, call: Any) -> None:
        with self._mutex:
            self._calls.append(call)
            self._apply()

    def remove(self, call: Any) -> None:
        """Undo one call; nothing when it is undone already."""
        with self._mutex:
            if call in self._calls:
                self._calls.remove(call)
                self._apply()

    def clear(self) -> None:
        with self._mutex:
            self._calls.clear()
            self._apply()

    def _apply(self) -> None:
        if self._setting is not None:
            self._setting.__exit__(None, None, None)
            self._setting = None
        if self._calls:
            values: dict[str, Any] = {"codec_pipeline.path": PIPELINE_PATH}
            for call in self._calls:
                values.update({f"shardcodec.{name}": value for name, value in call.defaults.items()})
            self._setting = config.set(values)


_switch = _Switch()


class _Enabled:
    """What `enable` returns: leaving it as a context undoes that one call."""

    def __init__(self, defaults: dict[str, Any]) -> None:
        self.defaults = defaults

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _switch.remove(self)


def enable(**defaults: Any) -> _Enabled:
    """Let zarr use shardcodec for every array opened from now on.

    Parameters
    ----------
    **defaults
        Options for the whole process (see `Options`). They count at once, also for arrays that are open already;
        the pipeline itself zarr settles when it opens an array.

    Returns
    -------
    context manager
        ``with shardcodec.enable(): ...`` turns it off again at the end of the block.

    Raises
    ------
    TypeError, ValueError
        There is no such option, or it has no such value.
    UnsupportedError
        The extension module cannot be loaded, for instance because Python was started in a source tree, which hides the
        installed package; zarr's configuration is as it was.

    Examples
    --------
    >>> import shardcodec
    >>> shardcodec.enable(threads=8)
    """
    call = _Enabled(check(defaults))
    native.require()
    _switch.add(call)
    return call


def disable() -> None:
    """Undo every `enable`: zarr's configuration is again what it was before the first one."""
    _switch.clear()


def attach(array: A, **choices: Any) -> A:
    """Return the same zarr array with shardcodec's pipeline and options of its own.

    Parameters
    ----------
    array : zarr.Array or zarr.AsyncArray
        A Zarr v3 array, opened with whatever pipeline.
    **choices
        See `Options`. They travel with the array when it is pickled.

    Raises
    ------
    TypeError
        No array of zarr's.
    UnsupportedError
        A Zarr v2 array; or the extension module cannot be loaded.
    """
    handle: Any = array
    if not isinstance(handle, Array | AsyncArray):
        raise TypeError(f"expected a zarr.Array or zarr.AsyncArray, got {type(handle).__name__}")
    if not isinstance(handle.metadata, ArrayV3Metadata):
        raise UnsupportedError("shardcodec is for Zarr v3 arrays")
    native.require()
    pipeline = pipeline_of(handle)
    if not isinstance(pipeline, ShardCodecPipeline):
        pipeline = ShardCodecPipeline(handle.metadata, handle.store)
    attached: A = with_pipeline(handle, pipeline.with_options(**check(choices)))
    return attached
