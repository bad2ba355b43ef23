# verify_shards.py - are the shards of one array whole?
# SPDX-License-Identifier: MIT
"""`ShardVerifier`: checks shards of an array, in threads. `VerifyTask`: the same as plain data, for other processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ...access.shard_object import open_object
from ...errors import ShardError
from ...options import Options
from ...storage.retry import retry
from ...storage.undo_journal import pending_journal
from ..capped import LISTED
from ..chunk_check import ChunkCheck, Level
from ..findings import Finding, FindingKind
from ..jobs.shard_work import ArrayTask
from ..memory import MemoryBudget, MemoryShare
from ..monitor import Monitor
from ..shard_threads import in_order
from ..survey import survey
from ..targets import ArrayTarget, ShardTarget, lasting_state
from .against import Comparison, Reference
from .hashed_object import HashedObject

__all__ = ["ShardVerdict", "ShardVerifier", "VerifyTask", "inside_array"]

# Decoded bytes of a shard that is verified sooner than a thread begins with it.
SMALL_NBYTES = 1 << 20
# Bytes that are read and checked in about the time that Python needs for an object, 50 us.
LARGE_NBYTES = 256 << 10
# Threads that wait for answers of a store of requests.
_REQUEST_THREADS = 16

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class ShardVerdict(NamedTuple):
    """The result of one shard.

    Attributes
    ----------
    sizes : tuple of int or None
        Bytes of the object, of its inner chunks, of those that a checksum has verified, and of those without a checksum; None
        if the object does not exist or cannot be read.
    findings : tuple of Finding
    n_errors : int
        Number of findings that are not warnings, also of those that are not listed.
    state, sha256 : str or None
        State and hash of the object, if they were asked for.
    """

    sizes: tuple[int, int, int, int] | None
    findings: tuple[Finding, ...] = ()
    n_errors: int = 0
    state: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class VerifyTask(ArrayTask[ShardVerdict]):
    """How the shards of an array are verified.

    Attributes
    ----------
    level : Level
    names_states, hashes : bool
        Return the states, and the hashes, of the objects.
    against : object
        The array with which elements are compared, as for `verify`.
    storage_options : mapping or None
    """

    level: Level
    names_states: bool
    hashes: bool = False
    against: Any = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def open(self, array: ArrayTarget, options: Options, budget: MemoryBudget) -> ShardVerifier:
        return ShardVerifier(array, self, options, budget)

    def weight(self, result: ShardVerdict) -> int:
        return 1 + len(result.findings)

    def failed(self, shard: ShardTarget, detail: str) -> ShardVerdict:
        found = Finding(FindingKind.UNREADABLE, shard.name, detail, shard.array.name, recoverable=False)
        return ShardVerdict(None, (found,), 1)


class ShardVerifier:
    """Verifies shards of one array; see `ShardTool`.

    Attributes
    ----------
    task : VerifyTask
    comparison : Comparison or None
        The comparison with another array.
    decodes : bool
        False if neither the engine nor zarr has the data type and the codecs of the inner chunks.
    """

    def __init__(
        self,
        array: ArrayTarget,
        task: VerifyTask,
        options: Options,
        budget: MemoryBudget,
        reference: Reference | None = None,
    ) -> None:
        self._array = array
        self.task = task
        self.comparison: Comparison | None = None
        if reference is not None:
            self.comparison = Comparison.with_one_of(array, reference)
        elif task.against is not None:
            self.comparison = Comparison.of(array, task.against, task.storage_options)
        share = self._share(options, budget)
        self.n_threads: int = share.n_threads
        one_thread = replace(options, threads=1)
        self._check = ChunkCheck.of_array(array, one_thread, share)
        self.decodes: bool = self._check.decodes

    def run(
        self, shards: Iterable[ShardTarget], monitor: Monitor, n_threads: int
    ) -> Iterator[tuple[int, ShardVerdict]]:
        """Verify shards; see `ShardTool.run`."""
        is_short = self._array.store.is_near and self._reads_little()
        for verdict in in_order(
            shards, self._look, n_threads, monitor, is_short=is_short, is_large=self._is_large
        ):
            yield 1, verdict

    def _is_large(self, verdict: ShardVerdict) -> bool:
        """Return True for an object whose bytes took longer than what Python does for it."""
        nbytes = 0 if verdict.sizes is None else verdict.sizes[0]
        return nbytes >= LARGE_NBYTES and (self.task.hashes or self._check.reads_chunks(self.task.level))

    def _share(self, options: Options, budget: MemoryBudget) -> MemoryShare:
        """Return the number of threads and the memory of each."""
        array, comparison = self._array, self.comparison
        wanted = options.threads
        if not array.store.is_near:
            wanted = max(wanted, _REQUEST_THREADS)
        more = 0 if comparison is None else comparison.least_nbytes
        share = budget.share(array.object_spec, array.place, wanted, more=more)
        if comparison is not None and share.free_nbytes is not None:
            comparison.limit_blocks(share.free_nbytes // 3)  # two blocks, and which bytes differ
        return share

    def _reads_little(self) -> bool:
        """Return True if little is read of each shard."""
        is_small = self._array.object_spec.chain.nbytes <= SMALL_NBYTES
        return self.comparison is None and (self.task.level is Level.INDEX or is_small)

    def _look(self, shard: ShardTarget) -> ShardVerdict:
        """Check one shard, in a thread; check it again if another writer may be changing it."""
        path = shard.array.store.path(shard.key)
        return retry(
            lambda: self._look_once(shard),
            path,
            again=lambda verdict, patience: verdict.n_errors > 0 and patience.sees_change(path),
        )

    def _look_once(self, shard: ShardTarget) -> ShardVerdict:
        array = shard.array
        findings: list[Finding] = []
        try:
            state = lasting_state(array.store, shard.key) if self.task.names_states else None
            path = array.store.path(shard.key)
            if path is not None and (journal := pending_journal(path)) is not None:
                detail = f"a writer has not finished an update in place; the journal is {journal}"
                findings.append(
                    Finding(FindingKind.PENDING_JOURNAL, shard.name, detail, array.name, recoverable=True)
                )
            view = open_object(array.store, shard.key)
            if view is None:
                return ShardVerdict(None)
            hashed = None
            try:
                inside = inside_array(shard)
                if self.task.hashes:
                    view = hashed = HashedObject(view, self._check.share.block_nbytes)
                found = survey(
                    view, shard.name, self._check, self.task.level, array=array.name, is_inside=inside
                )
                sha256 = None if hashed is None else hashed.sha256()
            finally:
                view.close()
        except (ShardError, OSError) as error:
            findings.append(
                Finding(FindingKind.UNREADABLE, shard.name, str(error), array.name, recoverable=False)
            )
            return ShardVerdict(None, tuple(findings), _n_errors(findings))
        if self.comparison is not None:
            findings += itertools.islice(self.comparison.findings(shard), LISTED)
        sizes = found.nbytes, found.data_nbytes, found.verified_nbytes, found.unverifiable_nbytes
        n_errors = _n_errors(findings) + found.n_findings
        return ShardVerdict(sizes, (*findings, *found.findings), n_errors, state, sha256)


def _n_errors(findings: Iterable[Finding]) -> int:
    return sum(not one.is_warning for one in findings)


def inside_array(shard: ShardTarget) -> Flags | None:
    """Return which inner chunks of a shard have elements of the array; None for all, or if the array is not known."""
    array, spec = shard.array, shard.array.spec
    if array.layout is None or spec is None or shard.coords is None:
        return None
    left = [
        n - i * size for n, i, size in zip(array.counted_shape, shard.coords, spec.shard_shape, strict=True)
    ]
    extent = [left[axis] for axis in spec.chain.perm]
    if all(n >= size for n, size in zip(extent, spec.stored_shape, strict=True)):
        return None
    flags = np.zeros(spec.grid_shape, dtype=np.bool_)
    flags[
        tuple(slice(0, max(0, -(-n // size))) for n, size in zip(extent, spec.chunk_shape, strict=True))
    ] = True
    return flags.reshape(-1)
