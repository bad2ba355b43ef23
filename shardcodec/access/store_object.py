# store_object.py - the object of one shard in a store
# SPDX-License-Identifier: MIT
"""`StoreObject`: the place of one shard, in a store of any kind."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import native
from ..compat import sync
from ..options import Options
from ..storage.indexes import IndexCache
from ..storage.kinds import object_at
from ..storage.replace import replace_blocking
from ..storage.store import Maker, Store
from .remote_index import IndexLoader
from .remote_shard import FetchedShard, RemoteShard
from .shard_object import NativeShard, OpenObject

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["StoreObject", "shard_object"]


class StoreObject:
    """The object of one shard in a store; see `shard_object.ShardObject`.

    Parameters
    ----------
    store : Store
    object_key : str
        Key of the object in the store.
    key : str, optional
        Its name in errors.
    """

    def __init__(self, store: Store, object_key: str, key: str | None = None) -> None:
        self.store = store
        self._object_key = object_key
        self.key = object_key if key is None else key
        self.path = store.path(object_key)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreObject, (self.store, self._object_key, self.key)

    @property
    def identity(self) -> str:
        """Name for locks."""
        return self.store.lock_names([self._object_key])[0]

    @property
    def realm(self) -> Hashable:
        """Objects of one realm are replaced together; None if the store cannot do that."""
        return self.store.realm

    @property
    def is_near(self) -> bool:
        """True if the engine opens the object itself."""
        return self.store.is_near

    @property
    def is_prompt(self) -> bool:
        """True if a small read takes no network round trip."""
        return self.store.is_near and self.store.is_prompt

    @property
    def is_link(self) -> bool:
        """True if a symbolic link leads to the object."""
        return self.store.is_link(self._object_key)

    @property
    def staging(self) -> str | None:
        """Folder for temporary files beside the object."""
        return self.store.staging(self._object_key)

    @property
    def data(self) -> Any:
        """Bytes of an object in memory, or path of a file."""
        return self.store.source(self._object_key)

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Open what is stored now."""
        if self.is_near:
            return NativeShard(chain, self.data, options, None if self.path is None else cache)
        name = None if cache is None else self.store.index_names([self._object_key])[0]
        loader = IndexLoader(self.store, self._object_key, chain, options, name, cache)
        return RemoteShard(loader, lambda: sync(self.store.size(self._object_key)), self.identity)

    def open_whole(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Open what is stored now, with one request for all of it."""
        if self.is_near:
            return self.open(chain, options, cache)
        answer = sync(self.store.get(self._object_key))
        native.load().totals_add(reads=1, bytes_read=0 if answer is None else len(answer.data))
        return FetchedShard(chain, answer, options)

    def update(self, maker: Maker, options: Options) -> bytes | None:
        """Replace the object; return its new state, None if the maker knows it."""
        return replace_blocking(self.store, [self._object_key], maker, options)[0]

    def update_all(self, targets: Sequence[Any], maker: Maker, options: Options) -> list[bytes | None]:
        """Replace objects of this realm, all or none."""
        for target in targets:  # a read-only view has the realm of its store
            target.store.check_writable()
        return replace_blocking(self.store, [target._object_key for target in targets], maker, options)


def shard_object(
    store: Any, key: str | None, storage_options: Mapping[str, Any] | None = None
) -> StoreObject:
    """Return the object for a store and a key; see `storage.kinds.object_at`."""
    return StoreObject(*object_at(store, key, storage_options))
