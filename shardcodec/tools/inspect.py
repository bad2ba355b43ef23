# inspect.py - what is stored of arrays and shards
# SPDX-License-Identifier: MIT
"""`inspect`: shapes, codecs, sizes, order and lost space of arrays and shards. Only metadata and indexes are read.

Memory is bounded: of the shards only sums, a histogram of sizes and the first damaged ones are kept.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..access.chunk_codec import compiled
from ..access.placement import ABSENT
from ..access.shard_layout import ShardLayout, shard_layout
from ..access.shard_object import OpenObject
from ..format.chain_spec import ChainSpec
from ..format.spec import ShardSpec
from ..options import Options, check, resolve
from .array_report import ArrayReport, DamagedShard, InspectReport, LayoutRecord, StoredRecord
from .array_target import ArrayTarget, ForeignObject, ShardTarget
from .monitor import Monitor
from .picture import ArrayPicture
from .shard_indexes import BATCH_NBYTES, ShardIndex, read_indexes
from .size_summary import Sizes
from .targets import find_arrays

__all__ = ["chunk_shape_of_shards", "inspect", "inspect_arrays"]

# Damaged shards and foreign objects that a report names; all are counted.
MAX_NAMED = 20


def inspect(
    target: Any,
    *,
    array: str | None = None,
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | None = None,
    fail_fast: bool = False,
    plot: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
) -> InspectReport:
    """Return what is stored of the arrays that a path leads to. Nothing is decoded.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array.
    array : str, optional
        Only this array, by its path in the group.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of threads. Default: the option ``threads``.
    memory : int, optional
        Bytes of indexes to hold at a time; at least one index is held. Default: 64 MiB.
    fail_fast : bool
        Stop at the first damaged shard.
    plot : path-like, optional
        Save a picture in this file (.png or .svg): the inner chunks of the array, and the bytes of the shard with the
        most dead bytes. Only for a single array; it needs matplotlib.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    monitor : Monitor, optional
        Gets the progress, and may stop the work.

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
        An argument is invalid, or no package can open the URL.
    """
    found = find_arrays(target, array=array, spec=spec, storage_options=storage_options)
    reports = tuple(
        inspect_arrays(found, threads=threads, memory=memory, fail_fast=fail_fast, plot=plot, monitor=monitor)
    )
    return InspectReport(str(target), len(reports), sum(one.n_findings for one in reports), reports)


def inspect_arrays(
    arrays: Iterator[ArrayTarget],
    *,
    threads: int | None = None,
    memory: int | None = None,
    fail_fast: bool = False,
    plot: str | os.PathLike[str] | None = None,
    monitor: Monitor | None = None,
) -> Iterator[ArrayReport]:
    """Yield the report of each array as soon as it is complete; parameters as for `inspect`."""
    options = resolve(argument=check({"threads": threads}))
    for array in arrays if plot is None else _only_one(arrays):
        picture = None if plot is None else ArrayPicture(array, plot)
        report = _Pass(array, options, memory or BATCH_NBYTES, fail_fast, monitor or Monitor(), picture).run()
        if picture is not None:
            picture.save()
        yield report
        if fail_fast and report.n_findings:
            return


def _only_one(arrays: Iterator[ArrayTarget]) -> list[ArrayTarget]:
    """Return the only array; raise `ValueError` if there are several."""
    found = list(itertools.islice(arrays, 4))
    if len(found) > 1:
        names = ", ".join(array.name for array in found[:3]) + (", ..." if len(found) > 3 else "")
        raise ValueError(f"plot: expected a single array, got {names}; choose one of them with array")
    return found


class _Pass:
    """One pass over the shards of one array."""

    def __init__(
        self,
        array: ArrayTarget,
        options: Options,
        memory: int,
        fail_fast: bool,
        monitor: Monitor,
        picture: ArrayPicture | None,
    ) -> None:
        self._array = array
        self._options = options
        self._memory = memory
        self._fail_fast = fail_fast
        self._monitor = monitor
        self._picture = picture
        self._shards, self._chunks = Sizes(), Sizes()
        self._sums: Counter[str] = Counter()
        self._orders: Counter[str] = Counter()
        self._alignments: Counter[int] = Counter()
        self._damaged: list[DamagedShard] = []
        self._foreign: list[str] = []
        self._is_complete = True

    def run(self) -> ArrayReport:
        array = self._array
        if array.is_sharded:
            self._monitor.start(array.name or array.place, array.n_grid_shards)
            self._scan(array.shard_spec)
        return ArrayReport(
            array.name,
            array.place,
            array.problem,
            array.foreign_codec,
            _layout(array),
            self._stored(array.shard_spec) if array.is_sharded else None,
            tuple(self._damaged),
            tuple(self._foreign),
            self._is_complete,
        )

    def _scan(self, spec: ShardSpec) -> None:
        def examine(view: OpenObject, entries: Any) -> ShardLayout:
            return shard_layout(spec, entries, view.nbytes, view.range)

        for one in read_indexes(
            self._array,
            self._only_shards(),
            self._options,
            memory=self._memory,
            examine=examine,
            monitor=self._monitor,
        ):
            self._count(one)
            if self._fail_fast and self._sums["damaged"]:
                self._is_complete = False
                return

    def _only_shards(self) -> Iterator[ShardTarget]:
        for one in self._array.objects():
            if isinstance(one, ForeignObject):
                self._sums["foreign"] += 1
                if len(self._foreign) < MAX_NAMED:
                    self._foreign.append(one.name)
            else:
                yield one

    def _count(self, one: ShardIndex) -> None:
        if one.is_missing:
            return
        self._sums["shards"] += 1
        if one.nbytes is not None:
            self._shards.add([one.nbytes])
        if one.error is not None or one.entries is None:
            self._sums["damaged"] += 1
            if len(self._damaged) < MAX_NAMED:
                self._damaged.append(DamagedShard(one.shard.name, str(one.error)))
            return
        layout: ShardLayout = one.result
        sizes = one.entries[:, 1]
        self._chunks.add(sizes[sizes != ABSENT])
        self._sums["chunks"] += layout.n_stored
        for kind in layout.ranges:
            self._sums[kind] += layout.total(kind)
        for kind in ("header", "footer"):
            self._sums[f"with {kind}"] += bool(layout.total(kind))
        self._orders[layout.order] += 1
        self._alignments[layout.alignment] += 1
        if self._picture is not None:
            self._picture.add(one)

    def _stored(self, spec: ShardSpec) -> StoredRecord:
        sums, chunks = self._sums, self._chunks.summary()
        decoded = sums["chunks"] * math.prod(spec.chunk_shape) * spec.dtype.itemsize
        return StoredRecord(
            n_grid_shards=self._array.n_grid_shards,
            n_shards=sums["shards"],
            n_grid_chunks=_n_grid_chunks(self._array, spec),
            n_chunks=sums["chunks"],
            shards=self._shards.summary(),
            chunks=chunks,
            decoded_nbytes=decoded,
            chunk_nbytes=sums["inner chunks"],
            index_nbytes=sums["index"],
            header_nbytes=sums["header"],
            footer_nbytes=sums["footer"],
            padding_nbytes=sums["padding"],
            unmarked_nbytes=sums["unmarked"],
            dead_nbytes=sums["dead"],
            ratio=decoded / chunks.nbytes if chunks.nbytes else None,
            orders=dict(self._orders),
            alignments=dict(self._alignments),
            n_without_index_checksum=0 if spec.n_index_checksums else sums["shards"],
            n_with_header=sums["with header"],
            n_with_footer=sums["with footer"],
            n_damaged=sums["damaged"],
            n_foreign=sums["foreign"],
        )


def _n_grid_chunks(array: ArrayTarget, spec: ShardSpec) -> int:
    """Return the number of inner chunks of the grid; of one shard, if only this is inspected."""
    if array.layout is None or array.only is not None:
        return spec.n_chunks
    sizes = chunk_shape_of_shards(spec)
    return math.prod(-(-n // size) for n, size in zip(array.layout.shape, sizes, strict=True))


def chunk_shape_of_shards(spec: ShardSpec) -> tuple[int, ...]:
    """Return the shape of an inner chunk along the axes of the array; transposes before the sharding permute them."""
    return tuple(spec.chunk_shape[int(i)] for i in np.argsort(compiled(spec.chain).perm))


def _layout(array: ArrayTarget) -> LayoutRecord | None:
    if array.layout is None:
        return None if array.spec is None else _layout_of_shard(array.spec)
    names = array.document.get("dimension_names")
    chunks = tuple(edges[0] for edges in array.layout.edges)
    codecs: list[Any] = list(array.document.get("codecs") or [])
    if array.spec is None and not codecs and array.problem is None:  # Zarr v2
        codecs = list(ChainSpec.from_metadata(array.document).to_json())
    spec = array.spec
    return LayoutRecord(
        zarr_format=int(array.document.get("zarr_format", 3)),
        shape=array.layout.shape,
        dtype=str(array.layout.dtype),
        fill_value=str(array.layout.fill_value),
        dimension_names=None if names is None else tuple(names),
        shard_shape=None if spec is None else spec.shard_shape,
        chunk_shape=chunks if spec is None else chunk_shape_of_shards(spec),
        codecs=codecs if spec is None else _inner_codecs(array, spec),
        index_codecs=[] if spec is None else [codec.to_json() for codec in spec.index_codecs],
        index_location=None if spec is None else spec.index_location,
        index_nbytes=0 if spec is None else spec.index_nbytes,
    )


def _inner_codecs(array: ArrayTarget, spec: ShardSpec) -> list[Any]:
    """Return the codecs of the inner chunks as the metadata have them, if the engine lacks one; else as it read them."""
    for one in array.document.get("codecs") or () if array.foreign_codec else ():
        if isinstance(one, Mapping) and one.get("name") == "sharding_indexed":
            return list(one["configuration"]["codecs"])
    return [codec.to_json() for codec in spec.codecs]


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
