# attached_array.py - the arrays that `attach` returns
# SPDX-License-Identifier: MIT
"""`AttachedArray`: a `zarr.Array` whose square brackets do without zarr's event loop where they can."""

from __future__ import annotations

from typing import Any

from zarr import Array

from ..compat import pipeline_of, with_pipeline
from .pipeline import ShardCodecPipeline

__all__ = ["AttachedArray"]


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
