# reader.py - read and list through the storage transformer
# SPDX-License-Identifier: MIT
"""`TransformerReader`: the methods of a zarr store that read and list, over chunks in shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from ..compat import default_buffer_prototype
from ..storage.zarr_store import NestedStore
from .keys import ArrayKeys, as_request
from .shard_map import Shards, as_folder

__all__ = ["TransformerReader"]


class TransformerReader(NestedStore):
    """The half of `ShardingStorageTransformer` that writes nothing; it sets the attributes.

    Attributes
    ----------
    shards : Shards
        The store below, and the shards in it.
    """

    shards: Shards
    _arrays: list[ArrayKeys]

    async def _open(self) -> None:
        await self.shards.below._ensure_open()
        await super()._open()

    async def _ensure_open(self) -> None:
        # not `_open`, which raises if it is called twice: several coroutines may be here at once
        if not self._is_open:
            try:
                await self.shards.below._ensure_open()
            except ValueError:  # a store of zarr raises if two threads open it at the same time
                if not self.shards.below._is_open:
                    raise
            self._is_open = True

    def close(self) -> None:
        """Close this store and the one below."""
        super().close()
        self.shards.below.close()

    @property
    def supports_writes(self) -> bool:
        """True if the store below can be written."""
        return self.shards.below.supports_writes

    @property
    def supports_deletes(self) -> bool:
        """True if objects of the store below can be deleted."""
        return self.shards.below.supports_deletes

    @property
    def supports_listing(self) -> bool:
        """True if the store below can be listed."""
        return self.shards.below.supports_listing

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """Return a value or a part of it; None if it is absent.

        Raises
        ------
        ShardFormatError, ChecksumError
            The index of the shard, or the index entry of the chunk, is wrong; see ``.shard`` and ``.chunk_key``.
        """
        prototype = prototype or default_buffer_prototype()
        request = as_request(byte_range)
        if self.shards.locate(key) is None:
            await self._ensure_open()
            return await self.shards.below.get(key, prototype, request)
        return (await self.get_partial_values(prototype, [(key, request)]))[0]

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """Return parts of values with two calls to the store below: one for all indexes, one for all ranges.

        Parameters
        ----------
        prototype : BufferPrototype
        key_ranges : iterable of (str, request)
            A request is a byte request of zarr, a pair of the draft (start, length or None), or None for all.
            Ranges are cut to the value.

        Returns
        -------
        list of (Buffer or None)
            In the order of the requests; None for an absent value.
        """
        await self._ensure_open()
        prototype = prototype or default_buffer_prototype()
        return await self.shards.values(prototype, key_ranges)

    async def exists(self, key: str) -> bool:
        """Return True if there is a value. For a chunk only the index of its shard is read."""
        return await self._size(key) is not None

    async def getsize(self, key: str) -> int:
        """Return the size of a value in bytes. For a chunk only the index of its shard is read.

        Raises
        ------
        FileNotFoundError
            The value is absent.
        """
        if self.shards.locate(key) is None:
            await self._ensure_open()
            return int(await self.shards.below.getsize(key))
        nbytes = await self._size(key)
        if nbytes is None:
            raise FileNotFoundError(key)
        return nbytes

    async def _size(self, key: str) -> int | None:
        """Return the size of a chunk in bytes, 0 for another key that exists, None if the key is absent."""
        await self._ensure_open()
        place = self.shards.locate(key)
        if place is None:
            return 0 if await self.shards.below.exists(key) else None
        return await self.shards.size(place)

    async def list(self) -> AsyncIterator[str]:
        """Yield the keys of all values, which include existing chunks."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys of values, which include existing chunks, with a prefix. The index of each shard is read."""
        await self._ensure_open()
        await self.shards.flush()
        async for key in self.shards.others(prefix):
            yield key
        async for key, _ in self.shards.chunks(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of values and non-empty folders in a folder. Indexes are read only in folders of chunks."""
        await self._ensure_open()
        await self.shards.flush()
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
        """Return the size of all values below a folder in bytes; that of chunks is read from the indexes."""
        await self._ensure_open()
        await self.shards.flush()
        prefix = as_folder(prefix)
        total = 0
        async for key in self.shards.others(prefix):
            total += await self.shards.below.getsize(key)
        async for _, nbytes in self.shards.chunks(prefix):
            total += nbytes
        return total


def _beyond(array: ArrayKeys, prefix: str) -> str:
    """Return the part of the common start of chunk keys that follows a prefix."""
    return array.region[len(prefix) :]
