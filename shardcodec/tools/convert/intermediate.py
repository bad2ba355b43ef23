# intermediate.py - an intermediate array, where source chunks and new shards cross
# SPDX-License-Identifier: MIT
"""`Intermediate`: makes the intermediate arrays of a plan in a temporary folder, and opens them in place of the source.

If no group of shards fits into the memory whose edges are edges of source chunks, source chunks would be read many times. The
intermediate array has chunks that suit both sides, as rechunker does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import replace
from typing import Any

from ...format.codecs import Blosc, Bytes
from ...format.dtypes import swap_fields
from ...format.metadata import key_encoding
from ...format.spec import ShardSpec
from ...options import Options
from ..jobs.ledger import ledger_folder
from ..monitor import Monitor
from .destination import NewTree
from .execute import Execution
from .grouping import Geometry, encode_grouping
from .plan import ConvertPlan, PlannedArray
from .run import Totals
from .source import SourceArray, SourceTree
from .zarr_source import zarr_source

__all__ = ["Intermediate"]


class Intermediate:
    """The intermediate arrays of one conversion.

    Parameters
    ----------
    plan : ConvertPlan
        The conversion.
    tree : SourceTree
        Its source.
    folder : path-like
        The temporary folder. A folder in it has the arrays, and is removed at the end.
    options : Options
    job : str or None
        The job of the conversion; its name with ``.temp`` is that of the ledger of the intermediate arrays.
    owner : str
        Name of the job, which no other job has.

    Raises
    ------
    FileExistsError
        The folder has files, and there is no ledger for them.
    """

    def __init__(
        self,
        plan: ConvertPlan,
        tree: SourceTree,
        folder: str | os.PathLike[str],
        options: Options,
        job: str | None,
        owner: str,
    ) -> None:
        self._tree, self._owner = tree, owner
        # only this process writes there, and a local folder has no locks that reach other nodes
        self._options = replace(options, locking="thread")
        # a name that no other hierarchy has, because the whole folder is removed at the end
        self._folder = os.path.abspath(os.fspath(folder))
        self._new = NewTree(os.path.join(self._folder, f"{plan.fingerprint}.zarr"))
        self._job = None if job is None else f"{job}.temp"
        if self._job is None or not os.path.exists(ledger_folder(self._job)):
            self._new.check_free()
        by_name = {one.name: one for one in tree.arrays}
        chosen = [one for one in plan.arrays if one.via_chunk is not None]
        documents: dict[str, Any] = {one.name: _document(by_name[one.name], one) for one in chosen}
        self._plan = replace(
            plan,
            destination=self._new.place,
            arrays=tuple(_planned(by_name[one.name], one, plan) for one in chosen),
            documents=documents,
            verbatim=(),
            fingerprint=f"{plan.fingerprint} intermediate",
        )

    def make(self, monitor: Monitor, *, fail_fast: bool) -> Totals:
        """Write the intermediate arrays; those that are finished are not written again."""
        execution = Execution(
            self._plan,
            replace(self._tree, others=None),
            self._new,
            self._options,
            monitor,
            job=self._job,
            owner=self._owner,
            fail_fast=fail_fast,
        )
        totals, _, _ = execution.run(self._plan.units(), n_shards=self._plan.n_shards, finishes=True)
        return totals

    def tree(self) -> SourceTree:
        """Return the source with the intermediate arrays in place of the arrays that they are copies of."""
        return replace(self._tree, arrays=tuple(map(self._opened, self._tree.arrays)))

    def _opened(self, source: SourceArray) -> SourceArray:
        document = self._plan.documents.get(source.name)
        if document is None:
            return source
        folder = self._new.array(source.name, document, self._options).folder
        return zarr_source(source.name, folder, document, key_encoding(document), self._options)

    def remove(self) -> None:
        """Remove the temporary folder and its ledger."""
        assert self._new.path is not None
        shutil.rmtree(self._new.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not empty, or does not exist
            os.rmdir(self._folder)
        if self._job is not None:
            shutil.rmtree(ledger_folder(self._job), ignore_errors=True)


def _document(source: SourceArray, array: PlannedArray) -> dict[str, Any]:
    assert array.via_shard is not None and array.via_chunk is not None
    endian = Bytes("little" if swap_fields(source.dtype) else None)
    codecs = (endian, Blosc("lz4", 1))
    spec = ShardSpec(array.via_shard, array.via_chunk, source.dtype, source.fill_value, codecs)
    return spec.to_metadata(source.shape)


def _planned(source: SourceArray, array: PlannedArray, plan: ConvertPlan) -> PlannedArray:
    assert array.via_shard is not None and array.via_chunk is not None
    geometry = Geometry(
        source.shape,
        array.via_shard,
        array.via_chunk,
        source.chunks,
        source.dtype.itemsize,
        extra_shards=1 if plan.verify == "full" else 0,
        n_threads=plan.n_threads,
    )
    grouping = encode_grouping(geometry, plan.memory)
    return PlannedArray(
        array.name,
        "encode",
        "an intermediate array",
        array.via_chunk,
        array.via_shard,
        geometry.grid,
        grouping.shards,
        grouping.piece,
        grouping.need_nbytes,
        grouping.amplification,
    )
