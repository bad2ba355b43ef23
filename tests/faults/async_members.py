# async_members.py - the processes of a schedule, and what their tasks do
# SPDX-License-Identifier: MIT
"""`Member`: one process, with the operations of its tasks on arrays, handles and key-value stores over an object store."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from faults.async_world import (
    DOCUMENTS,
    INNER,
    KV,
    N_INNER,
    SHARD,
    SHARDS,
    SPECS,
    Operation,
    World,
)
from faults.virtual_loop import OPERATION, PROCESS, Process
from obstore.exceptions import GenericError
from spec_json import CRC, LITTLE
from zarr.storage import ObjectStore, StorePath

import shardcodec
from shardcodec import GroupWriteError, LockError
from shardcodec.errors import ConflictError
from shardcodec.kv import FAILED, NO_VALUE, ShardedKeyValueStore, Transaction
from shardcodec.storage import event_loop

__all__ = ["ON_ARRAY", "ON_KEYS", "Member"]

KEYS = [bytes([0, 0, 0, i]) for i in range(N_INNER)]
MAX_REQUESTS = 400  # of one operation


class Member:
    """A process of a schedule, its client, its array and its key-value store."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        world.members.append(self)
        self.process = Process(name)
        self.client = world.client_class(world.service, name)
        self.store = ObjectStore(self.client)
        self.store._is_open = True
        self.array = zarr.AsyncArray(DOCUMENTS[world.at_start], StorePath(self.store, "a"))
        self.tasks: list[asyncio.Task[None]] = []
        self.was_lost = False
        self.block: Operation | None = None  # the last block of group_writes

    @cached_property
    def key_values(self) -> ShardedKeyValueStore:
        place = self.store, KV
        return ShardedKeyValueStore(place, grid_shape=(N_INNER,), index_codecs=[LITTLE, CRC])

    def start(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
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

    async def _run(
        self, gate: asyncio.Future[None], work: Callable[[Any], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await gate
            await work(self)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            text = "".join(traceback.format_exception(error)[-4:])
            self.world.wrong.append(f"{self.process.name}: {text}")

    def lose(self) -> None:
        """Let the process run nothing any more."""
        self.was_lost = self.process.is_lost = True

    def clean_up(self) -> None:
        """Unwind what a lost process has left, whose requests go nowhere; store what a cancelled block has left."""
        if not self.process.is_lost:
            if self.process.buffer is not None and self.block is not None:
                block = self.block
                self.start(lambda _: self._store_rest(block))
            return
        self.process.is_gone = True
        self.process.is_lost = False
        for task in self.tasks:
            task.cancel()
        self.world.loop._ready.extend(self.process.parked)

    async def _store_rest(self, block: Operation) -> None:
        """Store what a cancelled block has left, as the next block does."""
        token = OPERATION.set(block)
        try:
            async with shardcodec.group_writes():
                pass
        finally:
            OPERATION.reset(token)

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
        if self.process.buffer is not None:
            wrong.append(f"the buffer has {self.process.buffer.names()} after all blocks")

    # ---- operations

    @contextlib.asynccontextmanager
    async def writing(self, operation: Operation) -> AsyncIterator[None]:
        """Run a read or a write, and note its end."""
        world = self.world
        token = OPERATION.set(operation)
        n_requests, n_faults = self.client.n_requests, world.service.n_faults
        began, operation.begin = world.loop.time(), world.loop.n_steps
        try:
            yield
        except (GenericError, GroupWriteError, FileNotFoundError) as error:
            if isinstance(error, FileNotFoundError) and "NoSuchUpload" not in str(error):
                raise
            if world.service.n_faults == n_faults and not self.process.is_gone:
                world.wrong.append(f"{operation} failed without a fault: {error!r}")
            if not self.process.is_gone:
                world.check_failure(operation, error)
        except LockError as error:
            if world.loop.time() - began < 50:
                world.wrong.append(f"{operation} gave up after {world.loop.time() - began} s: {error!r}")
        else:
            world.acknowledge(operation)
        finally:
            OPERATION.reset(token)
            if self.client.n_requests - n_requests > MAX_REQUESTS:
                world.wrong.append(f"{operation} took {self.client.n_requests - n_requests} requests")
            if operation.n_under_way and not self.process.is_gone:
                world.wrong.append(
                    f"{operation} has ended before {operation.n_under_way} of its requests and threads"
                )

    def _elements(self, first: int, values: Sequence[int]) -> dict[str, dict[int, int]]:
        changes: dict[str, dict[int, int]] = {}
        for i, value in enumerate(values, first):
            changes.setdefault(SHARDS[i // SHARD], {})[i % SHARD] = value
        return changes

    async def store_elements(self, first: int, values: Sequence[int], name: str) -> None:
        last = first + len(values)
        replaces = first % SHARD == 0 and last % SHARD == 0
        is_upload = self.world.streams and not self.world.at_start and any(values)
        changes = self._elements(first, values)
        operation = Operation(name, changes, replaces=replaces, is_looked_up=is_upload or not replaces)
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
        operation = Operation("read", {})
        async with self.writing(operation):
            values = np.asarray(await self.array.getitem(slice(first, first + n))).tolist()
            for at in range(first, first + n, SHARD - first % SHARD):
                end = min(first + n, at - at % SHARD + SHARD)
                key = SHARDS[at // SHARD]
                self.world.check_read(key, at % SHARD, values[at - first : end - first], operation.begin)

    async def read_twice(self) -> None:
        """Read elements, of which some are in no inner chunk, with a cached index the second time."""
        first, n = ((4, 4), (2, 2))[self.world.setup.pick([1, 1])]
        await self.read_elements(first, n)
        await self.read_elements(first, n)

    async def group(self) -> None:
        """Write elements one after the other in a block, which stores them at its end, or when it has too many."""
        choices = self.world.setup
        firsts = ((0, 2, 4), (1, 3, 9), (5, 12))[choices.pick([1, 1, 1])]
        max_bytes = (1 << 20, 0)[choices.pick([2, 1])]
        operation = self.block = Operation("group", {}, in_pieces=True, is_looked_up=False)
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
            await self.key_values.write_async(KEYS[i], value)

    async def delete_key(self) -> None:
        i = self.world.setup.pick([1] * N_INNER)
        async with self.writing(Operation("delete_key", {KV: {i: None}})):
            await self.key_values.delete_async(KEYS[i])

    async def exchange_key(self) -> None:
        """Read a value, and write it if nothing has changed since."""
        i = self.world.setup.pick([1, 1])
        value = b"%d" % self.world.value()
        operation = Operation("exchange_key", {KV: {i: value}})
        async with self.writing(operation):
            result = await self.key_values.read_async(KEYS[i])
            operation.expects = {i: result.value if result.state == "value" else None}
            stamp = await self.key_values.write_async(KEYS[i], value, if_equal=result.stamp.generation)
            if stamp.generation == FAILED:
                if self.world.is_last(operation, KV):  # or another writer came before it could look
                    self.world.wrong.append(f"{operation} is stored, but was reported as failed: stamp")
                operation.changes = {}

    async def transaction(self) -> None:
        """Copy one value to another entry, in a transaction with repeatable reads."""
        value = b"%d" % self.world.value()
        operation = Operation("transaction", {KV: {2: value}})
        async with self.writing(operation):
            transaction = Transaction(repeatable_read=True)
            bound = self.key_values.with_transaction(transaction)
            try:
                result = await bound.read_async(KEYS[0])
                operation.expects = {0: result.value if result.state == "value" else None}
                await bound.write_async(KEYS[2], value)
                await transaction.commit_async()
            except ConflictError as error:
                if self.world.is_last(operation, KV):  # or another writer came before it could look
                    self.world.wrong.append(f"{operation} is stored, but was reported as failed: {error!r}")
                operation.changes = {}

    async def read_keys(self) -> None:
        operation = Operation("read_keys", {})
        async with self.writing(operation):
            results = await self.key_values.read_many_async(KEYS)
            values = [result.value if result.state == "value" else None for result in results]
            self.world.check_read(KV, 0, values, operation.begin)

    async def take_key(self) -> None:
        """Write a value that is the same for all writers, if there is none."""
        operation = Operation("take_key", {KV: {3: b"taken"}})
        operation.expects = {3: None}
        async with self.writing(operation):
            stamp = await self.key_values.write_async(KEYS[3], b"taken", if_equal=NO_VALUE)
            if stamp.generation == FAILED:
                if self.world.is_last(operation, KV):  # or another writer came before it could look
                    self.world.wrong.append(f"{operation} is stored, but was reported as failed: stamp")
                operation.changes = {}

    # ---- handles

    async def compact(self) -> None:
        """Pack a shard; no element changes."""
        async with self.writing(Operation("compact", {})):
            await event_loop.in_thread(lambda: self._shard().compact())

    async def write_chunks(self) -> None:
        """Write inner chunks through a handle of a shard."""
        value = self.world.value()
        operation = Operation("write_chunks", {SHARDS[0]: dict.fromkeys((2, 3), value)})
        async with self.writing(operation):
            values = np.full((1, INNER), value, dtype="i8")
            await event_loop.in_thread(lambda: self._shard().write_chunks([(1,)], values))

    def _shard(self) -> Any:
        return shardcodec.open_shard(self.store, SHARDS[0], SPECS[self.world.at_start], mode="r+")


ON_ARRAY = (
    Member.update,
    Member.replace,
    Member.erase,
    Member.read,
    Member.read_twice,
    Member.group,
    Member.compact,
    Member.write_chunks,
)
ON_KEYS = (
    Member.put_key,
    Member.delete_key,
    Member.exchange_key,
    Member.transaction,
    Member.take_key,
    Member.read_keys,
)
