# virtual_objects.py - an object store on a virtual loop, whose service and network fail by choice
# SPDX-License-Identifier: MIT
"""`Service`: objects with entity tags; `Client`: an obstore of one process, whose requests take a course that is chosen.

A request is sent, reaches the service, which carries it out in one step, and its answer comes back; each of these is an event.
The client repeats as the one of obstore does: after a status of 429 and 5xx, and after a cut connection if the request may be
repeated (a read, or a write without a condition), with pauses, until a number of attempts. What is not modelled is listed in docs/testing.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import copy_context
from enum import Enum, auto
from functools import partial
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import obstore
from faults.virtual_loop import OPERATION, PROCESS, Choices, Owner, VirtualLoop
from obstore import exceptions

__all__ = ["Client", "Course", "GcsClient", "Service", "virtual_obstore"]

# The first pause of the client before it repeats, and the time after which it gives up an answer, in seconds.
PAUSE = 0.1
TIMEOUT_SECONDS = 30.0


class Course(Enum):
    """What becomes of one attempt of a request."""

    DONE = auto()
    NOT_SENT = auto()  # no connection
    CUT_BEFORE = auto()  # the connection is cut, and the request is not carried out
    CUT_AFTER = auto()  # it is carried out, and its answer is lost
    REFUSED = auto()  # a status of 503 or 429
    REFUSED_AFTER = auto()  # it is carried out, and the answer is a status of 500
    SILENT = auto()  # no answer; it is carried out before or after the client gives up, or never
    CONFLICT = auto()  # a status of 409 for a write with a condition


# Courses in which the service does not carry out a request.
BEFORE = (Course.NOT_SENT, Course.CUT_BEFORE, Course.REFUSED, Course.CONFLICT)


class Stored(NamedTuple):
    """An object; it is `number` among all that the service has stored."""

    data: bytes
    number: int
    attributes: dict[str, str]
    e_tag: str


class _Failed(Exception):
    """An attempt without a result."""

    def __init__(self, course: Course) -> None:
        super().__init__(course.name)
        self.course = course


class Service:
    """Objects. noted: called at each change with key, old and new bytes. by_content: equal bytes have equal entity tags, as in S3."""

    def __init__(
        self,
        loop: VirtualLoop,
        choices: Choices,
        noted: Callable[[str, bytes | None, bytes | None], None],
        *,
        fault_weight: float,
        by_content: bool,
        most_attempts: int,
    ) -> None:
        self.loop, self.choices = loop, choices
        self.objects: dict[str, Stored] = {}
        self.most_attempts = most_attempts
        self.n_faults = 0
        self._noted = noted
        self._fault_weight = fault_weight
        self._by_content = by_content
        self._n = 0

    def set(self, key: str, data: bytes, attributes: dict[str, str] | None = None) -> Stored:
        self._n += 1
        e_tag = hashlib.md5(data).hexdigest() if self._by_content else str(self._n)
        before = self.objects.get(key)
        new = self.objects[key] = Stored(data, self._n, attributes or {}, f'"{e_tag}"')
        self._noted(key, None if before is None else before.data, data)
        return new

    def delete(self, key: str) -> None:
        before = self.objects.pop(key, None)
        if before is not None:
            self._noted(key, before.data, None)

    def stop_faults(self) -> None:
        """Let all later requests succeed."""
        self._fault_weight = 0.0

    def course(self, *, is_conditional: bool) -> Course:
        """Choose the course of an attempt."""
        courses = [c for c in Course if is_conditional or c is not Course.CONFLICT]
        faults = len(courses) - 1
        chosen = courses[self.choices.pick([1.0, *[self._fault_weight / faults] * faults])]
        self.n_faults += chosen is not Course.DONE
        return chosen


class _Attempt:
    """One attempt of a request, which reaches the service and whose answer comes back, each as an event."""

    def __init__(
        self, service: Service, what: str, key: str, act: Callable[[], Any], *, is_conditional: bool
    ) -> None:
        self._service, self._what, self._key = service, what, key
        self._act = partial(copy_context().run, act)  # what is stored tells who stores it
        self._owner = OPERATION.get() or Owner()
        self._course = service.course(is_conditional=is_conditional)
        self._answer: asyncio.Future[Any] = service.loop.create_future()
        # A write without a condition that is carried out after the client has given up could undo any later one, and no
        # client can help that. So it is not modelled.
        silent = self._course is Course.SILENT
        self._is_late = silent and bool(service.choices.pick([2, 1 if is_conditional else 0]))

    async def answer(self) -> Any:
        loop, what = self._service.loop, self._what
        loop.expect(f"{what}: {self._course.name}", self._reach)
        if self._course is Course.SILENT:
            give_up = partial(self._tell, None, _Failed(self._course))
            loop.expect_later(TIMEOUT_SECONDS, f"{what}: no answer", give_up)
            if self._is_late:
                loop.expect_later(TIMEOUT_SECONDS + 1, f"{what}: late", self._come_late)
        return await self._answer

    def _reach(self) -> None:
        if self._course is Course.SILENT:
            if not self._is_late and not self._answer.done() and self._may_be():
                self._carry_out()
            return
        result, error = None, None
        if self._course in BEFORE:
            error = _Failed(self._course)
        elif self._answer.done() and self._may_be():  # the caller was cancelled, and the request with it
            return
        else:
            result, error = self._carry_out()
            if self._course is not Course.DONE:
                error = _Failed(self._course)
        what = f"{self._what}: answer {error or ''}"
        self._service.loop.expect(what, partial(self._tell, result, error))

    def _come_late(self) -> None:
        self._carry_out()
        self._owner.look_failed(self._key)  # or it has come too early

    def _may_be(self) -> bool:
        return self._service.choices.pick([1, 1]) == 1

    def _carry_out(self) -> tuple[Any, Exception | None]:
        try:
            return self._act(), None
        except (exceptions.BaseError, FileNotFoundError) as error:
            return None, error

    def _tell(self, result: Any, error: Exception | None) -> None:
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(result)
        else:
            self._answer.set_exception(error)


class Client:
    """An obstore of one process. Its class is named as the one of obstore for its service."""

    client_options: ClassVar[dict[str, str]] = {}

    def __init__(self, service: Service, name: str) -> None:
        self.service = service
        self.prefix = name
        self.config = {"bucket": name}
        self.n_under_way = 0
        self.most_under_way = 0
        self.n_requests = 0
        self.n_uploads = 0  # multipart uploads that were neither completed nor aborted

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefix})"

    async def ask(
        self,
        verb: str,
        key: str,
        act: Callable[[], Any],
        *,
        repeats: bool = True,
        is_conditional: bool = False,
    ) -> Any:
        """Carry out a request, repeat it as the client of obstore does, and return what `act` returns at the service."""
        owner = OPERATION.get() or Owner()
        owner.n_under_way += 1
        self.n_under_way += 1
        self.most_under_way = max(self.most_under_way, self.n_under_way)
        self.n_requests += 1
        try:
            return await self._ask(verb, key, act, repeats=repeats, is_conditional=is_conditional)
        finally:
            self.n_under_way -= 1
            owner.n_under_way -= 1

    async def _ask(
        self, verb: str, key: str, act: Callable[[], Any], *, repeats: bool, is_conditional: bool
    ) -> Any:
        n, pause = 0, PAUSE
        what = f"{verb} {key} of {self.prefix}" if key else f"{verb} of {self.prefix}"
        while True:
            try:
                return await self._attempt(what, key, act, is_conditional=is_conditional)
            except asyncio.CancelledError:
                self._note(verb, key)
                raise
            except _Failed as failure:
                course = failure.course
                self._note(verb, key)
                may_repeat = repeats or course in (
                    Course.NOT_SENT,
                    Course.REFUSED,
                    Course.REFUSED_AFTER,
                    Course.CONFLICT,
                )
                if not may_repeat or n == self.service.most_attempts:
                    raise exceptions.GenericError(_message(what, course.name, n)) from None
            except exceptions.BaseError as error:
                raise type(error)(_message(what, str(error), n)) from None
            n += 1
            await asyncio.sleep(pause)
            pause *= 2

    def _note(self, verb: str, key: str) -> None:
        if verb in ("get", "body"):
            (OPERATION.get() or Owner()).look_failed(key)

    async def _attempt(self, what: str, key: str, act: Callable[[], Any], *, is_conditional: bool) -> Any:
        process = PROCESS.get()
        if process is not None and process.is_gone:
            raise _Failed(Course.NOT_SENT)
        return await _Attempt(self.service, what, key, act, is_conditional=is_conditional).answer()

    # ---- the requests of obstore

    async def get(self, key: str, options: dict[str, Any]) -> _Result:
        def act() -> _Result:
            stored = self._stored(key)
            if options.get("if_match", stored.e_tag) != stored.e_tag:
                raise exceptions.PreconditionError("412")
            first, end = 0, len(stored.data)
            match options.get("range"):
                case (first, last):
                    end = min(end, last)
                    if first >= len(stored.data):
                        raise exceptions.GenericError("416")
                case {"suffix": n}:
                    first = max(0, end - n)
            return _Result(self, key, stored, stored.data[first:end])

        return await self.ask("get", key, act)  # type: ignore[no-any-return]

    async def put(self, key: str, data: Any, mode: Any, attributes: dict[str, str]) -> dict[str, Any]:
        body = _bytes_of(data)

        def act() -> dict[str, Any]:
            stored = self.service.objects.get(key)
            if mode == "create" and stored is not None:
                raise exceptions.AlreadyExistsError("412")
            if isinstance(mode, dict) and (stored is None or not self._is_state(stored, mode)):
                raise exceptions.PreconditionError("412")
            return self._meta(self.service.set(key, body, attributes))

        is_conditional = mode is not None
        verb, shown = ("probe", "") if "/." in f"/{key}" else ("put", key)
        return await self.ask(verb, shown, act, repeats=not is_conditional, is_conditional=is_conditional)  # type: ignore[no-any-return]

    async def upload(
        self, key: str, pieces: AsyncIterator[Any], part_nbytes: int, attributes: dict[str, str]
    ) -> dict[str, Any]:
        """Store an object in parts, which nobody sees before the last request."""
        parts: list[bytes] = []
        is_open = False  # without the answer to its first request, no client knows an upload

        def complete() -> dict[str, Any]:
            nonlocal is_open
            if not is_open:
                raise FileNotFoundError("NoSuchUpload")
            is_open = False
            self.n_uploads -= 1
            return self._meta(self.service.set(key, b"".join(parts), attributes))

        def abort() -> None:
            nonlocal is_open
            self.n_uploads -= is_open
            is_open = False

        await self.ask("begin upload", key, lambda: None, repeats=False)
        is_open = True
        self.n_uploads += 1
        try:
            rest = b""
            async for piece in pieces:
                rest += bytes(piece)
                while len(rest) > part_nbytes:
                    part, rest = rest[:part_nbytes], rest[part_nbytes:]
                    await self.ask("part", key, lambda: None)
                    parts.append(part)
            await self.ask("part", key, lambda: None)
            parts.append(rest)
            return await self.ask("complete upload", key, complete)  # type: ignore[no-any-return]
        except BaseException:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # a task that is cancelled does not abort
                with contextlib.suppress(exceptions.BaseError):
                    await self.ask("abort upload", key, lambda: None)
                abort()  # or nobody could
            raise

    async def head(self, key: str) -> dict[str, Any]:
        return await self.ask("head", key, lambda: self._meta(self._stored(key)))  # type: ignore[no-any-return]

    async def delete(self, key: str) -> None:
        await self.ask("delete", key, lambda: self.service.delete(key))

    # ---- objects

    def _stored(self, key: str) -> Stored:
        try:
            return self.service.objects[key]
        except KeyError:
            raise FileNotFoundError(key) from None

    def _is_state(self, stored: Stored, state: dict[str, str]) -> bool:
        return bool(state["e_tag"] == stored.e_tag)

    def _meta(self, stored: Stored) -> dict[str, Any]:
        return {"size": len(stored.data), "e_tag": stored.e_tag, "version": None}


class GcsClient(Client):
    """The same for a service that compares generations."""

    def _is_state(self, stored: Stored, state: dict[str, str]) -> bool:
        return state["version"] == str(stored.number)

    def _meta(self, stored: Stored) -> dict[str, Any]:
        return {**super()._meta(stored), "version": str(stored.number)}


Client.__module__ = GcsClient.__module__ = "obstore.store"  # zarr looks at it
Client.__name__, GcsClient.__name__ = "S3Store", "GCSStore"


class _Result:
    """An answer of `get`, whose body comes later."""

    def __init__(self, client: Client, key: str, stored: Stored, body: bytes) -> None:
        self._client, self._key, self._body = client, key, body
        self.meta = client._meta(stored)
        self.attributes = stored.attributes

    async def bytes_async(self) -> bytes:
        await self._client.ask("body", self._key, lambda: None)
        return self._body

    async def stream(self, _nbytes: int) -> AsyncIterator[bytes]:
        yield await self.bytes_async()


def _message(what: str, why: str, n: int) -> str:
    return f"Error performing {what}, after {n} retries: {why}"


def _bytes_of(data: Any) -> bytes:
    return b"".join(map(bytes, data)) if isinstance(data, tuple) else bytes(data)


# ---------------------------------------------------------------- obstore, for these clients


async def _get_async(store: Client, key: str, *, options: dict[str, Any] | None = None) -> Any:
    if options and options.get("head"):
        result = await store.get(key, {})
        return result
    return await store.get(key, options or {})


async def _put_async(
    store: Client,
    key: str,
    data: Any,
    *,
    mode: Any = None,
    attributes: dict[str, str] | None = None,
    use_multipart: bool | None = None,
    chunk_size: int = 5 << 20,
    max_concurrency: int = 12,
) -> Any:
    if isinstance(data, AsyncIterator):
        return await store.upload(key, data, chunk_size, attributes or {})
    return await store.put(key, data, mode, attributes or {})


@contextlib.contextmanager
def virtual_obstore() -> Iterator[None]:
    """Replace the functions of obstore by those for `Client`."""
    with mock.patch.multiple(
        obstore,
        get_async=_get_async,
        put_async=_put_async,
        head_async=Client.head,
        delete_async=Client.delete,
    ):
        yield
