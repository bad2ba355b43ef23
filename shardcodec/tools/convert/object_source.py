# object_source.py - any object with shape, dtype and __getitem__ as a source
# SPDX-License-Identifier: MIT
"""`ObjectSource`: arrays of numpy, dask, xarray or zarr, memory maps, and whatever else gives elements for slices."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import ShardError, UnsupportedError
from ...format.attributes import MASK, as_json_attributes, masked_attributes, with_finite_missing
from ...format.byte_document import byte_document
from ...format.codecs import Bytes
from ...format.dtypes import DType, as_dtype, ml_name, packed, swap_fields
from ...format.spec import ChainSpec
from .source import SourceArray

__all__ = [
    "Ints",
    "ObjectSource",
    "array_attributes",
    "chunks_of_object",
    "fields_of",
    "instead_of",
    "is_array_like",
    "object_source",
]

Ints = tuple[int, ...]


def is_array_like(value: Any) -> bool:
    """Return True if a value has shape, dtype and `__getitem__`."""
    return all(hasattr(value, name) for name in ("shape", "dtype", "__getitem__"))


@dataclass(frozen=True, eq=False)
class ObjectSource(SourceArray):
    """An array-like object. Its reads take turns, because it may not be made for several threads."""

    values: Any = None
    turn: Any = field(default_factory=threading.Lock)

    def read(self, start: Ints, out: np.ndarray[Any, Any]) -> None:
        box = tuple(slice(a, a + n) for a, n in zip(start, out.shape, strict=True))
        with self.turn:
            try:
                elements = np.asarray(self._filled(self.values[box]))
            except MemoryError:
                raise
            except Exception as error:
                raise self.located(error, start, out.shape) from error
        if ml_name(elements.dtype) is not None:
            elements = elements.view(out.dtype)
        # a scalar of text is only as long as its text
        is_text = out.dtype.kind in "SU" and elements.dtype.kind == out.dtype.kind
        casting: Any = "safe" if is_text else "equiv"
        if elements.shape != out.shape or not np.can_cast(elements.dtype, out.dtype, casting):
            raise UnsupportedError(
                f"{self.place}: expected elements of the dtype {out.dtype} and the shape {out.shape}, got {elements.dtype} and "
                f"{elements.shape}",
                expected=(out.dtype, out.shape),
                actual=(elements.dtype, elements.shape),
            )
        np.copyto(out, elements, casting=casting)

    def _filled(self, elements: Any) -> Any:
        """Return elements with the fill value in place of those that numpy or dask have masked, whose data mean nothing."""
        is_masked = isinstance(getattr(self.values, "_meta", self.values), np.ma.MaskedArray)
        if is_masked and hasattr(elements, "compute"):  # as an array of numpy, those of dask lose the mask
            elements = elements.compute()
        return np.ma.filled(elements, self.fill_value) if is_masked else elements

    def located(self, error: Exception, start: Ints, shape: Ints) -> Exception:
        """Return an error of a read that names what was read."""
        last = tuple(a + n for a, n in zip(start, shape, strict=True))
        return OSError(f"{self.place}: elements from {start} to {last}: {type(error).__name__}: {error}")

    @property
    def objects_shape(self) -> None:
        return None


def instead_of(values: Any) -> str:
    """Return the type of an object that cannot be converted, and what a user can give in place of it."""
    name, package = type(values).__name__, type(values).__module__.partition(".")[0]
    instead = _INSTEAD.get(package, "give numpy.asarray(source)")
    return f"{name if package == 'builtins' else f'{package}.{name}'}; {instead}"


_INSTEAD = {
    "dask": "give an array of known shape (compute_chunk_sizes) whose blocks have its dtype",
    "h5py": "give the path in its file, such as 'data.h5/images'",
    "netCDF4": "call source.set_auto_maskandscale(False) for the stored elements, or convert the file",
    "nibabel": "give numpy.asarray(source), or source.get_unscaled() for the stored elements",
    "numpy": "give elements of a fixed size, such as source.astype('U20')",
    "scipy": "give source.toarray(), or convert its parts, such as source.tocsr().data, one by one",
    "sparse": "give source.todense(), or convert its parts one by one",
    "tensorstore": "give an open TensorStore whose origin is 0, such as source.translate_to[0]",
    "xarray": "give its variables one by one, or write it with to_zarr and give the path",
    "zarr": "give source.store_path, or its path",
}


def object_source(values: Any) -> ObjectSource:
    """Return the source for an array-like object, of which one element is read.

    Raises
    ------
    UnsupportedError
        shardcodec does not have the data type, or the elements that the object gives are not of its shape and dtype.
    TypeError
        Shape or dtype are not those of an array.
    """
    try:
        fields = fields_of(values)
        given = getattr(values, "_meta", values)
        # whether an array of dask has masked elements is known only when it is read
        if np.ma.is_masked(given) or (given is not values and isinstance(given, np.ma.MaskedArray)):
            fields["notes"] += (f"masked elements are written as the fill value {fields['fill_value']}",)
        if ml_name(fields["dtype"]) is not None:
            fields |= _raw_elements(fields)
        source = ObjectSource("", f"<{type(values).__name__}>", **fields)
        if all(source.shape):
            source.read((0,) * len(source.shape), np.empty((1,) * len(source.shape), source.dtype))
    except (ShardError, OSError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and isinstance(error.__cause__, OSError):
            raise  # of what is behind the object
        kind = TypeError if isinstance(error, TypeError | ValueError) else UnsupportedError
        detail = error.message if isinstance(error, ShardError) else error
        raise kind(f"source: {detail}; this is {instead_of(values)}") from error
    return source


def _raw_elements(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a source with a data type of `ml_dtypes`, whose elements the tools treat as bytes."""
    dtype, shape = fields["dtype"], fields["shape"]
    serializer = Bytes("little" if swap_fields(dtype) else None)
    stored = ChainSpec((1,) * len(shape), dtype, fields["fill_value"], [serializer]).to_metadata(shape)
    as_bytes = byte_document(stored)
    return {"dtype": as_bytes.chain.dtype, "fill_value": as_bytes.chain.fill_value, "bytes": as_bytes}


def fields_of(values: Any, **known: Any) -> dict[str, Any]:
    """Return fields of the source for an array-like object; raise `UnsupportedError` for an unknown data type.

    `known` has the fields that the caller knows better.
    """
    given = values.dtype
    if type(values).__module__.startswith("tensorstore"):  # its data types are no types of numpy
        given = given.numpy_dtype
    dtype = packed(as_dtype(np.dtype(given)))
    fill = getattr(values, "fill_value", None)
    if fill is None or dtype.names is not None:
        fill = np.zeros((), dtype)[()]
    if isinstance(fill, np.str_ | np.bytes_) and fill.dtype.kind == dtype.kind:
        fill = fill.astype(dtype)  # numpy's own for masked texts may be longer than the texts
    fields = {
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
        fields |= array_attributes(given, dtype, has_names=fields["dimension_names"] is not None)
    return fields


def array_attributes(
    given: Mapping[str, Any], dtype: DType, *, has_names: bool, fill: Any = None
) -> dict[str, Any]:
    """Return the fields `attributes` and `notes` of a source from attributes of any kind.

    xarray can read an array whose axes have names, and its mask; `fill` is the fill value, if xarray masks it.
    """
    notes: tuple[str, ...] = ()
    if has_names:
        given, notes = with_finite_missing(given, dtype, fill)
    masks = {name: value for name, value in given.items() if has_names and name == MASK}
    attributes, more = as_json_attributes({name: given[name] for name in given if name not in masks})
    notes += more
    if has_names:
        attributes, more = masked_attributes(as_json_attributes(masks)[0] | attributes, dtype, fill)
        notes += more
    return {"attributes": attributes, "notes": notes}


def chunks_of_object(values: Any) -> Ints | None:
    """Return the shape of a chunk; dask names the sizes of all chunks."""
    try:
        given = getattr(values, "chunks", None)
    except NotImplementedError:  # chunks of different shapes
        return None
    if not isinstance(given, Sequence) or len(given) != len(values.shape):
        return None
    first = [sizes[0] if isinstance(sizes, Sequence) and len(sizes) else sizes for sizes in given]
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
            return tuple(None if name is None else str(name) for name in given)
    return None
