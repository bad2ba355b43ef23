"""Rows of loaders whose worker processes read random crops into shared memory."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import numpy as np
import peers
import suite
import workload
from data import Box, Case
from peers import Peer
from sampler import Sampler, Samples
from suite import Context, Row

# Random crops by worker processes: the processes, the crops of one task, and the seconds after which a peer has failed.
LOADERS = (
    "shardcodec",
    "shardcodec attach",
    "zarr batched",
    "zarr fused",
    "zarrs",
    "tensorstore",
    "zarrista",
)
NO_FORK = ("tensorstore",)  # ends a forked child of a process that has used it
N_WORKERS = 4
BATCH = 16
LIMIT_SECONDS = 60


@dataclass(frozen=True)
class ReadCrops(Row):
    """Reads random crops in worker processes, which put them into memory that the loader shares, as training programs do.

    The processes are started before the time is taken; each has opened the array, and uses one thread.
    """

    boxes: tuple[Box, ...] = ()
    start: str = "fork"

    most_rounds = 3

    def takes(self, peer: Peer) -> bool:
        return peer.name in LOADERS and not (self.start == "fork" and peer.name in NO_FORK)

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        values = context.values(self.case)
        found = self.operate(peer, self.prepare(context, peer, 0))
        suite.assert_equal(peer, found, np.stack([values[box] for box in self.boxes]))
        return {}

    def prepare(self, context: Context, peer: Peer, number: int) -> Workers:
        def start() -> Workers:
            return Workers(peer, context.source(self.case), self.case, self.boxes, self.start)

        workers: Workers = context.keep(peer.name, start)
        workers.crops[...] = 0
        return workers

    def operate(self, peer: Peer, prepared: Workers) -> Any:
        prepared.run(_read_batch)
        return prepared.crops

    def profile(self, context: Context, peer: Peer) -> Samples:
        workers = self.prepare(context, peer, 0)
        return sum(workers.run(_profile_batch), Samples())

    @property
    def nbytes(self) -> int:
        one = np.prod([s.stop - s.start for s in self.boxes[0]])
        return int(one) * len(self.boxes) * np.dtype(self.case.dtype).itemsize


class Workers:
    """The processes of a loader, and the crops in shared memory.

    A peer whose threads a forked child does not have may wait for them without end, so a call has a time limit.
    """

    def __init__(self, peer: Peer, path: Path, case: Case, boxes: tuple[Box, ...], start: str) -> None:
        context = multiprocessing.get_context(start)
        shape = (len(boxes), *(s.stop - s.start for s in boxes[0]))
        memory = context.RawArray("b", int(np.prod(shape)) * np.dtype(case.dtype).itemsize)
        self.crops = np.frombuffer(memory, case.dtype).reshape(shape)
        self._batches = [range(i, min(i + BATCH, len(boxes))) for i in range(0, len(boxes), BATCH)]
        arguments = (peer.name, path, case, boxes, memory, shape)
        with warnings.catch_warnings():
            # to fork a process with threads is what is measured
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pool = context.Pool(N_WORKERS, _begin_worker, arguments)
        try:
            self.run(_read_batch)
        except BaseException:
            self.close()  # a pool starts workers that end again and again
            raise

    def run(self, work: Callable[[range], Any]) -> list[Any]:
        return self._pool.map_async(work, self._batches, chunksize=1).get(LIMIT_SECONDS)

    def close(self) -> None:
        self._pool.terminate()


# The peer, its array, the boxes and the crops of a worker process.
_worker: dict[str, Any] = {}


def _begin_worker(
    name: str, path: Path, case: Case, boxes: tuple[Box, ...], memory: Any, shape: tuple[int, ...]
) -> None:
    peers.N_THREADS = 1
    os.environ["RAYON_NUM_THREADS"] = "1"
    (peer,) = (peer for peer in peers.ALL if peer.name == name)
    _worker["turn"] = turn = peer.turn()  # as long as the process
    turn.__enter__()
    crops = np.frombuffer(memory, case.dtype).reshape(shape)
    _worker["job"] = peer, peer.open(path, case), boxes, crops


def _read_batch(numbers: range) -> None:
    peer, array, boxes, crops = _worker["job"]
    for i in numbers:
        crops[i] = peer.read(array, boxes[i])


def _profile_batch(numbers: range) -> Samples:
    with Sampler() as sampler:
        _read_batch(numbers)
    return sampler.samples


def rows(sizes: suite.Sizes) -> list[Row]:
    """Return the rows: 256 crops of 40^3 by four processes, forked and new."""
    case = data.big(sizes.edge).with_codec("zstd 1")
    n = max(16, 256 // sizes.shrink)
    boxes = workload.boxes_of({"random": n, "shape": [40, 40, 40]}, case)
    return [
        ReadCrops("end to end", f"{n} crops of 40^3, {N_WORKERS} workers, {start}", case, boxes, start)
        for start in ("fork", "spawn")
    ]
