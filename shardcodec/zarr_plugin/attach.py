# attach.py - one array on shardcodec's pipeline, with options of its own
# SPDX-License-Identifier: MIT
"""`attach` returns an `AttachedArray`: a `zarr.Array` whose selections do without zarr's event loop where they can."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from zarr import Array, AsyncArray

from .. import native
from ..compat import pipeline_of, quiet, with_pipeline
from ..options import OptionChoices, check
from .direct_methods import replacements
from .pipeline import ShardCodecPipeline

if TYPE_CHECKING:
    from .direct_access import DirectAccess

__all__ = ["AttachedArray", "attach"]


class AttachedArray(Array[Any]):
    """A `zarr.Array` on shardcodec's pipeline; made by `shardcodec.attach`.

    Its reads and writes of selections use the `DirectAccess` of the pipeline where they can. All other methods are those of
    `zarr.Array`. The results are equal.

    Parameters
    ----------
    async_array : AsyncArray
        The array, with a `ShardCodecPipeline`.
    """

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


def _access_to(array: Any) -> DirectAccess | None:
    inner = array._async_array
    pipeline = inner.codec_pipeline
    return pipeline.direct.of(inner) if type(pipeline) is ShardCodecPipeline else None


def _of_zarr(name: str) -> Any:
    """Return a function that calls a method of `zarr.Array` as it is at the call: other programs replace some for a time."""

    @functools.wraps(getattr(Array, name))
    def method(self: Any, *given: Any, **others: Any) -> Any:
        return getattr(super(AttachedArray, self), name)(*given, **others)

    return method


for _name, _method in replacements(_access_to, _of_zarr).items():
    setattr(AttachedArray, _name, _method)


A = TypeVar("A")  # zarr.Array or zarr.AsyncArray


def attach(array: A, **choices: Unpack[OptionChoices]) -> A:
    """Return a handle on a zarr array that uses shardcodec's pipeline with its own options, and less of zarr's own work.

    Reads and writes of basic, orthogonal, coordinate and mask selections do without zarr's indexers and, for arrays in local folders
    and in memory, without its event loop. Results, errors and stored objects are those of any array on the pipeline.

    Parameters
    ----------
    array : zarr.Array or zarr.AsyncArray
        An array of Zarr format 2 or 3 with any pipeline. It is not changed.
    **choices
        Options for this handle, see `shardcodec.options`. They are pickled with it.

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
