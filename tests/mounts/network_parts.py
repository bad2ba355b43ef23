# network_parts.py - what the experiments of network.py share: an array, processes, and the results of a kind of mount
# SPDX-License-Identifier: MIT

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers import create, ours, quiet
from mounts.stamps import FILL, SHAPE, SIDE, stamped

from shardcodec import LockScopeWarning

PATIENCE = 120.0
STUCK_SECONDS = 30.0


def new_array(folder: Path, name: str) -> Any:
    """Create an array of one shard whose inner chunks have checksums, and write turn 0 of each."""
    checksum = {"name": "crc32c"}
    array = create(
        folder / name,
        shape=SHAPE,
        shards=SHAPE,
        chunks=(SIDE, SIDE),
        dtype="i4",
        compressors=[checksum],
        fill_value=FILL,
    )
    array[...] = stamped(0)
    return array


def open_on(folder: Path, name: str, **options: Any) -> Any:
    with quiet():
        return ours(folder / name, **({"lock_timeout": PATIENCE / 2} | options))


class Team:
    """Forked processes whose answers are collected; an exception is an answer too."""

    def __init__(self, n: int, work: Callable[[int], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._answers = [context.Pipe(duplex=False) for _ in range(n)]
        self.members = [
            context.Process(target=self._run, args=(work, number), daemon=True) for number in range(n)
        ]
        for member in self.members:
            member.start()

    def _run(self, work: Callable[[int], Any], number: int) -> None:
        warnings.simplefilter("ignore", LockScopeWarning)
        try:
            answer = work(number)
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        self._answers[number][1].send(answer)

    def answers(self, seconds: float = 0.0) -> list[Any]:
        """Wait for the answers of work that takes this long, and end the processes."""
        found = []
        for (reading, writing), member in zip(self._answers, self.members, strict=True):
            patience = PATIENCE + seconds
            found.append(reading.recv() if reading.poll(patience) else f"no answer within {patience:g} s")
            member.kill()
            member.join(STUCK_SECONDS)  # a client that hangs keeps a killed process
            reading.close()
            writing.close()
        return found

    def kill(self) -> list[int | None]:
        """Kill the processes, and return their exit codes; None for one that does not end."""
        for member in self.members:
            member.kill()
        for (reading, writing), member in zip(self._answers, self.members, strict=True):
            member.join(STUCK_SECONDS)
            reading.close()
            writing.close()
        return [member.exitcode for member in self.members]


@dataclass
class Row:
    """The results of one kind of mount."""

    kind: str
    scope: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def check(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)
