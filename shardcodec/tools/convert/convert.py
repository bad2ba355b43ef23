# convert.py - convert arrays to sharded arrays of Zarr v3: the call, its job file, its cost
# SPDX-License-Identifier: MIT
"""Convert arrays to sharded arrays of Zarr v3: the call, its job file, its cost.

`convert`: plan, then run all units, with a ledger if it is a job. `plan_convert`: only the plan, for `run_part`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ...arguments import checked
from ...errors import ConflictError
from ...format.codecs import CodecLike
from ...option_sources import current_options
from ...options import Options, check
from ...readable import as_nbytes
from ...storage.url_stores import is_url, placed_options
from ..hierarchy import find_arrays
from ..job_mark import MARK, has_claim, release
from ..jobs.job_files import PlanFile, read_ledgers, remove_ledgers
from ..jobs.shard_pool import chosen_cluster, default_job, open_workers
from ..monitor import Incomplete, Monitor, Stopped, passes_on_signals
from ..new_hierarchy import NewHierarchy, absolute, check_apart
from ..node_selection import selection_of
from ..other_objects import NO_OBJECTS, ObjectCounts, count_objects
from ..targets import ArrayTarget
from .choice_texts import rules_of
from .choices import Choices
from .cost import array_reports
from .intermediate import Intermediate
from .open_source import open_source
from .plan import ConvertPlan, VerifyLevel, make_plan
from .report import ConvertedArray, ConvertReport
from .run_plan import Execution, left_of, run_report
from .source import SourceTree
from .write_units import Totals, is_finished

__all__ = [
    "convert",
    "plan_convert",
]


def _plan_file(
    plan: ConvertPlan,
    path: str | os.PathLike[str],
    source: Any,
    destination: Any,
    storage_options: Mapping[str, Any] | None,
    n_parts: int = 1,
) -> PlanFile:
    """Return the file of a plan, which is not written yet. It lies outside of the new hierarchy; other processes can open both places."""
    path = os.path.abspath(os.fspath(path))
    for name, place in (("source", source), ("destination", destination)):
        if not isinstance(place, str):
            raise TypeError(
                f"{name}: expected a path or a URL, which other processes can open, got {type(place).__name__}"
            )
    if not is_url(destination) and path.startswith(destination.rstrip(os.sep) + os.sep):
        raise ValueError(f"job: expected a file outside of the new hierarchy {destination}, got {path}")
    return PlanFile(path, plan, source, destination, n_parts, storage_options)


def _stored(path: str, *, resume: bool) -> PlanFile | None:
    try:
        return PlanFile.read(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if resume:
            raise
        raise FileExistsError(f"{path}: expected a new file for the job, but it exists: {error}") from error


def _check_over(stored: PlanFile, file: PlanFile, *, resume: bool) -> None:
    """Raise an error unless the stored job is finished, so that another one may take its file."""
    if is_finished(read_ledgers(stored.path, stored.plan.fingerprint)):
        return
    if not resume:
        raise FileExistsError(f"{stored.path}: the job exists already; resume it, or name a new file")
    raise ConflictError(
        f"{file.plan.source}: expected the source and the options with which the job was begun (fingerprint "
        f"{stored.plan.fingerprint}), got others ({file.plan.fingerprint}); begin a new job with a new destination",
        expected=stored.plan.fingerprint,
        actual=file.plan.fingerprint,
    )


def _remove(file: PlanFile) -> None:
    # ledgers first, because a plan without ledgers is harmless, but a new plan with old ledgers is not
    remove_ledgers(file.path)
    with suppress(FileNotFoundError):
        os.unlink(file.path)


OnArray = Callable[[ConvertedArray], None]


@passes_on_signals
@checked
def convert(
    source: Any,
    destination: Any,
    *,
    chunks: Sequence[int] | Mapping[str, Any] | str | None = None,
    shards: int | Sequence[int] | Mapping[str, Any] | str | None = None,
    access: str | Sequence[str] = (),
    codecs: Sequence[CodecLike] | None = None,
    like: Any = None,
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    level: VerifyLevel = "none",
    memory: int | str | None = None,
    threads: int | None = None,
    temp: str | os.PathLike[str] | None = None,
    job: str | os.PathLike[str] | None = None,
    resume: bool = False,
    dask: Any = None,
    fail_fast: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_array: OnArray | None = None,
) -> ConvertReport:
    """Convert an array, or all arrays of a group, to sharded arrays of Zarr v3.

    Encoded chunks are moved without decoding them where shapes and codecs permit; by default they do. Otherwise elements
    are decoded once and encoded. The metadata are written last, those of the root at the very end, so a hierarchy with
    metadata is complete.

    Parameters
    ----------
    source : path-like, URL, zarr store or array-like
        A group or an array of Zarr v2, of Zarr v3 with or without shards, or of the 2022 format; an HDF5 file or a path into
        one (``data.h5/images``); any object with shape, dtype and ``__getitem__``.
    destination : path-like, URL or zarr store
        The new hierarchy; nothing may be there.
    chunks : tuple of int, mapping or "auto", optional
        Shape of an inner chunk, for the arrays with so many axes. Or sizes by names of axes, such as ``{"time": 24}``, for the
        arrays that have them; along other axes the chunk is that of the source. Or shapes, sizes by names or ``"auto"`` by
        patterns of paths of arrays, such as ``{"t2m": (1, 64, 64)}``; ``"*"`` is for all others. ``"auto"`` takes the proposal of
        `advise` for `access`. Default: the chunks of the source.
    shards : int, tuple of int, mapping or "auto", optional
        The same for shards; a number is the largest size of a shard in bytes, decoded. Default: 512 MiB. An array that no rule
        for chunks or shards is for keeps its layout, and one of less than 1 MiB, or of one inner chunk, beside others has
        no shards; the report says why.
    access : str or sequence of str
        How programs read the arrays, as for `parse_access`; arrays with other axes ignore it.
    codecs : sequence of codecs, optional
        Codecs of an inner chunk, as names or JSON objects. Default: those of the source.
    like : path-like, URL or zarr store, optional
        An array whose shapes and codecs are taken.
    only : str or sequence of str
        Only arrays whose path, or a group that they are in, matches this pattern, or one of these, such as ``a/*``; and those that
        xarray or AnnData need with them: coordinates, bounds, grid mappings, the index of a data frame. Metadata of groups
        (levels of OME-Zarr, labels, plates, columns of AnnData) then name only what is copied.
    exclude : str or sequence of str
        Leave out such arrays and groups. ``"@needed"`` leaves out the arrays that are needed with those of `only`. ``"@objects"`` leaves
        out all objects that belong to no array. By default they are copied as they are, such as tables and hidden files; with
        `only` those in the folders of the chosen arrays.
    level : {"none", "checksum", "compare"}
        Read each new shard again: check its checksums, or compare all its elements or encoded inner chunks with those that were
        written. The source is not read again.
    memory : int or str, optional
        Bytes, such as ``"4GiB"``, of elements and encoded chunks to hold at a time. Default: a quarter of the memory of the machine, 8 GiB at
        most. A shard that does not fit is written piece by piece.
    threads : int, optional
        Number of threads. Default: the option ``threads``.
    temp : path-like, optional
        A new local folder for intermediate arrays, which is removed at the end. It is used where source chunks would
        otherwise be read three times or more, because source chunks and shards cross and `memory` does not suffice.
    job : path-like, optional
        A file for the plan, beside which the ledger is; it makes the conversion resumable. It must be new, or that of a finished
        job, which it replaces. `source` and `destination` must be paths or URLs. After an error before anything is written it
        does not stay.
    resume : bool
        Go on with the job, if there is one. Finished shards are not written again; of a finished job nothing is.
    dask : str, distributed.Client or bool, optional
        The workers of a cluster of dask write the shards: the address of its scheduler, ``"local:N"`` for N new processes, a
        client, or True for the client that the program uses. `memory` and `threads` are then those of one worker, by default half of its memory limit and all its threads.
        The conversion is then a job; beside a local destination the default of `job` is ``DESTINATION.job.json``. Default: this process.
    fail_fast : bool
        Stop at the first shard that cannot be written; by default go on with the others. Either way the metadata are
        not written. Malformed metadata of an array or a group are an error; by default the node is left out, and the report names it.
    dry_run : bool
        Write nothing, and estimate the cost.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    monitor : Monitor, optional
        Gets the progress, and may stop the work between two groups of shards.
    on_array : callable, optional
        Called for each array; the report then does not list them.

    Returns
    -------
    ConvertReport
        If the user stopped a job, ``is_complete`` is False.

    Raises
    ------
    Stopped
        The user stopped a conversion that is not a job.
    Incomplete
        The scheduler of dask was lost; the job can be resumed.
    FileExistsError
        There is something at the destination, or an unfinished job exists already.
    FileNotFoundError
        There is no source.
    ConflictError
        The source has changed since the job was begun, or while it ran, or the job has other options.
    SpecError, UnsupportedError
        The metadata of the source, or the codecs, are not possible.
    ValueError, TypeError, ImportError
        An argument is invalid, or a package is missing.

    Examples
    --------
    >>> report = tools.convert("a.zarr", "b.zarr", shards=(4, 3), level="compare")
    >>> zarr.open_array("b.zarr").shards
    (4, 3)
    """
    storage_options = placed_options(storage_options, source, destination, like)
    source, destination = (absolute(place, storage_options) for place in (source, destination))
    monitor, memory = monitor or Monitor(), as_nbytes(memory, "memory")
    cluster = chosen_cluster(dask, {"source": source, "destination": destination})
    if cluster is not None:
        if temp is not None:
            raise ValueError(
                "temp: expected no intermediate array with dask; give the workers more memory instead"
            )
        job = default_job(destination) if job is None else job
    with open_workers(cluster, threads=threads, memory=memory, monitor=monitor) as workers:
        options = current_options(
            argument=check({"threads": threads if workers is None else workers.n_threads})
        )
        # sources and destinations that are no URLs must not get the options of one
        tree = open_source(
            source,
            options,
            selection=selection_of(only, exclude),
            storage_options=_options_for(source, storage_options),
            fail_fast=fail_fast,
        )
        check_apart(source if tree.whole is None else tree.whole, destination, storage_options)
        new = NewHierarchy(destination, storage_options)
        choices = _choices(chunks, shards, access, codecs, like, storage_options)
        plan = make_plan(
            tree,
            new,
            choices,
            options,
            memory=memory if workers is None else workers.memory,
            verify=level,
            n_workers=options.threads if workers is None else workers.n_shares,
            may_use_intermediate=temp is not None,
        )
        others = count_objects(tree.others, monitor, options.threads)
        arrays = tuple(array_reports(plan, tree, has_cost=dry_run))
        if on_array is not None:
            for array_report in arrays:
                on_array(array_report)
        listed = () if on_array is not None else arrays
        if dry_run:
            if not resume:
                new.check_free()
            return _planned(plan, options, listed, others, tree)
        conversion = _Conversion(
            plan, tree, new, options, monitor, fail_fast, workers=workers, temp=temp, counted=others
        )
        if job is not None:
            conversion.begin(_plan_file(plan, job, source, destination, storage_options), resume=resume)
        elif resume:
            raise ValueError("resume: expected `job` (--job), the file of the plan that is resumed")
        elif any(array.via for array in plan.arrays):  # otherwise the run begins with it
            new.check_free()
        report = conversion.carry_out(listed)
    if report.is_stopped and job is None:
        raise Stopped
    return report


@dataclass
class _Conversion(Execution):
    """A whole conversion: an execution with its job file, and with a folder for intermediate arrays, if the user has named one."""

    temp: str | os.PathLike[str] | None = None
    file: PlanFile | None = None
    counted: ObjectCounts = NO_OBJECTS
    is_new: bool = True

    def begin(self, file: PlanFile, *, resume: bool) -> None:
        """Store the plan of a new job, or go on with the one in its file.

        A finished job stays until another one takes its file, so that a command that runs once more finds it complete.
        """
        stored = _stored(file.path, resume=resume)
        if stored is not None and resume and stored.plan.fingerprint == file.plan.fingerprint:
            file, self.is_new = stored, False
        else:
            if stored is not None:
                _check_over(stored, file, resume=resume)
            self.destination.check_free()
            if stored is not None:
                _remove(stored)
            file.write()
        self.file, self.plan, self.job, self.owner = file, file.plan, file.path, file.job
        self.options = replace(self.options, threads=min(self.options.threads, self.plan.n_threads))

    def carry_out(self, listed: tuple[ConvertedArray, ...]) -> ConvertReport:
        """Run all units; if that ends before anything is written, and cannot be resumed, remove the file and the mark of the job."""
        had_folder = self.destination.path is not None and os.path.isdir(self.destination.path)
        try:
            if any(array.via for array in self.plan.arrays) and not self.destination.is_complete:
                totals, is_complete, n_damaged = self._run_by_way_of_intermediates()
            else:
                totals, is_complete, n_damaged = self.run(
                    self.plan.units(), n_shards=self.plan.n_shards, finishes=True
                )
        except Incomplete:
            raise
        except BaseException:
            if self.is_new and self.temp is None:
                self._give_up(had_folder=had_folder)
            raise
        if self.file is None and not is_complete and not totals.counts["n_written"]:
            self._give_up(had_folder=had_folder)
        plan = self.plan
        left = left_of(
            self.tree, plan, totals.others if is_complete and totals.others.parts.parts else self.counted
        )
        return run_report(plan, self.options, totals, plan.n_shards, is_complete, n_damaged, listed, left)

    def _give_up(self, *, had_folder: bool) -> None:
        """Remove the file and the mark of a job that has not written anything, so that the next attempt finds nothing."""
        file, new = self.file, self.destination
        if file is not None and read_ledgers(file.path, file.plan.fingerprint).lines:
            return
        with suppress(OSError):  # a place that cannot be reached has nothing to remove, or keeps it
            if has_claim(new, self.owner):
                if new.has_objects(besides=MARK):
                    return
                release(new)
                if new.path is not None and not had_folder:
                    os.rmdir(new.path)
        if file is not None:
            _remove(file)

    def _run_by_way_of_intermediates(self) -> tuple[Totals, bool, int]:
        """Make the intermediate arrays, and run all units with them as the source."""
        if self.temp is None:
            raise ValueError("temp: expected the folder for intermediate arrays with which the job was begun")
        via = Intermediate(self, self.temp)
        is_complete = False
        try:
            totals = via.make()
            if totals.is_stopped or totals.failures:
                return totals, False, 0
            self.tree = via.tree()
            totals, is_complete, n_damaged = self.run(
                self.plan.units(), n_shards=self.plan.n_shards, finishes=True
            )
            return totals, is_complete, n_damaged
        finally:
            if is_complete or self.job is None:
                via.remove()


@passes_on_signals
@checked
def plan_convert(
    source: Any,
    destination: Any,
    file: str | os.PathLike[str],
    *,
    parts: int = 1,
    chunks: Sequence[int] | Mapping[str, Any] | str | None = None,
    shards: int | Sequence[int] | Mapping[str, Any] | str | None = None,
    access: str | Sequence[str] = (),
    codecs: Sequence[CodecLike] | None = None,
    like: Any = None,
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    level: VerifyLevel = "none",
    memory: int | str | None = None,
    threads: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ConvertReport:
    """Plan a conversion that several processes run in parts; see `run_part`.

    Parameters
    ----------
    source, destination : path-like or URL
        As for `convert`.
    file : path-like
        The new file of the plan. All workers must reach it, the source and the destination under the same paths.
    parts : int
        Number of parts.
    chunks, shards, access, codecs, like, only, exclude, level, memory, threads, storage_options
        As for `convert`; memory and threads of one worker.

    Returns
    -------
    ConvertReport
        As of a dry run.

    Raises
    ------
    FileExistsError
        There is something at the destination, or the file exists already.
    FileNotFoundError, SpecError, UnsupportedError, ValueError, TypeError, ImportError
        As for `convert`.

    Examples
    --------
    >>> report = tools.plan_convert("a.zarr", "b.zarr", "plan.json", parts=2, shards=(4, 3))
    >>> [tools.run_part("plan.json", part).is_complete for part in range(2)]
    [False, True]
    """
    if parts < 1:
        raise ValueError(f"parts: expected at least 1, got {parts}")
    options = current_options(argument=check({"threads": threads}))
    storage_options = placed_options(storage_options, source, destination, like)
    source, destination = (absolute(place, storage_options) for place in (source, destination))
    tree = open_source(
        source,
        options,
        selection=selection_of(only, exclude),
        storage_options=_options_for(source, storage_options),
    )
    check_apart(source if tree.whole is None else tree.whole, destination, storage_options)
    new = NewHierarchy(destination, storage_options)
    new.check_free()
    choices = _choices(chunks, shards, access, codecs, like, storage_options)
    plan = make_plan(
        tree, new, choices, options, memory=as_nbytes(memory, "memory"), verify=level, n_workers=parts
    )
    others = count_objects(tree.others, Monitor(), options.threads)
    _plan_file(plan, file, source, destination, storage_options, parts).write()
    return _planned(plan, options, tuple(array_reports(plan, tree, has_cost=True)), others, tree)


def _choices(
    chunks: Any,
    shards: Any,
    access: str | Sequence[str],
    codecs: Sequence[CodecLike] | None,
    like: Any,
    storage_options: Mapping[str, Any] | None,
) -> Choices:
    return Choices(
        codecs=None if codecs is None else tuple(codecs),
        like=_like(like, storage_options),
        rules=(*rules_of("chunks", chunks), *rules_of("shards", shards)),
        accesses=(access,) if isinstance(access, str) else tuple(access),
    )


def _options_for(place: Any, storage_options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return storage_options if is_url(place) else None


def _like(like: Any, storage_options: Mapping[str, Any] | None) -> ArrayTarget | None:
    if like is None:
        return None
    arrays = list(find_arrays(like, storage_options=_options_for(like, storage_options)))
    if len(arrays) != 1 or arrays[0].layout is None:
        raise ValueError(f"like: expected one array, got {len(arrays)} at {like}")
    return arrays[0]


def _planned(
    plan: ConvertPlan,
    options: Options,
    arrays: tuple[ConvertedArray, ...],
    others: ObjectCounts,
    tree: SourceTree,
) -> ConvertReport:
    """Return the report of a plan of which nothing was carried out."""
    left = left_of(tree, plan, others)
    totals = Totals()
    totals.others = others
    report = run_report(plan, options, totals, plan.n_shards, False, 0, arrays, left)
    return replace(report, dry_run=True)
