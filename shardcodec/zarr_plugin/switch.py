# switch.py - turning shardcodec on and off
# SPDX-License-Identifier: MIT
"""`enable`, `disable` and `attach`."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from ..errors import UnsupportedError
from ..options import check
from .compat import ArrayV3Metadata, config, with_pipeline
from .pipeline import ShardCodecPipeline

__all__ = ["attach", "disable", "enable"]

PIPELINE_PATH = "shardcodec.ShardCodecPipeline"

_mutex = threading.Lock()
_settings: list[
    Any
] = []  # what config.set() returned, in the order of the calls; each knows what was there before


class _Enabled:
    """What `enable` returns: leaving it as a context undoes that one call."""

    def __init__(self, setting: Any) -> None:
        self._setting = setting

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _mutex:
            if self._setting in _settings:
                _settings.remove(self._setting)
                self._setting.__exit__(kind, error, trace)


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

    Examples
    --------
    >>> import shardcodec
    >>> shardcodec.enable(threads=8)
    """
    chosen = {f"shardcodec.{name}": value for name, value in check(defaults).items()}
    with _mutex:
        setting = config.set({"codec_pipeline.path": PIPELINE_PATH, **chosen})
        _settings.append(setting)
    return _Enabled(setting)


def disable() -> None:
    """Undo every `enable`: zarr's configuration is again what it was before the first one."""
    with _mutex:
        while _settings:
            _settings.pop().__exit__(None, None, None)


def attach(array: Any, **choices: Any) -> Any:
    """Return the same zarr array with shardcodec's pipeline and options of its own.

    Parameters
    ----------
    array : zarr.Array or zarr.AsyncArray
        A Zarr v3 array, opened with whatever pipeline.
    **choices
        See `Options`. They travel with the array when it is pickled.

    Raises
    ------
    UnsupportedError
        A Zarr v2 array.
    """
    if not isinstance(array.metadata, ArrayV3Metadata):
        raise UnsupportedError("shardcodec is for Zarr v3 arrays")
    pipeline = ShardCodecPipeline(array.metadata, array.store, check(choices))
    return with_pipeline(array, pipeline)
