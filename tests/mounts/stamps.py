# stamps.py - values that identify the inner chunk and the write that they come from
# SPDX-License-Identifier: MIT
"""All elements of an inner chunk have one value: `turn * N_CHUNKS + number`. The turns of a chunk are counted by a `Log`.

So a reader notices a chunk that is torn, that reads as the fill value although it was written, that has the value of another
chunk, or that is older or newer than it may be. Each chunk has one writer at a time.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

SIDE, N = 8, 8  # elements and inner chunks along an axis
N_CHUNKS = N * N
SHAPE = (SIDE * N, SIDE * N)
FILL = -1
NO_SHARD = "no shard"  # all inner chunks read as the fill value
OLDER = "older than a finished write"

Array = np.ndarray[Any, Any]


def cell(number: int) -> tuple[slice, slice]:
    """Return the selection of one inner chunk."""
    row, column = divmod(number, N)
    return np.s_[SIDE * row : SIDE * (row + 1), SIDE * column : SIDE * (column + 1)]


def by_chunk(values: Array) -> Array:
    """Return the elements of an array, one row for each inner chunk."""
    return values.reshape(N, SIDE, N, SIDE).transpose(0, 2, 1, 3).reshape(N_CHUNKS, -1)


def stamped(turn: int) -> Array:
    """Return the elements of an array whose chunks all have this turn."""
    return (turn * N_CHUNKS + np.arange(N_CHUNKS)).reshape(N, N).repeat(SIDE, 0).repeat(SIDE, 1).astype("i4")


def examine(values: Array) -> tuple[dict[str, Array], Array]:
    """Return the chunks that no write has made, as masks by the kind of fault, and the turns of all others (-1 for those)."""
    chunks = by_chunk(values)
    turns, numbers = np.divmod(chunks[:, 0], N_CHUNKS)
    torn = (chunks != chunks[:, :1]).any(axis=1)
    fill = ~torn & (chunks[:, 0] == FILL)
    foreign = ~torn & ~fill & (numbers != np.arange(N_CHUNKS))
    turns[torn | fill | foreign] = -1
    return {
        "torn": torn,
        "fill": fill & ~fill.all(),
        NO_SHARD: fill & fill.all(),
        "foreign": foreign,
    }, turns


def counted(masks: dict[str, Array]) -> Counter[str]:
    """Return how many chunks have each fault; empty if there is none."""
    return Counter({fault: int(mask.sum()) for fault, mask in masks.items() if mask.any()})


def _shared() -> Array:
    """Return zeros that forked processes share, one for each chunk."""
    return np.frombuffer(mmap.mmap(-1, 8 * N_CHUNKS), "i8")


class Log:
    """The turns of each chunk that writers have begun and ended; processes that are forked later share it.

    An array whose chunks have turn 0 (`stamped`) is the state at the beginning.
    """

    def __init__(self) -> None:
        self._used, self.begun, self.ended = _shared(), _shared(), _shared()

    def write(self, array: Any, number: int) -> None:
        """Write the next turn of a chunk. If that fails or is killed, the turn has begun and not ended."""
        self._used[number] += 1
        turn = self.begun[number] = self._used[number]
        array[cell(number)] = turn * N_CHUNKS + number
        self.ended[number] = turn

    def old_or_new(self, values: Array) -> Counter[str]:
        """Return the faults of a state after writers were killed: each chunk must have its last turn that ended or that began."""
        masks, turns = examine(values)
        other = (turns != self.ended) & (turns != self.begun)
        older = (turns >= 0) & (turns < self.ended)
        return counted({**masks, OLDER: older, "neither old nor new": other & (turns > self.ended)})

    def settle(self, values: Array) -> None:
        """Take a state for the only right one, until the next write."""
        _, turns = examine(values)
        self.begun[:] = self.ended[:] = np.where(turns >= 0, turns, self.ended)


class Reader:
    """The values that one reader has seen of chunks that are being written.

    Parameters
    ----------
    log : Log
        The turns that writers count.
    may_step_back : bool
        True if a read may return the turn before the one that an earlier read has returned, as beside updates in place.
    is_coherent : bool
        True if a read that begins after a write has ended must return its turn; caches of network clients do not guarantee this.
    """

    def __init__(self, log: Log, *, may_step_back: bool, is_coherent: bool) -> None:
        self._log = log
        self._may_step_back = may_step_back
        self._is_coherent = is_coherent
        self._seen = np.zeros(N_CHUNKS, "i8")

    def look(self, read: Callable[[], Array]) -> Counter[str]:
        """Read, and return the faults."""
        ended = self._log.ended.copy() if self._is_coherent else np.zeros(N_CHUNKS, "i8")
        masks, turns = examine(read())
        begun = self._log.begun.copy()
        known = turns >= 0
        faults = {
            **masks,
            "older than an earlier read": known & (turns < self._seen - self._may_step_back),
            OLDER: known & (turns < ended),
            "never written": known & (turns > begun),
        }
        self._seen = np.maximum(self._seen, turns)
        return counted(faults)
