# verify.py - are the shards of arrays whole?
# SPDX-License-Identifier: MIT
"""`verify`: check the indexes, checksums and inner chunks of all shards that a path leads to. Nothing is changed.

Shards are listed and checked one after the other by a few threads, so memory is bounded for arrays of any size.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from ..arguments import checked
from ..checksum import crc32c
from ..errors import UnsupportedError
from ..format.spec import ShardSpec
from ..storage.kinds import placed_options
from .against import Comparison, compared_objects
from .array_target import ArrayTarget, ForeignObject, ShardTarget
from .chunk_check import Level, LevelName
from .findings import Finding, FindingKind
from .jobs.shard_pool import ShardPool, absolute_place
from .manifest import Manifest, ManifestRow, OldManifest
from .monitor import Monitor
from .stored_bytes import lasting_state
from .targets import find_arrays, find_hierarchy
from .verify_report import ShardFindings, VerifiedArray, VerifyReport
from .verify_work import Looked, VerifyTask, VerifyWork

__all__ = ["verify"]

# Shards with findings that a report lists.
MOST_SHARDS = 1000

OnShard = Callable[[ShardFindings], None]


@checked
def verify(
    target: Any,
    *,
    level: LevelName | Level = "checksum",
    sample: float = 1.0,
    since: str | os.PathLike[str] | None = None,
    manifest: str | os.PathLike[str] | None = None,
    against: Any = None,
    array: str | None = None,
    only_arrays: bool = False,
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | None = None,
    dask: Any = None,
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
    since : path-like, optional
        The manifest of an earlier run. Shards that it found whole at this level, and whose state has not changed, are
        skipped, but not with `against`. Shards of the manifest that do not exist any more are findings, also those of arrays
        that do not exist any more, unless `target` is itself an array or `array` is given.
    manifest : path-like, optional
        Write a manifest to this local file, outside of zarr hierarchies. It is an SQLite database. An old manifest of this
        name is replaced; any other file is refused.
    against : path-like, URL, zarr store or array-like, optional
        An array with the same elements, in any layout, or the group with such arrays: any source of `convert`. All elements of the
        checked shards are compared, bit by bit. An object that belongs to no array must be in both hierarchies with the same bytes.
    array : str, optional
        Only this array, by its path in the group.
    only_arrays : bool
        With `against`, do not compare objects that belong to no array.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of threads. Default: the option ``threads``.
    memory : int, optional
        Memory for indexes and data, in bytes: fewer threads and smaller blocks are used. By default a few MiB, an index and
        an inner chunk for each thread.
    dask : str, distributed.Client or bool, optional
        The workers of a cluster of dask check the shards, see `convert`; `target` and `against` must be paths or URLs. `memory`
        and `threads` are then those of one worker, by default half of its memory limit and all its threads.
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
        An argument is invalid, an index and an inner chunk do not fit into `memory`, or a package is missing.
    ConflictError, OSError
        A worker of dask reaches other metadata; or the scheduler was lost.
    """
    if not 0 < sample <= 1:
        raise ValueError(f"sample: expected a share in (0, 1], got {sample}")
    if only_arrays and against is None:
        raise ValueError(
            "only_arrays: expected `against` (--against), because nothing else looks at other objects"
        )
    monitor = monitor or Monitor()
    storage_options = placed_options(storage_options, target, against)
    task = VerifyTask(Level(level), manifest is not None, absolute_place(against), storage_options)
    pool = ShardPool(
        target,
        spec,
        storage_options,
        threads=threads,
        memory=memory,
        dask=dask,
        monitor=monitor,
        more_places={} if against is None else {"against": task.against},
    )
    arrays = find_arrays(target, array=array, spec=spec, storage_options=storage_options)
    with ExitStack() as stack:
        old = None if since is None else OldManifest(os.fspath(since))
        if old is not None:
            stack.callback(old.close)
        new = None if manifest is None else stack.enter_context(Manifest(os.fspath(manifest)))
        run = _VerifyRun(task, stack.enter_context(pool), sample, old, new, fail_fast, monitor, on_shard)
        for one in arrays:
            run.add(one)
            if run.is_stopped:
                break
        if array is None:
            run.find_lost_arrays()
        if against is not None and spec is None and not only_arrays:
            run.compare_objects(target, array, storage_options)
        return run.report(str(target))


class _VerifyRun:
    """One run over several arrays."""

    def __init__(
        self,
        task: VerifyTask,
        pool: ShardPool,
        sample: float,
        old: OldManifest | None,
        new: Manifest | None,
        fail_fast: bool,
        monitor: Monitor,
        on_shard: OnShard | None,
    ) -> None:
        self._task, self._pool = task, pool
        self._sample, self._old, self._new, self._fail_fast = sample, old, new, fail_fast
        self._monitor, self._on_shard = monitor, on_shard
        self._arrays: list[VerifiedArray] = []
        self._kinds: Counter[str] = Counter()
        self._shards: list[ShardFindings] = []
        self._n_findings = self._n_other_objects = 0
        self.is_stopped = False

    def report(self, target: str) -> VerifyReport:
        """Return the result."""
        return VerifyReport(
            target,
            self._task.level.value,
            tuple(self._arrays),
            dict(sorted(self._kinds.items())),
            self._n_findings,
            tuple(self._shards),
            is_complete=not self.is_stopped,
            n_other_objects=self._n_other_objects,
        )

    def add(self, array: ArrayTarget) -> None:
        """Verify the shards of one array."""
        if not array.is_sharded:
            self._arrays.append(VerifiedArray(array.name, array.problem or "it is not sharded"))
            if array.problem is not None:
                kind = FindingKind.UNREADABLE if array.is_malformed else FindingKind.UNSUPPORTED
                self._note(_of_array(array, kind, array.problem))
            return
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        counts: Counter[str] = Counter()
        work = self._work(array)
        if not work.decodes:
            detail = f"neither shardcodec nor zarr decodes {array.data_type} with the codec {array.foreign_codec}: only indexes, and "
            detail += "checksums behind this codec, are checked"
            self._note(_of_array(array, FindingKind.UNSUPPORTED, detail))
        chosen = self._chosen(array, counts)
        with closing(self._pool.results(work.task, work, array, chosen)) as results:
            for (shard,), looked in results:
                self._count(shard, looked, counts)
                self._monitor.advance()
                if self.is_stopped:
                    break
        has_checksum = bool(array.shard_spec.n_index_checksums)
        self._arrays.append(VerifiedArray(array.name, None, **counts, has_index_checksum=has_checksum))
        if not self.is_stopped:
            self._find_missing(array, work.comparison)

    def find_lost_arrays(self) -> None:
        """Report the shards of arrays that are in the manifest, and that this run has not found in its group."""
        names = {one.name for one in self._arrays}
        # an array at the root has no others beside it
        if self._old is None or self.is_stopped or "" in names:
            return
        if names and not self._old.has_any_of(names):  # the manifest is of another group, with other paths
            return
        lost = groupby(self._old.of_other_arrays(names), key=itemgetter(0))
        for name, rows in lost:
            self._arrays.append(VerifiedArray(name, "it does not exist any more"))
            for _, relative in rows:
                self._monitor.check()
                detail = "an earlier run has verified this shard, and its array does not exist any more"
                shard = f"{name}/{relative}" if name else relative
                self._note(Finding(FindingKind.MISSING_SHARD, shard, detail, name, recoverable=False))
                if self.is_stopped:
                    return

    def _work(self, array: ArrayTarget) -> VerifyWork:
        """Return the work on an array; elements that cannot be compared are a finding, and the shards are verified."""
        try:
            return VerifyWork(array, self._task, self._pool.options, self._pool.budget)
        except UnsupportedError as error:
            if self._task.against is None:
                raise
            detail = f"the elements cannot be compared: {error.message}"
            self._note(_of_array(array, FindingKind.DIFFERENT, detail))
        task = replace(self._task, against=None)
        return VerifyWork(array, task, self._pool.options, self._pool.budget)

    def compare_objects(
        self, target: Any, array: str | None, storage_options: Mapping[str, Any] | None
    ) -> None:
        """Compare the objects that belong to no array with those of the other hierarchy, which is of zarr."""
        root = find_hierarchy(target, storage_options)
        if self.is_stopped or root is None:
            return
        for name, difference in compared_objects(
            self._task.against,
            root,
            array,
            self._task.storage_options,
            self._monitor,
            self._pool.options.threads,
        ):
            self._n_other_objects += 1
            if difference is not None:
                kind, detail = difference
                shown = root.store.path(root.prefix + name) or root.prefix + name
                self._note(Finding(kind, shown, detail, recoverable=False))
            if self.is_stopped:
                return

    # ---- shards

    def _chosen(self, array: ArrayTarget, counts: Counter[str]) -> Iterator[ShardTarget]:
        """Yield the shards to check; report other objects."""
        n_chosen = 0
        for one in array.objects():
            self._monitor.check()
            if isinstance(one, ForeignObject) and one.is_journal:
                detail = (
                    "the undo journal of another file: the folder was copied beside an unfinished update in place, so a "
                    "shard in it may be a mixture of two states; settle the source, and copy it again"
                )
                self._note(
                    Finding(FindingKind.PENDING_JOURNAL, one.name, detail, array.name, recoverable=False)
                )
            elif isinstance(one, ForeignObject):
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
        if (
            self._task.against is not None  # no earlier run shows that the elements are still equal
            or row is None
            or row.n_findings
            or row.state is None
            or Level(row.level).rank < self._task.level.rank
        ):
            return False
        if lasting_state(shard.array.store, shard.key) != row.state:
            return False
        if self._new is not None:
            self._new.add(row)
        return True

    def _count(self, shard: ShardTarget, looked: Looked, counts: Counter[str]) -> None:
        array, n_errors = shard.array.name, looked.n_errors
        if looked.sizes is not None:
            counts["n_shards"] += 1
            names = "nbytes", "data_nbytes", "verified_nbytes", "unverifiable_nbytes"
            counts.update(dict(zip(names, looked.sizes, strict=True)))
            if self._new is not None:
                level = self._task.level.value
                self._new.add(
                    ManifestRow(array, shard.relative, looked.state, looked.sizes[0], level, n_errors)
                )
        counts["n_damaged"] += n_errors > 0
        if looked.findings:
            self._note_all(ShardFindings(array, shard.name, looked.findings, n_errors))

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
