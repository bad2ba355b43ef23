"""Rows that read the same inner chunks again and again, with caches of decoded inner chunks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from data import Box
from peers import Peer
from suite import Context, Read, assert_equal


class Opened:
    """An open array with the cache that its reads share, and the threads that call it."""

    def __init__(self, array: Any, n_callers: int) -> None:
        self.array = array
        self.callers = ThreadPoolExecutor(n_callers) if n_callers > 1 else None

    def close(self) -> None:
        if self.callers:
            self.callers.shutdown()


@dataclass(frozen=True)
class ReadAgain(Read):
    """Reads boxes again, from a handle that has read them before. The time is the processor time of the process for one epoch.

    Each peer reads the first epoch when its result is compared, so its cache is as warm as it gets.
    """

    cache_nbytes: int = 0
    n_callers: int = 1

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        opened = self.prepare(context, peer, 0)
        for box in self.boxes:
            assert_equal(peer, peer.read(opened.array, box), context.values(self.case)[box])
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        def opened() -> Opened:
            path = context.source(self.case)
            return Opened(peer.open_keeping(path, self.case, self.cache_nbytes), self.n_callers)

        return context.keep(peer.name, opened)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        def read(boxes: tuple[Box, ...]) -> Any:
            for box in boxes:
                result = peer.read(prepared.array, box)
            return result

        if prepared.callers is None:
            return read(self.boxes)
        shares = [self.boxes[i :: self.n_callers] for i in range(min(self.n_callers, len(self.boxes)))]
        return list(prepared.callers.map(read, shares))

    def timed(self, peer: Peer, prepared: Any) -> list[float]:
        start = time.process_time()
        result = self.operate(peer, prepared)
        seconds = time.process_time() - start
        del result
        return [seconds]

    @property
    def operations(self) -> int:
        return 1


@dataclass(frozen=True)
class ReadRowsAgain(ReadAgain):
    """The same for rows of a sparse matrix, some of them in one call."""

    batch: int = 1

    def _batches(self) -> list[tuple[Box, ...]]:
        return [self.boxes[i : i + self.batch] for i in range(0, len(self.boxes), self.batch)]

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        opened, values = self.prepare(context, peer, 0), context.values(self.case)
        for boxes in self._batches():
            assert_equal(
                peer, peer.read_rows(opened.array, boxes), np.concatenate([values[box] for box in boxes])
            )
        return {}

    def operate(self, peer: Peer, prepared: Any) -> Any:
        for boxes in self._batches():
            result = peer.read_rows(prepared.array, boxes)
        return result
