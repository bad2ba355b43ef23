# open_arrays.py - the zarr arrays of this process, and which code does their work
# SPDX-License-Identifier: MIT
"""`open_arrays`: which arrays of this process use shardcodec; `stats` adds them to the counters of `statistics`.

zarr chooses the pipeline when it opens an array, so an array that was opened before `enable` stays with zarr's own. Such an
array loses nothing of its behaviour but is slower, and parallel writers may lose updates.

The counters are below all surfaces and know nothing of zarr's arrays; the list of arrays is made when it is asked for.
"""

from __future__ import annotations

from typing import Any

from .. import statistics
from ..compat import CodecPipeline, config, pipelines_of_arrays
from ..option_sources import PIPELINE_KEY, is_direct, source_of
from ..readable import OpenArray, OpenArrays, ReadableDict
from . import direct_methods
from .pipeline import ShardCodecPipeline
from .setting import CALL, setting

__all__ = ["ProcessStatistics", "open_arrays", "stats"]


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
    setting.look(stacklevel=3)
    arrays = sorted({_describe(name, pipeline) for name, pipeline in pipelines_of_arrays()})
    if direct_methods.is_active():
        return OpenArrays(arrays, "on")
    if why := direct_methods.unknown():
        return OpenArrays(arrays, f"off: {why}", is_refused=True)
    return OpenArrays(
        arrays, f"off: {'no array was opened with it' if is_direct() else 'SHARDCODEC_DIRECT forbids it'}"
    )


def _describe(name: str, pipeline: CodecPipeline) -> OpenArray:
    if not isinstance(pipeline, ShardCodecPipeline):
        return OpenArray(name, type(pipeline).__name__, False, _reason_of(type(pipeline)))
    return OpenArray(name, type(pipeline).__name__, not pipeline.declined, pipeline.declined)


def _reason_of(pipeline: type) -> str:
    """Return why an array has another pipeline, with the setting that has won over `enable`, a file or a variable, if one has."""
    reason = "opened without shardcodec's pipeline"
    selector = setting.selector()
    if selector is None:
        return reason
    path = config.get(PIPELINE_KEY)
    if path.rpartition(".")[2] == pipeline.__name__:
        return f"{reason}: {PIPELINE_KEY}={path} by {source_of(PIPELINE_KEY)} has replaced that of {selector}"
    before = "before enable(), or " if selector == CALL else ""
    return f"{reason}: {before}while a program had set another one"


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
