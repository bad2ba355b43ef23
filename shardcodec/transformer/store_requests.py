# store_requests.py - requests to the store below
# SPDX-License-Identifier: MIT
"""Send the requests of `read` with one call to a store. Requests to obstore are bound to a state of the object."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..compat import ObjectStore, RangeByteRequest, Store, config
from ..storage.requests import Answer, Changed
from ..storage.tasks import all_of
from ..zarr_plugin.remotes import ObstoreRemote

__all__ = ["Asker"]


class Asker:
    """Sends requests to the store below, and other requests with the first call.

    Parameters
    ----------
    store : Store
        The store below.
    prototype : BufferPrototype
        Type of the returned buffers.
    others : sequence of (str, request)
        Requests for keys that are no chunks; `others` returns their answers.
    """

    def __init__(self, store: Store, prototype: Any, others: Sequence[tuple[str, Any]] = ()) -> None:
        self._store = store
        self.prototype = prototype
        self._others = others
        self._answers: list[Any] | None = None

    async def __call__(self, requests: Sequence[tuple[str, Any, Any]]) -> list[Answer | None]:
        """Return the answers to requests, each (key, range, state); see `read.Ask`."""
        if type(self._store) is ObjectStore:
            return await self._ask_obstore(ObstoreRemote(self._store.store), requests)
        wanted = [(key, request) for key, request, _ in requests]
        if self._answers is None:
            buffers = await self._ask([*self._others, *wanted])
            self._answers, buffers = buffers[: len(self._others)], buffers[len(self._others) :]
        else:
            buffers = await self._ask(wanted)
        return [None if buffer is None else Answer(buffer.as_numpy_array()) for buffer in buffers]

    async def others(self) -> list[Any]:
        """Return the answers to the other requests."""
        if self._answers is None:
            self._answers = await self._ask(self._others) if self._others else []
        return self._answers

    async def _ask(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        try:
            return list(await self._store.get_partial_values(self.prototype, wanted))
        except (NotImplementedError, FileNotFoundError):  # LocalStore raises for an absent key
            limit = asyncio.Semaphore(max(1, int(config.get("async.concurrency"))))

            async def get(key: str, request: Any) -> Any:
                async with limit:
                    return await self._store.get(key, self.prototype, request)

            return await all_of(get(*each) for each in wanted)

    async def _ask_obstore(
        self, remote: ObstoreRemote, requests: Sequence[tuple[str, Any, Any]]
    ) -> list[Answer | None]:
        limit = asyncio.Semaphore(max(1, int(config.get("async.concurrency"))))

        async def get(key: str, request: Any, version: Any) -> Answer | None:
            async with limit:
                if request is None:
                    return await remote.get(key)
                if isinstance(request, RangeByteRequest):
                    try:
                        return await remote.get_range(key, request.start, request.end, version)
                    except Changed:
                        return None
                return await remote.get_suffix(key, request.suffix)

        return await all_of(get(*each) for each in requests)
