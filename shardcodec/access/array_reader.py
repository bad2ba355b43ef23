# array_reader.py - an array opened for reads, and what is stored of it chunk by chunk
# SPDX-License-Identifier: MIT
"""An array opened for reads, and what is stored of it chunk by chunk.

`open_array` and `ArrayReader`, a handle that only reads.

A call of a zarr array costs some hundred microseconds, and a data loader does not need all of its work. This handle prepares
as much as possible when it is opened: geometry, compiled codecs, options, locations of objects. A call is then some
arithmetic and one native call, for any number of boxes and shards.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import checked
from ..drawing.figures import ChunkMap
from ..errors import ShardError, UnsupportedError
from ..format.metadata import key_encoding, parse_document
from ..format.spec import ChainSpec, ShardSpec
from ..native import require
from ..option_sources import current_options
from ..options import Options, check
from ..storage import indexes as index_caches
from ..storage.indexes import IndexCache
from ..storage.kinds import readable_at
from ..storage.waiting import Patience
from .basic_selection import parse_selection
from .box_reader import ArrayObjects, BoxReader, Folder, folder_at
from .buffer import flush_names, is_any_buffered
from .index_scan import ShardGrid, Sizes, sizes_of
from .inner_chunks import compiled, output_array
from .read import ObjectSelection
from .regions import Boxes, as_coordinates, box_rows

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "ArrayReader",
    "map_of_array",
    "open_array",
]


# ---------------------------------------------------------------- the map of the inner chunks of a whole array
#
# Read the indexes of all shards of an array, batch by batch, into a `ChunkMap` for `ArrayReader.plot`.


def map_of_array(objects: ArrayObjects, spec: ChainSpec, options: Options) -> ChunkMap:
    """Return the map of the inner chunks of an array; `UnsupportedError` if it is not sharded, or its shards hide their inner chunks."""
    if spec.sharding is None:
        raise UnsupportedError(f"array {objects.folder!r}: expected shards, but it is not sharded")
    shard = ShardSpec.from_chain(spec)
    if not shard.supports_partial_access:
        raise UnsupportedError(
            f"array {objects.folder!r}: codecs after sharding_indexed hide the inner chunks"
        )
    grid = ShardGrid(shard, objects.shape, None)
    chunk_map = ChunkMap(objects.shape, grid.chunk_shape, grid.first, grid.shape, shard.shard_shape)
    for shards in grid.batches():
        keys = objects.folder.keys([objects.keys.key(coords) for coords in shards])
        for coords, sizes in zip(shards, _sizes(objects, keys, options), strict=True):
            place, block = grid.block(coords, sizes)
            chunk_map.add(tuple(axis.start for axis in place), block)
    return chunk_map


def _sizes(objects: ArrayObjects, keys: list[str], options: Options) -> Sizes:
    store, chain = objects.folder.store, objects.chain
    if is_any_buffered():
        flush_names(store.lock_names(keys))
    return sizes_of(store, chain, keys, options)[0]


# ---------------------------------------------------------------- `open_array` and `ArrayReader`: many small reads of one array

Ints = tuple[int, ...]


@checked
def open_array(
    path_or_store: Any,
    path: str = "",
    *,
    threads: int | None = None,
    index_cache: int | IndexCache | None = None,
    immutable: bool = False,
    clip: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> ArrayReader:
    """Open an array for many small reads, without a zarr array.

    Parameters
    ----------
    path_or_store : str, PathLike or zarr Store
        Folder, zip file, URL (``s3://bucket/a.zarr``) or store of the array, or of a hierarchy that contains it.
    path : str
        Path of the array in the folder or store.
    threads : int, optional
        Number of threads of one call, including the calling thread. Default: the option ``threads``.
    index_cache : int or IndexCache, optional
        Bytes of decoded shard indexes to keep, or a cache that several arrays share. Default: the option
        ``index_cache``, in the shared cache of the process.
    immutable : bool
        A promise that the array does not change while it is open; see `Options`.
    clip : bool
        Accept inner chunks that do not divide the shards; see `ShardSpec`. Such an array does not support `read_chunks`.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.

    Returns
    -------
    ArrayReader

    Raises
    ------
    FileNotFoundError
        The array has neither a ``zarr.json`` nor a ``.zarray``.
    SpecError
        This document is malformed, or it does not describe an array.
    UnsupportedError
        The engine does not support a codec, the data type or the grid; open the array with `zarr.open_array`, or make a
        native copy with ``shardcodec convert``, which needs a data type that is supported.
    TypeError, ValueError
        An argument is invalid.
    ImportError
        No package is installed that can open the URL.

    Notes
    -----
    Options are resolved here: a later ``with shardcodec.options(...)`` does not change the handle.

    Elements have native byte order, also if those of the stored array have the other one.
    """
    folder = folder_at(readable_at(path_or_store, storage_options), path)
    return ArrayReader(folder, threads, index_cache, immutable, clip)


class ArrayReader:
    """A read-only handle on an array; made by `open_array`.

    Several threads may use one handle. Unpickling opens the array again, with an empty cache. In a block of
    `shardcodec.group_writes`, a read first stores the buffered writes of the objects that it needs.

    Parameters
    ----------
    folder : Folder
        The objects of the array.
    threads, index_cache, immutable, clip
        As for `open_array`.
    document : mapping, optional
        Metadata in place of those that are stored.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array, in elements.
    ndim : int
        Number of axes.
    dtype : dtype
        Data type of the elements.
    chunks : tuple of int
        Shape of a chunk that is decoded at a time, in elements: an inner chunk if the array is sharded.
    shards : tuple of int or None
        Shape of a shard in elements; None if the array is not sharded.
    fill_value : scalar
        Value of elements that are not stored.

    Raises
    ------
    FileNotFoundError, SpecError, UnsupportedError
        As for `open_array`.
    """

    def __init__(
        self,
        folder: Folder,
        threads: int | None,
        index_cache: int | IndexCache | None,
        immutable: bool,
        clip: bool = False,
        document: Mapping[str, Any] | None = None,
    ) -> None:
        require()  # the error of a missing extension is not about the array
        self._arguments = (folder, threads, index_cache, immutable, clip, document)
        metadata = folder.metadata() if document is None else document
        try:
            layout = parse_document(metadata)
            if any(len(edges) != 1 for edges in layout.edges):
                raise UnsupportedError("expected chunks of one shape, got a rectilinear grid")
            spec = ChainSpec.from_metadata(metadata, clip=clip)
            keys = key_encoding(metadata)
            chain = compiled(spec)
        except UnsupportedError as error:
            raise UnsupportedError(f"{error.message}; {_other_ways(error)}", **error.context) from error
        self.shape: Ints = layout.shape
        self.ndim = len(layout.shape)
        self.dtype = spec.dtype
        self.fill_value = spec.fill_value
        self.shards: Ints | None = spec.shape if chain.is_shard else None
        self.chunks: Ints = _inner_shape(chain) if chain.is_shard else spec.shape
        self._chain = chain
        self._spec = spec
        self._extents: Ints = spec.shape
        choices = {"threads": threads, "immutable": immutable or None}
        if not isinstance(index_cache, IndexCache):
            choices["index_cache"] = index_cache
        self._options = current_options(argument=check(choices))
        if index_cache is None:
            index_cache = index_caches.shared(self._options.index_cache, self._options.open_files)
        elif not isinstance(index_cache, IndexCache):
            index_cache = IndexCache(self._options.index_cache, max_open_files=self._options.open_files)
        self._objects = ArrayObjects(folder, keys, layout.shape, chain, spec.dtype)
        self._boxes = BoxReader(self._objects, self._options, index_cache)

    # ---- reading

    def __getitem__(self, selection: Any) -> Any:
        """Read a part of the array.

        Parameters
        ----------
        selection
            Integers, slices with positive step, an ellipsis, or a tuple of them.

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
        if selection is None:  # numpy's new axis; `parse_selection` would select all
            selection = (None,)
        box, axes, shape = parse_selection(selection, self.shape)
        out = np.empty(shape, self.dtype)
        if 0 not in box.count:
            self._read(self._objects.items(box), out, axes, patience)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Read the whole array."""
        if copy is False:
            raise ValueError("copy: expected None or True for a stored array, got False")
        values: np.ndarray[Any, Any] = self[...]
        return values if dtype is None else values.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("expected an array with at least one axis: an array of rank 0 has no length")
        return self.shape[0]

    @checked
    def read_boxes(
        self, starts: Any, shape: Sequence[int], out: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """Read boxes of one shape at any positions in the array, in one native call.

        Each shard is opened once and each inner chunk is decoded once, also if several boxes need it.

        Parameters
        ----------
        starts : array_like of int, shape (n, ndim)
            First element of each box; boxes may overlap.
        shape : sequence of int
            Shape of every box, in elements.
        out : ndarray, shape (n, *shape), optional
            The array to read into, with the dtype of the array; any strides. Its content is unspecified after an error.

        Returns
        -------
        ndarray, shape (n, *shape)
            `out`, or a new array in C order.

        Raises
        ------
        IndexError
            A box reaches outside the array; nothing was read.
        TypeError, ValueError
            `starts`, `shape` or `out` has another type or shape.
        ShardFormatError, ChecksumError, CodecError
            An object is damaged; ``.shard`` and ``.chunk_coords`` say where.
        """
        count = np.array([int(extent) for extent in shape], dtype=np.int64)
        begin = as_coordinates(starts, self.ndim, "starts")
        if len(count) != self.ndim or (count < 0).any():
            raise ValueError(f"shape: expected {self.ndim} numbers that are not negative, got {tuple(shape)}")
        limit = np.array(self.shape, dtype=np.int64) - count
        wrong = ((begin < 0) | (begin > limit)).any(axis=1)
        if wrong.any():
            n = int(wrong.argmax())
            raise IndexError(
                f"starts: expected boxes inside the array of shape {self.shape}, but box {n} at "
                f"{tuple(begin[n].tolist())} of shape {tuple(count.tolist())} reaches outside"
            )
        return self._read_boxes(begin, count, out)

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
        if self._chain.stage is not None:
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

    # ---- from the array to its objects

    def _read_boxes(
        self, begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any], out: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        shape = (len(begin), *count.tolist())
        out, native_order = output_array(out, shape, self.dtype)
        if not native_order:
            raise TypeError(f"out: expected dtype {self.dtype}, got {out.dtype}")
        if 0 in shape:
            return out
        if self.ndim == 0:  # one object, of one element
            out[...] = self[()]
            return out
        coords, rows = box_rows(begin, count, np.array(self._extents, dtype=np.int64))
        order = np.lexsort(coords.T[::-1])
        coords, rows = coords[order], rows[order]
        first = np.flatnonzero(np.r_[True, (coords[1:] != coords[:-1]).any(axis=1)]).tolist()
        items = [
            self._objects.item(tuple(coords[a].tolist()), Boxes(rows[a:b]))
            for a, b in itertools.pairwise([*first, len(rows)])
        ]
        self._read(items, out, tuple(range(1, self.ndim + 1)))
        return out

    def _read(
        self,
        items: list[ObjectSelection],
        out: np.ndarray[Any, Any],
        axes: Ints,
        patience: Patience | None = None,
    ) -> None:
        if is_any_buffered():
            store = self._objects.folder.store
            flush_names(store.lock_names([item.key for item in items]))
        self._boxes.read(items, out, axes, patience)

    # ---- pictures

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
            map_of_array(self._objects, self._spec, self._options), repr(self._objects.folder), file
        )

    def _repr_html_(self) -> str:
        from ..drawing.html import facts_table  # here, because few programs draw

        rows = [
            ("shape", str(self.shape)),
            ("elements", f"{self.dtype}, fill value {self.fill_value}"),
            ("inner chunks" if self.shards else "chunks", str(self.chunks)),
            *([("shards", str(self.shards))] if self.shards else []),
        ]
        return facts_table(f"ArrayReader {self._objects.folder!r}", rows)

    # ---- the handle

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayReader, self._arguments

    def __repr__(self) -> str:
        return (
            f"<ArrayReader {self._objects.folder!r} shape={self.shape} dtype={self.dtype} chunks={self.chunks} "
            f"shards={self.shards}>"
        )


def _other_ways(error: UnsupportedError) -> str:
    """Return how to read an array that is not native. A copy has the same data type, so it may not be native either."""
    copy = "" if "data_type" in error.context else ", or make a native copy with `shardcodec convert`"
    return f"open the array with zarr.open_array{copy}"


def _inner_shape(chain: Chain) -> Ints:
    """Return the shape of an inner chunk by axis of the array; transposes before the sharding permute the axes."""
    shape = [0] * len(chain.perm)
    for stored, axis in enumerate(chain.perm):
        shape[axis] = chain.inner.shape[stored]
    return tuple(shape)
