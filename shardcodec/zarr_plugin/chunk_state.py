# chunk_state.py - `chunk_state`: which inner chunks of a zarr array exist
# SPDX-License-Identifier: MIT
"""`shardcodec.chunk_state`.

Only the indexes of the shards are read. The engine's threads read local files, many in one native call. Other stores get
concurrent requests, only for shards that a listing shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import zarr

from .. import native
from ..access.box_reader import folder_at
from ..access.buffer import active_buffer
from ..access.index_scan import ChunkState, ShardGrid, Sizes, sizes_of
from ..access.placement import ABSENT
from ..arguments import checked
from ..compat import Store, StorePath, on_zarrs_loop, stored_document
from ..errors import UnsupportedError, names_array
from ..format.byte_document import byte_document
from ..format.chunk_keys import key_encoding
from ..format.spec import ShardSpec
from ..option_sources import current_options
from ..options import Options, check
from ..storage.kinds import readable_at
from ..storage.object_names import zarr_keys
from ..storage.sidecar import Sidecar
from ..storage.url_stores import target_name

__all__ = ["chunk_state"]

# From this number of shards on, the store is listed first, because absent shards then need no request.
LISTING_SHARDS = 64
# A listing shows all shards of the array. It is used if there are at most this many of them for each shard of the region: a
# page of 1,000 keys takes as long as ten concurrent requests.
LISTED_PER_SHARD = 100

Progress = Callable[[int, int], Any]


@names_array(target_name)
@checked
def chunk_state(
    array: Any,
    path: str = "",
    region: Any = None,
    *,
    progress: Progress | None = None,
    threads: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ChunkState:
    """Return which inner chunks of a sharded array exist, and their encoded sizes.

    Only the indexes of the shards are read. The inner chunks of a shard that does not exist are absent.

    Parameters
    ----------
    array : zarr.Array, zarr store, path-like or URL
        An array, or the store, folder, zip file or URL (``s3://bucket/a.zarr``) that contains it.
    path : str
        Path of the array in the store, folder or zip file; not permitted for an array.
    region : optional
        Integers and slices, as in ``array[region]``; only inner chunks that it touches are examined. Default: all.
    progress : callable, optional
        Called as ``progress(done, total)`` with the number of shards done so far and the number of all shards of the region.
    threads : int, optional
        Number of threads. Default: the option ``threads``.
    cache : path-like, optional
        A local file that keeps sizes between processes; it is created if it does not exist. An index is read again only
        if the state of its object differs from the state in this file: inode, size and times of a local file; size and
        entity tag of an object in a listing. Objects in stores that do not identify states are always read.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.

    Returns
    -------
    ChunkState
        Its arrays ``exists`` and ``nbytes`` have one element for each inner chunk that the region touches, in the shape of
        the grid. Together they take nine bytes for each; a large array can be examined region by region.

    Raises
    ------
    FileNotFoundError, SpecError
        The array does not exist, or its metadata are malformed.
    UnsupportedError
        The array is not sharded on a regular grid, or a codec is applied to whole shards after ``sharding_indexed``.
    TypeError, ValueError
        An argument is invalid.
    ShardFormatError, ChecksumError
        An index is damaged, or one of its entries is invalid. If a store does not report the size of an object, an
        entry beyond its end is not detected.
    ImportError
        No package is installed that can open the URL.

    Examples
    --------
    >>> state = shardcodec.chunk_state("a.zarr")
    >>> state.exists.tolist()
    [[True, True], [True, True]]
    >>> state.nbytes.shape, state.chunk_shape
    ((2, 2), (2, 3))
    """
    scan = _RegionScan(readable_at(array, storage_options), path, region, threads, cache)
    sizes, state = scan.grid.collect()
    for shards, rows in scan.run(progress):
        for shard, numbers in zip(shards, rows, strict=True):
            place, block = scan.grid.block(shard, numbers)
            state.exists[place] = block != ABSENT
            sizes[place] = np.where(block == ABSENT, 0, block)
    return state


class _RegionScan:
    """One pass over the shards of a region."""

    def __init__(
        self,
        array: Any,
        path: str,
        region: Any,
        threads: int | None,
        cache: str | os.PathLike[str] | None,
    ) -> None:
        is_array = isinstance(array, zarr.Array | zarr.AsyncArray)
        if is_array and path:
            raise ValueError(f"expected no path, because `array` is an array already, got path={path!r}")
        if not is_array and not isinstance(array, Store | StorePath | str | os.PathLike):
            raise TypeError(f"expected a zarr array, a zarr store or a path, got {type(array).__name__}")
        self._folder = folder_at(array.store_path if is_array else array, path)
        self._store = self._folder.store
        self._name = repr(self._folder)
        document = stored_document(array.metadata) if is_array else self._folder.metadata()
        parsed = byte_document(document)
        spec = parsed.chain
        if spec.sharding is None or any(len(edges) != 1 for edges in parsed.layout.edges):
            raise UnsupportedError(f"array {self._name}: expected shards on a regular grid")
        shard = ShardSpec.from_chain(spec)
        if not shard.supports_partial_access:
            raise UnsupportedError(
                f"array {self._name}: a codec after sharding_indexed encodes whole shards, which hides the inner chunks"
            )
        self.grid = ShardGrid(shard, parsed.layout.shape, region)
        self._encoding = key_encoding(document)
        self._options: Options = current_options(argument=check({"threads": threads}))
        self._sidecar: Sidecar | None = None
        are_files = self._store.path("") is not None
        is_view = self._folder.base is not None  # a listing has other keys there
        if cache is not None and self._store.has_lasting_states and (are_files or not is_view):
            self._sidecar = Sidecar(cache, self._identity(shard), shard.n_chunks)

    def _identity(self, shard: ShardSpec) -> str:
        """Return a hash that says which array and index layout a cache file belongs to.

        It covers the name of the array, the grid of inner chunks, the codecs and location of the index, and the switch
        `allow_in_index`. The state of each object is not part of it: the `Sidecar` compares that itself.
        """
        codecs = [codec.to_json() for codec in shard.index_codecs]
        how = [shard.grid_shape, codecs, shard.index_location, self._options.allow_in_index]
        text = json.dumps([self._name, how], default=str)
        import hashlib  # here, because it loads OpenSSL

        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def run(self, progress: Progress | None) -> Iterator[tuple[list[tuple[int, ...]], Sizes]]:
        """Yield batches of shards and the sizes of their inner chunks."""
        total, done = self.grid.n_shards, 0
        buffer = active_buffer()
        if buffer is not None and buffer.nbytes:
            for shards in self.grid.batches():
                # a listing shows stored objects only
                on_zarrs_loop(buffer.flush_with_values(self._store, self._keys(shards)))
        lists = total >= LISTING_SHARDS and self.grid.n_all_shards <= LISTED_PER_SHARD * total
        present = self._listing() if lists or self._sidecar is not None else None
        if self._sidecar is not None and present is not None:
            self._sidecar.keep_only(present)
        try:
            for shards in self.grid.batches():
                yield shards, self._sizes(self._keys(shards), present)
                done += len(shards)
                if progress is not None:
                    progress(done, total)
        finally:
            if self._sidecar is not None:
                self._sidecar.save()

    def _keys(self, shards: Sequence[tuple[int, ...]]) -> list[str]:
        """Return the keys of shards in their store."""
        return self._folder.keys([self._encoding.key(shard) for shard in shards])

    def _listing(self) -> dict[str, str | None] | None:
        """List the objects of the array: from keys to the names of their states.

        All states are None without a sidecar. Return None if the store is read without requests, cannot list, or, with
        a sidecar, does not show states in listings.
        """
        folder = self._folder
        view = self._store if folder.base is None else folder.base
        if self._store.is_near or not (view.supports_listing and self._store.supports_listing):
            return None
        try:
            if self._sidecar is not None:
                return on_zarrs_loop(self._store.states(folder.prefix.rstrip("/")))
            keys = self._store.keys(folder.prefix) if folder.base is None else zarr_keys(view, folder.prefix)
            listed = [key.removeprefix(folder.prefix) for key in keys]
        except PermissionError:  # a bucket may forbid only listings
            return None
        return dict.fromkeys(folder.keys(listed))

    def _sizes(self, keys: Sequence[str], present: Mapping[str, str | None] | None) -> Sizes:
        if self._sidecar is None:
            return self._read(keys, present)[0]
        of_files = self._store.states_of(keys)
        before = of_files
        if before is None:
            before = [None if present is None else present.get(key) for key in keys]
        sizes = np.full((len(keys), self.grid.chain.n_chunks), ABSENT, dtype=np.uint64)
        rest = []
        for i, (key, state) in enumerate(zip(keys, before, strict=True)):
            cached = self._sidecar.get(key, state)
            if cached is None:
                rest.append(i)
            else:
                sizes[i] = cached
        native.load().totals_add(index_hits=len(keys) - len(rest))
        if rest:
            read, after = self._read([keys[i] for i in rest], present)
            for i, own, state in zip(rest, read, after, strict=True):
                sizes[i] = own
                self._sidecar.put(keys[i], state if of_files is None else of_files[i], own)
        return sizes

    def _read(
        self, keys: Sequence[str], present: Mapping[str, str | None] | None
    ) -> tuple[Sizes, list[str | None]]:
        """Read indexes; return the sizes, and the names of the objects' states if the store reports them."""
        may_exist = None if present is None else [i for i, key in enumerate(keys) if key in present]
        return sizes_of(self._store, self.grid.chain, keys, self._options, may_exist)
