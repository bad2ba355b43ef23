# array_reader.py - a lean handle on an array, for who reads thousands of small boxes
# SPDX-License-Identifier: MIT
"""`open_array` and what it returns.

A zarr array does much that a data loader has no use for, and costs some hundred microseconds per call. This handle
only reads. What can be settled is settled when it is opened: geometry, compiled codecs, options, where objects are. A
call then is a little arithmetic and one native call, whatever the number of boxes and shards.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import cancel, native
from ..errors import ShardError, SpecError, UnsupportedError
from ..format.chain_spec import ChainSpec
from ..format.keys import KeyEncoding
from ..format.metadata import parse_array
from ..options import Options, check, resolve
from ..storage import index_cache as index_caches
from ..storage.files import check_name, open_file
from ..storage.index_cache import IndexCache
from ..storage.retry import Patience
from . import chunk_overlay
from .chunk_codec import compiled, destination
from .encode_decode import parse_selection
from .object_regions import axis_parts, box_rows
from .read import MAX_GAP_NBYTES, ReadItem, read, slice_reader
from .regions import Box, Boxes, as_void, whole

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["ArrayReader", "Folder", "Objects", "open_array", "register_adapter"]

Ints = tuple[int, ...]


class Objects(Protocol):
    """Where the objects of an array are. Picklable."""

    def get(self, key: str) -> bytes | None:
        """Return an object as a whole; None when there is none."""

    def source(self, key: str) -> Any:
        """Return what the engine reads: a path, a buffer, None for no object."""

    def names(self, keys: Sequence[str]) -> list[str]:
        """Name objects for locks, and for what is gathered of them; as `ShardObject.identity`."""

    @property
    def fetches(self) -> bool:
        """Whether the engine cannot reach the objects, so that `fetch` has to."""

    def fetch(
        self, items: Sequence[ReadItem], out: np.ndarray[Any, Any], axes: Ints, options: Options
    ) -> None:
        """Read what a plan asks for."""


class Folder:
    """Objects that are files below a folder."""

    fetches = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._prefix = os.path.abspath(os.fspath(path)) + "/"

    def get(self, key: str) -> bytes | None:
        """Return a file's bytes."""
        if (found := open_file(self._prefix + key)) is None:
            return None
        with found as file:
            return file.read()

    def source(self, key: str) -> str:
        """Return a file's path."""
        return self._prefix + key

    def names(self, keys: Sequence[str]) -> list[str]:
        """Return the paths behind all links."""
        return [os.path.realpath(self._prefix + key) for key in keys]

    def fetch(
        self, items: Sequence[ReadItem], out: np.ndarray[Any, Any], axes: Ints, options: Options
    ) -> None:
        """Never needed."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._prefix[:-1]


# From a store of some library to its objects below a path; None where it is none of its stores.
Adapter = Callable[[Any, str], Objects | None]

_adapters: list[Adapter] = []


def register_adapter(adapter: Adapter) -> None:
    """Let `open_array` take the stores of a library."""
    _adapters.append(adapter)


def open_array(
    path_or_store: Any,
    path: str = "",
    *,
    threads: int | None = None,
    index_cache: int | IndexCache | None = None,
    immutable: bool = False,
    clip: bool = False,
) -> ArrayReader:
    """Open a Zarr v3 array for reading, without a zarr array around it.

    Parameters
    ----------
    path_or_store : str, PathLike or zarr Store
        Folder of the array, or of a hierarchy that it is in.
    path : str
        Of the array within.
    threads : int, optional
        Threads of one call, the calling one included. Default: as for every call, see `Options`.
    index_cache : int or IndexCache, optional
        Bytes of decoded shard indexes to keep, or a cache that several arrays share. Default: the option
        ``index_cache``, in the cache of the process.
    immutable : bool
        The array does not change while it is open; see `Options`.
    clip : bool
        Take inner chunks that do not divide the shards; see `ShardSpec`. Such an array has no `read_chunks`.

    Returns
    -------
    ArrayReader

    Raises
    ------
    FileNotFoundError
        There is no ``zarr.json``.
    SpecError
        It is malformed, or no array's.
    UnsupportedError
        Codecs, a data type or a grid that the engine does not know; open the array with zarr.

    Notes
    -----
    Options are settled here: a later ``with shardcodec.options(...)`` does not change the handle.
    """
    return ArrayReader(objects_of(path_or_store, path), threads, index_cache, immutable, clip)


def objects_of(path_or_store: Any, path: str) -> Objects:
    """Find out where an array is."""
    path = check_name(path.strip("/"))
    if isinstance(path_or_store, str) and "://" in path_or_store:
        raise ValueError(f"{path_or_store!r} is a URL: open a zarr store for it")
    if isinstance(path_or_store, str | os.PathLike):
        return Folder(os.path.join(os.fspath(path_or_store), path) if path else path_or_store)
    for adapter in _adapters:
        if (found := adapter(path_or_store, path)) is not None:
            return found
    raise TypeError(f"expected a path or a zarr store, got {type(path_or_store).__name__}")


class ArrayReader:
    """An array open for reading; made by `open_array`.

    In a block of `shardcodec.group_writes` what was gathered of the objects that a call reads is stored first.

    May be used by many threads at once. It can be pickled: whoever unpickles it opens the array again, with an empty
    cache.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype
    chunks : tuple of int
        Shape of what is decoded at a time: an inner chunk of a sharded array.
    shards : tuple of int or None
        Shape of an object of a sharded array.
    fill_value : scalar
    """

    def __init__(
        self,
        objects: Objects,
        threads: int | None,
        index_cache: int | IndexCache | None,
        immutable: bool,
        clip: bool = False,
    ) -> None:
        self._arguments = (objects, threads, index_cache, immutable, clip)
        stored = objects.get("zarr.json")
        if stored is None:
            raise FileNotFoundError(f"there is no zarr.json in {objects!r}")
        try:
            metadata = json.loads(stored)
        except ValueError as error:
            raise SpecError(f"zarr.json is no JSON: {error}", path="") from error
        layout = parse_array(metadata)
        if any(len(edges) != 1 for edges in layout.edges):
            raise UnsupportedError("chunks of different shapes: open the array with zarr")
        spec = ChainSpec.from_metadata(metadata, clip=clip)
        chain = compiled(spec)
        self.shape: Ints = layout.shape
        self.ndim = len(layout.shape)
        self.dtype = spec.dtype
        self.fill_value = spec.fill_value
        self.shards: Ints | None = spec.shape if chain.is_shard else None
        self.chunks: Ints = _logical(chain) if chain.is_shard else spec.shape
        self._objects = objects
        self._keys = KeyEncoding.from_metadata(metadata)
        self._chain = chain
        self._extents: Ints = spec.shape
        choices = {"threads": threads, "immutable": immutable or None}
        if not isinstance(index_cache, IndexCache):
            choices["index_cache"] = index_cache
        self._options = resolve(argument=check(choices))
        if index_cache is None:
            index_cache = index_caches.shared(self._options.index_cache, self._options.open_files)
        elif not isinstance(index_cache, IndexCache):
            index_cache = IndexCache(self._options.index_cache, max_open_files=self._options.open_files)
        self._engine_options = {
            "n_threads": self._options.threads,
            "max_gap_nbytes": MAX_GAP_NBYTES,
            "allow_in_index": self._options.allow_in_index,
            "cache": None if index_cache is None else index_cache.native,
            "immutable": self._options.immutable,
        }
        self._axes = tuple(range(self.ndim))
        self._slices = self._slice_reader()

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
            A new one, in C order; of rank 0 when the selection consists of integers.

        Raises
        ------
        IndexError
            The selection is not of this kind, or leaves the array.
        ShardFormatError, ChecksumError, CodecError
            An object is damaged; the error says which.
        """
        patience = None
        if self._slices is not None and not chunk_overlay.is_any():
            try:
                if (part := self._slices.get(selection)) is not None:
                    return part
            except ShardError:
                pass  # below it is said what is wrong, if it still is
            except OSError as error:
                patience = Patience.after(error)
        if selection is None:  # as numpy writes a new axis
            selection = (None,)
        box, axes, shape = parse_selection(selection, self.shape)
        out = np.empty(shape, self.dtype)
        if 0 not in box.count:
            self._read([(coords, part) for coords, part in self._cut(box)], out, axes, patience)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Read all of the array."""
        if copy is False:
            raise ValueError("an array that is stored cannot be had without a copy")
        values: np.ndarray[Any, Any] = self[...]
        return values if dtype is None else values.astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of rank 0 has no length")
        return self.shape[0]

    def read_boxes(
        self, starts: Any, shape: Sequence[int], out: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """Read boxes of one shape from anywhere in the array, in one native call.

        Each shard is opened once and each inner chunk decoded once, however many boxes want something of it.

        Parameters
        ----------
        starts : array_like of int, shape (n, ndim)
            First element of each box; boxes may overlap.
        shape : sequence of int
            Of every box.
        out : ndarray, shape (n, *shape), optional
            Destination, of the array's dtype; any strides.

        Returns
        -------
        ndarray, shape (n, *shape)
            `out`, or a new array in C order.

        Raises
        ------
        IndexError
            A box reaches outside the array; nothing was read.
        ShardFormatError, ChecksumError, CodecError
            An object is damaged. `out` is unspecified then.
        """
        count = np.array([int(extent) for extent in shape], dtype=np.int64)
        begin = _coordinates(starts, self.ndim, "starts")
        if len(count) != self.ndim or (count < 0).any():
            raise ValueError(f"boxes of shape {tuple(shape)} in an array of rank {self.ndim}")
        limit = np.array(self.shape, dtype=np.int64) - count
        wrong = ((begin < 0) | (begin > limit)).any(axis=1)
        if wrong.any():
            n = int(wrong.argmax())
            raise IndexError(
                f"box {n} from {tuple(begin[n].tolist())} of {tuple(count.tolist())} reaches outside {self.shape}"
            )
        return self._read_boxes(begin, count, out)

    def read_chunks(self, coords: Any, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Read whole chunks (inner chunks of a sharded array), in one native call.

        Parameters
        ----------
        coords : array_like of int, shape (n, ndim)
            Grid positions over the whole array, counted in `chunks`; repeats are allowed.
        out : ndarray, shape (n, *chunks), optional
            Destination, of the array's dtype; any strides.

        Returns
        -------
        ndarray, shape (n, *chunks)
            Cells beyond the edge of the array hold what is stored there.

        Raises
        ------
        IndexError
            A position lies outside the grid; nothing was read.
        UnsupportedError
            Inner chunks are clipped, so their grid begins anew with each shard.
        ShardFormatError, ChecksumError, CodecError
            An object is damaged. `out` is unspecified then.
        """
        if self._chain.stage is not None:
            raise UnsupportedError(
                "inner chunks are clipped to the shards: there is no grid of them over the array"
            )
        at = _coordinates(coords, self.ndim, "coords")
        count = np.array(self.chunks, dtype=np.int64)
        grid = -(-np.array(self.shape, dtype=np.int64) // count)
        wrong = ((at < 0) | (at >= grid)).any(axis=1)
        if wrong.any():
            n = int(wrong.argmax())
            raise IndexError(f"chunk {tuple(at[n].tolist())} is not in a grid of {tuple(grid.tolist())}")
        return self._read_boxes(at * count, count, out)

    # ---- from the array to its objects

    def _slice_reader(self) -> Any:
        """What serves slices within one file, in one native call; None where objects are no files."""
        if not isinstance(self._objects, Folder) or not self.ndim:
            return None
        return slice_reader(
            self._chain,
            self.dtype,
            self._options,
            shape=self.shape,
            folder=self._objects.source(self._keys.prefix),
            separator=self._keys.separator,
            empty=np.empty,
            cache=self._engine_options["cache"],
        )

    def _cut(self, box: Box) -> Iterator[tuple[Ints, Box]]:
        """The objects under a box, and of each its own part."""
        steps = box.step or (1,) * self.ndim
        along = [
            axis_parts(*of_axis) for of_axis in zip(box.start, box.count, steps, self._extents, strict=True)
        ]
        for parts in itertools.product(*along):
            if not parts:
                yield (), whole(())
                continue
            coords, start, count, at = zip(*parts, strict=True)
            yield coords, Box(start, count, box.step, at)

    def _read_boxes(
        self, begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any], out: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        shape = (len(begin), *count.tolist())
        out, native_order = destination(out, shape, self.dtype)
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
        parts = [
            (tuple(coords[a].tolist()), Boxes(rows[a:b])) for a, b in itertools.pairwise([*first, len(rows)])
        ]
        self._read(parts, out, tuple(range(1, self.ndim + 1)))
        return out

    def _read(
        self,
        parts: list[tuple[Ints, Any]],
        out: np.ndarray[Any, Any],
        axes: Ints,
        patience: Patience | None = None,
    ) -> None:
        objects, chain, key = self._objects, self._chain, self._keys.key
        if chunk_overlay.is_any():
            chunk_overlay.settle_named(objects.names([key(coords) for coords, _ in parts]))
        if objects.fetches:
            items = [ReadItem(chain, None, part, key(coords)) for coords, part in parts]
            objects.fetch(items, out, axes, self._options)
            return
        if chain.stage is not None:
            items = [_item(chain, objects.source(key(at)), part, key(at)) for at, part in parts]
            read(items, out, axes, self._options)
            return
        plan = [(chain, objects.source(key(coords)), part) for coords, part in parts]
        if patience is None:
            try:
                native.load().read(plan, as_void(out), axes, cancel=cancel.current(), **self._engine_options)
                return
            except ShardError:
                pass  # once more: it says what is wrong, if it still is. A file may have been changed meanwhile
            except OSError as error:
                patience = Patience.after(error)
        items = [
            _item(chain, source, part, key(at))
            for (at, part), (_, source, _) in zip(parts, plan, strict=True)
        ]
        read(items, out, axes, self._options, patience)

    # ---- the handle

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayReader, self._arguments

    def __repr__(self) -> str:
        return (
            f"<ArrayReader {self._objects!r} shape={self.shape} dtype={self.dtype} chunks={self.chunks} "
            f"shards={self.shards}>"
        )


def _item(chain: Chain, source: Any, part: Any, key: str) -> ReadItem:
    """A part of an object. Errors name a file by its path: whoever reads many arrays must know which one it is."""
    return ReadItem(chain, source, part, source if isinstance(source, str) else key)


def _logical(chain: Chain) -> Ints:
    """The inner chunks' shape by axis of the array; transposes before the sharding permute it."""
    shape = [0] * len(chain.perm)
    for stored, axis in enumerate(chain.perm):
        shape[axis] = chain.inner.shape[stored]
    return tuple(shape)


def _coordinates(values: Any, ndim: int, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    numbers = np.asarray(values)
    if numbers.size == 0 and numbers.dtype.kind == "f":  # an empty list
        numbers = numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {numbers.dtype}")
    if numbers.shape != (len(numbers) if numbers.ndim else -1, ndim):
        if numbers.size or numbers.ndim > 2:
            raise ValueError(f"{name} must be of shape (n, {ndim}), not {numbers.shape}")
        numbers = numbers.reshape(0, ndim)
    return numbers.astype(np.int64)
