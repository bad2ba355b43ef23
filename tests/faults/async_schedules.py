#!/usr/bin/env python3
# async_schedules.py - random and enumerated schedules of the asynchronous side, on a virtual event loop
# SPDX-License-Identifier: MIT
"""Runs writers and readers of shards in an object store, in several simulated processes, and checks every step of the store.

    tests/faults/async_schedules.py --seed 1 --seconds 60
    tests/faults/async_schedules.py --only random/1/17
    tests/faults/async_schedules.py --only update+erase/100/0,0,1

The last line is the number of schedules. A schedule with a problem is printed with the command that makes it again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import numpy as np  # noqa: E402
import zarr  # noqa: E402
from faults.virtual_loop import (  # noqa: E402
    PROCESS,
    Choices,
    Listed,
    Process,
    Random,
    Violation,
    VirtualLoop,
    running,
    virtual_package,
)
from faults.virtual_objects import Client, GcsClient, Service, virtual_obstore  # noqa: E402
from helpers import ABSENT, assemble, chunk_bytes, entries_of, letters_index_nbytes  # noqa: E402
from obstore.exceptions import GenericError  # noqa: E402
from spec_json import CRC, LITTLE  # noqa: E402
from zarr.core.buffer import default_buffer_prototype  # noqa: E402
from zarr.core.metadata import ArrayV3Metadata  # noqa: E402
from zarr.storage import ObjectStore, StorePath  # noqa: E402

import shardcodec  # noqa: E402
from shardcodec import GroupWriteError, LockError  # noqa: E402
from shardcodec.access import array_io  # noqa: E402
from shardcodec.errors import ConflictError  # noqa: E402
from shardcodec.kv import FAILED, ShardedKeyValueStore, Transaction  # noqa: E402
from shardcodec.storage import budget, conditions, object_store, waiting  # noqa: E402

# Two shards of four inner chunks of two elements, and one shard of a key-value store with four entries.
N_ELEMENTS, SHARD, INNER, N_INNER = 16, 8, 2, 4
SHARDS = ("a/c/0", "a/c/1")
KEYS = [bytes([0, 0, 0, i]) for i in range(N_INNER)]
KV = "kv"

MAX_REQUESTS = 400  # of one operation
MAX_PROBLEMS = 20
COLLECT = 200  # schedules between two collections of garbage

State = tuple[Any, ...]
NOTHING: dict[str, State] = {**dict.fromkeys(SHARDS, (0,) * SHARD), KV: (None,) * N_INNER}


def document(*, at_start: bool) -> dict[str, Any]:
    sharding = {
        "chunk_shape": [INNER],
        "codecs": [LITTLE],
        "index_codecs": [LITTLE, CRC],
        "index_location": "start" if at_start else "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [N_ELEMENTS],
        "data_type": "int64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [SHARD]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
    }


DOCUMENTS = [ArrayV3Metadata.from_dict(document(at_start=at_start)) for at_start in (False, True)]
SPECS = [shardcodec.ShardSpec.from_metadata(document(at_start=at_start)) for at_start in (False, True)]


def decoded(key: str, data: bytes | None, *, at_start: bool) -> State:
    """Return the elements or the values of a stored shard, by the rules of the format alone."""
    if data is None:
        return NOTHING[key]
    entries = entries_of(data, N_INNER, at_start=at_start and key != KV)
    chunks = [None if entry[0] == ABSENT else chunk_bytes(data, entry) for entry in entries]
    if key == KV:
        return tuple(chunks)
    zero = bytes(8 * INNER)
    return tuple(np.frombuffer(b"".join(zero if c is None else c for c in chunks), dtype="<i8").tolist())


# ---------------------------------------------------------------- what operations do


class Operation:
    """A write: for each object the new elements or values by position, and what the store has of them.

    replaces: it depends on nothing that is stored. in_pieces: parts of it may be stored one after the other. expects: values that must be stored
    when it is carried out (conditional writes of the key-value store).
    """

    def __init__(
        self,
        name: str,
        changes: dict[str, dict[int, Any]],
        *,
        replaces: bool = False,
        in_pieces: bool = False,
    ) -> None:
        self.name = name
        self.changes = changes
        self.replaces, self.in_pieces = replaces, in_pieces
        self.expects: dict[int, Any] = {}
        self.is_over = False
        self.applied: dict[str, dict[int, Any]] = {}
        self.last_number: dict[str, int] = {}

    def __str__(self) -> str:
        return f"{self.name} {self.changes}"


OPERATION: ContextVar[Operation | None] = ContextVar("operation", default=None)


class World:
    """One schedule: its service, its processes, all states of all objects, and the checks."""

    def __init__(self, choices: Choices, setup: Choices, *, fault_weight: float) -> None:
        self.setup = setup
        self.at_start = bool(setup.pick([3, 1]))
        self.loop = VirtualLoop(choices)
        self.service = Service(
            self.loop,
            choices,
            self._noted,
            fault_weight=fault_weight,
            by_content=bool(setup.pick([2, 1])),
            most_attempts=(10, 0, 1)[setup.pick([2, 1, 1])],
        )
        self.client_class = (Client, GcsClient)[setup.pick([2, 1])]
        self.limits = budget.Limits(
            n_requests=(3, 1)[setup.pick([1, 1])],
            max_gap_nbytes=0,
            free_gap_nbytes=0,
            read_nbytes=(256, 16)[setup.pick([1, 1])],
            most_objects=2,
            write_nbytes=(1 << 20, 100)[setup.pick([1, 1])],
        )
        # (step, state) of each object, in the order in which they became true
        self.states: dict[str, list[tuple[int, State]]] = {key: [(0, NOTHING[key])] for key in NOTHING}
        self.wrong: list[str] = []
        self.members: list[Member] = []
        self._values = itertools.count(1)
        self._n_changes = dict.fromkeys(NOTHING, 0)

    def value(self) -> int:
        return next(self._values)

    # ---- each change of an object

    def _noted(self, key: str, before: bytes | None, after: bytes | None) -> None:
        if key not in NOTHING:
            return
        operation = OPERATION.get()
        try:
            new = decoded(key, after, at_start=self.at_start)
        except (AssertionError, ValueError) as error:
            self.wrong.append(f"{operation} has stored a damaged {key}: {error!r}")
            return
        old = self.states[key][-1][1]
        self._n_changes[key] += 1
        self.states[key].append((self.loop.n_steps, new))
        if operation is None:
            self.wrong.append(f"nobody has stored {key}: {old} became {new}")
        else:
            self._check_change(operation, key, old, new)

    def _check_change(self, operation: Operation, key: str, old: State, new: State) -> None:
        number = self._n_changes[key]
        if operation.is_over:
            self.wrong.append(f"{operation} has changed {key} after its end: {old} became {new}")
        changes = operation.changes.get(key, {})
        expected = tuple(changes.get(i, value) for i, value in enumerate(old))
        if operation.in_pieces:
            is_right = all(b in (a, changes.get(i, a)) for i, (a, b) in enumerate(zip(old, new, strict=True)))
        else:
            is_right = new == expected
        if not is_right:
            self.wrong.append(f"{operation} has made of {key} {old}: {new}, expected {expected}")
        for i, value in operation.expects.items():
            if old[i] != value:
                self.wrong.append(f"{operation} expected {value!r} as entry {i}, but {old} is stored")
        last = operation.last_number.get(key)
        if last == number - 1 and not operation.replaces and not operation.in_pieces and new != old:
            self.wrong.append(f"{operation} has stored {key} twice, with no other writer in between")
        operation.last_number[key] = number
        applied = operation.applied.setdefault(key, {})
        applied.update((i, value) for i, value in changes.items() if new[i] == value)

    # ---- the end of an operation

    def acknowledge(self, operation: Operation) -> None:
        """Check that a write that returned is stored."""
        operation.is_over = True
        for key, changes in operation.changes.items():
            applied = operation.applied.get(key, {})
            missing = {i: v for i, v in changes.items() if i not in applied}
            # nothing need be stored where nothing changes
            if missing and not any(
                all(state[i] == value for i, value in missing.items()) for _, state in self.states[key]
            ):
                self.wrong.append(f"{operation} was acknowledged, but {missing} was never stored in {key}")

    def check_read(self, key: str, first: int, values: Sequence[Any], begin: int) -> None:
        """Check that elements which were read since the step `begin` are those of one state of the object."""
        states = self.states[key]
        start = max(i for i, (step, _) in enumerate(states) if step <= begin)
        possible = [state[first : first + len(values)] for _, state in states[start:]]
        if tuple(values) not in possible:
            self.wrong.append(
                f"a read of {key}[{first}:] has got {tuple(values)}, expected one of {possible}"
            )

    # ---- the run

    def add(self, name: str) -> Member:
        member = Member(self, name)
        self.members.append(member)
        return member

    def run(
        self, tasks: Sequence[tuple[Member, Callable[[Member], Coroutine[Any, Any, None]]]], disturb: Any
    ) -> None:
        """Run tasks, and the disturbances that `disturb` starts, to the end, and check what is left."""
        loop = self.loop
        running_tasks: list[asyncio.Task[None]] = []

        async def begin() -> None:
            for member, work in tasks:
                running_tasks.append(member.start(work(member)))
            disturb(running_tasks)

        with running(loop):
            loop.run_until_complete(begin())
            loop.settle()
            for member in self.members:
                member.clean_up()
            loop.settle()
            loop.switch_away()
            self.wrong += loop.failures
            if pending := loop.pending():
                self.wrong.append(f"tasks wait for ever: {pending}")
            for member in self.members:
                member.check()
            self._check_budgets()

    def _check_budgets(self) -> None:
        for name, budgets in budget._budgets.get(self.loop, {}).items():
            for kind, amount in budgets._asdict().items():
                if amount._held or any(not turn.granted.done() for turn in amount._waiting):
                    self.wrong.append(
                        f"the budget {kind} of {name} holds {amount._held}, {amount._waiting} wait"
                    )


# ---------------------------------------------------------------- processes and their tasks


class Member:
    """A process of a schedule, its client, its array and its key-value store."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.process = Process(name)
        self.client = world.client_class(world.service, name)
        self.store = ObjectStore(self.client)
        self.store._is_open = True
        self.array = zarr.AsyncArray(DOCUMENTS[world.at_start], StorePath(self.store, "a"))
        self.tasks: list[asyncio.Task[None]] = []
        self.was_lost = False
        self.was_disturbed = False

    @cached_property
    def key_values(self) -> ShardedKeyValueStore:
        place = self.store, KV
        return ShardedKeyValueStore(place, grid_shape=(N_INNER,), index_codecs=[LITTLE, CRC])

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task of this process, as an event."""
        token = PROCESS.set(self.process)
        try:
            gate = self.world.loop.create_future()
            task = asyncio.create_task(self._run(gate, work), name=f"{self.process.name}{len(self.tasks)}")
        finally:
            PROCESS.reset(token)
        self.world.loop.expect(
            f"start {task.get_name()}", lambda: gate.done() or gate.set_result(None), self.process
        )
        self.tasks.append(task)
        return task

    async def _run(self, gate: asyncio.Future[None], work: Coroutine[Any, Any, None]) -> None:
        try:
            await gate
            await work
        except asyncio.CancelledError:
            pass
        except Exception as error:
            text = "".join(traceback.format_exception(error)[-4:])
            self.world.wrong.append(f"{self.process.name}: {text}")
        finally:
            work.close()

    def lose(self) -> None:
        """Let the process run nothing any more."""
        self.was_lost = self.process.is_lost = True

    def clean_up(self) -> None:
        """Unwind what a lost process has left; its requests go nowhere."""
        if not self.process.is_lost:
            return
        self.process.is_gone = True
        self.process.is_lost = False
        for task in self.tasks:
            task.cancel()
        self.world.loop._ready.extend(self.process.parked)

    def check(self) -> None:
        wrong, limits = self.world.wrong, self.world.limits
        # a probe is sent beside the read of the first update
        if self.client.most_under_way > limits.n_requests + 1:
            wrong.append(
                f"{self.client.most_under_way} requests at the same time, expected {limits.n_requests}"
            )
        if self.was_lost:
            return
        if self.client.n_uploads:
            wrong.append(f"{self.client.n_uploads} uploads were neither completed nor aborted")
        if self.process.buffer is not None and not self.was_disturbed:
            wrong.append(f"the buffer has {self.process.buffer.names()} after all blocks")

    # ---- operations

    @contextlib.asynccontextmanager
    async def writing(self, operation: Operation) -> Any:
        """Run a write, and note its end."""
        world = self.world
        token = OPERATION.set(operation)
        n_requests, n_faults = self.client.n_requests, world.service.n_faults
        began = world.loop.time()
        try:
            yield
        except (GenericError, GroupWriteError, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and "NoSuchUpload" not in str(error):
                raise
            if world.service.n_faults == n_faults and not self.process.is_gone:
                world.wrong.append(f"{operation} failed without a fault: {error!r}")
        except LockError as error:
            if world.loop.time() - began < 50:
                world.wrong.append(f"{operation} gave up after {world.loop.time() - began} s: {error!r}")
        else:
            world.acknowledge(operation)
        finally:
            OPERATION.reset(token)
            if self.client.n_requests - n_requests > MAX_REQUESTS:
                world.wrong.append(f"{operation} took {self.client.n_requests - n_requests} requests")

    def _elements(self, first: int, values: Sequence[int]) -> dict[str, dict[int, int]]:
        changes: dict[str, dict[int, int]] = {}
        for i, value in enumerate(values, first):
            changes.setdefault(SHARDS[i // SHARD], {})[i % SHARD] = value
        return changes

    async def store_elements(self, first: int, values: Sequence[int], name: str) -> None:
        last = first + len(values)
        replaces = first % SHARD == 0 and last % SHARD == 0
        operation = Operation(name, self._elements(first, values), replaces=replaces)
        async with self.writing(operation):
            await self.array.setitem(slice(first, last), np.array(values, dtype="i8"))

    async def update(self) -> None:
        """Write some elements, of one shard or of both."""
        first, n = ((1, 3), (4, 2), (6, 4), (0, 1), (9, 5))[self.world.setup.pick([1] * 5)]
        await self.store_elements(first, [self.world.value()] * n, "update")

    async def replace(self) -> None:
        """Write all elements of a shard, or of both."""
        first, n = ((0, SHARD), (0, 2 * SHARD))[self.world.setup.pick([2, 1])]
        await self.store_elements(first, [self.world.value()] * n, "replace")

    async def erase(self) -> None:
        """Write the fill value to a shard, or to a part of it."""
        first, n = ((0, SHARD), (0, 4), (4, 4))[self.world.setup.pick([1, 1, 1])]
        await self.store_elements(first, [0] * n, "erase")

    async def read(self) -> None:
        """Read all elements, or some."""
        first, n = ((0, 2 * SHARD), (0, SHARD), (1, 3), (6, 2))[self.world.setup.pick([1] * 4)]
        await self.read_elements(first, n)

    async def read_elements(self, first: int, n: int) -> None:
        begin, n_faults = self.world.loop.n_steps, self.world.service.n_faults
        try:
            values = np.asarray(await self.array.getitem(slice(first, first + n))).tolist()
        except GenericError as error:
            if self.world.service.n_faults == n_faults and not self.process.is_gone:
                self.world.wrong.append(f"a read failed without a fault: {error!r}")
            return
        for at in range(first, first + n, SHARD - first % SHARD):
            end = min(first + n, at - at % SHARD + SHARD)
            self.world.check_read(SHARDS[at // SHARD], at % SHARD, values[at - first : end - first], begin)

    async def group(self) -> None:
        """Write elements one after the other in a block, which stores them at its end, or when it has too many."""
        choices = self.world.setup
        firsts = ((0, 2, 4), (1, 3, 9), (5, 12))[choices.pick([1, 1, 1])]
        max_bytes = (1 << 20, 0)[choices.pick([2, 1])]
        operation = Operation("group", {}, in_pieces=True)
        async with self.writing(operation), shardcodec.group_writes(max_bytes):
            for first in firsts:
                value = self.world.value()
                for key, change in self._elements(first, [value]).items():
                    operation.changes.setdefault(key, {}).update(change)
                await self.array.setitem(slice(first, first + 1), np.array([value]))

    # ---- the key-value store

    async def put_key(self) -> None:
        i = self.world.setup.pick([1] * N_INNER)
        value = b"%d" % self.world.value()
        async with self.writing(Operation("put_key", {KV: {i: value}})):
            await self.key_values.write(KEYS[i], value)

    async def delete_key(self) -> None:
        i = self.world.setup.pick([1] * N_INNER)
        async with self.writing(Operation("delete_key", {KV: {i: None}})):
            await self.key_values.delete(KEYS[i])

    async def exchange_key(self) -> None:
        """Read a value, and write it if nothing has changed since."""
        i = self.world.setup.pick([1, 1])
        value = b"%d" % self.world.value()
        operation = Operation("exchange_key", {KV: {i: value}})
        async with self.writing(operation):
            result = await self.key_values.read(KEYS[i])
            operation.expects = {i: result.value if result.state == "value" else None}
            stamp = await self.key_values.write(KEYS[i], value, if_equal=result.stamp.generation)
            if stamp.generation == FAILED:
                if KV in operation.applied:
                    self.world.wrong.append(f"{operation} is stored, but was reported as failed")
                operation.changes = {}

    async def transaction(self) -> None:
        """Copy one value to another entry, in a transaction with repeatable reads."""
        value = b"%d" % self.world.value()
        operation = Operation("transaction", {KV: {2: value}})
        async with self.writing(operation):
            transaction = Transaction(repeatable_read=True)
            bound = self.key_values.with_transaction(transaction)
            try:
                result = await bound.read(KEYS[0])
                operation.expects = {0: result.value if result.state == "value" else None}
                await bound.write(KEYS[2], value)
                await transaction.commit()
            except ConflictError as error:
                if KV in operation.applied:
                    self.world.wrong.append(f"{operation} is stored, but was reported as failed: {error!r}")
                operation.changes = {}

    async def read_keys(self) -> None:
        begin, n_faults = self.world.loop.n_steps, self.world.service.n_faults
        try:
            results = await self.key_values.read_many(KEYS)
        except GenericError as error:
            if self.world.service.n_faults == n_faults and not self.process.is_gone:
                self.world.wrong.append(f"a read failed without a fault: {error!r}")
            return
        values = [result.value if result.state == "value" else None for result in results]
        self.world.check_read(KV, 0, values, begin)

    # ---- handles

    async def compact(self) -> None:
        """Pack a shard; no element changes."""
        async with self.writing(Operation("compact", {})):
            await waiting.in_thread(lambda: self._shard().compact())

    async def write_chunks(self) -> None:
        """Write inner chunks through a handle of a shard."""
        value = self.world.value()
        operation = Operation("write_chunks", {SHARDS[0]: dict.fromkeys((2, 3), value)})
        async with self.writing(operation):
            values = np.full((1, INNER), value, dtype="i8")
            await waiting.in_thread(lambda: self._shard().write_chunks([(1,)], values))

    def _shard(self) -> Any:
        return shardcodec.open_shard(self.store, SHARDS[0], SPECS[self.world.at_start], mode="r+")


ON_ARRAY = (
    Member.update,
    Member.replace,
    Member.erase,
    Member.read,
    Member.group,
    Member.compact,
    Member.write_chunks,
)
ON_KEYS = (Member.put_key, Member.delete_key, Member.exchange_key, Member.transaction, Member.read_keys)


# ---------------------------------------------------------------- schedules


@contextlib.contextmanager
def small_parts(world: World) -> Iterator[None]:
    """Let the limits of a schedule be small, so that little arrays meet them; new shards are streamed in some schedules."""
    streams = bool(world.setup.pick([2, 1]))
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(budget, "limits_of_zarr", return_value=world.limits))
        stack.enter_context(mock.patch.multiple(conditions, _checked=set(), _told=set()))
        if streams:
            stack.enter_context(
                mock.patch.multiple(
                    array_io, LEAST_NBYTES=0, PIECE_NBYTES=32, INDEXES_PER_PIECE=0, STREAMED_NBYTES=64
                )
            )
            stack.enter_context(mock.patch.multiple(object_store, PART_NBYTES=40, IN_FLIGHT_NBYTES=80))
        yield


def prepare(world: World) -> None:
    """Store the document, and in some schedules the first shard and two values."""
    text = DOCUMENTS[world.at_start].to_buffer_dict(default_buffer_prototype())["zarr.json"]
    world.service.set("a/zarr.json", text.to_bytes())
    if world.setup.pick([1, 1]):
        return
    value = world.value()
    elements = np.full(INNER, value, dtype="<i8").tobytes()
    for key, changes, chunks in (
        (SHARDS[0], dict.fromkeys(range(SHARD), value), [elements] * N_INNER),
        (KV, {0: b"zero", 2: b"two"}, [b"zero", None, b"two", None]),
    ):
        token = OPERATION.set(Operation("first", {key: changes}, replaces=True))
        world.service.set(key, shard_of(chunks, at_start=world.at_start and key != KV))
        OPERATION.reset(token)


def shard_of(chunks: Sequence[bytes | None], *, at_start: bool) -> bytes:
    """Return a shard of these inner chunks, one after the other."""
    entries, end = [], letters_index_nbytes() if at_start else 0
    for chunk in chunks:
        entries.append((ABSENT, ABSENT) if chunk is None else (end, len(chunk)))
        end += len(chunk or b"")
    return assemble(b"".join(chunk or b"" for chunk in chunks), entries, at_start=at_start)


def random_schedule(seed: str) -> World:
    """Run processes with random tasks and disturbances."""
    choices = Random(seed)
    chance = choices.random
    world = World(choices, choices, fault_weight=chance.choice((0.0, 0.05, 0.3, 1.0)))
    with small_parts(world):
        prepare(world)
        actions = chance.choice((ON_ARRAY, ON_ARRAY, ON_KEYS, (*ON_ARRAY, *ON_KEYS)))

        def task(chosen: Sequence[Any]) -> Callable[[Member], Coroutine[Any, Any, None]]:
            async def work(member: Member) -> None:
                for action in chosen:
                    await action(member)

            return work

        tasks = []
        for i in range(chance.choice((1, 2, 2, 3))):
            member = world.add("abc"[i])
            n_tasks = chance.choice(((1,), (2,), (3,), (1, 1), (1, 2)))
            for n in n_tasks:
                chosen = chance.choices(actions, k=n)
                if len(n_tasks) > 1:
                    chosen = [action for action in chosen if action is not Member.group]
                tasks.append((member, task(chosen)))

        def disturb(started: list[asyncio.Task[None]]) -> None:
            for (member, _), running_task in zip(tasks, started, strict=True):
                if chance.random() < 0.2:
                    member.was_disturbed = True
                    delay = chance.choice((0, 0, 0, 1, 40))
                    after(world, delay, f"cancel {running_task.get_name()}", running_task.cancel)
            if chance.random() < 0.2:
                member = chance.choice(tasks)[0]
                after(world, chance.choice((0, 0, 1)), f"lose {member.process.name}", member.lose)

        world.run(tasks, disturb)
    return world


PAIRS = {
    f"{one.__name__}+{other.__name__}": (one, other)
    for actions in (ON_ARRAY, ON_KEYS)
    for one, other in itertools.combinations_with_replacement(actions, 2)
}


def pair_schedule(pair: str, setup: int, choices: Listed) -> World:
    """Run two processes, each with one task, under listed choices."""
    world = World(choices, Random(f"{pair}/{setup}"), fault_weight=1.0)
    with small_parts(world):
        prepare(world)
        tasks = [(world.add(name), action) for name, action in zip("ab", PAIRS[pair], strict=True)]
        world.run(tasks, lambda _: None)
    return world


def enumerated(seed: int) -> Iterator[Schedule]:
    """Yield schedules of all pairs, first with one unusual choice, then with two."""
    for n in itertools.count():
        for pair in PAIRS:
            listed: list[int] | None = []
            while listed is not None:
                choices = Listed(listed, bound=min(2, n + 1))
                setup = seed * 100 + n
                name = f"{pair}/{setup}/{','.join(map(str, listed))}"
                yield Schedule(name, partial(pair_schedule, pair, setup, choices))
                listed = choices.following()


def at_random(seed: int) -> Iterator[Schedule]:
    """Yield random schedules."""
    for n in itertools.count():
        yield Schedule(f"random/{seed}/{n}", partial(random_schedule, f"{seed}/{n}"))


def named(name: str) -> Schedule:
    """Return the schedule of this name."""
    pair, setup, rest = name.split("/")
    if pair == "random":
        return Schedule(name, partial(random_schedule, f"{setup}/{rest}"))
    choices = Listed([int(choice) for choice in rest.split(",") if choice])
    return Schedule(name, partial(pair_schedule, pair, int(setup), choices))


def mixed(seed: int) -> Iterator[Schedule]:
    """Yield one enumerated schedule for two random ones."""
    randoms = at_random(seed)
    for schedule in enumerated(seed):
        yield from itertools.islice(randoms, 2)
        yield schedule


class Schedule(NamedTuple):
    """A schedule, by the name that makes it again."""

    name: str
    make: Callable[[], World]


def problems_of(schedule: Schedule) -> tuple[list[str], World | None]:
    """Run a schedule; return what is wrong."""
    try:
        world = schedule.make()
    except Violation as error:
        return [str(error)], None
    return world.wrong, world


def after(world: World, delay: float, what: str, happen: Callable[[], Any]) -> None:
    """Let something happen at any time after some events and a delay."""
    n = world.setup.random.randrange(12)

    def step() -> None:
        nonlocal n
        n -= 1
        if n < 0:
            happen()
        else:
            world.loop.expect(what, step)

    world.loop.expect_later(delay, what, step)


# ---------------------------------------------------------------- the command


@contextlib.contextmanager
def world_of_schedules() -> Iterator[None]:
    """Run the package on virtual loops; garbage is collected between schedules, so that it changes none."""
    gc.disable()
    with (
        shardcodec.enable(children=False, strict=True, threads=1),
        virtual_package(),
        virtual_obstore(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("error", message="partial writes", category=RuntimeWarning)
        try:
            yield
        finally:
            gc.enable()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", help="name of a schedule")
    parser.add_argument("--trace", action="store_true", help="print the events of a schedule with a problem")
    arguments = parser.parse_args()
    n = n_wrong = 0
    end = time.monotonic() + arguments.seconds
    schedules = mixed(arguments.seed) if arguments.only is None else [named(arguments.only)]
    with world_of_schedules():
        for schedule in schedules:
            if time.monotonic() >= end or n_wrong == MAX_PROBLEMS:
                break
            wrong, world = problems_of(schedule)
            n += 1
            if n % COLLECT == 0:
                gc.collect()
            if wrong:
                n_wrong += 1
                print(f"wrong: tests/faults/async_schedules.py --only {schedule.name}", *wrong, sep="\n    ")
            if world is not None and arguments.trace:
                print(*world.loop.trace, sep="\n    ")
    print(f"{n_wrong} of them with a problem")
    print(f"{n} schedules")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
