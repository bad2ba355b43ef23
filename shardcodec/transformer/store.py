# store.py - `ShardingStorageTransformer`: a store of chunks over a store of shards
# SPDX-License-Identifier: MIT
"""`ShardingStorageTransformer`: a store of chunks over a store of shards.

`ShardingStorageTransformer`, the storage transformer of the Zarr v3 draft of 2022 as a store of zarr-python.

Source: storage transformer "sharding" 1.0 (2022); Zarr v3 core draft of 2022, "Abstract store interface".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, Self, Unpack

from ..arguments import checked
from ..compat import LocalStore, Store, StorePath, buffer_from, default_buffer_prototype, is_buffer
from ..format.codecs import IndexLocation
from ..format.spec import ShardSpec
from ..options import OptionChoices, check
from ..storage.event_loop import all_of
from ..storage.kinds import introduce
from ..storage.store import Store as AnyStore
from .edits import put, put_if_absent
from .keys import ArrayKeys, KeyLayout, as_path
from .range_edits import as_bytes, overwrite_ranges, put_ranges
from .reader import TransformerReader
from .shard_map import Shards, as_folder

__all__ = ["INDEX_2022", "ShardingStorageTransformer"]

# Index of the draft of 2022: pairs of little endian numbers, without a checksum.
INDEX_2022: tuple[dict[str, Any], ...] = ({"name": "bytes", "configuration": {"endian": "little"}},)


class ShardingStorageTransformer(TransformerReader):
    """A zarr store that shows the chunks of sharded arrays; their shards are in another store.

    Experimental: it may change in a minor version (``docs/versions.md``).

    A program that does not know shards can read and write a sharded array through it: the metadata of the array have
    the shape of a chunk and no `sharding_indexed`. All other keys are those of the store below.

    Parameters
    ----------
    store : Store, StorePath or path-like
        The store below with the shards: any store of zarr, also another transformer.
    chunks_per_shard : sequence of int
        Number of chunks in a shard along each axis of the array.
    path : str or iterable of str
        Path of the array in the store, or paths of several arrays with such shards.
    layout : KeyLayout
        Names of chunks and shards: `KeyLayout.v3` (the default), `KeyLayout.v2` or `KeyLayout.draft_2022`.
    index_codecs : sequence
        As in the metadata of `sharding_indexed`. Default: the index of the draft, without a checksum.
    index_location : {"end", "start"}
        The draft has only the end.
    read_only : bool, optional
        Refuse to write. Default: as the store below.
    **choices
        Options for this store, as in `shardcodec.options`.

    Raises
    ------
    TypeError, ValueError, SpecError, UnsupportedError
        An argument is wrong.

    Notes
    -----
    `zarr.abc.store.Store` documents the methods of all zarr stores; the docstrings here add what differs. A change of a
    chunk is a partial write of its shard, see ``docs/durability.md``. Changes that arrive while their shard is written
    are written together afterwards.

    Source: ST-1 to ST-17.

    Examples
    --------
    >>> store = transformer.ShardingStorageTransformer("chunks.zarr", (32, 2))
    >>> array = zarr.create_array(store, shape=(4096, 64), chunks=(10, 10), dtype="f4")
    >>> array[:20, :10] = 1
    >>> sorted(path.name for path in Path("chunks.zarr/c/0").iterdir())
    ['0']
    """

    @checked
    def __init__(
        self,
        store: Store | StorePath | str | os.PathLike[str],
        chunks_per_shard: Sequence[int],
        *,
        path: str | Iterable[str] = "",
        layout: KeyLayout | None = None,
        index_codecs: Sequence[Any] = INDEX_2022,
        index_location: IndexLocation = "end",
        read_only: bool | None = None,
        **choices: Unpack[OptionChoices],
    ) -> None:
        paths = [path] if isinstance(path, str) else list(path)
        if isinstance(store, StorePath):
            paths = ["/".join(filter(None, (store.path, part))) for part in paths]
            store = store.store
        if not isinstance(store, Store):
            store = LocalStore(os.fspath(store), read_only=bool(read_only))
        if read_only is False and store.read_only:
            raise ValueError(f"read_only=False: expected a writable store, got read-only {store!r}")
        super().__init__(read_only=store.read_only if read_only is None else read_only)
        self._layout = KeyLayout.v3() if layout is None else layout
        if not isinstance(self._layout, KeyLayout):
            raise TypeError(f"layout: expected a KeyLayout, got {layout!r}")
        self._arrays = [
            ArrayKeys(self._layout, part, chunks_per_shard) for part in dict.fromkeys(map(as_path, paths))
        ]
        if not self._arrays:
            raise ValueError("path: expected the path of at least one array, got no array")
        self._choices = check(choices)
        per_shard = self._arrays[0].per_shard
        self._spec = ShardSpec(
            per_shard, (1,) * len(per_shard), "uint8", 0, ["bytes"], index_codecs, index_location
        )
        introduce(store)
        self.shards: Shards = Shards(store, self._arrays, self._spec, self._choices)

    @property
    def store(self) -> Store:
        """The store below."""
        return self.shards.below

    @property
    def chunks_per_shard(self) -> tuple[int, ...]:
        """Number of chunks in a shard, for each axis."""
        return self._arrays[0].per_shard

    @property
    def layout(self) -> KeyLayout:
        """Names of chunks and shards."""
        return self._layout

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the arrays."""
        return tuple(array.path for array in self._arrays)

    @property
    def index_codecs(self) -> tuple[Any, ...]:
        """Codecs of the index."""
        return self._spec.index_codecs

    @property
    def index_location(self) -> str:
        """End of a shard at which its index is."""
        return self._spec.index_location

    def object_of(self, key: str) -> tuple[AnyStore, str] | None:
        """Return store and key of the object that contains the chunk `key`; None if the key is not a chunk key."""
        place = self.shards.locate(key)
        return None if place is None else self.shards.object_of(place[0])

    @property
    def is_prompt(self) -> bool:
        """True if objects are reached without network round trips."""
        return self.shards.is_prompt

    def _arguments(self) -> dict[str, Any]:
        return {
            "chunks_per_shard": self.chunks_per_shard,
            "path": self.paths,
            "layout": self._layout,
            "index_codecs": tuple(codec.to_json() for codec in self._spec.index_codecs),
            "index_location": self._spec.index_location,
            "read_only": self._read_only,
            **self._choices,
        }

    @checked
    def with_read_only(self, read_only: bool = False) -> Self:
        """Return a store on the same shards that refuses writes if `read_only`."""
        below = (
            self.shards.below.with_read_only(read_only)
            if self.shards.below.read_only and not read_only
            else self.shards.below
        )
        return type(self)(below, **self._arguments() | {"read_only": read_only})

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self)
            and self.shards.below == other.shards.below
            and self._arguments() == other._arguments()
        )

    def __hash__(self) -> int:
        return hash((type(self), self.chunks_per_shard, self.paths))

    def __repr__(self) -> str:
        return (
            f"ShardingStorageTransformer({self.shards.below!r}, {self.chunks_per_shard}, path={self.paths})"
        )

    def __str__(self) -> str:
        return f"sharding{self.chunks_per_shard}-{','.join(self.paths)}-{self.shards.below}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.shards.below, self._arguments())

    async def set(self, key: str, value: Any) -> None:
        """Store a value, which may be empty.

        Raises
        ------
        ShardFormatError, ChecksumError
            An entry that the write would carry over is damaged; the shard is unchanged.
        LockError
            Another process held the lock of the shard for longer than ``SHARDCODEC_LOCK_TIMEOUT``.
        """
        await self._check_value(value)
        place = self.shards.locate(key)
        if place is None:
            await self.shards.below.set(key, value)
        else:
            await self.shards.change({place[0]: put({place[1]: value.as_numpy_array()})})

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        """Store a value if it is absent; of several concurrent calls one stores its value."""
        await self._check_value(value)
        place = self.shards.locate(key)
        if place is None:
            await self.shards.below.set_if_not_exists(key, value)
        else:
            change = put_if_absent(place[1], value.as_numpy_array())
            await self.shards.change({place[0]: change})

    async def set_many(self, values: Iterable[tuple[str, Any]]) -> None:
        """Store pairs of key and Buffer and write each shard once. A shard whose chunks are all given is not read."""
        values = list(values)
        shards: dict[str, dict[int, Any]] = {}
        others = []
        for key, value in values:
            await self._check_value(value)
            place = self.shards.locate(key)
            if place is None:
                others.append((key, value))
            else:
                shards.setdefault(place[0], {})[place[1]] = value.as_numpy_array()
        await self.shards.change({shard: put(chunks) for shard, chunks in shards.items()})
        if others:
            await self.shards.below._set_many(others)

    _set_many = set_many

    async def set_partial_values(self, key_start_values: Iterable[tuple[str, int, Any]]) -> None:
        """Overwrite parts of values and write each shard once.

        Parameters
        ----------
        key_start_values : iterable of (str, int, bytes-like or Buffer)
            A start below 0 counts from the end. A value grows if a part goes beyond its end. An absent value needs
            a part that starts at 0.

        Raises
        ------
        ValueError
            A part begins beyond the end of its value, or two parts overlap. Values of that shard are unchanged.
        """
        self._check_writable()
        await self._ensure_open()
        parts: dict[str, list[tuple[int, Any]]] = {}
        for key, start, value in key_start_values:
            parts.setdefault(key, []).append((index(start), as_bytes(value)))
        shards: dict[str, dict[int, tuple[str, Any]]] = {}
        for key, own in parts.items():
            place = self.shards.locate(key)
            if place is None:
                prototype = default_buffer_prototype()
                old = await self.shards.below.get(key, prototype)
                new = overwrite_ranges(key, None if old is None else old.to_bytes(), own)
                await self.shards.below.set(key, buffer_from(prototype, new))
            else:
                shards.setdefault(place[0], {})[place[1]] = key, own
        await self.shards.change({shard: put_ranges(chunks) for shard, chunks in shards.items()})

    async def _check_value(self, value: Any) -> None:
        self._check_writable()
        if not is_buffer(value):
            raise TypeError(f"value: expected a Buffer, got {type(value).__name__}")
        await self._ensure_open()

    async def delete(self, key: str) -> None:
        """Erase a value if it exists; a shard without chunks is deleted."""
        await self.erase_values([key])

    erase = delete

    async def erase_values(self, keys: Iterable[str]) -> None:
        """Erase those of the values that exist and write each shard once.

        Parameters
        ----------
        keys : iterable of str

        Raises
        ------
        TypeError
            `keys` is one str, whose characters would be taken for keys.
        """
        if isinstance(keys, str):
            raise TypeError(f"keys: expected an iterable of several keys, got the str {keys!r}")
        self._check_writable()
        await self._ensure_open()
        shards: dict[str, set[int]] = {}
        for key in keys:
            place = self.shards.locate(key)
            if place is None:
                await self.shards.below.delete(key)
            else:
                shards.setdefault(place[0], set()).add(place[1])
        await self.shards.change({shard: self.shards.erasure(chunks) for shard, chunks in shards.items()})

    async def delete_dir(self, prefix: str) -> None:
        """Erase all values below a folder: whole shards if all their chunks are below it, otherwise single chunks.

        Raises
        ------
        NotImplementedError
            The store below cannot delete or list.
        """
        if not self.supports_deletes or not self.supports_listing:
            raise NotImplementedError(f"expected a store that can list and delete, got {self.store!r}")
        self._check_writable()
        await self._ensure_open()
        await self.shards.flush()
        prefix = as_folder(prefix)
        hit = [(array, fixed) for array in self._arrays if (fixed := array.fixed(prefix)) is not None]
        if all(array.region.startswith(prefix) for array, _ in hit):
            await self.shards.below.delete_dir(prefix.removesuffix("/"))  # contains these arrays completely
            return
        for array, fixed in hit:
            shards = [key async for key, _ in self.shards.below_prefix(array, fixed)]
            change = self.shards.erasure(array.positions_below(fixed))
            await self.shards.change(dict.fromkeys(shards, change))
        rest = [key async for key in self.shards.others(prefix)]
        await all_of(self.shards.below.delete(key) for key in rest)

    erase_prefix = delete_dir

    async def clear(self) -> None:
        """Erase everything, in the store below too."""
        self._check_writable()
        await self._ensure_open()
        await self.shards.flush()
        await self.shards.below.clear()


def _again(cls: type[Any], below: Store, arguments: dict[str, Any]) -> Any:
    return cls(below, **arguments)
