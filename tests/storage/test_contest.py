# test_contest.py - pauses between attempts that other writers disturb
# SPDX-License-Identifier: MIT
from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
import zarr

from shardcodec.errors import LockError
from shardcodec.options import Options, resolve
from shardcodec.storage.memory_store import MemoryStore
from shardcodec.storage.replace import replace
from shardcodec.storage.runner import BLOCKING, run_blocking
from shardcodec.storage.store import LONGEST_WAIT, Contest, Outcome, Replacement


def test_pauses_follow_the_duration_of_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """All losers of an attempt of 0.15 s waited for at most 20 ms, so they met again in the next one."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(random, "uniform", lambda least, most: most)
    contest = Contest(resolve())
    pauses = []
    for _ in range(5):
        now[0] += 0.15
        pauses.append(contest.lose("key"))
        now[0] += pauses[-1]
    assert pauses == pytest.approx([0.3, 0.6, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT])
    now[0] += resolve().lock_timeout
    with pytest.raises(LockError, match="6 attempts"):
        contest.lose("key")


def test_time_in_which_a_writer_waits_for_memory_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    contest = Contest(resolve())
    now[0] += 2 * resolve().lock_timeout
    contest.postpone(2 * resolve().lock_timeout)
    assert contest.lose("key") <= LONGEST_WAIT


class Disturbed(MemoryStore):
    """Stores one object with each second attempt; another writer is faster in the others, which take 0.6 of the deadline."""

    def __init__(self, now: list[float]) -> None:
        super().__init__(zarr.storage.MemoryStore())
        self._now, self._is_disturbed = now, False

    async def exchange(
        self, replacements: Sequence[Replacement], maker: Any, options: Options, runner: Any, contest: Contest
    ) -> Outcome:
        self._is_disturbed = not self._is_disturbed
        if not self._is_disturbed:
            return Outcome(remaining=replacements[1:])
        self._now[0] += 0.6 * options.lock_timeout
        contest.lose(replacements[0].key)
        return Outcome(remaining=replacements, contended=replacements[0].name)


def test_objects_that_are_stored_later_have_their_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of many objects may take longer than the deadline of each."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run_blocking(replace(Disturbed(now), ["a", "b", "c"], None, resolve(), BLOCKING))  # type: ignore[arg-type]
