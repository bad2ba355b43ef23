# store_requests.py - requests to the store below
# SPDX-License-Identifier: MIT
"""Send the requests of many coroutines with one call to a store.

A request to an object store can be bound to a state of the object: it fails if the object has changed since.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from ..access.remote_index import LimitedRemote
from ..compat import RangeByteRequest, Store, SuffixByteRequest
from ..storage.kinds import store_of
from ..storage.store import Answer, Changed, Remote, n_concurrent
from ..storage.waiting import all_of

__all__ = ["Ask", "BatchedRemote", "StoreRequests", "in_step"]

T = TypeVar("T")

# Key, byte request of zarr (None: the whole object), and the state that the request is bound to (None: any).
Request = tuple[str, Any, Any]

# Coroutine function that makes one call to a store. An answer is None if the object does not exist; it is `Changed` if the
# object is in another state.
Ask = Callable[[Sequence[Request]], Awaitable[list[Answer | Changed | None]]]


class StoreRequests:
    """An `Ask` that sends requests to the store below, and some other requests with its first call.

    If the store identifies states, each request is a call of its own, at most zarr's ``async.concurrency`` at the same
    time, and the other requests are sent by `others`.

    Parameters
    ----------
    store : Store
        The store below.
    prototype : BufferPrototype
        Type of the returned buffers.
    others : sequence of (str, request)
        Pairs of a key that is no chunk and a byte request of zarr; the method `others` returns the answers.
    """

    def __init__(self, store: Store, prototype: Any, others: Sequence[tuple[str, Any]] = ()) -> None:
        self._store = store
        self.prototype = prototype
        self._others = others
        self._answers: list[Any] | None = None

    async def __call__(self, requests: Sequence[Request]) -> list[Answer | Changed | None]:
        """Return the answers to requests; see `Ask`."""
        store = store_of(self._store)
        if store.identifies_states:
            return await _ask_bound(store, requests)
        wanted = [(key, request) for key, request, _ in requests]
        if self._answers is None:
            buffers = await self._ask([*self._others, *wanted])
            self._answers, buffers = buffers[: len(self._others)], buffers[len(self._others) :]
        else:
            buffers = await self._ask(wanted)
        return [None if buffer is None else Answer(buffer.as_numpy_array()) for buffer in buffers]

    async def others(self) -> list[Any]:
        """Return the answers to the other requests: buffers of zarr, None for a missing object. Send them if not sent yet."""
        if self._answers is None:
            self._answers = await self._ask(self._others) if self._others else []
        return self._answers

    async def _ask(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        try:
            return list(await self._store.get_partial_values(self.prototype, wanted))
        except (NotImplementedError, FileNotFoundError):  # LocalStore raises for an absent key
            limit = asyncio.Semaphore(n_concurrent())

            async def get(key: str, request: Any) -> Any:
                async with limit:
                    return await self._store.get(key, self.prototype, request)

            return await all_of(get(*each) for each in wanted)


class BatchedRemote:
    """A `Remote` that only coroutines run by `in_step` can await: `in_step` sends its requests."""

    budget_name = None

    async def get(self, key: str) -> Answer | None:
        """Return a whole object; None if it does not exist."""
        (answer,) = await _ask_in_step([(key, None, None)])
        return answer

    async def get_range(self, key: str, start: int, end: int, version: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; None if it does not exist.

        Raises
        ------
        Changed
            The object is not in the state `version`. None accepts any state.
        """
        (answer,) = await self.get_ranges(key, [(start, end - start)], version)
        return answer

    async def get_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], version: Any = None
    ) -> list[Answer | None]:
        """Return several ranges (offset, nbytes) of an object; the same rules as for `get_range`."""
        if not ranges:
            return []
        return await _ask_in_step([(key, RangeByteRequest(a, a + n), version) for a, n in ranges])

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object, or all of a shorter one."""
        (answer,) = await _ask_in_step([(key, SuffixByteRequest(nbytes), None)])
        return answer


@types.coroutine
def _ask_in_step(
    requests: list[Request],
) -> Generator[list[Request], list[Answer | None], list[Answer | None]]:
    return (yield requests)


async def in_step(readers: Sequence[Coroutine[Any, Any, T]], ask: Ask) -> list[T]:
    """Run several coroutines together, and send their requests to a store with as few calls as possible.

    In each step, every coroutine runs until it needs answers from the store. One call of `ask` then sends the requests of
    all coroutines, and each gets its own answers. So any number of coroutines that need answers k times take k calls.

    Parameters
    ----------
    readers : sequence of coroutines
        They may await a `BatchedRemote` only, nothing else.
    ask : coroutine function
        Sends requests and returns their answers in the same order; see `Ask`.

    Returns
    -------
    list
        The result of each coroutine, in the order of `readers`.

    Raises
    ------
    Exception
        The first error of a coroutine, in the order of steps and then of `readers`, or an error of `ask`. All other coroutines
        are closed.
    """
    results: dict[int, T] = {}
    answers: dict[int, Any] = {}
    try:
        while len(results) < len(readers):
            asked: dict[int, list[Request]] = {}
            for number, reader in enumerate(readers):
                if number in results:
                    continue
                try:
                    asked[number] = _resume(reader, answers.get(number))
                except StopIteration as end:
                    results[number] = end.value
            together = [request for own in asked.values() for request in own]
            found = iter(await ask(together) if together else [])
            answers = {number: [next(found) for _ in own] for number, own in asked.items()}
    finally:
        for reader in readers:
            reader.close()
    return [results[number] for number in range(len(readers))]


def _resume(reader: Coroutine[Any, Any, Any], answers: list[Any] | None) -> list[Request]:
    """Run a coroutine with its answers until it needs the next ones; return its next requests.

    If an answer is `Changed`, the first such error is raised inside the coroutine instead.

    Raises
    ------
    StopIteration
        The coroutine has ended; ``.value`` is its result.
    """
    changed = next((answer for answer in answers or () if isinstance(answer, Changed)), None)
    return reader.send(answers) if changed is None else reader.throw(changed)  # type: ignore[no-any-return]


async def _ask_bound(remote: Remote, requests: Sequence[Request]) -> list[Answer | Changed | None]:
    """Send each request on its own, bound to its state; return the answers as `Ask` does."""
    limited = LimitedRemote(remote, n_concurrent())

    async def get(key: str, request: Any, version: Any) -> Answer | Changed | None:
        if request is None:
            return await limited.get(key)
        if isinstance(request, SuffixByteRequest):
            return await limited.get_suffix(key, request.suffix)
        try:
            return await limited.get_range(key, request.start, request.end, version)
        except Changed as error:
            return error

    return await all_of(get(*each) for each in requests)
