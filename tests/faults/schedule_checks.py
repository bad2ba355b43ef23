# schedule_checks.py - can the actors of a schedule have seen what they saw, and left what they left?
# SPDX-License-Identifier: MIT
"""`Event`: a part of the work of an actor. `aftermath_of`: looks at the files at the end. `problem_of`: the check of both.

A write takes effect at one moment between its begin and its end, for all of its inner chunks together; a killed one does so, or never.
`problem_of` looks for an order of the writes that explains the shard at the end, and for each inner chunk that was read for one that
explains it: two inner chunks may be read at different moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from faults.crash_checks import JOURNAL
from faults.schedule_actors import (
    EMPTY,
    N_CHUNKS,
    OTHER,
    SHARD,
    Op,
    Scene,
    State,
    read,
    settle,
    twin,
    write,
    write_through_array,
)

from shardcodec.tools import verify

__all__ = ["Aftermath", "Event", "aftermath_of", "problem_of"]

NEVER = 1 << 30


@dataclass(eq=False)
class Event:
    """A part of the work of an actor, and the numbers of the turns in which it began and ended."""

    op: Op
    actor: int
    index: int
    begin: int = NEVER
    ended: int = NEVER
    was_killed: bool = False
    seen: State | None = None
    error: str = ""

    @property
    def is_over(self) -> bool:
        return self.was_killed or self.ended != NEVER

    def begin_at(self, time: int) -> None:
        self.begin = min(self.begin, time)

    def end(self, time: int, seen: State | None, error: str) -> None:
        self.ended, self.seen, self.error = time, seen, error

    def die(self) -> None:
        self.was_killed = self.was_killed or self.ended == NEVER

    def precedes(self, other: Event) -> bool:
        """Return True if this one was acknowledged before the other began."""
        if self.actor == other.actor:
            return self.index < other.index and self.ended != NEVER
        return self.ended < other.begin

    def __str__(self) -> str:
        end = "killed" if self.was_killed else self.ended
        return f"actor {self.actor} wrote {self.op.value} to {self.op.chunks} in turns {self.begin} to {end}"


# ---------------------------------------------------------------- what is there at the end


class Aftermath(NamedTuple):
    """What is there at the end.

    state: for a reader; settled: for one that knows the format only, after a roll back; names: of all files; later_names and later:
    after two more writes, of the inner chunks 0 and 3; findings: of `verify`.
    """

    state: State = EMPTY
    settled: State = EMPTY
    names: frozenset[str] = frozenset()
    later_names: frozenset[str] = frozenset()
    later: State = EMPTY
    findings: str = ""
    error: str = ""


LATER = (9001, 9002)


def aftermath_of(scene: Scene, *, goes_on: bool, verifies: bool) -> Aftermath:
    """Look at the files at the end, and go on to write if that is wanted, and then to verify."""
    state = read(scene)
    if scene.shard.exists() and scene.shard.stat().st_nlink > 1:
        settle(scene)
    settled = twin(scene)
    names = frozenset(scene.names())
    if not goes_on:
        return Aftermath(state, settled, names)
    write(scene.layout, scene.shard, [0], LATER[0], strategy="in_place", may_pack=False)
    write_through_array(scene, [3], LATER[1], strategy="replace")
    if (
        scene.start == "link"
    ):  # what is left beside the target goes with the next writer that uses this folder
        write(scene.layout, scene.shard, [0], LATER[0], strategy="replace")
    if (scene.folder / OTHER).exists():
        write(scene.layout, scene.folder / OTHER, [0], LATER[0], strategy="in_place", may_pack=False)
    found = dict(verify(scene.folder / "a", level="decode", threads=1).kinds) if verifies else {}
    if scene.start == "stale":
        found.pop("pending journal", None)
    told = str(found) if found else ""
    return Aftermath(state, settled, names, frozenset(scene.names()), twin(scene), told)


# ---------------------------------------------------------------- the check


def _states_after(first: State, must: Sequence[Event], may: Sequence[Event]) -> Iterator[State]:
    """Yield the shard after all of `must` and some of `may`, in each order that their times permit."""
    if not must:
        yield first
    events = [*must, *may]
    for event in events:
        # one that precedes it and was acknowledged has to come first; a killed one comes first or never
        if any(other.precedes(event) for other in events if other is not event):
            continue
        after = event.op.effect(first)
        yield from _states_after(
            after, [one for one in must if one is not event], [one for one in may if one is not event]
        )


def problem_of(scene: Scene, events: Sequence[Event], end: Aftermath) -> str:
    """Return what is wrong with a schedule; "" if nothing is."""
    for event in events:
        if event.error:
            return f"actor {event.actor}, part {event.index}: {event.error}"
    if end.error:
        return f"at the end: {end.error}"
    writes = [event for event in events if event.op.chunks and event.begin != NEVER]
    told = "; ".join(map(str, writes))
    must = [event for event in writes if not event.was_killed]
    may = [event for event in writes if event.was_killed]
    if end.state not in _states_after(scene.first_state, must, may):
        return f"at the end the inner chunks are {end.state}; {told}"
    if end.settled != end.state:
        return f"settled, the inner chunks are {end.settled}, not {end.state}"
    for event in events:
        if event.seen is not None and (problem := _reads_problem(scene.first_state, writes, event)):
            return f"{problem}; {told}"
    return _rests_problem(scene, end, was_killed=any(event.was_killed for event in events))


def _reads_problem(first: State, writes: Sequence[Event], read: Event) -> str:
    begun = [event for event in writes if event.begin <= read.ended]
    must = [event for event in begun if event.precedes(read)]
    may = [event for event in begun if not event.precedes(read)]
    states = list(_states_after(first, must, may))
    assert read.seen is not None
    for chunk in range(N_CHUNKS):
        pairs = {state[chunk] for state in states}
        if read.seen[chunk] not in pairs:
            return (
                f"actor {read.actor}, part {read.index}, in turns {read.begin} to {read.ended}: "
                f"inner chunk {chunk} is {read.seen[chunk]}, not one of {pairs}"
            )
    return ""


def _rests_problem(scene: Scene, end: Aftermath, *, was_killed: bool) -> str:
    allowed = scene.lasting_names()
    if (
        scene.start == "stale"
    ):  # this journal says nothing, and goes with the next update that is really in place
        allowed |= {name for name in end.names if Path(name).name.startswith(JOURNAL)}
    if not was_killed and (rest := end.names - allowed):
        return f"files are left: {sorted(rest)}"
    if (SHARD in end.names) != (end.state != EMPTY):
        return f"{SHARD} {'exists' if SHARD in end.names else 'is missing'}, and the inner chunks are {end.state}"
    if end.later_names:
        if scene.start == "link" and not scene.shard.is_symlink():
            # the link was deleted after a kill, so no further write is in the folder of its file, where it would remove the name
            allowed |= {name for name in end.later_names if name.startswith(".shardcodec-")}
        if rest := end.later_names - allowed:
            return f"files are left after further writes: {sorted(rest)}"
        later = ((LATER[0],) * 2, *end.state[1:3], (LATER[1],) * 2)
        if end.later != later:
            return f"after further writes the inner chunks are {end.later}, not {later}"
        if end.findings:
            return f"verify finds {end.findings}"
    return ""
