# store_requests.py - requests to the store below
# SPDX-License-Identifier: MIT
"""Send the requests of many coroutines with one call to a store.

A request to an object store can be bound to a state of the object: it fails if the object has changed since.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar

from ..access.limited_remote import LimitedRemote
from ..compat import RangeByteRequest, Store, SuffixByteRequest
from ..storage import budget
from ..storage.event_loop import all_of
from ..storage.kinds import store_of
from ..storage.store import Answer, ObjectChanged
from ..storage.store import Store as AnyStore

__all__ = ["Ask", "BatchedRemote", "StoreRequests", "in_step"]

T = TypeVar("T")

# Key, byte request of zarr (None: the whole object), and the state that the request is bound to (None: any).
Request = tuple[str, Any, Any]

# Coroutine function that makes one call to a store. An answer is None if the object does not exist; it is `ObjectChanged` if the
# object is in another state.
Ask = Callable[[Sequence[Request]], Awaitable[list[Answer | ObjectChanged | None]]]


class StoreRequests:
    """An `Ask` that sends requests to the store below, and some other requests with its first call.

    others: pairs of a key that is not a chunk and a byte request of zarr; the method `others` returns the answers. If the store
    identifies states, each request is a call, within the limits of the store, and the others are sent by that method.
    """

    def __init__(self, store: Store, prototype: Any, others: Sequence[tuple[str, Any]] = ()) -> None:
        self._store = store
        self.prototype = prototype
        self._others = others
        self._answers: list[Any] | None = None

    async def __call__(self, requests: Sequence[Request]) -> list[Answer | ObjectChanged | None]:
        """Return the answers to requests; see `Ask`."""
        store = store_of(self._store)
        if store.identifies_states:
            return await _ask_bound(store, requests)
        own = [(key, request) for key, request, _ in requests]
        if self._answers is None:
            buffers = await self._ask([*self._others, *own])
            self._answers, buffers = buffers[: len(self._others)], buffers[len(self._others) :]
        else:
            buffers = await self._ask(own)
        return [None if buffer is None else Answer(buffer.as_numpy_array()) for buffer in buffers]

    async def others(self) -> list[Any]:
        """Return the answers to the other requests: buffers of zarr, None for a missing object. Send them if not sent yet."""
        if self._answers is None:
            self._answers = await self._ask(self._others) if self._others else []
        return self._answers

    async def _ask(self, requests: Sequence[tuple[str, Any]]) -> list[Any]:
        try:
            return list(await self._store.get_partial_values(self.prototype, requests))
        except (NotImplementedError, FileNotFoundError):  # LocalStore raises for an absent key
            store = store_of(self._store)
            permits, most = budget.of_store(store.budget_name).requests, store.limits().n_requests

            async def get(key: str, request: Any) -> Any:
                async with permits.hold(1, most):
                    return await self._store.get(key, self.prototype, request)

            return await all_of(get(*each) for each in requests)


class BatchedRemote:
    """A `Remote` that only coroutines run by `in_step` can await: `in_step` sends its requests."""

    budget_name = None

    async def get(self, key: str) -> Answer | None:
        """Return a whole object; None if it does not exist."""
        (answer,) = await _ask_in_step([(key, None, None)])
        return answer

    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; None if it does not exist. A state of None accepts any state."""
        (answer,) = await self.get_ranges(key, [(start, end - start)], state)
        return answer

    async def get_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], state: Any = None
    ) -> list[Answer | None]:
        """Return several ranges (offset, nbytes) of an object; the same rules as for `get_range`."""
        if not ranges:
            return []
        return await _ask_in_step([(key, RangeByteRequest(a, a + n), state) for a, n in ranges])

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

    In each step, every coroutine runs until it needs answers from the store. One call of `ask` then sends the requests of all
    coroutines, and each gets its answers. So any number of coroutines that need answers k times take k calls.

    They may await a `BatchedRemote` only. Returns their results in order. The first error is raised, in the order of steps and
    then of `readers`, or an error of `ask`; all other coroutines are closed.
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
            answered = iter(await ask(together) if together else [])
            answers = {number: [next(answered) for _ in own] for number, own in asked.items()}
    finally:
        for reader in readers:
            reader.close()
    return [results[number] for number in range(len(readers))]


def _resume(reader: Coroutine[Any, Any, Any], answers: list[Any] | None) -> list[Request]:
    """Run a coroutine with its answers until it needs the next ones; return its next requests.

    If an answer is `ObjectChanged`, the first such error is raised inside the coroutine instead. At the end of the coroutine
    StopIteration is raised; ``.value`` is its result.
    """
    changed = next((answer for answer in answers or () if isinstance(answer, ObjectChanged)), None)
    return reader.send(answers) if changed is None else reader.throw(changed)  # type: ignore[no-any-return]


async def _ask_bound(store: AnyStore, requests: Sequence[Request]) -> list[Answer | ObjectChanged | None]:
    """Send each request on its own, bound to its state; return the answers as `Ask` does."""
    limited = LimitedRemote(store, store.limits().n_requests)

    async def get(key: str, request: Any, state: Any) -> Answer | ObjectChanged | None:
        if request is None:
            return await limited.get(key)
        if isinstance(request, SuffixByteRequest):
            return await limited.get_suffix(key, request.suffix)
        try:
            return await limited.get_range(key, request.start, request.end, state)
        except ObjectChanged as error:
            return error

    return await all_of(get(*each) for each in requests)
