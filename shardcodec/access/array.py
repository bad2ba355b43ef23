# array.py - an array opened without a zarr array
# SPDX-License-Identifier: MIT
"""`open_array`, `create_array` and `Array`: a handle that reads and writes, without a zarr array."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np

from ..arguments import checked
from ..compat import default_spec, spec_with
from ..errors import ShardError, UnsupportedError, names_array
from ..format.checks import as_int_tuple
from ..storage.event_loop import from_zarrs_loop
from ..storage.indexes import IndexCache
from ..storage.kinds import at_url, readable_at
from ..storage.replace import forget
from ..storage.runner import ON_LOOP
from ..storage.url_stores import target_name
from .array_reader import ArrayReader, Kind, Shapes
from .array_request import Request
from .box_reader import ArrayObjects, BoxReader, Folder, folder_at, name_of_handle
from .buffer import flush_folder, store_elements, store_elements_blocking
from .documents import Attributes, StoredDocument, delete_objects, type_for_zarr
from .read import ObjectSelection
from .split_by_object import as_boxes, as_coordinates, check_boxes
from .text_chunks import as_texts

if TYPE_CHECKING:
    from ..options import Options
    from .buffer.array_guard import ArrayGuard
    from .prefetch import Prefetch

__all__ = [
    "Array",
    "create_array",
    "document_of",
    "grow",
    "objects_of",
    "open_array",
    "reopened",
    "with_document",
]

Mode = Literal["r", "r+"]
Ints = tuple[int, ...]


class ArrayKeywords(TypedDict, total=False):
    """The other keywords of `create_array`: those of the newest `zarr.create_array`, for type checkers. zarr checks the values."""

    shape: Any
    dtype: Any
    chunks: Any
    shards: Any
    filters: Any
    compressors: Any
    serializer: Any
    fill_value: Any
    order: Literal["C", "F"] | None
    zarr_format: Literal[2, 3] | None
    attributes: Mapping[str, Any] | None
    chunk_key_encoding: Any
    dimension_names: Iterable[str | None] | None
    overwrite: bool
    config: Any
    write_data: bool


@names_array(target_name)
@checked
def open_array(
    store: Any,
    path: str = "",
    *,
    mode: Mode = "r",
    threads: int | None = None,
    index_cache: int | str | IndexCache | None = None,
    immutable: bool = False,
    clip: bool = False,
    cache: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Array:
    """Open an array for many small reads and writes, without a zarr array.

    Parameters
    ----------
    store : str, PathLike or zarr Store
        Folder, zip file, URL (``s3://bucket/a.zarr``) or store of the array, or of a hierarchy that contains it.
    path : str
        Path of the array in the folder or store.
    mode : {"r", "r+"}
        Read, or read and write. Writes take the same locks, strategies and blocks of `group_writes` as those of zarr arrays
        with shardcodec's pipeline.
    threads : int, optional
        Number of threads of one call, including the calling thread. Default: the option ``threads``.
    index_cache : int, str or IndexCache, optional
        Bytes of decoded shard indexes to keep, such as ``"64MiB"``, or a cache that several arrays share. Default: the option
        ``index_cache``, in the shared cache of the process.
    immutable : bool
        A promise that the array does not change while it is open; see `shardcodec.options`. Only with mode "r".
    clip : bool
        Accept inner chunks that do not divide the shards; see `ShardSpec`. Such an array does not support `read_chunks`.
    cache : int or str, optional
        Bytes of decoded inner chunks to keep, such as ``"2GiB"``, for reads that want the same chunks again. Default: the
        option ``cache``. If `index_cache` is an `IndexCache`, it has a bound of its own for them.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.

    Returns
    -------
    Array

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
        An argument is invalid, or the store is read-only and the mode is "r+".
    ImportError
        No package is installed that can open the URL.

    Notes
    -----
    Options are resolved here: a later ``with shardcodec.options(...)`` does not change the handle.

    Elements have native byte order, also if those of the stored array have the other one.

    Examples
    --------
    >>> array = shardcodec.open_array("a.zarr", mode="r+")
    >>> array[0, :3] = 7
    >>> array.read_boxes([(0, 0), (2, 3)], (1, 2)).tolist()
    [[[7, 7]], [[15, 16]]]
    """
    folder = folder_at(readable_at(store, storage_options), path)
    try:
        return Array(folder, threads, index_cache, immutable, clip, cache=cache, mode=mode)
    except FileNotFoundError as error:
        if path in ("r", "r+", "a", "w", "w-"):
            text = f"{error}; the second argument is the path of an array in the first: for the mode, write mode={path!r}"
            raise FileNotFoundError(text) from error
        raise


@names_array(target_name)
@checked
def create_array(
    store: Any,
    path: str = "",
    *,
    data: Any = None,
    threads: int | None = None,
    index_cache: int | str | IndexCache | None = None,
    cache: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **keywords: Unpack[ArrayKeywords],
) -> Array:
    """Create an array with `zarr.create_array` and open it for reads and writes.

    Parameters
    ----------
    store : str, PathLike or zarr Store
        Folder, URL or store.
    path : str
        Path of the array in the folder or store; zarr calls it `name`.
    data : array_like, optional
        The elements; then `shape` and `dtype` are those of the data.
    threads, index_cache, cache
        As for `open_array`.
    storage_options : mapping, optional
        Only with a URL, as for `open_array`.
    **keywords
        The other arguments of `zarr.create_array`: `shape`, `dtype`, `chunks`, `shards`, `compressors`, `fill_value`,
        `attributes`, `dimension_names`, `zarr_format`, `overwrite`, ...

    Returns
    -------
    Array
        Its mode is "r+".

    Raises
    ------
    UnsupportedError
        The engine does not support such an array. Nothing has been stored.
    TypeError, ValueError
        An argument is invalid, as `zarr.create_array` raises.
    ContainsArrayError, ContainsGroupError
        There is an array or a group at this path, and `overwrite` is not set.

    Examples
    --------
    >>> array = shardcodec.create_array("new.zarr", shape=(4, 6), shards=(4, 6), chunks=(2, 3), dtype="i4")
    >>> array[1:3, 2:4] = 7
    >>> array[1].tolist()
    [0, 0, 7, 7, 0, 0]
    """
    import zarr

    given: dict[str, Any] = {**keywords}
    values = None if data is None else np.asarray(data)
    if values is not None:
        for keyword, value in (("shape", values.shape), ("dtype", values.dtype)):
            if given.setdefault(keyword, value) != value:
                raise ValueError(f"{keyword}: expected {value}, that of `data`, got {given[keyword]}")
    if "dtype" in given:
        given["dtype"] = type_for_zarr(given["dtype"])
    trial = zarr.create_array({}, **{**given, "overwrite": False})
    document = trial.metadata.to_dict()
    place = at_url(store, storage_options)
    try:
        Array(folder_at(trial.store, ""), threads, index_cache, False, document=document)
    except ShardError as error:  # this is not supported, and nothing has been stored
        raise error.with_context(array=repr(folder_at(place, path))) from error
    made = zarr.create_array(place, name=path or None, **given)
    folder = folder_at(made.store_path, "")
    if given.get("overwrite"):
        forget(folder.store, [], prefix=folder.prefix)
    array = Array(
        folder, threads, index_cache, False, cache=cache, mode="r+", config=trial.async_array.config
    )
    if values is not None:
        array[...] = values
    return array


class Array(ArrayReader):
    """A handle on an array; made by `open_array` and `create_array`.

    It takes the place of a `zarr.Array` in ``dask.array.from_array``, ``dask.array.store``, data loaders and numpy functions.
    Several threads may use one handle. Unpickling opens the array again, with an empty cache. In a block of
    `shardcodec.group_writes`, a read first stores the buffered writes of the objects that it needs.

    Parameters
    ----------
    folder : Folder
        The objects of the array.
    threads, index_cache, immutable, clip, cache, mode
        As for `open_array`.
    document : mapping, optional
        Metadata in place of those that are stored.
    config : ArrayConfig, optional
        zarr's configuration of the array; by default that of zarr's settings. ``write_empty_chunks`` of it is used.

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
    mode : {"r", "r+"}
        Whether the handle writes.

    Raises
    ------
    FileNotFoundError, SpecError, UnsupportedError
        As for `open_array`.

    Examples
    --------
    >>> array = shardcodec.open_array("a.zarr", mode="r+")
    >>> array.shape, array.chunks, array.shards
    ((4, 6), (2, 3), (4, 6))
    >>> array[1:3, 2:4] = 0
    >>> array.write_boxes([(0, 0), (3, 4)], np.full((2, 1, 2), 9, "int32"))
    >>> array.oindex[[0, 3], 4:].tolist()
    [[4, 5], [9, 9]]
    >>> array.append(np.ones((2, 6), "int32"))
    (6, 6)
    >>> array.attrs["unit"] = "m"
    >>> dict(shardcodec.open_array("a.zarr").attrs)
    {'unit': 'm'}
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
        mode: Mode = "r",
        config: Any = None,
    ) -> None:
        if mode == "r+" and immutable:
            raise ValueError("immutable: expected False with mode='r+', because the handle changes the array")
        if mode == "r+" and folder.base is not None:
            raise ValueError(f"array {folder!r}: expected mode='r' for a view, which is read-only")
        if mode == "r+":
            folder.store.check_writable()
        super().__init__(folder, threads, index_cache, immutable, clip, document, cache)
        self._arguments = (*self._arguments, mode, config)
        self.mode = mode
        self._array_spec = default_spec() if config is None else spec_with(config)

    def _prepare(self, document: Mapping[str, Any]) -> None:
        super()._prepare(document)
        self._guard: ArrayGuard | None = None

    @property
    def attrs(self) -> Attributes:
        """The attributes, read from the store now; with mode "r+" each change is stored at once."""
        options = self._options if self.mode == "r+" else None
        return Attributes(self._folder, is_v2=self._is_v2, options=options)

    @names_array(name_of_handle)
    def prefetch(self, starts: Any, shape: Shapes) -> Prefetch:
        """Read ahead the inner chunks that boxes need, in another thread, into the cache of the option ``cache``.

        Experimental: it may change in a minor version (``docs/versions.md``).

        When the cache is full, inner chunks that were read ahead and not used yet take at most a tenth of it. Reads of remote objects
        without entity tags fill no cache, unless they are ``immutable``.

        Parameters
        ----------
        starts, shape
            The boxes, as for `read_boxes`.

        Returns
        -------
        Prefetch
            `wait` waits until all have been read, and raises their errors; `close` ends it.

        Raises
        ------
        IndexError
            A box reaches outside the array.
        TypeError, ValueError
            `starts` or `shape` has another type or shape, or the array has no cache.
        UnsupportedError
            Inner chunks are clipped, so the array has no regular grid of them.

        Examples
        --------
        >>> array = shardcodec.open_array("a.zarr", cache="1MiB")
        >>> with array.prefetch([(0, 0)], (2, 2)) as ahead:
        ...     ahead.wait()
        >>> array.read_boxes([(0, 0)], (2, 2)).shape
        (1, 2, 2)
        """
        from .prefetch import Prefetch, chunks_of_boxes  # here, because few programs read ahead

        cache = self._index_cache
        if cache is None or not cache.info()["chunks"]["max_nbytes"]:
            raise ValueError("cache: expected an array that was opened with the option `cache`, got 0 bytes")
        if self._spec.is_clipped:
            raise UnsupportedError(
                "expected a regular grid of inner chunks, but they are clipped to their shards"
            )
        begin, count = as_boxes(starts, shape, self.shape)
        return Prefetch(self, chunks_of_boxes(begin, count, self.chunks))

    def __setitem__(self, selection: Any, value: Any) -> None:
        """Store a value in a part of the array; see `write`."""
        self.write(selection, value)

    def write(self, selection: Any, value: Any, *, kind: Kind = "brackets") -> None:
        """Store a value in a part of the array. No other element changes, whatever other writers do meanwhile.

        Parameters
        ----------
        selection
            The elements, as for `read`. If it names an element twice, the last value is stored.
        value : array_like
            A value for each element, or values that numpy can broadcast to the shape of the selection.
        kind : {"brackets", "basic", "orthogonal", "coordinate", "mask", "block"}
            As for `read`.

        Raises
        ------
        IndexError
            The selection is of another kind, or it lies outside the array.
        TypeError, ValueError
            The values have another shape or type, or the handle is read-only. Nothing was stored.
        ShardFormatError, ChecksumError, CodecError
            An object is damaged where it is needed; it is unchanged, other objects may be stored.
        LockError
            Other writers changed an object during each attempt for ``SHARDCODEC_LOCK_TIMEOUT``.
        """
        request = self._request(kind, selection, value)
        if request is not None:
            store_elements_blocking(request, self._options, self._layout_guard)

    async def write_async(self, selection: Any, value: Any, *, kind: Kind = "brackets") -> None:
        """Store a value in a part of the array from a coroutine on any event loop; many calls may wait at the same time.

        Parameters
        ----------
        selection, value, kind
            As for `write`.

        Raises
        ------
        IndexError, TypeError, ValueError, ShardFormatError, ChecksumError, CodecError, LockError
            As `write`.
        """
        request = self._request(kind, selection, value)
        if request is not None:
            work = store_elements(request, self._options, self._layout_guard, ON_LOOP)
            await (work if self._folder.store.is_near else from_zarrs_loop(work))

    @names_array(name_of_handle)
    @checked
    def write_boxes(self, starts: Any, values: Any) -> None:
        """Store boxes of one shape at any positions in the array, in one native call.

        Each object is replaced once. If boxes overlap, the values of the last one are stored.

        Parameters
        ----------
        starts : array_like of int, shape (n, ndim)
            First element of each box.
        values : array_like, shape (n, *shape)
            The elements of the boxes.

        Raises
        ------
        IndexError
            A box reaches outside the array; nothing was stored.
        TypeError, ValueError, ShardFormatError, ChecksumError, CodecError, LockError
            As for `write`.
        """
        self._check_writable()
        begin = as_coordinates(starts, self.ndim, "starts")
        values = self._as_elements(values)
        if values.ndim != self.ndim + 1 or len(values) != len(begin):
            raise ValueError(
                f"values: expected {len(begin)} boxes with {self.ndim} axes each, got shape {values.shape}"
            )
        count = np.array(values.shape[1:], dtype=np.int64)
        check_boxes(begin, count, self.shape)
        if values.size == 0:
            return
        if self.ndim == 0:
            self[()] = values[-1]
            return
        request = self._request_of(
            self._objects.items_of_boxes(begin, count), tuple(range(1, self.ndim + 1)), values
        )
        store_elements_blocking(request, self._options, self._layout_guard)

    @names_array(name_of_handle)
    def resize(self, shape: Sequence[int]) -> None:
        """Change the shape of the array. Objects outside of the new shape are deleted.

        Parameters
        ----------
        shape : sequence of int
            The new shape, in elements.

        Raises
        ------
        ValueError
            The shape has another number of axes or a negative extent, or the handle is read-only.
        LockError
            As for `write`.

        Notes
        -----
        As with zarr, elements of objects that are partly inside of the new shape stay stored, and appear again if the array
        grows. Consolidated metadata of a group above the array keep the old shape.
        """
        self._check_writable()
        new = tuple(int(extent) for extent in shape)
        if len(new) != self.ndim or any(extent < 0 for extent in new):
            raise ValueError(f"shape: expected {self.ndim} numbers that are not negative, got {tuple(shape)}")
        self.refresh()
        if any(extent < old for extent, old in zip(new, self.shape, strict=True)):
            # a buffered write of a deleted object would appear again if the array grew
            flush_folder(self._folder.store, self._folder.prefix)
            delete_objects(self._folder, self._names_outside(new), self._options)
        self._change_shape(lambda old: new)

    @names_array(name_of_handle)
    def append(self, values: Any, axis: int = 0) -> Ints:
        """Make the array longer along an axis and store values there.

        Several processes may append at the same time: each gets its own place.

        Parameters
        ----------
        values : array_like
            The elements; their shape is that of the array except along `axis`.
        axis : int
            The axis that grows.

        Returns
        -------
        tuple of int
            The new shape. The values are the last ones along `axis` of an array of this shape.

        Raises
        ------
        ValueError
            The shape of the values does not fit, or the handle is read-only. Nothing was stored.
        ShardFormatError, ChecksumError, CodecError, LockError
            As for `write`; the array has grown, and the new elements may have the fill value.
        """
        self._check_writable()
        if not -self.ndim <= axis < self.ndim:
            raise ValueError(f"axis: expected one of the {self.ndim} axes of the array, got {axis}")
        axis %= self.ndim
        added = self._as_elements(values)  # an error must come before the array grows

        def grown(old: Ints) -> Ints:
            expected = (*old[:axis], added.shape[axis] if added.ndim == len(old) else -1, *old[axis + 1 :])
            if added.shape != expected:
                raise ValueError(f"values: expected shape {old} except along axis {axis}, got {added.shape}")
            return (*old[:axis], old[axis] + added.shape[axis], *old[axis + 1 :])

        shape = self._change_shape(grown)
        place = [slice(0, extent) for extent in shape]
        place[axis] = slice(shape[axis] - added.shape[axis], shape[axis])
        self[tuple(place)] = added
        return shape

    def _check_writable(self) -> None:
        if self.mode != "r+":
            raise ValueError(f"array {self._folder!r}: expected mode='r+' for a write, got mode='r'")

    @names_array(name_of_handle)
    def _request(self, kind: str, selection: Any, value: Any) -> Request | None:
        """Return the request of a write; None if nothing is selected."""
        self._check_writable()
        place = self._boxes.locate(selection) if kind == "brackets" else None
        if place is not None:
            item, axes, shape = place
            items, result = [item], shape
        else:
            chosen = self._locate(kind, selection)
            axes, shape, result = chosen.axes, chosen.shape, chosen.result
            # elements beyond the shape are kept: another process may have appended them by now
            items = self._objects.items_of(chosen.parts)
        values = self._as_elements(value)
        while values.ndim > len(result) and values.shape[0] == 1:  # numpy ignores leading axes of one element
            values = values[0]
        if values.ndim == 0:
            return self._request_of(items, (-1,) * self.ndim, values) if items else None
        if values.shape != result:
            try:
                values = np.broadcast_to(values, result)
            except ValueError:
                text = (
                    f"value: expected shape {result}, or one that numpy broadcasts to it, got {values.shape}"
                )
                raise ValueError(text) from None
        return self._request_of(items, axes, values.reshape(shape)) if items else None

    def _request_of(
        self, items: Sequence[ObjectSelection], axes: Ints, values: np.ndarray[Any, Any]
    ) -> Request:
        return Request(
            self._folder.store, items, range(len(items)), axes, values, self._array_spec, names_paths=True
        )

    def _as_elements(self, value: Any) -> np.ndarray[Any, Any]:
        if self.dtype.kind in "TUS":
            return as_texts(value, self.dtype)
        values = value if isinstance(value, np.ndarray) else np.asarray(value, self.dtype)
        return values.astype(self.dtype, copy=False)

    def _layout_guard(self) -> ArrayGuard:
        if self._guard is None:
            from .buffer.array_guard import ArrayGuard  # only blocks of `group_writes` need it

            folder = self._folder
            self._guard = ArrayGuard.of_document(self._document, folder.store, folder.prefix.rstrip("/"))
        return self._guard

    @cached_property
    def _stored(self) -> StoredDocument:
        """The metadata in the store."""
        return StoredDocument(self._folder, ".zarray" if self._is_v2 else "zarr.json")

    def _change_shape(self, choose: Callable[[Ints], Ints]) -> Ints:
        """Store the shape that `choose` makes of the stored one, and return it. Metadata that the handle knows are not parsed again."""
        new: Ints = ()
        is_known = False

        def changed(document: Mapping[str, Any] | None) -> Mapping[str, Any]:
            nonlocal new, is_known
            if document is None:
                raise FileNotFoundError(
                    f"array {self._folder!r}: expected its metadata, but they have been deleted"
                )
            is_known = self._text is None and document == self._document
            new = as_int_tuple(
                choose(self.shape if is_known else self._layout(document).shape), "shape", minimum=0
            )
            return {**document, "shape": list(new)}

        with self._alone():
            document = self._stored.change(changed, self._options)
            if is_known:
                self._document, self._guard = document, None
                self.shape: Ints = new
                self._objects = replace(self._objects, shape=new)
                self._boxes = BoxReader(self._objects, self._opened, self._index_cache)
            else:
                self._prepare(document)
        return new

    def _names_outside(self, shape: Ints) -> list[str]:
        """Return the names of the stored objects that have no element within a shape."""
        folder, keys = self._folder, self._objects.keys
        grid = [-(-size // extent) for size, extent in zip(self.shape, self._extents, strict=True)]
        ends = [-(-size // extent) for size, extent in zip(shape, self._extents, strict=True)]
        names: Iterable[str]
        if (listed := folder.store.listed(folder.prefix, all_of_them=True)) is not None:
            names = (key[len(folder.prefix) :] for key in listed)
        else:
            names = map(keys.key, itertools.product(*map(range, grid)))
        return [
            name
            for name in names
            if (coords := keys.coords(name, self.ndim)) is not None
            and any(at >= end for at, end in zip(coords, ends, strict=True))
        ]


def with_document(array: Array, document: Mapping[str, Any]) -> Array:
    """Return a handle on the same objects with other metadata and the options of `array`; nothing is read from the store."""
    handle = object.__new__(type(array))
    vars(handle).update(vars(array))
    handle._arguments = (*array._arguments[:5], document, *array._arguments[6:])
    handle._prepare(document)
    return handle


def reopened(array: Array, mode: Mode, threads: int | None = None) -> Array:
    """Return a handle on the same objects with the stored metadata and the options in force now; ValueError: `array` permits no write."""
    if mode == "r+":
        array._check_writable()
    folder, own_threads, index_cache, _, clip, _, cache, *_ = array._arguments
    return Array(folder, threads or own_threads, index_cache, False, clip, cache=cache, mode=mode)


def objects_of(array: Array) -> tuple[ArrayObjects, Options]:
    """Return the objects of a handle and the options at its opening, for writes that the shape of the array does not bound."""
    return array._objects, array._opened


def document_of(array: Array) -> Mapping[str, Any]:
    """Return the metadata document of the array, as the handle knows it."""
    return array._document


def grow(array: Array, axis: int, extent: int, check: Callable[[], None]) -> None:
    """Make the array at least `extent` elements long along an axis. It never becomes shorter.

    check: called under the lock of the document; if it raises, the shape does not change.
    """

    def grown(old: Ints) -> Ints:
        check()
        return (*old[:axis], max(old[axis], extent), *old[axis + 1 :])

    array._change_shape(grown)
