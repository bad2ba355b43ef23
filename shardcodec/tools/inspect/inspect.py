# inspect.py - what is stored of arrays and shards
# SPDX-License-Identifier: MIT
"""`inspect`: shapes, codecs, sizes, order and dead bytes of arrays and shards. Only metadata and indexes are read.

Memory is bounded: of the shards only sums, a histogram of sizes and the first damaged ones are kept.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...arguments import checked
from ...format.byte_document import inner_codecs
from ...format.spec import ChainSpec, ShardSpec
from ...readable import as_nbytes
from ...storage.store import LeftFolder
from ..capped import Named
from ..hierarchy import Hierarchy
from ..jobs.shard_pool import ShardPool
from ..monitor import Monitor, RunOptions, passes_on_signals
from ..node_selection import selection_of
from ..run_over_arrays import RunOverArrays
from ..targets import ArrayTarget, ForeignObject, ShardTarget
from .array_picture import ArrayPicture
from .array_report import ArrayReport, InspectReport, LayoutRecord, StoredRecord
from .shard_sums import InspectTask, ShardInspector, ShardSums

__all__ = ["chunk_shape_of_shards", "inspect"]

OnArray = Callable[[ArrayReport], None]


@passes_on_signals
@checked
def inspect(
    target: Any,
    *,
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    dask: Any = None,
    fail_fast: bool = False,
    plot: str | os.PathLike[str] | None = None,
    plot_axes: Sequence[str | int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_array: OnArray | None = None,
) -> InspectReport:
    """Return what is stored of the arrays that a path leads to. Nothing is decoded.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array.
    only, exclude : str or sequence of str, optional
        Patterns of the arrays and groups that are inspected, and of those that are not.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of threads. Default: the option ``threads``.
    memory : int or str, optional
        Bytes of indexes to hold at a time; at least one index is held. Default: 64 MiB.
    dask : str, distributed.Client or bool, optional
        The workers of a cluster of dask read the indexes, see `convert`; `target` must be a path or a URL. `memory` and
        `threads` are then those of one worker.
    fail_fast : bool
        Stop at the first damaged shard.
    plot : path-like, optional
        Save a picture in this file (.png or .svg): the inner chunks of the array, and the bytes of the shard with the
        most dead bytes. Only for a single array; it needs matplotlib.
    plot_axes : sequence of (str or int), optional
        With `plot`: names or numbers of the one or two axes that the picture shows; the others are averaged. By default the
        last two with more than one inner chunk.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    monitor : Monitor, optional
        Gets the progress, and may stop the work.
    on_array : callable, optional
        Called with the report of each array as soon as it is complete; the report of all then does not list them.

    Returns
    -------
    InspectReport

    Raises
    ------
    FileNotFoundError
        The path leads to nothing, or not to an array, group or shard.
    SpecError
        The metadata of the target itself are malformed.
    TypeError, ValueError, ImportError
        An argument is invalid, or a package is missing.
    ConflictError, OSError
        A worker of dask reaches other metadata; or the scheduler was lost.

    Examples
    --------
    >>> stored = tools.inspect("a.zarr").arrays[0].stored
    >>> stored.n_shards, stored.n_chunks, stored.dead_nbytes
    (1, 4, 0)
    """
    if dask and plot is not None:
        raise ValueError(
            "plot: expected none with dask: a picture needs the size of each inner chunk, and the workers return sums only"
        )
    if plot_axes is not None and plot is None:
        raise ValueError("plot_axes: expected `plot` (--plot), a file for the picture")
    pool = ShardPool(
        target,
        spec,
        RunOptions(threads, as_nbytes(memory, "memory"), dask, storage_options, monitor or Monitor()),
    )
    left: list[LeftFolder] = []
    hierarchy = Hierarchy(target, storage_options, spec=spec, left=left)
    found = selection_of(only, exclude).targets(hierarchy)
    with pool:
        run = _InspectRun(pool, on_array, fail_fast, plot, plot_axes)
        run.run_over(found if plot is None else _only_one(found))
    return run.report(str(target), left)


def _only_one(arrays: Iterable[ArrayTarget]) -> list[ArrayTarget]:
    """Return the only array; raise `ValueError` if there are several."""
    found = list(itertools.islice(arrays, 4))
    if len(found) > 1:
        names = ", ".join(array.name for array in found[:3]) + (", ..." if len(found) > 3 else "")
        raise ValueError(
            f"plot: expected a single array, got {names}; choose one of them with `only` (--only)"
        )
    return found


class _InspectRun(RunOverArrays[ShardSums, ArrayReport]):
    """One run over several arrays. The report of each array is kept, or given to the caller."""

    _tool_advances = True

    def __init__(
        self,
        pool: ShardPool,
        on_array: OnArray | None,
        fail_fast: bool,
        plot: str | os.PathLike[str] | None,
        plot_axes: Sequence[str | int] | None,
    ) -> None:
        self._arrays: list[ArrayReport] = []
        super().__init__(pool, on_array or self._arrays.append, fail_fast=fail_fast)
        self._task, self._plot, self._plot_axes = InspectTask(fail_fast), plot, plot_axes
        self._n_arrays = self._n_findings = 0

    def report(self, target: str, left: Sequence[LeftFolder]) -> InspectReport:
        """Return the result."""
        not_followed = tuple(f"{one.key}: not followed: {one.reason}" for one in left)
        return InspectReport(target, self._n_arrays, self._n_findings, tuple(self._arrays), not_followed)

    def _add(self, array: ArrayTarget) -> None:
        self._sums = ShardSums()
        self._foreign: Named[str] = Named()
        self._unreadable: list[str] = []
        picture = None if self._plot is None else ArrayPicture(array, self._plot, self._plot_axes)
        stored = self._stored(array, picture) if array.is_sharded else None
        report = ArrayReport(
            array.name,
            array.place,
            array.problem,
            array.foreign_codec,
            _layout(array),
            stored,
            tuple(self._sums.damaged),
            tuple(self._foreign),
            not self.is_stopped,
            tuple(self._unreadable),
        )
        if picture is not None:
            picture.save()
        self._n_arrays += 1
        n_findings = report.n_findings
        self._n_findings += n_findings
        self._list(report, n_findings)

    def _stored(self, array: ArrayTarget, picture: ArrayPicture | None) -> StoredRecord:
        """Add up all shards of an array; a damaged one may stop it."""
        pool = self._pool
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        work = ShardInspector(array, self._task, pool.options, pool.budget, picture)
        self._work_on(array, self._task, work, self._only_shards(array))
        spec = array.shard_spec
        return self._sums.record(
            spec,
            array.n_grid_shards,
            _n_grid_chunks(array, spec),
            self._foreign.n,
            has_item_size=array.bytes is None or array.bytes.has_item_size,
        )

    def _count(self, shards: Sequence[ShardTarget], sums: ShardSums) -> None:
        self._sums.merge(sums)
        if self._fail_fast and sums.damaged:
            self.is_stopped = True

    def _only_shards(self, array: ArrayTarget) -> Iterator[ShardTarget]:
        for one in array.objects():
            if isinstance(one, ForeignObject) and one.is_unreadable:
                self._unreadable.append(f"{one.name}: {one.reason}")
            elif isinstance(one, ForeignObject):
                self._foreign.add(one.name)
            else:
                yield one


def _n_grid_chunks(array: ArrayTarget, spec: ShardSpec) -> int:
    """Return the number of inner chunks of the grid; of one shard, if only this is inspected."""
    if array.layout is None or array.only is not None:
        return spec.n_chunks
    sizes = chunk_shape_of_shards(spec)
    return math.prod([-(-n // size) for n, size in zip(array.counted_shape, sizes, strict=True)])


def chunk_shape_of_shards(spec: ShardSpec) -> tuple[int, ...]:
    """Return the shape of an inner chunk along the axes of the array; transposes before the sharding permute them."""
    return tuple(spec.chunk_shape[int(i)] for i in np.argsort(spec.chain.perm))


def _layout(array: ArrayTarget) -> LayoutRecord | None:
    if array.layout is None:
        return None if array.spec is None else _layout_of_shard(array.spec)
    names, given = array.document.get("dimension_names"), array.document.get("codecs")
    is_regular = all(len(edges) == 1 for edges in array.layout.edges)
    chunks = tuple(edges[0] for edges in array.layout.edges) if is_regular else None
    codecs: list[Any] = list(given) if isinstance(given, list | tuple) else []  # a malformed one has anything
    if array.spec is None and not codecs and array.problem is None:  # Zarr v2
        codecs = _codecs_of_v2(array)
    spec = array.spec
    return LayoutRecord(
        zarr_format=int(array.document.get("zarr_format", 3)),
        shape=array.layout.shape,
        dtype=array.data_type,
        fill_value=str(
            array.layout.fill_value if array.foreign_type is None else _stored(array)["fill_value"]
        ),
        dimension_names=tuple(names) if isinstance(names, list | tuple) else None,
        shard_shape=None if spec is None or not is_regular else spec.shard_shape,
        chunk_shape=chunks if spec is None else chunk_shape_of_shards(spec),
        codecs=codecs if spec is None else _inner_codecs(array, spec),
        index_codecs=[] if spec is None else [codec.to_json() for codec in spec.index_codecs],
        index_location=None if spec is None else spec.index_location,
        index_nbytes=0 if spec is None else spec.index_nbytes,
        grid_sizes=None if is_regular else array.layout.edges,
    )


def _inner_codecs(array: ArrayTarget, spec: ShardSpec) -> list[Any]:
    """Return the codecs of the inner chunks as the metadata have them, if the engine lacks one or the data type; else as it read them."""
    if array.bytes is not None and array.bytes.is_foreign:
        return inner_codecs(_stored(array)["codecs"])
    return [codec.to_json() for codec in spec.codecs]


def _codecs_of_v2(array: ArrayTarget) -> list[Any]:
    if array.foreign_codec is not None:
        return list(_stored(array)["codecs"])
    return list(ChainSpec.from_metadata(array.document).to_json())


def _stored(array: ArrayTarget) -> Mapping[str, Any]:
    """Return the document of an array whose data type or codecs the engine does not have."""
    assert array.bytes is not None
    return array.bytes.stored


def _layout_of_shard(spec: ShardSpec) -> LayoutRecord:
    return LayoutRecord(
        zarr_format=3,
        shape=spec.shard_shape,
        dtype=str(spec.dtype),
        fill_value=str(spec.fill_value),
        dimension_names=None,
        shard_shape=spec.shard_shape,
        chunk_shape=chunk_shape_of_shards(spec),
        codecs=[codec.to_json() for codec in spec.codecs],
        index_codecs=[codec.to_json() for codec in spec.index_codecs],
        index_location=spec.index_location,
        index_nbytes=spec.index_nbytes,
    )
