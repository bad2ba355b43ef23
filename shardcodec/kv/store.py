# store.py - the key-value store
# SPDX-License-Identifier: MIT
"""`ShardedKeyValueStore`: keys and values over the entries of one shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..format.checks import as_int
from .base_object import object_of_base
from .entries import Entries
from .executor import Threads
from .keys import Grid, as_bytes
from .spec import Layout, Parsed, parse
from .transaction_view import BoundStore, Transactional

__all__ = ["ShardedKeyValueStore"]


class ShardedKeyValueStore(Transactional):
    """A shard as a store of keys and values.

    A key is the entry's index along each axis of the grid, 32 bits each, most significant byte first; a value is any
    bytes, stored as they are. `store[key]`, ``in``, ``del`` and iteration (in ascending order) work as for a dictionary.

    Parameters
    ----------
    base : path-like, or tuple
        Where the shard is: a local file; a pair of a zarr store and a key; a pair of another `ShardedKeyValueStore` and a key.
    grid_shape : sequence of int
        Entries along each axis: up to 31 axes and 2^30 entries (KV-3).
    index_codecs : sequence
        As in Zarr metadata.
    index_location : {"end", "start"}
    path : bytes or str
        What every key begins with, which is then not written (KV-12).
    cache_pool : int, optional
        Bytes of indexes that are kept between calls, shared by all stores of the process that give the same number; 0
        keeps none. Default: the option ``index_cache``.
    data_copy_concurrency : int, optional
        Threads that the coroutines of this store work in at a time. Default: those of the event loop.

    Raises
    ------
    SpecError
        Grid, codecs or location are wrong.
    TypeError
        `base` is none of these.

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
    ) -> None:
        for name, limit, least in (
            ("cache_pool", cache_pool, 0),
            ("data_copy_concurrency", data_copy_concurrency, 1),
        ):
            if limit is not None:
                as_int(limit, name, minimum=least)
        layout = Layout.of(grid_shape, index_codecs, index_location)
        self._base = base
        self._entries = Entries(object_of_base(base, ShardedKeyValueStore), layout, cache_pool)
        self._grid = Grid(layout.grid_shape, as_bytes(path, "path"))
        self._cache_pool = cache_pool
        self._concurrency = data_copy_concurrency
        self._threads = Threads(data_copy_concurrency)
        self._value, self._position = self._entries.value, self._grid.position

    @classmethod
    def from_json(cls, spec: Mapping[str, Any], *, base: Any = None) -> ShardedKeyValueStore:
        """Open the store that a JSON describes.

        Parameters
        ----------
        spec : mapping
            As for TensorStore's driver, under both names ``zarr3_sharding_indexed`` and ``zarr_sharding_indexed``; ``kvstore``
            is another name of ``base``.
        base : optional
            As for the class; instead of that of the JSON, which then need not be there.

        Raises
        ------
        SpecError
            A member is missing, wrong, or unknown.
        UnsupportedError
            The base is neither a local file nor another such store.
        """
        return _from_parsed(cls, parse(spec, needs_base=base is None), base)

    def __reduce__(self) -> tuple[Any, ...]:
        layout = self._entries.layout.to_json()
        rest: dict[str, Any] = {
            "path": self.path,
            "cache_pool": self._cache_pool,
            "data_copy_concurrency": self._concurrency,
        }
        # a path that was given may be relative to this process's folder
        base = self._base if isinstance(self._base, tuple) else self.target.path
        return partial(ShardedKeyValueStore, base, **layout, **rest), ()


# A view is one of these stores to whoever asks for its type.
ShardedKeyValueStore.register(BoundStore)


def _from_parsed(cls: type[ShardedKeyValueStore], parsed: Parsed, base: Any) -> ShardedKeyValueStore:
    if base is None and isinstance(parsed.base, Parsed):
        outer = _from_parsed(ShardedKeyValueStore, replace(parsed.base, path=b""), None)
        base = (outer, parsed.base.path)
    return cls(
        parsed.base if base is None else base,
        **parsed.layout.to_json(),
        path=parsed.path,
        cache_pool=parsed.cache_pool,
        data_copy_concurrency=parsed.data_copy_concurrency,
    )
