# async_world.py - one schedule of the asynchronous side: its store, all states of its objects, and the checks
# SPDX-License-Identifier: MIT
"""`World`: checks each change of an object when the service carries it out, each read, and the end of each write.

Each change must be that of one operation, applied to the state before it. So an update that was made from an older state, a torn one, and
one that comes after the end of its operation are seen at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import numpy as np
from faults.virtual_loop import OPERATION, Choices, Owner, VirtualLoop, running
from faults.virtual_objects import Client, GcsClient, Service
from helpers import ABSENT, assemble, chunk_bytes, entries_of, letters_index_nbytes
from spec_json import CRC, LITTLE
from zarr.core.metadata import ArrayV3Metadata

import shardcodec
from shardcodec.storage import budget

__all__ = [
    "DOCUMENTS",
    "INNER",
    "KV",
    "NOTHING",
    "N_INNER",
    "SHARD",
    "SHARDS",
    "SPECS",
    "Actor",
    "Operation",
    "World",
    "shard_of",
]

# Two shards of four inner chunks of two elements, and one shard of a key-value store with four entries.
N_ELEMENTS, SHARD, INNER, N_INNER = 16, 8, 2, 4
SHARDS = ("a/c/0", "a/c/1")
KV = "kv"


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


def shard_of(chunks: Sequence[bytes | None], *, at_start: bool) -> bytes:
    """Return a shard of these inner chunks, one after the other."""
    entries, end = [], letters_index_nbytes() if at_start else 0
    for chunk in chunks:
        entries.append((ABSENT, ABSENT) if chunk is None else (end, len(chunk)))
        end += len(chunk or b"")
    return assemble(b"".join(chunk or b"" for chunk in chunks), entries, at_start=at_start)


class Operation(Owner):
    """A write: for each object the new elements or values by position, and what the store has of them.

    replaces: it depends on nothing that is stored. in_pieces: parts of it may be stored one after the other. expects: values that must be stored
    when it is carried out; then it must itself be carried out (conditional writes of the key-value store). is_looked_up: if the answer to its last write is lost,
    the writer looks whether it is stored.
    """

    def __init__(
        self,
        name: str,
        changes: dict[str, dict[int, Any]],
        *,
        replaces: bool = False,
        in_pieces: bool = False,
        is_looked_up: bool = True,
    ) -> None:
        self.name = name
        self.changes = changes
        self.replaces, self.in_pieces = replaces, in_pieces
        self.is_looked_up = is_looked_up
        self.failed_looks: set[str] = (
            set()
        )  # objects at which a look has failed since the last change of each
        self.begin = 0
        self.expects: dict[int, Any] = {}
        self.is_over = False
        self.applied: dict[str, dict[int, Any]] = {}
        self.last_number: dict[str, int] = {}

    def __str__(self) -> str:
        return f"{self.name} {self.changes}"

    def look_failed(self, key: str) -> None:
        self.failed_looks.add(key)


class Actor(Protocol):
    """A process of a schedule."""

    def start(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start a task."""

    def clean_up(self) -> None:
        """Unwind what a lost process has left."""

    def check(self) -> None:
        """Note what is wrong with what is left."""


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
        self.members: list[Actor] = []
        self.streams = bool(setup.pick([2, 1]))
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
            self.wrong.append(f"{key} changed without a write: {old} became {new}")
            return
        # A late write under a condition that stores the bytes which are there changes nothing: its writer has found them and returned.
        if operation.is_over and after != before:
            self.wrong.append(f"{operation} has changed {key} after its end: {old} became {new}")
        self._check_change(operation, key, old, new)

    def _check_change(self, operation: Operation, key: str, old: State, new: State) -> None:
        number = self._n_changes[key]
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
        operation.failed_looks.discard(key)
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
            states = [] if operation.expects else self._states_since(key, operation.begin)
            if missing and not any(all(state[i] == v for i, v in missing.items()) for state in states):
                self.wrong.append(f"{operation} was acknowledged, but it has not stored {missing} in {key}")

    def check_failure(self, operation: Operation, error: Exception) -> None:
        """Check that a write which has raised is not stored, as far as the writer could know."""
        is_stored = operation.changes and all(
            operation.applied.get(key, {}).keys() >= changes.keys() and self.is_last(operation, key)
            for key, changes in operation.changes.items()
        )
        if is_stored and operation.is_looked_up and not operation.failed_looks:
            self.wrong.append(f"{operation} is stored, but was reported as failed: {error!r}")

    def is_last(self, operation: Operation, key: str) -> bool:
        """Return True if the last change of an object is that of an operation."""
        return operation.last_number.get(key) == self._n_changes[key]

    def _states_since(self, key: str, begin: int) -> list[State]:
        """Return the states that an object has had since a step."""
        states = self.states[key]
        start = max(i for i, (step, _) in enumerate(states) if step <= begin)
        return [state for _, state in states[start:]]

    def check_read(self, key: str, first: int, values: Sequence[Any], begin: int) -> None:
        """Check that elements which were read since the step `begin` are those of one state of the object."""
        possible = [state[first : first + len(values)] for state in self._states_since(key, begin)]
        if tuple(values) not in possible:
            self.wrong.append(
                f"a read of {key}[{first}:] has got {tuple(values)}, expected one of {possible}"
            )

    # ---- the run

    def run(
        self, tasks: Sequence[tuple[Any, Callable[[Any], Coroutine[Any, Any, None]]]], disturb: Any
    ) -> None:
        """Run tasks, and the disturbances that `disturb` starts, to the end, and check what is left."""
        loop = self.loop
        running_tasks: list[asyncio.Task[None]] = []

        async def begin() -> None:
            for member, work in tasks:
                running_tasks.append(member.start(work))
            disturb(running_tasks)

        with running(loop):
            loop.run_until_complete(begin())
            loop.settle()
            loop.switch_away()
            self.service.stop_faults()

            async def clean_up() -> None:
                for member in self.members:
                    member.clean_up()

            loop.run_until_complete(clean_up())
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
