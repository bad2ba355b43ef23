# verify.py - are arrays, and all that is stored beside them, whole?
# SPDX-License-Identifier: MIT
"""`verify`: check all shards, chunks, documents and other objects that a path leads to. Nothing is changed.

Shards are listed and checked one after the other by a few threads, so memory is bounded for arrays of any size. Chunks of arrays
without shards take the same way, each as the one inner chunk of a shard without an index.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from ... import native
from ...access.box_reader import Folder
from ...arguments import checked
from ...errors import ShardError, UnsupportedError
from ...format.spec import ShardSpec
from ...readable import as_nbytes
from ...storage.url_stores import placed_options
from ..capped import Capped
from ..chunk_check import Level, LevelName
from ..documents import DOCUMENTS
from ..findings import Finding, FindingKind
from ..hierarchy import Hierarchy
from ..jobs.shard_pool import ShardPool, absolute_place
from ..monitor import Monitor, RunOptions, passes_on_signals
from ..node_selection import Selection, selection_of
from ..other_objects import OtherObjects
from ..run_over_arrays import RunOverArrays
from ..targets import ArrayTarget, ForeignObject, ShardTarget, lasting_state
from .against import (
    Comparison,
    DifferentArrays,
    Reference,
    array_differences,
    compared_arrays,
    compared_objects,
    group_differences,
)
from .beside_arrays import BesideArrays, different_hash
from .manifest import Manifest, new_manifest
from .manifest_rows import ManifestRow, path_of_shard
from .old_manifest import OldManifest, old_manifest
from .report import NOT_IN_MANIFEST, ShardFindings, UncheckedPart, VerifiedArray, VerifyReport
from .verify_shards import ShardVerdict, ShardVerifier, VerifyTask, inside_array

__all__ = [
    "ShardFindings",
    "ShardVerdict",
    "ShardVerifier",
    "VerifiedArray",
    "VerifyReport",
    "VerifyTask",
    "inside_array",
    "verify",
]


OnShard = Callable[[ShardFindings], None]


@passes_on_signals
@checked
def verify(
    target: Any,
    *,
    level: LevelName | Level = "checksum",
    sample: float = 1.0,
    since: str | os.PathLike[str] | None = None,
    manifest: str | os.PathLike[str] | None = None,
    against: Any = None,
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    dask: Any = None,
    fail_fast: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_shard: OnShard | None = None,
) -> VerifyReport:
    """Check all that a path leads to: shards, chunks of arrays without shards, documents, other objects. Nothing is changed.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array.
    level : {"index", "checksum", "decode"}
        ``"index"``: checksum and entries of each index. ``"checksum"``: also every checksum of inner chunks. ``"decode"``:
        also decode every inner chunk. Of a damaged shard the inner chunks are always read. A chunk of an array without shards
        counts as an inner chunk; if it has no checksum, ``"checksum"`` finds missing bytes of it.
    sample : float
        Share of the shards to check, in (0, 1]; the same shards each time, and at least one of each array.
    since : path-like, optional
        The manifest of an earlier run. Shards that it found whole at this level, and whose state has not changed, are
        skipped, but not with `against`. Shards of the manifest that do not exist any more are findings, also those of arrays
        that do not exist any more, unless `target` is itself an array, or `only` or `exclude` is given. With a name that ends with
        ``.sha256``, a text of lines of ``sha256sum``: nothing is skipped, and an object with another hash is a finding.
    manifest : path-like, optional
        Write a manifest to this local file, outside of zarr hierarchies. It is an SQLite database; with a name that ends with
        ``.sha256`` a text for ``sha256sum -c`` in the folder of `target`. An old manifest of this name is replaced; any other
        file is refused.
    against : path-like, URL, zarr store or array-like, optional
        An array with the same elements, in any layout, or the group with such arrays: any source of `convert`. All elements of the
        checked shards are compared, bit by bit. `target` must have all arrays and groups of the other group, and its objects that
        belong to no array with the same bytes; of Zarr v2 and v3 also attributes, names of axes and fill values.
    only, exclude : str or sequence of str, optional
        Patterns of the arrays and groups that are checked, as for `convert`: a part of a hierarchy can be compared with `against`.
        With ``"@objects"`` in `exclude`, objects that belong to no array are not checked.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of threads. Default: the option ``threads``.
    memory : int or str, optional
        Memory for indexes and data, in bytes: fewer threads and smaller blocks are used. By default a few MiB, an index and
        an inner chunk for each thread.
    dask : str, distributed.Client or bool, optional
        The workers of a cluster of dask check the shards, see `convert`; `target` and `against` must be paths or URLs. `memory`
        and `threads` are then those of one worker, by default half of its memory limit and all its threads.
    fail_fast : bool
        Stop at the first finding that is not a warning.
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

    Examples
    --------
    >>> report = tools.verify("a.zarr", level="decode")
    >>> report.n_findings, report.n_unchecked
    (0, 0)
    """
    if not 0 < sample <= 1:
        raise ValueError(f"sample: expected a share in (0, 1], got {sample}")
    storage_options = placed_options(storage_options, target, against)
    options = RunOptions(threads, as_nbytes(memory, "memory"), dask, storage_options, monitor or Monitor())
    with ExitStack() as stack:
        old = None if since is None else stack.enter_context(closing(old_manifest(os.fspath(since))))
        new = None if manifest is None else stack.enter_context(new_manifest(os.fspath(manifest)))
        needs_hashes = (old is not None and old.has_all_hashes) or (new is not None and new.has_hashes)
        needs_states = new is not None and not new.has_hashes
        task = VerifyTask(Level(level), needs_states, needs_hashes, absolute_place(against), storage_options)
        pool = ShardPool(target, spec, options, against=task.against)
        hierarchy = Hierarchy(target, storage_options, spec=spec)
        arrays: Iterable[ArrayTarget] = hierarchy.arrays()
        selection = selection_of(only, exclude)
        reference = None
        if against is not None or selection.is_part:
            arrays, reference = compared_arrays(
                selection.known(hierarchy), target, hierarchy, task.against, selection, storage_options
            )
        run = _VerifyRun(task, stack.enter_context(pool), sample, old, new, fail_fast, on_shard, reference)
        run.run_over(arrays)
        if not selection.is_part:
            run.find_lost_arrays()
        if not hierarchy.rest:
            run.check_beside_arrays(hierarchy, selection)
        return run.report(str(target))


class _VerifyRun(RunOverArrays[ShardVerdict, ShardFindings]):
    """One run over several arrays."""

    def __init__(
        self,
        task: VerifyTask,
        pool: ShardPool,
        sample: float,
        old: OldManifest | None,
        new: Manifest | None,
        fail_fast: bool,
        on_shard: OnShard | None,
        reference: Reference | None,
    ) -> None:
        super().__init__(pool, on_shard, fail_fast=fail_fast)
        self._reference, self._task = reference, task
        self._sample, self._old, self._new = sample, old, new
        self._arrays: list[VerifiedArray] = []
        self._targets: list[ArrayTarget] = []
        self._unchecked: Capped[UncheckedPart] = Capped()
        self._n_documents = 0
        self._counts: Counter[str] = Counter()  # of the array that is verified
        self._kinds: Counter[str] = Counter()
        self._n_findings = self._n_other_objects = 0

    def report(self, target: str) -> VerifyReport:
        """Return the result."""
        return VerifyReport(
            target,
            self._task.level.value,
            tuple(self._arrays),
            dict(sorted(self._kinds.items())),
            self._n_findings,
            tuple(self._listed),
            is_complete=not self.is_stopped,
            n_other_objects=self._n_other_objects,
            n_documents=self._n_documents,
            n_unchecked=self._unchecked.n,
            unchecked=tuple(self._unchecked),
            notes=() if self._reference is None else tuple(self._reference.notes),
        )

    def _add(self, array: ArrayTarget) -> None:
        """Verify the shards, or the chunks, of one array."""
        self._targets.append(array)
        if not array.is_readable:
            self._compare_metadata(array)
            self._arrays.append(VerifiedArray(array.name, array.why_unread))
            self._leave(array.name, array.why_unread)
            if array.problem is not None:
                kind = FindingKind.UNREADABLE if array.is_malformed else FindingKind.UNSUPPORTED
                self._note(_of_array(array, kind, array.problem))
            return
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        self._counts.clear()
        work = self._work(array)
        if self.is_stopped:
            return
        if not work.decodes:
            detail = f"neither shardcodec nor zarr decodes {array.data_type} with the codec {array.foreign_codec}: only "
            detail += "that no chunk is empty" if array.is_plain else "indexes"
            detail += ", and checksums behind this codec, are checked"
            self._note(_of_array(array, FindingKind.UNSUPPORTED, detail))
            self._leave(array.name, detail)
        self._work_on(array, work.task, work, self._chosen(array))
        has_checksum = array.is_plain or bool(array.object_spec.n_index_checksums)
        self._arrays.append(
            VerifiedArray(
                array.name,
                None,
                **self._counts,
                has_index_checksum=has_checksum,
                is_sharded=not array.is_plain,
            )
        )
        if not self.is_stopped:
            self._find_missing(array, work.comparison)

    def find_lost_arrays(self) -> None:
        """Report the shards of arrays that are in the manifest, and that this run has not found in its group."""
        names = {one.name for one in self._targets if not one.is_group}
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

    def _work(self, array: ArrayTarget) -> ShardVerifier:
        """Return the work on an array; what is different, or cannot be compared, is a finding, and the shards are verified."""
        reference, pool = self._reference, self._pool
        if self._task.against is None or reference is None:
            return ShardVerifier(array, self._task, pool.options, pool.budget)
        try:
            reference.array(array.name)
            self._compare_metadata(array)
            work = ShardVerifier(array, self._task, pool.options, pool.budget, reference)
            for detail in () if work.comparison is None else work.comparison.metadata_differences():
                self._note(_of_array(array, FindingKind.DIFFERENT, detail))
            return work
        except UnsupportedError as error:
            detail = f"the elements cannot be compared: {error.message}"
        except FileNotFoundError:
            detail = "only this hierarchy has this array"
        except DifferentArrays as error:
            if not array.name:  # the user has named the two arrays, and nothing else is compared
                raise
            detail = str(error)
        except (ShardError, OSError) as error:
            detail = f"the elements cannot be compared: {error}"
        self._note(_of_array(array, FindingKind.DIFFERENT, detail))
        task = replace(self._task, against=None)
        return ShardVerifier(array, task, self._pool.options, self._pool.budget)

    def _compare_metadata(self, array: ArrayTarget) -> None:
        """Report how the metadata of an array differ from those of the other array."""
        if self._reference is None or array.is_malformed:
            return
        for detail in array_differences(array, self._reference):
            self._note(_of_array(array, FindingKind.DIFFERENT, detail))

    def check_beside_arrays(self, hierarchy: Hierarchy, selection: Selection) -> None:
        """Check the documents. Compare the objects that belong to no array with the other hierarchy and the manifest."""
        if self.is_stopped or any(one.is_2022 for one in self._targets):
            return
        compared: set[str] = set()
        reference = self._reference if self._task.against is not None else None
        if reference is not None:
            self._compare_nodes(hierarchy, reference)
        only_arrays = selection.only_arrays
        others = None if reference is None or only_arrays else reference.others()
        if others is not None and not self.is_stopped:
            compared = self._compare_objects(hierarchy.folder, others)
        if self.is_stopped:
            return
        chosen = [one.name for one in self._targets] if selection.is_part else None
        beside = BesideArrays(hierarchy, self._targets, chosen, self._old, self._new, only_arrays=only_arrays)
        with closing(beside.parts(compared, self._monitor, self._pool.options.threads)) as parts:
            for part in parts:
                if isinstance(part, UncheckedPart):
                    self._leave(part.name, part.reason)
                else:
                    self._note(part)
                if self.is_stopped:
                    break
        self._n_documents = beside.n_documents
        self._n_other_objects += beside.n_compared

    def _compare_nodes(self, hierarchy: Hierarchy, reference: Reference) -> None:
        """Report the arrays and groups that only the other hierarchy has, and the attributes of groups that differ."""
        known = {one.name for one in self._targets}
        if any(
            not one.name and not one.is_group for one in self._targets
        ):  # an array is compared with any other one
            return
        root, groups = hierarchy.folder, hierarchy.groups()
        known.update(name for name, _, _ in groups)
        for name, reason in reference.missing(known):
            detail = "only the other hierarchy has this array or group"
            detail += f"; `convert` leaves it out: {reason}" if reason is not None else ""
            self._note_node(root, FindingKind.MISSING_OBJECT, name, detail)
            if self.is_stopped:
                return
        for name, folder, group in groups:
            for detail in group_differences(name, folder, group, reference, known):
                self._note_node(root, FindingKind.DIFFERENT, name, detail)
                if self.is_stopped:
                    return

    def _note_node(self, root: Folder, kind: FindingKind, name: str, detail: str) -> None:
        self._monitor.check()
        shown = root.store.path(root.prefix + name) or root.prefix + name
        self._note(Finding(kind, shown, detail, name, recoverable=False))

    def _compare_objects(self, root: Folder, others: OtherObjects) -> set[str]:
        """Compare the objects that belong to no array with those of the other hierarchy; return their names."""
        compared = set()
        for name, difference in compared_objects(others, root, self._monitor, self._pool.options.threads):
            self._n_other_objects += 1
            compared.add(name)
            if difference is not None:
                kind, detail = difference
                shown = root.store.path(root.prefix + name) or root.prefix + name
                self._note(Finding(kind, shown, detail, recoverable=False))
            if self.is_stopped:
                break
        return compared

    def _chosen(self, array: ArrayTarget) -> Iterator[ShardTarget]:
        """Yield the shards to check; report other objects."""
        n_chosen = 0
        for one in array.objects():
            self._monitor.check()
            if isinstance(one, ForeignObject) and one.is_journal:
                detail = (
                    "the undo journal of another file: the folder was copied beside an unfinished update in place, so a "
                    "shard in it may be a mixture of two states; roll back the source with `shardcodec repair`, and copy it again"
                )
                self._note(
                    Finding(FindingKind.PENDING_JOURNAL, one.name, detail, array.name, recoverable=False)
                )
            elif isinstance(one, ForeignObject) and one.is_unreadable:
                self._note(
                    Finding(FindingKind.UNREADABLE, one.name, one.reason, array.name, recoverable=False)
                )
            elif isinstance(one, ForeignObject) and (unnamed := array.unnamed(one)):
                is_sure = len(unnamed) == 1
                detail = (
                    f"a second name, or one of NFS for an open file that is replaced, and {unnamed[0].name} is missing"
                    f"{'' if is_sure else f', with {len(unnamed) - 1} more'}: it is the shard, if a machine has died or was cut off while it replaced it, "
                    "or an old state of another one that a process still has open"
                )
                self._note(
                    Finding(FindingKind.MISSING_NAME, one.name, detail, array.name, recoverable=is_sure)
                )
            elif isinstance(one, ForeignObject) and one.key.rpartition("/")[2] in DOCUMENTS:
                detail = "metadata of a node in the folder of an array, where programs look for none: is the array in the place of a group?"
                self._note(Finding(FindingKind.UNREADABLE, one.name, detail, array.name, recoverable=False))
            elif isinstance(one, ForeignObject):
                detail = f"an object that is not a {'chunk' if array.is_plain else 'shard'}: {one.reason}"
                self._note(Finding(FindingKind.FOREIGN_FILE, one.name, detail, array.name))
            elif self._old is not None and self._is_unchanged(one, self._old):
                self._counts["n_unchanged"] += 1
                self._monitor.advance()
            elif n_chosen and native.load().crc32c(one.relative.encode()) >= self._sample * 2**32:
                self._counts["n_not_sampled"] += 1
                self._monitor.advance()
            else:
                n_chosen += 1
                yield one

    def _is_unchanged(self, shard: ShardTarget, old: OldManifest) -> bool:
        """Return True if an earlier run has found a shard whole at this level, and it has not changed."""
        row = old.find(shard.array.name, shard.relative)
        if (
            self._task.against is not None  # no earlier run shows that the elements are still equal
            or self._task.hashes  # the row has none
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

    def _count(self, shards: Sequence[ShardTarget], verdict: ShardVerdict) -> None:
        (shard,), counts = shards, self._counts
        array, n_errors = shard.array.name, verdict.n_errors
        if verdict.sizes is not None:
            counts["n_shards"] += 1
            self._monitor.add_nbytes(verdict.sizes[0])
            names = "nbytes", "data_nbytes", "verified_nbytes", "unverifiable_nbytes"
            counts.update(dict(zip(names, verdict.sizes, strict=True)))
            if self._new is not None:
                level = self._task.level.value
                self._new.add(
                    ManifestRow(
                        array,
                        shard.relative,
                        verdict.state,
                        verdict.sizes[0],
                        level,
                        n_errors,
                        verdict.sha256,
                    )
                )
            self._compare_hash(shard, verdict)
        counts["n_damaged"] += n_errors > 0
        if verdict.findings:
            self._note_all(ShardFindings(array, shard.name, verdict.findings, n_errors))

    def _compare_hash(self, shard: ShardTarget, verdict: ShardVerdict) -> None:
        """Compare the hash of a shard with that of the manifest, if it has hashes of shards."""
        if self._old is None or not self._old.has_all_hashes or verdict.sha256 is None:
            return
        path = path_of_shard(shard.array.name, shard.relative)
        expected = self._old.sha256(path)
        if expected is None:
            self._leave(path, NOT_IN_MANIFEST)
        elif expected != verdict.sha256:
            detail = different_hash(expected, verdict.sha256)
            self._note(
                Finding(FindingKind.DIFFERENT, shard.name, detail, shard.array.name, recoverable=False)
            )

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

    def _leave(self, name: str, reason: str) -> None:
        """Note a part that could not be checked."""
        self._unchecked.add(UncheckedPart(name, reason))

    def _note(self, finding: Finding) -> None:
        self._note_all(ShardFindings(finding.array, finding.shard, (finding,), 1 - finding.is_warning))

    def _note_all(self, found: ShardFindings) -> None:
        self._kinds.update(one.kind.value for one in found.findings)
        self._n_findings += found.n_findings
        self._list(found, found.n_findings)


def _of_array(array: ArrayTarget, kind: FindingKind, detail: str) -> Finding:
    finding = Finding(kind, array.place, detail, array.name)
    return finding if finding.is_warning else replace(finding, recoverable=False)
