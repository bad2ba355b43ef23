# read_indexes.py - the indexes of many shards, where a damaged shard is a result
# SPDX-License-Identifier: MIT
"""`read_indexes`: offsets and sizes of all inner chunks of many shards; what is wrong with a shard is part of its result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from ..errors import ShardError, as_os_error
from ..format.spec import ShardSpec
from ..options import Options
from ..storage.retry import retry
from ..storage.worker_threads import WorkerThreads
from .compiled_chains import compiled
from .read import with_key
from .remote_index import check_entries

if TYPE_CHECKING:
    from .._native import Chain
    from .opened_shard import OpenedShard
    from .shard_object import ShardObject

__all__ = ["ENTRIES_NBYTES", "REQUEST_THREADS", "ShardIndex", "read_indexes"]

# Memory of the indexes of one batch, unless the caller names another bound, and its number of shards.
ENTRIES_NBYTES = 64 << 20
ENTRIES_SHARDS = 256
# Threads that wait for answers of a store of requests.
REQUEST_THREADS = 16

Entries = np.ndarray[Any, np.dtype[np.uint64]]
Examine = Callable[["OpenedShard", Entries], Any]


class ScanTarget(Protocol):
    """A shard of an array, with a name for errors."""

    @property
    def name(self) -> str: ...

    @property
    def place(self) -> ShardObject: ...


P = TypeVar("P", bound=ScanTarget)


class Progress(Protocol):
    """Is asked before each batch whether to stop, which it does by an exception, and told the number of shards after it."""

    def check(self) -> None: ...

    def advance(self, n_shards: int) -> None: ...


@dataclass(frozen=True, eq=False)
class ShardIndex(Generic[P]):
    """The index of one shard.

    nbytes: size of the object; None if it is missing, or could not be opened. entries: uint64, shape (n_chunks, 2), offset and
    size, both 2^64-1 for an absent inner chunk; they may be wrong if there is an error, None if the index could not be read.
    error: what is wrong with the shard or its index. result: what the caller's function returned.
    """

    shard: P
    nbytes: int | None = None
    entries: Entries | None = None
    error: ShardError | OSError | None = None
    result: Any = None

    @property
    def is_missing(self) -> bool:
        """True if the object does not exist."""
        return self.nbytes is None and self.error is None


def read_indexes(
    spec: ShardSpec,
    shards: Iterable[P],
    options: Options,
    progress: Progress,
    *,
    are_near: bool,
    memory: int = ENTRIES_NBYTES,
    examine: Examine | None = None,
) -> Iterator[ShardIndex[P]]:
    """Read the indexes of shards of one array, and check their entries; yield them in the order of `shards`.

    shards: consumed batch by batch. are_near: False for a store of requests, where more threads wait for answers. memory: bytes
    of indexes to hold, at least one index. examine: called in a thread with each sound shard, while it is open, and its
    entries; its result is ``result``. UnsupportedError: the shards of the array cannot be read.
    """
    # an index, its sorted copy, and what `examine` makes of it
    n = max(1, min(ENTRIES_SHARDS, memory // (64 * spec.n_chunks)))
    n_threads = options.threads if are_near else max(options.threads, REQUEST_THREADS)
    chain = compiled(spec.chain)

    def look(group: Sequence[P]) -> list[ShardIndex[P]]:
        return [_look(shard, chain, options, examine) for shard in group]

    rest = iter(shards)
    with WorkerThreads[list[ShardIndex[P]]](n_threads, "shardcodec-index") as threads:
        while batch := list(itertools.islice(rest, n)):
            progress.check()
            size = -(-len(batch) // n_threads)
            groups = [batch[i : i + size] for i in range(0, len(batch), size)]
            # one group alone needs no change of threads
            if len(groups) == 1:
                yield from look(groups[0])
            else:
                for call in [threads.submit(look, group) for group in groups]:
                    yield from threads.wait(call).result()
            progress.advance(len(batch))


def _look(shard: P, chain: Chain, options: Options, examine: Examine | None) -> ShardIndex[P]:
    nbytes, entries = None, None

    def look() -> ShardIndex[P]:
        nonlocal nbytes, entries
        nbytes, entries = None, None
        view = shard.place.open(chain, options)
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

    try:
        with as_os_error(str, shard.name):
            return retry(look, shard.place.path)
    except ShardError as error:
        return ShardIndex(shard, nbytes, entries, with_key(error, chain, shard.name))
    except OSError as error:
        return ShardIndex(shard, nbytes, entries, error)
