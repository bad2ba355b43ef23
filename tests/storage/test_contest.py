# test_contest.py - pauses between attempts that other writers disturb
# SPDX-License-Identifier: MIT
from __future__ import annotations

import random
import time

import pytest

from shardcodec.errors import LockError
from shardcodec.options import resolve
from shardcodec.storage.store import LONGEST_WAIT, Contest


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
