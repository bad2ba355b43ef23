# open_arrays.py - the zarr arrays of this process and the pipelines that do their work
# SPDX-License-Identifier: MIT
"""`open_arrays`: which arrays of this process use shardcodec.

zarr chooses the pipeline when it opens an array, so an array that was opened before `enable` stays with zarr's own. Such an
array loses nothing of its behaviour but is slower, and parallel writers may lose updates.
"""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

from zarr import AsyncArray

from ..compat import pipeline_of
from .pipeline import ShardCodecPipeline

__all__ = ["OpenArray", "OpenArrays", "open_arrays"]


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
    # Not `isinstance`: it asks each object for its `__class__`, and a weak proxy of a dead object raises then.
    arrays = (thing for thing in gc.get_objects() if issubclass(type(thing), AsyncArray))
    return OpenArrays(sorted({found for array in arrays if (found := _describe(array)) is not None}))


def _describe(array: Any) -> OpenArray | None:
    try:
        pipeline, name = pipeline_of(array), str(array.store_path)
    except AttributeError:  # another thread is making the array, or its constructor has failed
        return None
    if not isinstance(pipeline, ShardCodecPipeline):
        return OpenArray(name, type(pipeline).__name__, False, "opened without shardcodec's pipeline")
    return OpenArray(name, type(pipeline).__name__, not pipeline.declined, pipeline.declined)
