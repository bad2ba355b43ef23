# store.py - `ShardedKeyValueStore`
# SPDX-License-Identifier: MIT
"""`ShardedKeyValueStore`: the entries of one shard as keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..format.checks import as_int
from ..storage.urls import is_url
from .base_object import object_of_base
from .entries import Entries
from .executor import Executor
from .keys import Grid, as_bytes
from .spec import Layout, StoreSpec, parse
from .transaction_view import BoundStore, Transactional

__all__ = ["ShardedKeyValueStore"]


class ShardedKeyValueStore(Transactional):
    """A key-value store over the entries of one shard.

    A key is the index of an entry along each axis of the grid, 32 bits each, most significant byte first. A value is
    any bytes, stored without encoding. The store is a dictionary: ``store[key]``, ``in``, ``del``, and iteration in
    ascending order of keys.

    Parameters
    ----------
    base : path-like, or tuple
        Where the shard is: the path of a local file, a URL (``s3://bucket/shard``), a pair of a zarr store or the URL of
        a folder and a key, or a pair of another `ShardedKeyValueStore` and a key.
    grid_shape : sequence of int
        Number of entries along each axis: up to 31 axes and 2^30 entries (KV-3).
    index_codecs : sequence
        As in Zarr metadata.
    index_location : {"end", "start"}
        End of the shard at which its index is.
    path : bytes or str
        Common start of all keys; callers leave it out (KV-12).
    cache_pool : int, optional
        Limit of the index cache in bytes. All stores of the process with the same number share one cache; 0 switches
        it off. Default: the option ``index_cache``.
    data_copy_concurrency : int, optional
        Maximum number of threads for the coroutines of this store. Default: the threads of the event loop.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.

    Raises
    ------
    SpecError
        Grid, codecs, location or a limit are wrong.
    TypeError
        `base` is neither a path nor such a pair, or `path` is neither bytes nor str; or there are options without a URL.
    ImportError
        No package is installed that can open the URL.
    ValueError
        The URL is malformed, or its store refuses the options.

    Notes
    -----
    Source: TensorStore, kvstore driver `zarr3_sharding_indexed`; requirements KV-1 to KV-58.

    Examples
    --------
    >>> codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    >>> store = ShardedKeyValueStore("a.zarr/c/0/0", grid_shape=(2, 3), index_codecs=codecs)
    >>> store[struct.pack(">2I", 0, 1)] = b"value"
    """

    def __init__(
        self,
        base: Any,
        *,
        grid_shape: Sequence[int],
        index_codecs: Sequence[Any],
        index_location: str = "end",
        path: bytes | str = b"",
        cache_pool: int | None = None,
        data_copy_concurrency: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        for name, limit, least in (
            ("cache_pool", cache_pool, 0),
            ("data_copy_concurrency", data_copy_concurrency, 1),
        ):
            if limit is not None:
                as_int(limit, name, minimum=least)
        layout = Layout.of(grid_shape, index_codecs, index_location)
        self._base, self._storage_options = base, storage_options
        self._entries = Entries(
            object_of_base(base, ShardedKeyValueStore, storage_options), layout, cache_pool
        )
        self._grid = Grid(layout.grid_shape, as_bytes(path, "path"))
        self._cache_pool = cache_pool
        self._concurrency = data_copy_concurrency
        self._executor = Executor(data_copy_concurrency)
        self._value, self._position = self._entries.value, self._grid.position

    @classmethod
    def from_json(cls, spec: Mapping[str, Any], *, base: Any = None) -> ShardedKeyValueStore:
        """Open the store that a JSON specification describes.

        Parameters
        ----------
        spec : mapping
            The JSON of TensorStore's driver ``zarr3_sharding_indexed``, also under the name
            ``zarr_sharding_indexed``. ``kvstore`` is another name of ``base``.
        base : path-like or tuple, optional
            Replaces the base of the JSON, as for the class. The JSON then needs no base.

        Returns
        -------
        ShardedKeyValueStore

        Raises
        ------
        SpecError
            A member is missing, wrong or unknown.
        UnsupportedError
            The base of the JSON is neither a local file nor an entry of another such store.
        TypeError
            `base` is neither a path nor a pair of a store and a key.
        """
        return _from_parsed(cls, parse(spec, needs_base=base is None), base)

    def __reduce__(self) -> tuple[Any, ...]:
        layout = self._entries.layout.to_json()
        rest: dict[str, Any] = {
            "path": self.path,
            "cache_pool": self._cache_pool,
            "data_copy_concurrency": self._concurrency,
            "storage_options": self._storage_options,
        }
        # the given path may be relative to the working folder of this process
        is_path = (
            not isinstance(self._base, tuple) and self.target.path is not None and not is_url(self._base)
        )
        base = self.target.path if is_path else self._base
        return partial(ShardedKeyValueStore, base, **layout, **rest), ()


# isinstance(view, ShardedKeyValueStore) is True for a view in a transaction
ShardedKeyValueStore.register(BoundStore)


def _from_parsed(cls: type[ShardedKeyValueStore], parsed: StoreSpec, base: Any) -> ShardedKeyValueStore:
    if base is None and isinstance(parsed.base, StoreSpec):
        outer = _from_parsed(ShardedKeyValueStore, replace(parsed.base, path=b""), None)
        base = (outer, parsed.base.path)
    return cls(
        parsed.base if base is None else base,
        **parsed.layout.to_json(),
        path=parsed.path,
        cache_pool=parsed.cache_pool,
        data_copy_concurrency=parsed.data_copy_concurrency,
    )
