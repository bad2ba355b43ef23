# store.py - a zarr store that shows chunks where shards are
# SPDX-License-Identifier: MIT
"""`ShardingStorageTransformer`, the storage transformer of the Zarr v3 draft of 2022 as a store of zarr-python.

Source: storage transformer "sharding" 1.0 (2022); Zarr v3 core specification, draft of 2022, "Abstract store interface".
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Sequence
from operator import index
from typing import Any, Self

from ..format.spec import ShardSpec
from ..options import check
from ..storage.aio import all_of
from ..zarr_plugin.compat import (
    LocalStore,
    Store,
    StorePath,
    buffer_from,
    default_buffer_prototype,
    is_buffer,
)
from ..zarr_plugin.stores import PartStore, introduce
from .keys import ArrayKeys, KeyLayout, as_path
from .partial import as_bytes, overlaid, overlay
from .ranges import as_request
from .shards import Shards, as_folder
from .writing import put, put_if_absent

__all__ = ["INDEX_2022", "ShardingStorageTransformer"]

# Index of the draft of 2022: pairs of little endian numbers, without a checksum.
INDEX_2022 = ({"name": "bytes", "configuration": {"endian": "little"}},)


class ShardingStorageTransformer(PartStore):
    """A store that shows the chunks of arrays whose shards lie in another store.

    Whoever knows nothing of shards can read and write a sharded array through it: the array's metadata has the shape of a
    chunk as that of its chunks, and no sharding. All other keys are those of the store below.

    Parameters
    ----------
    store : Store, StorePath or path-like
        Where the shards are; any store of zarr, another transformer too.
    chunks_per_shard : sequence of int
        For each axis of the array.
    path : str or iterable of str
        Of the array in the store, or of several whose shards are alike.
    layout : KeyLayout
        How chunks and shards are named: `KeyLayout.v3` (the default), `KeyLayout.v2` or `KeyLayout.draft_2022`, each
        with a separator.
    index_codecs : sequence
        As in the metadata of `sharding_indexed`. Default: the index of the draft, without a checksum.
    index_location : {"end", "start"}
        The draft knows only the end.
    read_only : bool, optional
        Refuse to write. Default: as the store.
    **choices
        Options for this store, as in `shardcodec.options`.

    Notes
    -----
    A change of a chunk is a partial write of its shard: what holds for these (``docs/durability.md``) holds here. Changes of a
    shard that come while it is being written are then written together.

    Source: ST-1 to ST-17.

    Examples
    --------
    >>> store = ShardingStorageTransformer("a.zarr", (32, 2))
    >>> array = zarr.create_array(store, shape=(4096, 64), chunks=(10, 10), dtype="f4")
    """

    def __init__(
        self,
        store: Store | StorePath | str | os.PathLike[str],
        chunks_per_shard: Sequence[int],
        *,
        path: str | Iterable[str] = "",
        layout: KeyLayout | None = None,
        index_codecs: Sequence[Any] = INDEX_2022,
        index_location: Any = "end",
        read_only: bool | None = None,
        **choices: Any,
    ) -> None:
        paths = [path] if isinstance(path, str) else list(path)
        if isinstance(store, StorePath):
            paths = ["/".join(filter(None, (store.path, part))) for part in paths]
            store = store.store
        if not isinstance(store, Store):
            store = LocalStore(os.fspath(store), read_only=bool(read_only))
        if read_only is False and store.read_only:
            raise ValueError("the store below is read-only")
        super().__init__(read_only=store.read_only if read_only is None else read_only)
        self._layout = KeyLayout.v3() if layout is None else layout
        if not isinstance(self._layout, KeyLayout):
            raise TypeError(f"layout is a KeyLayout, not {layout!r}")
        self._arrays = [
            ArrayKeys(self._layout, part, chunks_per_shard) for part in dict.fromkeys(map(as_path, paths))
        ]
        if not self._arrays:
            raise ValueError("path names no array")
        self._choices = check(choices)
        per_shard = self._arrays[0].per_shard
        self._spec = ShardSpec(
            per_shard, (1,) * len(per_shard), "uint8", 0, ["bytes"], index_codecs, index_location
        )
        introduce(store)
        self.shards = Shards(store, self._arrays, self._spec, self._choices)

    # ---- what it is

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
        """How chunks and shards are named."""
        return self._layout

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the arrays."""
        return tuple(array.path for array in self._arrays)

    @property
    def index_codecs(self) -> tuple[Any, ...]:
        """How the index of a shard is encoded."""
        return self._spec.index_codecs

    @property
    def index_location(self) -> str:
        """Where in a shard its index is."""
        return self._spec.index_location

    def object_of(self, key: str) -> StorePath | None:
        """Return the object that a chunk is a part of, in the lowest store; None for a key of the store below."""
        place = self.shards.locate(key)
        return None if place is None else self.shards.object_of(place[0])

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

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return a store on the same shards that may, or may not, be written."""
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

    async def _open(self) -> None:
        await self.shards.below._ensure_open()
        await super()._open()

    async def _ensure_open(self) -> None:
        # not by `_open`, which refuses to do it twice: several calls may be here at once
        if not self._is_open:
            try:
                await self.shards.below._ensure_open()
            except ValueError:  # zarr's stores open themselves twice when several threads ask
                if not self.shards.below._is_open:
                    raise
            self._is_open = True

    def close(self) -> None:
        """Close this store and the one below."""
        super().close()
        self.shards.below.close()

    @property
    def supports_writes(self) -> bool:
        """Whether the store below can be written."""
        return self.shards.below.supports_writes

    @property
    def supports_deletes(self) -> bool:
        """Whether objects of the store below can be deleted."""
        return self.shards.below.supports_deletes

    @property
    def supports_listing(self) -> bool:
        """Whether the store below can be listed."""
        return self.shards.below.supports_listing

    # ---- reading

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return a value, or a part of it; None where there is none.

        Raises
        ------
        ShardFormatError, ChecksumError
            The shard's index, or its entry of the chunk, cannot be true; ``.shard`` and ``.chunk_key`` say which.
        """
        prototype = prototype or default_buffer_prototype()
        request = as_request(byte_range)
        if self.shards.locate(key) is None:
            await self._ensure_open()
            return await self.shards.below.get(key, prototype, request)
        return (await self.get_partial_values(prototype, [(key, request)]))[0]

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return parts of values, with two calls to the store below: one for all indexes, one for all ranges.

        Parameters
        ----------
        prototype : BufferPrototype
        key_ranges : iterable
            Of keys, each with a byte request of zarr, a pair of the draft (start, length or None), or None for all.
            What a range has beyond the value is left out.

        Returns
        -------
        list of Buffer
            In that order; None where there is no value.
        """
        await self._ensure_open()
        prototype = prototype or default_buffer_prototype()
        return await self.shards.values(prototype, key_ranges)

    async def exists(self, key: str) -> bool:
        """Tell whether there is a value; for a chunk from the index of its shard alone."""
        return await self._size(key) is not None

    async def getsize(self, key: str) -> int:
        """Return the size of a value; for a chunk from the index of its shard alone.

        Raises
        ------
        FileNotFoundError
            There is none.
        """
        if self.shards.locate(key) is None:
            await self._ensure_open()
            return int(await self.shards.below.getsize(key))
        nbytes = await self._size(key)
        if nbytes is None:
            raise FileNotFoundError(key)
        return nbytes

    async def _size(self, key: str) -> int | None:
        """Size of a chunk; whether there is one, of other keys."""
        await self._ensure_open()
        place = self.shards.locate(key)
        if place is None:
            return 0 if await self.shards.below.exists(key) else None
        return await self.shards.size(place)

    # ---- writing

    async def set(self, key: str, value: Any) -> None:
        """Store a value; an empty one too.

        Raises
        ------
        ShardFormatError, ChecksumError
            The shard is damaged where it would have been carried over; it is as it was.
        LockError
            Another process writes to the shard, and did not end in time.
        """
        await self._check_value(value)
        place = self.shards.locate(key)
        if place is None:
            await self.shards.below.set(key, value)
        else:
            await self.shards.change({place[0]: put({place[1]: value.as_numpy_array()})})

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        """Store a value where there is none; of several who do so at once one succeeds."""
        await self._check_value(value)
        place = self.shards.locate(key)
        if place is None:
            await self.shards.below.set_if_not_exists(key, value)
        else:
            change = put_if_absent(place[1], value.as_numpy_array())
            await self.shards.change({place[0]: change})

    async def set_many(self, values: Iterable[tuple[str, Any]]) -> None:
        """Store values, each shard once; one whose chunks are all given is not read."""
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
        """Overwrite parts of values, each shard once.

        Parameters
        ----------
        key_start_values : iterable of (str, int, bytes-like or Buffer)
            A start below 0 counts from the end. A value grows where a part goes beyond its end; one that does not exist
            begins with a part that starts at 0.

        Raises
        ------
        ValueError
            A part begins beyond the end of the value, or parts of one value overlap. Values of that shard are as they were.
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
                new = overlaid(key, None if old is None else old.to_bytes(), own)
                await self.shards.below.set(key, buffer_from(prototype, new))
            else:
                shards.setdefault(place[0], {})[place[1]] = key, own
        await self.shards.change({shard: overlay(chunks) for shard, chunks in shards.items()})

    async def _check_value(self, value: Any) -> None:
        self._check_writable()
        if not is_buffer(value):
            raise TypeError(f"value must be a Buffer, not {type(value).__name__}")
        await self._ensure_open()

    # ---- erasing

    async def delete(self, key: str) -> None:
        """Erase a value, if there is one; a shard without chunks is deleted."""
        await self.erase_values([key])

    erase = delete

    async def erase_values(self, keys: Iterable[str]) -> None:
        """Erase values, as far as they exist, each shard once.

        Raises
        ------
        TypeError
            `keys` is a single str, whose characters would be taken for keys.
        """
        if isinstance(keys, str):
            raise TypeError(f"keys: expected several keys, got the str {keys!r}")
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
        """Erase all values below a prefix: whole shards where all their chunks are, else chunks of shards."""
        if not self.supports_deletes or not self.supports_listing:
            raise NotImplementedError("the store below cannot delete, or cannot be listed")
        self._check_writable()
        await self._ensure_open()
        await self.shards.settle()
        prefix = as_folder(prefix)
        hit = [(array, fixed) for array in self._arrays if (fixed := array.fixed(prefix)) is not None]
        if all(array.region.startswith(prefix) for array, _ in hit):
            await self.shards.below.delete_dir(prefix.removesuffix("/"))  # nothing of it is left
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
        await self.shards.settle()
        await self.shards.below.clear()

    # ---- listing

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys; those of chunks that exist."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield keys with a prefix; those of chunks that exist. The index of each shard is read."""
        await self._ensure_open()
        await self.shards.settle()
        async for key in self.shards.others(prefix):
            yield key
        async for key, _ in self.shards.chunks(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names right below a folder, of values and of folders that have any.

        Only in folders of chunks indexes have to be read.
        """
        await self._ensure_open()
        await self.shards.settle()
        prefix = as_folder(prefix)
        if any(
            array.fixed(prefix) is not None and "/" not in _beyond(array, prefix) for array in self._arrays
        ):
            names = dict.fromkeys(
                [key[len(prefix) :].split("/")[0] async for key in self.list_prefix(prefix)]
            )
            for name in names:
                yield name
        else:
            async for name in self.shards.below.list_dir(prefix.removesuffix("/")):
                yield name

    async def getsize_prefix(self, prefix: str) -> int:
        """Return the size of all values below a folder; that of chunks from the indexes."""
        await self._ensure_open()
        await self.shards.settle()
        prefix = as_folder(prefix)
        total = 0
        async for key in self.shards.others(prefix):
            total += await self.shards.below.getsize(key)
        async for _, nbytes in self.shards.chunks(prefix):
            total += nbytes
        return total


def _again(cls: type[Any], below: Store, arguments: dict[str, Any]) -> Any:
    return cls(below, **arguments)


def _beyond(array: ArrayKeys, prefix: str) -> str:
    """What a name of a chunk must go on with, in a folder above or among them."""
    return array.region[len(prefix) :]
