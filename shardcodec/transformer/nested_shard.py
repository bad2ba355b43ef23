# nested_shard.py - a shard that is a chunk of another opened shard
# SPDX-License-Identifier: MIT
"""Nested shards in one file.

Index and chunks must come from one state of the file. Only an open file descriptor guarantees this. So an inner shard
is read through the opened outer shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import native
from ..access.index_check import check_index
from ..access.placement import ABSENT
from ..access.read import index_too_short
from ..options import Options

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Entries", "Opened", "Window", "check_entries"]

Entries = np.ndarray[Any, np.dtype[np.uint64]]


class Opened(Protocol):
    """An opened shard, which may be absent; see `access.shard_object.OpenObject`."""

    @property
    def missing(self) -> bool: ...

    @property
    def nbytes(self) -> int: ...

    def check(self) -> None: ...

    def entries(self, *, check: bool) -> Entries: ...

    def entry(self, position: int) -> tuple[int, int] | None: ...

    def range(self, offset: int, nbytes: int) -> bytes: ...

    def close(self) -> None: ...


def check_entries(chain: Chain, entries: Entries, nbytes: int, options: Options) -> None:
    """Check index entries of an object of `nbytes` bytes.

    Raises
    ------
    ShardFormatError
        An entry points outside of the object or into the index; ``.entry`` is its number among the given entries.
    """
    n = int(chain.index_nbytes)
    first = 0 if chain.index_at_start else max(0, nbytes - n)
    native.load().index_check(entries, nbytes, first, n, allow_in_index=options.allow_in_index)


class Window:
    """A shard that is a chunk of an opened shard. `close` closes the outer shard, too.

    Parameters
    ----------
    chain
        Compiled chain of the inner shard.
    outer : Opened
        The outer shard.
    place : tuple of int or None
        Offset and size in the outer shard, in bytes; None if the inner shard is absent.
    key : str
        Key of the inner shard, for errors.
    options : Options
        Options of the read.
    """

    def __init__(
        self, chain: Chain, outer: Opened, place: tuple[int, int] | None, key: str, options: Options
    ) -> None:
        self._chain = chain
        self._outer = outer
        self._options = options
        self.missing = place is None
        self._first, self.nbytes = place or (0, 0)
        if self.missing:
            return
        n = int(chain.index_nbytes)
        if self.nbytes < n:  # before memory is allocated for the index that the metadata describe
            raise index_too_short(key, self.nbytes, n)
        self._entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        stored = self.range(0 if chain.index_at_start else self.nbytes - n, n)
        native.load().load_index(chain, stored, self._entries)
        check_index(chain, self._entries, self.nbytes, options)

    def check(self) -> None:
        """Do nothing: the index was checked when the shard was opened."""

    def entries(self, *, check: bool) -> Entries:
        if check:
            check_entries(self._chain, self._entries, self.nbytes, self._options)
        return self._entries

    def entry(self, position: int) -> tuple[int, int] | None:
        own = self._entries[position : position + 1]
        check_entries(self._chain, own, self.nbytes, self._options)
        offset, nbytes = own[0].tolist()
        return None if offset == ABSENT else (offset, nbytes)

    def range(self, offset: int, nbytes: int) -> bytes:
        return self._outer.range(self._first + offset, nbytes)

    def close(self) -> None:
        self._outer.close()
