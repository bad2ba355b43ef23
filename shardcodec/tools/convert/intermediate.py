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

from ...format.chunk_keys import key_encoding
from ...format.codecs import Blosc, Bytes
from ...format.dtypes import swap_fields
from ...format.spec import ShardSpec
from ..jobs.job_files import ledger_folder
from ..new_hierarchy import NewHierarchy
from .grouping import Geometry, encode_grouping
from .layout import NewLayout
from .plan import ConvertPlan, PlannedArray
from .run_plan import Execution
from .source import SourceArray, SourceTree
from .write_units import Totals
from .zarr_source import zarr_source

__all__ = ["Intermediate"]


class Intermediate:
    """The intermediate arrays of a conversion, in a temporary folder. Its files are those of an earlier run of the same job.

    The ledger has the name of the job with ``.temp``; it is removed with the arrays.
    """

    def __init__(self, conversion: Execution, folder: str | os.PathLike[str]) -> None:
        self._conversion, plan, tree = conversion, conversion.plan, conversion.tree
        # only this process writes there, and a local folder has no locks that reach other nodes
        self._options = replace(conversion.options, locking="thread")
        # a name that no other hierarchy has, because the whole folder is removed at the end
        self._folder = os.path.abspath(os.fspath(folder))
        self._new = NewHierarchy(os.path.join(self._folder, f"{plan.fingerprint}.zarr"))
        self._job = None if conversion.job is None else f"{conversion.job}.temp"
        if self._job is None or not os.path.exists(ledger_folder(self._job)):
            self._new.check_free()
        sources = {source.name: source for source in tree.arrays}
        chosen = [array for array in plan.arrays if array.via is not None]
        documents: dict[str, Any] = {array.name: _document(sources[array.name], array) for array in chosen}
        self._plan = replace(
            plan,
            destination=self._new.place,
            arrays=tuple(
                _planned(sources[array.name], array, plan, documents[array.name]) for array in chosen
            ),
            documents=documents,
            verbatim=(),
            fingerprint=f"{plan.fingerprint} intermediate",
        )

    def make(self) -> Totals:
        """Write the intermediate arrays; those that are finished are not written again."""
        tree, monitor = replace(self._conversion.tree, others=None), self._conversion.monitor
        execution = Execution(
            self._plan,
            tree,
            self._new,
            self._options,
            monitor,
            self._conversion.fail_fast,
            self._job,
            self._conversion.owner,
        )
        totals, _, _ = execution.run(self._plan.units(), n_shards=self._plan.n_shards, finishes=True)
        return totals

    def tree(self) -> SourceTree:
        """Return the source with the intermediate arrays in place of the arrays that they are copies of."""
        tree = self._conversion.tree
        return replace(tree, arrays=tuple(map(self._opened, tree.arrays)))

    def _opened(self, source: SourceArray) -> SourceArray:
        document = self._plan.documents.get(source.name)
        if document is None:
            return source
        folder = self._new.folder(source.name)
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
    assert array.via is not None
    endian = Bytes("little" if swap_fields(source.dtype) else None)
    codecs = (endian, Blosc("lz4", 1))
    spec = ShardSpec(array.via.shard, array.via.chunk, source.dtype, source.fill_value, codecs)
    return spec.to_metadata(source.shape)


def _planned(
    source: SourceArray, array: PlannedArray, plan: ConvertPlan, document: dict[str, Any]
) -> PlannedArray:
    assert array.via is not None
    geometry = Geometry(
        source.shape,
        array.via.shard,
        array.via.chunk,
        source.chunks,
        source.dtype.itemsize,
        extra_shards=1 if plan.verify == "compare" else 0,
        n_threads=plan.n_threads,
    )
    grouping = encode_grouping(geometry, plan.memory)
    layout = NewLayout(document, "encode", "an intermediate array")
    return PlannedArray(array.name, layout, array.via.chunk, array.via.shard, geometry.grid, grouping)
