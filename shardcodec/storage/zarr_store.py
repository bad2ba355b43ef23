# zarr_store.py - any store of zarr
# SPDX-License-Identifier: MIT
"""Objects of any zarr store, read and written with the store's own coroutines.

Nothing identifies a state of an object. Writers of this process exclude each other; writers in other processes do not.
"""

from __future__ import annotations

import errno
import time
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from .. import compat
from ..compat import (
    FsspecStore,
    LocalStore,
    MemoryStore,
    ObjectStore,
    RangeByteRequest,
    SuffixByteRequest,
    ZipStore,
    buffer_from,
)
from ..options import Options
from . import budget, conditions, forks, indexes, object_names
from .event_loop import all_of
from .file_systems import CLUSTER
from .lock_reach import refuse_store
from .runner import Runner
from .store import (
    NO_OBJECT,
    UNCHANGED,
    UNKNOWN,
    Answer,
    Contest,
    Maker,
    Outcome,
    Replacement,
    Store,
    StoredObject,
    group_of,
    state_bytes,
)

__all__ = ["NestedStore", "ZarrStore"]

LACKS_CONDITIONS = (
    "fsspec (s3fs, gcsfs, adlfs) has no conditional writes; use obstore (a URL, or zarr.storage.ObjectStore) for objects that "
    "several processes update"
)


class NestedStore(compat.Store):
    """A zarr store of which some values lie in objects of another store."""

    @abstractmethod
    def object_of(self, key: str) -> tuple[Store, str] | None:
        """Return the store and the key of the object in which a value lies; None for other values."""

    @property
    @abstractmethod
    def is_prompt(self) -> bool:
        """True if names of objects are found without network round trips."""


# Classes whose listings have every object.
_LIST_ALL = (FsspecStore, LocalStore, MemoryStore, NestedStore, ObjectStore, ZipStore)


class ZarrStore(Store):
    """Objects of any zarr store.

    A kind that reads and stores single objects in another way is a subclass. It overrides `_get` (or `get`, `get_range` and
    `get_suffix`), `_old`, `_stored` and `_put`, and inherits `exchange`. inner: the store within a wrapper (logging, latency,
    ...); locks and caches use its names of objects.
    """

    def __init__(self, base: Any, inner: Store | None = None) -> None:
        super().__init__(base)
        forks.note(base)
        self._inner = inner

    @property
    def _base(self) -> Any:
        """The zarr store that this process may use."""
        return forks.own(self._given)

    @_base.setter
    def _base(self, base: Any) -> None:
        self._given = base

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given, self._inner)

    def __repr__(self) -> str:
        return self.describe("")

    @property
    def is_prompt(self) -> bool:
        """True if names of objects are found without network round trips."""
        if self._inner is not None:
            return self._inner.is_prompt
        return not isinstance(self._given, NestedStore) or self._given.is_prompt

    def says_missing(self, error: Exception) -> bool:
        return super().says_missing(error) or conditions.names_missing_bucket(error)

    def lock_names(self, keys: Sequence[str]) -> list[str]:
        """Return names that stores of one place share, as far as their ``__str__`` tells."""
        if self._inner is not None:
            return self._inner.lock_names(keys)
        prefix = object_names.store_name(self._given)
        names = [f"{prefix}/{key}" for key in keys]
        if not isinstance(self._given, NestedStore):
            return names
        return [_nested_name(name, self._given.object_of(key)) for name, key in zip(names, keys, strict=True)]

    def index_names(self, keys: Sequence[str]) -> list[str]:
        """Return names for caches."""
        if self._inner is not None:
            return self._inner.index_names(keys)
        return super().index_names(keys)

    @property
    def describes_arrays(self) -> bool:
        """False for values in shards: the document there is that of the sharded array."""
        return (
            not isinstance(self._base, NestedStore) if self._inner is None else self._inner.describes_arrays
        )

    @property
    def is_cheap(self) -> bool:
        """True if a request costs as little as one to a local file."""
        if type(self._given) is ZipStore:
            return True
        return type(self._given) is FsspecStore and forks.is_local(self._given)

    @property
    def _lacks_conditions(self) -> bool:
        """True for a service that has conditional writes, but not through this store."""
        return type(self._given) is FsspecStore and not self.is_cheap

    @property
    def lists_all(self) -> bool:
        """False for classes of other packages, some of which are virtual."""
        if self._inner is not None:
            return self._inner.lists_all
        return isinstance(self._given, _LIST_ALL) or type(self._given).__module__.startswith("icechunk")

    def limits(self, spec: Any = None) -> budget.Limits:
        """Return zarr's limits of requests, for this kind of store."""
        return budget.limits_of_zarr(spec, near=self.is_cheap)

    async def get(self, key: str) -> Answer | None:
        """Return all of an object."""
        return await self._get(key, None)

    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; states have no names."""
        return await self._get(key, RangeByteRequest(start, end))

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object; by its size, if a HTTP server refuses a range from the end, or has sent the whole object."""
        try:
            answer = await self._get(key, SuffixByteRequest(nbytes))
        except Exception as error:
            # an error of aiohttp, which fsspec passes on
            if str(getattr(error, "status", "")) not in conditions.NO_SUFFIX.split("|"):
                raise
            size = await self.size(key)
            answer = await self.get_range(key, max(0, size - nbytes), size)
        is_of_fsspec = type(self._given) is FsspecStore
        return answer._replace(data=answer.data[-nbytes:]) if answer is not None and is_of_fsspec else answer

    async def _get(self, key: str, byte_range: Any) -> Answer | None:
        with self._damage_of_zip(key):
            buffer = await self._base.get(key, prototype=self.prototype, byte_range=byte_range)
        return None if buffer is None else Answer(buffer.as_numpy_array())

    async def size(self, key: str) -> int:
        """Return the size of an object in bytes."""
        with self._damage_of_zip(key):  # zarr reads the whole entry
            return int(await self._base.getsize(key))

    @contextmanager
    def _damage_of_zip(self, key: str) -> Iterator[None]:
        """Raise the error of a part of a disk that cannot be read, in place of those that `zipfile` raises for a damaged entry."""
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise OSError(
                errno.EIO, f"the entry of the zip file is damaged: {error}", self.describe(key)
            ) from error

    async def exchange(
        self,
        replacements: Sequence[Replacement],
        maker: Maker,
        options: Options,
        runner: Runner,
        contest: Contest,
    ) -> Outcome:
        """Try once to replace as many objects as fit into memory."""
        maker.begin()
        if self._lacks_conditions and any(
            maker.needs_old(replacement.position) for replacement in replacements
        ):
            conditions.warn_of(self.describe("").encode(), self.describe(""), LACKS_CONDITIONS)
        n = group_of(replacements, maker)
        memory = lambda: budget.of_store(self.budget_name).writes  # noqa: E731
        asked = time.monotonic()
        async with runner.hold(memory, held_nbytes(replacements[:n], maker), self.limits().write_nbytes):
            contest.postpone(time.monotonic() - asked)
            return await self._exchange(replacements[:n], replacements[n:], maker, options, runner, contest)

    async def _exchange(
        self,
        group: Sequence[Replacement],
        rest: Sequence[Replacement],
        maker: Maker,
        options: Options,
        runner: Runner,
        contest: Contest,
    ) -> Outcome:
        limits, objects = self.limits(), budget.Budget()

        def request() -> AbstractAsyncContextManager[None]:
            return budget.of_store(self.budget_name).requests.hold(1, limits.n_requests)

        async def old(replacement: Replacement) -> Answer | None:
            async with objects.hold(1, limits.n_objects), request():
                return await self._old(replacement.key, is_update=maker.needs_old(replacement.position))

        async def put(replacement: Replacement, new: Any, answer: Answer | None) -> tuple[bool, bytes | None]:
            if new is UNCHANGED:
                return True, None
            async with objects.hold(1, limits.n_objects), request():
                return await self._put(
                    replacement.key, new, answer, is_update=maker.needs_old(replacement.position)
                )

        answers = await runner.request(all_of(old(replacement) for replacement in group))
        if options.locking == "cluster":
            await runner.request(self._check_cluster(group[0].key, answers))
        stored = [
            self._stored(replacement.position, answer, maker)
            for replacement, answer in zip(group, answers, strict=True)
        ]
        outcome = await maker.make(stored, runner)
        if maker.keeps_emptied and not self._base.supports_deletes:
            outcome = await self._keep_emptied(group, stored, outcome, maker, runner)
        # the puts need the states of the old objects, not their bytes
        del stored
        states_of_old = [None if answer is None else answer._replace(data=None) for answer in answers]
        del answers
        work = zip(group, outcome.objects, states_of_old, strict=True)
        done = await runner.request(all_of(put(*each) for each in work))
        lost = [replacement for replacement, (is_done, _) in zip(group, done, strict=True) if not is_done]
        states = {replacement.position: state for replacement, (_, state) in zip(group, done, strict=True)}
        if not lost:
            return Outcome(states=states, remaining=rest)
        pause = contest.lose(lost[0].key)
        return Outcome(states=states, remaining=[*lost, *rest], contended=lost[0].name, pause=pause)

    async def _keep_emptied(
        self,
        group: Sequence[Replacement],
        stored: Sequence[StoredObject],
        outcome: Outcome,
        maker: Maker,
        runner: Runner,
    ) -> Outcome:
        """Make again, as objects without inner chunks, those that would be deleted: the store cannot delete."""
        emptied = [
            i
            for i, new in enumerate(outcome.objects)
            if new is None and not maker.needs_old(stored[i].position)
        ]
        exist = await runner.request(all_of(self._base.exists(group[i].key) for i in emptied))
        kept = [i for i, is_there in zip(emptied, exist, strict=True) if is_there]
        if not kept:
            return outcome
        objects = list(outcome.objects)
        again = await maker.make([stored[i]._replace(keeps_empty=True) for i in kept], runner)
        for i, new in zip(kept, again.objects, strict=True):
            objects[i] = new
        return outcome._replace(objects=objects)

    async def exclusion(self, key: str) -> tuple[str, str]:
        """Return how far writers of an object exclude each other."""
        await self._check_cluster(key, [])
        return CLUSTER, "conditional writes"

    async def _check_cluster(self, key: str, olds: Sequence[Answer | None]) -> None:
        """Raise `LockScopeError` if writers on other nodes are not excluded. A value in an object has the object's locks."""
        if not isinstance(self._base, NestedStore):
            raise refuse_store(key, "the store has neither locks for other processes nor conditions")

    async def _old(self, key: str, *, is_update: bool) -> Answer | None:
        """Return the stored object if the new one may depend on it, otherwise None."""
        return await self.get(key) if is_update else None

    def _stored(self, position: int, answer: Answer | None, maker: Maker) -> StoredObject:
        keeps = maker.keeps_emptied and answer is not None and not self._base.supports_deletes
        state = NO_OBJECT if answer is None else state_bytes(answer.state)
        return StoredObject(position, None, None if answer is None else answer.data, state, keeps)

    async def _put(
        self, key: str, new: Any, old: Answer | None, *, is_update: bool
    ) -> tuple[bool, bytes | None]:
        """Store or delete an object; return True, or False if another writer was faster, and the new state."""
        if new is None:
            await self._base.delete(key)
            return True, NO_OBJECT
        await self._base.set(key, buffer_from(self.prototype, new))
        return True, UNKNOWN

    def forget(self, keys: Collection[str]) -> None:
        """Drop cached indexes of objects that have been written."""
        indexes.forget(self.index_names(list(keys)))


def _nested_name(name: str, holder: tuple[Store, str] | None) -> str:
    if holder is None:
        return name
    store, key = holder
    return object_names.nested_name(name, store.lock_names([key])[0])


def held_nbytes(group: Sequence[Replacement], maker: Maker) -> int:
    """Return the bytes of memory that the exchange of a group holds; an old object counts as much as its new one."""
    return sum(
        maker.nbytes(replacement.position) * (1 + maker.needs_old(replacement.position))
        for replacement in group
    )
