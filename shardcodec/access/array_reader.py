# array_reader.py - the reading half of `Array`
# SPDX-License-Identifier: MIT
"""`ArrayReader`: reads an array without a zarr array.

A call of a zarr array costs some hundred microseconds, and a data loader does not need all of its work. This handle prepares
geometry, compiled codecs, options and places of objects when it is opened; a call is then one native call.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..arguments import Renamed, checked
from ..compat import refusal_of
from ..errors import ShardError, UnsupportedError, name_array, names_array
from ..format.array_document import ArrayLayout, parse_document
from ..format.chunk_keys import key_encoding
from ..format.ml_types import COMPLEX_NBYTES, ML_NBYTES
from ..format.spec import ChainSpec
from ..format.text import text_array
from ..native import require
from ..option_sources import current_options
from ..options import Options, active, check
from ..readable import facts_table
from ..storage import indexes as index_caches
from ..storage import process_locks
from ..storage.event_loop import in_thread
from ..storage.indexes import IndexCache
from ..storage.retry import Patience
from .box_reader import ArrayObjects, BoxReader, Folder, name_of_handle
from .buffer import flush_names, is_any_buffered
from .chunk_map import map_of_array
from .compiled_chains import compiled, output_array
from .read import ObjectSelection
from .selection import KINDS, ArraySelection
from .split_by_object import as_boxes, as_coordinates, shape_of_boxes
from .text_chunks import PLACE, TextCodecs, text_chain

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["ArrayReader", "Kind"]

Kind = Literal["brackets", "basic", "orthogonal", "coordinate", "mask", "block"]
Ints = tuple[int, ...]
Shapes: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | np.ndarray[Any, Any]
# The array to read into, or what makes it from the shape of the result.
Destination: TypeAlias = np.ndarray[Any, Any] | Callable[[Ints], np.ndarray[Any, Any]]


class ArrayReader(Renamed):
    """The reading half of `Array`, which describes the members.

    Parameters
    ----------
    folder : Folder
        The objects of the array.
    threads, index_cache, immutable, clip, cache
        As for `open_array`.
    document : mapping, optional
        Metadata in place of those that are stored.

    Raises
    ------
    FileNotFoundError, SpecError, UnsupportedError
        As for `open_array`.
    """

    def __init__(
        self,
        folder: Folder,
        threads: int | None,
        index_cache: int | str | IndexCache | None,
        immutable: bool,
        clip: bool = False,
        document: Mapping[str, Any] | None = None,
        cache: int | str | None = None,
    ) -> None:
        require()  # the error of a missing extension is not about the array
        self._arguments: tuple[Any, ...] = (folder, threads, index_cache, immutable, clip, document, cache)
        self._folder = folder
        choices = {"threads": threads, "immutable": immutable or None, "cache": cache}
        if not isinstance(index_cache, IndexCache):
            choices["index_cache"] = index_cache
        self._opened, self._block = current_options(argument=check(choices)), active()
        if index_cache is None:
            index_cache = index_caches.of_options(self._opened)
        elif not isinstance(index_cache, IndexCache):
            index_cache = index_caches.own(self._opened)
        self._index_cache = index_cache
        self._clip = clip
        self._open(document)

    def _open(self, document: Mapping[str, Any] | None) -> None:
        """Take over the metadata of the array, by default the stored ones; errors name the array."""
        try:
            if document is None:
                document = self._folder.metadata()
            self._prepare(document)
        except (ShardError, TypeError, ValueError) as error:
            name_array(error, repr(self._folder))
            raise

    def _prepare(self, document: Mapping[str, Any]) -> None:
        """Take over the metadata of the array."""
        try:
            self._text = text_array(document)
            layout = self._layout(document)
            if any(len(edges) != 1 for edges in layout.edges):
                raise UnsupportedError("expected chunks of one shape, got a rectilinear grid")
            keys = key_encoding(document)
            if self._text is None:
                spec = ChainSpec.from_metadata(document, clip=self._clip)
                chain, dtype, fill = compiled(spec), spec.dtype, spec.fill_value
            else:
                spec, dtype, fill = self._text.spec(self._clip), self._text.dtype, self._text.fill_value
                chain = text_chain(spec, TextCodecs.of(self._text, spec))
        except UnsupportedError as error:
            text = f"{error.message}; {_other_ways(error, document)}"
            raise UnsupportedError(text, **error.context) from error
        self.shape: Ints = layout.shape
        self.ndim: int = len(layout.shape)
        self.dtype = dtype
        self.fill_value = fill
        self.shards: Ints | None = spec.shape if chain.is_shard else None
        self.chunks: Ints = _inner_shape(chain) if chain.is_shard else spec.shape
        self._document = document
        self._chain = chain
        self._spec = spec
        self._extents: Ints = spec.shape
        self._objects = ArrayObjects(self._folder, keys, layout.shape, chain, dtype)
        self._boxes = BoxReader(self._objects, self._opened, self._index_cache)

    @property
    def _options(self) -> Options:
        """The options in force: those at the opening, and those of `options` blocks that have begun since."""
        now, then = active(), self._block
        changed = {name: now[name] for name in now if now[name] != then.get(name)}
        return replace(self._opened, **changed) if changed else self._opened

    def _layout(self, document: Mapping[str, Any]) -> ArrayLayout:
        """Return the layout of the array after a change of its shape."""
        shape = {"shape": document["shape"]} if "shape" in document else {}
        return parse_document(document if self._text is None else {**self._text.document, **shape})

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements in memory."""
        return self.size * self.dtype.itemsize

    @property
    def write_chunk_sizes(self) -> tuple[Ints, ...]:
        """For each axis the extents of the objects that are stored (shards, or chunks), in elements, as dask has its chunks."""
        return tuple(
            tuple(min(extent, size - start) for start in range(0, size, extent))
            for size, extent in zip(self.shape, self._extents, strict=True)
        )

    @property
    def oindex(self) -> _Indexed:
        """Orthogonal selections: ``array.oindex[[3, 1], :, mask]`` selects all combinations, as `zarr.Array.oindex`."""
        return _Indexed(self, "orthogonal")

    @property
    def vindex(self) -> _Indexed:
        """Coordinates or a mask: ``array.vindex[[3, 1], [0, 2]]`` selects two elements, as `zarr.Array.vindex`."""
        return _Indexed(self, "coordinate")

    @property
    def blocks(self) -> _Indexed:
        """Whole stored objects by their grid positions: ``array.blocks[0, 1:3]``, as `zarr.Array.blocks`."""
        return _Indexed(self, "block")

    def refresh(self) -> None:
        """Read the metadata again: another program may have changed the shape."""
        with self._alone():
            self._open(None)

    def _alone(self) -> AbstractContextManager[None]:
        """Keep other threads from changing the metadata of the handle: else older metadata could replace newer ones."""
        # Unlike a mutex, this lock is free in a forked child.
        return process_locks.table().hold([f"handle:{id(self)}"])

    def __getitem__(self, selection: Any) -> Any:
        """Read a part of the array.

        Parameters
        ----------
        selection
            What `zarr.Array` takes in square brackets: integers, slices with positive step, an ellipsis; a list of positions
            or a mask along one axis beside them; lists for all axes, which select single elements; or a mask of all elements.

        Returns
        -------
        ndarray
            A new array in C order; of rank 0 if the selection consists of integers.

        Raises
        ------
        IndexError
            The selection is of another kind, or it lies outside the array.
        ShardFormatError, ChecksumError, CodecError
            An object is damaged; ``.shard`` and ``.chunk_coords`` say where.
        """
        patience = None
        if not is_any_buffered():
            try:
                if (item := self._boxes.get(selection)) is not None:
                    return item
            except ShardError:
                pass  # the read below raises a complete error, if the object is still damaged
            except OSError as error:
                patience = Patience.after(error)
            except (TypeError, ValueError) as error:
                name_array(error, repr(self._folder))
                raise
        return self._get("brackets", selection, None, patience)

    def read(
        self, selection: Any = ..., *, kind: Kind = "brackets", out: Destination | None = None
    ) -> np.ndarray[Any, Any]:
        """Read a part of the array, also into an array of the caller.

        Parameters
        ----------
        selection
            The elements; by default the whole array.
        kind : {"brackets", "basic", "orthogonal", "coordinate", "mask", "block"}
            How the selection is read: as by square brackets, `oindex`, `vindex`, `blocks`.
        out : ndarray or callable, optional
            The array to read into, with the shape and the data type of the result; any strides. Its content is unspecified
            after an error. Or a function that takes the shape of the result and returns such an array.

        Returns
        -------
        ndarray
            `out`, or a new array in C order.

        Raises
        ------
        IndexError, ShardFormatError, ChecksumError, CodecError
            As for ``array[selection]``.
        TypeError, ValueError
            `out` has another type or shape, or `kind` is another word.
        """
        return self._get(kind, selection, out)

    def read_arrow(
        self, selection: Any = ..., *, kind: Kind = "brackets"
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Read text or bytes in the memory layout of Apache Arrow, without an object for each element.

        Parameters
        ----------
        selection, kind
            As for `read`; by default the whole array.

        Returns
        -------
        offsets : ndarray of int64, shape (n + 1,)
            Where each of the n selected elements begins, in C order, and where the last one ends.
        data : ndarray of uint8
            The bytes of all elements, one behind the other; those of text are UTF-8.

        Raises
        ------
        UnsupportedError
            The elements of the array have a fixed size.
        IndexError, ShardFormatError, ChecksumError, CodecError
            As for ``array[selection]``.
        ValueError
            `kind` is another word.

        Examples
        --------
        >>> array = zarr.create_array(
        ...     "names.zarr", data=np.array(["a", "", "bc"], dtype=np.dtypes.StringDType())
        ... )
        >>> offsets, data = shardcodec.open_array("names.zarr").read_arrow()
        >>> offsets.tolist(), bytes(data)
        ([0, 1, 1, 3], b'abc')

        ``pyarrow.LargeStringArray.from_buffers(len(offsets) - 1, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data))`` copies nothing.
        """
        self._check_text()
        chosen = self._locate(kind, selection)
        return self._read_places(
            lambda objects: (
                objects.items_of(chosen.parts) if chosen.parts else [],
                chosen.shape,
                chosen.axes,
            ),
            np.empty(chosen.shape, PLACE),
        )

    @names_array(name_of_handle)
    def read_arrow_boxes(
        self, starts: Any, shape: Shapes
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Read boxes of text or bytes in the memory layout of Apache Arrow, in one native call.

        Parameters
        ----------
        starts, shape
            As for `read_boxes`.

        Returns
        -------
        offsets : ndarray of int64, shape (size + 1,)
            Where each element of the boxes begins, box after box and each in C order, and where the last one ends; `size` is
            the number of elements of all boxes.
        data : ndarray of uint8
            The bytes of all elements, one behind the other; those of text are UTF-8.

        Raises
        ------
        UnsupportedError
            The elements of the array have a fixed size.
        IndexError, TypeError, ValueError, ShardFormatError, ChecksumError, CodecError
            As for `read_boxes`.
        """
        self._check_text()
        begin, count = as_boxes(starts, shape, self.shape)
        if self.ndim == 0:  # one object, of one element
            offsets, data = self.read_arrow()
            return np.arange(len(begin) + 1) * offsets[-1], np.tile(data, len(begin))
        return self._read_places(
            lambda objects: objects.place_boxes(begin, count), np.empty(shape_of_boxes(begin, count), PLACE)
        )

    @names_array(name_of_handle)
    def _check_text(self) -> None:
        if self._text is None:
            raise UnsupportedError(f"expected text or bytes of any length, got elements of type {self.dtype}")

    def _read_places(
        self,
        locate: Callable[[ArrayObjects], tuple[list[ObjectSelection], Ints, Ints]],
        places: np.ndarray[Any, Any],
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return offsets and bytes of the elements whose places the items fill in; `locate` is as `ArrayObjects.place_boxes`."""
        assert self._text is not None
        codecs = TextCodecs.of_places(self._text, self._spec)
        objects = replace(self._objects, chain=text_chain(self._spec, codecs), dtype=PLACE)
        items, shape, axes = locate(objects)
        if items:
            if is_any_buffered():
                self._flush(items)
            BoxReader(objects, self._options, None).read(items, places.reshape(shape), axes)
        return codecs.joined(places)

    async def read_async(
        self, selection: Any = ..., *, kind: Kind = "brackets", out: Destination | None = None
    ) -> np.ndarray[Any, Any]:
        """Read a part of the array from a coroutine on any event loop; many calls may wait at the same time.

        Parameters
        ----------
        selection, kind, out
            As for `read`; by default the whole array.

        Returns
        -------
        ndarray
            `out`, or a new array in C order.

        Raises
        ------
        IndexError, TypeError, ValueError, ShardFormatError, ChecksumError, CodecError
            As `read`.
        """
        chosen = self._locate(kind, selection)
        out, target = self._destination(chosen, out)
        if chosen.parts:
            items = self._objects.items_of(chosen.parts)
            if is_any_buffered():
                await in_thread(self._flush, items)
            await self._boxes.read_awaited(items, target, chosen.axes)
        return out if target.shape == out.shape else _filled(out, target, chosen)

    @names_array(name_of_handle)
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Read the whole array."""
        if copy is False:
            raise ValueError("copy: expected None or True for a stored array, got False")
        values: np.ndarray[Any, Any] = self[...]
        return values if dtype is None else values.astype(dtype, copy=False)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of numpy with all elements in place of the handle; xarray takes only arrays with this method."""
        written = [*args[:1], *kwargs.values()][:1] if function in _CHANGING else [kwargs.get("out")]
        if any(isinstance(argument, ArrayReader) for argument in written):
            raise TypeError(
                f"{function.__name__}: expected an array in memory to write to, got {self!r}; assign to a selection of it"
            )
        replace = _outline if function in _OF_OUTLINES else ArrayReader.__array__
        return function(*_in_memory(args, replace), **_in_memory(kwargs, replace))

    @names_array(name_of_handle)
    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("expected an array with at least one axis: an array of rank 0 has no length")
        return self.shape[0]

    @names_array(name_of_handle)
    @checked
    def read_boxes(self, starts: Any, shape: Shapes, out: Any = None) -> np.ndarray[Any, Any]:
        """Read boxes at any positions in the array, in one native call.

        Each shard is opened once and each inner chunk is decoded once, also if several boxes need it.

        Parameters
        ----------
        starts : array_like of int, shape (n, ndim)
            First element of each box; boxes may overlap.
        shape : array_like of int, shape (ndim,) or (n, ndim)
            Shape of every box, in elements; or a shape for each box, which may be empty.
        out : ndarray, optional
            The array to read into, with the shape of the result and the dtype of the array; any strides. Or another object whose
            memory numpy can use, such as a tensor of PyTorch. Its content is unspecified after an error.

        Returns
        -------
        ndarray, shape (n, *shape)
            `out`, or a new array in C order. With a shape for each box it has one axis, with the elements of one box behind
            those of the other, each in C order.

        Raises
        ------
        IndexError
            A box reaches outside the array; nothing was read.
        TypeError, ValueError
            `starts`, `shape` or `out` has another type or shape.
        ShardFormatError, ChecksumError, CodecError
            An object is damaged; ``.shard`` and ``.chunk_coords`` say where.

        Notes
        -----
        Boxes of several shapes are the fastest if they differ along the first axis alone: the others are read line by line.

        Examples
        --------
        Rows 2, 0 and 1 of a sparse matrix (CSR), and where each of them begins in the result:

        >>> indptr = np.array([0, 2, 2, 5])
        >>> data = shardcodec.create_array({}, data=np.arange(5), chunks=(2,))
        >>> begin, length = indptr[[2, 0, 1]], np.diff(indptr)[[2, 0, 1]]
        >>> values = data.read_boxes(begin[:, None], length[:, None])
        >>> offsets = np.cumsum(length) - length
        >>> values.tolist(), offsets.tolist()
        ([2, 3, 4, 0, 1], [0, 3, 5])
        >>> [row.tolist() for row in np.split(values, offsets[1:])]
        [[2, 3, 4], [0, 1], []]
        """
        return self._read_boxes(*as_boxes(starts, shape, self.shape), out)

    @names_array(name_of_handle)
    def read_chunks(self, coords: Any, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Read whole chunks (inner chunks of a sharded array), in one native call.

        Parameters
        ----------
        coords : array_like of int, shape (n, ndim)
            Grid positions over the whole array, counted in `chunks`; repeats allowed.
        out : ndarray, shape (n, *chunks), optional
            The array to read into, with the dtype of the array; any strides. Its content is unspecified after an error.

        Returns
        -------
        ndarray, shape (n, *chunks)
            `out`, or a new array in C order. Elements beyond the edge of the array are those that are stored there.

        Raises
        ------
        IndexError
            A position lies outside the grid; nothing was read.
        TypeError, ValueError
            `coords` or `out` has another type or shape.
        UnsupportedError
            Inner chunks are clipped, so the array has no regular grid of them.
        ShardFormatError, ChecksumError, CodecError
            An object is damaged; ``.shard`` and ``.chunk_coords`` say where.
        """
        if self._spec.is_clipped:
            raise UnsupportedError(
                "expected a regular grid of inner chunks, but they are clipped to their shards; use `read_boxes`"
            )
        at = as_coordinates(coords, self.ndim, "coords")
        count = np.array(self.chunks, dtype=np.int64)
        grid = -(-np.array(self.shape, dtype=np.int64) // count)
        wrong = ((at < 0) | (at >= grid)).any(axis=1)
        if wrong.any():
            n = int(wrong.argmax())
            raise IndexError(
                f"coords: expected positions in a grid of shape {tuple(grid.tolist())}, got {tuple(at[n].tolist())}"
            )
        return self._read_boxes(at * count, count, out)

    @names_array(name_of_handle)
    def _locate(self, kind: str, selection: Any) -> ArraySelection:
        """Return what a selection takes of each object; `kind` is one of `KINDS`."""
        if kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
        if selection is None:  # numpy's new axis; the parsers would select all
            selection = (None,)
        return KINDS[kind](selection, self.shape, self._extents)

    def _get(
        self,
        kind: str,
        selection: Any,
        out: Destination | None,
        patience: Patience | None = None,
    ) -> np.ndarray[Any, Any]:
        """Read as `read`; `patience` is that of an earlier attempt."""
        chosen = self._locate(kind, selection)
        out, target = self._destination(chosen, out)
        if chosen.parts:
            self._read(self._objects.items_of(chosen.parts), target, chosen.axes, patience)
        return out if target.shape == out.shape else _filled(out, target, chosen)

    @names_array(name_of_handle)
    def _destination(
        self, chosen: ArraySelection, out: Destination | None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the array of the caller, and the array to read into: the same one, unless coordinates have several axes."""
        if callable(out):
            out = out(chosen.result)
        out, native_order = output_array(out, chosen.result, self.dtype)
        if not native_order:
            raise TypeError(f"out: expected dtype {self.dtype}, got {out.dtype}")
        if chosen.shape == chosen.result:
            return out, out
        return out, np.empty(chosen.shape, self.dtype)

    @property
    def _is_v2(self) -> bool:
        return self._document.get("zarr_format") == 2

    def _read_boxes(
        self, begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any], out: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        out, native_order = output_array(out, shape_of_boxes(begin, count), self.dtype)
        if not native_order:
            raise TypeError(f"out: expected dtype {self.dtype}, got {out.dtype}")
        if self.ndim == 0 and out.size:  # one object, of one element
            out[...] = self[()]
            return out
        items, shape, axes = self._objects.place_boxes(begin, count)
        if items:
            self._read(items, out.reshape(shape), axes)
        return out

    def _read(
        self,
        items: list[ObjectSelection],
        out: np.ndarray[Any, Any],
        axes: Ints,
        patience: Patience | None = None,
    ) -> None:
        if is_any_buffered():
            self._flush(items)
        self._boxes.read(items, out, axes, patience)

    def _flush(self, items: Sequence[ObjectSelection]) -> None:
        flush_names(self._folder.store.lock_names([item.key for item in items]))

    @names_array(name_of_handle)
    @checked
    def plot(self, file: str | os.PathLike[str] | None = None) -> Any:
        """Draw which inner chunks exist and how large they are, over the elements of the array.

        The indexes of all shards are read; memory is bounded. The last two axes with more than one inner chunk are
        shown; the other axes are averaged. It needs matplotlib.

        Parameters
        ----------
        file : path-like, optional
            A file to save the picture, with the suffix .png or .svg.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            matplotlib is not installed.
        UnsupportedError
            The array is not sharded.
        ValueError
            The file has another suffix.
        ShardFormatError, ChecksumError
            The index of a shard is damaged.
        """
        from . import pictures  # here, because few programs draw

        return pictures.plot_map(
            map_of_array(self._objects, self._spec, self._options), repr(self._folder), file
        )

    def _repr_html_(self) -> str:

        rows = [
            ("shape", str(self.shape)),
            ("elements", f"{self.dtype}, fill value {self.fill_value}"),
            ("inner chunks" if self.shards else "chunks", str(self.chunks)),
            *([("shards", str(self.shards))] if self.shards else []),
        ]
        return facts_table(f"{type(self).__name__} {self._folder!r}", rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self._folder!r} shape={self.shape} dtype={self.dtype} chunks={self.chunks} "
            f"shards={self.shards}>"
        )


class _Indexed:
    """Selections of one kind of an array, in square brackets."""

    def __init__(self, array: Any, kind: Kind) -> None:
        self._array = array
        self._kind: Kind = kind

    def __getitem__(self, selection: Any) -> Any:
        return self._array.read(selection, kind=self._kind)

    def __setitem__(self, selection: Any, value: Any) -> None:
        self._array.write(selection, value, kind=self._kind)


def _filled(
    out: np.ndarray[Any, Any], target: np.ndarray[Any, Any], chosen: ArraySelection
) -> np.ndarray[Any, Any]:
    """Copy single elements to the array of the caller, which has several axes."""
    out[...] = target.reshape(chosen.result)
    return out


# Functions of numpy that write to their first argument: they would change the elements in memory, and store nothing.
_CHANGING = (np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal)
# Functions of numpy that use only shapes and data types.
_OF_OUTLINES = (
    *(np.shape, np.ndim, np.size, np.result_type, np.can_cast, np.iscomplexobj, np.isrealobj),
    *(np.empty_like, np.zeros_like, np.ones_like, np.full_like),
)


def _in_memory(arguments: Any, replace: Callable[[ArrayReader], np.ndarray[Any, Any]]) -> Any:
    """Return arguments of a function with arrays in place of handles."""
    if isinstance(arguments, ArrayReader):
        return replace(arguments)
    if isinstance(arguments, list | tuple):
        return type(arguments)(_in_memory(argument, replace) for argument in arguments)
    if isinstance(arguments, dict):
        return {name: _in_memory(value, replace) for name, value in arguments.items()}
    return arguments


def _outline(array: ArrayReader) -> np.ndarray[Any, Any]:
    """Return an array of the same shape and data type that takes no memory."""
    return np.broadcast_to(np.empty((), array.dtype), array.shape)


def _other_ways(error: UnsupportedError, document: Mapping[str, Any]) -> str:
    """Return how to read an array that is not native. A copy has the same data type, so it may not be native either."""
    name = error.context.get("data_type")
    if name in ML_NBYTES or name in COMPLEX_NBYTES:
        return "`shardcodec convert` moves its chunks without decoding them"
    if (refusal := refusal_of(document)) is not None:
        return f"this version of zarr cannot open it either ({refusal})"
    copy = "" if name is not None else ", or make a native copy with `shardcodec convert`"
    return f"open the array with zarr.open_array{copy}"


def _inner_shape(chain: Chain) -> Ints:
    """Return the shape of an inner chunk by axis of the array; transposes before the sharding permute the axes."""
    shape = [0] * len(chain.perm)
    for stored, axis in enumerate(chain.perm):
        shape[axis] = chain.inner.shape[stored]
    return tuple(shape)
