# shard_indexes.py - the indexes of many shards, read by several threads
# SPDX-License-Identifier: MIT
"""`read_indexes`: the index of each shard of an array, within a bound of memory. A damaged shard is a result, not an error."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..access.chunk_codec import compiled
from ..access.opened_shard import OpenObject
from ..access.read import with_key
from ..access.remote_index import check_entries
from ..errors import ShardError
from ..options import Options
from ..storage.runner import WorkerThreads
from ..storage.waiting import retried
from .array_target import ArrayTarget, ShardTarget
from .monitor import Monitor

__all__ = ["ShardIndex", "read_indexes"]

# Memory of the indexes that are held at a time, unless the caller names another bound, and shards of one batch.
BATCH_NBYTES = 64 << 20
BATCH_SHARDS = 256
# Threads that wait for answers of a store of requests.
REQUEST_THREADS = 16

Entries = np.ndarray[Any, np.dtype[np.uint64]]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The index of one shard.

    Attributes
    ----------
    shard : ShardTarget
        The shard.
    nbytes : int or None
        Size of the object in bytes; None if it is missing, or could not be opened.
    entries : ndarray of uint64, shape (n_chunks, 2), or None
        Offset and size of each inner chunk in bytes, both 2^64-1 for an absent one. Entries may be wrong if there is an
        error. None if the index could not be read.
    error : ShardError, OSError or None
        What is wrong with the shard or its index.
    result : Any
        What the caller's function returned.
    """

    shard: ShardTarget
    nbytes: int | None = None
    entries: Entries | None = None
    error: ShardError | OSError | None = None
    result: Any = None

    @property
    def is_missing(self) -> bool:
        """True if the object does not exist."""
        return self.nbytes is None and self.error is None


def read_indexes(
    array: ArrayTarget,
    shards: Iterable[ShardTarget],
    options: Options,
    *,
    memory: int = BATCH_NBYTES,
    examine: Callable[[OpenObject, Entries], Any] | None = None,
    monitor: Monitor | None = None,
) -> Iterator[ShardIndex]:
    """Read the indexes of shards of one array, and check their entries.

    Parameters
    ----------
    array : ArrayTarget
        The array.
    shards : iterable of ShardTarget
        Its shards; they are consumed batch by batch.
    options : Options
        Options of the reads.
    memory : int
        Bytes of indexes to hold at a time; at least one index is held.
    examine : callable, optional
        Called in a thread with each sound shard, while it is open, and its entries; its result is ``result``.
    monitor : Monitor, optional
        Gets the progress. It is asked before each batch whether to stop.

    Yields
    ------
    ShardIndex
        In the order of `shards`.

    Raises
    ------
    UnsupportedError
        The shards of the array cannot be read.
    """
    monitor = monitor or Monitor()
    spec = array.shard_spec
    # an index, its sorted copy, and what `examine` makes of it
    n = max(1, min(BATCH_SHARDS, memory // (64 * spec.n_chunks)))
    n_threads = options.threads if array.store.is_near else max(options.threads, REQUEST_THREADS)
    chain = compiled(spec.chain)

    def look(some: Sequence[ShardTarget]) -> list[ShardIndex]:
        return [_look(shard, chain, options, examine) for shard in some]

    rest = iter(shards)
    with WorkerThreads[list[ShardIndex]](n_threads, "shardcodec-index") as threads:
        while batch := list(itertools.islice(rest, n)):
            monitor.check()
            size = -(-len(batch) // n_threads)
            parts = [batch[i : i + size] for i in range(0, len(batch), size)]
            # one part alone needs no change of threads
            if len(parts) == 1:
                yield from look(parts[0])
            else:
                for one in [threads.submit(look, part) for part in parts]:
                    yield from threads.wait(one).result()
            monitor.advance(len(batch))


def _look(
    shard: ShardTarget, chain: Any, options: Options, examine: Callable[[OpenObject, Entries], Any] | None
) -> ShardIndex:
    nbytes, entries = None, None
    try:
        view = retried(lambda: shard.place.open(chain, options))
        try:
            if view.missing:
                return ShardIndex(shard)
            nbytes = view.nbytes
            entries = view.entries(check=False)
            check_entries(chain, entries, nbytes, options)
            return ShardIndex(
                shard, nbytes, entries, result=None if examine is None else examine(view, entries)
            )
        finally:
            view.close()
    except ShardError as error:
        return ShardIndex(shard, nbytes, entries, with_key(error, chain, shard.name))
    except OSError as error:
        return ShardIndex(shard, nbytes, entries, error)
