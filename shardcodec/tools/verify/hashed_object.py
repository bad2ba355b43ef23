# hashed_object.py - the SHA-256 of an object, from the reads that check it
# SPDX-License-Identifier: MIT
"""`HashedObject`: an open object that is hashed as it is read, so that a check and a manifest need one read.

An object of up to a block is read once, as a whole. Of a larger one, bytes are hashed in the order of the file: a gap before a read is
read then, and the end at last. Only an index at the end, which is read first, is read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from ...access.opened_shard import Entries, NativeShard, NestedShard, OpenedShard, Sums

__all__ = ["HashedObject"]


class HashedObject(NestedShard):
    """An open object and the hash of its bytes. `close` closes the object.

    Parameters
    ----------
    view : OpenedShard
    block_nbytes : int
        Bytes to read at a time.
    """

    def __init__(self, view: OpenedShard, block_nbytes: int) -> None:
        super().__init__(None, view, (0, view.nbytes))
        self._hash = hashlib.sha256()
        self._end = 0  # of the bytes that are hashed
        self._block_nbytes = block_nbytes
        self._memory: NativeShard | None = None
        if view.nbytes <= block_nbytes:
            data = self.range(0, view.nbytes)
            self._data, self._memory = data, NativeShard(None, data)

    def range(self, offset: int, nbytes: int) -> Any:
        if self._data is not None:
            return self._data[offset : offset + nbytes]
        skips_to_end = offset + nbytes == self.nbytes and offset - self._end > self._block_nbytes
        if not skips_to_end:
            self._hash_up_to(offset)
        data = super().range(offset, nbytes)
        if not skips_to_end and self._end < offset + nbytes:
            self._hash.update(memoryview(data)[self._end - offset :])
            self._end = offset + nbytes
        return data

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        return [self.range(offset, nbytes) for offset, nbytes in ranges]

    def checksums(self, ranges: Entries, max_nbytes: int) -> Sums | None:
        """Return None for a large object: the engine would read the file by itself."""
        return None if self._memory is None else self._memory.checksums(ranges, max_nbytes)

    def sha256(self) -> str:
        """Return the hash of the whole object, the bytes that no check has read included."""
        self._hash_up_to(self.nbytes)
        return self._hash.hexdigest()

    def _hash_up_to(self, offset: int) -> None:
        while self._data is None and self._end < offset:
            size = min(self._block_nbytes, offset - self._end)
            self._hash.update(super().range(self._end, size))
            self._end += size
