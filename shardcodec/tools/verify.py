# verify.py - are the shards of arrays whole?
# SPDX-License-Identifier: MIT
"""`verify`: check the indexes, checksums and inner chunks of all shards that a path leads to. Nothing is changed.

Shards are listed and checked one after the other by a few threads, so memory is bounded for arrays of any size.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..checksum import crc32c
from ..errors import ShardError
from ..format.spec import ShardSpec
from ..options import Options, check, resolve
from ..storage.journals import pending_journal
from .against import Comparison
from .array_target import ArrayTarget, ForeignObject, ShardTarget
from .chunk_check import ChunkCheck, Level
from .findings import MOST_FINDINGS, Finding, FindingKind
from .manifest import Manifest, ManifestRow, OldManifest
from .memory_budget import MemoryBudget, MemoryShare
from .monitor import Monitor
from .shard_threads import in_order
from .stored_bytes import lasting_state, open_object
from .survey import Survey, survey
from .targets import find_arrays
from .verify_report import ShardFindings, VerifiedArray, VerifyReport

__all__ = ["inside_array", "verify"]

# Shards with findings that a report lists.
MOST_SHARDS = 1000
# Decoded bytes of a shard that is verified sooner than a thread begins with it.
SMALL_NBYTES = 1 << 20
# Threads that wait for answers of a store of requests.
_REQUEST_THREADS = 16

Ints = tuple[int, ...]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
OnShard = Callable[[ShardFindings], None]


def verify(
    target: Any,
    *,
    level: str = "checksum",
    sample: float = 1.0,
    since: str | None = None,
    manifest: str | None = None,
    against: Any = None,
    array: str | None = None,
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | None = None,
    fail_fast: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_shard: OnShard | None = None,
) -> VerifyReport:
    """Check the shards that a path leads to. Nothing is changed.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array.
    level : {"index", "checksum", "decode"}
        ``"index"``: checksum and entries of each index. ``"checksum"``: also every checksum of inner chunks. ``"decode"``:
        also decode every inner chunk. Of a damaged shard the inner chunks are always read.
    sample : float
        Share of the shards to check, in (0, 1]; the same shards each time, and at least one of each array.
    since : str, optional
        The manifest of an earlier run. Shards that it found whole at this level, and whose state has not changed, are
        skipped. Shards of the manifest that do not exist any more are findings.
    manifest : str, optional
        Write a manifest to this local file. It is an SQLite database.
    against : path-like, URL or zarr store, optional
        An array with the same elements, in any layout. All elements of the checked shards are compared, bit by bit.
    array : str, optional
        Only this array, by its path in the group.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of threads. Default: the option ``threads``.
    memory : int, optional
        Memory for indexes and data, in bytes: fewer threads and smaller blocks are used. By default a few MiB, an index and
        an inner chunk for each thread.
    fail_fast : bool
        Stop at the first finding that is no warning.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    monitor : Monitor, optional
        Gets the progress, and may stop the work.
    on_shard : callable, optional
        Called with the findings of each shard as soon as they are known; the report then does not list them.

    Returns
    -------
    VerifyReport

    Raises
    ------
    FileNotFoundError
        There is no array, group or shard.
    SpecError
        The metadata of the target itself are malformed.
    TypeError, ValueError, ImportError
        An argument is invalid, an index and an inner chunk do not fit into `memory`, or no package can open the URL.
    """
    budget = MemoryBudget(memory)
    if not 0 < sample <= 1:
        raise ValueError(f"sample: expected a share in (0, 1], got {sample}")
    options = resolve(argument=check({"threads": threads}))
    arrays = find_arrays(target, array=array, spec=spec, storage_options=storage_options)
    with ExitStack() as stack:
        old = None if since is None else OldManifest(since)
        if old is not None:
            stack.callback(old.close)
        new = None if manifest is None else stack.enter_context(Manifest(manifest))
        run = _VerifyRun(
            Level(level), sample, old, new, options, budget, fail_fast, monitor or Monitor(), on_shard
        )
        for one in arrays:
            run.add(one, None if against is None else Comparison.of(one, against, storage_options))
            if run.is_stopped:
                break
        return run.report(str(target))


def inside_array(shard: ShardTarget) -> Flags | None:
    """Return which inner chunks of a shard have elements of the array; None for all, or if the array is not known."""
    array, spec = shard.array, shard.array.spec
    if array.layout is None or spec is None or shard.coords is None:
        return None
    left = [
        n - i * size for n, i, size in zip(array.layout.shape, shard.coords, spec.shard_shape, strict=True)
    ]
    extent = [left[axis] for axis in spec.chain.perm]
    if all(n >= size for n, size in zip(extent, spec.stored_shape, strict=True)):
        return None
    flags = np.zeros(spec.grid_shape, dtype=np.bool_)
    flags[
        tuple(slice(0, max(0, -(-n // size))) for n, size in zip(extent, spec.chunk_shape, strict=True))
    ] = True
    return flags.reshape(-1)


class _Looked(NamedTuple):
    """The result of one shard; `survey` is None if the object does not exist or cannot be read."""

    shard: ShardTarget
    survey: Survey | None
    findings: tuple[Finding, ...]
    state: str | None


class _VerifyRun:
    """One run over several arrays."""

    def __init__(
        self,
        level: Level,
        sample: float,
        old: OldManifest | None,
        new: Manifest | None,
        options: Options,
        budget: MemoryBudget,
        fail_fast: bool,
        monitor: Monitor,
        on_shard: OnShard | None,
    ) -> None:
        self._level, self._sample, self._old, self._new = level, sample, old, new
        self._options, self._budget, self._fail_fast = options, budget, fail_fast
        self._monitor, self._on_shard = monitor, on_shard
        self._arrays: list[VerifiedArray] = []
        self._kinds: Counter[str] = Counter()
        self._shards: list[ShardFindings] = []
        self._n_findings = 0
        self.is_stopped = False

    def report(self, target: str) -> VerifyReport:
        """Return the result."""
        return VerifyReport(
            target,
            self._level.value,
            tuple(self._arrays),
            dict(sorted(self._kinds.items())),
            self._n_findings,
            tuple(self._shards),
            is_complete=not self.is_stopped,
        )

    def add(self, array: ArrayTarget, comparison: Comparison | None) -> None:
        """Verify the shards of one array."""
        if not array.is_sharded:
            self._arrays.append(VerifiedArray(array.name, array.problem or "it is not sharded"))
            if array.problem is not None:
                kind = FindingKind.UNREADABLE if array.is_malformed else FindingKind.UNSUPPORTED
                self._note(_of_array(array, kind, array.problem))
            return
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        if array.foreign_codec is not None:
            detail = f"shardcodec does not have the codec {array.foreign_codec}: only indexes are checked"
            self._note(_of_array(array, FindingKind.UNSUPPORTED, detail))
        share = self._share(array, comparison)
        one_thread = replace(self._options, threads=1)
        check = ChunkCheck(array.shard_spec, one_thread, can_decode=array.foreign_codec is None, share=share)
        counts: Counter[str] = Counter()
        for looked in self._look_at_all(array, check, comparison, counts):
            self._count(looked, counts)
            self._monitor.advance()
            if self.is_stopped:
                break
        has_checksum = bool(array.shard_spec.n_index_checksums)
        self._arrays.append(VerifiedArray(array.name, None, **counts, has_index_checksum=has_checksum))
        if not self.is_stopped:
            self._find_missing(array, comparison)

    def _share(self, array: ArrayTarget, comparison: Comparison | None) -> MemoryShare:
        """Return the number of threads and the memory of each."""
        wanted = self._options.threads
        if not array.store.is_near:
            wanted = max(wanted, _REQUEST_THREADS)
        more = 0 if comparison is None else comparison.least_nbytes
        share = self._budget.share(array.shard_spec, array.place, wanted, more=more)
        if comparison is not None and share.largest_nbytes is not None:
            comparison.limit_blocks(share.largest_nbytes // 3)  # two blocks, and which bytes differ
        return share

    # ---- shards

    def _look_at_all(
        self, array: ArrayTarget, check: ChunkCheck, comparison: Comparison | None, counts: Counter[str]
    ) -> Iterator[_Looked]:
        return in_order(
            self._chosen(array, counts),
            lambda shard: self._look(shard, check, comparison),
            check.share.n_threads,
            self._monitor,
            is_short=array.store.is_near and self._reads_little(array, comparison),
        )

    def _reads_little(self, array: ArrayTarget, comparison: Comparison | None) -> bool:
        """Return True if little is read of each shard."""
        is_small = array.shard_spec.chain.nbytes <= SMALL_NBYTES
        return comparison is None and (self._level is Level.INDEX or is_small)

    def _chosen(self, array: ArrayTarget, counts: Counter[str]) -> Iterator[ShardTarget]:
        """Yield the shards to check; report other objects."""
        n_chosen = 0
        for one in array.objects():
            self._monitor.check()
            if isinstance(one, ForeignObject):
                detail = f"an object that is not a shard: {one.reason}"
                self._note(Finding(FindingKind.FOREIGN_FILE, one.name, detail, array.name))
            elif self._is_unchanged(one):
                counts["n_unchanged"] += 1
                self._monitor.advance()
            elif n_chosen and crc32c(one.relative.encode()) >= self._sample * 2**32:
                counts["n_not_sampled"] += 1
                self._monitor.advance()
            else:
                n_chosen += 1
                yield one

    def _is_unchanged(self, shard: ShardTarget) -> bool:
        """Return True if an earlier run has found a shard whole at this level, and it has not changed."""
        if self._old is None:
            return False
        row = self._old.find(shard.array.name, shard.relative)
        if row is None or row.n_findings or row.state is None or Level(row.level).rank < self._level.rank:
            return False
        if lasting_state(shard.array.store, shard.key) != row.state:
            return False
        if self._new is not None:
            self._new.add(row)
        return True

    def _look(self, shard: ShardTarget, check: ChunkCheck, comparison: Comparison | None) -> _Looked:
        """Check one shard, in a thread."""
        array = shard.array
        findings: list[Finding] = []
        try:
            state = None if self._new is None else lasting_state(array.store, shard.key)
            path = array.store.path(shard.key)
            if path is not None and (journal := pending_journal(path)) is not None:
                detail = f"a writer has not finished an update in place; the journal is {journal}"
                findings.append(
                    Finding(FindingKind.PENDING_JOURNAL, shard.name, detail, array.name, recoverable=True)
                )
            view = open_object(array.store, shard.key)
            if view is None:
                return _Looked(shard, None, (), None)
            try:
                inside = inside_array(shard)
                found = survey(view, shard.name, check, self._level, array=array.name, is_inside=inside)
            finally:
                view.close()
        except (ShardError, OSError) as error:
            findings.append(
                Finding(FindingKind.UNREADABLE, shard.name, str(error), array.name, recoverable=False)
            )
            return _Looked(shard, None, tuple(findings), None)
        if comparison is not None:
            findings += itertools.islice(comparison.findings(shard), MOST_FINDINGS)
        return _Looked(shard, found.without_entries(), tuple(findings), state)

    def _count(self, looked: _Looked, counts: Counter[str]) -> None:
        found, findings = looked.survey, looked.findings
        n_errors = sum(not one.is_warning for one in findings)
        if found is not None:
            findings += found.findings
            n_errors += found.n_findings
            counts["n_shards"] += 1
            for name in ("nbytes", "data_nbytes", "verified_nbytes", "unverifiable_nbytes"):
                counts[name] += getattr(found, name)
            if self._new is not None:
                row = (
                    looked.shard.array.name,
                    looked.shard.relative,
                    looked.state,
                    found.nbytes,
                    self._level.value,
                    n_errors,
                )
                self._new.add(ManifestRow(*row))
        counts["n_damaged"] += n_errors > 0
        if findings:
            shard = looked.shard
            self._note_all(ShardFindings(shard.array.name, shard.name, findings, n_errors))

    def _find_missing(self, array: ArrayTarget, comparison: Comparison | None) -> None:
        if self._old is not None and array.only is None:
            for relative in self._old.missing(array.name):
                detail = "an earlier run has verified this shard, and it does not exist any more"
                shard = array.folder.prefix + relative
                self._note(Finding(FindingKind.MISSING_SHARD, shard, detail, array.name, recoverable=False))
        if comparison is None or self._sample < 1:
            return
        for missing in comparison.further_shards():
            self._monitor.check()
            for finding in comparison.findings(missing):
                self._note(replace(finding, kind=FindingKind.MISSING_SHARD))

    # ---- findings

    def _note(self, finding: Finding) -> None:
        self._note_all(ShardFindings(finding.array, finding.shard, (finding,), 1 - finding.is_warning))

    def _note_all(self, found: ShardFindings) -> None:
        self._kinds.update(one.kind.value for one in found.findings)
        self._n_findings += found.n_findings
        if self._on_shard is not None:
            self._on_shard(found)
        elif len(self._shards) < MOST_SHARDS:
            self._shards.append(found)
        if self._fail_fast and found.n_findings:
            self.is_stopped = True


def _of_array(array: ArrayTarget, kind: FindingKind, detail: str) -> Finding:
    finding = Finding(kind, array.place, detail, array.name)
    return finding if finding.is_warning else replace(finding, recoverable=False)
