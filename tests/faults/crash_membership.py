# crash_membership.py - is a state of a real file system among those that a model permits?
# SPDX-License-Identifier: MIT
"""`permits` decides what crash_model.py samples: may this number of events have left these files?

It follows the same rules. Where the sampler chooses one of a few states of a page, this takes any mixture of their sectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product

from faults.crash_model import (
    PAGE,
    SECTOR,
    WRITE,
    Event,
    Names,
    Part,
    Record,
    Replay,
    State,
    apply,
    oldest_state,
    state_of,
)

__all__ = ["permits"]

MAX_OPEN = 18  # changes of names of which any subset is tried


def permits(record: Record, n_events: int, model: str, seen: State) -> bool:
    """Return True if the model permits these files after this number of events. The numbers of files in `seen` are its own."""
    replay = Replay(record, n_events)
    if model == "kill":
        return any(
            _same(record, names_and_bytes, seen)
            for names_and_bytes in chain([replay.present()], replay.interrupted())
        )
    return any(_fits(replay, model, names, seen) for names in _possible_names(replay, model))


def _same(record: Record, expected: State, seen: State) -> bool:
    return _matching(expected, seen) is not None and all(
        expected.contents[expected.paths[path]] == seen.contents[number]
        for path, number in seen.paths.items()
    )


def _fits(replay: Replay, model: str, names: Names, seen: State) -> bool:
    expected = state_of(names, replay.record.contents)
    numbers = _matching(expected, seen)
    return numbers is not None and all(
        may_have(replay, model, number, seen.contents[other]) for number, other in numbers.items()
    )


def _matching(expected: State, seen: State) -> dict[int, int] | None:
    """Return which file of the record each file is; None if the paths differ, or two of them lead to one file in one state only."""
    if expected.paths.keys() != seen.paths.keys():
        return None
    pairs = {(expected.paths[path], seen.paths[path]) for path in seen.paths}
    numbers = dict(pairs)
    return numbers if len(numbers) == len(pairs) == len(set(numbers.values())) else None


def _possible_names(replay: Replay, model: str) -> Iterator[Names]:
    if model == "pessimistic":
        yield from _any_subset(replay)
        return
    for cut in range(replay.first_open() if model != "btrfs" else 0, len(replay.changes) + 1):
        if model == "btrfs":
            yield from _subsets(
                replay, [(is_durable, [part]) for is_durable, part in replay.btrfs_parts(cut)]
            )
        else:
            yield from _subsets(replay, [(True, list(event.parts)) for _, event in replay.changes[:cut]])


def _any_subset(replay: Replay) -> Iterator[Names]:
    """Yield the names after each subset of the halves of changes that no sync of their folder followed."""
    halves = [
        (replay.is_synced(at, folder), [part for part in event.parts if part[0] == folder])
        for at, event in replay.changes
        for folder in dict.fromkeys(part[0] for part in event.parts)
    ]
    yield from _subsets(replay, halves)


def _subsets(replay: Replay, halves: list[tuple[bool, list[Part]]]) -> Iterator[Names]:
    n_open = sum(not is_durable for is_durable, _ in halves)
    if n_open > MAX_OPEN:
        raise ValueError(f"expected at most {MAX_OPEN} changes that are not durable, got {n_open}")
    for chosen in product((False, True), repeat=n_open):
        rest = iter(chosen)
        names = dict(replay.record.names)
        for is_durable, parts in halves:
            if is_durable or next(rest):
                apply(names, parts)
        yield names


# ---- the bytes of one file


def may_have(replay: Replay, model: str, file: int, content: bytes) -> bool:
    """Return True if a file may have these bytes."""
    steps = replay.steps[file]
    grain = PAGE if model == "btrfs" else SECTOR
    return any(
        all(
            _is_a_state(steps[_oldest(model, steps, number, at) :], at, content[at : at + grain])
            for at in range(0, len(content), grain)
        )
        for number in range(len(steps))
        if _may_have_size(steps, number, len(content))
    )


def _oldest(model: str, steps: list[tuple[bytes, Event | None]], number: int, at: int) -> int:
    return oldest_state(steps, number, at // PAGE * PAGE) if model != "pessimistic" else 0


def _is_a_state(steps: list[tuple[bytes, Event | None]], at: int, part: bytes) -> bool:
    return any(step[at : at + len(part)].ljust(len(part), b"\0") == part for step, _ in steps)


def _may_have_size(steps: list[tuple[bytes, Event | None]], number: int, nbytes: int) -> bool:
    """Return True if state `number` may have set this size."""
    content, event = steps[number]
    if len(content) == nbytes:
        return True
    is_buffered_write = number > 0 and event is not None and event.kind == WRITE and not event.is_direct
    return is_buffered_write and len(steps[number - 1][0]) < nbytes < len(content) and nbytes % PAGE == 0
