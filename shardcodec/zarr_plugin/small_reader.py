# small_reader.py - small reads of one local file
# SPDX-License-Identifier: MIT
"""`SmallReader`: one native call for a small read through zarr."""

from __future__ import annotations

from typing import Any

from ..access.read import slice_reader
from ..compat import StorePath, as_numpy
from ..errors import ShardError
from ..options import Options
from ..storage import absent
from ..storage.store import Store
from .array_codecs import Kind

__all__ = ["SmallReader"]

# Number of memoised readers of one array, by chunk shape. A rectilinear grid may have any number of shapes.
MAX_READERS = 64


class SmallReader:
    """Fast path for a small read from a single local file: one native call.

    `read` returns None for selections that are not slices, for large reads and for damaged shards. The caller then uses
    `access.array_read.read_request`, which names the inner chunk in an error, and reads again if a writer has changed the file.
    `base` is the zarr store of the array, `store` ours, whose objects are files.
    """

    def __init__(self, kind: Kind, base: Any, store: Store) -> None:
        self._kind = kind
        self._base = base
        self._store = store
        self._known: tuple[Options | None, dict[Any, Any]] = None, {}

    def read(self, item: Any, buffer: Any, options: Options) -> bool | None:
        """Read the only item of a batch: True if the object exists, False if not; None if nothing was read.

        ``options.threads`` is ignored. OSError: the file could not be read, or a writer has changed it.
        """
        target, spec, chunk_selection, array_selection, _ = item
        array = as_numpy(buffer)
        if array is None or type(target) is not StorePath or target.store is not self._base:
            return None
        known, readers = self._known
        if known is not options:
            self._known = options, (readers := {})
        key = spec.shape, array.dtype
        reader = readers.get(key, self)
        if reader is self:
            if len(readers) == MAX_READERS:
                readers.clear()
            reader = readers[key] = self._reader(*key, options)
        if reader is None:
            return None
        path = self._store.path(target.path)
        try:
            exists: bool | None = reader.read(path, chunk_selection, array_selection, array)
        except ShardError:
            return None
        return exists if exists or self._store.is_prompt or not absent.may_lack(path) else None

    def _reader(self, shape: tuple[int, ...], dtype: Any, options: Options) -> Any:
        """Return the native reader of chunks of this shape; None if they are not read here."""
        chain = self._kind.chain_for(shape, dtype)
        return None if chain is None else slice_reader(chain, dtype, options)
