# schedule_processes.py - processes that stop at each call on files, and one schedule of their calls
# SPDX-License-Identifier: MIT
"""`Stage`: the processes. `Stage.run`: one schedule, from making the files to what the actors have told.

A process is used for many schedules, each in a folder with another name, because a fork takes longer than most schedules. One that was
killed is forked again.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.schedule_actors import KINDS, LAYOUTS, Op, Scene, State, Template, make_template
from faults.schedule_checks import Aftermath, Event, aftermath_of, problem_of
from faults.schedule_choices import Case, Policy, Turn
from workers import forked

import shardcodec
from shardcodec import native

__all__ = ["Outcome", "Stage"]

# As in schedule_stops.c.
MAX_ACTORS, MESSAGE_NBYTES = 6, 16384
IDLE, RUNNING, STOPPED, LOCKED_OUT, ASLEEP, GONE = range(6)

HANGS_SECONDS = 30
MAX_TURNS = 4000
CONTINUED = 16  # after one of so many schedules, and after each kill, there are more writes


class _Actor(ctypes.Structure):
    _fields_ = (
        ("state", ctypes.c_uint32),
        ("n_done", ctypes.c_uint32),
        ("budget", ctypes.c_int64),
        ("n_calls", ctypes.c_uint64),
        ("is_writing", ctypes.c_uint64),
        ("n_message", ctypes.c_uint64),
        ("call", ctypes.c_char * 24),
        ("message", ctypes.c_ubyte * MESSAGE_NBYTES),
    )

    def tell(self, message: Any) -> None:
        data = pickle.dumps(message)
        assert len(data) <= MESSAGE_NBYTES
        ctypes.memmove(self.message, data, len(data))
        self.n_message = len(data)

    def told(self) -> Any:
        return pickle.loads(ctypes.string_at(ctypes.addressof(self.message), self.n_message))


class _Shared(ctypes.Structure):
    _fields_ = (
        ("turn", ctypes.c_uint32),
        ("folder_nbytes", ctypes.c_uint32),
        ("n_changes", ctypes.c_uint64),
        ("n_unlocks", ctypes.c_uint64),
        ("folder", ctypes.c_char * 256),
        ("actors", _Actor * MAX_ACTORS),
    )


class _Library:
    """The preloaded library (schedule_stops.c)."""

    def __init__(self) -> None:
        self.calls = ctypes.CDLL(None)
        self.calls.schedule_share.restype = ctypes.c_void_p
        self.calls.schedule_run.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int, ctypes.c_int]
        address = self.calls.schedule_share()
        assert address, "no memory can be shared"
        self.shared = _Shared.from_address(address)


# No calls of a thread, or of a process that takes a slow file system for granted.
OPTIONS: dict[str, Any] = {"threads": 1, "io_latency": 0.0}


# ---------------------------------------------------------------- the processes


def in_child(work: Callable[[], Any], file: Path) -> Any:
    """Return what `work` returns in a child: it starts threads, and a process with threads cannot be forked."""
    pid = forked(lambda: file.write_bytes(pickle.dumps(work())))
    assert os.waitpid(pid, 0)[1] == 0
    return pickle.loads(file.read_bytes())


def _made(root: Path) -> dict[str, Template]:
    templates = {}
    for layout in LAYOUTS:
        (root / layout).mkdir()
        templates[layout] = make_template(root / layout, layout)
    return templates


def _warm_up(root: Path, templates: dict[str, Template]) -> None:
    """Do all work once, so that each process that is forked has imported and looked up what it needs."""
    for layout, template in templates.items():
        for name, kind in KINDS.items():
            scene = Scene(root / f"{layout}-{name}", template, "stored")
            scene.make()
            if kind.needs_other:
                scene.make_other()
            for op in kind.ops(0):
                op.perform(scene)
            aftermath_of(scene, goes_on=True, verifies=True)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"


def _work_off(ops: list[Op], scene: Scene, actor: Any) -> None:
    """Perform the parts of the work of an actor; the message has the results so far."""
    results: list[tuple[State | None, str]] = []
    for op in ops:
        try:
            results.append((op.perform(scene), ""))
        except BaseException:
            results.append((None, traceback.format_exc(limit=-6)[-1500:]))
        actor.tell(results)
        actor.n_done = len(results)


def look(scene: Scene, *, goes_on: bool, verifies: bool) -> Aftermath:
    try:
        with shardcodec.options(**OPTIONS):
            return aftermath_of(scene, goes_on=goes_on, verifies=verifies)
    except Exception:
        return Aftermath(error=traceback.format_exc(limit=-6)[-3000:])


@dataclass
class _Living:
    """An actor of the schedule that is running."""

    number: int
    ops: list[Op]
    events: list[Event]
    state: int = IDLE
    seen_unlocks: int = -1
    seen_changes: int = -1

    @property
    def is_over(self) -> bool:
        return self.state == GONE or (self.state == IDLE and bool(self.events) and self.events[-1].is_over)


@dataclass
class Outcome:
    """What has happened in one schedule. choices: the turns, as `Given` reads them."""

    turns: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    aftermath: Aftermath | None = None
    problem: str = ""

    @property
    def choices(self) -> str:
        return ",".join(self.turns)


class Stage:
    """The processes and their folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._library = _Library()
        self._shared = self._library.shared
        native.load()
        (root / "made").mkdir()
        self.templates = in_child(lambda: _made(root / "made"), root / "answer")
        with shardcodec.options(**OPTIONS):
            _warm_up(root / "made", self.templates)
        self._pids = [0] * MAX_ACTORS
        self._n_schedules = 0

    def close(self) -> None:
        for number in range(MAX_ACTORS):
            self._kill(number)

    # ---- processes

    def _pid(self, number: int) -> int:
        if not self._pids[number]:
            calls = self._library.calls
            calls.schedule_expect(number)
            self._pids[number] = forked(lambda: self._act(number))
            state = calls.schedule_wait(number, self._pids[number], HANGS_SECONDS)
            assert state == IDLE, state
        return self._pids[number]

    def _kill(self, number: int) -> None:
        if self._pids[number]:
            os.kill(self._pids[number], signal.SIGKILL)
            os.waitpid(self._pids[number], 0)
            self._pids[number] = 0
            self._shared.n_unlocks += 1

    def _act(self, number: int) -> None:
        """Be an actor, again and again."""
        calls, actor = self._library.calls, self._shared.actors[number]
        with shardcodec.options(**OPTIONS):
            while True:
                calls.schedule_join(number)
                folder, layout, start, name = actor.told()
                _work_off(KINDS[name].ops(number), Scene(Path(folder), self.templates[layout], start), actor)

    def _resume(self, number: int, budget: int) -> int:
        calls = self._library.calls
        return int(calls.schedule_run(number, budget, self._pids[number], HANGS_SECONDS))

    # ---- one schedule

    def run(self, case: Case, policy: Policy) -> Outcome:
        """Run one schedule and check it."""
        self._n_schedules += 1
        folder = self._root / str(self._n_schedules)
        scene = Scene(folder, self.templates[case.layout], case.start)
        scene.make()
        if any(KINDS[name].needs_other for name in case.kinds):
            scene.make_other()
        self._shared.folder = os.fsencode(folder)
        self._shared.folder_nbytes = len(os.fsencode(folder))
        outcome = Outcome()
        living = [self._begin(case, number, name, folder) for number, name in enumerate(case.kinds)]
        try:
            self._play(living, policy, outcome)
            outcome.events = [event for actor in living for event in actor.events]
            if not outcome.problem:
                was_killed = any(event.was_killed for event in outcome.events)
                is_chosen = self._n_schedules % CONTINUED == 0
                outcome.aftermath = look(scene, goes_on=was_killed or is_chosen, verifies=is_chosen)
                outcome.problem = problem_of(scene, outcome.events, outcome.aftermath)
        finally:
            if outcome.problem:  # what a process has in mind may be wrong
                self.close()
            shutil.rmtree(folder)
        return outcome

    def _begin(self, case: Case, number: int, name: str, folder: Path) -> _Living:
        self._pid(number)
        actor = self._shared.actors[number]
        actor.n_done = 0
        actor.tell((str(folder), case.layout, case.start, name))
        ops = KINDS[name].ops(number)
        return _Living(number, ops, [Event(op, number, i) for i, op in enumerate(ops)])

    def _play(self, living: list[_Living], policy: Policy, outcome: Outcome) -> None:
        for time in range(MAX_TURNS):
            remaining = [actor for actor in living if not actor.is_over]
            if not remaining:
                return
            turn = policy.turn(
                [actor.number for actor in self._ready(remaining)], [a.number for a in remaining]
            )
            actor = living[turn.actor]
            if turn.kills:
                outcome.turns.append(f"{turn.actor}:k")
                if self._shared.actors[turn.actor].is_writing:
                    self._resume(turn.actor, 0)
                self._kill(turn.actor)
                actor.state = GONE
                for event in actor.events:
                    event.die()
                continue
            self._take_turn(actor, turn, time, policy, outcome)
            if outcome.problem:
                return
        outcome.problem = f"no end after {MAX_TURNS} turns"

    def _take_turn(self, actor: _Living, turn: Turn, time: int, policy: Policy, outcome: Outcome) -> None:
        told = self._shared.actors[actor.number]
        n_before = sum(event.is_over for event in actor.events)
        actor.events[n_before].begin_at(time)
        actor.state = self._resume(actor.number, turn.n_calls)
        n_made = turn.n_calls - told.budget if turn.n_calls >= 0 else 0
        outcome.turns.append(f"{actor.number}:{turn.n_calls if actor.state == STOPPED else '*'}")
        actor.seen_unlocks, actor.seen_changes = self._shared.n_unlocks, self._shared.n_changes
        if actor.state == GONE:
            outcome.problem = f"actor {actor.number} hangs or has ended, at or after {told.call.decode()}"
            return
        n_done = told.n_done
        results = told.told() if n_done > n_before else []
        for event, (seen, error) in zip(actor.events[n_before:n_done], results[n_before:], strict=True):
            event.begin_at(time)
            event.end(time, seen, error)
        if n_done < len(actor.events):
            actor.events[n_done].begin_at(time)
        policy.made(actor.number, n_made, stopped=actor.state == STOPPED)

    def _ready(self, remaining: list[_Living]) -> list[_Living]:
        """Return the actors that can go on: not one that waits for what nobody has done since."""
        ready = [
            actor
            for actor in remaining
            if not (actor.state == LOCKED_OUT and actor.seen_unlocks == self._shared.n_unlocks)
            and not (actor.state == ASLEEP and actor.seen_changes == self._shared.n_changes)
        ]
        return ready or remaining
