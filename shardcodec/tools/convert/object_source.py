# object_source.py - any object with shape, dtype and __getitem__ as a source
# SPDX-License-Identifier: MIT
"""`ObjectSource`: arrays of numpy, dask, xarray or zarr, memory maps, and whatever else gives elements for slices."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...format.attributes import MASK, as_json_attributes, masked_attributes
from ...format.dtypes import DType, as_dtype
from .source import Ints, SourceArray

__all__ = [
    "ObjectSource",
    "array_attributes",
    "chunks_of_object",
    "fields_of",
    "is_array_like",
    "object_source",
]


def is_array_like(value: Any) -> bool:
    """Return True if a value has shape, dtype and `__getitem__`."""
    return all(hasattr(value, name) for name in ("shape", "dtype", "__getitem__"))


@dataclass(frozen=True, eq=False)
class ObjectSource(SourceArray):
    """An array-like object. Its reads take turns, because it may not be made for several threads.

    Attributes
    ----------
    values : Any
        The object.
    """

    values: Any = None
    turn: Any = field(default_factory=threading.Lock)

    def read(self, start: Ints, out: np.ndarray[Any, Any]) -> None:
        box = tuple(slice(a, a + n) for a, n in zip(start, out.shape, strict=True))
        with self.turn:
            try:
                found = np.asarray(self.values[box])
            except MemoryError:
                raise
            except Exception as error:
                raise self.located(error, start, out.shape) from error
        if found.shape != out.shape:
            raise ValueError(
                f"{self.place}: expected elements of shape {out.shape} for {box}, got {found.shape}"
            )
        np.copyto(out, found, casting="equiv")

    def located(self, error: Exception, start: Ints, shape: Ints) -> Exception:
        """Return an error of a read that names what was read."""
        last = tuple(a + n for a, n in zip(start, shape, strict=True))
        return OSError(f"{self.place}: elements from {start} to {last}: {type(error).__name__}: {error}")

    @property
    def objects_shape(self) -> None:
        return None


def object_source(values: Any) -> ObjectSource:
    """Return the source for an array-like object; raise `UnsupportedError` if shardcodec does not have the data type."""
    return ObjectSource("", f"<{type(values).__name__}>", **fields_of(values))


def fields_of(values: Any, **known: Any) -> dict[str, Any]:
    """Return fields of the source for an array-like object; raise `UnsupportedError` for an unknown data type.

    `known` has the fields that the caller knows better.
    """
    dtype = as_dtype(np.dtype(values.dtype))
    fill = getattr(values, "fill_value", None)
    if fill is None or dtype.names is not None:
        fill = np.zeros((), dtype)[()]
    found = {
        "shape": tuple(int(n) for n in values.shape),
        "dtype": dtype,
        "fill_value": fill,
        "chunks": chunks_of_object(values),
        "dimension_names": _names(values),
        "values": values,
        **known,
    }
    if "attributes" not in known:
        given = getattr(values, "attrs", None)
        given = dict(given) if isinstance(given, Mapping) or given else {}
        found |= array_attributes(given, dtype, has_names=found["dimension_names"] is not None)
    return found


def array_attributes(
    given: Mapping[str, Any], dtype: DType, *, has_names: bool, fill: Any = None
) -> dict[str, Any]:
    """Return the fields `attributes` and `notes` of a source.

    Parameters
    ----------
    given : mapping
        Attributes of any kind.
    dtype : dtype
    has_names : bool
        The axes have names, so that xarray can read the array, and its mask.
    fill : Any
        The fill value, if xarray masks it; see `masked_attributes`.
    """
    masks = {name: value for name, value in given.items() if has_names and name == MASK}
    attributes, notes = as_json_attributes({name: given[name] for name in given if name not in masks})
    if has_names:
        attributes, more = masked_attributes(as_json_attributes(masks)[0] | attributes, dtype, fill)
        notes = (*notes, *more)
    return {"attributes": attributes, "notes": notes}


def chunks_of_object(values: Any) -> Ints | None:
    """Return the shape of a chunk; dask names the sizes of all chunks."""
    try:
        given = getattr(values, "chunks", None)
    except NotImplementedError:  # chunks of different shapes
        return None
    if not isinstance(given, Sequence) or len(given) != len(values.shape):
        return None
    first = [one[0] if isinstance(one, Sequence) and len(one) else one for one in given]
    return (
        tuple(int(n) for n in first)
        if all(isinstance(n, int | np.integer) and n > 0 for n in first)
        else None
    )


def _names(values: Any) -> tuple[str | None, ...] | None:
    """Return the names of the axes of an array of zarr or xarray."""
    for owner, name in ((getattr(values, "metadata", None), "dimension_names"), (values, "dims")):
        given = getattr(owner, name, None)
        if isinstance(given, Sequence) and len(given) == len(values.shape):
            return tuple(None if one is None else str(one) for one in given)
    return None
