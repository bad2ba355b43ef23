# array_engine.py - shardcodec as an array engine of zarr
# SPDX-License-Identifier: MIT
"""Array engines and hierarchy engines as in the draft of zarr's protocol, over the handle `Array`.

zarr asks an engine for the elements of one selection, as the user wrote it. `docs/engine.md` names the commit of the draft. Of a
request the engines read ``kind``, ``selection`` and ``shape``.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import numpy as np

from ..access.array import Array, with_document
from ..access.box_reader import folder_at
from ..compat import (
    IN_MEMORY,
    ArrayMetadata,
    as_numpy,
    default_spec,
    dtype_of,
    fills_missing_chunks,
    is_repaired,
    metadata_from,
    quiet,
    stored_document,
)
from ..errors import UnsupportedError

__all__ = ["ArrayEngine", "AsyncArrayEngine", "AsyncHierarchyEngine", "HierarchyEngine"]

Ints = tuple[int, ...]


class _BoundArray:
    """The array of an engine, and the checks of requests and values; base of both engines."""

    def __init__(self, store: Any, path: str = "", metadata: Any = None, config: Any = None) -> None:
        config = default_spec().config if config is None else config
        if not fills_missing_chunks(config):
            raise UnsupportedError(
                "read_missing_chunks: expected True, because missing chunks are not reported"
            )
        folder = folder_at(store, path)
        document = folder.metadata() if metadata is None else _document(metadata)
        mode: Any = "r" if folder.base is not None or folder.store.is_read_only else "r+"
        array = Array(folder, None, None, False, document=document, mode=mode, config=config)
        self._config = config
        self._bind(array, metadata_from(document) if metadata is None else metadata)

    def _bind(self, array: Array, metadata: ArrayMetadata) -> None:
        self.array = array
        self._metadata = metadata
        self.dtype: np.dtype[Any] = dtype_of(metadata)
        self.order: Any = getattr(metadata, "order", self._config.order)

    def with_metadata(self, metadata: Any) -> Self:
        """Return an engine for the same objects with other metadata, for example after a change of the shape.

        Parameters
        ----------
        metadata : ArrayMetadata
            The metadata that zarr has stored. Nothing is read from the store.

        Returns
        -------
        engine
            Options and configuration are those of this engine, which does not change.
        """
        engine = copy.copy(self)
        engine._bind(with_document(self.array, _document(metadata)), metadata)
        return engine

    def _check(self, request: Any, prototype: Any) -> None:
        if not all(issubclass(*pair) for pair in zip(prototype, IN_MEMORY, strict=True)):
            raise UnsupportedError(
                f"prototype: expected buffers in the memory of this process, got {prototype.nd_buffer.__name__}"
            )
        if tuple(request.shape) != self.array.shape:
            raise ValueError(
                f"request: expected one for shape {self.array.shape}, got {tuple(request.shape)}; the array was resized, "
                "so make the engine again, or use `with_metadata`"
            )

    def _value(self, request: Any, value: Any, prototype: Any, fields: Any) -> Any:
        """Return the value of a write as the handle takes it; zarr passes those of coordinates with one axis."""
        self._check(request, prototype)
        if fields:
            raise UnsupportedError(f"fields: expected none for a write, got {fields!r}")
        if is_repaired(self._metadata):  # readers of the stored ones would look for other chunks
            raise UnsupportedError(
                "metadata: expected those that are stored, but zarr has corrected these on reading; "
                "store them with `array.update_attributes({})`"
            )
        if request.kind != "coordinate":
            return value
        values = value if isinstance(value, np.ndarray) else np.asarray(value, self.array.dtype)
        shape = _shape_of(request.selection)
        if values.ndim != 1:
            return values
        if values.size != math.prod(shape):
            raise ValueError(f"value: expected {math.prod(shape)} elements, got {values.size}")
        return values.reshape(shape)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.array!r}>"


class _Answer:
    """The result of one read: a buffer of zarr, and the array that is read into."""

    def __init__(
        self, engine: _BoundArray, request: Any, prototype: Any, out: Any, fields: str | list[str] | None
    ) -> None:
        engine._check(request, prototype)
        if out is not None and not hasattr(out, "as_ndarray_like"):
            raise TypeError(f"out: expected an NDBuffer, got {type(out).__name__}")
        self._engine = engine
        self._kind = request.kind
        self._nd_buffer = prototype.nd_buffer
        self._fields = fields or None  # zarr passes an empty list, too
        self._dtype = _dtype_of_fields(engine.dtype, self._fields)
        self._buffer = out
        self._unconverted: np.ndarray[Any, Any] | None = None

    def target(self, shape: Ints) -> np.ndarray[Any, Any]:
        """Return the array to read into; `shape` is that of the selection."""
        result = (math.prod(shape),) if self._kind == "coordinate" else shape  # zarr restores their axes
        if self._buffer is None:
            order = self._engine.order
            self._buffer = self._nd_buffer.empty(shape=result, dtype=self._dtype, order=order)
        if self._buffer.shape != result:
            raise ValueError(f"out: expected shape {result}, got {self._buffer.shape}")
        array = as_numpy(self._buffer)
        if array is None:
            raise UnsupportedError(f"expected a numpy array in {type(self._buffer).__name__}")
        self._array = array.reshape(shape)  # a view: if the shapes differ, the array has one axis
        stored = self._engine.array.dtype
        if self._fields is None and array.dtype == stored:
            return self._array
        self._unconverted = np.empty(shape, stored)
        return self._unconverted

    def result(self) -> Any:
        """Return the elements, once they are read; an element that integers select is a scalar, as zarr returns it."""
        if self._unconverted is not None:
            values = self._unconverted
            self._array[...] = values if self._fields is None else values[self._fields]
        if self._kind == "basic" and self._buffer.shape == ():
            return self._buffer.as_scalar()
        return self._buffer.as_ndarray_like()


class ArrayEngine(_BoundArray):
    """The elements of one array, for ``zarr.open_array(..., engine=ArrayEngine(...))``.

    Reads and writes take the same locks and strategies as those of `shardcodec.open_array`, and need no event loop. Options are
    resolved here: a later ``with shardcodec.options(...)`` does not change the engine.

    Parameters
    ----------
    store : str, PathLike or zarr Store
        Folder or store of the array, or of a hierarchy that contains it. If it is read-only, writes raise `ValueError`.
    path : str
        Path of the array in the folder or store.
    metadata : ArrayMetadata, optional
        zarr's metadata of the array. By default they are read from the store.
    config : ArrayConfig, optional
        zarr's configuration of the array; by default that of zarr's settings. ``order`` and ``write_empty_chunks`` are used.

    Raises
    ------
    FileNotFoundError, SpecError
        As for `shardcodec.open_array`.
    UnsupportedError
        The engine does not support the array, as for `shardcodec.open_array`, or missing chunks are to be reported
        (``read_missing_chunks=False``).

    Examples
    --------
    >>> zarr.open_array("a.zarr", engine=ArrayEngine("a.zarr"))  # doctest: +SKIP
    """

    def read_selection(self, request: Any, *, prototype: Any, out: Any = None, fields: Any = None) -> Any:
        """Read the elements of a selection.

        Parameters
        ----------
        request : SelectionRequest
            The selection, its kind, and the shape of the array.
        prototype : BufferPrototype
            Classes of the result; their buffers must be in the memory of this process.
        out : NDBuffer, optional
            The buffer to read into. It has one axis for coordinates. Elements are cast to its data type.
        fields : str or list of str, optional
            Fields of a structured data type.

        Returns
        -------
        array or scalar
            The elements; a scalar if a basic selection consists of integers.

        Raises
        ------
        IndexError
            The selection has another kind or lies outside of the array, or the data type does not have the field.
        ShardFormatError, ChecksumError, CodecError
            An object is damaged; ``.shard`` and ``.chunk_coords`` say where.
        UnsupportedError
            Buffers are not in the memory of this process.
        TypeError, ValueError
            `out` has another type or shape, or the request is for an array of another shape.
        """
        answer = _Answer(self, request, prototype, out, fields)
        self.array.get_selection(request.selection, kind=request.kind, out=answer.target)
        return answer.result()

    def write_selection(self, request: Any, value: Any, *, prototype: Any, fields: Any = None) -> None:
        """Store a value in a selection. No other element changes, whatever other writers do meanwhile.

        Parameters
        ----------
        request, prototype
            As for `read_selection`.
        value : array_like
            A value for each element, or values that numpy can broadcast to the shape of the selection.
        fields : None
            Other values are not supported.

        Raises
        ------
        IndexError
            The selection is of another kind, or it lies outside the array.
        UnsupportedError
            `fields` are given, buffers are not in the memory of this process, or zarr has corrected the metadata on reading
            and not stored them. Nothing was stored.
        TypeError, ValueError
            The values have another shape or type, or the store is read-only, or the request is for an array of another shape.
            Nothing was stored.
        ShardFormatError, ChecksumError, CodecError, LockError
            As for `Array.set_selection`.
        """
        value = self._value(request, value, prototype, fields)
        self.array.set_selection(request.selection, value, kind=request.kind)


class AsyncArrayEngine(_BoundArray):
    """The elements of one array, for ``zarr.api.asynchronous.open_array(..., engine=AsyncArrayEngine(...))``.

    Parameters, errors and methods are those of `ArrayEngine`; `read_selection` and `write_selection` are coroutines for any event
    loop, and many of them may wait at the same time.
    """

    async def read_selection(
        self, request: Any, *, prototype: Any, out: Any = None, fields: Any = None
    ) -> Any:
        """Read the elements of a selection; see `ArrayEngine.read_selection`."""
        answer = _Answer(self, request, prototype, out, fields)
        await self.array.read(request.selection, kind=request.kind, out=answer.target)
        return answer.result()

    async def write_selection(self, request: Any, value: Any, *, prototype: Any, fields: Any = None) -> None:
        """Store a value in a selection; see `ArrayEngine.write_selection`."""
        value = self._value(request, value, prototype, fields)
        await self.array.write(request.selection, value, kind=request.kind)


class _BoundStore:
    """The store of a hierarchy; base of both engines of hierarchies."""

    def __init__(self, store: Any) -> None:
        self.store = store


class HierarchyEngine(_BoundStore):
    """Makes the engines of all arrays in a store, which share one cache of indexes.

    Parameters
    ----------
    store : str, PathLike or zarr Store
        The folder or store.
    """

    def array_engine(self, path: str, metadata: Any, config: Any = None) -> ArrayEngine:
        """Return the engine of an array; see `ArrayEngine` for the parameters and errors."""
        return ArrayEngine(self.store, path, metadata, config)


class AsyncHierarchyEngine(_BoundStore):
    """Makes the asynchronous engines of all arrays in a store, which share one cache of indexes.

    Parameters
    ----------
    store : str, PathLike or zarr Store
        The folder or store.
    """

    def array_engine(self, path: str, metadata: Any, config: Any = None) -> AsyncArrayEngine:
        """Return the engine of an array; see `ArrayEngine` for the parameters and errors."""
        return AsyncArrayEngine(self.store, path, metadata, config)


def _document(metadata: Any) -> dict[str, Any]:
    with quiet():  # some data types have no specification in Zarr v3
        return stored_document(metadata)


def _shape_of(coordinates: Any) -> Ints:
    indices = coordinates if isinstance(coordinates, tuple) else (coordinates,)
    return np.broadcast_shapes(*(np.shape(index) for index in indices))


def _dtype_of_fields(dtype: np.dtype[Any], fields: str | list[str] | None) -> np.dtype[Any]:
    """Return the data type of fields, or `dtype` without fields; IndexError if it does not have them."""
    if fields is None:
        return dtype
    names = [fields] if isinstance(fields, str) else list(fields)
    if unknown := [name for name in names if name not in (dtype.names or ())]:
        raise IndexError(f"fields: expected some of {dtype.names or ()}, got {unknown}")
    return dtype[fields] if isinstance(fields, str) else np.dtype([(name, dtype[name]) for name in names])
